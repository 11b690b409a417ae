//! Catch-up of parked gateways. If a gateway holds up a partition, a group of its own feeds it from
//! the topic until it has caught up.
//!
//! 1. *Park*: the node makes a group `<router's group>.gw.<gateway>` on the partition, just before
//!    the first event that the gateway has not let go of. Only then does the node release the
//!    gateway's live events. So at every moment some group keeps every event that the gateway has
//!    not accepted.
//! 2. *Feed*: the catch-up reader, a consumer of that group on this partition only, puts events
//!    into the same lane as it empties. The node leaves out live events for the gateway and
//!    remembers the last one that it left out.
//! 3. *Resume*: live events go into the lane again once the lane is calm and the catch-up reader
//!    has taken every event left out. They go on from the next one. When the events of the catch-up
//!    reader are settled, it removes the group. A group with dead letters stays, because they would
//!    vanish with it. The catch-up reader goes on until they are retried, deleted or expired.
//!
//! [`CatchUp`] decides all of that, per gateway and partition; it knows no task and no engine. The
//! [`Manager`] and the [`Reader`] do the I/O, and tell it what came of it.
//!
//! The group, with its mark in the catalog (`marks`), is also the durable sign that a gateway is
//! parked. The next owner of the partition finds it and goes on. A node makes, moves back and
//! removes such groups only under the hold with which it looked for them. If a node has lost the
//! partition since, knowingly or not, it changes none of them. So every group has an owner that
//! knows of it.

mod machine;
mod marks;
mod reader;

pub(super) use machine::{CatchUp, CatchUpAction, CatchUpEvent};

use super::lanes::Lanes;
use super::records::Source;
use super::slot::GatewaySlot;
use super::{FEED, RouterOptions, metrics, refusal};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{Item, ReleaseCause, Released};
use crate::name::GatewayId;
use crate::routing::slot_of;
use firth::{Broker, ConsumerHandle, DeadLetter, Epoch, GroupName, RecordId, SideGroups};
use marks::Marks;
use reader::Reader;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::task::TaskTracker;

/// How many dead letters are looked through at a time.
const LETTERS: usize = 100;

/// Catch-up of all gateways of a node.
pub(super) struct Manager {
    pub(super) broker: Broker,
    pub(super) handle: ConsumerHandle,
    pub(super) lanes: Arc<Lanes>,
    pub(super) options: RouterOptions,
    /// The ownerships for which parked gateways were looked up, by partition.
    owned: Mutex<HashMap<u32, SideGroups>>,
    marks: Marks,
    readers: TaskTracker,
}

/// A gateway that an earlier owner has parked.
struct ParkedBefore {
    gateway: GatewayId,
    behind: RecordId,
    mark: u64,
}

impl Manager {
    pub(super) fn new(
        broker: Broker,
        handle: ConsumerHandle,
        lanes: Arc<Lanes>,
        options: RouterOptions,
    ) -> Self {
        let marks = Marks::new(broker.catalog(), &options);
        Self { broker, handle, lanes, options, owned: Mutex::default(), marks, readers: TaskTracker::new() }
    }

    /// Takes a gateway off the live events of a partition, which were read up to `last`; false if
    /// it was off them before. It can be repeated, and makes certain what was doubtful.
    pub(super) async fn park(
        self: &Arc<Self>,
        slot: &Arc<GatewaySlot>,
        partition: u32,
        last: u64,
    ) -> Result<bool> {
        let side = self.side_groups(partition)?;
        let epoch = side.hold().epoch;
        loop {
            if self.epochs().get(&partition) != Some(&epoch) {
                return Err(not_ours());
            }
            let stepped = slot.stepped.notified();
            let lowest = slot.lane().lowest(partition);
            let first = lowest.and_then(|seq| self.lanes.records.id(partition, seq));
            let behind = first.map(|first| RecordId { seq: first.seq - 1, ..first });
            let park = CatchUpEvent::Park { owner: (epoch, side.clone()), behind, last };
            let actions = self.apply(slot, partition, park);
            if !actions.is_empty() {
                return self.perform(slot, partition, actions).await;
            }
            // A reader removes the group just now.
            stepped.await;
        }
    }

