//! Laws of the conversions: both protocols, ranges, sizes, paths.

use super::*;
use crate::resp::tests::whole;
use crate::resp::{StreamEntry, Tree, ValueKind};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

fn get<T: FromValue>(wire: &str) -> T {
    let frame = whole(wire.as_bytes());
    T::from_frame(frame).unwrap_or_else(|error| panic!("{wire:?}: {error}"))
}

fn fail<T: FromValue>(wire: &str) -> ConvertError {
    match T::from_frame(whole(wire.as_bytes())) {
        Ok(_) => panic!("{wire:?} was taken"),
        Err(error) => error,
    }
}

fn problem<T: FromValue>(wire: &str) -> ConvertProblem {
    fail::<T>(wire).problem().clone()
}

fn mismatch(expected: &'static str, found: ValueKind) -> ConvertProblem {
    ConvertProblem::TypeMismatch { expected, found }
}

#[test]
fn text_is_read_from_strings_and_numbers() {
    for wire in ["+12\r\n", "$2\r\n12\r\n", ":12\r\n", ",12\r\n", "(12\r\n", "=6\r\ntxt:12\r\n"] {
        assert_eq!(get::<String>(wire), "12");
        assert_eq!(&*get::<Box<str>>(wire), "12");
        assert_eq!(&*get::<Arc<str>>(wire), "12");
        assert_eq!(get::<Vec<u8>>(wire), b"12");
        assert_eq!(get::<Bytes>(wire), "12");
        assert_eq!(get::<[u8; 2]>(wire), *b"12");
    }
    assert_eq!(get::<Vec<u8>>("$0\r\n\r\n"), b"");
    assert_eq!(problem::<String>("*0\r\n"), mismatch("string", ValueKind::Array));
    assert_eq!(problem::<Bytes>("#t\r\n"), mismatch("string", ValueKind::Boolean));
    let binary = crate::resp::tests::whole(b"$1\r\n\xff\r\n");
    assert_eq!(String::from_value(binary.value()).unwrap_err().problem(), &ConvertProblem::InvalidUtf8);
    assert_eq!(Vec::<u8>::from_frame(binary).unwrap(), [0xff]);
}

#[test]
fn integers_keep_within_their_range() {
    assert_eq!(get::<u8>(":255\r\n"), 255);
    assert_eq!(get::<u8>("$3\r\n255\r\n"), 255);
    assert_eq!(get::<u64>("$20\r\n18446744073709551615\r\n"), u64::MAX);
    assert_eq!(get::<i128>("(-170141183460469231731687303715884105728\r\n"), i128::MIN);
    assert_eq!(get::<i64>("+-5\r\n"), -5);
    assert_eq!(problem::<u8>(":256\r\n"), ConvertProblem::OutOfRange { target: "u8" });
    assert_eq!(problem::<u8>("$3\r\n256\r\n"), ConvertProblem::OutOfRange { target: "u8" });
    assert_eq!(problem::<u64>(":-1\r\n"), ConvertProblem::OutOfRange { target: "u64" });
    assert_eq!(problem::<u64>("$2\r\n-1\r\n"), ConvertProblem::OutOfRange { target: "u64" });
    assert_eq!(problem::<i64>("(9223372036854775808\r\n"), ConvertProblem::OutOfRange { target: "i64" });
    assert_eq!(problem::<i64>("$1\r\nx\r\n"), mismatch("integer", ValueKind::BlobString));
    assert_eq!(problem::<i64>("$0\r\n\r\n"), mismatch("integer", ValueKind::BlobString));
    assert_eq!(problem::<i64>(",1.5\r\n"), mismatch("integer", ValueKind::Double));
    assert_eq!(problem::<i64>("_\r\n"), ConvertProblem::UnexpectedNull { expected: "integer" });
}

#[test]
fn floats_are_read_from_every_kind_of_number() {
    for wire in [",2.5\r\n", "$3\r\n2.5\r\n", "+2.5\r\n"] {
        assert_eq!(get::<f64>(wire), 2.5);
        assert_eq!(get::<f32>(wire), 2.5);
    }
    assert_eq!(get::<f64>(":2\r\n"), 2.0);
    assert_eq!(get::<f32>(",inf\r\n"), f32::INFINITY);
    assert_eq!(problem::<f32>(",1e300\r\n"), ConvertProblem::OutOfRange { target: "f32" });
    assert_eq!(problem::<f64>("+x\r\n"), mismatch("number", ValueKind::SimpleString));
}

#[test]
fn booleans_are_read_from_what_means_yes_or_no() {
    for yes in ["#t\r\n", ":1\r\n", "$1\r\n1\r\n", "+OK\r\n"] {
        assert!(get::<bool>(yes));
    }
    for no in ["#f\r\n", ":0\r\n", "$1\r\n0\r\n"] {
        assert!(!get::<bool>(no));
    }
    for neither in [":2\r\n", "$2\r\nOK\r\n", "+1x\r\n"] {
        assert!(matches!(problem::<bool>(neither), ConvertProblem::TypeMismatch { .. }));
    }
}

