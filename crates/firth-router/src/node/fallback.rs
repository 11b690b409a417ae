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
//! The group is also the durable sign that a gateway is parked: whoever owns the partition next finds it and goes on.

use super::lanes::{Cell, Lanes, Parked};
use super::reader::refuse;
use super::records::{InHand, Source};
use super::{FEED, RouterOptions, metrics};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::lane::{Fate, Item, Offer, Position, Pressure, Released};
use crate::name::GatewayId;
use crate::registry::Destinations;
use firth::{Broker, Consumer, ConsumerConfig, ConsumerHandle, Epoch, GroupName, RecordId, TopicName};
use firth_engine::Partition;
use firth_engine::facet::{From, GroupStatus, Reset};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How many events of a parked gateway are read ahead.
const AHEAD: usize = 200;
/// How many records are taken at a time.
const CHUNK: usize = 100;
/// How often a feeder looks whether it is done, and whether the partition is still this node's.
const LOOK: Duration = Duration::from_millis(100);

pub(super) struct Fallback {
    broker: Broker,
    handle: ConsumerHandle,
    lanes: Arc<Lanes>,
    options: RouterOptions,
    feeders: Mutex<HashMap<(u64, u32), JoinHandle<()>>>,
}

impl Fallback {
    pub(super) fn new(
        broker: Broker,
        handle: ConsumerHandle,
        lanes: Arc<Lanes>,
        options: RouterOptions,
    ) -> Self {
        Self { broker, handle, lanes, options, feeders: Mutex::default() }
    }

    /// Takes a gateway off the live events of a partition, which were read up to `last`.
    pub(super) async fn park(self: &Arc<Self>, cell: &Arc<Cell>, partition: u32, last: u64) -> Result<()> {
        let _turn = cell.turn.lock().await;
        if !self.epochs().contains_key(&partition) {
            let context = "the partition is another node's now";
            return Err(Error::new(ErrorKind::Unavailable, context));
        }
        let lowest = {
            let mut lane = cell.lane();
            // What comes back refused from here on is fed again: it is not given up meanwhile.
            lane.spare(partition, Some(0));
            lane.lowest(partition)
        };
        let from = self.group_for(cell, partition, lowest).await;
        if let Ok(from) = from {
            cell.parked().insert(partition, Parked::Behind { from, skipped_to: last });
        }
        cell.tell_lane(partition);
        let from = from?;
        let released = cell.lane().park(partition, from);
        self.lanes.records.release(cell.gateway.as_str(), &released);
        metrics::released(&released);
        metrics::parking("parked");
        tracing::info!(gateway = %cell.gateway, partition, events = released.len(), "a gateway is parked: it is fed from the topic");
        self.feed(cell, partition);
        Ok(())
    }

    /// Where the feeding of a gateway begins, whose lowest live event is this one; its group is there then.
    async fn group_for(&self, cell: &Cell, partition: u32, lowest: Option<u64>) -> Result<u64> {
        let fed = cell.parked().get(&partition).copied().filter(|_| self.is_feeding(cell, partition));
        if let Some(Parked::Behind { from, .. } | Parked::Resumed { from, .. }) = fed {
            return Ok(from);
        }
        // Without a known live event in the lane: everything that is not settled for all.
        let after = match lowest.and_then(|seq| self.lanes.records.id(partition, seq)) {
            Some(first) => RecordId { seq: first.seq - 1, ..first },
            None => self.frontier(partition).await?,
        };
        self.make_group(&self.at(partition)?, &self.group(&cell.gateway)?, after).await?;
        Ok(after.seq + 1)
    }

    /// The partitions that this node owns.
    pub(super) fn epochs(&self) -> BTreeMap<u32, Epoch> {
        self.handle.epochs()
    }

    /// Leaves a live event out for a parked gateway.
    pub(super) fn skip(&self, cell: &Cell, item: &Item) {
        let released = [Released { position: item.position, ticket: item.ticket, fate: Fate::Parked }];
        metrics::released(&released);
        self.lanes.records.release(cell.gateway.as_str(), &released);
    }

