//! Many WebSocket clients as cheap as can be: they speak the protocol's opening, then only count frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Connections that are being made at a time.
const AT_A_TIME: usize = 64;
/// How long all messages may take.
const PATIENCE: Duration = Duration::from_secs(20);

const OPENING: &str = "GET /v1/ws HTTP/1.1\r\nhost: bench\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const WORDS: [&str; 2] = [
    r#"{"type":"auth","version":1}"#,
    r#"{"type":"subscribe","subscriptions":[{"id":"all","collection":"orders"}]}"#,
];

/// All clients; their tasks run until the process ends.
pub(crate) struct Clients {
    count: usize,
    received: Arc<AtomicUsize>,
}

impl Clients {
    /// Connects so many, each subscribed and told so.
    pub(crate) async fn connect(port: u16, count: usize) -> Result<Self> {
        let (received, room) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(AT_A_TIME)));
        let mut opened = Vec::with_capacity(count);
        for _ in 0..count {
            let permit = room.clone().acquire_owned().await?;
            let received = received.clone();
            opened.push(tokio::spawn(async move {
                let socket = open(port).await;
                drop(permit);
                socket.map(|(socket, frames)| drop(tokio::spawn(count_frames(socket, frames, received))))
            }));
        }
        for one in opened {
            one.await??;
        }
        Ok(Self { count, received })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Messages that have come so far, at all clients together.
    pub(crate) fn received(&self) -> usize {
        self.received.load(Ordering::Acquire)
    }

    pub(crate) fn wait_for(&self, messages: usize) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.received() < messages {
            ensure!(Instant::now() < end, "{} of {messages} messages came", self.received());
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}

/// Opens a WebSocket, subscribes, and waits for the two answers.
pub(super) async fn open(port: u16) -> Result<(TcpStream, Frames)> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await.context("connect")?;
    socket.write_all(OPENING.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.context("the answer to the opening")?);
    }
    ensure!(head.starts_with(b"HTTP/1.1 101"), "no WebSocket: {}", String::from_utf8_lossy(&head));
    for words in WORDS {
        // Clients mask; a mask of zeros leaves the text as it is.
        let length = u8::try_from(words.len())?;
        let mut frame = vec![0x81, 0x80 | length, 0, 0, 0, 0];
        frame.extend_from_slice(words.as_bytes());
        socket.write_all(&frame).await?;
    }
    let (mut frames, mut buffer, mut answers) = (Frames::default(), [0; 1024], 0);
    while answers < WORDS.len() {
        let read = socket.read(&mut buffer).await?;
        ensure!(read > 0, "closed instead of an answer");
        answers += frames.count(&buffer[..read]);
    }
    Ok((socket, frames))
}

async fn count_frames(mut socket: TcpStream, mut frames: Frames, received: Arc<AtomicUsize>) {
    let mut buffer = [0; 8192];
    while let Ok(read @ 1..) = socket.read(&mut buffer).await {
        received.fetch_add(frames.count(&buffer[..read]), Ordering::Release);
    }
}

/// Counts text frames in a stream of unmasked ones, however it is cut.
#[derive(Default)]
pub(super) struct Frames {
    /// Bytes of the current payload that are still to come.
    rest: usize,
    is_text: bool,
    head: Vec<u8>,
}

impl Frames {
    fn count(&mut self, mut bytes: &[u8]) -> usize {
        let mut ended = 0;
        while !bytes.is_empty() {
            if self.rest > 0 {
                let step = self.rest.min(bytes.len());
                (self.rest, bytes) = (self.rest - step, &bytes[step..]);
            } else {
                self.head.push(bytes[0]);
                bytes = &bytes[1..];
                let Some(length) = length(&self.head) else { continue };
                (self.rest, self.is_text) = (length, self.head[0] & 0xF == 1);
                self.head.clear();
            }
            if self.rest == 0 && self.head.is_empty() && self.is_text {
                ended += 1;
            }
        }
        ended
    }
}

/// The payload's length, once the head is whole.
fn length(head: &[u8]) -> Option<usize> {
    match (head.len(), head.get(1).map(|byte| byte & 0x7F)?) {
        (2, length @ 0..126) => Some(usize::from(length)),
        (4, 126) => Some(usize::from(u16::from_be_bytes([head[2], head[3]]))),
        (10, 127) => usize::try_from(u64::from_be_bytes(head[2..10].try_into().ok()?)).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let mut stream = vec![0x81, 3, 1, 2, 3, 0x89, 0, 0x81, 126, 0, 200];
        stream.extend([0; 200]);
        stream.extend([0x81, 1, 9]);
        for size in 1..stream.len() {
            let mut frames = Frames::default();
            let counted: usize = stream.chunks(size).map(|chunk| frames.count(chunk)).sum();
            assert_eq!(counted, 3, "pieces of {size}");
        }
    }
}
