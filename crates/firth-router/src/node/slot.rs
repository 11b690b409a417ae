//! One gateway's slot at a node: its lane, and how it stands to each partition. One lock guards
//! both, so that an event never goes into the lane of a gateway that falls behind just then.

use super::catch_up::{CatchUp, CatchUpAction, CatchUpEvent};
use super::lanes::ParkedPartition;
use super::metrics;
use super::records::{Records, Source};
use crate::lane::{Item, Lane, Offer, Position, ReleaseCause, Released};
use crate::name::{GatewayId, SubscriptionId};
use firth::SideGroups;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The answer to an event that happens.
pub(super) enum Live {
    /// It is in the lane.
    Taken,
    /// It was or will be read from the topic.
    Left,
    /// There is no room.
    Full,
}

/// A lane that readers fill and a driver empties, and the catch-up of its gateway.
pub(super) struct GatewaySlot {
    pub(super) gateway: GatewayId,
    /// Its number at this node.
    pub(super) number: u64,
    /// Its name in metrics, if it has one of its own.
    pub(super) label: Option<String>,
    state: Mutex<SlotState>,
    /// A step on the group of the gateway has ended.
    pub(super) stepped: Notify,
    /// Something to send, or the end of it.
    pub(super) work: Notify,
    /// Room for more.
    pub(super) room: Notify,
    /// Its gateway is gone, and nothing is left for it.
    pub(super) gone: CancellationToken,
}

/// What the lock of a slot guards.
struct SlotState {
    lane: Lane,
    /// By partition; none for a partition whose events it gets as they happen.
    catch_up: BTreeMap<u32, CatchUp<SideGroups>>,
    /// Stop the catch-up readers, by partition.
    stops: BTreeMap<u32, CancellationToken>,
    /// Stops everything of the node.
    stop: CancellationToken,
    /// It was fed until its gateway was gone, and the gateways to which its subscriptions went may
    /// not know yet what they missed.
    is_abandoned: bool,
}

/// What follows from an event of catch-up, beside what was done to the lane.
#[derive(Default)]
struct Applied {
    /// Left the lane; their records wait for this lane no longer.
    released: Vec<Released>,
    /// Stay in the lane; their records wait for this lane no longer.
    detached: Vec<Released>,
    /// Left the lane; their records are given back.
    dropped: Vec<Released>,
    drops_fed: bool,
    /// A step on the group has ended.
    is_free: bool,
    rest: Vec<CatchUpAction<SideGroups>>,
}

/// The lane of a slot, locked.
pub(super) struct LaneGuard<'a>(MutexGuard<'a, SlotState>);

impl std::ops::Deref for LaneGuard<'_> {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        &self.0.lane
    }
}

impl std::ops::DerefMut for LaneGuard<'_> {
    fn deref_mut(&mut self) -> &mut Lane {
        &mut self.0.lane
    }
}

impl GatewaySlot {
    /// A slot for a gateway; `stop` ends its catch-up readers.
    pub(super) fn new(
        (gateway, number, label): (GatewayId, u64, Option<String>),
        lane: Lane,
        stop: CancellationToken,
    ) -> Self {
        let catch_up = BTreeMap::new();
        let stops = BTreeMap::new();
        Self {
            gateway,
            number,
            label,
            state: Mutex::new(SlotState { lane, catch_up, stops, stop, is_abandoned: false }),
            stepped: Notify::new(),
            work: Notify::new(),
            room: Notify::new(),
            gone: CancellationToken::new(),
        }
    }

