//! The stream of deliveries: opened again after each end, while it has a listener.

use super::client::{Api, Shown, read};
use crate::PACE;
use firth::{Error, ErrorKind, Result};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::sync::mpsc;

/// The longest line.
const MAX_LINE: usize = 128 * 1024 * 1024;
/// Deliveries that wait to be taken; beyond that the server waits.
const WAITING: usize = 64;

/// A delivery as the API shows it.
#[derive(Deserialize)]
pub(super) struct Delivered {
    pub(super) delivery: String,
    pub(super) deadline_ms: u64,
    pub(super) epoch: u64,
    pub(super) record: Shown,
}

/// What comes of the stream.
pub(super) enum News {
    Delivered(Box<Delivered>),
    /// The connection is gone, and with it its deliveries that are not settled.
    Broken,
}

/// Starts to listen; ends when the receiver is dropped.
pub(super) fn listen(api: Api, path: String) -> mpsc::Receiver<News> {
    let (sender, news) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let mut failures = 0;
        loop {
            let outcome = tokio::select! {
                outcome = follow(&api, &path, &sender, &mut failures) => outcome,
                () = sender.closed() => return,
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, "the stream broke off; opening it again");
            }
            if sender.send(News::Broken).await.is_err() {
                return;
            }
            failures += 1;
            tokio::time::sleep(PACE.delay(failures)).await;
        }
    });
    news
}

async fn follow(api: &Api, path: &str, news: &mpsc::Sender<News>, failures: &mut u32) -> Result<()> {
    let mut lines = Lines { body: api.open(path).await?, buffer: Vec::new() };
    while let Some(line) = lines.next().await? {
        *failures = 0;
        if news.send(News::Delivered(Box::new(read(&line)?))).await.is_err() {
            break;
        }
    }
    Ok(())
}

struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Lines {
    /// The next line that is not empty; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(line));
                }
            }
            if self.buffer.len() > MAX_LINE {
                return Err(Error::new(ErrorKind::Unsupported, "the server sends a line without end"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(error)) => {
                    return Err(Error::new(ErrorKind::Unavailable, "the stream broke off").with_source(error));
                }
            }
        }
    }
}
