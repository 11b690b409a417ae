//! Parked gateways: whoever holds up a partition is fed from the topic instead, by a group of its own, until it has caught up.
//!
//! 1. *Park*: a group `<router's group>.gw.<gateway>` is made on the partition, just before the first event that the gateway has not let go of. Only
//!    then are its live events released, so at every moment some group keeps every event that the gateway has not accepted.
//! 2. *Feed*: a consumer of that group, pinned to the partition, puts events into the same lane as it empties. Live events for the gateway are left
//!    out, and the last one left out is remembered.
//! 3. *Resume*: once the feeder has taken everything that was left out and the lane is calm, live events go into the lane again, from the next one on.
//!    When the feeder's events are settled its group is removed. A group with dead letters stays, and the gateway is fed on, until they are retried,
//!    deleted or expired: they would vanish with it.
//!
//! The group, with its mark in the catalog (`marks`), is also the durable sign that a gateway is parked: whoever owns the partition next finds it and goes on. So it is made, moved back and
//! removed only under the hold with which its node looked for such groups: whoever lost the partition since, knowing or not, changes none
//! of them, and every group has an owner who knows of it. What a node remembers of a parked gateway, and the feeder, belong to one ownership as well:
//! when it ends they end, and the next feeder waits for the end of the one before.

use super::feeder::Feeder;
use super::lanes::{Cell, Lanes};
use super::marks::Marks;
use super::parked::Parked;
use super::records::{self, Source};
use super::{FEED, RouterOptions, metrics};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{Fate, Item, Released};
use crate::name::GatewayId;
use crate::routing::slot_of;
use firth::{Broker, ConsumerHandle, Epoch, GroupName, RecordId, TopicName};
use firth_engine::facet::{DeadLetter, From, Reset};
use firth_engine::{Hold, Partition};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How many dead letters are looked through at a time.
const LETTERS: usize = 100;

pub(super) struct Fallback {
    pub(super) broker: Broker,
    pub(super) handle: ConsumerHandle,
    pub(super) lanes: Arc<Lanes>,
    pub(super) options: RouterOptions,
    /// By the gateways' lanes and partitions.
    feeders: Mutex<HashMap<(u64, u32), Feeding>>,
    /// The ownerships for which parked gateways were looked up.
    begun: Mutex<HashMap<u32, Hold>>,
    pub(super) marks: Marks,
}

/// A feeder at work.
struct Feeding {
    epoch: Epoch,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Feeding {
    fn goes_on(&self) -> bool {
        !self.stop.is_cancelled() && !self.task.is_finished()
    }
}

impl Fallback {
    pub(super) fn new(
        broker: Broker,
        handle: ConsumerHandle,
        lanes: Arc<Lanes>,
        options: RouterOptions,
    ) -> Self {
        let marks = Marks::new(broker.engine().clone(), &options);
        Self { broker, handle, lanes, options, feeders: Mutex::default(), begun: Mutex::default(), marks }
    }

    /// Takes a gateway off the live events of a partition, which were read up to `last`; false if it was off them before. It can be repeated, and makes
    /// certain what was doubtful.
    pub(super) async fn park(self: &Arc<Self>, cell: &Arc<Cell>, partition: u32, last: u64) -> Result<bool> {
        let _turn = cell.turn.lock().await;
        let hold = self.hold(partition)?;
        if self.epochs().get(&partition) != Some(&hold.epoch) {
            return Err(not_ours());
        }
        let lowest = {
            let mut lane = cell.lane();
            // What comes back refused from here on is fed again: it is not given up meanwhile.
            lane.spare(partition, Some(0));
            lane.lowest(partition)
        };
        let was_behind = self.is_feeding(cell, partition) && cell.stands(partition, Parked::is_behind);
        let behind = match self.group_for(cell, partition, hold.epoch, lowest).await {
            Ok(behind) => behind,
            Err(error) => {
                cell.tell_lane(partition);
                return Err(error);
            }
        };
        let released = cell.park(partition, hold.epoch, behind, last);
        self.lanes.records.release(cell.gateway.as_str(), &released);
        metrics::released(&released);
        // Only their records: they may take as long as a delivery may, and could be all that the partition's reader may have open.
        let on_their_way = cell.lane().disown(partition, behind.seq + 1);
        self.lanes.records.release(cell.gateway.as_str(), &on_their_way);
        if !was_behind {
            metrics::parking("parked");
            tracing::info!(gateway = %cell.gateway, partition, events = released.len(), "a gateway is parked: it is fed from the topic");
        }
        self.take_back_letters(cell, partition, behind.seq + 1).await;
        self.feed(cell, partition, hold);
        Ok(!was_behind)
    }

