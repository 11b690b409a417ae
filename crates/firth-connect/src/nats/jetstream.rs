//! [`NatsStream`]: a JetStream stream as a source.
//!
//! The truth about how far the source is are the marks and the saved place; the server's consumer
//! follows them. So each session makes a durable consumer of its own that begins behind the place,
//! and removes those of former sessions: what a dead reader held comes at once, in order.

use super::config::{NatsConfig, StreamStart};
use super::read::read;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::pump::Limits;
use crate::source::{ChangeStream, Opening, Policy, Source, Step};
use async_nats::Client;
use async_nats::jetstream::consumer::pull::{Config as PullConfig, Stream as Pulled};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer};
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{
    Config as StreamConfig, Info as StreamInfo, RetentionPolicy, State as NatsState, Stream,
};
use async_nats::jetstream::{self, ErrorCode};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Messages and bytes that the server sends ahead.
const AHEAD: usize = 500;
const AHEAD_BYTES: usize = 8 << 20;
/// How often the server says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(5);
const PULL: Duration = Duration::from_secs(30);
/// After so long without an ack the server sends a message again; the reader drops it.
const ACK_WAIT: Duration = Duration::from_secs(600);
/// How often the stream is looked at while it brings nothing.
const LOOK: Duration = Duration::from_secs(5);

/// A place in a stream: every message up to it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NatsPlace {
    /// When the stream was made, in nanoseconds of Unix time: one made anew is another one.
    pub created: u64,
    /// The sequence of the last message.
    pub seq: u64,
}

impl NatsPlace {
    fn position(self) -> Bytes {
        [self.created.to_be_bytes(), self.seq.to_be_bytes()].concat().into()
    }
}

/// A JetStream stream as a source.
#[derive(Clone, Debug)]
pub struct NatsStream(pub Arc<NatsConfig>);

impl Source for NatsStream {
    type Place = NatsPlace;
    type Stream = Reading;

    fn name(&self) -> &str {
        &self.0.name
    }

    fn policy(&self) -> &Policy {
        &self.0.policy
    }

    fn collections(&self) -> Vec<String> {
        self.0.collections()
    }

    fn limits(&self) -> Limits {
        self.0.limits.clone()
    }

    async fn open(&self, place: Option<&NatsPlace>, context: &Opening<'_>) -> Result<(Reading, NatsPlace)> {
        let config = &self.0;
        let client = config.connect(config.options()?).await?;
        let stream = stream(config, &client, place.is_some()).await?;
        let former = consumers(config, &stream).await?;
        let place = begin(config, &stream, place, former.is_empty())?;
        let name = format!("{}{}-{:x}", prefix(config), context.epoch, Progress::now_ms());
        let consumer = consumer(config, &stream, name, place.seq + 1).await?;
        for former in former {
            // Another node may be faster.
            let _ = stream.delete_consumer(&former).await;
        }
        let ahead = AHEAD_BYTES.max(2 * client.server_info().max_payload);
        let pulled = consumer.stream().max_messages_per_batch(AHEAD).max_bytes_per_batch(ahead);
        let pulled = pulled.heartbeat(HEARTBEAT).expires(PULL).messages().await;
        let reading = Reading {
            loses_from_its_head: loses_from_its_head(&stream.cached_info().config),
            pulled: pulled.map_err(passing)?,
            config: config.clone(),
            client,
            stream,
            consumer,
            last: place,
            safe: place,
            delivered: 0,
            acks: VecDeque::new(),
            steps: VecDeque::new(),
            looking: None,
            looked: Instant::now(),
            progress: context.progress.clone(),
        };
        Ok((reading, place))
    }
}

/// The stream, if it can be read.
async fn stream(config: &NatsConfig, client: &Client, was_read: bool) -> Result<Stream> {
    let name = config.stream.as_deref().unwrap_or_default();
    let stream =
        jetstream::new(client.clone()).get_stream(name).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(told) if told.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                match was_read {
                    true => Error::new(ErrorKind::Lost, format!("the stream {name} is gone")),
                    false => Error::refused(format!("there is no stream {name}: make it first")),
                }
            }
            _ => Error::unavailable("the stream cannot be looked at").with_source(error),
        })?;
    if stream.cached_info().config.retention == RetentionPolicy::WorkQueue {
        return Err(Error::refused(format!(
            "the stream {name} is a work queue, which gives each message to one reader: read a mirror of it"
        )));
    }
    Ok(stream)
}

