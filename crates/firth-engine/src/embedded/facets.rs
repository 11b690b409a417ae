//! The facets of the embedded engine: each call checks what needs no stored state, then runs its
//! step.

use super::Embedded;
use super::step::Step;
use super::steps::catalog::Listing;
use super::steps::dead::Taken;
use super::steps::log::PackedAppend;
use super::steps::partitions::FormerPartition;
use super::steps::{catalog, commit, dead, delayed, due, groups, leases, log, marks, partitions, trim};
use crate::checks;
use crate::commit::Commit;
use crate::durability::Durability;
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{
    Acquire, Acquired, Adopt, Append, Appended, Backend, Bounds, Bus, Catalog, Committed, DeadLetter,
    DeadLetters, DelayedAction, DelayedOutcome, DelayedPage, Due, Edit, Entry, EntryKey, Expect, GroupStatus,
    Groups, LeaseQuery, Leases, Log, Pending, Promoted, Put, ReadLimit, Replay, Reply, Reset, SourceMark,
    StartPosition, StreamGroup, Streams, Subscription, TakeDue, Trim, Trimmed,
};
use crate::hold::{Hold, LeaseInfo, LeaseName};
use crate::id::RecordId;
use crate::name::{ChannelName, GroupName, Partition, SourceName, SpaceName};
use crate::progress::Progress;
use crate::record::Record;
use crate::watch::{Hint, HintKey, Hints};
use bytes::Bytes;
use std::collections::HashSet;
use std::time::Duration;

/// About what a small step costs in memory while it waits.
const SMALL: usize = 256;

impl Embedded {
    /// Removes what deleted partitions and groups left behind, in bounded steps.
    async fn sweep(&self) -> Result<()> {
        while self.driver.change(SMALL, partitions::sweep).await? {}
        Ok(())
    }
}

impl Log for Embedded {
    fn create_partition_as<'a>(&'a self, at: &'a Partition, rank: u64) -> Reply<'a, bool> {
        Box::pin(async move {
            let name = at.clone();
            let change = move |step: &mut Step<'_>| partitions::create(step, &name, rank);
            let former = self.driver.change(SMALL, change).await?;
            if former == FormerPartition::Replaced {
                self.sweep().await?;
            }
            Ok(former != FormerPartition::Stays)
        })
    }

    fn delete_partition_as<'a>(&'a self, at: &'a Partition, rank: u64) -> Reply<'a, bool> {
        Box::pin(async move {
            let name = at.clone();
            let change = move |step: &mut Step<'_>| partitions::delete(step, &name, rank);
            let was_there = self.driver.change(SMALL, change).await?;
            self.driver.forget_damage(at);
            self.sweep().await?;
            Ok(was_there)
        })
    }

    fn append<'a>(&'a self, at: &'a Partition, batch: Append) -> Reply<'a, Appended> {
        Box::pin(async move {
            batch.check().map_err(|error| error.during(format_args!("append to {at}")))?;
            batch.durability.map_or(Ok(()), |durability| self.driver.can_promise(durability))?;
            let records: Vec<_> = batch.records.iter().map(log::pack).collect();
            let cost = records.iter().map(Vec::len).sum();
            let Append { after, producer, mark, durability, .. } = batch;
            let packed = PackedAppend { records, after, producer, mark, durability };
            let at = at.clone();
            self.driver.change(cost, move |step| log::append(step, &at, packed)).await
        })
    }