    /// As [`park`](Self::park), for who looks again anyhow.
    pub(super) async fn try_to_park(self: &Arc<Self>, cell: &Arc<Cell>, partition: u32, last: u64) {
        if let Err(error) = self.park(cell, partition, last).await {
            tracing::warn!(gateway = %cell.gateway, partition, %error, "a gateway cannot be parked yet");
        }
    }

    /// Removes the dead letters of events that the gateway is fed again: it may take them now, or they become letters of its own group. Without
    /// this there would be two of each.
    pub(super) async fn take_back_letters(&self, cell: &Cell, partition: u32, from: u64) {
        let ids = self.lanes.records.take_given_up(cell.gateway.as_str(), partition, from).await;
        let removed = async {
            let (at, group) = (self.at(partition)?, GroupName::new(&self.options.group)?);
            Ok::<_, Error>(self.broker.engine().delete_dead(&at, &group, &ids).await?)
        };
        if !ids.is_empty()
            && let Err(error) = removed.await
        {
            tracing::warn!(gateway = %cell.gateway, partition, %error, "events that are fed again keep their dead letters");
        }
    }

    /// As [`take_back_letters`](Self::take_back_letters), of an owner that could not do it: the gateway is fed again everything behind `after`.
    async fn take_back_left(
        &self,
        at: &Partition,
        gateway: &GatewayId,
        (mut after, until): (RecordId, u64),
    ) -> Result<()> {
        let (engine, group) = (self.broker.engine(), GroupName::new(&self.options.group)?);
        loop {
            let page = engine.dead(at, &group, after, LETTERS).await?;
            let Some(last) = page.last().map(|letter| letter.id) else { return Ok(()) };
            let is_theirs = |letter: &&DeadLetter| {
                letter.id.seq <= until && records::is_alone(gateway.as_str(), &letter.reason)
            };
            let ids: Vec<_> = page.iter().filter(is_theirs).map(|letter| letter.id).collect();
            engine.delete_dead(at, &group, &ids).await?;
            if last.seq > until {
                return Ok(());
            }
            after = last;
        }
    }

    /// Behind which record the feeding of a gateway begins, whose lowest live event is this one; its group is there then.
    async fn group_for(
        &self,
        cell: &Cell,
        partition: u32,
        epoch: Epoch,
        lowest: Option<u64>,
    ) -> Result<RecordId> {
        let fed = cell.parked().get(&partition).copied().filter(|_| self.is_feeding(cell, partition));
        if let Some(parked) = fed {
            return Ok(parked.behind());
        }
        // Without a known live event in the lane: everything that is not settled for all.
        let behind = match lowest.and_then(|seq| self.lanes.records.id(partition, seq)) {
            Some(first) => RecordId { seq: first.seq - 1, ..first },
            None => self.frontier(partition).await?,
        };
        cell.doubt(partition, epoch);
        self.marks.make(partition, &cell.gateway).await?;
        self.make_group(partition, &self.group(&cell.gateway)?, behind).await?;
        Ok(behind)
    }

    /// The partitions that this node owns.
    pub(super) fn epochs(&self) -> BTreeMap<u32, Epoch> {
        self.handle.epochs()
    }

    /// Leaves a live event out for a parked gateway.
    pub(super) fn skip(&self, cell: &Cell, item: &Item) {
        self.release(cell, item, Fate::Parked);
    }

    /// Makes a dead letter, which was replayed and finds no room, one again.
    pub(super) fn give_up(&self, cell: &Cell, item: &Item) {
        let why = "it is silent, and its queue is full: replay this when it takes events again";
        let fate = Fate::Dead(why.to_owned());
        cell.lane().pass(item.position.partition, &fate);
        self.release(cell, item, fate);
    }

