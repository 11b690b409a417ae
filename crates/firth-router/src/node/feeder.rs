//! The feeder of one parked gateway on one partition: a consumer of the gateway's own group puts events into its lane as it empties, until live
//! events may go on. When it is done, and no dead letter is left, it removes the group (see `fallback`).

use super::fallback::Fallback;
use super::lanes::Cell;
use super::metrics;
use super::parked::Parked;
use super::reader::refuse;
use super::records::{InHand, Source};
use crate::error::{ErrorKind, Result};
use crate::event::Event;
use crate::lane::{Item, Offer, Position, Pressure};
use crate::registry::Destinations;
use firth::{Consumer, ConsumerConfig, ConsumerHandle, GroupName, StartAt};
use firth_engine::Hold;
use firth_engine::facet::{From, GroupStatus};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How many events of a parked gateway are read ahead.
const AHEAD: usize = 200;
/// How many records are taken at a time.
const CHUNK: usize = 100;
/// After so many of them others go first: what happens must not wait for what is made up for.
const BITE: usize = 8;
/// How often a feeder looks whether it is done, and whether the partition is still this node's.
const LOOK: Duration = Duration::from_millis(100);

/// Feeds one parked gateway from one partition, under one ownership of it.
pub(super) struct Feeder {
    pub(super) fallback: Arc<Fallback>,
    pub(super) cell: Arc<Cell>,
    pub(super) partition: u32,
    pub(super) hold: Hold,
    /// Cancelled when the ownership is over, or the node closes.
    pub(super) stop: CancellationToken,
}

/// Why a feeder stopped taking.
#[derive(PartialEq, Eq)]
enum Stop {
    CaughtUp,
    /// The ownership is over, the node closes, or the gateway is gone: whoever can starts over.
    Gone,
}

/// How a round of feeding ended.
enum Fed {
    Done,
    StartOver,
}

