//! Many WebSocket clients as cheap as can be: they speak the protocol's opening, then one thread
//! reads all of them and holds the number of each event against the one before.

use anyhow::{Context, Result, bail, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

/// Connections that are being made at a time.
const AT_A_TIME: usize = 64;
/// How long all messages may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// What one read takes: more than ever waits, so that a read that is not full has emptied the
/// socket.
const READ: usize = 256 << 10;

const OPENING: &str = "GET /v1/ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const WORDS: [&str; 2] = [
    r#"{"type":"auth","version":1}"#,
    r#"{"type":"subscribe","subscriptions":[{"id":"all","collection":"orders"}]}"#,
];

/// All clients; their thread runs until the process ends.
pub(crate) struct Clients {
    count: usize,
    received: Arc<AtomicUsize>,
    failed: Arc<OnceLock<String>>,
}

impl Clients {
    /// Connects `count` clients; each is subscribed and has its confirmation.
    pub(crate) async fn connect(port: u16, count: usize) -> Result<Self> {
        let room = Arc::new(Semaphore::new(AT_A_TIME));
        let mut opened = Vec::with_capacity(count);
        for _ in 0..count {
            let permit = room.clone().acquire_owned().await?;
            opened.push(tokio::spawn(async move {
                let socket = open(port).await;
                drop(permit);
                socket
            }));
        }
        let mut sockets = Vec::with_capacity(count);
        for one in opened {
            let (socket, frames) = one.await??;
            sockets.push((socket.into_std()?, frames));
        }
        let received = Arc::new(AtomicUsize::new(0));
        let failed = Arc::new(OnceLock::new());
        let clients = Self { count, received: received.clone(), failed: failed.clone() };
        std::thread::spawn(move || {
            if let Err(error) = read_all(sockets, &received) {
                let _ = failed.set(format!("{error:#}"));
            }
        });
        Ok(clients)
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
            if let Some(why) = self.failed.get() {
                bail!("a client was served wrongly: {why}");
            }
            ensure!(Instant::now() < end, "{} of {messages} messages came", self.received());
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}

/// Opens a WebSocket, subscribes, and waits for the two answers.
pub(crate) async fn open(port: u16) -> Result<(tokio::net::TcpStream, Frames)> {
    let mut socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.context("connect")?;
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
    let mut frames = Frames::default();
    let mut buffer = [0; 1024];
    let mut answers = 0;
    while answers < WORDS.len() {
        let read = socket.read(&mut buffer).await?;
        ensure!(read > 0, "closed instead of an answer");
        answers += frames.read(&buffer[..read])?.texts;
    }
    Ok((socket, frames))
}

/// Reads every socket that has data, for ever.
fn read_all(mut sockets: Vec<(TcpStream, Frames)>, received: &AtomicUsize) -> Result<()> {
    let ready = Epoll::new(EpollCreateFlags::empty())?;
    for (at, (socket, _)) in sockets.iter().enumerate() {
        // Told once for each arrival, not again after every read.
        let when = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        ready.add(socket, EpollEvent::new(when, u64::try_from(at)?))?;
    }
    let mut buffer = vec![0; READ];
    let mut told = [EpollEvent::empty(); 512];
    loop {
        let count = ready.wait(&mut told, EpollTimeout::NONE)?;
        for event in &told[..count] {
            let (socket, frames) = &mut sockets[usize::try_from(event.data())?];
            loop {
                let read = match socket.read(&mut buffer) {
                    Ok(0) => bail!("the gateway closed"),
                    Ok(read) => read,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                };
                received.fetch_add(frames.read(&buffer[..read])?.events, Ordering::Release);
                if read < buffer.len() {
                    break;
                }
            }
        }
    }
}

/// What every event begins with; then come 16 digits, a colon and its number.
const EVENT: &[u8] = br#"{"type":"event","at":""#;
const NUMBER_AT: usize = EVENT.len() + 17;

/// Reads a stream of unmasked frames, however it is cut.
#[derive(Default)]
pub(crate) struct Frames {
    /// The begin of a frame that has not come as a whole.
    rest: Vec<u8>,
    /// The number of the newest event.
    newest: Option<u64>,
}

/// What was in the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    texts: usize,
    events: usize,
}

impl Frames {
    fn read(&mut self, bytes: &[u8]) -> Result<Heard> {
        let mut heard = Heard::default();
        if self.rest.is_empty() {
            let used = self.read_whole(bytes, &mut heard)?;
            self.rest.extend_from_slice(&bytes[used..]);
        } else {
            let mut all = std::mem::take(&mut self.rest);
            all.extend_from_slice(bytes);
            let used = self.read_whole(&all, &mut heard)?;
            all.drain(..used);
            self.rest = all;
        }
        Ok(heard)
    }

    /// Reads all frames that are whole and says how long they are.
    fn read_whole(&mut self, bytes: &[u8], heard: &mut Heard) -> Result<usize> {
        let mut used = 0;
        while let Some((head, length)) = length(&bytes[used..]) {
            let Some(payload) = bytes.get(used + head..used + head + length) else { break };
            if bytes[used] & 0xF == 1 {
                heard.texts += 1;
                if payload.starts_with(EVENT) {
                    heard.events += 1;
                    self.follow(number(payload))?;
                }
            }
            used += head + length;
        }
        Ok(used)
    }

    /// Every event comes once and in order.
    fn follow(&mut self, number: u64) -> Result<()> {
        let before = self.newest.replace(number);
        ensure!(before.is_none_or(|before| before + 1 == number), "event {number} came behind {before:?}");
        Ok(())
    }
}

fn number(payload: &[u8]) -> u64 {
    let digits = payload[NUMBER_AT..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

/// How long head and payload of the first frame are, once the head is there.
fn length(bytes: &[u8]) -> Option<(usize, usize)> {
    match bytes.get(1)? & 0x7F {
        126 => Some((4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)))),
        127 => Some((10, usize::try_from(u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)).ok()?)),
        short => Some((2, usize::from(short))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Vec<u8> {
        let text = format!(r#"{{"type":"event","at":"0123456789abcdef:{number}","subs":["all"]}}"#);
        let mut frame = vec![0x81, 126];
        frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        frame.extend(text.into_bytes());
        frame
    }

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let mut stream = vec![0x81, 3, 1, 2, 3, 0x89, 0];
        stream.extend([event(9), event(10), vec![0x81, 1, 9]].concat());
        for size in 1..stream.len() {
            let mut frames = Frames::default();
            let mut sum = Heard::default();
            for chunk in stream.chunks(size) {
                let heard = frames.read(chunk).unwrap();
                sum = Heard { texts: sum.texts + heard.texts, events: sum.events + heard.events };
            }
            assert_eq!(sum, Heard { texts: 4, events: 2 }, "pieces of {size}");
        }
    }

    #[test]
    fn an_event_that_is_missing_or_comes_twice_is_noticed() {
        for wrong in [8, 9, 11] {
            assert!(Frames::default().read(&[event(9), event(wrong)].concat()).is_err());
        }
    }
}