    fn release(&self, cell: &Cell, item: &Item, fate: Fate) {
        let released = [Released { position: item.position, ticket: item.ticket, fate }];
        metrics::released(&released);
        self.lanes.records.release(cell.gateway.as_str(), &released);
    }

    /// Begins an ownership of the partition. What was read under an earlier one is let go: it comes again. The gateways that an earlier owner,
    /// perhaps this very node, has parked stay so.
    pub(super) async fn begin(self: &Arc<Self>, partition: u32, epoch: Epoch) -> Result<()> {
        self.lose(partition);
        let hold = self.handle.hold(partition).filter(|hold| hold.epoch == epoch).ok_or_else(not_ours)?;
        let (at, prefix) = (self.at(partition)?, format!("{}{FEED}", self.options.group));
        let engine = self.broker.engine();
        let groups = engine.groups(&at).await?;
        // Owners before this one may have left out, for a parked gateway, whatever there was until now.
        let skipped_to = engine.bounds(&at).await?.last.seq;
        let marks = self.marks.read(partition).await?;
        let (mut behind, mut left_over) = (Vec::new(), marks.clone());
        for name in groups.iter().filter_map(|group| group.as_str().strip_prefix(&prefix)) {
            let gateway = GatewayId::new(name).ok();
            // Nodes of before there were marks have parked gateways that somebody still asks for.
            let is_ours = |id: &GatewayId| marks.contains_key(id) || self.lanes.registry.is_receiver(id);
            let Some(gateway) = gateway.filter(is_ours) else {
                tracing::warn!(
                    partition,
                    group = format!("{prefix}{name}"),
                    "this group is not the router's, though its name says so: delete it, it holds back retention"
                );
                continue;
            };
            left_over.remove(&gateway);
            let Some(frontier) = self.frontier_of(&at, &self.group(&gateway)?).await? else { continue };
            self.take_back_left(&at, &gateway, (frontier, skipped_to)).await?;
            behind.push((gateway, frontier));
        }
        // Their groups are gone.
        for (gateway, _) in left_over.iter().filter(|(_, places)| places.contains(&partition)) {
            self.marks.remove(partition, gateway).await?;
        }
        self.begun().insert(partition, hold.clone());
        for (gateway, frontier) in behind {
            let cell = self.lanes.cell(&gateway);
            // Their records were given back when the last ownership ended.
            metrics::released(&cell.park(partition, epoch, frontier, skipped_to));
            if self.lanes.registry.gateway(&gateway).is_none() {
                self.tell_all_moved();
            }
            self.feed(&cell, partition, hold.clone());
        }
        Ok(())
    }

    /// A gateway is gone that an earlier owner has parked. Which subscriptions were its is not known any more: all that are spread may have missed
    /// events.
    fn tell_all_moved(&self) {
        let (table, mut homes) = (self.lanes.registry.table(), HashMap::<_, Vec<_>>::new());
        for id in self.lanes.registry.hashed() {
            if let Some(home) = table.owner(slot_of(&id)) {
                homes.entry(home).or_default().push(id);
            }
        }
        for (home, subscriptions) in homes {
            self.lanes.cell(home).move_in(subscriptions);
        }
    }

    /// Ends an ownership of the partition: what waits for its gateways comes again, to whoever owns it next. Always all of it, for the order of
    /// documents; feeders see to theirs.
    pub(super) fn lose(&self, partition: u32) {
        self.begun().remove(&partition);
        for ((_, fed), feeding) in &*self.lock() {
            if *fed == partition {
                feeding.stop.cancel();
            }
        }
        for cell in self.lanes.all() {
            let mut parked = cell.parked();
            parked.remove(&partition);
            let mut lane = cell.lane();
            lane.spare(partition, None);
            let released = lane.park(partition, 0);
            metrics::released(&released);
        }
        self.lanes.records.give_back(partition, Source::Live);
    }