/// Where the source goes on; [`Lost`](ErrorKind::Lost) if what follows is not there any more.
fn begin(
    config: &NatsConfig,
    stream: &Stream,
    place: Option<&NatsPlace>,
    has_no_consumer: bool,
) -> Result<NatsPlace> {
    let info = stream.cached_info();
    let name = &info.config.name;
    let created = made(info);
    let NatsState { first_sequence: first, last_sequence: last, .. } = info.state;
    let lost = |why: String| Err(Error::new(ErrorKind::Lost, why));
    let Some(place) = place else {
        let seq = match config.start {
            StreamStart::All => first.saturating_sub(1),
            StreamStart::New => last,
        };
        return Ok(NatsPlace { created, seq });
    };
    if place.created != created {
        return lost(format!("the stream {name} was made anew"));
    }
    if loses_from_its_head(&info.config) && first > place.seq + 1 {
        let from = place.seq + 1;
        return lost(format!("the stream {name} has removed messages from {from} to {}", first - 1));
    }
    if info.config.retention == RetentionPolicy::Interest && has_no_consumer {
        return lost(format!("the consumer of this source is gone, so {name} kept nothing for it"));
    }
    Ok(*place)
}

/// Whether a message that was not read can only vanish with all before it. Acks remove messages
/// of a stream by interest, and newer messages those of their subject; both leave holes.
fn loses_from_its_head(config: &StreamConfig) -> bool {
    let is_unlimited = config.max_messages <= 0 && config.max_bytes <= 0 && config.max_age.is_zero();
    let is_by_subject = config.max_messages_per_subject > 0 && is_unlimited;
    config.retention == RetentionPolicy::Limits && !is_by_subject
}

/// Names of sources have no dash, so no name is the beginning of another one's.
fn prefix(config: &NatsConfig) -> String {
    format!("firth-{}-", config.name)
}

async fn consumers(config: &NatsConfig, stream: &Stream) -> Result<Vec<String>> {
    let names: Vec<String> = stream.consumer_names().try_collect().await.map_err(passing)?;
    let prefix = prefix(config);
    Ok(names.into_iter().filter(|name| name.starts_with(&prefix)).collect())
}

async fn consumer(config: &NatsConfig, stream: &Stream, name: String, from: u64) -> Result<PullConsumer> {
    let wanted = PullConfig {
        durable_name: Some(name),
        description: Some(format!("firth source {}", config.name)),
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from },
        ack_policy: AckPolicy::All,
        ack_wait: ACK_WAIT,
        max_ack_pending: -1,
        filter_subjects: config.subjects.clone(),
        ..PullConfig::default()
    };
    stream
        .create_consumer(wanted)
        .await
        .map_err(|error| Error::unavailable("the consumer of this source cannot be made").with_source(error))
}

/// What a look at the stream tells.
struct Seen {
    created: u64,
    first: u64,
    last: u64,
    /// Messages for this source that were not sent, and the last one that was.
    pending: u64,
    sent: u64,
    /// What was read when the look began.
    read: NatsPlace,
}

/// An open stream.
pub struct Reading {
    config: Arc<NatsConfig>,
    client: Client,
    stream: Stream,
    consumer: PullConsumer,
    pulled: Pulled,
    loses_from_its_head: bool,
    /// Up to where everything is read.
    last: NatsPlace,
    /// Up to where certainly nothing was removed before it could be read.
    safe: NatsPlace,
    /// How many messages the server has sent.
    delivered: u64,
    /// How messages that are not confirmed yet are acknowledged, by their sequences.
    acks: VecDeque<(u64, async_nats::Subject)>,
    steps: VecDeque<Step<NatsPlace>>,
    looking: Option<BoxFuture<'static, Result<Seen>>>,
    looked: Instant,
    progress: Progress,
}

impl ChangeStream for Reading {
    type Place = NatsPlace;

    async fn next(&mut self) -> Result<Step<NatsPlace>> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Ok(step);
            }
            let look_at = self.looked + LOOK;
            tokio::select! {
                biased;
                seen = look(&mut self.looking) => {
                    self.looking = None;
                    self.seen(&seen?)?;
                }
                message = self.pulled.next() => match message {
                    Some(message) => self.take(message.map_err(passing)?)?,
                    None => return Err(Error::unavailable("the server ended the messages of the stream")),
                },
                () = tokio::time::sleep_until(look_at), if self.looking.is_none() => self.begin_look(),
            }
        }
    }

    /// One ack stands for all before it.
    async fn confirm(&mut self, place: &NatsPlace) -> Result<()> {
        let mut ack = None;
        while let Some((_, subject)) = self.acks.pop_front_if(|(seq, _)| *seq <= place.seq) {
            ack = Some(subject);
        }
        match ack {
            Some(subject) => self.client.publish(subject, Bytes::from_static(b"+ACK")).await.map_err(passing),
            None => Ok(()),
        }
    }
}

