//! Groups in figures: exact lag, oldest age, members, owners with heartbeats; resetting and
//! deleting them.

use super::{Admin, PARTITIONS_AT_ONCE, names};
use crate::consumer::{Note, StartAt, forget_members, member_pool};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::topic::Topics;
use firth_engine::facet::{GroupStatus, LeaseQuery, Reset};
use firth_engine::{Backoff, Epoch, GroupName, LeaseInfo, LeaseName, Partition, RecordId, TopicName};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::collections::BTreeSet;
use std::time::Duration;

/// The pauses between two looks at a group that is not drained.
const DRAINED_STEPS: Backoff = Backoff::exponential(Duration::from_millis(5), Duration::from_millis(500));

/// A group in figures, over all partitions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupInfo {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// Each partition on which it is.
    pub partitions: Vec<GroupPartition>,
    /// Everyone who is a member now.
    pub members: Vec<MemberInfo>,
}

impl GroupInfo {
    /// Records that are not settled: waiting, in flight or due.
    pub fn lag(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.waiting + partition.due).sum()
    }

    /// Records that wait for another attempt.
    pub fn due(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.due).sum()
    }

    /// Dead letters.
    pub fn dead(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.dead).sum()
    }

    /// The age of the oldest record that was never settled nor tried; `None` if none waits.
    pub fn oldest(&self) -> Option<Duration> {
        self.partitions.iter().filter_map(|partition| partition.oldest).max()
    }
}

/// A group on one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupPartition {
    /// Which partition.
    pub index: u32,
    /// Everything up to here is done, due or dead.
    pub frontier: RecordId,
    /// Records waiting or in flight.
    pub waiting: u64,
    /// Records that wait for another attempt, running ones included.
    pub due: u64,
    /// When the next of them is due.
    pub next_due: Option<Duration>,
    /// Dead letters.
    pub dead: u64,
    /// The age of the oldest waiting record.
    pub oldest: Option<Duration>,
    /// Owners in a row that vanished without getting anywhere.
    pub crashes: u32,
    /// Who owns it now.
    pub owner: Option<Owner>,
}

/// Who owns a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owner {
    /// The member.
    pub member: String,
    /// Grows with each change of owner.
    pub epoch: Epoch,
    /// How long it stays the owner without another heartbeat.
    pub remaining: Duration,
    /// Heartbeats so far.
    pub beats: u64,
}

impl Owner {
    fn of(lease: LeaseInfo) -> Option<Self> {
        let held = lease.is_held();
        let LeaseInfo { holder, epoch, remaining, beats, .. } = lease;
        holder.filter(|_| held).map(|holder| Self { member: holder.to_string(), epoch, remaining, beats })
    }
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberInfo {
    /// Its name.
    pub name: String,
    /// The partitions that it owns.
    pub owns: BTreeSet<u32>,
    /// The partitions that it pinned.
    pub pins: BTreeSet<u32>,
    /// The most partitions that it takes; `None`: any number.
    pub max_partitions: Option<u32>,
    /// How long it stays a member without another heartbeat.
    pub remaining: Duration,
    /// Heartbeats so far.
    pub beats: u64,
    /// What kind of program it is ([`ConsumerConfig::kind`](crate::ConsumerConfig::kind)), as it
    /// says.
    pub kind: Option<String>,
    /// The machine on which it runs, and the number of its process there.
    pub host: Option<String>,
    /// See `host`.
    pub pid: Option<u32>,
}

impl Admin {
    /// The names of all groups of a topic, sorted.
    pub async fn groups(&self, topic: &str) -> Result<Vec<GroupName>> {
        let partitions = stream::iter(self.broker.topic(topic).await?.partitions());
        let found = partitions.map(|at| async move { self.engine().groups(&at).await });
        let found: Vec<_> = found.buffered(PARTITIONS_AT_ONCE).try_collect().await?;
        let all: BTreeSet<_> = found.into_iter().flatten().collect();
        Ok(all.into_iter().collect())
    }

    /// Makes a group that starts at `start` on every partition, before any member joins; where it
    /// exists already it stays as it is.
    pub async fn create_group(&self, topic: &str, group: &str, start: StartAt) -> Result<()> {
        let (topic, group) = names(topic, group)?;
        let info = self.broker.topic(topic.as_str()).await?;
        let topics = Topics::new(self.engine().clone());
        topics.make_group(&info, &group, start.into(), &BTreeSet::new()).await
    }