    /// As [`park`](Self::park), for a caller that tries again anyhow.
    pub(super) async fn try_to_park(self: &Arc<Self>, slot: &Arc<GatewaySlot>, partition: u32, last: u64) {
        if let Err(error) = self.park(slot, partition, last).await {
            tracing::warn!(gateway = %slot.gateway, partition, %error, "a gateway cannot be parked yet");
        }
    }

    /// Tells the catch-up of a gateway what happened; answers what is left to do.
    fn apply(
        &self,
        slot: &GatewaySlot,
        partition: u32,
        event: CatchUpEvent<SideGroups>,
    ) -> Vec<CatchUpAction<SideGroups>> {
        slot.apply(&self.lanes.records, partition, event)
    }

    /// Does what catch-up asks for. True if a gateway is parked that was not before.
    async fn perform(
        self: &Arc<Self>,
        slot: &Arc<GatewaySlot>,
        partition: u32,
        actions: Vec<CatchUpAction<SideGroups>>,
    ) -> Result<bool> {
        let mut todo = std::collections::VecDeque::from(actions);
        let mut is_parked = false;
        while let Some(action) = todo.pop_front() {
            match action {
                CatchUpAction::MakeGroup { hold, behind } => {
                    let epoch = hold.hold().epoch;
                    let made = self.make_group(&slot.gateway, partition, &hold, behind).await;
                    let (made, failed) = match made {
                        Ok(made) => (Some(made), None),
                        Err(error) => (None, Some(error)),
                    };
                    todo.extend(self.apply(slot, partition, CatchUpEvent::GroupMade { epoch, made }));
                    if let Some(error) = failed {
                        return Err(error);
                    }
                }
                CatchUpAction::TakeBackLetters { hold, from } => {
                    self.take_back_letters(&hold, slot, partition, from).await;
                }
                CatchUpAction::StartReader { hold } => self.start_reader(slot, partition, hold),
                CatchUpAction::TellParked => {
                    is_parked = true;
                    metrics::parking("parked");
                    tracing::info!(gateway = %slot.gateway, partition, "a gateway is parked: it is fed from the topic");
                }
                CatchUpAction::TellResumed => {
                    metrics::parking("resumed");
                    tracing::info!(gateway = %slot.gateway, partition, "a parked gateway has caught up");
                }
                // The slot has done these, and the reader does its own.
                CatchUpAction::LeaveToReader { .. }
                | CatchUpAction::Detach { .. }
                | CatchUpAction::DropLive
                | CatchUpAction::DropFed
                | CatchUpAction::StopReader
                | CatchUpAction::CloseReader
                | CatchUpAction::RemoveGroup { .. } => {}
            }
        }
        Ok(is_parked)
    }

    /// Marks and makes the group of a gateway, or moves back one that is left over. Returns where
    /// it begins, and the version of the mark.
    async fn make_group(
        &self,
        gateway: &GatewayId,
        partition: u32,
        side: &SideGroups,
        behind: Option<RecordId>,
    ) -> Result<(RecordId, u64)> {
        let behind = match behind {
            Some(behind) => behind,
            None => side.frontier().await?,
        };
        let group = self.group(gateway)?;
        let mark = self.marks.make(partition, gateway).await?;
        if !side.make(&group, behind).await? {
            side.move_back(&group, behind).await?;
        }
        Ok((behind, mark))
    }

    /// Removes the dead letters of events that the gateway is fed again: it may take them now, or
    /// they become letters of its own group. Without this there would be two of each.
    async fn take_back_letters(&self, side: &SideGroups, slot: &GatewaySlot, partition: u32, from: u64) {
        let ids = self.lanes.records.take_given_up(slot.gateway.as_str(), partition, from).await;
        if !ids.is_empty()
            && let Err(error) = side.take_back(&ids).await
        {
            tracing::warn!(gateway = %slot.gateway, partition, %error, "events that are fed again keep their dead letters");
        }
    }

