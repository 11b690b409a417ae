//! The log facet: partitions, appends, promotion, trimming.

use super::RedisEngine;
use super::error_mapping::{odd_answer, of_call};
use super::keys::GROUP_KINDS;
use super::reply_decoding::{Parts, StepSubject};
use super::scripts::SCRIPTS;
use super::streams::Following;
use super::{blob, micros};
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::facet::{
    Append, Appended, Bounds, DelayedAction, DelayedOutcome, DelayedPage, Log, NewMark, Promoted, ReadLimit,
    Reply, SourceMark, Trim, TrimTo, Trimmed,
};
use crate::id::{Epoch, RecordId};
use crate::limits::{MAX_BATCH, MAX_BATCH_BYTES};
use crate::name::{Partition, SourceName};
use crate::record::Record;
use bytes::Bytes;
use firth_redis::{Script, cmd};
use std::time::Duration;

/// Numbers that the scripts can compute with exactly.
const MAX_EXACT: u64 = 1 << 53;
/// What an argument takes on the wire beside its own bytes.
const ARG: usize = 16;
/// Entries that one command removes from the stream, so that no trim holds the server up.
const TRIM_STEP: u64 = 20_000;
/// Entries whose sizes one script adds up.
const SIZE_STEP: u64 = 1000;

impl Log for RedisEngine {
    fn create_partition_as<'a>(&'a self, at: &'a Partition, rank: u64) -> Reply<'a, bool> {
        Box::pin(self.change_partition(&SCRIPTS.create_partition, at, rank))
    }

    fn delete_partition_as<'a>(&'a self, at: &'a Partition, rank: u64) -> Reply<'a, bool> {
        Box::pin(self.change_partition(&SCRIPTS.delete_partition, at, rank))
    }

    fn append<'a>(&'a self, at: &'a Partition, batch: Append) -> Reply<'a, Appended> {
        Box::pin(async move {
            self.append_batch(at, batch).await.map_err(|e| e.during(format_args!("append to {at}")))
        })
    }

    fn mark<'a>(&'a self, at: &'a Partition, source: &'a SourceName) -> Reply<'a, Option<SourceMark>> {
        Box::pin(async move {
            let call = SCRIPTS.mark.keys([&self.keys.partition(at).meta]).arg(source.as_str());
            let answer = StepSubject::partition(at).accept(self.steps.quick(call).await?)?;
            read_mark(&Parts::of(answer.value()).bytes()?)
        })
    }

    fn forget_source<'a>(&'a self, at: &'a Partition, source: &'a SourceName) -> Reply<'a, bool> {
        Box::pin(async move {
            let script = &SCRIPTS.forget_source;
            let call = script.keys([&self.keys.partition(at).meta]).arg(source.as_str());
            let answer = StepSubject::partition(at).accept(self.steps.durable(script, call).await?)?;
            Ok(Parts::of(answer.value()).number()? == 1)
        })
    }

    fn read<'a>(&'a self, at: &'a Partition, after: RecordId, max: ReadLimit) -> Reply<'a, Vec<Record>> {
        Box::pin(self.read_records(at, after, max))
    }

    fn tail<'a>(
        &'a self,
        at: &'a Partition,
        after: RecordId,
        max: ReadLimit,
    ) -> Reply<'a, Option<Vec<Record>>> {
        Box::pin(self.tail_records(at, after, max))
    }

    fn bounds<'a>(&'a self, at: &'a Partition) -> Reply<'a, Bounds> {
        Box::pin(async move {
            let keys = self.keys.partition(at);
            let call = SCRIPTS.bounds.keys([&keys.meta, &keys.delayed]);
            let answer = StepSubject::partition(at).accept(self.steps.quick(call).await?)?;
            let mut parts = Parts::of(answer.value());
            Ok(Bounds {
                trimmed: parts.id()?,
                last: parts.id()?,
                delayed: parts.number()?,
                next_ripe: parts.duration()?,
            })
        })
    }

    fn delayed<'a>(&'a self, at: &'a Partition, after: RecordId, max: ReadLimit) -> Reply<'a, DelayedPage> {
        Box::pin(self.list_delayed(at, after, max))
    }

    fn change_delayed<'a>(
        &'a self,
        at: &'a Partition,
        id: RecordId,
        action: DelayedAction,
    ) -> Reply<'a, DelayedOutcome> {
        Box::pin(self.decide_delayed(at, id, action))
    }

    fn promote_due<'a>(&'a self, at: &'a Partition, max: usize) -> Reply<'a, Promoted> {
        Box::pin(async move {
            let keys = self.keys.partition(at);
            let call = SCRIPTS
                .promote_due
                .keys([&keys.meta, &keys.stream, &keys.delayed])
                .arg(max.clamp(1, MAX_BATCH))
                .arg(MAX_BATCH_BYTES);
            let (call, sent) = keys.clock.timed(call);
            // Losing this step only delays the messages again.
            let answer = StepSubject::partition(at).accept(self.steps.quick(call).await?)?;
            let mut parts = keys.clock.heard(sent, answer.value())?;
            let moved = usize::try_from(parts.number()?).map_err(|_| odd_answer())?;
            let next = parts.duration()?;
            let Some(following) = Following::read(&mut parts)? else {
                return Ok(Promoted { moved, next });
            };
            let (taken, more) = self.follow(at, following, max.clamp(1, MAX_BATCH)).await?;
            Ok(Promoted { moved: moved + taken, next: if more { Some(Duration::ZERO) } else { next } })
        })
    }

    fn trim<'a>(&'a self, at: &'a Partition, trim: Trim) -> Reply<'a, Trimmed> {
        Box::pin(async move {
            let trimmed = match trim.to {
                TrimTo::KeepBytes(keep) => self.move_mark_by_size(at, keep, trim.lossy).await?,
                _ => self.move_mark(at, trim).await?,
            };
            self.cut_stream(at, trimmed.trimmed).await?;
            Ok(trimmed)
        })
    }
}