    fn mark<'a>(&'a self, at: &'a Partition, source: &'a SourceName) -> Reply<'a, Option<SourceMark>> {
        let at = at.clone();
        let source = source.clone();
        Box::pin(self.driver.look(move |step| marks::mark(step, &at, &source)))
    }

    fn forget_source<'a>(&'a self, at: &'a Partition, source: &'a SourceName) -> Reply<'a, bool> {
        let at = at.clone();
        let source = source.clone();
        Box::pin(self.driver.change(SMALL, move |step| marks::forget(step, &at, &source)))
    }

    fn read<'a>(&'a self, at: &'a Partition, after: RecordId, max: ReadLimit) -> Reply<'a, Vec<Record>> {
        Box::pin(async move {
            let name = at.clone();
            let answer = self.driver.look(move |step| log::read(step, &name, after, max)).await;
            self.driver.readable(at, answer)
        })
    }

    fn bounds<'a>(&'a self, at: &'a Partition) -> Reply<'a, Bounds> {
        let at = at.clone();
        Box::pin(self.driver.look(move |step| log::bounds(step, &at)))
    }

    fn delayed<'a>(&'a self, at: &'a Partition, after: RecordId, max: ReadLimit) -> Reply<'a, DelayedPage> {
        let at = at.clone();
        Box::pin(self.driver.look(move |step| delayed::page(step, &at, after, max)))
    }

    fn change_delayed<'a>(
        &'a self,
        at: &'a Partition,
        id: RecordId,
        action: DelayedAction,
    ) -> Reply<'a, DelayedOutcome> {
        let at = at.clone();
        Box::pin(self.driver.change(SMALL, move |step| delayed::change(step, &at, id, action)))
    }

    fn promote_due<'a>(&'a self, at: &'a Partition, max: usize) -> Reply<'a, Promoted> {
        let at = at.clone();
        Box::pin(self.driver.change(SMALL, move |step| log::promote_due(step, &at, max)))
    }

    fn trim<'a>(&'a self, at: &'a Partition, to: Trim) -> Reply<'a, Trimmed> {
        Box::pin(async move {
            let mut removed = 0;
            loop {
                let at = at.clone();
                let cut = self.driver.change(SMALL, move |step| trim::trim(step, &at, to)).await?;
                removed += cut.trimmed.removed;
                if !cut.more {
                    return Ok(Trimmed { removed, ..cut.trimmed });
                }
            }
        })
    }
}

impl Streams for Embedded {
    fn stream_mark<'a>(&'a self, stream: &'a str, _: StartPosition) -> Reply<'a, RecordId> {
        Box::pin(async move { Err(no_streams(stream)) })
    }

    fn adopt<'a>(&'a self, _: &'a Partition, adopt: Option<Adopt>, _: u64) -> Reply<'a, bool> {
        Box::pin(async move { adopt.map_or(Ok(true), |adopt| Err(no_streams(&adopt.stream))) })
    }

    fn stream_group<'a>(&'a self, at: &'a Partition, _: &'a str) -> Reply<'a, StreamGroup> {
        Box::pin(async move { Err(no_streams(at.topic.as_str())) })
    }
}

fn no_streams(name: &str) -> Error {
    let context =
        format!("stream {name} cannot be followed here: only Redis and Valkey have streams of others");
    Error::new(ErrorKind::Unsupported, context)
}

