//! A server that means harm gets a clear error and little memory.

use super::*;

fn small() -> ReplyLimits {
    ReplyLimits { depth: 3, line: 8, bulk: 16, container: 4, frame: 64 }
}

/// Feeds `wire` and says how many bytes the decoder holds for it.
fn held(wire: &[u8]) -> usize {
    let mut decoder = Decoder::new(ReplyLimits::default());
    let mut buf = BytesMut::from(wire);
    assert!(matches!(decoder.decode(&mut buf), Ok(None)), "not whole, and not wrong");
    decoder.held()
}

#[test]
fn nesting_up_to_the_limit_is_taken_and_one_more_refused() {
    let nested = |levels: usize| [b"*1\r\n".repeat(levels), b":1\r\n".to_vec()].concat();
    whole(&nested(32));
    assert_eq!(error(&ReplyLimits::default(), &nested(33)), ProtocolError::DepthExceeded { limit: 32 });
    assert_eq!(
        error(&ReplyLimits::default(), &nested(100_000)[..4000]),
        ProtocolError::DepthExceeded { limit: 32 }
    );
    let streamed = b"*?\r\n".repeat(33);
    assert_eq!(error(&ReplyLimits::default(), &streamed), ProtocolError::DepthExceeded { limit: 32 });
    let attributes = b"|1\r\n".repeat(33);
    assert_eq!(error(&ReplyLimits::default(), &attributes), ProtocolError::DepthExceeded { limit: 32 });
    let none = ReplyLimits { depth: 0, ..ReplyLimits::default() };
    assert_eq!(error(&none, b"*1\r\n:1\r\n"), ProtocolError::DepthExceeded { limit: 0 });
}

#[test]
fn a_giant_length_is_refused_before_its_bytes_come() {
    let limits = ReplyLimits::default();
    let expected = ProtocolError::BulkTooLarge { len: (512 << 20) + 1, limit: 512 << 20 };
    assert_eq!(error(&limits, b"$536870913\r\n"), expected);
    assert_eq!(error(&limits, b"!536870913\r\n"), expected);
    assert_eq!(error(&limits, b"=536870913\r\n"), expected);
    assert_eq!(error(&limits, b"$?\r\n;536870913\r\n"), expected);
    let expected = ProtocolError::ContainerTooLarge { len: 1_000_001, limit: 1_000_000 };
    for tag in ["*", "%", "~", ">", "|"] {
        assert_eq!(error(&limits, format!("{tag}1000001\r\n").as_bytes()), expected);
    }
    assert_eq!(error(&limits, b"*18446744073709551616\r\n"), ProtocolError::BadLength);
}

#[test]
fn a_negative_length_is_refused() {
    for wire in ["$-2\r\n", "*-2\r\n", "%-1\r\n", "~-1\r\n", ">-1\r\n", "|-1\r\n", "!-1\r\n", "=-1\r\n"] {
        assert_eq!(error(&ReplyLimits::default(), wire.as_bytes()), ProtocolError::BadLength, "{wire}");
    }
    assert_eq!(error(&ReplyLimits::default(), b"$?\r\n;-1\r\n"), ProtocolError::BadLength);
}

#[test]
fn announced_elements_cost_nothing_until_they_come() {
    assert!(held(b"*1000000\r\n") < 4096);
    assert!(held(&b"*1000000\r\n".repeat(31)) < 4096);
    assert!(held(&b"%1000000\r\n".repeat(31)) < 4096);
    assert!(held(b"$536870912\r\nx") < 4096);
}

#[test]
fn the_bytes_a_large_string_misses_are_known() {
    let mut decoder = Decoder::new(ReplyLimits::default());
    let mut buf = BytesMut::new();
    assert_eq!(decoder.missing(), 0);
    buf.extend_from_slice(b"*1\r\n$1000\r\n");
    assert!(decoder.decode(&mut buf).unwrap().is_none());
    assert_eq!(decoder.missing(), 1002);
    buf.extend_from_slice(&[b'x'; 600]);
    assert!(decoder.decode(&mut buf).unwrap().is_none());
    assert_eq!(decoder.missing(), 402);
    buf.extend_from_slice(&[b'x'; 400]);
    buf.extend_from_slice(b"\r\n");
    assert!(decoder.decode(&mut buf).unwrap().is_some());
    assert_eq!(decoder.missing(), 0);
}