    /// Begins an ownership of the partition. What was read under an earlier one is let go: it comes again. The gateways that an earlier owner,
    /// perhaps this very node, has parked stay so.
    pub(super) async fn begin(self: &Arc<Self>, partition: u32) -> Result<()> {
        self.lose(partition);
        let (at, prefix) = (self.at(partition)?, format!("{}{FEED}", self.options.group));
        let engine = self.broker.engine();
        let groups = engine.groups(&at).await?;
        let parked = groups.iter().filter_map(|group| group.as_str().strip_prefix(&prefix));
        // Owners before this one may have left out, for a parked gateway, whatever there was until now.
        let skipped_to = engine.bounds(&at).await?.last.seq;
        for name in parked {
            let gateway = GatewayId::new(name)?;
            let cell = self.lanes.cell(&gateway);
            let _turn = cell.turn.lock().await;
            let Some(frontier) = self.frontier_of(&at, &self.group(&gateway)?).await? else { continue };
            cell.parked().insert(partition, Parked::Behind { from: frontier.seq + 1, skipped_to });
            cell.tell_lane(partition);
            self.feed(&cell, partition);
        }
        Ok(())
    }

    /// Ends an ownership of the partition: what waits for its gateways comes again, to whoever owns it next. Always all of it, for the order of
    /// documents; feeders see to theirs.
    pub(super) fn lose(&self, partition: u32) {
        for cell in self.lanes.all() {
            if !self.is_feeding(&cell, partition) {
                cell.parked().remove(&partition);
                cell.tell_lane(partition);
            }
            metrics::released(&cell.lane().park(partition, 0));
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
                if !self.is_feeding(&cell, partition) {
                    metrics::released(&lane.unfeed(partition));
                }
            }
        }
    }

    /// Ends all feeders; their groups stay for the next owner.
    pub(super) async fn close(&self) {
        self.lanes.stop.cancel();
        let feeders = std::mem::take(&mut *self.lock());
        for (_, feeder) in feeders {
            // A panic there was already reported by the runtime.
            let _ = feeder.await;
        }
    }

    fn feed(self: &Arc<Self>, cell: &Arc<Cell>, partition: u32) {
        if self.is_feeding(cell, partition) {
            return;
        }
        let feeder = Feeder { fallback: Arc::clone(self), cell: Arc::clone(cell), partition };
        let task = tokio::spawn(feeder.run());
        self.lock().insert((cell.number, partition), task);
    }

    fn is_feeding(&self, cell: &Cell, partition: u32) -> bool {
        self.lock().get(&(cell.number, partition)).is_some_and(|task| !task.is_finished())
    }

    /// Makes the group after a place, or moves one that is left over back to it.
    async fn make_group(&self, at: &Partition, group: &GroupName, after: RecordId) -> Result<()> {
        let engine = self.broker.engine();
        if !engine.create_group(at, group, From::After(after)).await?
            && engine.status(at, group).await?.frontier > after
        {
            engine.reset(at, group, Reset { to: From::After(after), drop_due: false }).await?;
        }
        Ok(())
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

    fn at(&self, partition: u32) -> Result<Partition> {
        Ok(Partition::new(TopicName::new(&self.options.topic)?, partition))
    }

    fn group(&self, gateway: &GatewayId) -> Result<GroupName> {
        Ok(GroupName::new(format!("{}{FEED}{gateway}", self.options.group))?)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u32), JoinHandle<()>>> {
        self.feeders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Feeds one parked gateway from one partition.
struct Feeder {
    fallback: Arc<Fallback>,
    cell: Arc<Cell>,
    partition: u32,
}

/// Why a feeder stopped taking.
#[derive(PartialEq, Eq)]
enum Stop {
    CaughtUp,
    /// The node closes, or the partition is another node's now.
    Gone,
}

/// How a round of feeding ended.
enum Fed {
    Done,
    StartOver,
}

impl Feeder {
    async fn run(self) {
        loop {
            match self.feed().await {
                Ok(Fed::Done) => return,
                Ok(Fed::StartOver) => {}
                Err(error) => {
                    tracing::warn!(gateway = %self.cell.gateway, partition = self.partition, %error, "feeding a parked gateway failed; it starts over");
                    tokio::select! {
                        () = self.fallback.lanes.stop.cancelled() => return,
                        () = tokio::time::sleep(LOOK * 10) => {}
                    }
                }
            }
        }
    }

    async fn feed(&self) -> Result<Fed> {
        let options = &self.fallback.options;
        let config = ConsumerConfig {
            max_in_flight: AHEAD,
            concurrency: AHEAD,
            partitions: BTreeSet::from([self.partition]),
            ..options.consumer()
        };
        let group = self.fallback.group(&self.cell.gateway)?;
        let builder = self.fallback.broker.consumer(&options.topic, group.as_str());
        let mut consumer = builder.config(config).await?;
        let mut taken = 0;
        loop {
            if self.take(&mut consumer, &mut taken).await? == Stop::Gone || self.drain().await == Stop::Gone {
                let _turn = self.cell.turn.lock().await;
                // If it was lost and has come back, whoever noted that found this feeder and relies on it.
                let goes_on = self.is_ours() && !self.fallback.lanes.stop.is_cancelled();
                if goes_on {
                    self.fall_back();
                } else {
                    self.retire();
                    self.cell.parked().remove(&self.partition);
                    self.cell.tell_lane(self.partition);
                }
                let source = Source::Again(self.cell.number);
                metrics::released(&self.cell.lane().unfeed(self.partition));
                self.fallback.lanes.records.give_back(self.partition, source);
                consumer.close().await?;
                return Ok(if goes_on { Fed::StartOver } else { Fed::Done });
            }
            let _turn = self.cell.turn.lock().await;
            if self.cell.behind().contains(&self.partition) {
                // It was parked again meanwhile: this feeder goes on where it is.
                continue;
            }
            consumer.close().await?;
            // Now every verdict is stored.
            if self.keeps_letters().await? {
                self.fall_back();
                return Ok(Fed::StartOver);
            }
            self.fallback.broker.engine().delete_group(&self.fallback.at(self.partition)?, &group).await?;
            if let Some(Parked::Resumed { done, .. }) = self.cell.parked().get_mut(&self.partition) {
                *done = true;
            }
            self.retire();
            metrics::parking("resumed");
            tracing::info!(gateway = %self.cell.gateway, partition = self.partition, "a parked gateway has caught up");
            return Ok(Fed::Done);
        }
    }

    /// Takes records until everything that was left out is taken; `taken` is how far it has come.
    async fn take(&self, consumer: &mut Consumer, taken: &mut u64) -> Result<Stop> {
        let mut looked: Option<Instant> = None;
        loop {
            let is_due = looked.is_none_or(|looked| looked.elapsed() >= LOOK);
            if is_due && self.is_near(*taken) {
                looked = Some(Instant::now());
                if !self.keeps_letters().await? && self.caught_up(*taken) {
                    self.cell.tell_lane(self.partition);
                    return Ok(Stop::CaughtUp);
                }
            }
            let room = self.cell.room.notified();
            let is_stuck = self.cell.lane().is_stuck(Instant::now(), self.fallback.options.patience);
            let deliveries = tokio::select! {
                () = self.fallback.lanes.stop.cancelled() => return Ok(Stop::Gone),
                // What a silent gateway does not take is not read for it either: that would cost as much as reading for all the others.
                deliveries = consumer.next_many(CHUNK), if !is_stuck => deliveries,
                () = room, if is_stuck => continue,
                () = tokio::time::sleep(LOOK) => {
                    if !self.is_ours() {
                        return Ok(Stop::Gone);
                    }
                    // What an earlier feeder has settled does not come again.
                    *taken = self.settled_to().await?.max(*taken);
                    continue;
                }
            };
            let Some(deliveries) = deliveries.transpose()? else { return Ok(Stop::Gone) };
            let mut unwanted = Vec::new();
            for delivery in deliveries.into_iter().map(InHand::new).collect::<Vec<_>>() {
                let seq = delivery.id().seq;
                if !self.route(delivery, &mut unwanted).await {
                    return Ok(Stop::Gone);
                }
                *taken = seq.max(*taken);
            }
            InHand::ack_all(unwanted);
        }
    }

    /// Everything up to here is done with for this gateway.
    async fn settled_to(&self) -> Result<u64> {
        Ok(self.status().await?.frontier.seq)
    }

    /// Whether the group has dead letters, or some that are about to be tried again.
    async fn keeps_letters(&self) -> Result<bool> {
        let status = self.status().await?;
        Ok(status.dead + status.due > 0)
    }

    async fn status(&self) -> Result<GroupStatus> {
        let (at, group) = (self.fallback.at(self.partition)?, self.fallback.group(&self.cell.gateway)?);
        Ok(self.fallback.broker.engine().status(&at, &group).await?)
    }

    /// Whether everything that was left out is taken.
    fn is_near(&self, taken: u64) -> bool {
        match self.cell.parked().get(&self.partition) {
            Some(Parked::Behind { skipped_to, .. }) => taken >= *skipped_to,
            _ => true,
        }
    }

    /// Whether live events may go on from here; then they do.
    fn caught_up(&self, taken: u64) -> bool {
        let mut parked = self.cell.parked();
        let calm = {
            let lane = self.cell.lane();
            let is_silent = lane.is_silent(Instant::now(), self.fallback.options.patience);
            lane.pressure() == Pressure::None && lane.held() < AHEAD && !is_silent
        };
        match parked.get(&self.partition) {
            Some(&Parked::Behind { from, skipped_to }) if calm && taken >= skipped_to => {
                parked.insert(self.partition, Parked::Resumed { from, after: taken, done: false });
                true
            }
            Some(Parked::Behind { .. }) => false,
            _ => true,
        }
    }

    /// Puts a record into the lane if the gateway wants it, as soon as the lane is calm; false if there is no point in waiting any more.
    async fn route(&self, delivery: InHand, unwanted: &mut Vec<InHand>) -> bool {
        let position = Position { partition: self.partition, seq: delivery.id().seq };
        let event = match Event::from_payload(delivery.payload()) {
            Ok(event) => Arc::new(event),
            // The router's own group has it as a dead letter.
            Err(_) => {
                unwanted.push(delivery);
                return true;
            }
        };
        let lanes = &self.fallback.lanes;
        let wanted = match self.destinations(&event).await {
            Ok(Some(by_gateway)) => by_gateway.into_iter().find(|(gateway, _)| *gateway == self.cell.gateway),
            Ok(None) => return false,
            Err(error) => {
                refuse(delivery, &error);
                return true;
            }
        };
        let Some((_, wanted)) = wanted else {
            unwanted.push(delivery);
            return true;
        };
        // The numbers of the router's own group, so that receivers see one history.
        let Some(epoch) = self.fallback.handle.epochs().get(&self.partition).copied() else { return false };
        let ticket = lanes.records.open([(delivery, 1)], Source::Again(self.cell.number)).start;
        let item = Item::new(position, epoch.0, event, &wanted).with_ticket(ticket).read_again();
        loop {
            let room = self.cell.room.notified();
            let calm = self.cell.lane().pressure() == Pressure::None;
            if calm && self.cell.offer(&item) == Offer::Taken {
                return true;
            }
            tokio::select! {
                () = lanes.stop.cancelled() => return false,
                () = room => {}
                () = tokio::time::sleep(LOOK) => {
                    if !self.is_ours() {
                        return false;
                    }
                }
            }
        }
    }

    /// Who wants an event. If somebody does and there is no gateway to give it to, it waits, while there is a point in it.
    async fn destinations(&self, event: &Event) -> Result<Option<Destinations>> {
        let (lanes, max_fanout) = (&self.fallback.lanes, self.fallback.options.routing.max_fanout);
        loop {
            match lanes.registry.destinations(event, max_fanout) {
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                found => return found.map(Some),
            }
            tokio::select! {
                () = lanes.stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(LOOK) => {
                    if !self.is_ours() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Waits until what it put into the lane is settled, or the gateway is parked again.
    async fn drain(&self) -> Stop {
        loop {
            let open = self.fallback.lanes.records.count(self.partition, Source::Again(self.cell.number));
            if open == 0 || self.cell.behind().contains(&self.partition) {
                return Stop::CaughtUp;
            }
            tokio::select! {
                () = self.fallback.lanes.stop.cancelled() => return Stop::Gone,
                () = self.cell.room.notified() => {}
                () = tokio::time::sleep(LOOK) => {
                    if !self.is_ours() {
                        return Stop::Gone;
                    }
                }
            }
        }
    }

    /// What is given back must be fed again before live events count as everything.
    fn fall_back(&self) {
        {
            let mut parked = self.cell.parked();
            if let Some(Parked::Resumed { from, after, .. }) = parked.get(&self.partition).copied() {
                parked.insert(self.partition, Parked::Behind { from, skipped_to: after });
            }
        }
        self.cell.tell_lane(self.partition);
    }

    /// From now on this partition has no feeder: whoever parks next starts one. Called in the cell's turn, so that nobody takes a feeder
    /// that is about to end for one that goes on.
    fn retire(&self) {
        self.fallback.lock().remove(&(self.cell.number, self.partition));
    }

    fn is_ours(&self) -> bool {
        self.fallback.handle.assignment().contains(&self.partition)
    }
}