#[test]
fn null_is_none_and_nothing_else_is() {
    for null in ["_\r\n", "$-1\r\n", "*-1\r\n"] {
        assert_eq!(get::<Option<String>>(null), None);
        assert_eq!(get::<Option<Vec<i64>>>(null), None);
        assert_eq!(problem::<Vec<i64>>(null), ConvertProblem::UnexpectedNull { expected: "array" });
    }
    assert_eq!(get::<Option<i64>>(":1\r\n"), Some(1));
    assert_eq!(get::<Option<Bytes>>("$0\r\n\r\n"), Some(Bytes::new()));
    assert_eq!(get::<Vec<Option<i64>>>("*2\r\n:1\r\n_\r\n"), [Some(1), None]);
}

#[test]
fn lists_are_read_into_every_collection() {
    let wire = "*3\r\n:3\r\n:1\r\n$1\r\n2\r\n";
    assert_eq!(get::<Vec<i64>>(wire), [3, 1, 2]);
    assert_eq!(get::<VecDeque<u8>>("$2\r\nab\r\n"), *b"ab");
    assert_eq!(get::<VecDeque<i64>>(wire), [3, 1, 2]);
    assert_eq!(*get::<Box<[i64]>>(wire), [3, 1, 2]);
    assert_eq!(get::<[i64; 3]>(wire), [3, 1, 2]);
    assert_eq!(get::<HashSet<i64>>(wire), HashSet::from([1, 2, 3]));
    assert_eq!(get::<BTreeSet<i64>>("~2\r\n:1\r\n:1\r\n"), BTreeSet::from([1]));
    assert_eq!(get::<(String, i64, Option<i64>)>("*3\r\n+a\r\n:1\r\n_\r\n"), ("a".into(), 1, None));
    assert_eq!(get::<(i64,)>(">1\r\n:1\r\n"), (1,));
    let twelve =
        get::<(u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8)>(&format!("*12\r\n{}", ":7\r\n".repeat(12)));
    assert_eq!((twelve.0, twelve.11), (7, 7));
    assert_eq!(problem::<[i64; 2]>(wire), ConvertProblem::SizeMismatch { expected: 2, found: 3 });
    assert_eq!(problem::<(i64, i64)>(wire), ConvertProblem::SizeMismatch { expected: 2, found: 3 });
    assert_eq!(problem::<Vec<i64>>("+a\r\n"), mismatch("array", ValueKind::SimpleString));
}

#[test]
fn maps_are_read_from_all_three_shapes() {
    let shapes = [
        "%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:2\r\n",
        "*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:2\r\n",
        "*2\r\n*2\r\n$1\r\na\r\n:1\r\n*2\r\n$1\r\nb\r\n:2\r\n",
    ];
    for wire in shapes {
        assert_eq!(get::<BTreeMap<String, i64>>(wire), BTreeMap::from([("a".into(), 1), ("b".into(), 2)]));
        assert_eq!(get::<HashMap<Bytes, u8>>(wire)[&b"b"[..]], 2);
        assert_eq!(get::<Vec<(String, i64)>>(wire), [("a".into(), 1), ("b".into(), 2)]);
    }
    assert_eq!(get::<Vec<String>>(shapes[0]), ["a", "1", "b", "2"], "as RESP2 would send it");
    assert!(get::<HashMap<String, i64>>("*0\r\n").is_empty());
    assert_eq!(
        problem::<HashMap<String, i64>>("*3\r\n+a\r\n:1\r\n+b\r\n"),
        ConvertProblem::SizeMismatch { expected: 4, found: 3 }
    );
    assert_eq!(problem::<HashMap<String, i64>>("+a\r\n"), mismatch("map", ValueKind::SimpleString));
    assert_eq!(
        fail::<HashMap<String, i64>>("*1\r\n*1\r\n+a\r\n").to_string(),
        "at [0]: expected 2 elements, found 1"
    );
}

#[test]
fn a_duplicate_key_is_an_error_that_names_it() {
    let wire = "%2\r\n+a\r\n:1\r\n+a\r\n:2\r\n";
    assert_eq!(fail::<HashMap<String, i64>>(wire).to_string(), "at [\"a\"]: duplicate key");
    assert_eq!(problem::<BTreeMap<String, i64>>(wire), ConvertProblem::DuplicateKey);
    assert_eq!(get::<Vec<(String, i64)>>(wire).len(), 2, "a list of pairs may repeat itself");
}

