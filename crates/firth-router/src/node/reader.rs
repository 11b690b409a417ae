//! The reader: takes records in order, matches each, and puts it into the lanes of the gateways
//! that want it. It also notices which gateway holds up a partition, and parks it.

use super::catch_up::{CatchUp, Manager};
use super::lanes::Lanes;
use super::progress::{Progress, STALL_CHECK};
use super::records::{InHand, Source};
use super::slot::{GatewaySlot, Live};
use super::{MAX_OPEN, RouterOptions, metrics};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::lane::{Item, Position};
use crate::name::{GatewayId, SubscriptionId, Tenant};
use crate::registry::{Destinations, Finder, Tables};
use crate::routing::{SlotTable, slot_of};
use firth::{Broker, Consumer, ConsumerHandle, Delivery, Epoch};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often a node without gateways looks for one, and how often it looks for gateways that hold
/// it up.
const LOOK: Duration = Duration::from_millis(100);
/// How many records are taken at a time.
const CHUNK: usize = 100;
/// How often lanes of gateways that are gone are looked for.
const SWEEP: Duration = Duration::from_secs(5);

pub(super) struct Reader {
    lanes: Arc<Lanes>,
    options: RouterOptions,
    catch_up: Arc<Manager>,
    partitions: HashMap<u32, Progress>,
    /// The owners of slots when it last looked.
    tables: Arc<Tables>,
    /// Of tenants that have no gateway now: the last ones that they had.
    vacant: HashMap<Tenant, Arc<SlotTable>>,
    /// When it last looked for gateways that are gone.
    swept: Instant,
    /// When it stall check at who holds up all others, if anybody may.
    stall_check: Option<Instant>,
}

/// A record that some gateways want.
struct Matched {
    delivery: InHand,
    event: Arc<Event>,
    found: Destinations,
}

impl Reader {
    pub(super) fn new(
        broker: Broker,
        handle: ConsumerHandle,
        lanes: Arc<Lanes>,
        options: RouterOptions,
    ) -> Self {
        let catch_up = Arc::new(Manager::new(broker, handle, Arc::clone(&lanes), options.clone()));
        let tables = lanes.registry.tables();
        let swept = Instant::now();
        Self {
            lanes,
            options,
            catch_up,
            partitions: HashMap::new(),
            tables,
            vacant: HashMap::new(),
            swept,
            stall_check: None,
        }
    }