impl Groups for Embedded {
    fn create_group<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        from: StartPosition,
        by: Option<&'a Hold>,
    ) -> Reply<'a, bool> {
        let at = at.clone();
        let group = group.clone();
        let by = by.cloned();
        let create = move |step: &mut Step<'_>| groups::create(step, &at, &group, from, by.as_ref());
        Box::pin(self.driver.change(SMALL, create))
    }

    fn open<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        from: StartPosition,
        hold: &'a Hold,
    ) -> Reply<'a, Progress> {
        let at = at.clone();
        let group = group.clone();
        let hold = hold.clone();
        Box::pin(self.driver.change(SMALL, move |step| groups::open(step, &at, &group, from, &hold)))
    }

    fn commit<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        hold: &'a Hold,
        commit: Commit,
    ) -> Reply<'a, Committed> {
        Box::pin(async move {
            commit.check().map_err(|error| error.during(format_args!("commit of {group} on {at}")))?;
            let cost = SMALL + commit.dead.iter().map(|dead| dead.record.content.packed_len()).sum::<usize>();
            let at = at.clone();
            let group = group.clone();
            let hold = hold.clone();
            self.driver.change(cost, move |step| commit::commit(step, &at, &group, &hold, &commit)).await
        })
    }

    fn due<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        hold: &'a Hold,
        take: TakeDue<'a>,
    ) -> Reply<'a, Due> {
        let name = at.clone();
        let group = group.clone();
        let hold = hold.clone();
        let max = take.max;
        let known: HashSet<RecordId> = take.known.iter().copied().collect();
        Box::pin(async move {
            let take = move |step: &mut Step<'_>| due::take(step, &name, &group, &hold, (max, &known));
            let answer = self.driver.change(SMALL, take).await;
            self.driver.readable(at, answer)
        })
    }

    fn status<'a>(&'a self, at: &'a Partition, group: &'a GroupName) -> Reply<'a, GroupStatus> {
        let at = at.clone();
        let group = group.clone();
        Box::pin(self.driver.look(move |step| groups::status(step, &at, &group)))
    }

    fn groups<'a>(&'a self, at: &'a Partition) -> Reply<'a, Vec<GroupName>> {
        let at = at.clone();
        Box::pin(self.driver.look(move |step| groups::list(step, &at)))
    }

    fn pending<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        after: RecordId,
        max: usize,
    ) -> Reply<'a, Vec<Pending>> {
        let at = at.clone();
        let group = group.clone();
        Box::pin(self.driver.look(move |step| due::pending(step, &at, &group, after, max)))
    }

    fn reset<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        reset: Reset,
        by: Option<&'a Hold>,
    ) -> Reply<'a, RecordId> {
        let at = at.clone();
        let group = group.clone();
        let by = by.cloned();
        let change = move |step: &mut Step<'_>| groups::reset(step, &at, &group, reset, by.as_ref());
        Box::pin(self.driver.change(SMALL, change))
    }

    fn delete_group<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        by: Option<&'a Hold>,
    ) -> Reply<'a, bool> {
        Box::pin(async move {
            let at = at.clone();
            let group = group.clone();
            let by = by.cloned();
            let delete = move |step: &mut Step<'_>| groups::delete(step, &at, &group, by.as_ref());
            let was_there = self.driver.change(SMALL, delete).await?;
            self.sweep().await?;
            Ok(was_there)
        })
    }
}

impl DeadLetters for Embedded {
    fn dead<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        after: RecordId,
        max: usize,
    ) -> Reply<'a, Vec<DeadLetter>> {
        let at = at.clone();
        let group = group.clone();
        Box::pin(self.driver.look(move |step| dead::list(step, &at, &group, after, max)))
    }

    fn dead_ids<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        after: RecordId,
        max: usize,
    ) -> Reply<'a, Vec<RecordId>> {
        let at = at.clone();
        let group = group.clone();
        Box::pin(self.driver.look(move |step| dead::list_ids(step, &at, &group, after, max)))
    }

    fn replay<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        ids: &'a [RecordId],
        to: Replay,
    ) -> Reply<'a, usize> {
        Box::pin(async move {
            checks::dead_letters(ids)?;
            let at = at.clone();
            let group = group.clone();
            let ids = ids.to_vec();
            self.driver
                .change(SMALL, move |step| dead::replay(step, &at, &group, Taken { ids, edited: None, to }))
                .await
        })
    }

    fn replay_edited<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        edit: Edit,
        to: Replay,
    ) -> Reply<'a, bool> {
        Box::pin(async move {
            let Edit { id, content } = edit;
            content.check()?;
            let at = at.clone();
            let group = group.clone();
            let cost = content.packed_len();
            let taken = Taken { ids: vec![id], edited: Some(content.packed()), to };
            Ok(self.driver.change(cost, move |step| dead::replay(step, &at, &group, taken)).await? > 0)
        })
    }

    fn delete_dead<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        ids: &'a [RecordId],
    ) -> Reply<'a, usize> {
        Box::pin(async move {
            checks::dead_letters(ids)?;
            let at = at.clone();
            let group = group.clone();
            let ids = ids.to_vec();
            self.driver.change(SMALL, move |step| dead::delete(step, &at, &group, &ids)).await
        })
    }

    fn expire_dead<'a>(&'a self, at: &'a Partition, group: &'a GroupName, age: Duration) -> Reply<'a, usize> {
        let at = at.clone();
        let group = group.clone();
        Box::pin(self.driver.change(SMALL, move |step| dead::expire(step, &at, &group, age)))
    }
}