    pub(super) fn lane(&self) -> LaneGuard<'_> {
        LaneGuard(self.lock())
    }

    /// What holds of its catch-up on a partition; nothing does without one.
    pub(super) fn stands(&self, partition: u32, holds: impl FnOnce(&CatchUp<SideGroups>) -> bool) -> bool {
        self.lock().catch_up.get(&partition).is_some_and(holds)
    }

    /// Asks its catch-up on a partition something, if there is one.
    pub(super) fn ask<T>(
        &self,
        partition: u32,
        question: impl FnOnce(&CatchUp<SideGroups>) -> Option<T>,
    ) -> Option<T> {
        self.lock().catch_up.get(&partition).and_then(question)
    }

    /// Tells its catch-up on a partition what happened, and does to lane and records what follows.
    /// Returns what is left to do: steps on groups, readers, messages.
    pub(super) fn apply(
        &self,
        records: &Records,
        partition: u32,
        event: CatchUpEvent<SideGroups>,
    ) -> Vec<CatchUpAction<SideGroups>> {
        let applied = self.lock().apply(partition, event);
        metrics::released(&applied.released);
        metrics::released(&applied.dropped);
        records.release(self.gateway.as_str(), &applied.released);
        records.release(self.gateway.as_str(), &applied.detached);
        if applied.drops_fed {
            records.give_back(partition, Source::Again(self.number));
        }
        if applied.is_free {
            self.stepped.notify_waiters();
        }
        applied.rest
    }

    /// Cancelled when the catch-up reader of a partition must stop.
    pub(super) fn stop_of(&self, partition: u32) -> CancellationToken {
        let state = self.lock();
        state.stops.get(&partition).unwrap_or(&state.stop).clone()
    }

    /// Whether it has not let go of something up to this place that it got as it happened.
    pub(super) fn holds(&self, partition: u32, upto: u64) -> bool {
        self.lock().lane.lowest(partition).is_some_and(|lowest| lowest <= upto)
    }

    /// The partitions that it is behind on.
    pub(super) fn behind(&self) -> Vec<ParkedPartition> {
        let state = self.lock();
        let behind = state.catch_up.iter().filter_map(|(partition, one)| {
            let (since, taken, left_out) = one.progress()?;
            Some(ParkedPartition { partition: *partition, parked_for: since.elapsed(), taken, left_out })
        });
        behind.collect()
    }

    /// Takes out of the lane what a catch-up reader reads again, after events have come back.
    pub(super) fn leave_to_readers(&self) -> Vec<Released> {
        let mut state = self.lock();
        let SlotState { lane, catch_up, .. } = &mut *state;
        let fed = catch_up.iter().filter_map(|(partition, one)| Some((*partition, one.fed_from()?)));
        fed.flat_map(|(partition, from)| lane.park(partition, from)).collect()
    }

    /// Puts an event in as it happens, unless it was or will be read from the topic for a parked
    /// gateway.
    pub(super) fn offer_live(&self, item: &Item) -> Live {
        let Position { partition, seq } = item.position;
        let mut state = self.lock();
        if let Some(one) = state.catch_up.get_mut(&partition) {
            if !one.admits(seq) {
                state.lane.pass(partition, &ReleaseCause::Parked);
                return Live::Left;
            }
            if one.is_over(seq) {
                state.catch_up.remove(&partition);
            }
        }
        match self.put(&mut state.lane, [item.clone()]).next() {
            None => Live::Taken,
            Some(_) => Live::Full,
        }
    }

    /// Puts an event in if there is room.
    pub(super) fn offer(&self, item: &Item) -> Offer {
        match self.put(&mut self.lock().lane, [item.clone()]).next() {
            None => Offer::Taken,
            Some(_) => Offer::Full,
        }
    }

    /// Puts events of one partition in, in order, as far as there is room and the gateway gets
    /// events as they happen; answers the rest.
    pub(super) fn offer_all(&self, items: Vec<Item>) -> impl Iterator<Item = Item> + use<> {
        let mut state = self.lock();
        let is_parked =
            items.first().is_some_and(|item| state.catch_up.contains_key(&item.position.partition));
        let (now, later) = if is_parked { (Vec::new(), items) } else { (items, Vec::new()) };
        self.put(&mut state.lane, now).chain(later)
    }

    /// Ends an ownership of a partition: its live events that wait leave the lane, whether or not
    /// the gateway is parked. The caller gives their records back.
    pub(super) fn lose_partition(&self, records: &Records, partition: u32) {
        if self.stands(partition, |_| true) {
            self.apply(records, partition, CatchUpEvent::Lost);
        } else {
            metrics::released(&self.lane().park(partition, 0));
        }
    }

    /// Events of a partition are gone that were not routed yet.
    pub(super) fn lose(&self, partition: u32, count: u64) {
        self.lane().lose(partition, count, Instant::now());
        self.work.notify_one();
    }

    /// Subscriptions have come here from another gateway.
    pub(super) fn move_in(&self, subscriptions: Vec<SubscriptionId>) {
        self.lane().move_in(subscriptions, Instant::now());
        self.work.notify_one();
    }

    /// Whether a gap marker waits for the gateway.
    pub(super) fn has_marker(&self) -> bool {
        self.lane().has_marker()
    }

    /// Notes that the gateway went while events waited for it. They wait no more, because no
    /// subscription wants them from this gateway any more.
    pub(super) fn note_abandoned(&self) {
        self.lock().is_abandoned = true;
    }

    /// Whether events wait for the gateway, or did when it went.
    pub(super) fn had_backlog(&self) -> bool {
        let is_abandoned = self.lock().is_abandoned;
        is_abandoned || self.has_backlog()
    }

    /// Clears the note of `note_abandoned`: the new gateways of its subscriptions are told.
    pub(super) fn has_told(&self) {
        self.lock().is_abandoned = false;
    }

    /// Whether events wait for the gateway, here or in the topic.
    pub(super) fn has_backlog(&self) -> bool {
        let state = self.lock();
        state.lane.held() > 0 || state.catch_up.values().any(CatchUp::has_backlog)
    }

    /// Puts events in until one finds no room; answers it and those behind it.
    fn put<I: IntoIterator<Item = Item>>(
        &self,
        lane: &mut Lane,
        items: I,
    ) -> impl Iterator<Item = Item> + use<I> {
        let mut items = items.into_iter();
        let now = Instant::now();
        let mut left = None;
        let mut taken = 0;
        let before = lane.ready();
        for item in items.by_ref() {
            if lane.is_full(&item) {
                left = Some(item);
                break;
            }
            lane.offer(item, now);
            taken += 1;
        }
        if taken > 0 && lane.is_due(before) {
            self.work.notify_one();
        }
        left.into_iter().chain(items)
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotState {
    fn apply(&mut self, partition: u32, event: CatchUpEvent<SideGroups>) -> Applied {
        let one = self.catch_up.entry(partition).or_insert_with(CatchUp::new);
        let mut applied = Applied::default();
        let was_busy = one.is_busy();
        let actions = one.on(Instant::now(), event);
        applied.is_free = was_busy && !one.is_busy();
        self.lane.exempt_from(partition, one.exempt());
        if !one.has_reader() {
            self.stops.remove(&partition);
        }
        if one.is_idle() {
            self.catch_up.remove(&partition);
        }
        for action in actions {
            match action {
                CatchUpAction::LeaveToReader { from } => {
                    applied.released.extend(self.lane.park(partition, from));
                }
                CatchUpAction::Detach { from } => {
                    applied.detached.extend(self.lane.detach_in_flight(partition, from));
                }
                CatchUpAction::DropLive => applied.dropped.extend(self.lane.park(partition, 0)),
                CatchUpAction::DropFed => {
                    applied.dropped.extend(self.lane.drop_fed(partition));
                    applied.drops_fed = true;
                }
                CatchUpAction::StopReader => {
                    if let Some(stop) = self.stops.get(&partition) {
                        stop.cancel();
                    }
                }
                CatchUpAction::StartReader { .. } => {
                    self.stops.insert(partition, self.stop.child_token());
                    applied.rest.push(action);
                }
                rest => applied.rest.push(rest),
            }
        }
        applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RoutingConfig;
    use crate::event::{Event, Operation};
    use crate::name::Tenant;
    use firth::{Broker, Epoch, RecordId};
    use std::sync::Arc;

    fn item(seq: u64) -> Item {
        let event = Event::new(Operation::Insert, Tenant::new("t").unwrap(), "c", "k");
        Item::new(Position { partition: 0, seq }, 1, Arc::new(event), &[])
    }

    /// Of a gateway that was parked behind 5 and has caught up to 10; events 11 to 15 happen then.
    async fn caught_up() -> (GatewaySlot, Records, Epoch) {
        let broker = Broker::memory();
        broker.create_topic("changes").await.unwrap();
        let consumer = broker.consumer("changes", "router").await.unwrap();
        consumer.handle().assigned(|owned| owned.contains(&0)).await;
        let side = broker.side_groups(&consumer.handle().hold(0).unwrap()).unwrap();
        let epoch = side.hold().epoch;
        let records = Records::new(true);
        let lane = Lane::new(RoutingConfig::default());
        let slot = GatewaySlot::new((GatewayId::new("g").unwrap(), 0, None), lane, CancellationToken::new());
        let behind = RecordId::new(1, 5);
        let found = CatchUpEvent::Found { owner: (epoch, side), behind, last: 10, mark: 1 };
        slot.apply(&records, 0, found);
        slot.apply(&records, 0, CatchUpEvent::Took { epoch, seq: 10 });
        slot.apply(&records, 0, CatchUpEvent::Looked { epoch, may_go_on: true });
        (11..=15).for_each(|seq| assert!(matches!(slot.offer_live(&item(seq)), Live::Taken)));
        (slot, records, epoch)
    }

    /// What is fed again would come behind what went into the lane as it happened.
    #[tokio::test]
    async fn a_gateway_that_falls_behind_holds_nothing_that_happened() {
        let (slot, records, epoch) = caught_up().await;
        slot.apply(&records, 0, CatchUpEvent::LetGo { epoch: Epoch(epoch.0 + 1) });
        assert_eq!(slot.lane().held(), 5, "another ownership changes nothing");
        slot.apply(&records, 0, CatchUpEvent::LetGo { epoch });
        assert_eq!(slot.lane().held(), 0);
        assert_eq!(slot.behind().iter().map(|parked| parked.partition).collect::<Vec<_>>(), [0]);
        assert!(matches!(slot.offer_live(&item(16)), Live::Left));
    }

    /// It may come back unanswered, and is let go then.
    #[tokio::test]
    async fn what_comes_back_to_a_gateway_that_is_behind_is_left_to_its_reader() {
        let (slot, records, epoch) = caught_up().await;
        let batch = slot.lane().poll(Instant::now()).expect("an idle lane sends at once");
        slot.apply(&records, 0, CatchUpEvent::LetGo { epoch });
        let on_their_way = batch.items.len();
        assert_eq!(slot.lane().held(), on_their_way);
        slot.lane().settle(batch.id, crate::lane::Outcome::Unreached, Instant::now(), 0.0);
        assert_eq!(slot.leave_to_readers().len(), on_their_way);
        assert_eq!(slot.lane().held(), 0);
    }
}