    /// Reads until the consumer is closed or cannot go on.
    pub(super) async fn run(mut self, mut consumer: Consumer) -> Result<()> {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                biased;
                _ = looks.tick() => self.look().await,
                () = moment(self.stall_check) => self.stall_check().await,
                deliveries = consumer.next_many(CHUNK) => match deliveries {
                    Some(Ok(deliveries)) => {
                        self.route(deliveries).await;
                        // Drivers send this while another worker goes on reading; pieces that
                        // come during the yield are taken as one.
                        tokio::task::yield_now().await;
                    }
                    Some(Err(error)) => break Err(error.into()),
                    None => break Ok(()),
                }
            }
        };
        self.catch_up.close().await;
        ended
    }

    /// Routes records of one partition that were handed out together.
    async fn route(&mut self, deliveries: Vec<Delivery>) {
        let mut waiting: VecDeque<_> = deliveries.into_iter().map(InHand::new).collect();
        let Some(first) = waiting.front() else { return };
        let partition = first.partition();
        let epoch = first.epoch();
        let last = waiting.iter().map(|delivery| delivery.id().seq).max().unwrap_or_default();
        // What is dropped here, because the ownership that it was read under is over, comes again.
        if self.note(Position { partition, seq: last }, epoch).await {
            self.tell_lost(partition, last);
            while !waiting.is_empty() {
                let matched = self.take_matched(&mut waiting);
                let goes_on = self.spread(matched, partition, epoch).await
                    && (waiting.is_empty() || self.pause(partition, epoch).await);
                if !goes_on {
                    return;
                }
            }
            self.arm(partition);
        }
    }

    /// Tells every gateway, before what comes next, that events are gone: a lossy trim removed some
    /// before they were routed, or the log lost some that were. Whose they were is not known. Who
    /// feeds a parked gateway finds out by itself.
    fn tell_lost(&self, partition: u32, last: u64) {
        let count = self.catch_up.handle.take_lost(partition, last);
        if count == 0 {
            return;
        }
        tracing::warn!(partition, count, "events of the topic are gone: gateways are told");
        // Also those that are away: they are told when they are back.
        let mut gateways = self.lanes.registry.receivers();
        gateways.extend(self.lanes.all().iter().map(|slot| slot.gateway.clone()));
        for gateway in &gateways {
            let slot = self.lanes.slot(gateway);
            if !slot.stands(partition, CatchUp::is_behind) {
                slot.lose(partition, count);
            }
        }
    }

    /// Finds the gateways that want each record, in order, and stops at the first record for which
    /// no gateway is available. Settles the records that no gateway wants.
    fn take_matched(&self, waiting: &mut VecDeque<InHand>) -> Vec<Matched> {
        let started = Instant::now();
        let mut unwanted = Vec::new();
        let mut matched = Vec::with_capacity(waiting.len());
        let mut finder = self.lanes.registry.finder();
        while let Some(delivery) = waiting.pop_front() {
            match self.find(&mut finder, &delivery) {
                Ok((event, found)) => match (found.by_gateway.is_empty(), &found.refused) {
                    (true, None) => unwanted.push(delivery),
                    (true, Some(error)) => refuse(delivery, error),
                    (false, _) => matched.push(Matched { delivery, event, found }),
                },
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    waiting.push_front(delivery);
                    break;
                }
                Err(error) => refuse(delivery, &error),
            }
        }
        drop(finder);
        metrics::routed(started.elapsed(), matched.len(), unwanted.len());
        InHand::ack_all(unwanted);
        matched
    }

    fn find(&self, finder: &mut Finder<'_>, delivery: &InHand) -> Result<(Arc<Event>, Destinations)> {
        let event = Event::from_payload(delivery.payload())?;
        let found = finder.destinations(&event, self.options.routing.max_fanout)?;
        Ok((Arc::new(event), found))
    }

    /// Gives each lane its share at once: one look of its driver, not one per event. False if the
    /// ownership is over.
    async fn spread(&self, matched: Vec<Matched>, partition: u32, epoch: Epoch) -> bool {
        let mut open = Vec::with_capacity(matched.len());
        let mut events = Vec::with_capacity(matched.len());
        for Matched { delivery, event, found: Destinations { by_gateway, refused } } in matched {
            let id = delivery.id();
            let trace = delivery.trace();
            open.push((delivery, by_gateway.len(), refused.map(|error| error.to_string())));
            events.push((id, event, by_gateway, trace));
        }
        let mut shares: BTreeMap<GatewayId, Vec<Item>> = BTreeMap::new();
        let record_numbers = self.lanes.records.open(open, Source::Live);
        for (record_number, (id, event, by_gateway, trace)) in record_numbers.zip(events) {
            let position = Position { partition, seq: id.seq };
            for (gateway, wanted) in by_gateway {
                let item = Item::new(position, epoch.0, Arc::clone(&event), &wanted);
                let item = item.with_record_number(record_number).appended_at(id.ms);
                shares.entry(gateway).or_default().push(item.with_trace(trace.clone()));
            }
        }
        for (gateway, items) in shares {
            if !self.offer_all(&self.lanes.slot(&gateway), items).await {
                return false;
            }
        }
        true
    }

    /// Waits a moment for a gateway; false if there is no point in waiting any more.
    async fn pause(&self, partition: u32, epoch: Epoch) -> bool {
        tokio::select! {
            () = self.lanes.closing.cancelled() => false,
            () = tokio::time::sleep(LOOK) => self.owns(partition, epoch),
        }
    }

    /// Puts events of one partition into a lane, in order; none behind one that was not taken
    /// because the ownership is over.
    async fn offer_all(&self, slot: &Arc<GatewaySlot>, items: Vec<Item>) -> bool {
        for item in slot.offer_all(items) {
            if !self.offer(slot, &item).await {
                return false;
            }
        }
        true
    }

    /// Puts an event into a lane, or leaves it to the catch-up reader if the gateway is parked. If
    /// the lane is full, the node parks the gateway. While the node cannot park it, the source
    /// waits, as long as this node owns the partition. Returns false if the node owns it no more.
    ///
    /// Parking makes no room for a replayed dead letter, because no catch-up reader reads it again.
    /// For a dead letter, the source waits only while the gateway takes something.
    async fn offer(&self, slot: &Arc<GatewaySlot>, item: &Item) -> bool {
        let Position { partition, seq } = item.position;
        loop {
            let room = slot.room.notified();
            match slot.offer_live(item) {
                Live::Taken => return true,
                Live::Left => {
                    self.catch_up.skip(slot, item);
                    return true;
                }
                Live::Full => {}
            }
            // Not up to this event: it may be a letter, and what the lane holds has happened long
            // after it.
            let last = self.partitions.get(&partition).map_or(seq, |progress| progress.last);
            let parked = self.catch_up.park(slot, partition, last).await;
            if matches!(parked, Ok(true)) {
                continue;
            }
            // The node read it under an ownership that is over. The next owner reads it again, and
            // every event behind it.
            if !self.owns(partition, Epoch(item.epoch)) {
                return false;
            }
            match parked {
                Ok(_) if self.is_hopeless(slot) => {
                    self.catch_up.give_up(slot, item);
                    return true;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(gateway = %slot.gateway, partition, %error, "a full lane cannot be parked yet");
                }
            }
            tokio::select! {
                () = room => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Whether a letter for a parked gateway had better stay one than hold up everybody.
    fn is_hopeless(&self, slot: &GatewaySlot) -> bool {
        self.options.routing.dlq.enabled && slot.lane().is_silent(Instant::now(), self.options.stall_timeout)
    }

    /// Notes how far a partition is read, and begins its ownership if that is new. False if the
    /// ownership is over: what was read under it comes again, and none of it may go on, for it
    /// would come before what else was let go.
    async fn note(&mut self, Position { partition, seq }: Position, epoch: Epoch) -> bool {
        if !self.owns(partition, epoch) {
            return false;
        }
        if let Some(progress) = self.partitions.get_mut(&partition)
            && progress.epoch == epoch
        {
            progress.last = seq.max(progress.last);
            return true;
        }
        while let Err(error) = self.catch_up.begin(partition, epoch).await {
            if !self.owns(partition, epoch) {
                return false;
            }
            tracing::warn!(partition, %error, "parked gateways cannot be looked up yet");
            tokio::time::sleep(LOOK).await;
        }
        let stall_timeout = self.options.stall_timeout;
        let max_wait = self.options.routing.batch.max_wait;
        self.partitions.insert(partition, Progress::new(epoch, seq, stall_timeout, max_wait));
        true
    }

    /// Whether an ownership goes on. One that is over never comes back: the next one has another
    /// epoch.
    fn owns(&self, partition: u32, epoch: Epoch) -> bool {
        self.catch_up.epochs().get(&partition) == Some(&epoch)
    }

    /// Tells gateways which subscriptions have come to them from one that is still owed events:
    /// those are not sent to another one.
    fn tell_moved(&mut self) {
        let now = self.lanes.registry.tables();
        if Arc::ptr_eq(&now, &self.tables) {
            return;
        }
        let last = std::mem::replace(&mut self.tables, now);
        let mut vacant = std::mem::take(&mut self.vacant);
        let mut moved: BTreeMap<(GatewayId, GatewayId), Vec<SubscriptionId>> = BTreeMap::new();
        for ids in self.lanes.registry.hashed().chunk_by(|one, two| one.0 == two.0) {
            let tenant = &ids[0].0;
            let before = vacant.remove(tenant).unwrap_or_else(|| last.of(tenant));
            let after = self.tables.of(tenant);
            if after.gateways().is_empty() {
                self.vacant.insert(tenant.clone(), before);
                continue;
            }
            for (_, id) in ids {
                let slot = slot_of(id);
                if let (Some(from), Some(to)) = (before.owner(slot), after.owner(slot))
                    && from != to
                {
                    moved.entry((from.clone(), to.clone())).or_default().push(id.clone());
                }
            }
        }
        let mut told = Vec::new();
        for ((from, to), subscriptions) in moved {
            if let Some(slot) = self.lanes.known(&from).filter(|slot| slot.had_backlog()) {
                tracing::info!(%from, %to, count = subscriptions.len(), "subscriptions have moved from a gateway that has not got all events");
                self.lanes.slot(&to).move_in(subscriptions);
                told.push(slot);
            }
        }
        told.iter().for_each(|slot| slot.has_told());
    }

    /// Parks each gateway that holds up a partition: it has not let go of some event for too long.
    /// Even one event counts: after a crash, it may be all that the consumer hands out.
    async fn look(&mut self) {
        let epochs = self.catch_up.epochs();
        self.partitions.retain(|partition, progress| {
            let is_ours = epochs.get(partition) == Some(&progress.epoch);
            if !is_ours {
                self.catch_up.lose(*partition);
            }
            is_ours
        });
        self.catch_up.clear();
        // The parked gateways of a new partition are fed even if no event comes with it.
        for (partition, epoch) in epochs {
            self.note(Position { partition, seq: 0 }, epoch).await;
        }
        self.tell_moved();
        let now = Instant::now();
        if self.swept + SWEEP <= now {
            self.swept = now;
            self.lanes.forget_gone();
        }
        for (&partition, progress) in &mut self.partitions {
            let Some(old) = progress.look(now) else { continue };
            for slot in self.lanes.all() {
                if slot.holds(partition, old) || slot.stands(partition, CatchUp::is_doubtful) {
                    self.catch_up.try_to_park(&slot, partition, progress.last).await;
                }
            }
        }
    }

    /// Schedules a stall check if the partition is full, to notice a gateway that all others wait
    /// for.
    fn arm(&mut self, partition: u32) {
        if self.stall_check.is_none() && self.is_full(partition) {
            self.stall_check = Some(Instant::now() + STALL_CHECK);
        }
    }

    /// Whether nothing more of a partition can be read before something is settled.
    fn is_full(&self, partition: u32) -> bool {
        self.lanes.records.count(partition, Source::Live) >= MAX_OPEN
    }

    /// If a partition is full and some gateway has nothing to do, parks the gateways that hold its
    /// old events. A look would come later, and the idle gateway waits for nothing else.
    async fn stall_check(&mut self) {
        let now = Instant::now();
        let full: Vec<_> =
            self.partitions.keys().copied().filter(|partition| self.is_full(*partition)).collect();
        for (partition, progress) in &mut self.partitions {
            let Some(old) = progress.stall_check(now, full.contains(partition)) else { continue };
            let is_live = |slot: &Arc<GatewaySlot>| !slot.stands(*partition, CatchUp::is_behind);
            let live = self.lanes.all().into_iter().filter(is_live);
            let (holding, others): (Vec<_>, Vec<_>) = live.partition(|slot| slot.holds(*partition, old));
            let is_there = |slot: &Arc<GatewaySlot>| self.lanes.registry.gateway(&slot.gateway).is_some();
            if others.iter().any(|slot| is_there(slot) && !slot.holds(*partition, u64::MAX)) {
                for slot in holding {
                    self.catch_up.try_to_park(&slot, *partition, progress.last).await;
                }
            }
        }
        self.stall_check = (!full.is_empty()).then(|| now + STALL_CHECK);
    }
}

/// Waits for a moment, if there is one.
async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A record that no attempt could route becomes a dead letter, with the reason.
pub(super) fn refuse(delivery: InHand, error: &Error) {
    metrics::unroutable();
    tracing::warn!(partition = delivery.partition(), seq = delivery.id().seq, %error, "a record cannot be routed");
    drop(delivery.reject(error, None));
}
