//! [`Listener`]: the task behind a stream of keys. It takes notifications and signals, reads the
//! keys that changed, and scans all of them after a gap.

use super::value::{command, document};
use super::{RedisKeysConfig, nodes, passing};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::rules::{Headers, broken};
use crate::source::{NoPlace, Origin, Rejected, SourceChange, Step};
use bytes::Bytes;
use firth_redis::mux::{Event as Heard, Signal, Subscription};
use firth_redis::resp::Tree;
use firth_redis::{Client, cmd};
use firth_router::event::{Document, Event, Operation};
use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::value::RawValue;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// Keys that are read at a time, and the hint for a scan.
const AT_ONCE: usize = 64;

type Steps = mpsc::Sender<Result<Step<NoPlace>>>;

pub(super) struct Listener {
    pub(super) config: Arc<RedisKeysConfig>,
    pub(super) client: Client,
    pub(super) progress: Progress,
    pub(super) steps: Steps,
    /// The epoch, and the number of the next step.
    pub(super) numbers: (u64, Arc<AtomicU64>),
    /// What stands before the key in a notification.
    pub(super) prefix: String,
    /// The scan that is under way.
    pub(super) scan: Option<Scan>,
}

/// A scan of all nodes.
pub(super) struct Scan {
    /// The node that is being scanned comes first.
    nodes: VecDeque<Client>,
    cursor: Bytes,
}

impl Listener {
    /// Listens until the connection is given up or the reader is gone.
    pub(super) async fn run(mut self, mut subscription: Subscription, is_first: bool) {
        let Err(error) = self.listen(&mut subscription, is_first).await;
        let _ = self.steps.send(Err(error)).await;
    }

    async fn listen(
        &mut self,
        subscription: &mut Subscription,
        is_first: bool,
    ) -> Result<std::convert::Infallible> {
        if self.config.rescan {
            self.begin_scan(if is_first { None } else { Some("no node listened for a while") }).await?;
        }
        loop {
            let heard = match &self.scan {
                Some(_) => subscription.next_batch().now_or_never(),
                None => Some(subscription.next_batch().await),
            };
            if let Some(heard) = heard {
                if heard.is_empty() {
                    return Err(Error::unavailable("the subscription ended"));
                }
                self.take(heard).await?;
            }
            if self.scan.is_some() {
                self.go_on_scanning().await?;
            }
        }
    }

    async fn take(&mut self, heard: VecDeque<Heard>) -> Result<()> {
        let mut seen = HashSet::new();
        let mut keys = Vec::new();
        for one in heard {
            match one {
                Heard::Message(message) => {
                    // A key that is told twice is read once, and then as it is now.
                    let key = message.channel.slice(self.prefix.len().min(message.channel.len())..);
                    if seen.insert(key.clone()) {
                        keys.push(key);
                    }
                }
                Heard::Signal(signal) => self.signal(&signal).await?,
            }
        }
        for some in keys.chunks(AT_ONCE) {
            self.read(some, Operation::Replace).await?;
        }
        Ok(())
    }

    async fn signal(&mut self, signal: &Signal) -> Result<()> {
        match signal {
            Signal::Gap { .. } => self.progress.gap(),
            Signal::Lagged { .. } => {
                self.progress.gap();
                if self.config.rescan {
                    self.begin_scan(Some("notifications came faster than they could be read")).await?;
                }
            }
            Signal::Resumed { .. } if self.config.rescan => {
                self.begin_scan(Some("the connection to Redis was lost for a while")).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Begins to read all keys. If some may be gone unseen, all who know the collection are told.
    async fn begin_scan(&mut self, why: Option<&str>) -> Result<()> {
        if let Some(why) = why {
            let event = Event::control(Operation::Resync, None, self.config.collection.clone());
            let position = self.position();
            self.tell(Step::Control { position, event: event.with_reason(why) }).await?;
        }
        let nodes = nodes(&self.config, &self.client).await?.into();
        self.scan = Some(Scan { nodes, cursor: Bytes::from_static(b"0") });
        Ok(())
    }

    async fn go_on_scanning(&mut self) -> Result<()> {
        let Some(Scan { nodes, cursor }) = &mut self.scan else { return Ok(()) };
        let Some(node) = nodes.front() else {
            self.scan = None;
            return Ok(());
        };
        let ask = cmd("SCAN").arg(&cursor[..]).arg("MATCH").arg(&self.config.pattern);
        let ask = ask.arg("COUNT").arg(AT_ONCE);
        let (next, keys) = node.call::<(Bytes, Vec<Bytes>)>(ask).await.map_err(passing)?;
        if &next[..] == b"0" {
            nodes.pop_front();
        }
        *cursor = next;
        for some in keys.chunks(AT_ONCE) {
            self.read(some, Operation::Snapshot).await?;
        }
        Ok(())
    }

    /// Reads keys and tells what they hold now.
    async fn read(&self, keys: &[Bytes], operation: Operation) -> Result<()> {
        let read = keys.iter().map(|key| self.client.call::<Tree>(command(self.config.read, key)));
        for (key, value) in keys.iter().zip(join_all(read).await) {
            let position = self.position();
            let value = match value {
                Err(error) if error.code().is_none() => return Err(passing(error)),
                value => value,
            };
            let event = document(self.config.read, value).and_then(|found| self.event(key, found, operation));
            let origin = Origin { name: String::from_utf8_lossy(key).into_owned(), payload: Bytes::new() };
            match event {
                Ok(None) => {}
                Ok(Some(event)) => {
                    let headers = Vec::new();
                    self.tell(Step::Change(SourceChange { position, event, headers, origin })).await?;
                }
                Err(error) => self.tell(Step::Poison(Rejected { position, error, origin })).await?,
            }
        }
        Ok(())
    }

    fn event(&self, key: &Bytes, found: Option<Document>, operation: Operation) -> Result<Option<Event>> {
        let key = std::str::from_utf8(key).map_err(|_| Error::poison("a key is no text"))?;
        let headers = Headers::default().named(key, self.config.separator);
        let nothing: &RawValue = serde_json::from_str("null").map_err(|error| broken(&error))?;
        let rules = &self.config.rules;
        let event = match found {
            Some(document) => rules.named(operation, &headers, nothing)?.with_after(document),
            // It vanished since the scan found it; a notification tells of it.
            None if operation == Operation::Snapshot => return Ok(None),
            None => rules.named(Operation::Delete, &headers, nothing)?,
        };
        rules.kept(Event { observed_ms: Progress::now_ms(), ..event })
    }

    /// Greater than all before it under this epoch.
    fn position(&self) -> Bytes {
        let (epoch, count) = &self.numbers;
        [epoch.to_be_bytes(), count.fetch_add(1, Ordering::Relaxed).to_be_bytes()].concat().into()
    }

    async fn tell(&self, step: Step<NoPlace>) -> Result<()> {
        self.steps.send(Ok(step)).await.map_err(|_| Error::unavailable("the reader ended"))
    }
}
