//! `consume` over HTTP: a stream of deliveries, verdicts by `settle`, and `extend` in place of a
//! lease's renewal, so that a client that sleeps past its lease loses its deliveries. Nothing is
//! told as delivered without a renewal that is younger than the lease: what lies in the socket may
//! be another client's by now.
//!
//! The server owns the partitions. `assigned` tells under which epoch, and `revoked` that nothing
//! of it is in hand any more; clients of one server share both.

use super::client::Api;
use super::feed::{Delivered, News, listen};
use super::{Group, group_path};
use crate::args::Consume;
use crate::protocol::{Command, Event, sha_of};
use crate::wire::{Out, lines};
use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Deliveries without a verdict.
const SIDE_BY_SIDE: usize = 256;
/// Verdicts of one request.
const BATCH: usize = 500;
/// How often the owner of the partitions is looked for until each has one, and then.
const LOOK: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

pub(super) async fn run(api: &Api, args: &Consume) -> Result<()> {
    let lease_ms = u64::try_from(args.lease.as_millis()).unwrap_or(u64::MAX).clamp(100, 43_200_000);
    let member = Member {
        api: api.clone(),
        path: group_path(&args.topic, &args.group),
        lease_ms,
        renewed: None,
        out: Out::new(std::io::stdout()),
        announced: BTreeMap::new(),
        in_hand: BTreeMap::new(),
        next_token: 1,
        noted: Vec::new(),
    };
    member.serve().await
}

struct Held {
    handle: String,
    id: String,
    epoch: u64,
}

struct Member {
    api: Api,
    path: String,
    lease_ms: u64,
    /// When the newest renewal that the server confirmed was asked for.
    renewed: Option<Instant>,
    out: Out,
    /// Partitions that were told as ours.
    announced: BTreeMap<u32, u64>,
    in_hand: BTreeMap<u64, Held>,
    next_token: u64,
    /// Verdicts that wait for the request before them.
    noted: Vec<(Command, String)>,
}

/// What a request of verdicts came to.
type Answers = Vec<Event>;

/// When more time was asked for, and the handles for which there is none.
type Renewal = Option<(Instant, Vec<String>)>;

/// Which verdicts were not stored.
#[derive(Deserialize)]
struct Report {
    failed: Vec<NotSettled>,
}

#[derive(Deserialize)]
struct NotSettled {
    delivery: String,
    kind: String,
    detail: String,
    may_have_happened: bool,
}

impl Member {
    async fn serve(mut self) -> Result<()> {
        let mut input = lines::<Command>(std::io::stdin());
        let stream = format!("{}/stream?max={SIDE_BY_SIDE}&lease_ms={}", self.path, self.lease_ms);
        let mut news = listen(self.api.clone(), stream);
        let mut settling: Option<BoxFuture<'static, Answers>> = None;
        let mut extending: Option<BoxFuture<'static, Renewal>> = Some(self.extend());
        let mut beats = tokio::time::interval(Duration::from_millis(self.lease_ms / 3));
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looking: BoxFuture<'static, BTreeMap<u32, u64>> = self.look(Duration::ZERO);
        let trouble = loop {
            if settling.is_none() && !self.noted.is_empty() {
                settling = Some(self.settle());
            }
            tokio::select! {
                line = input.recv() => match line {
                    None => break None,
                    Some(Err(error)) => break Some(error),
                    Some(Ok(command)) => self.obey(command).await?,
                },
                // Not before the first renewal: nothing could be told as delivered.
                Some(news) = news.recv(), if self.renewed.is_some() => match news {
                    News::Delivered(delivered) => self.deliver(*delivered).await?,
                    News::Broken => self.forget().await?,
                },
                answers = maybe(&mut settling) => {
                    settling = None;
                    self.answer(answers).await?;
                }
                renewal = maybe(&mut extending) => {
                    extending = None;
                    self.renewed(renewal);
                }
                _ = beats.tick(), if extending.is_none() => {
                    extending = Some(self.extend());
                }
                owned = &mut looking => {
                    let pace = LOOK[usize::from(!owned.is_empty())];
                    self.announce(owned).await?;
                    looking = self.look(pace);
                }
            }
        };
        // The stream stays until every verdict is answered; then the server gives the rest to
        // others.
        while settling.is_some() || !self.noted.is_empty() {
            let answers = match settling.take() {
                Some(under_way) => under_way.await,
                None => self.settle().await,
            };
            self.answer(answers).await?;
        }
        drop(news);
        self.forget().await?;
        self.out.end()?;
        trouble.map_or(Ok(()), Err)
    }

