//! Following streams of other programs.
//!
//! A follower reads new entries with plain commands, because the stream may lie in another slot,
//! and makes them into records here. One script takes the records in and moves the mark. If another
//! process moved the mark before, the script refuses: no entry comes twice and none is left out,
//! however many processes follow. The engine only reads the stream, unless its adoption says that
//! entries are to be removed.

use super::entry::{FieldMapping, Fields};
use super::error_mapping::{odd_answer, of_call};
use super::reply_decoding::{Parts, StepSubject};
use super::scripts::SCRIPTS;
use super::{RedisEngine, blob};
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{Adopt, Reply, StartPosition, StreamGroup, StreamPending, Streams};
use crate::id::RecordId;
use crate::limits::{MAX_BATCH, MAX_BATCH_BYTES, MAX_DUE};
use crate::name::Partition;
use crate::record::Content;
use firth_redis::resp::{Frame, Value};
use firth_redis::{CallError, cmd};
use std::time::Duration;

/// Entries of the first read; further ones are larger as long as entries are small.
const FIRST_PAGE: usize = 16;
/// Bytes that a read may bring, as far as the entries before it tell.
const PAGE_BYTES: usize = 2 << 20;
/// Pending entries that are listed at once.
const PENDING_PAGE: usize = 1000;

/// How a partition follows its stream.
pub(super) struct Following {
    stream: String,
    /// The last entry that was taken in.
    at: RecordId,
    mapping: FieldMapping,
    /// Entries up to the mark are removed, but none up to this one, which the topic never had.
    /// `None`: nothing is.
    removed_after: Option<RecordId>,
}

impl Following {
    /// Reads what a script says of a partition; `None` if it follows nothing.
    pub(super) fn read(parts: &mut Parts<'_>) -> Result<Option<Self>> {
        if parts.is_empty() {
            return Ok(None);
        }
        let stream = parts.value()?;
        if stream.is_null() {
            return Ok(None);
        }
        let stream = stream.as_str().ok_or_else(odd_answer)?.to_owned();
        let at = parts.id()?;
        let mapping = FieldMapping { key: parts.text()?.to_owned(), payload: parts.text()?.to_owned() };
        let removing = parts.text()? == "1";
        // Builds that did not note where the adoption began removed all that was older.
        let start =
            if parts.is_empty() { None } else { parts.value()?.as_str().and_then(|id| id.parse().ok()) };
        let removed_after = removing.then_some(start.unwrap_or(at));
        Ok(Some(Self { stream, at, mapping, removed_after }))
    }
}

impl Streams for RedisEngine {
    fn stream_mark<'a>(&'a self, stream: &'a str, from: StartPosition) -> Reply<'a, RecordId> {
        Box::pin(async move {
            crate::checks::place(from)?;
            let newest = self.newest_entry(stream).await?.unwrap_or_default();
            Ok(match from {
                StartPosition::Start | StartPosition::Existing => RecordId::ZERO,
                StartPosition::End => newest,
                StartPosition::After(id) => id,
                StartPosition::Age(age) => RecordId::before_ms(self.millis_ago(age).await?),
            })
        })
    }

    fn adopt<'a>(&'a self, at: &'a Partition, adopt: Option<Adopt>, rank: u64) -> Reply<'a, bool> {
        Box::pin(async move {
            let script = &SCRIPTS.adopt;
            let mut call = script.key(&self.keys.partition(at).meta).arg(rank);
            if let Some(adopt) = adopt {
                call = call
                    .arg(adopt.stream)
                    .arg(adopt.after.to_string())
                    .arg(adopt.key_field.unwrap_or_default())
                    .arg(adopt.payload_field.unwrap_or_default())
                    .arg(u8::from(adopt.removing));
            }
            let answer = StepSubject::partition(at).accept(self.steps.durable(script, call).await?)?;
            answer.value().as_i64().map(|done| done == 1).ok_or_else(odd_answer)
        })
    }

    fn stream_group<'a>(&'a self, at: &'a Partition, group: &'a str) -> Reply<'a, StreamGroup> {
        Box::pin(async move {
            let fields = cmd("HMGET").key(&self.keys.partition(at).meta).arg("as").arg("l");
            let answer: Frame = self.steps.client.call(fields).await.map_err(of_call)?;
            let Some(stream) = answer.value().get(0).and_then(Value::as_str) else {
                return Err(Error::not_found(format!("partition {at} does not exist or follows no stream")));
            };
            let delivered = self.delivered(stream, group).await?;
            let pending = self.pending_entries(stream, group).await?;
            Ok(StreamGroup { delivered, pending })
        })
    }
}

