//! Lines in, lines out. Threads of their own read and write, so that a slow partner never holds up
//! leases; both channels are bounded.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::thread::{self, JoinHandle};
use tokio::sync::mpsc;

/// Lines that wait to be taken or written.
const WAITING: usize = 1024;
/// The longest line; above the largest payload that a topic takes, escaped.
const MAX_LINE: u64 = 64 * 1024 * 1024;

/// Starts to read lines. The channel ends with the input; a line that cannot be read is an error,
/// and the last one.
pub(crate) fn lines<T>(input: impl Read + Send + 'static) -> mpsc::Receiver<Result<T>>
where
    T: DeserializeOwned + Send + 'static,
{
    let (sender, lines) = mpsc::channel(WAITING);
    // Ends with the input or with the process.
    thread::spawn(move || {
        let mut input = BufReader::new(input);
        while let Some(line) = next_line(&mut input).transpose() {
            let parsed = line.and_then(|line| {
                // Never the line itself: it may hold a payload.
                serde_json::from_slice(&line).context("a line of the input is not what this command reads")
            });
            let is_last = parsed.is_err();
            if sender.blocking_send(parsed).is_err() || is_last {
                return;
            }
        }
    });
    lines
}

fn next_line(input: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).context("read the input")?;
        if read == 0 {
            return Ok(None);
        }
        if read as u64 == MAX_LINE {
            bail!("a line of the input is longer than {MAX_LINE} bytes");
        }
        if !line.trim_ascii().is_empty() {
            return Ok(Some(line));
        }
    }
}

/// Writes events, each as one flushed line.
pub(crate) struct Out {
    lines: mpsc::Sender<Vec<u8>>,
    writer: JoinHandle<std::io::Result<()>>,
}

impl Out {
    pub(crate) fn new(mut output: impl Write + Send + 'static) -> Self {
        let (lines, mut waiting) = mpsc::channel::<Vec<u8>>(WAITING);
        let writer = thread::spawn(move || {
            while let Some(line) = waiting.blocking_recv() {
                output.write_all(&line)?;
                output.flush()?;
            }
            Ok(())
        });
        Self { lines, writer }
    }

    pub(crate) async fn say(&self, event: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(event).context("write an event as JSON")?;
        line.push(b'\n');
        self.lines.send(line).await.ok().context("nobody reads the output any more")
    }

    /// Waits until everything is written.
    pub(crate) fn end(self) -> Result<()> {
        drop(self.lines);
        match self.writer.join() {
            Ok(written) => written.context("write the output"),
            Err(_) => bail!("the thread that writes the output panicked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn empty_lines_are_skipped_and_a_bad_one_is_the_end() {
        let mut lines = lines::<u32>(&b"1\n\n 2\nthree\n4\n"[..]);
        assert_eq!(lines.recv().await.unwrap().unwrap(), 1);
        assert_eq!(lines.recv().await.unwrap().unwrap(), 2);
        let error = format!("{:#}", lines.recv().await.unwrap().unwrap_err());
        assert!(!error.contains("three"), "{error}");
        assert!(lines.recv().await.is_none());
    }
}