    /// As [`take_back_letters`](Self::take_back_letters), of an owner that could not do it: the
    /// gateway is fed again everything behind `after`.
    async fn take_back_left(
        &self,
        side: &SideGroups,
        gateway: &GatewayId,
        (mut after, until): (RecordId, u64),
    ) -> Result<()> {
        loop {
            let page = side.dead_letters(after, LETTERS).await?;
            let Some(last) = page.last().map(|letter| letter.id.id) else { return Ok(()) };
            let is_theirs =
                |letter: &&DeadLetter| letter.id.id.seq <= until && refusal::is_alone(gateway, letter);
            let ids: Vec<_> = page.iter().filter(is_theirs).map(|letter| letter.id.id).collect();
            side.take_back(&ids).await?;
            if last.seq > until {
                return Ok(());
            }
            after = last;
        }
    }

    /// The partitions that this node owns.
    pub(super) fn epochs(&self) -> BTreeMap<u32, Epoch> {
        self.handle.epochs()
    }

    /// Leaves a live event out for a parked gateway.
    pub(super) fn skip(&self, slot: &GatewaySlot, item: &Item) {
        self.release(slot, item, ReleaseCause::Parked);
    }

    /// Makes a dead letter, which was replayed and finds no room, one again.
    pub(super) fn give_up(&self, slot: &GatewaySlot, item: &Item) {
        let why = "it is silent, and its queue is full: replay this when it takes events again";
        let cause = ReleaseCause::Dead(why.to_owned());
        slot.lane().pass(item.position.partition, &cause);
        self.release(slot, item, cause);
    }

    fn release(&self, slot: &GatewaySlot, item: &Item, cause: ReleaseCause) {
        let released = [Released { position: item.position, record_number: item.record_number, cause }];
        metrics::released(&released);
        self.lanes.records.release(slot.gateway.as_str(), &released);
    }

    /// Begins an ownership of the partition. What was read under an earlier one is let go: it comes
    /// again. The gateways that an earlier owner, perhaps this very node, has parked stay so.
    pub(super) async fn begin(self: &Arc<Self>, partition: u32, epoch: Epoch) -> Result<()> {
        self.lose(partition);
        let hold = self.handle.hold(partition).filter(|hold| hold.epoch == epoch).ok_or_else(not_ours)?;
        let side = self.broker.side_groups(&hold)?;
        // Earlier owners may have left out, for a parked gateway, any event up to the current end
        // of the partition.
        let last = side.end().await?.seq;
        let parked = self.parked_before(partition, &side, last).await?;
        self.owned().insert(partition, side.clone());
        for ParkedBefore { gateway, behind, mark } in parked {
            let slot = self.lanes.slot(&gateway);
            if self.lanes.registry.gateway(&gateway).is_none() {
                self.tell_all_moved();
            }
            let found = CatchUpEvent::Found { owner: (epoch, side.clone()), behind, last, mark };
            let actions = self.apply(&slot, partition, found);
            self.perform(&slot, partition, actions).await?;
        }
        Ok(())
    }

    /// The gateways that earlier owners have parked. Removes marks whose groups are gone.
    async fn parked_before(&self, partition: u32, side: &SideGroups, last: u64) -> Result<Vec<ParkedBefore>> {
        let groups = side.list().await?;
        let prefix = format!("{}{FEED}", self.options.group);
        let mut parked = Vec::new();
        let mut marks = self.marks.list().await?;
        for name in groups.iter().filter_map(|group| group.as_str().strip_prefix(&prefix)) {
            let marked = GatewayId::new(name).ok().and_then(|id| Some((id.clone(), marks.remove(&id)?)));
            let Some((gateway, places)) = marked else {
                tracing::warn!(
                    partition,
                    group = format!("{prefix}{name}"),
                    "this group is not the router's, though its name says so: delete it, it holds back retention"
                );
                continue;
            };
            let mark = match places.get(&partition) {
                Some(version) => *version,
                None => self.marks.make(partition, &gateway).await?,
            };
            let Some(status) = side.status(&self.group(&gateway)?).await? else { continue };
            let behind = status.frontier;
            self.take_back_left(side, &gateway, (behind, last)).await?;
            parked.push(ParkedBefore { gateway, behind, mark });
        }
        for (gateway, places) in marks {
            if let Some(version) = places.get(&partition) {
                self.unmark(side, partition, &gateway, *version).await?;
            }
        }
        Ok(parked)
    }