impl Reading {
    fn take(&mut self, message: async_nats::jetstream::Message) -> Result<()> {
        let info = message.info().map_err(|error| {
            Error::corrupt("a message of the stream says nothing about its place").with_source(error)
        })?;
        let (seq, delivery) = (info.stream_sequence, info.consumer_sequence);
        let published_ms =
            u64::try_from(info.published.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
        self.progress.behind_by(info.pending);
        if delivery != self.delivered + 1 {
            return Err(Error::unavailable("a message that the server sent did not arrive"));
        }
        self.delivered = delivery;
        if seq <= self.last.seq {
            return Ok(());
        }
        let had_a_gap = self.safe != self.last;
        let is_safe = !had_a_gap && (seq == self.last.seq + 1 || !self.loses_from_its_head);
        self.last.seq = seq;
        self.acks.extend(message.reply.clone().map(|reply| (seq, reply)));
        self.steps.extend(read(&self.config.rules, &message, self.last.position(), published_ms));
        match is_safe {
            true => self.pass(),
            // Was it removed, or is it no message of this source? The stream's head tells.
            false => self.begin_look(),
        }
        Ok(())
    }

    /// Everything up to the last message is read, and nothing was lost.
    fn pass(&mut self) {
        self.safe = self.last;
        self.steps.push_back(Step::Place(self.safe));
    }

    fn begin_look(&mut self) {
        if self.looking.is_some() {
            return;
        }
        let (stream, consumer, read) = (self.stream.clone(), self.consumer.clone(), self.last);
        self.looking = Some(Box::pin(async move {
            let info = stream.get_info().await.map_err(passing)?;
            // Afterwards: a message up to the stream's end was sent, or is pending. And the head
            // last: what it does not name was there until then.
            let reader = consumer.get_info().await.map_err(passing)?;
            let later = stream.get_info().await.map_err(passing)?;
            Ok(Seen {
                created: made(&later),
                first: later.state.first_sequence,
                last: info.state.last_sequence,
                pending: reader.num_pending,
                sent: reader.delivered.stream_sequence,
                read,
            })
        }));
    }

    fn seen(&mut self, seen: &Seen) -> Result<()> {
        self.looked = Instant::now();
        self.progress.behind_by(seen.pending);
        if seen.created != self.last.created {
            return Err(Error::unavailable("the stream was made anew"));
        }
        if self.loses_from_its_head && seen.first > self.safe.seq + 1 {
            let (from, name) = (self.safe.seq + 1, &self.config.stream);
            let name = name.as_deref().unwrap_or_default();
            let why = format!("the stream {name} has removed messages from {from} to {}", seen.first - 1);
            return Err(Error::new(ErrorKind::Lost, why));
        }
        // Nothing was removed before it was sent, up to what was read when the look began.
        let before = self.safe;
        self.safe = self.safe.max(seen.read);
        if seen.read == self.last && seen.pending == 0 && seen.sent <= self.last.seq {
            // What stands between is not for this source.
            self.last.seq = self.last.seq.max(seen.last);
            self.safe = self.last;
        }
        if self.safe != before {
            self.steps.push_back(Step::Place(self.safe));
        }
        if self.safe != self.last {
            self.begin_look();
        }
        Ok(())
    }
}

/// Waits for a look that is under way; forever if none is.
async fn look(looking: &mut Option<BoxFuture<'static, Result<Seen>>>) -> Result<Seen> {
    match looking {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// When a stream was made, in nanoseconds of Unix time.
fn made(info: &StreamInfo) -> u64 {
    u64::try_from(info.created.unix_timestamp_nanos()).unwrap_or_default()
}

fn passing(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::unavailable("the NATS server does not answer as it should").with_source(error)
}

/// Takes down the consumers of this source.
pub(super) async fn remove(config: &NatsConfig) -> Result<()> {
    let client = config.connect(config.options()?).await?;
    let stream = match stream(config, &client, true).await {
        Err(error) if error.kind() == ErrorKind::Lost => return Ok(()),
        stream => stream?,
    };
    for name in consumers(config, &stream).await? {
        stream.delete_consumer(&name).await.map_err(passing)?;
    }
    Ok(())
}
