//! What a view shows of a frame.

use super::*;
use bytes::Bytes;

#[test]
fn frames_can_be_sent_anywhere() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<Frame>();
    assert_eq!(size_of::<Frame>(), 64, "moved often: one cache line");
    assert_eq!(size_of::<Value<'_>>(), 16);
}

#[test]
fn scalars_are_read_as_what_they_mean() {
    let get = |wire: &[u8]| whole(wire);
    assert_eq!(get(b"$2\r\n42\r\n").value().as_i64(), Some(42));
    assert_eq!(get(b"+x\r\n").value().as_i64(), None);
    assert_eq!(get(b":42\r\n").value().as_f64(), Some(42.0));
    assert_eq!(get(b"$3\r\n1.5\r\n").value().as_f64(), Some(1.5));
    assert_eq!(get(b":1\r\n").value().as_bool(), Some(true));
    assert_eq!(get(b":0\r\n").value().as_bool(), Some(false));
    assert_eq!(get(b":2\r\n").value().as_bool(), None);
    assert_eq!(get(b":-1\r\n").value().as_bool(), None);
    assert_eq!(get(b"$1\r\n\xff\r\n").value().as_str(), None);
    assert_eq!(get(b"=8\r\nmkd:text\r\n").value().verbatim_format(), Some(*b"mkd"));
    assert_eq!(get(b"$8\r\nmkd:text\r\n").value().verbatim_format(), None);
    assert_eq!(get(b":1\r\n").value().as_bytes(), None);
    assert_eq!(get(b"-ERR x\r\n").value().as_bytes(), None);
    assert!(get(b"$-1\r\n").value().is_null());
}

#[test]
fn an_error_splits_into_code_and_message() {
    let parts =
        |wire: &[u8]| whole(wire).value().error().map(|(code, text)| (code.to_owned(), text.to_owned()));
    let owned = |code: &str, text: &str| Some((code.to_owned(), text.to_owned()));
    assert_eq!(parts(b"-MOVED 3999 127.0.0.1:6381\r\n"), owned("MOVED", "3999 127.0.0.1:6381"));
    assert_eq!(parts(b"!9\r\nSYNTAX no\r\n"), owned("SYNTAX", "no"));
    assert_eq!(parts(b"-ERR\r\n"), owned("ERR", ""));
    assert_eq!(parts(b"-\r\n"), owned("", ""));
    assert_eq!(parts(b"-ERR unknown command '\xff'\r\n"), owned("ERR", "unknown command '"));
    assert_eq!(parts(b"+ERR no error\r\n"), None);
    let error = ServerError::from_value(whole(b"-ERR bad '\xff'\r\n").value()).unwrap();
    assert_eq!(error.to_string(), "ERR bad '\u{fffd}'");
}

#[test]
fn text_is_shared_with_the_frame_not_copied() {
    let frame = whole(b"*2\r\n$5\r\nhello\r\n$5\r\nworld\r\n");
    let view = frame.value().get(1).unwrap();
    assert_eq!(view.bytes().unwrap().as_ptr(), view.as_bytes().unwrap().as_ptr());
    let frame = whole(b"$5\r\nhello\r\n");
    let at = frame.value().as_bytes().unwrap().as_ptr();
    let bytes = frame.into_bytes().unwrap();
    assert_eq!((bytes.as_ptr(), bytes), (at, Bytes::from_static(b"hello")));
    assert!(whole(b"-ERR x\r\n").into_bytes().unwrap_err().kind().is_error());
}

#[test]
fn a_sibling_is_found_behind_any_subtree() {
    let frame = whole(b"*4\r\n*2\r\n:1\r\n*1\r\n:2\r\n%1\r\n+k\r\n~2\r\n:3\r\n:4\r\n*0\r\n:5\r\n");
    let value = frame.value();
    assert_eq!(value.iter().len(), 4);
    assert_eq!(value.get(3).unwrap().as_i64(), Some(5));
    assert!(value.get(4).is_none());
    assert_eq!(value.get(1).unwrap().get(1).unwrap().get(1).unwrap().as_i64(), Some(4));
    assert_eq!(value.into_iter().map(Value::len).collect::<Vec<_>>(), [2, 2, 0, 0]);
}

#[test]
fn pairs_come_from_maps_and_even_arrays_alone() {
    let count = |wire: &[u8]| whole(wire).value().pairs().map(|pairs| pairs.len());
    assert_eq!(count(b"%2\r\n+a\r\n:1\r\n+b\r\n:2\r\n"), Some(2));
    assert_eq!(count(b"*4\r\n+a\r\n:1\r\n+b\r\n:2\r\n"), Some(2));
    assert_eq!(count(b"*3\r\n+a\r\n:1\r\n+b\r\n"), None);
    assert_eq!(count(b"~2\r\n+a\r\n:1\r\n"), None);
    assert_eq!(count(b"+a\r\n"), None);
}

#[test]
fn a_part_taken_out_is_the_same_value_with_its_attributes() {
    let frame = whole(b"*2\r\n:0\r\n|1\r\n+a\r\n*1\r\n:9\r\n*2\r\n*1\r\n:1\r\n|1\r\n+b\r\n:8\r\n$1\r\nx\r\n");
    let part = frame.value().get(1).unwrap();
    let own = part.to_frame();
    assert_eq!(Tree::from(own.value()), Tree::from(part));
    assert!(matches!(Tree::from(own.value()), Tree::Attributed(..)));
    assert_eq!(own.wire_len(), 0);
    assert_eq!(Tree::from(frame.value().to_frame().value()), Tree::from(frame.value()));
}

#[test]
fn debug_shows_shapes_and_no_payload() {
    let frame = whole(b"*3\r\n$6\r\nsecret\r\n:31337\r\n-NOPE secret\r\n");
    let shown = format!("{frame:?}");
    assert_eq!(
        shown,
        "Frame { wire_len: 38, value: Array(3) [BlobString(6 B), Integer, SimpleError(11 B)] }"
    );
    let long = format!("{:?}", whole(&[&b"*20\r\n"[..], &b"_\r\n".repeat(20)].concat()));
    assert!(long.ends_with("Null, ..] }"), "{long}");
}

#[test]
fn an_ok_needs_no_share_of_the_read_buffer() {
    let mut buf = BytesMut::with_capacity(64);
    buf.extend_from_slice(b"+OK\r\n:7\r\n");
    let mut decoder = Decoder::new(ReplyLimits::default());
    let frames = [decoder.decode(&mut buf).unwrap().unwrap(), decoder.decode(&mut buf).unwrap().unwrap()];
    assert!(buf.try_reclaim(64), "frames that carry their value hold no buffer back");
    assert_eq!(frames[0].value().as_str(), Some("OK"));
    assert_eq!(frames[1].value().as_i64(), Some(7));
}
