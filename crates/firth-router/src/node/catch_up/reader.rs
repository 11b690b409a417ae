//! The catch-up reader of one parked gateway on one partition: a consumer of the gateway's own
//! group puts events into its lane as it empties, until live events may go on. When it is done, and
//! no dead letter is left, it removes the group. [`CatchUp`] decides; this does the I/O.

use super::{CatchUp, CatchUpAction, CatchUpEvent, Manager};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::lane::{Item, Offer, Position, Pressure};
use crate::node::reader::refuse;
use crate::node::records::{InHand, Source};
use crate::node::slot::GatewaySlot;
use crate::registry::Destinations;
use firth::{
    Consumer, ConsumerConfig, ConsumerHandle, Delivery, Epoch, GroupName, SideGroupStatus, SideGroups,
    StartAt,
};
use futures_util::FutureExt;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How many events of a parked gateway are read ahead.
const AHEAD: usize = 200;
/// How many records are taken at a time.
const CHUNK: usize = 100;
/// Yield after this many records, so that catch-up does not delay live events.
const BITE: usize = 8;
/// How often a catch-up reader looks whether it is done, and whether the partition is still this
/// node's.
const LOOK: Duration = Duration::from_millis(100);

/// Feeds one parked gateway from one partition, under one ownership of it.
pub(super) struct Reader {
    pub(super) catch_up: Arc<Manager>,
    pub(super) slot: Arc<GatewaySlot>,
    pub(super) partition: u32,
    /// The ownership under which it feeds.
    pub(super) side: SideGroups,
    /// Cancelled when the ownership is over, or the node closes.
    pub(super) stop: CancellationToken,
}

/// Why a catch-up reader stopped taking.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// Live events go on.
    CaughtUp,
    /// The ownership is over, the node closes, or the gateway is gone. If the ownership goes on,
    /// this catch-up reader begins another round; otherwise the next owner's does.
    Gone,
}

/// How a round of feeding ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FeedRound {
    /// The group is gone: this catch-up reader has nothing left to do.
    Done,
    Again,
}

impl Reader {
    /// Feeds until the gateway has caught up, the ownership is over, or the node closes.
    pub(super) async fn run(self) {
        let rounds = AssertUnwindSafe(self.rounds()).catch_unwind().await;
        let is_done = rounds.unwrap_or_else(|_| {
            tracing::error!(gateway = %self.slot.gateway, partition = self.partition, "a catch-up reader panicked");
            false
        });
        if !is_done {
            self.tell(CatchUpEvent::LetGo { epoch: self.epoch() }).await;
            self.tell(CatchUpEvent::ReaderEnded).await;
        }
    }