impl RedisEngine {
    /// Makes or deletes a partition; true if there was something to do.
    async fn change_partition(&self, script: &Script, at: &Partition, rank: u64) -> Result<bool> {
        let keys = self.keys.partition(at);
        let own =
            [&keys.meta, &keys.stream, &keys.delayed, &keys.producers, &keys.producer_use, &keys.groups];
        let own = own.into_iter().chain([&keys.lease_version]).cloned();
        let call = script.keys(own.chain(GROUP_KINDS.map(|kind| keys.group_stem(kind))));
        let answer = self.steps.durable(script, call.arg(rank)).await?;
        answer.value().as_i64().map(|done| done == 1).ok_or_else(odd_answer)
    }

    async fn append_batch(&self, at: &Partition, batch: Append) -> Result<Appended> {
        batch.check()?;
        let count = batch.records.len() as u64;
        let (producer, first, keep) = match &batch.producer {
            Some(seq) if seq.first + count >= MAX_EXACT => {
                return Err(Error::invalid(
                    "a producer's sequence number must stay below 2^53 on this engine",
                ));
            }
            Some(seq) => (seq.name.as_str(), seq.first, seq.keep),
            None => ("", 0, Duration::ZERO),
        };
        let keys = self.keys.partition(at);
        let durability = batch.durability.unwrap_or(self.steps.durability());
        let is_plain = batch.producer.is_none() && batch.after.is_zero();
        if let Some(mark) = &batch.mark {
            return self.append_marked(at, &batch, mark, durability).await;
        }
        let blobs = blob::pack(batch.records.iter());
        if is_plain
            && durability == Durability::Fast
            && let Some(first) = self.append_optimistically(&keys, &blobs).await?
        {
            return Ok(Appended { first: Some(first), count, duplicate: false });
        }
        let room = blobs.iter().map(|blob| blob.len() + ARG).sum();
        if is_plain {
            let script = &SCRIPTS.append_plain;
            let call = script.keys([&keys.meta, &keys.stream]).with_room(room).args(blobs);
            let answer = self.steps.durable_as(durability, script, call).await?;
            let answer = StepSubject::partition(at).accept(answer)?;
            return appended(Parts::of(answer.value()), count);
        }
        let script = &SCRIPTS.append;
        let all = [&keys.meta, &keys.stream, &keys.delayed, &keys.producers, &keys.producer_use];
        let call = script.keys(all).arg(micros(batch.after)).arg(producer).arg(first).arg(count);
        let call = call.arg(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
        let (call, sent) = keys.clock.timed(call.with_room(room).args(blobs));
        let answer = self.steps.durable_as(durability, script, call).await?;
        let answer = StepSubject::partition(at).accept(answer)?;
        appended(keys.clock.heard(sent, answer.value())?, count)
    }

    async fn append_marked(
        &self,
        at: &Partition,
        batch: &Append,
        mark: &NewMark,
        durability: Durability,
    ) -> Result<Appended> {
        let blobs = blob::pack(batch.records.iter());
        let keys = self.keys.partition(at);
        let script = &SCRIPTS.append_marked;
        let stored = [&mark.epoch.0.to_be_bytes()[..], &mark.upto].concat();
        let room = blobs.iter().map(|blob| blob.len() + ARG).sum();
        let call = script.keys([&keys.meta, &keys.stream]).arg(mark.source.as_str()).arg(stored);
        let (call, sent) = keys.clock.timed(call.with_room(room).args(blobs));
        let answer = self.steps.durable_as(durability, script, call).await?;
        let answer = StepSubject::partition(at).accept(answer)?;
        appended(keys.clock.heard(sent, answer.value())?, batch.records.len() as u64)
    }

    /// Moves the mark up to which records are gone; from then on no reader sees them.
    async fn move_mark(&self, at: &Partition, trim: Trim) -> Result<Trimmed> {
        let keys = self.keys.partition(at);
        let (kind, value) = match trim.to {
            TrimTo::Id(id) => ("id", id.to_string()),
            TrimTo::Keep(count) => ("keep", count.to_string()),
            TrimTo::KeepBytes(_) => return Err(Error::invalid("retention by size has a step of its own")),
            TrimTo::OlderThan(age) => ("age", age.as_millis().to_string()),
        };
        let script = &SCRIPTS.trim;
        let stems = [keys.group_stem('g'), keys.group_stem('i')];
        let call = script
            .keys([&keys.meta, &keys.stream, &keys.groups, &stems[0], &stems[1]])
            .arg(kind)
            .arg(value)
            .arg(u8::from(trim.lossy));
        let answer = StepSubject::partition(at).accept(self.steps.quick(call).await?)?;
        let mut parts = Parts::of(answer.value());
        Ok(Trimmed { removed: parts.number()?, trimmed: parts.id()?, held_back: parts.number()? == 1 })
    }

    /// As [`move_mark`](Self::move_mark), by size: adds up what is new since the last time, then
    /// cuts, in bounded steps.
    async fn move_mark_by_size(&self, at: &Partition, keep: u64, lossy: bool) -> Result<Trimmed> {
        let keys = self.keys.partition(at);
        let stems = [keys.group_stem('g'), keys.group_stem('i')];
        let mut removed = 0;
        loop {
            let call = SCRIPTS
                .trim_size
                .keys([&keys.meta, &keys.stream, &keys.groups, &stems[0], &stems[1]])
                .arg(keep.min(MAX_EXACT))
                .arg(u8::from(lossy))
                .arg(SIZE_STEP)
                .arg(MAX_BATCH_BYTES);
            let answer = StepSubject::partition(at).accept(self.steps.quick(call).await?)?;
            let mut parts = Parts::of(answer.value());
            removed += parts.number()?;
            let trimmed = Trimmed { removed, trimmed: parts.id()?, held_back: parts.number()? == 1 };
            if parts.number()? == 0 {
                return Ok(trimmed);
            }
        }
    }

    /// Frees what lies before the mark, in bounded commands. What a lost connection leaves, the
    /// next trim frees.
    async fn cut_stream(&self, at: &Partition, mark: RecordId) -> Result<()> {
        let keys = self.keys.partition(at);
        loop {
            let trim = cmd("XTRIM").key(&keys.stream).arg("MINID").arg("~").arg(mark.plus(1).to_string());
            let gone: u64 =
                self.steps.client.call(trim.arg("LIMIT").arg(TRIM_STEP)).await.map_err(of_call)?;
            if gone == 0 {
                return Ok(());
            }
        }
    }
}

/// A mark as `append_marked.lua` keeps it; empty if there is none.
fn read_mark(stored: &Bytes) -> Result<Option<SourceMark>> {
    if stored.is_empty() {
        return Ok(None);
    }
    let (epoch, upto) = stored.split_first_chunk().ok_or_else(odd_answer)?;
    Ok(Some(SourceMark { epoch: Epoch(u64::from_be_bytes(*epoch)), upto: stored.slice_ref(upto) }))
}

/// What a script answers to an append.
fn appended(mut parts: Parts<'_>, count: u64) -> Result<Appended> {
    let duplicate = parts.number()? == 1;
    let id = parts.text()?;
    let first = if id.is_empty() { None } else { Some(id.parse().map_err(|_| odd_answer())?) };
    Ok(Appended { first, count, duplicate })
}