impl Leases for Embedded {
    fn acquire<'a>(&'a self, request: Acquire) -> Reply<'a, Acquired> {
        Box::pin(async move {
            checks::request(&request)?;
            self.driver.change(SMALL, move |step| leases::acquire(step, &request)).await
        })
    }

    fn renew<'a>(&'a self, holds: &'a [Hold], ttl: Duration) -> Reply<'a, Vec<bool>> {
        Box::pin(async move {
            checks::renewal(holds.len())?;
            checks::ttl(ttl)?;
            let holds = holds.to_vec();
            self.driver.change(SMALL * holds.len(), move |step| leases::renew(step, &holds, ttl)).await
        })
    }

    fn release<'a>(&'a self, hold: &'a Hold) -> Reply<'a, bool> {
        let hold = hold.clone();
        Box::pin(self.driver.change(SMALL, move |step| leases::release(step, &hold)))
    }

    fn revoke<'a>(&'a self, name: &'a LeaseName) -> Reply<'a, bool> {
        let name = name.clone();
        Box::pin(self.driver.change(SMALL, move |step| leases::revoke(step, &name)))
    }

    fn leases<'a>(&'a self, query: &'a LeaseQuery) -> Reply<'a, Vec<LeaseInfo>> {
        let query = query.clone();
        Box::pin(self.driver.look(move |step| leases::list(step, &query)))
    }
}

impl Catalog for Embedded {
    fn get<'a>(&'a self, key: &'a EntryKey) -> Reply<'a, Option<Entry>> {
        let key = key.clone();
        Box::pin(self.driver.look(move |step| catalog::get(step, &key)))
    }

    fn put<'a>(&'a self, key: &'a EntryKey, value: Bytes, expect: Expect) -> Reply<'a, Put> {
        Box::pin(async move {
            checks::entry(&value)?;
            let key = key.clone();
            self.driver
                .change(value.len(), move |step| catalog::change(step, &key, Some(value), expect))
                .await
        })
    }

    fn remove<'a>(&'a self, key: &'a EntryKey, expect: Expect) -> Reply<'a, Put> {
        let key = key.clone();
        Box::pin(self.driver.change(SMALL, move |step| catalog::change(step, &key, None, expect)))
    }

    fn list<'a>(
        &'a self,
        space: &'a SpaceName,
        prefix: &'a str,
        after: &'a str,
        max: usize,
    ) -> Reply<'a, Vec<Entry>> {
        let listing =
            Listing { space: space.clone(), prefix: prefix.to_owned(), after: after.to_owned(), max };
        Box::pin(self.driver.look(move |step| catalog::list(step, &listing)))
    }
}

impl Bus for Embedded {
    fn publish<'a>(&'a self, channel: &'a ChannelName, payload: Bytes) -> Reply<'a, ()> {
        Box::pin(async move {
            checks::signal(&payload)?;
            self.bus.publish(channel, &payload);
            Ok(())
        })
    }

    fn subscribe<'a>(&'a self, channel: &'a ChannelName) -> Reply<'a, Subscription> {
        Box::pin(async move { Ok(self.bus.subscribe(channel)) })
    }
}

impl Hints for Embedded {
    fn hint(&self, key: HintKey) -> Hint {
        self.driver.hints.listen(key)
    }
}

impl Backend for Embedded {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn can_promise(&self, durability: Durability) -> Reply<'_, ()> {
        let answer = self.driver.can_promise(durability);
        Box::pin(async { answer })
    }

    fn health(&self) -> Result<()> {
        self.driver.health()
    }

    fn takes_appends(&self) -> Result<()> {
        self.driver.takes_appends()
    }

    #[cfg(feature = "embedded")]
    fn backup(&self) -> Reply<'_, crate::backup::Backup> {
        Box::pin(self.driver.backup())
    }

    fn close(&self) -> Reply<'_, ()> {
        Box::pin(async move {
            self.bus.close();
            self.driver.close().await
        })
    }
}
