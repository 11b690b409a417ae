//! The lanes of a node: one per gateway, made when the first event for it comes, each with its driver task.

use super::metrics::{self, Labels};
use super::parked::Parked;
use super::records::Records;
use super::{RouterOptions, driver};
use crate::config::RoutingConfig;
use crate::deliver::Deliverer;
use crate::lane::{Books, Circuit, Ejections, Fate, Item, Lane, Offer, Position, Pressure, Released};
use crate::name::{GatewayId, SubscriptionId};
use crate::registry::Registry;
use firth::{ConsumerHandle, Epoch, RecordId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A lane as it stands.
#[derive(Clone, Debug)]
pub struct LaneStatus {
    /// Whose it is.
    pub gateway: GatewayId,
    /// How many events it holds.
    pub held: usize,
    /// Batches on their way, and how many may be.
    pub in_flight: (usize, usize),
    /// How full it is.
    pub pressure: Pressure,
    /// Whether the gateway counts as reachable.
    pub circuit: Circuit,
    /// The partitions that it is fed from the topic for.
    pub parked: Vec<u32>,
    /// Its books over all partitions.
    pub books: Books,
}

/// The answer to an event that happens.
pub(super) enum Live {
    /// It is in the lane.
    Taken,
    /// It was or will be read from the topic.
    Left,
    /// There is no room.
    Full,
}

/// A lane that a reader fills and a driver empties. Who needs both locks takes `parked` before `lane`.
pub(super) struct Cell {
    pub(super) gateway: GatewayId,
    /// Its number at this node.
    pub(super) number: u64,
    /// Its name in metrics, if it has one of its own.
    pub(super) label: Option<String>,
    lane: Mutex<Lane>,
    parked: Mutex<BTreeMap<u32, Parked>>,
    /// Held while the group of a parked gateway is made or removed.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// Something to send, or the end of it.
    pub(super) work: Notify,
    /// Room for more.
    pub(super) room: Notify,
    /// Its gateway is gone, and nothing is left for it.
    pub(super) gone: CancellationToken,
    /// It was fed until its gateway was gone, and those to whom the subscriptions went may not know yet what they missed.
    forsaken: AtomicBool,
}

impl Cell {
    fn new(gateway: GatewayId, number: u64, label: Option<String>, lane: Lane) -> Self {
        Self {
            gateway,
            number,
            label,
            lane: Mutex::new(lane),
            parked: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            work: Notify::new(),
            room: Notify::new(),
            gone: CancellationToken::new(),
            forsaken: AtomicBool::new(false),
        }
    }

    pub(super) fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn parked(&self) -> MutexGuard<'_, BTreeMap<u32, Parked>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What holds of how it stands to a partition, if it is or was parked there.
    pub(super) fn stands(&self, partition: u32, holds: impl FnOnce(&Parked) -> bool) -> bool {
        self.parked().get(&partition).is_some_and(holds)
    }

    /// Whether it has not let go of something up to this place that it got as it happened.
    pub(super) fn holds(&self, partition: u32, upto: u64) -> bool {
        self.lane().lowest(partition).is_some_and(|lowest| lowest <= upto)
    }

    /// The partitions that it is behind on.
    pub(super) fn behind(&self) -> Vec<u32> {
        self.fed().into_iter().map(|(partition, _)| partition).collect()
    }

    /// The partitions that it is fed from the topic for, and from where on.
    pub(super) fn fed(&self) -> Vec<(u32, u64)> {
        let parked = self.parked();
        let behind = parked.iter().filter(|(_, parked)| parked.is_behind());
        behind.map(|(partition, parked)| (*partition, parked.from())).collect()
    }

    /// Tells the lane how it stands to a partition; after each change of that.
    pub(super) fn tell_lane(&self, partition: u32) {
        let parked = self.parked();
        let behind = parked.get(&partition).filter(|parked| parked.is_behind());
        self.lane().spare(partition, behind.map(Parked::from));
    }

    /// Puts an event in as it happens, unless it was or will be read from the topic for a parked gateway.
    pub(super) fn offer_live(&self, item: &Item) -> Live {
        let Position { partition, seq } = item.position;
        // Held until the event is in: who falls behind takes all that happened out again.
        let mut parked = self.parked();
        if let Some(one) = parked.get_mut(&partition) {
            if !one.admits(seq) {
                self.lane().pass(partition, &Fate::Parked);
                return Live::Left;
            }
            if one.is_over(seq) {
                parked.remove(&partition);
            }
        }
        match self.offer(item) {
            Offer::Taken => Live::Taken,
            Offer::Full => Live::Full,
        }
    }

    /// A group is asked for, to feed it by under this ownership of a partition.
    pub(super) fn doubt(&self, partition: u32, epoch: Epoch) {
        standing(&mut self.parked(), partition, epoch).doubt();
    }

    /// It is fed from now on, under this ownership of a partition: everything behind a record, and what happened up to another one. What went into
    /// the lane as it happened is taken out.
    pub(super) fn park(&self, partition: u32, epoch: Epoch, behind: RecordId, last: u64) -> Vec<Released> {
        standing(&mut self.parked(), partition, epoch).park(behind, last);
        self.fall_behind(partition, epoch)
    }

    /// It is behind on a partition again, if it was fed under this ownership: what went into the lane as it happened is fed, too, and taken out, for
    /// it must not come before what else is fed.
    pub(super) fn fall_behind(&self, partition: u32, epoch: Epoch) -> Vec<Released> {
        let mut parked = self.parked();
        let Some(one) = parked.get_mut(&partition).filter(|one| one.epoch == epoch) else {
            return Vec::new();
        };
        one.fall_behind();
        let mut lane = self.lane();
        lane.spare(partition, Some(one.from()));
        lane.park(partition, one.from())
    }

    /// Puts an event in if there is room.
    pub(super) fn offer(&self, item: &Item) -> Offer {
        match self.put([item.clone()]).next() {
            None => Offer::Taken,
            Some(_) => Offer::Full,
        }
    }

    /// Puts events of one partition in, in order, as far as there is room and the gateway gets events as they happen; answers the rest.
    pub(super) fn offer_all(&self, items: Vec<Item>) -> impl Iterator<Item = Item> + use<> {
        let parked = self.parked();
        let is_parked = items.first().is_some_and(|item| parked.contains_key(&item.position.partition));
        let (now, later) = if is_parked { (Vec::new(), items) } else { (items, Vec::new()) };
        let left = self.put(now);
        drop(parked);
        left.chain(later)
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
    fn has_marker(&self) -> bool {
        self.lane().has_marker()
    }

    /// Nothing waits any more for a gateway that is gone: nobody wants what it has not got.
    pub(super) fn forsake(&self) {
        self.forsaken.store(true, Ordering::Release);
    }

    /// Whether events wait for the gateway, or did when it went.
    pub(super) fn owed(&self) -> bool {
        self.owes() || self.forsaken.load(Ordering::Acquire)
    }

    /// Those to whom its subscriptions went know.
    pub(super) fn has_told(&self) {
        self.forsaken.store(false, Ordering::Release);
    }

    /// Whether events wait for the gateway, here or in the topic.
    pub(super) fn owes(&self) -> bool {
        let is_owed = self.parked().values().any(|parked| !parked.is_done());
        is_owed || self.lane().held() > 0
    }

    /// Puts events in until one finds no room; answers it and those behind it.
    fn put<I: IntoIterator<Item = Item>>(&self, items: I) -> impl Iterator<Item = Item> + use<I> {
        let (mut items, now) = (items.into_iter(), Instant::now());
        let (mut lane, mut left, mut taken) = (self.lane(), None, 0);
        let before = lane.ready();
        for item in items.by_ref() {
            if lane.is_full(&item) {
                left = Some(item);
                break;
            }
            lane.offer(item, now);
            taken += 1;
        }
        let is_due = taken > 0 && lane.is_due(before);
        drop(lane);
        if is_due {
            self.work.notify_one();
        }
        left.into_iter().chain(items)
    }
}

/// How a gateway stands to a partition under an ownership; of an earlier one nothing is remembered.
fn standing(parked: &mut BTreeMap<u32, Parked>, partition: u32, epoch: Epoch) -> &mut Parked {
    let one = parked.entry(partition).or_insert_with(|| Parked::new(epoch));
    if one.epoch != epoch {
        *one = Parked::new(epoch);
    }
    one
}

/// Lanes and their drivers, and the books of those that are gone.
#[derive(Default)]
struct Cells {
    lanes: BTreeMap<GatewayId, (Arc<Cell>, JoinHandle<()>)>,
    former: BTreeMap<u32, Books>,
}

pub(super) struct Lanes {
    pub(super) registry: Registry,
    pub(super) deliverer: Arc<dyn Deliverer>,
    pub(super) records: Arc<Records>,
    /// The node is closing: nobody waits for anything new.
    pub(super) closing: CancellationToken,
    pub(super) stop: CancellationToken,
    handle: ConsumerHandle,
    topic: Arc<str>,
    config: RoutingConfig,
    ejections: Ejections,
    cells: Mutex<Cells>,
    /// Never more than a limit, however many gateways come and go.
    labels: Mutex<Labels>,
}

impl Lanes {
    pub(super) fn new(
        registry: Registry,
        deliverer: Arc<dyn Deliverer>,
        options: &RouterOptions,
        records: Arc<Records>,
        handle: ConsumerHandle,
    ) -> Self {
        Self {
            registry,
            deliverer,
            records,
            closing: CancellationToken::new(),
            stop: CancellationToken::new(),
            handle,
            topic: options.topic.as_str().into(),
            config: options.routing.clone(),
            ejections: Ejections::default(),
            cells: Mutex::default(),
            labels: Mutex::default(),
        }
    }

    /// The lane of a gateway.
    pub(super) fn cell(self: &Arc<Self>, gateway: &GatewayId) -> Arc<Cell> {
        let lanes = &mut self.lock().lanes;
        if let Some((cell, _)) = lanes.get(gateway) {
            return Arc::clone(cell);
        }
        let is_free = |number: &u64| lanes.values().all(|(cell, _)| cell.number != *number);
        let number = (lanes.len() as u64..).find(is_free).expect("there are more numbers than lanes");
        let lane = Lane::among(self.config.clone(), self.ejections.clone()).of_topic(Arc::clone(&self.topic));
        let label = self.labels.lock().unwrap_or_else(PoisonError::into_inner).of(gateway);
        let cell = Arc::new(Cell::new(gateway.clone(), number, label, lane));
        let driver = tokio::spawn(driver::drive(Arc::clone(&cell), Arc::clone(self)));
        lanes.insert(gateway.clone(), (Arc::clone(&cell), driver));
        self.ejections.resize(lanes.len(), self.config.delivery.breaker.max_ejected);
        cell
    }

    /// The lane of a gateway, if it has one.
    pub(super) fn known(&self, gateway: &GatewayId) -> Option<Arc<Cell>> {
        self.lock().lanes.get(gateway).map(|(cell, _)| Arc::clone(cell))
    }

    /// Ends the lanes of gateways that are gone and have nothing to wait for. Called where no event is put into lanes meanwhile: a feeder does so
    /// only for a gateway that is owed something.
    pub(super) fn forget_gone(&self) {
        let mut cells = self.lock();
        let Cells { lanes, former } = &mut *cells;
        lanes.retain(|gateway, (cell, _)| {
            let is_there = self.registry.sign_of(gateway).is_some();
            let stays = is_there || cell.owes() || (cell.has_marker() && self.registry.is_receiver(gateway));
            metrics::parked(cell.label.as_deref(), cell.behind().len());
            if !stays {
                cell.gone.cancel();
                add_up(former, &cell.lane());
                self.deliverer.forget(gateway);
                self.records.forget(gateway.as_str());
                metrics::gone(cell.label.as_deref());
            }
            stays
        });
        self.ejections.resize(lanes.len(), self.config.delivery.breaker.max_ejected);
    }

    /// The epochs under which this node owns partitions for certain. One that slept past its lease does not know yet whether it does.
    pub(super) fn epochs(&self) -> BTreeMap<u32, u64> {
        self.handle.certain_epochs().into_iter().map(|(partition, epoch)| (partition, epoch.0)).collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<Cell>> {
        self.lock().lanes.values().map(|(cell, _)| Arc::clone(cell)).collect()
    }

    pub(super) fn status(&self) -> Vec<LaneStatus> {
        let status = |cell: Arc<Cell>| {
            let parked = cell.behind();
            let lane = cell.lane();
            let books = lane.all_books().fold(Books::default(), |sum, (_, books)| sum.plus(books));
            LaneStatus {
                gateway: cell.gateway.clone(),
                held: lane.held(),
                in_flight: lane.in_flight(),
                pressure: lane.pressure(),
                circuit: lane.circuit(),
                parked,
                books,
            }
        };
        self.all().into_iter().map(status).collect()
    }

    pub(super) fn books(&self) -> BTreeMap<u32, Books> {
        let cells = self.lock();
        let mut sums = cells.former.clone();
        cells.lanes.values().for_each(|(cell, _)| add_up(&mut sums, &cell.lane()));
        sums
    }

    pub(super) fn len(&self) -> usize {
        self.lock().lanes.len()
    }

    /// Ends the drivers, and waits for them.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        let lanes = std::mem::take(&mut self.lock().lanes);
        for (_, (cell, driver)) in lanes {
            // A panic there was already reported by the runtime.
            let _ = driver.await;
            add_up(&mut self.lock().former, &cell.lane());
        }
    }

    pub(super) fn abort(&self) {
        self.stop.cancel();
        self.lock().lanes.values().for_each(|(_, driver)| driver.abort());
    }

    fn lock(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the books of a lane to sums by partition.
fn add_up(sums: &mut BTreeMap<u32, Books>, lane: &Lane) {
    for (partition, books) in lane.all_books() {
        let sum = sums.entry(partition).or_default();
        *sum = sum.plus(books);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Operation};
    use crate::name::Tenant;

    fn item(seq: u64) -> Item {
        let event = Event::new(Operation::Insert, Tenant::new("t").unwrap(), "c", "k");
        Item::new(Position { partition: 0, seq }, 1, Arc::new(event), &[])
    }

    /// What is fed again would come behind what went into the lane as it happened.
    #[tokio::test]
    async fn whoever_falls_behind_holds_nothing_that_happened() {
        let cell = Cell::new(GatewayId::new("g").unwrap(), 0, None, Lane::new(RoutingConfig::default()));
        cell.park(0, Epoch(3), RecordId::new(1, 5), 10);
        cell.parked().get_mut(&0).unwrap().resume(10);
        (11..=15).for_each(|seq| assert!(matches!(cell.offer_live(&item(seq)), Live::Taken)));
        assert!(cell.fall_behind(0, Epoch(2)).is_empty(), "an ownership that is over changes nothing");
        let released: Vec<_> = cell.fall_behind(0, Epoch(3)).iter().map(|one| one.position.seq).collect();
        assert_eq!((released, cell.lane().held()), ((11..=15).collect(), 0));
        assert!(matches!(cell.offer_live(&item(16)), Live::Left));
        assert!(!cell.parked()[&0].is_near(15) && cell.parked()[&0].is_near(16));
    }

    /// It may come back unanswered, and is let go then.
    #[tokio::test]
    async fn whoever_falls_behind_is_fed_also_what_is_on_its_way() {
        let cell = Cell::new(GatewayId::new("g").unwrap(), 0, None, Lane::new(RoutingConfig::default()));
        cell.park(0, Epoch(3), RecordId::new(1, 5), 10);
        cell.parked().get_mut(&0).unwrap().resume(10);
        assert!(matches!(cell.offer_live(&item(11)), Live::Taken));
        let batch = cell.lane().poll(Instant::now()).expect("an idle lane sends at once");
        assert_eq!(batch.items.len(), 1);
        assert!(cell.fall_behind(0, Epoch(3)).is_empty(), "it is on its way");
        assert!(!cell.stands(0, |one| one.is_near(10)) && cell.stands(0, |one| one.is_near(11)));
    }
}