    async fn deliver(&mut self, delivered: Delivered) -> Result<()> {
        let Delivered { delivery, deadline_ms, epoch, record } = delivered;
        // After a sleep the socket holds lines whose lease is over: the server gives these
        // deliveries to other clients.
        let fresh = self.renewed.is_some_and(|at| at.elapsed() < Duration::from_millis(self.lease_ms));
        if !fresh || deadline_ms <= unix_ms() {
            return Ok(());
        }
        let partition = record.partition;
        let id = record.id();
        if self.announced.get(&partition).is_none_or(|known| *known < epoch) {
            let mut owned = self.announced.clone();
            owned.insert(partition, epoch);
            self.announce(owned).await?;
        }
        let token = self.next_token;
        self.next_token += 1;
        let sha = sha_of(record.payload.as_bytes());
        self.in_hand.insert(token, Held { handle: delivery, id: id.clone(), epoch });
        let key = record.key;
        let attempt = record.attempt;
        self.out.say(&Event::Delivered { id, key, partition, epoch, sha, attempt, token }).await
    }

    /// Tells which partitions have a newer epoch.
    async fn announce(&mut self, owned: BTreeMap<u32, u64>) -> Result<()> {
        for (partition, epoch) in owned {
            let known = self.announced.get(&partition).copied();
            if known.is_some_and(|known| known >= epoch) {
                continue;
            }
            if let Some(epoch) = known {
                self.out.say(&Event::Revoked { partition, epoch }).await?;
            }
            self.announced.insert(partition, epoch);
            self.out.say(&Event::Assigned { partition, epoch }).await?;
        }
        Ok(())
    }

    /// Nothing is in hand any more: the stream is gone.
    async fn forget(&mut self) -> Result<()> {
        self.in_hand.clear();
        for (partition, epoch) in std::mem::take(&mut self.announced) {
            self.out.say(&Event::Revoked { partition, epoch }).await?;
        }
        Ok(())
    }

    async fn obey(&mut self, command: Command) -> Result<()> {
        if let Err(reason) = self.check(&command) {
            let id = command.id().to_owned();
            return self.out.say(&Event::AckErr { id, definite: true, reason }).await;
        }
        let held = self.in_hand.remove(&command.token()).expect("it was checked");
        self.noted.push((command, held.handle));
        Ok(())
    }

    fn check(&self, command: &Command) -> Result<(), String> {
        let token = command.token();
        let Some(held) = self.in_hand.get(&token) else {
            return Err(if token < self.next_token {
                "fenced: it was settled before, or its lease ran out".to_owned()
            } else {
                format!("invalid: there is no token {token}")
            });
        };
        if held.id != command.id() {
            return Err(format!("invalid: token {token} belongs to another message"));
        }
        match command {
            Command::Ack { epoch: Some(epoch), .. } if *epoch != held.epoch => {
                Err(format!("fenced: token {token} is of epoch {}", held.epoch))
            }
            _ => Ok(()),
        }
    }

