//! Every kind decodes to itself, every malformed element to its own error.

use super::*;

#[test]
fn every_scalar_decodes_to_its_kind() {
    assert_eq!(tree(b"+OK\r\n"), Tree::SimpleString(b"OK".to_vec()));
    assert_eq!(tree(b"+\r\n"), Tree::SimpleString(Vec::new()));
    assert_eq!(tree(b"-ERR no\r\n"), Tree::SimpleError(b"ERR no".to_vec()));
    assert_eq!(tree(b"$5\r\na\r\nb\0\r\n"), Tree::BlobString(b"a\r\nb\0".to_vec()));
    assert_eq!(tree(b"$0\r\n\r\n"), text(""));
    assert_eq!(tree(b"!9\r\nSYNTAX no\r\n"), Tree::BlobError(b"SYNTAX no".to_vec()));
    assert_eq!(tree(b":-9223372036854775808\r\n"), Tree::Integer(i64::MIN));
    assert_eq!(tree(b":+9223372036854775807\r\n"), Tree::Integer(i64::MAX));
    assert_eq!(tree(b",-3.5e2\r\n"), Tree::Double(-350.0));
    assert_eq!(tree(b",-inf\r\n"), Tree::Double(f64::NEG_INFINITY));
    assert!(whole(b",nan\r\n").value().as_f64().unwrap().is_nan());
    assert_eq!(tree(b"(-12345678901234567890\r\n"), Tree::BigNumber("-12345678901234567890".into()));
    assert_eq!(tree(b"#t\r\n"), Tree::Boolean(true));
    assert_eq!(tree(b"#f\r\n"), Tree::Boolean(false));
    assert_eq!(tree(b"=8\r\ntxt:text\r\n"), Tree::Verbatim(*b"txt", b"text".to_vec()));
    for null in [&b"_\r\n"[..], b"$-1\r\n", b"*-1\r\n"] {
        assert_eq!(tree(null), Tree::Null);
    }
}

#[test]
fn every_aggregate_decodes_to_its_kind() {
    let items = || vec![Tree::Integer(1), Tree::Array(vec![]), text("x")];
    assert_eq!(tree(b"*3\r\n:1\r\n*0\r\n$1\r\nx\r\n"), Tree::Array(items()));
    assert_eq!(tree(b"~3\r\n:1\r\n*0\r\n$1\r\nx\r\n"), Tree::Set(items()));
    assert_eq!(tree(b">3\r\n:1\r\n*0\r\n$1\r\nx\r\n"), Tree::Push(items()));
    assert_eq!(
        tree(b"%1\r\n+k\r\n*0\r\n"),
        Tree::Map(vec![(Tree::SimpleString(b"k".into()), Tree::Array(vec![]))])
    );
    assert!(whole(b">1\r\n+a\r\n").is_push());
}

#[test]
fn streamed_values_equal_those_of_known_length() {
    assert_eq!(tree(b"$?\r\n;4\r\nHell\r\n;6\r\no worl\r\n;1\r\nd\r\n;0\r\n"), text("Hello world"));
    assert_eq!(tree(b"$?\r\n;0\r\n"), text(""));
    assert_eq!(tree(b"*?\r\n:1\r\n*?\r\n.\r\n+a\r\n.\r\n"), tree(b"*3\r\n:1\r\n*0\r\n+a\r\n"));
    assert_eq!(tree(b"~?\r\n:1\r\n.\r\n"), tree(b"~1\r\n:1\r\n"));
    assert_eq!(tree(b">?\r\n:1\r\n.\r\n"), tree(b">1\r\n:1\r\n"));
    assert_eq!(tree(b"%?\r\n+k\r\n$?\r\n;1\r\nv\r\n;0\r\n.\r\n"), tree(b"%1\r\n+k\r\n$1\r\nv\r\n"));
    assert_eq!(
        tree(b"*3\r\n$?\r\n;1\r\na\r\n;1\r\nb\r\n;0\r\n$1\r\nc\r\n$?\r\n;2\r\nde\r\n;0\r\n"),
        Tree::Array(vec![text("ab"), text("c"), text("de")])
    );
}

#[test]
fn attributes_are_skipped_by_iteration_and_found_by_name() {
    let frame = whole(b"|1\r\n+ttl\r\n:9\r\n*2\r\n:1\r\n|1\r\n+pop\r\n*1\r\n:5\r\n:2\r\n");
    let value = frame.value();
    assert_eq!(frame.kind(), ValueKind::Array);
    assert_eq!(value.iter().map(Value::as_i64).collect::<Vec<_>>(), [Some(1), Some(2)]);
    let ttl = frame.attributes().unwrap();
    assert_eq!(ttl.kind(), ValueKind::Attribute);
    assert_eq!(ttl.pairs().unwrap().next().unwrap().1.as_i64(), Some(9));
    assert!(value.get(0).unwrap().attributes().is_none());
    let pop = value.get(1).unwrap().attributes().unwrap();
    assert_eq!(pop.get(1).unwrap().get(0).unwrap().as_i64(), Some(5));
    let scalar = whole(b"|1\r\n+a\r\n+b\r\n$1\r\nx\r\n");
    assert_eq!(scalar.value().as_str(), Some("x"));
    assert_eq!(scalar.attributes().unwrap().len(), 2);
}

#[test]
fn a_malformed_element_is_refused_with_its_own_error() {
    use ProtocolError::*;
    for (wire, expected) in [
        (&b"?\r\n"[..], UnknownType(b'?')),
        (b"*1\r\n\0", UnknownType(0)),
        (b":\r\n", BadInteger),
        (b":1a\r\n", BadInteger),
        (b":-\r\n", BadInteger),
        (b":9223372036854775808\r\n", BadInteger),
        (b":-9223372036854775809\r\n", BadInteger),
        (b":00000000000000000000001\r\n", BadInteger),
        (b":1\rx", MissingCrlf),
        (b"$x\r\n", BadLength),
        (b"$-2\r\n", BadLength),
        (b"$-\r\n", BadLength),
        (b"$\r\n", BadLength),
        (b"$99999999999999999999\r\n", BadLength),
        (b"*-2\r\n", BadLength),
        (b"%-1\r\n", BadLength),
        (b"!-1\r\n", BadLength),
        (b"=?\r\n", BadLength),
        (b"*?x", BadLength),
        (b"$1\r\nabc", MissingCrlf),
        (b"+a\n", MissingCrlf),
        (b"+\n", MissingCrlf),
        (b"#x", BadBoolean),
        (b"#tt", BadBoolean),
        (b"_x", BadNull),
        (b",1.2.3\r\n", BadDouble),
        (b",\r\n", BadDouble),
        (b"(12a\r\n", BadBigNumber),
        (b"(-\r\n", BadBigNumber),
        (b"=3\r\ntxt\r\n", BadVerbatim),
        (b"=4\r\ntxtx\r\n", BadVerbatim),
        (b".\r\n", UnexpectedEnd),
        (b"*1\r\n.\r\n", UnexpectedEnd),
        (b"%?\r\n+a\r\n.\r\n", UnexpectedEnd),
        (b".x", MissingCrlf),
        (b";1\r\na\r\n", UnexpectedChunk),
        (b"$?\r\n+a\r\n", UnexpectedChunk),
        (b"|1\r\n+a\r\n+b\r\n|0\r\n+c\r\n", DanglingAttribute),
        (b"*?\r\n|0\r\n.\r\n", DanglingAttribute),
    ] {
        assert_eq!(error(&ReplyLimits::default(), wire), expected, "{:?}", String::from_utf8_lossy(wire));
    }
}