#[test]
fn a_line_up_to_the_limit_is_taken_and_one_more_byte_refused() {
    assert_eq!(decode_all(&small(), [&b"+12345678\r\n"[..]]).0.len(), 1);
    for tag in ["+", "-", "(", ","] {
        let wire = format!("{tag}123456789\r\n");
        assert_eq!(error(&small(), wire.as_bytes()), ProtocolError::LineTooLong { limit: 8 });
        assert_eq!(error(&small(), &wire.as_bytes()[..11]), ProtocolError::LineTooLong { limit: 8 });
    }
}

#[test]
fn a_frame_up_to_the_limit_is_taken_and_one_more_byte_refused() {
    let frame = |last: &str| {
        format!("*3\r\n$16\r\n{0}\r\n$16\r\n{0}\r\n${1}\r\n{2}\r\n", "x".repeat(16), last.len(), last)
    };
    assert_eq!(frame("12345678").len(), 64);
    assert_eq!(decode_all(&small(), [frame("12345678").as_bytes()]).0.len(), 1);
    let expected = ProtocolError::FrameTooLarge { limit: 64 };
    assert_eq!(error(&small(), frame("123456789").as_bytes()), expected);
    let open_line = b"*4\r\n$16\r\n0123456789abcdef\r\n$16\r\n0123456789abcdef\r\n+1234\r\n+xxxxxx";
    assert_eq!(open_line.len(), 64);
    assert_eq!(error(&small(), open_line), expected);
    assert_eq!(decode_all(&small(), [&open_line[..63]]).1, None);
}

#[test]
fn a_streamed_value_cannot_outgrow_the_limits() {
    let string = b"$?\r\n;9\r\n123456789\r\n;9\r\n123456789\r\n;0\r\n";
    assert_eq!(error(&small(), string), ProtocolError::BulkTooLarge { len: 18, limit: 16 });
    let expected = ProtocolError::ContainerTooLarge { len: 5, limit: 4 };
    assert_eq!(error(&small(), b"*?\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n.\r\n"), expected);
    assert_eq!(decode_all(&small(), [&b"*?\r\n:1\r\n:1\r\n:1\r\n:1\r\n.\r\n"[..]]).0.len(), 1);
    assert_eq!(error(&small(), &[&b"%?\r\n"[..], &b"_\r\n".repeat(9), b".\r\n"].concat()), expected);
    assert_eq!(
        decode_all(&small(), [&[&b"%?\r\n"[..], &b"_\r\n".repeat(8), b".\r\n"].concat()[..]]).0.len(),
        1
    );
}

#[test]
fn many_small_elements_cannot_outgrow_the_frame() {
    let limits = ReplyLimits { container: 1000, ..small() };
    for element in [&b"_\r\n"[..], b":1\r\n", b":-1\r\n", b"*0\r\n", b"+x\r\n", b"$?\r\n;1\r\nx\r\n;0\r\n"] {
        for header in ["*1000\r\n", "*?\r\n"] {
            let endless = [header.as_bytes(), &element.repeat(40)].concat();
            assert_eq!(error(&limits, &endless), ProtocolError::FrameTooLarge { limit: 64 });
        }
    }
}

#[test]
fn frames_before_an_error_are_delivered_and_the_error_is_final() {
    let mut decoder = Decoder::new(ReplyLimits::default());
    let mut buf = BytesMut::from(&b"+OK\r\n:1\r\nHTTP/1.1 200"[..]);
    assert!(decoder.decode(&mut buf).unwrap().is_some());
    assert!(decoder.decode(&mut buf).unwrap().is_some());
    for _ in 0..3 {
        assert_eq!(decoder.decode(&mut buf).unwrap_err(), ProtocolError::UnknownType(b'H'));
        buf.extend_from_slice(b"+OK\r\n");
    }
}

#[test]
fn messages_hold_no_payload() {
    for wire in [
        &b"$5\r\nsecretX"[..],
        b"+secret\n",
        b",secret\r\n",
        b"(secret\r\n",
        b":secret\r\n",
        b"=6\r\nsecret\r\n",
    ] {
        let error = error(&ReplyLimits::default(), wire);
        assert!(!format!("{error} {error:?}").contains("secret"));
    }
}

#[test]
fn a_frame_of_many_nodes_leaves_no_large_scratch_behind() {
    let wire = [&b"*100000\r\n"[..], &b":1\r\n".repeat(100_000)].concat();
    let mut decoder = Decoder::new(ReplyLimits::default());
    let mut buf = BytesMut::from(&wire[..]);
    assert_eq!(decoder.decode(&mut buf).unwrap().unwrap().value().len(), 100_000);
    assert!(decoder.held() < 4096, "{}", decoder.held());
}