impl Feeder {
    /// Feeds until the gateway has caught up, the ownership is over, or the node closes. Begins when the feeder before it has ended.
    pub(super) async fn run(self, before: Option<JoinHandle<()>>) {
        if let Some(before) = before {
            // A panic there was already reported by the runtime.
            let _ = before.await;
        }
        loop {
            match self.feed().await {
                Ok(Fed::Done) => return,
                Ok(Fed::StartOver) => {}
                Err(_) if self.is_over() => {
                    self.part();
                    return;
                }
                Err(error) => {
                    tracing::warn!(gateway = %self.cell.gateway, partition = self.partition, %error, "feeding a parked gateway failed; it starts over");
                    tokio::select! {
                        () = self.stop.cancelled() => {}
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
        if let ControlFlow::Break(fed) = self.keep_group(&group).await? {
            return Ok(fed);
        }
        let builder = self.fallback.broker.consumer(&options.topic, group.as_str());
        let mut consumer = builder.config(config).await?;
        let mut taken = 0;
        loop {
            let stop = match self.take(&mut consumer, &mut taken).await {
                Ok(Stop::CaughtUp) => Ok(self.drain().await),
                other => other,
            };
            if !matches!(stop, Ok(Stop::CaughtUp)) {
                let fed = self.part();
                // Not dropped, whatever went wrong: whoever feeds next would wait until its lease has run out.
                let closed = consumer.close().await;
                stop?;
                closed?;
                return Ok(fed);
            }
            let _turn = self.cell.turn.lock().await;
            if self.is_behind() {
                // It was parked again meanwhile: this feeder goes on where it is.
                continue;
            }
            consumer.close().await?;
            // Now every verdict is stored that could be: whoever lost the group meanwhile has settled less than it took.
            let status = self.status().await?;
            if status.dead + status.due > 0 || !self.stands(|parked| parked.is_settled(status.frontier.seq)) {
                self.fall_behind();
                let unsettled = status.frontier.seq + 1;
                self.fallback.take_back_letters(&self.cell, self.partition, unsettled).await;
                return Ok(Fed::StartOver);
            }
            if self.fallback.lanes.registry.gateway(&self.cell.gateway).is_none() {
                self.cell.forsake();
            }
            if !self.end_group(&group).await? {
                return Ok(self.part());
            }
            return Ok(self.done());
        }
    }

    /// Sees to it that there is a group to feed by. Somebody may have deleted it: then everything is fed again that it was made for, and the gateway
    /// drops what it has. If it was this feeder itself, at the end, who only did not hear of it, then that was the end.
    async fn keep_group(&self, group: &GroupName) -> Result<ControlFlow<Fed>> {
        let _turn = self.cell.turn.lock().await;
        if self.is_over() {
            return Ok(ControlFlow::Break(self.part()));
        }
        let parked = self.cell.parked().get(&self.partition).copied();
        let Some(parked) = parked.filter(|parked| parked.epoch == self.hold.epoch) else {
            return Ok(ControlFlow::Break(self.part()));
        };
        let (at, engine) = (self.fallback.at(self.partition)?, self.fallback.broker.engine());
        if !parked.is_behind() && !engine.groups(&at).await?.contains(group) {
            return Ok(ControlFlow::Break(self.done()));
        }
        engine.create_group(&at, group, From::After(parked.behind()), Some(&self.hold)).await?;
        Ok(ControlFlow::Continue(()))
    }

    /// The gateway has caught up, and its group is gone. Called in the cell's turn.
    fn done(&self) -> Fed {
        let mut parked = self.cell.parked();
        if let Some(parked) = parked.get_mut(&self.partition).filter(|parked| parked.epoch == self.hold.epoch)
        {
            parked.end();
        }
        drop(parked);
        self.retire();
        metrics::parking("resumed");
        tracing::info!(gateway = %self.cell.gateway, partition = self.partition, "a parked gateway has caught up");
        Fed::Done
    }

    /// Lets go of everything that it has put into the lane, and of what went in behind that as it happened; starts over if the ownership goes on.
    fn part(&self) -> Fed {
        let is_over = self.is_over();
        self.fall_behind();
        metrics::released(&self.cell.lane().unfeed(self.partition));
        self.fallback.lanes.records.give_back(self.partition, Source::Again(self.cell.number));
        if is_over {
            self.retire();
            return Fed::Done;
        }
        Fed::StartOver
    }

    /// Removes the group; false if the ownership is over.
    async fn end_group(&self, group: &GroupName) -> Result<bool> {
        let (at, engine) = (self.fallback.at(self.partition)?, self.fallback.broker.engine());
        match engine.delete_group(&at, group, Some(&self.hold)).await {
            Ok(_) => {
                if let Err(error) = self.fallback.marks.remove(self.partition, &self.cell.gateway).await {
                    tracing::debug!(gateway = %self.cell.gateway, %error, "the mark of a group that is gone is left over");
                }
                Ok(true)
            }
            Err(error) if error.kind() == firth_engine::ErrorKind::Fenced => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes records until everything that was left out is taken; `taken` is how far it has come. They come in the order of the partition.
    async fn take(&self, consumer: &mut Consumer, taken: &mut u64) -> Result<Stop> {
        let mut looked: Option<Instant> = None;
        loop {
            if self.is_over() {
                return Ok(Stop::Gone);
            }
            let is_due = looked.is_none_or(|looked| looked.elapsed() >= LOOK);
            if is_due && self.stands(|parked| parked.is_near(*taken)) {
                looked = Some(Instant::now());
                if !self.keeps_letters().await? && self.caught_up(*taken) {
                    self.cell.tell_lane(self.partition);
                    return Ok(Stop::CaughtUp);
                }
            }
            let room = self.cell.room.notified();
            let is_stuck = self.rests(&consumer.handle());
            let deliveries = tokio::select! {
                () = self.stop.cancelled() => return Ok(Stop::Gone),
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
            let deliveries: Vec<_> = deliveries.into_iter().map(InHand::new).collect();
            for (number, delivery) in deliveries.into_iter().enumerate() {
                if number % BITE == BITE - 1 {
                    tokio::task::yield_now().await;
                }
                let seq = delivery.id().seq;
                if !self.route(delivery, &mut unwanted).await {
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

    /// What holds of how the gateway stands to the partition; nothing does after the end of the ownership.
    fn stands(&self, holds: impl FnOnce(&Parked) -> bool) -> bool {
        self.cell.stands(self.partition, |parked| parked.epoch == self.hold.epoch && holds(parked))
    }

    fn is_behind(&self) -> bool {
        self.stands(Parked::is_behind)
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
        let Some(parked) = parked.get_mut(&self.partition).filter(|parked| parked.epoch == self.hold.epoch)
        else {
            return false;
        };
        if calm {
            parked.resume(taken);
        }
        !parked.is_behind()
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
        let (trace, appended_ms) = (delivery.trace(), delivery.id().ms);
        let ticket = lanes.records.open([(delivery, 1, None)], Source::Again(self.cell.number)).start;
        // The numbers of the router's own group, so that receivers see one history.
        let item = Item::new(position, self.hold.epoch.0, event, &wanted);
        let item = item.with_ticket(ticket).appended_at(appended_ms).read_again().with_trace(trace);
        loop {
            let room = self.cell.room.notified();
            let calm = self.cell.lane().pressure() == Pressure::None;
            if calm && self.cell.offer(&item) == Offer::Taken {
                return true;
            }
            tokio::select! {
                () = self.stop.cancelled() => return false,
                () = room => {}
                () = tokio::time::sleep(LOOK) => {
                    if self.is_over() {
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
            match lanes.registry.finder().destinations(event, max_fanout) {
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                found => return found.map(Some),
            }
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(LOOK) => {
                    if self.is_over() {
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
            if open == 0 || self.is_behind() {
                return Stop::CaughtUp;
            }
            tokio::select! {
                () = self.stop.cancelled() => return Stop::Gone,
                () = self.cell.room.notified() => {}
                () = tokio::time::sleep(LOOK) => {
                    if self.is_over() || self.is_forsaken() {
                        return Stop::Gone;
                    }
                }
            }
        }
    }

    /// What happened meanwhile is left to the feeding as well: it must come behind what is fed again.
    fn fall_behind(&self) {
        let released = self.cell.fall_behind(self.partition, self.hold.epoch);
        metrics::released(&released);
        self.fallback.lanes.records.release(self.cell.gateway.as_str(), &released);
    }

    /// From now on this partition has no feeder: whoever parks next starts one. Called in the cell's turn unless the ownership is over, so that nobody
    /// takes a feeder that is about to end for one that goes on.
    fn retire(&self) {
        self.fallback.forget(&self.cell, self.partition, self.hold.epoch);
    }

    /// Whether the ownership is over, noticed by the reader or not yet, or the node closes.
    fn is_over(&self) -> bool {
        let owned = self.fallback.handle.epochs().get(&self.partition).copied();
        self.stop.is_cancelled() || owned != Some(self.hold.epoch)
    }
}