    /// Sends what is noted. Never again: a handle that is gone would not tell whether the first
    /// request settled it.
    fn settle(&mut self) -> BoxFuture<'static, Answers> {
        let rest = self.noted.split_off(self.noted.len().min(BATCH));
        let batch = std::mem::replace(&mut self.noted, rest);
        let api = self.api.clone();
        let path = format!("{}/settle", self.path);
        async move {
            let sent = api.send(Method::POST, &path, &verdicts(&batch)).await;
            answers(batch, sent.and_then(|report| super::client::read(report.to_string().as_bytes())))
        }
        .boxed()
    }

    /// Asks for more time.
    fn extend(&self) -> BoxFuture<'static, Renewal> {
        let lease_ms = self.lease_ms;
        let asked = Instant::now();
        let extend =
            self.in_hand.values().map(|held| json!({ "delivery": held.handle, "lease_ms": lease_ms }));
        let api = self.api.clone();
        let path = format!("{}/settle", self.path);
        let body = json!({ "extend": extend.collect::<Vec<Value>>() });
        async move {
            let report = api.send(Method::POST, &path, &body).await.ok();
            let report = serde_json::from_value::<Report>(report?).ok()?;
            Some((asked, report.failed.into_iter().map(|one| one.delivery).collect()))
        }
        .boxed()
    }

    fn renewed(&mut self, renewal: Renewal) {
        // If it failed, the stream fails too, or the next beat comes in time.
        if let Some((asked, lost)) = renewal {
            self.renewed = Some(asked);
            self.in_hand.retain(|_, held| !lost.contains(&held.handle));
        }
    }

    /// The epochs of all partitions once each has one; after a pause.
    fn look(&self, pause: Duration) -> BoxFuture<'static, BTreeMap<u32, u64>> {
        let api = self.api.clone();
        let path = self.path.clone();
        async move {
            tokio::time::sleep(pause).await;
            let parts = api.get::<Group>(&path).await.map_or_else(|_| Vec::new(), |group| group.partitions);
            let epochs: Option<_> = parts.iter().map(|part| Some((part.partition, part.epoch?))).collect();
            epochs.unwrap_or_default()
        }
        .boxed()
    }

    async fn answer(&self, answers: Answers) -> Result<()> {
        for event in &answers {
            self.out.say(event).await?;
        }
        Ok(())
    }
}

/// Waits for what is under way; for ever if nothing is.
async fn maybe<T>(under_way: &mut Option<BoxFuture<'static, T>>) -> T {
    match under_way {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn verdicts(batch: &[(Command, String)]) -> Value {
    let mut ack = Vec::<Value>::new();
    let mut nack = Vec::<Value>::new();
    let mut reject = Vec::<Value>::new();
    for (command, handle) in batch {
        match command {
            Command::Ack { .. } => ack.push(handle.as_str().into()),
            Command::Nack { after_ms, .. } => {
                nack.push(json!({ "delivery": handle, "reason": "nack", "after_ms": after_ms }));
            }
            Command::Reject { reason, .. } => reject.push(json!({ "delivery": handle, "reason": reason })),
        }
    }
    json!({ "ack": ack, "nack": nack, "reject": reject })
}

fn answers(batch: Vec<(Command, String)>, sent: firth::Result<Report>) -> Answers {
    let failed = match sent {
        Ok(report) => report.failed,
        Err(error) => {
            let definite = !error.may_have_happened();
            let reason = error.to_string();
            let failed = |(command, _): (Command, String)| Event::AckErr {
                id: command.id().to_owned(),
                definite,
                reason: reason.clone(),
            };
            return batch.into_iter().map(failed).collect();
        }
    };
    let failed: HashMap<String, NotSettled> =
        failed.into_iter().map(|one| (one.delivery.clone(), one)).collect();
    let answer = |(command, handle): (Command, String)| {
        let id = command.id().to_owned();
        match failed.get(&handle) {
            None => Event::AckOk { id },
            Some(NotSettled { kind, detail, may_have_happened, .. }) => {
                Event::AckErr { id, definite: !may_have_happened, reason: format!("{kind}: {detail}") }
            }
        }
    };
    batch.into_iter().map(answer).collect()
}