    /// Clears lanes of what was on its way when its partition went to another node, and has come back since.
    pub(super) fn clear(&self) {
        for cell in self.lanes.all() {
            let foreign = cell.lane().foreign();
            for partition in foreign.into_iter().filter(|partition| !self.epochs().contains_key(partition)) {
                let mut lane = cell.lane();
                metrics::released(&lane.park(partition, 0));
                if !self.has_feeder(&cell, partition) {
                    metrics::released(&lane.unfeed(partition));
                }
            }
        }
    }

    /// Ends all feeders; their groups stay for the next owner.
    pub(super) async fn close(&self) {
        self.lanes.stop.cancel();
        let feeders = std::mem::take(&mut *self.lock());
        for (_, feeding) in feeders {
            // A panic there was already reported by the runtime.
            let _ = feeding.task.await;
        }
    }

    /// Starts a feeder, unless one is at work. It begins when one of an earlier ownership has ended.
    fn feed(self: &Arc<Self>, cell: &Arc<Cell>, partition: u32, hold: Hold) {
        if self.is_feeding(cell, partition) {
            return;
        }
        let mut feeders = self.lock();
        let place = (cell.number, partition);
        let before = feeders.remove(&place).map(|feeding| feeding.task);
        let (epoch, stop) = (hold.epoch, self.lanes.stop.child_token());
        let (fallback, cell) = (Arc::clone(self), Arc::clone(cell));
        let feeder = Feeder { fallback, cell, partition, hold, stop: stop.clone() };
        let task = tokio::spawn(feeder.run(before));
        feeders.insert(place, Feeding { epoch, stop, task });
    }

    /// Whether a feeder of this ownership is at work.
    fn is_feeding(&self, cell: &Cell, partition: u32) -> bool {
        self.lock().get(&(cell.number, partition)).is_some_and(Feeding::goes_on)
    }

    /// Whether there is a feeder, perhaps one that is about to end.
    fn has_feeder(&self, cell: &Cell, partition: u32) -> bool {
        self.lock().get(&(cell.number, partition)).is_some_and(|feeding| !feeding.task.is_finished())
    }

    /// Makes the group after a place, or moves one that is left over back to it.
    async fn make_group(&self, partition: u32, group: &GroupName, after: RecordId) -> Result<()> {
        let (at, hold, engine) = (self.at(partition)?, self.hold(partition)?, self.broker.engine());
        if !engine.create_group(&at, group, From::After(after), Some(&hold)).await?
            && engine.status(&at, group).await?.frontier > after
        {
            let back = Reset { to: From::After(after), drop_due: false };
            engine.reset(&at, group, back, Some(&hold)).await?;
        }
        Ok(())
    }

    /// The ownership for which parked gateways were looked up.
    pub(super) fn hold(&self, partition: u32) -> Result<Hold> {
        self.begun().get(&partition).cloned().ok_or_else(not_ours)
    }

    /// Everything up to here is settled for all gateways.
    async fn frontier(&self, partition: u32) -> Result<RecordId> {
        let shared = GroupName::new(&self.options.group)?;
        Ok(self.broker.engine().status(&self.at(partition)?, &shared).await?.frontier)
    }

    /// Where a group stands, if there is one.
    async fn frontier_of(&self, at: &Partition, group: &GroupName) -> Result<Option<RecordId>> {
        match self.broker.engine().status(at, group).await {
            Ok(status) => Ok(Some(status.frontier)),
            Err(error) if error.kind() == firth_engine::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn at(&self, partition: u32) -> Result<Partition> {
        Ok(Partition::new(TopicName::new(&self.options.topic)?, partition))
    }

    pub(super) fn group(&self, gateway: &GatewayId) -> Result<GroupName> {
        Ok(GroupName::new(format!("{}{FEED}{gateway}", self.options.group))?)
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<u32, Hold>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the feeder of an ownership, which ends.
    pub(super) fn forget(&self, cell: &Cell, partition: u32, epoch: Epoch) {
        let (mut feeders, place) = (self.lock(), (cell.number, partition));
        if feeders.get(&place).is_some_and(|feeding| feeding.epoch == epoch) {
            feeders.remove(&place);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u32), Feeding>> {
        self.feeders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_ours() -> Error {
    Error::new(ErrorKind::Unavailable, "the partition is another node's now")
}