impl RedisEngine {
    /// Takes in what is new in a followed stream, up to `max` entries; answers how many, and
    /// whether there may be more.
    pub(super) async fn follow(
        &self,
        at: &Partition,
        following: Following,
        max: usize,
    ) -> Result<(usize, bool)> {
        let Following { stream, at: mut mark, mapping, removed_after } = following;
        let mut taken = 0;
        let mut page = FIRST_PAGE;
        while taken < max {
            let entries = self.entries_after(&stream, mark, page.min(max - taken)).await?;
            let Some((last, _)) = entries.last() else {
                if let Some(start) = removed_after {
                    self.remove_left_over(&stream, start, mark).await?;
                }
                return self.look_for_rebirth(at, &stream, mark).await.map(|is_new| (taken, is_new));
            };
            let last = *last;
            let is_last = entries.len() < page.min(max - taken);
            let contents: Vec<Content> =
                entries.iter().map(|(id, fields)| mapping.content(*id, fields)).collect();
            for batch in batches(&contents, &entries, mark) {
                if !self.take_in(at, batch).await? {
                    // Another process follows the stream, too: its records are as good as ours.
                    return Ok((taken, true));
                }
                taken += batch.contents.len();
            }
            mark = last;
            if removed_after.is_some() {
                self.remove(&stream, entries.iter().map(|(id, _)| *id)).await?;
            }
            if is_last {
                return Ok((taken, false));
            }
            let bytes: usize = contents.iter().map(Content::packed_len).sum();
            page = (page * 4).min(PAGE_BYTES * contents.len() / bytes.max(1)).clamp(1, MAX_BATCH);
        }
        Ok((taken, true))
    }

    /// Removes entries, a page at most.
    async fn remove(&self, stream: &str, ids: impl Iterator<Item = RecordId>) -> Result<()> {
        let all = ids.fold(cmd("XDEL").key(stream), |all, id| all.arg(id.to_string()));
        let _: u64 = self.steps.client.call(all).await.map_err(|error| of_stream(error, stream))?;
        Ok(())
    }

    /// Removes what a process took in and did not live to remove, a page at a time.
    async fn remove_left_over(&self, stream: &str, start: RecordId, mark: RecordId) -> Result<()> {
        if start >= mark {
            return Ok(());
        }
        let range = cmd("XRANGE").key(stream).arg(format!("({start}")).arg(mark.to_string());
        let range = range.arg("COUNT").arg(FIRST_PAGE);
        let answer: Frame = self.steps.client.call(range).await.map_err(|error| of_stream(error, stream))?;
        let left: Vec<(RecordId, Fields)> = answer.value().iter().map(entry).collect::<Result<_>>()?;
        if left.is_empty() { Ok(()) } else { self.remove(stream, left.iter().map(|(id, _)| *id)).await }
    }

