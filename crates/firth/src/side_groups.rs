//! [`SideGroups`]: groups that the owner of a partition makes, moves and removes under its hold.

use crate::broker::Broker;
use crate::dead_letters::DeadLetter;
use crate::error::{Error, ErrorKind, Result, invalid};
use firth_engine::facet::{Reset, StartPosition};
use firth_engine::limits::MAX_VERDICTS;
use firth_engine::{Engine, GroupName, Hold, LeaseName, Partition, RecordId};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::fmt;

/// Most dead letters of one page.
const MAX_PAGE: usize = 1000;
/// How many partitions are asked at a time.
const PARTITIONS_AT_ONCE: usize = 16;

/// The groups beside the owner's own on one partition, in the hands of the partition's owner.
///
/// An owner that cannot give a record to one of its receivers now makes a group for that receiver:
/// the group keeps the record from retention, while the owner settles it in its own group. Each
/// change happens under the hold. The engine checks the hold in the same step. If the partition has
/// another owner by then, the change is refused as [`Fenced`](ErrorKind::Fenced) and changes
/// nothing.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # let broker = firth::Broker::memory(); broker.create_topic("changes").await?;
/// let consumer = broker.consumer("changes", "router").await?;
/// let handle = consumer.handle();
/// handle.assigned(|owned| owned.contains(&0)).await;
/// let hold = handle.hold(0).expect("it owns the partition");
/// let side = broker.side_groups(&hold)?;
/// let slow = firth::GroupName::new("router.slow")?;
/// assert!(side.make(&slow, side.frontier().await?).await?);
/// assert_eq!(side.list().await?, [slow.clone()]);
/// assert!(side.remove(&slow).await?);
/// # consumer.close().await?; broker.close().await }).unwrap();
/// ```
#[derive(Clone)]
pub struct SideGroups {
    broker: Broker,
    at: Partition,
    owner: GroupName,
    hold: Hold,
}

/// Where a side group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SideGroupStatus {
    /// Everything up to here is done, due or dead.
    pub frontier: RecordId,
    /// Records that wait for another attempt.
    pub due: u64,
    /// Dead letters.
    pub dead: u64,
}

impl SideGroups {
    pub(crate) fn new(broker: Broker, hold: &Hold) -> Result<Self> {
        let LeaseName::Group { at, group } = hold.lease.clone() else {
            return Err(invalid("the hold is not that of a group's partition: take it from a consumer"));
        };
        Ok(Self { broker, at, owner: group, hold: hold.clone() })
    }

    /// The hold under which every change happens.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The groups of the partition beside the owner's own, sorted by name.
    pub async fn list(&self) -> Result<Vec<GroupName>> {
        let mut groups = self.engine().groups(&self.at).await?;
        groups.retain(|group| *group != self.owner);
        Ok(groups)
    }

    /// Makes a group that gets every record after this one; true if there was none of this name,
    /// otherwise nothing changes.
    pub async fn make(&self, group: &GroupName, after: RecordId) -> Result<bool> {
        self.check(group)?;
        self.engine().create_group(&self.at, group, StartPosition::After(after), Some(&self.hold)).await
    }

    /// Moves a group so that it gets every record after this one; a group that gets them already
    /// stays where it is. Records that wait for another attempt stay due. `NotFound` if there is no
    /// such group.
    pub async fn move_back(&self, group: &GroupName, after: RecordId) -> Result<()> {
        self.check(group)?;
        if self.engine().status(&self.at, group).await?.frontier > after {
            let back = Reset { to: StartPosition::After(after), drop_due: false };
            self.engine().reset(&self.at, group, back, Some(&self.hold)).await?;
        }
        Ok(())
    }

    /// Removes a group with its dead letters; true if it was there.
    pub async fn remove(&self, group: &GroupName) -> Result<bool> {
        self.check(group)?;
        self.engine().delete_group(&self.at, group, Some(&self.hold)).await
    }

    /// Where a group stands; `None` if there is no such group.
    pub async fn status(&self, group: &GroupName) -> Result<Option<SideGroupStatus>> {
        match self.engine().status(&self.at, group).await {
            Ok(status) => {
                let frontier = status.frontier;
                let due = status.due;
                let dead = status.dead;
                Ok(Some(SideGroupStatus { frontier, due, dead }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The partitions of the topic that have a group of this name, in order.
    pub async fn partitions_of(&self, group: &GroupName) -> Result<Vec<u32>> {
        let partitions = self.broker.topic(self.at.topic.as_str()).await?.partitions();
        let look = |at: Partition| async move {
            let has_it = self.engine().groups(&at).await?.contains(group);
            Ok::<_, Error>(has_it.then_some(at.index))
        };
        let found = stream::iter(partitions).map(look).buffered(PARTITIONS_AT_ONCE);
        let found: Vec<_> = found.try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Record up to which the owner's own group has settled everything.
    pub async fn frontier(&self) -> Result<RecordId> {
        Ok(self.engine().status(&self.at, &self.owner).await?.frontier)
    }

    /// The newest record of the partition.
    pub async fn end(&self) -> Result<RecordId> {
        Ok(self.engine().bounds(&self.at).await?.last)
    }

    /// Dead letters of the owner's own group after this record, in order, at most `max` and about
    /// 8 MiB; none means that there are no more.
    pub async fn dead_letters(&self, after: RecordId, max: usize) -> Result<Vec<DeadLetter>> {
        let found = self.engine().dead(&self.at, &self.owner, after, max.clamp(1, MAX_PAGE)).await?;
        Ok(found.into_iter().map(DeadLetter::new).collect())
    }

    /// Removes dead letters of the owner's own group, because a side group delivers their records
    /// again. Returns how many there were.
    pub async fn take_back(&self, letters: &[RecordId]) -> Result<u64> {
        let mut taken = 0;
        for letters in letters.chunks(MAX_VERDICTS) {
            taken += self.engine().delete_dead(&self.at, &self.owner, letters).await? as u64;
        }
        Ok(taken)
    }

    /// The owner's own group is none of them.
    fn check(&self, group: &GroupName) -> Result<()> {
        if *group == self.owner {
            let context = format!("group {group} is the owner's own and no side group: name another one");
            return Err(invalid(context).with_field("group"));
        }
        Ok(())
    }

    fn engine(&self) -> &Engine {
        self.broker.engine()
    }
}

impl fmt::Debug for SideGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SideGroups({} beside {}, epoch {})", self.at, self.owner, self.hold.epoch.0)
    }
}
