//! The feeder of one parked gateway on one partition: a consumer of the gateway's own group puts events into its lane as it empties, until live
//! events may go on. When it is done, and no dead letter is left, it removes the group (see `fallback`).

use super::fallback::Fallback;
use super::lanes::{Cell, Parked};
use super::metrics;
use super::reader::refuse;
use super::records::{InHand, Source};
use crate::error::{ErrorKind, Result};
use crate::event::Event;
use crate::lane::{Item, Offer, Position, Pressure};
use crate::registry::Destinations;
use firth::{Consumer, ConsumerConfig, ConsumerHandle, GroupName, StartAt};
use firth_engine::Hold;
use firth_engine::facet::GroupStatus;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How many events of a parked gateway are read ahead.
const AHEAD: usize = 200;
/// How many records are taken at a time.
const CHUNK: usize = 100;
/// How often a feeder looks whether it is done, and whether the partition is still this node's.
const LOOK: Duration = Duration::from_millis(100);

/// Feeds one parked gateway from one partition.
pub(super) struct Feeder {
    pub(super) fallback: Arc<Fallback>,
    pub(super) cell: Arc<Cell>,
    pub(super) partition: u32,
}

/// Why a feeder stopped taking.
#[derive(PartialEq, Eq)]
enum Stop {
    CaughtUp,
    /// The node closes, the partition is another node's now, or the gateway is gone: whoever can starts over.
    Gone,
}

/// How a round of feeding ended.
enum Fed {
    Done,
    StartOver,
}

