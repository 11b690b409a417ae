//! How long the decoder takes for one frame, best of a second for each kind:
//! `cargo run --release -p firth-redis --example decode_speed`.

use bytes::BytesMut;
use firth_redis::resp::{Decoder, Frame, ReplyLimits, Value};
use std::hint::black_box;
use std::time::{Duration, Instant};

const READ: usize = 64 << 10;

fn main() {
    time("+OK", b"+OK\r\n".to_vec(), READ, touch);
    time("integer", b":12345\r\n".to_vec(), READ, touch);
    time("string of 64 B", bulk(64), READ, touch);
    time("push of 103 B", push(), READ, touch);
    time("push of 103 B, payload taken", push(), READ, |frame| {
        black_box(frame.value().get(2).and_then(Value::bytes));
    });
    time("XREADGROUP of 100 entries", entries(), READ, touch);
    time("XREADGROUP of 100 entries, walked", entries(), READ, |frame| {
        let entries = frame.value().get(1).into_iter().flatten();
        black_box(
            entries.filter_map(|entry| entry.get(1)?.get(1)?.as_bytes()).map(<[u8]>::len).sum::<usize>(),
        );
    });
    time("XREADGROUP in pieces of 1460 B", entries(), 1460, touch);
}

fn touch(frame: &Frame) {
    black_box(frame);
}

/// Decodes copies of `frame` that arrive in pieces of `read` bytes.
fn time(name: &str, frame: Vec<u8>, read: usize, look: impl Fn(&Frame)) {
    let copies = (READ / frame.len()).max(1);
    let wire = frame.repeat(copies);
    let mut decoder = Decoder::new(ReplyLimits::default());
    let start = Instant::now();
    let mut best = Duration::MAX;
    while start.elapsed() < Duration::from_secs(1) {
        let mut buf = BytesMut::with_capacity(wire.len());
        let mut took = Duration::ZERO;
        for piece in wire.chunks(read) {
            buf.extend_from_slice(piece);
            let begin = Instant::now();
            while let Some(frame) = decoder.decode(&mut buf).expect("the frames are well formed") {
                look(&frame);
            }
            took += begin.elapsed();
        }
        best = best.min(took);
    }
    println!("{name:36}{:>8} B{:>10.1} ns", frame.len(), best.as_nanos() as f64 / copies as f64);
}

fn bulk(len: usize) -> Vec<u8> {
    format!("${len}\r\n{}\r\n", "x".repeat(len)).into_bytes()
}

fn push() -> Vec<u8> {
    [b">3\r\n$7\r\nmessage\r\n$9\r\nchannel-1\r\n".to_vec(), bulk(64)].concat()
}

fn entries() -> Vec<u8> {
    let entry = [b"*2\r\n$15\r\n1526985054069-0\r\n*2\r\n$1\r\nd\r\n".to_vec(), bulk(256)].concat();
    [b"%1\r\n$6\r\norders\r\n*100\r\n".to_vec(), entry.repeat(100)].concat()
}