    /// False if the ownership ended, or the node closes, before the gateway had caught up.
    async fn rounds(&self) -> bool {
        while !self.is_over() {
            match self.round().await {
                Ok(FeedRound::Done) => return true,
                Ok(FeedRound::Again) => {}
                Err(_) if self.is_over() => {}
                Err(error) => {
                    tracing::warn!(gateway = %self.slot.gateway, partition = self.partition, %error, "feeding a parked gateway failed; it starts over");
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = tokio::time::sleep(LOOK * 10) => {}
                    }
                }
            }
        }
        false
    }

    /// One round, from joining the group to leaving it.
    async fn round(&self) -> Result<FeedRound> {
        let epoch = self.epoch();
        let group = self.catch_up.group(&self.slot.gateway)?;
        self.tell(CatchUpEvent::Round { epoch }).await;
        if let ControlFlow::Break(round) = self.keep_group(&group).await? {
            return Ok(round);
        }
        let mut consumer = self.join(&group).await?;
        loop {
            let pause = match self.take(&mut consumer, &group).await {
                Ok(Pause::CaughtUp) => Ok(self.drain().await),
                other => other,
            };
            if !matches!(pause, Ok(Pause::CaughtUp)) {
                self.let_go().await;
                // Close the consumer even after an error. If it were dropped, the next catch-up
                // reader would wait until its lease expires.
                let closed = consumer.close().await;
                pause?;
                closed?;
                return Ok(FeedRound::Again);
            }
            // If the gateway was parked again since, this catch-up reader goes on where it is.
            let actions = self.apply(CatchUpEvent::Drained { epoch });
            if actions.iter().any(|action| matches!(action, CatchUpAction::CloseReader)) {
                let ended = self.close(consumer, &group).await;
                if ended.is_err() {
                    self.tell(CatchUpEvent::Removed { epoch, is_gone: false }).await;
                }
                return ended;
            }
        }
    }

    /// Makes sure that the group exists. If an operator deleted it, the catch-up reader feeds
    /// everything again that the group was made for, and the gateway drops duplicates. If this
    /// catch-up reader deleted the group at its end and only missed the answer, it is done.
    async fn keep_group(&self, group: &GroupName) -> Result<ControlFlow<FeedRound>> {
        let epoch = self.epoch();
        if self.stands(|one| one.has_caught_up(epoch))
            && self.side.status(group).await?.is_none()
            && self.is_done(CatchUpEvent::Gone { epoch }).await
        {
            return Ok(ControlFlow::Break(FeedRound::Done));
        }
        let Some(behind) = self.slot.ask(self.partition, |one| one.group_behind(epoch)) else {
            self.let_go().await;
            return Ok(ControlFlow::Break(FeedRound::Again));
        };
        self.side.make(group, behind).await?;
        self.tell(CatchUpEvent::Kept { epoch }).await;
        Ok(ControlFlow::Continue(()))
    }

    async fn join(&self, group: &GroupName) -> Result<Consumer> {
        let options = &self.catch_up.options;
        let config = ConsumerConfig {
            // A gateway that is parked on several partitions has as many catch-up readers here.
            name: format!("{:.50}.{}", options.node, self.partition),
            max_in_flight: AHEAD,
            concurrency: AHEAD,
            partitions: BTreeSet::from([self.partition]),
            // Only the owner of the partition makes the group; the consumer never does.
            start: StartAt::Existing,
            ..options.consumer()
        };
        Ok(self.catch_up.broker.consumer(&options.topic, group.as_str()).config(config).await?)
    }

    /// Closes the consumer, and removes the group if everything that it was fed is settled.
    async fn close(&self, consumer: Consumer, group: &GroupName) -> Result<FeedRound> {
        let epoch = self.epoch();
        consumer.close().await?;
        // Every verdict that could be stored is stored now.
        let status = self.status(group).await?;
        let keeps_letters = status.dead + status.due > 0;
        let actions = self.apply(CatchUpEvent::Closed { epoch, settled: status.frontier, keeps_letters });
        let removal = actions.iter().find_map(|action| match action {
            CatchUpAction::RemoveGroup { hold, mark } => Some((hold.clone(), *mark)),
            _ => None,
        });
        let Some((hold, mark)) = removal else {
            self.perform(actions).await;
            return Ok(FeedRound::Again);
        };
        if self.catch_up.lanes.registry.gateway(&self.slot.gateway).is_none() {
            self.slot.note_abandoned();
        }
        match hold.remove(group).await {
            Ok(_) => {
                self.unmark(mark).await;
                let is_done = self.is_done(CatchUpEvent::Removed { epoch, is_gone: true }).await;
                Ok(if is_done { FeedRound::Done } else { FeedRound::Again })
            }
            Err(error) if error.kind() == firth::ErrorKind::Fenced => {
                self.tell(CatchUpEvent::Removed { epoch, is_gone: false }).await;
                self.let_go().await;
                Ok(FeedRound::Again)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the mark of the group, which is gone.
    async fn unmark(&self, mark: Option<u64>) {
        let Some(mark) = mark else { return };
        let unmarked = self.catch_up.unmark(&self.side, self.partition, &self.slot.gateway, mark);
        if let Err(error) = unmarked.await {
            tracing::debug!(gateway = %self.slot.gateway, %error, "the mark of a group that is gone is left over");
        }
    }

    /// Lets go of everything that it has put into the lane, and of what went in behind that as it
    /// happened.
    async fn let_go(&self) {
        self.tell(CatchUpEvent::LetGo { epoch: self.epoch() }).await;
    }

    fn apply(&self, event: CatchUpEvent<SideGroups>) -> Vec<CatchUpAction<SideGroups>> {
        self.catch_up.apply(&self.slot, self.partition, event)
    }

    async fn perform(&self, actions: Vec<CatchUpAction<SideGroups>>) {
        // Only making a group fails, and a catch-up reader is not asked for that.
        if let Err(error) = self.catch_up.perform(&self.slot, self.partition, actions).await {
            tracing::warn!(gateway = %self.slot.gateway, partition = self.partition, %error, "a step of catch-up failed");
        }
    }

    async fn tell(&self, event: CatchUpEvent<SideGroups>) {
        let actions = self.apply(event);
        self.perform(actions).await;
    }

    /// As [`tell`](Self::tell), of the end of the group; true if the gateway has caught up by that.
    async fn is_done(&self, event: CatchUpEvent<SideGroups>) -> bool {
        let actions = self.apply(event);
        let is_done = actions.iter().any(|action| matches!(action, CatchUpAction::TellResumed));
        self.perform(actions).await;
        is_done
    }

    /// Takes records until everything that was left out is taken. They come in the order of the
    /// partition.
    async fn take(&self, consumer: &mut Consumer, group: &GroupName) -> Result<Pause> {
        let epoch = self.epoch();
        loop {
            if self.is_over() {
                return Ok(Pause::Gone);
            }
            if self.stands(|one| one.wants_look(Instant::now(), epoch)) {
                let status = self.status(group).await?;
                let keeps_letters = status.dead + status.due > 0;
                let may_go_on = !keeps_letters && self.is_calm();
                self.tell(CatchUpEvent::Looked { epoch, may_go_on }).await;
                if !keeps_letters && self.stands(|one| one.has_caught_up(epoch)) {
                    return Ok(Pause::CaughtUp);
                }
            }
            let room = self.slot.room.notified();
            let is_stuck = self.rests(&consumer.handle());
            let deliveries = tokio::select! {
                () = self.stop.cancelled() => return Ok(Pause::Gone),
                deliveries = consumer.next_many(CHUNK), if !is_stuck => deliveries,
                () = room, if is_stuck => continue,
                () = tokio::time::sleep(LOOK) => {
                    if is_stuck && self.is_abandoned() {
                        return Ok(Pause::Gone);
                    }
                    // What an earlier catch-up reader has settled does not come again.
                    let seq = self.status(group).await?.frontier.seq;
                    self.tell(CatchUpEvent::Took { epoch, seq }).await;
                    continue;
                }
            };
            let Some(deliveries) = deliveries.transpose()? else { return Ok(Pause::Gone) };
            if !self.put_all(consumer, deliveries).await {
                return Ok(Pause::Gone);
            }
        }
    }

    /// Puts records into the lane, in order; false if there is no point in waiting any more.
    async fn put_all(&self, consumer: &Consumer, deliveries: Vec<Delivery>) -> bool {
        let seq = deliveries.iter().map(|delivery| delivery.id().seq).max().unwrap_or_default();
        let lost = consumer.handle().take_lost(self.partition, seq);
        if lost > 0 {
            self.slot.lose(self.partition, lost);
        }
        let mut unwanted = Vec::new();
        let deliveries: Vec<_> = deliveries.into_iter().map(InHand::new).collect();
        for (number, delivery) in deliveries.into_iter().enumerate() {
            if number % BITE == BITE - 1 {
                tokio::task::yield_now().await;
            }
            if !self.route(delivery, &mut unwanted).await {
                return false;
            }
        }
        InHand::ack_all(unwanted);
        self.tell(CatchUpEvent::Took { epoch: self.epoch(), seq }).await;
        true
    }

    /// Whether the gateway is silent while events wait for it. What it does not take is not read
    /// for it either: that would cost as much as reading for all the others. So the consumer is
    /// paused, and no event wakes it.
    fn rests(&self, consumer: &ConsumerHandle) -> bool {
        let is_stuck = self.slot.lane().is_stuck(Instant::now(), self.catch_up.options.stall_timeout);
        match (is_stuck, consumer.is_paused()) {
            (true, false) => consumer.pause(),
            (false, true) => consumer.resume(),
            _ => {}
        }
        is_stuck
    }

    /// Whether the gateway is gone, and no waiting event is for a subscription that still names it.
    /// If the catch-up reader read these events again, none would be for this gateway.
    fn is_abandoned(&self) -> bool {
        let registry = &self.catch_up.lanes.registry;
        let gateway = &self.slot.gateway;
        let is_wanted = |item: &Item| {
            let mut wanted = item.wanted.iter();
            wanted.any(|one| registry.is_direct(item.tenant(), &one.subscription, gateway))
        };
        registry.gateway(gateway).is_none() && !self.slot.lane().waiting(self.partition).any(is_wanted)
    }

    async fn status(&self, group: &GroupName) -> Result<SideGroupStatus> {
        let missing = || Error::new(ErrorKind::NotFound, "the group of a parked gateway is gone");
        self.side.status(group).await?.ok_or_else(missing)
    }

    fn epoch(&self) -> Epoch {
        self.side.hold().epoch
    }

    fn stands(&self, holds: impl FnOnce(&CatchUp<SideGroups>) -> bool) -> bool {
        self.slot.stands(self.partition, holds)
    }

    fn is_behind(&self) -> bool {
        self.stands(|one| one.is_behind() && one.group_behind(self.epoch()).is_some())
    }

    /// Whether the lane has room for live events.
    fn is_calm(&self) -> bool {
        let lane = self.slot.lane();
        let is_silent = lane.is_silent(Instant::now(), self.catch_up.options.stall_timeout);
        // A silent gateway that is owed nothing may be gone for good: it gets what comes, if
        // anything does.
        lane.pressure() == Pressure::None && lane.held() < AHEAD && (lane.held() == 0 || !is_silent)
    }

    /// Puts a record into the lane if the gateway wants it, as soon as the lane is calm; false if
    /// there is no point in waiting any more.
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
        let lanes = &self.catch_up.lanes;
        let wanted = match self.destinations(&event).await {
            Ok(Some(found)) => {
                found.by_gateway.into_iter().find(|(gateway, _)| *gateway == self.slot.gateway)
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
        let trace = delivery.trace();
        let appended_ms = delivery.id().ms;
        let record_number = lanes.records.open([(delivery, 1, None)], Source::Again(self.slot.number)).start;
        // The numbers of the router's own group, so that receivers see one history.
        let item = Item::new(position, self.epoch().0, event, &wanted);
        let item =
            item.with_record_number(record_number).appended_at(appended_ms).read_again().with_trace(trace);
        loop {
            let room = self.slot.room.notified();
            let calm = self.slot.lane().pressure() == Pressure::None;
            if calm && self.slot.offer(&item) == Offer::Taken {
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

    /// Returns the gateways that want an event. While a subscription wants it and no gateway can be
    /// named, waits. Returns `None` if the ownership ends or the node closes first.
    async fn destinations(&self, event: &Event) -> Result<Option<Destinations>> {
        let lanes = &self.catch_up.lanes;
        let max_fanout = self.catch_up.options.routing.max_fanout;
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
    async fn drain(&self) -> Pause {
        loop {
            let open = self.catch_up.lanes.records.count(self.partition, Source::Again(self.slot.number));
            if open == 0 || self.is_behind() {
                return Pause::CaughtUp;
            }
            tokio::select! {
                () = self.stop.cancelled() => return Pause::Gone,
                () = self.slot.room.notified() => {}
                () = tokio::time::sleep(LOOK) => {
                    if self.is_over() || self.is_abandoned() {
                        return Pause::Gone;
                    }
                }
            }
        }
    }

    /// Whether the ownership is over, noticed by the reader or not yet, or the node closes.
    fn is_over(&self) -> bool {
        let owned = self.catch_up.handle.epochs().get(&self.partition).copied();
        self.stop.is_cancelled() || owned != Some(self.epoch())
    }
}