    /// A group in figures.
    pub async fn group(&self, topic: &str, group: &str) -> Result<GroupInfo> {
        let (topic, group) = names(topic, group)?;
        let look = |at: Partition| {
            let group = &group;
            async move {
                let status = self.engine().status(&at, group).await;
                status.map(|status| GroupPartition::new(at.index, status))
            }
        };
        let found = stream::iter(self.fresh(topic.as_str()).await?.partitions()).map(look);
        let partitions = where_it_is(found.buffered(PARTITIONS_AT_ONCE).collect().await)?;
        let pool = member_pool(&topic, &group);
        let leases = self.engine().leases(&LeaseQuery::Pool(pool)).await?;
        let members = leases.into_iter().filter(LeaseInfo::is_held);
        let members = members.filter_map(|lease| member(&lease, &partitions)).collect();
        let info = GroupInfo { topic, group, partitions, members };
        metrics::seen_group(&info);
        Ok(info)
    }

    /// Waits until the group has nothing to do: no record waits, is in flight or is due for another
    /// attempt. Dead letters do not count, nor do delayed messages whose time has not come. For the
    /// end of batch jobs and tests, as in `run.until(admin.drained("orders", "billing"))`.
    ///
    /// It asks the engine in growing steps of up to half a second.
    pub fn drained(&self, topic: &str, group: &str) -> impl Future<Output = Result<()>> + Send + use<> {
        let admin = self.clone();
        let topic = topic.to_owned();
        let group = group.to_owned();
        async move {
            let mut asked = 0;
            while admin.group(&topic, &group).await?.lag() > 0 {
                asked += 1;
                tokio::time::sleep(DRAINED_STEPS.delay(asked)).await;
            }
            Ok(())
        }
    }

    /// Moves a group on every partition, and fences its owners in the same step: they open again at
    /// the new position. Dead letters stay, and so do records that wait for another attempt unless
    /// the reset drops them.
    pub async fn reset_group(&self, topic: &str, group: &str, reset: Reset) -> Result<()> {
        let (topic, group) = names(topic, group)?;
        let mut moved = Vec::new();
        for at in self.broker.topic(topic.as_str()).await?.partitions() {
            moved.push(self.engine().reset(&at, &group, reset, None).await);
        }
        where_it_is(moved).map(drop)
    }

    /// Deletes a group with everything that waits for it and its dead letters. Refused while it has
    /// members: they would make it again.
    pub async fn delete_group(&self, topic: &str, group: &str) -> Result<bool> {
        let (topic, group) = names(topic, group)?;
        let members = self.engine().leases(&LeaseQuery::Pool(member_pool(&topic, &group))).await?;
        let alive = members.iter().filter(|lease| lease.is_held()).count();
        if alive > 0 {
            let context = format!("group {group} of {topic} has {alive} members: close its consumers first");
            return Err(Error::new(ErrorKind::Invalid, context));
        }
        let mut was_there = false;
        for at in self.broker.topic(topic.as_str()).await?.partitions() {
            was_there |= self.engine().delete_group(&at, &group, None).await?;
        }
        forget_members(self.engine(), &topic, &group).await?;
        Ok(was_there)
    }

    /// Takes a partition away from its owner; the member that the plan names takes it next. False
    /// if the partition never had an owner.
    pub async fn force_release(&self, topic: &str, group: &str, partition: u32) -> Result<bool> {
        let (topic, group) = names(topic, group)?;
        self.engine().revoke(&LeaseName::group(&Partition::new(topic, partition), &group)).await
    }
}

/// What was found where the group is: one that a unit's data is read with need not be on every
/// partition. A group that is nowhere is `NotFound`.
pub(super) fn where_it_is<T>(found: Vec<Result<T>>) -> Result<Vec<T>> {
    let mut there = Vec::new();
    let mut nowhere = None;
    for one in found {
        match one {
            Ok(one) => there.push(one),
            Err(error) if error.kind() == ErrorKind::NotFound => nowhere = Some(error),
            Err(error) => return Err(error),
        }
    }
    match nowhere {
        Some(error) if there.is_empty() => Err(error),
        _ => Ok(there),
    }
}

impl GroupPartition {
    fn new(index: u32, status: GroupStatus) -> Self {
        let GroupStatus { frontier, waiting, due, next_due, dead, oldest, crashes, owner, .. } = status;
        let owner = owner.and_then(Owner::of);
        Self { index, frontier, waiting, due, next_due, dead, oldest, crashes, owner }
    }
}

fn member(lease: &LeaseInfo, partitions: &[GroupPartition]) -> Option<MemberInfo> {
    let name = lease.holder.as_ref()?.to_string();
    let owned = partitions
        .iter()
        .filter(|partition| partition.owner.as_ref().is_some_and(|owner| owner.member == name));
    let owns = owned.map(|partition| partition.index).collect();
    let Note { pins, most: max_partitions, kind, host, pid, .. } = Note::of(lease);
    let remaining = lease.remaining;
    let beats = lease.beats;
    Some(MemberInfo { name, owns, pins, max_partitions, remaining, beats, kind, host, pid })
}