    /// By the clock that gave the entries of streams their ids.
    async fn millis_ago(&self, age: Duration) -> Result<u64> {
        let time: Frame = self.steps.client.call(cmd("TIME")).await.map_err(of_call)?;
        let mut parts = Parts::of(time.value());
        let now_ms = parts.number()? * 1000 + parts.number()? / 1000;
        Ok(now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
    }

    async fn take_in(&self, at: &Partition, batch: Batch<'_>) -> Result<bool> {
        let keys = self.keys.partition(at);
        let script = &SCRIPTS.follow;
        let call = script
            .keys([&keys.meta, &keys.stream])
            .arg(batch.from.to_string())
            .arg(batch.to.to_string())
            .args(blob::pack(batch.contents));
        let answer = StepSubject::partition(at).accept(self.steps.durable(script, call).await?)?;
        answer.value().as_i64().map(|taken| taken == 1).ok_or_else(odd_answer)
    }

    async fn entries_after(
        &self,
        stream: &str,
        after: RecordId,
        count: usize,
    ) -> Result<Vec<(RecordId, Fields)>> {
        let range = cmd("XRANGE").key(stream).arg(format!("({after}")).arg("+").arg("COUNT").arg(count);
        let answer: Frame = self.steps.client.call(range).await.map_err(|error| of_stream(error, stream))?;
        answer.value().iter().map(entry).collect()
    }

    /// A stream whose newest id lies before the mark was deleted and made anew: it is followed from
    /// its start.
    async fn look_for_rebirth(&self, at: &Partition, stream: &str, mark: RecordId) -> Result<bool> {
        match self.newest_entry(stream).await? {
            Some(newest) if newest < mark => {
                tracing::warn!(stream, %mark, %newest, "the stream was made anew: following it from its start");
                let batch = Batch { from: mark, to: RecordId::ZERO, contents: &[] };
                self.take_in(at, batch).await.map(|_| true)
            }
            _ => Ok(false),
        }
    }

    /// The newest id that a stream ever had; `None` if there is no stream.
    async fn newest_entry(&self, stream: &str) -> Result<Option<RecordId>> {
        let info = cmd("XINFO").arg("STREAM").key(stream);
        match self.steps.client.call::<Frame>(info).await {
            Ok(answer) => {
                let newest =
                    field(answer.value(), "last-generated-id").and_then(|id| id.as_str()?.parse().ok());
                newest.map(Some).ok_or_else(odd_answer)
            }
            Err(CallError::Server(error)) if error.message.contains("no such key") => Ok(None),
            Err(error) => Err(of_stream(error, stream)),
        }
    }

    async fn delivered(&self, stream: &str, group: &str) -> Result<RecordId> {
        let missing = || Error::not_found(format!("stream {stream} has no group {group}"));
        let answer = match self.steps.client.call::<Frame>(cmd("XINFO").arg("GROUPS").key(stream)).await {
            Err(CallError::Server(error)) if error.message.contains("no such key") => return Err(missing()),
            answer => answer.map_err(|error| of_stream(error, stream))?,
        };
        let named = |info: &Value<'_>| field(*info, "name").and_then(Value::as_str) == Some(group);
        let info = answer.value().iter().find(named).ok_or_else(missing)?;
        let delivered = field(info, "last-delivered-id").and_then(|id| id.as_str()?.parse().ok());
        delivered.ok_or_else(odd_answer)
    }

    async fn pending_entries(&self, stream: &str, group: &str) -> Result<Vec<StreamPending>> {
        let mut found = Vec::new();
        let mut from = "-".to_owned();
        loop {
            let page = cmd("XPENDING").key(stream).arg(group).arg(&from).arg("+").arg(PENDING_PAGE);
            let answer: Frame =
                self.steps.client.call(page).await.map_err(|error| of_stream(error, stream))?;
            for entry in answer.value() {
                let mut parts = Parts::of(entry);
                found.push(StreamPending {
                    id: parts.id()?,
                    consumer: parts.text()?.to_owned(),
                    idle: Duration::from_millis(parts.number()?),
                    deliveries: parts.number()?,
                });
            }
            if answer.value().len() < PENDING_PAGE {
                return Ok(found);
            }
            if found.len() as u64 > MAX_DUE {
                let context =
                    format!("group {group} of stream {stream} has more than {MAX_DUE} pending entries");
                return Err(Error::new(ErrorKind::Overloaded, context));
            }
            from = found.last().map_or(from, |last| format!("({}", last.id));
        }
    }
}

/// Entries that are taken in together, and the marks before and after them.
#[derive(Clone, Copy)]
struct Batch<'c> {
    from: RecordId,
    to: RecordId,
    contents: &'c [Content],
}

/// Cuts a page so that each part fits one step.
fn batches<'c>(contents: &'c [Content], entries: &[(RecordId, Fields)], mark: RecordId) -> Vec<Batch<'c>> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    let mut from = mark;
    for (at, content) in contents.iter().enumerate() {
        let size = content.packed_len();
        if at > start && bytes + size > MAX_BATCH_BYTES {
            let to = entries[at - 1].0;
            parts.push(Batch { from, to, contents: &contents[start..at] });
            (start, bytes, from) = (at, 0, to);
        }
        bytes += size;
    }
    if let Some((to, _)) = entries.last() {
        parts.push(Batch { from, to: *to, contents: &contents[start..] });
    }
    parts
}

fn entry(value: Value<'_>) -> Result<(RecordId, Fields)> {
    let mut parts = Parts::of(value);
    let id = parts.id()?;
    let list: Vec<_> =
        parts.value()?.iter().map(Value::bytes).collect::<Option<_>>().ok_or_else(odd_answer)?;
    let pairs = list.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    Ok((id, pairs.collect()))
}

/// The value under a name, in a map or in a list of names and values.
pub(super) fn field<'v>(map: Value<'v>, name: &str) -> Option<Value<'v>> {
    let parts: Vec<Value<'v>> = map.iter().collect();
    let pairs = parts.chunks_exact(2);
    pairs.filter(|pair| pair[0].as_str() == Some(name)).map(|pair| pair[1]).next()
}

/// An error about a key that is not ours.
fn of_stream(error: CallError, stream: &str) -> Error {
    match &error {
        CallError::Server(server) if &*server.code == "WRONGTYPE" => {
            Error::invalid(format!("the key {stream} holds no stream")).with_source(error)
        }
        CallError::Server(server) if &*server.code == "NOPERM" => {
            let context = format!(
                "the server's user may not do this with the stream {stream}: see docs/acl.md for the rules of adopted streams"
            );
            Error::new(ErrorKind::Unauthorized, context).with_source(error)
        }
        _ => of_call(error).during(format_args!("following the stream {stream}")),
    }
}