    /// A gateway is gone that an earlier owner has parked. Which subscriptions were its is not
    /// known any more: all that are spread may have missed events.
    fn tell_all_moved(&self) {
        let tables = self.lanes.registry.tables();
        let mut homes = HashMap::<_, Vec<_>>::new();
        for (tenant, id) in self.lanes.registry.hashed() {
            if let Some(home) = tables.of(&tenant).owner(slot_of(&id)) {
                homes.entry(home.clone()).or_default().push(id);
            }
        }
        for (home, subscriptions) in homes {
            self.lanes.slot(&home).move_in(subscriptions);
        }
    }

    /// Ends an ownership of the partition. Its live events that wait for gateways leave the lanes,
    /// and the next owner reads them again. Always all of them leave, to keep the order within each
    /// document. Catch-up readers take out their own events.
    pub(super) fn lose(&self, partition: u32) {
        self.owned().remove(&partition);
        for slot in self.lanes.all() {
            slot.lose_partition(&self.lanes.records, partition);
        }
        self.lanes.records.give_back(partition, Source::Live);
    }

    /// Clears lanes of what was on its way when its partition went to another node, and has come
    /// back since.
    pub(super) fn clear(&self) {
        for slot in self.lanes.all() {
            let foreign = slot.lane().foreign();
            for partition in foreign.into_iter().filter(|partition| !self.epochs().contains_key(partition)) {
                metrics::released(&slot.lane().park(partition, 0));
                if !slot.stands(partition, CatchUp::has_reader) {
                    metrics::released(&slot.lane().drop_fed(partition));
                }
            }
        }
    }

    /// Ends all catch-up readers; their groups stay for the next owner.
    pub(super) async fn close(&self) {
        self.lanes.stop.cancel();
        self.readers.close();
        self.readers.wait().await;
    }

    fn start_reader(self: &Arc<Self>, slot: &Arc<GatewaySlot>, partition: u32, side: SideGroups) {
        let catch_up = Arc::clone(self);
        let stop = slot.stop_of(partition);
        let slot = Arc::clone(slot);
        self.readers.spawn(Reader { catch_up, slot, partition, side, stop }.run());
    }

    /// Removes the mark of a group that is gone from a partition. A partition that was added
    /// since may have the group without a mark: it gets one first, so that its owner ends it.
    async fn unmark(
        &self,
        side: &SideGroups,
        partition: u32,
        gateway: &GatewayId,
        version: u64,
    ) -> Result<()> {
        let group = self.group(gateway)?;
        let marked: BTreeSet<u32> =
            self.marks.list().await?.remove(gateway).unwrap_or_default().into_keys().collect();
        for other in side.partitions_of(&group).await? {
            if !marked.contains(&other) {
                self.marks.make_missing(other, gateway).await?;
            }
        }
        self.marks.remove(partition, gateway, version).await
    }

    /// The groups beside the router's own, under the hold with which parked gateways were looked
    /// up.
    fn side_groups(&self, partition: u32) -> Result<SideGroups> {
        self.owned().get(&partition).cloned().ok_or_else(not_ours)
    }

    fn group(&self, gateway: &GatewayId) -> Result<GroupName> {
        Ok(GroupName::new(format!("{}{FEED}{gateway}", self.options.group))?)
    }

    fn owned(&self) -> MutexGuard<'_, HashMap<u32, SideGroups>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_ours() -> Error {
    Error::new(ErrorKind::Unavailable, "the partition is another node's now")
}