impl Feeder {
    /// Feeds until the gateway has caught up, the partition is another node's, or the node closes.
    pub(super) async fn run(self) {
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
            // A gateway that is parked on several partitions has as many feeders here.
            name: format!("{:.50}.{}", options.node, self.partition),
            max_in_flight: AHEAD,
            concurrency: AHEAD,
            partitions: BTreeSet::from([self.partition]),
            // It is made only by whoever owns the partition.
            start: StartAt::Nowhere,
            ..options.consumer()
        };
        let group = self.fallback.group(&self.cell.gateway)?;
        let hold = match self.keep_group(&group).await? {
            ControlFlow::Continue(hold) => hold,
            ControlFlow::Break(fed) => return Ok(fed),
        };
        let builder = self.fallback.broker.consumer(&options.topic, group.as_str());
        let mut consumer = builder.config(config).await?;
        let mut taken = 0;
        loop {
            if self.take(&mut consumer, &mut taken, &hold).await? == Stop::Gone
                || self.drain(&hold).await == Stop::Gone
            {
                let _turn = self.cell.turn.lock().await;
                let fed = self.part();
                consumer.close().await?;
                return Ok(fed);
            }
            let _turn = self.cell.turn.lock().await;
            if self.cell.behind().contains(&self.partition) {
                // It was parked again meanwhile: this feeder goes on where it is.
                continue;
            }
            consumer.close().await?;
            // Now every verdict is stored that could be: whoever lost the group meanwhile has settled less than it took.
            let status = self.status().await?;
            if status.dead + status.due > 0 || !self.is_fed_up_to(status.frontier.seq) {
                self.fall_back();
                let unsettled = status.frontier.seq + 1;
                self.fallback.take_back_letters(&self.cell, self.partition, unsettled).await;
                return Ok(Fed::StartOver);
            }
            if self.fallback.lanes.registry.gateway(&self.cell.gateway).is_none() {
                self.cell.forsake();
            }
            if !self.end_group(&group, &hold).await? {
                return Ok(self.part());
            }
            if let Some(Parked::Resumed { done, .. }) = self.cell.parked().get_mut(&self.partition) {
                *done = true;
            }
            self.retire();
            metrics::parking("resumed");
            tracing::info!(gateway = %self.cell.gateway, partition = self.partition, "a parked gateway has caught up");
            return Ok(Fed::Done);
        }
    }

    /// Sees to it that there is a group to feed by; answers the ownership that this round of feeding belongs to, unless the partition is
    /// another node's.
    async fn keep_group(&self, group: &GroupName) -> Result<ControlFlow<Fed, Hold>> {
        let _turn = self.cell.turn.lock().await;
        if !self.is_assigned() {
            return Ok(ControlFlow::Break(self.part()));
        }
        Ok(ControlFlow::Continue(self.fallback.keep_group(self.partition, group).await?))
    }

    /// Lets go of the partition, or starts over if it is this node's. Called in the cell's turn.
    fn part(&self) -> Fed {
        // If it was lost and has come back, whoever noted that found this feeder and relies on it.
        let goes_on = self.is_assigned() && !self.fallback.lanes.stop.is_cancelled();
        if goes_on {
            self.fall_back();
        } else {
            self.retire();
            self.cell.parked().remove(&self.partition);
            self.cell.tell_lane(self.partition);
        }
        metrics::released(&self.cell.lane().unfeed(self.partition));
        self.fallback.lanes.records.give_back(self.partition, Source::Again(self.cell.number));
        if goes_on { Fed::StartOver } else { Fed::Done }
    }

    /// Removes the group; false if the partition has had another owner since this node looked for parked gateways, who may feed by it.
    async fn end_group(&self, group: &GroupName, hold: &Hold) -> Result<bool> {
        let (at, engine) = (self.fallback.at(self.partition)?, self.fallback.broker.engine());
        match engine.delete_group(&at, group, Some(hold)).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == firth_engine::ErrorKind::Fenced => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes records until everything that was left out is taken; `taken` is how far it has come.
    async fn take(&self, consumer: &mut Consumer, taken: &mut u64, hold: &Hold) -> Result<Stop> {
        let mut looked: Option<Instant> = None;
        loop {
            if !self.is_ours(hold) {
                return Ok(Stop::Gone);
            }
            let is_due = looked.is_none_or(|looked| looked.elapsed() >= LOOK);
            if is_due && self.is_near(*taken) {
                looked = Some(Instant::now());
                if !self.keeps_letters().await? && self.caught_up(*taken) {
                    self.cell.tell_lane(self.partition);
                    return Ok(Stop::CaughtUp);
                }
            }
            let room = self.cell.room.notified();
            let is_stuck = self.rests(&consumer.handle());
            let deliveries = tokio::select! {
                () = self.fallback.lanes.stop.cancelled() => return Ok(Stop::Gone),
                deliveries = consumer.next_many(CHUNK), if !is_stuck => deliveries,
                () = room, if is_stuck => continue,
                () = tokio::time::sleep(LOOK) => {
                    if is_stuck && self.is_forsaken() {
                        return Ok(Stop::Gone);
                    }
                    // What an earlier feeder has settled does not come again.
                    *taken = self.settled_to().await?.max(*taken);
                    continue;
                }
            };
            let Some(deliveries) = deliveries.transpose()? else { return Ok(Stop::Gone) };
            let last = deliveries.iter().map(|delivery| delivery.id().seq).max().unwrap_or_default();
            let lost = consumer.handle().take_lost(self.partition, last);
            if lost > 0 {
                self.cell.lose(self.partition, lost);
            }
            let mut unwanted = Vec::new();
            for delivery in deliveries.into_iter().map(InHand::new).collect::<Vec<_>>() {
                let seq = delivery.id().seq;
                if !self.route(delivery, &mut unwanted, hold).await {
                    return Ok(Stop::Gone);
                }
                *taken = seq.max(*taken);
            }
            InHand::ack_all(unwanted);
        }
    }

    /// Whether the gateway is silent while events wait for it. What it does not take is not read for it either: that would cost as much as reading
    /// for all the others. So the consumer is paused meanwhile, and not woken by what happens.
    fn rests(&self, consumer: &ConsumerHandle) -> bool {
        let is_stuck = self.cell.lane().is_stuck(Instant::now(), self.fallback.options.patience);
        match (is_stuck, consumer.is_paused()) {
            (true, false) => consumer.pause(),
            (false, true) => consumer.resume(),
            _ => {}
        }
        is_stuck
    }

    /// Whether the gateway is gone, and nobody is left who asked for what waits for it: read again, it is for nobody.
    fn is_forsaken(&self) -> bool {
        let (registry, gateway) = (&self.fallback.lanes.registry, &self.cell.gateway);
        let is_wanted = |item: &Item| {
            let mut wanted = item.wanted.iter();
            wanted.any(|one| registry.is_direct(&item.event.tenant, &one.subscription, gateway))
        };
        registry.gateway(gateway).is_none() && !self.cell.lane().waiting(self.partition).any(is_wanted)
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
            Some(Parked::Resumed { .. }) => true,
            None => false,
        }
    }

    /// Whether the gateway goes on with live events behind this place, or before it.
    fn is_fed_up_to(&self, settled: u64) -> bool {
        match self.cell.parked().get(&self.partition) {
            Some(Parked::Resumed { after, .. }) => settled >= *after,
            Some(Parked::Behind { .. }) | None => false,
        }
    }

    /// Whether live events may go on from here; then they do.
    fn caught_up(&self, taken: u64) -> bool {
        let mut parked = self.cell.parked();
        let calm = {
            let lane = self.cell.lane();
            let is_silent = lane.is_silent(Instant::now(), self.fallback.options.patience);
            // A silent gateway that is owed nothing may be gone for good: it gets what comes, if anything does.
            lane.pressure() == Pressure::None && lane.held() < AHEAD && (lane.held() == 0 || !is_silent)
        };
        match parked.get(&self.partition) {
            Some(&Parked::Behind { from, skipped_to }) if calm && taken >= skipped_to => {
                parked.insert(self.partition, Parked::Resumed { from, after: taken, done: false });
                true
            }
            Some(Parked::Resumed { .. }) => true,
            Some(Parked::Behind { .. }) | None => false,
        }
    }

    /// Puts a record into the lane if the gateway wants it, as soon as the lane is calm; false if there is no point in waiting any more.
    async fn route(&self, delivery: InHand, unwanted: &mut Vec<InHand>, hold: &Hold) -> bool {
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
        let wanted = match self.destinations(&event, hold).await {
            Ok(Some(found)) => {
                found.by_gateway.into_iter().find(|(gateway, _)| *gateway == self.cell.gateway)
            }
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
        let trace = delivery.trace();
        let ticket = lanes.records.open([(delivery, 1, None)], Source::Again(self.cell.number)).start;
        let item =
            Item::new(position, epoch.0, event, &wanted).with_ticket(ticket).read_again().with_trace(trace);
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
                    if !self.is_ours(hold) {
                        return false;
                    }
                }
            }
        }
    }

    /// Who wants an event. If somebody does and there is no gateway to give it to, it waits, while there is a point in it.
    async fn destinations(&self, event: &Event, hold: &Hold) -> Result<Option<Destinations>> {
        let (lanes, max_fanout) = (&self.fallback.lanes, self.fallback.options.routing.max_fanout);
        loop {
            match lanes.registry.finder().destinations(event, max_fanout) {
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                found => return found.map(Some),
            }
            tokio::select! {
                () = lanes.stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(LOOK) => {
                    if !self.is_ours(hold) {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Waits until what it put into the lane is settled, or the gateway is parked again.
    async fn drain(&self, hold: &Hold) -> Stop {
        loop {
            let open = self.fallback.lanes.records.count(self.partition, Source::Again(self.cell.number));
            if open == 0 || self.cell.behind().contains(&self.partition) {
                return Stop::CaughtUp;
            }
            tokio::select! {
                () = self.fallback.lanes.stop.cancelled() => return Stop::Gone,
                () = self.cell.room.notified() => {}
                () = tokio::time::sleep(LOOK) => {
                    if !self.is_ours(hold) || self.is_forsaken() {
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
        self.fallback.forget(&self.cell, self.partition);
    }

    /// Whether the ownership goes on under which this round of feeding began. If it was lost, others may have fed meanwhile: what this round took
    /// says nothing any more.
    fn is_ours(&self, hold: &Hold) -> bool {
        self.is_assigned() && self.fallback.hold(self.partition).is_ok_and(|now| now.epoch == hold.epoch)
    }

    fn is_assigned(&self) -> bool {
        self.fallback.handle.assignment().contains(&self.partition)
    }
}
