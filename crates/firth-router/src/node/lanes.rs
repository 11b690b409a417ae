//! The lanes of a node: one per gateway, made when the first event for it comes, each with its
//! driver task.

use super::metrics::{self, Labels};
use super::records::Records;
use super::slot::GatewaySlot;
use super::{RouterOptions, driver};
use crate::config::RoutingConfig;
use crate::deliver::Deliverer;
use crate::lane::{Circuit, Ejections, Lane, LaneAccounting, Pressure};
use crate::name::GatewayId;
use crate::registry::Registry;
use firth::ConsumerHandle;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
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
    /// How far it is with each of them.
    pub catch_up: Vec<ParkedPartition>,
    /// Its accounting over all partitions.
    pub accounting: LaneAccounting,
}

/// A partition for which a gateway is fed from the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedPartition {
    /// Which partition.
    pub partition: u32,
    /// For how long, at this node.
    pub parked_for: Duration,
    /// How many events were read again for it, those that its subscriptions leave out included.
    pub taken: u64,
    /// Of how many; this grows as long as events happen.
    pub left_out: u64,
}

/// The slots with their driver tasks, and the accounting of those that are gone.
#[derive(Default)]
struct SlotTasks {
    lanes: BTreeMap<GatewayId, (Arc<GatewaySlot>, JoinHandle<()>)>,
    former: BTreeMap<u32, LaneAccounting>,
}

pub(super) struct Lanes {
    pub(super) registry: Registry,
    pub(super) deliverer: Arc<dyn Deliverer>,
    pub(super) records: Arc<Records>,
    /// Cancelled when the node begins to close: the reader stops waiting for gateways.
    pub(super) closing: CancellationToken,
    pub(super) stop: CancellationToken,
    handle: ConsumerHandle,
    topic: Arc<str>,
    config: RoutingConfig,
    ejections: Ejections,
    slots: Mutex<SlotTasks>,
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
            slots: Mutex::default(),
            labels: Mutex::default(),
        }
    }

    /// The lane of a gateway.
    pub(super) fn slot(self: &Arc<Self>, gateway: &GatewayId) -> Arc<GatewaySlot> {
        let lanes = &mut self.lock().lanes;
        if let Some((slot, _)) = lanes.get(gateway) {
            return Arc::clone(slot);
        }
        let is_free = |number: &u64| lanes.values().all(|(slot, _)| slot.number != *number);
        let number = (lanes.len() as u64..).find(is_free).expect("there are more numbers than lanes");
        let lane = Lane::among(self.config.clone(), self.ejections.clone()).of_topic(Arc::clone(&self.topic));
        let label = self.labels.lock().unwrap_or_else(PoisonError::into_inner).of(gateway);
        let slot = Arc::new(GatewaySlot::new((gateway.clone(), number, label), lane, self.stop.clone()));
        let driver = tokio::spawn(driver::drive(Arc::clone(&slot), Arc::clone(self)));
        lanes.insert(gateway.clone(), (Arc::clone(&slot), driver));
        self.ejections.resize(lanes.len(), self.config.delivery.breaker.max_ejected);
        slot
    }

    /// The lane of a gateway, if it has one.
    pub(super) fn known(&self, gateway: &GatewayId) -> Option<Arc<GatewaySlot>> {
        self.lock().lanes.get(gateway).map(|(slot, _)| Arc::clone(slot))
    }

    /// Ends the lanes of gateways that are gone and have nothing to wait for. Called where no event
    /// is put into lanes at that time: a catch-up reader does so only for a gateway that is owed
    /// something.
    pub(super) fn forget_gone(&self) {
        let mut slots = self.lock();
        let SlotTasks { lanes, former } = &mut *slots;
        lanes.retain(|gateway, (slot, _)| {
            let is_there = self.registry.sign_of(gateway).is_some();
            let stays =
                is_there || slot.has_backlog() || (slot.has_marker() && self.registry.is_receiver(gateway));
            metrics::parked(slot.label.as_deref(), slot.behind().len());
            if !stays {
                slot.gone.cancel();
                add_up(former, &slot.lane());
                self.deliverer.forget(gateway);
                self.records.forget(gateway.as_str());
                metrics::gone(slot.label.as_deref());
            }
            stays
        });
        self.ejections.resize(lanes.len(), self.config.delivery.breaker.max_ejected);
    }

    /// The epochs under which this node owns partitions for certain. One that slept past its lease
    /// does not know yet whether it does.
    pub(super) fn epochs(&self) -> BTreeMap<u32, u64> {
        self.handle.certain_epochs().into_iter().map(|(partition, epoch)| (partition, epoch.0)).collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<GatewaySlot>> {
        self.lock().lanes.values().map(|(slot, _)| Arc::clone(slot)).collect()
    }

    pub(super) fn status(&self) -> Vec<LaneStatus> {
        let status = |slot: Arc<GatewaySlot>| {
            let catch_up = slot.behind();
            let lane = slot.lane();
            let accounting = lane
                .all_accounting()
                .fold(LaneAccounting::default(), |sum, (_, accounting)| sum.plus(accounting));
            LaneStatus {
                gateway: slot.gateway.clone(),
                held: lane.held(),
                in_flight: lane.in_flight(),
                pressure: lane.pressure(),
                circuit: lane.circuit(),
                parked: catch_up.iter().map(|parked| parked.partition).collect(),
                catch_up,
                accounting,
            }
        };
        self.all().into_iter().map(status).collect()
    }

    pub(super) fn accounting(&self) -> BTreeMap<u32, LaneAccounting> {
        let slots = self.lock();
        let mut sums = slots.former.clone();
        slots.lanes.values().for_each(|(slot, _)| add_up(&mut sums, &slot.lane()));
        sums
    }

    pub(super) fn len(&self) -> usize {
        self.lock().lanes.len()
    }

    /// Ends the drivers, and waits for them.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        let lanes = std::mem::take(&mut self.lock().lanes);
        for (_, (slot, driver)) in lanes {
            // A panic there was already reported by the runtime.
            let _ = driver.await;
            add_up(&mut self.lock().former, &slot.lane());
        }
    }

    pub(super) fn abort(&self) {
        self.stop.cancel();
        self.lock().lanes.values().for_each(|(_, driver)| driver.abort());
    }

    fn lock(&self) -> MutexGuard<'_, SlotTasks> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the accounting of a lane to sums by partition.
fn add_up(sums: &mut BTreeMap<u32, LaneAccounting>, lane: &Lane) {
    for (partition, accounting) in lane.all_accounting() {
        let sum = sums.entry(partition).or_default();
        *sum = sum.plus(accounting);
    }
}