#[test]
fn an_error_names_the_path_of_the_element_at_fault() {
    let error = fail::<Vec<Vec<i64>>>("*4\r\n*0\r\n*0\r\n*0\r\n*1\r\n+x\r\n");
    assert_eq!(error.to_string(), "at [3][0]: expected integer, found simple string");
    let error = fail::<Vec<HashMap<String, u8>>>("*1\r\n%1\r\n+price\r\n:300\r\n");
    assert_eq!(error.to_string(), "at [0][\"price\"]: number out of range of u8");
    let path: Vec<_> = error.path().segments().cloned().collect();
    assert_eq!(path, [Segment::Index(0), Segment::Key("price".into())]);
    let error = fail::<HashMap<u8, u8>>("%1\r\n+x\r\n:1\r\n");
    assert_eq!(error.to_string(), "at [0].key: expected integer, found simple string");
    let error = fail::<HashMap<i64, u8>>("%1\r\n:5\r\n+x\r\n");
    assert_eq!(error.to_string(), "at [0]: expected integer, found simple string");
    let error = fail::<Vec<StreamEntry>>("*1\r\n*2\r\n+1-1\r\n*2\r\n+price\r\n*0\r\n");
    assert_eq!(error.to_string(), "at [0].fields[\"price\"]: expected string, found array");
    assert_eq!(fail::<i64>("+x\r\n").to_string(), "expected integer, found simple string");
    let long = fail::<HashMap<String, u8>>(&format!("%1\r\n+{}\r\n+x\r\n", "k".repeat(100)));
    assert_eq!(
        long.to_string(),
        format!("at [\"{}…\"]: expected integer, found simple string", "k".repeat(39))
    );
}

#[test]
fn errors_print_no_payload() {
    let wire = "*2\r\n+fine\r\n$6\r\nsecret\r\n";
    let error = fail::<(String, i64)>(wire);
    assert!(!format!("{error} {error:?}").contains("secret"));
}

#[test]
fn a_server_error_inside_a_reply_is_a_problem_or_a_value() {
    let exec = "*3\r\n+OK\r\n-ERR value is not an integer\r\n:2\r\n";
    let server = ServerError::new("ERR", "value is not an integer");
    let error = fail::<Vec<String>>(exec);
    assert_eq!(error.problem(), &ConvertProblem::Server(server.clone()));
    assert_eq!(error.to_string(), "at [1]: server error: ERR value is not an integer");
    let results: Vec<Result<String, ServerError>> = get(exec);
    assert_eq!(results, [Ok("OK".into()), Err(server.clone()), Ok("2".into())]);
    assert_eq!(get::<Result<i64, ServerError>>("-ERR value is not an integer\r\n"), Err(server));
    assert!(matches!(problem::<Ignore>("-ERR x\r\n"), ConvertProblem::Server(_)));
    assert!(matches!(problem::<()>("-ERR x\r\n"), ConvertProblem::Server(_)));
    assert!(matches!(problem::<Option<i64>>("-ERR x\r\n"), ConvertProblem::Server(_)));
}

#[test]
fn replies_of_no_interest_can_be_let_go() {
    for wire in ["+OK\r\n", ":1\r\n", "*1\r\n_\r\n", "%0\r\n"] {
        get::<()>(wire);
        assert_eq!(get::<Ignore>(wire), Ignore);
    }
    assert_eq!(get::<Ignore>("_\r\n"), Ignore);
    assert!(matches!(problem::<()>("_\r\n"), ConvertProblem::UnexpectedNull { .. }));
}

#[test]
fn a_frame_or_a_tree_can_be_asked_for_anywhere() {
    let parts: Vec<Frame> = get("*3\r\n:1\r\n*1\r\n$1\r\nx\r\n-ERR y\r\n");
    assert_eq!(parts[1].value().get(0).unwrap().as_str(), Some("x"));
    assert!(parts[2].kind().is_error());
    assert_eq!(get::<Frame>("+whole\r\n").wire_len(), 8);
    assert_eq!(*get::<Box<Tree>>(":1\r\n"), Tree::Integer(1));
}

#[test]
fn stream_entries_are_read_from_both_protocols() {
    let entries = "*2\r\n*2\r\n$3\r\n5-1\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n*2\r\n$3\r\n6-0\r\n*-1\r\n";
    for wire in [format!("%1\r\n+orders\r\n{entries}"), format!("*1\r\n*2\r\n+orders\r\n{entries}")] {
        let streams: HashMap<String, Vec<StreamEntry>> = get(&wire);
        let [first, deleted] = &streams["orders"][..] else { panic!("two entries") };
        assert_eq!(first.id_parts(), Some((5, 1)));
        assert_eq!(first.field("b").unwrap(), "2");
        assert_eq!(first.field("c"), None);
        assert!(deleted.fields.is_empty());
    }
    assert!(matches!(
        problem::<StreamEntry>("*1\r\n+1-1\r\n"),
        ConvertProblem::SizeMismatch { expected: 2, found: 1 }
    ));
    assert_eq!(problem::<StreamEntry>("+1-1\r\n"), mismatch("stream entry", ValueKind::SimpleString));
}
