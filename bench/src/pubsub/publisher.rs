//! The publisher: a process of its own, so that its work is not in the subscriber's figures.
//!
//! It publishes by credit. The subscriber grants batches through the publisher's stdin, one byte
//! for 1 to 255 batches, as messages arrive; so at most a window of messages is on its way, a slow
//! subscriber is not cut off by the server for its full output buffer, and none is starved.

use super::workload::{PAYLOAD, channel};
use anyhow::{Context, Result, bail, ensure};
use nix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Messages per credit; the first of a batch carries its time of sending.
pub(crate) const BATCH: u64 = 100;
/// Batches that are sent before their replies are read.
const AT_ONCE: usize = 8;

/// Now, on a clock that all processes of this machine share.
pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

/// The subscriber's handle on its publisher; ends it on drop.
pub(crate) struct Publisher {
    child: Child,
    credit: Mutex<ChildStdin>,
    granted: AtomicU64,
}

impl Publisher {
    /// Starts a publisher that goes round `channels` channels and has no credit yet.
    pub(crate) fn start(port: u16, channels: usize) -> Result<Self> {
        let own = std::env::current_exe().context("path of this program")?;
        let mut child = Command::new(own)
            .args(["publish", &port.to_string(), &channels.to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .context("start the publisher")?;
        let credit = Mutex::new(child.stdin.take().context("stdin of the publisher")?);
        Ok(Self { child, credit, granted: AtomicU64::new(0) })
    }

    /// Lets it publish that many more batches.
    pub(crate) fn grant(&self, batches: u8) -> Result<()> {
        let mut credit = self.credit.lock().unwrap_or_else(PoisonError::into_inner);
        credit.write_all(&[batches]).context("the publisher is gone")?;
        self.granted.fetch_add(u64::from(batches) * BATCH, Relaxed);
        Ok(())
    }

    /// Messages granted so far.
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Relaxed)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // An error means that it has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The publisher's side: publishes on credit until stdin ends.
pub(crate) fn publish(mut args: impl Iterator<Item = String>) -> Result<()> {
    let mut number = || args.next().and_then(|text| text.parse::<usize>().ok());
    let (Some(port), Some(channels)) = (number(), number()) else {
        bail!("`bench publish` is started by the bench itself, with port and channels");
    };
    let mut socket = TcpStream::connect(("127.0.0.1", u16::try_from(port)?)).context("connect to publish")?;
    socket.set_nodelay(true)?;
    let mut cycle = Cycle::new(channels);
    let mut credits = [0; 64];
    loop {
        let count = std::io::stdin().read(&mut credits).context("read credit")?;
        if count == 0 {
            return Ok(());
        }
        let mut batches: usize = credits[..count].iter().map(|credit| usize::from(*credit)).sum();
        while batches > 0 {
            let now = batches.min(AT_ONCE);
            for _ in 0..now {
                socket.write_all(cycle.next_batch())?;
            }
            read_replies(&mut socket, now * BATCH as usize)?;
            batches -= now;
        }
    }
}

/// Encoded PUBLISH commands for a whole number of rounds over the channels and of batches.
struct Cycle {
    bytes: Vec<u8>,
    /// Length of one command; all are alike.
    stride: usize,
    at: usize,
}

impl Cycle {
    /// `channels` is 1 or a multiple of the batch, so batches fit a round without rest.
    fn new(channels: usize) -> Self {
        let round: Vec<u8> = (0..channels).flat_map(command).collect();
        let stride = round.len() / channels;
        let rounds = (BATCH as usize).div_ceil(channels);
        Self { bytes: round.repeat(rounds), stride, at: 0 }
    }

    /// The next batch, its first message stamped.
    fn next_batch(&mut self) -> &[u8] {
        let length = self.stride * BATCH as usize;
        let batch = &mut self.bytes[self.at..self.at + length];
        let stamp = u64::try_from(now().as_nanos()).unwrap_or_default();
        let payload = self.stride - 2 - PAYLOAD;
        batch[payload..payload + 8].copy_from_slice(&stamp.to_be_bytes());
        self.at = (self.at + length) % self.bytes.len();
        &self.bytes[self.at.checked_sub(length).unwrap_or(self.bytes.len() - length)..][..length]
    }
}

fn command(n: usize) -> Vec<u8> {
    let channel = channel(n);
    let mut bytes =
        format!("*3\r\n$7\r\nPUBLISH\r\n${}\r\n{channel}\r\n${PAYLOAD}\r\n", channel.len()).into_bytes();
    bytes.extend_from_slice(&[0; PAYLOAD]);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Reads `count` integer replies, each of which says how many subscribers got the message.
fn read_replies(socket: &mut TcpStream, count: usize) -> Result<()> {
    let mut buffer = [0; 4096];
    let mut missing = count;
    while missing > 0 {
        let length = socket.read(&mut buffer).context("read replies of PUBLISH")?;
        ensure!(length > 0, "the server closed the publisher's connection");
        let bytes = &buffer[..length];
        ensure!(!bytes.contains(&b'-'), "PUBLISH failed: {}", String::from_utf8_lossy(bytes));
        missing -= bytes.iter().filter(|byte| **byte == b'\n').count();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_go_round_all_channels_and_stamp_their_first_message() {
        let mut cycle = Cycle::new(1000);
        for batch in 0..20_usize {
            let stride = cycle.stride;
            let bytes = cycle.next_batch().to_vec();
            assert_eq!(bytes.len(), stride * 100);
            let name = channel(batch % 10 * 100);
            assert!(
                bytes.windows(name.len()).next().is_some()
                    && bytes[..stride].windows(name.len()).any(|part| part == name.as_bytes())
            );
            let payload = stride - 2 - PAYLOAD;
            let stamp =
                |at: usize| u64::from_be_bytes(bytes[at * stride + payload..][..8].try_into().unwrap());
            assert!(stamp(0) > 0);
            assert_eq!(stamp(1), 0);
        }
    }

    #[test]
    fn one_channel_fills_a_batch() {
        let mut cycle = Cycle::new(1);
        let length = cycle.next_batch().len();
        assert_eq!(length, cycle.stride * 100);
        assert_eq!(cycle.next_batch().len(), length);
    }
}
