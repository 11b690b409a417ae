//! The driver of one lane: sends what the lane gives, tells it what became of it, settles what it
//! releases.

use super::lanes::Lanes;
use super::slot::GatewaySlot;
use super::{MAX_OPEN, metrics};
use crate::lane::{Batch, BatchId, Outcome};
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};

/// Runs until the lanes are stopped or the gateway is gone. Then it abandons the batches in flight;
/// the next reader of their records sends the events again.
pub(super) async fn drive(slot: Arc<GatewaySlot>, lanes: Arc<Lanes>) {
    let mut sending = FuturesUnordered::new();
    let mut signs = lanes.registry.signs();
    let mut tried = None;
    loop {
        signs.mark_unchanged();
        let Turn { batches, wake, awaits_sign } = turn(&slot, &lanes, &mut tried);
        sending.extend(batches.into_iter().map(|batch| send(&slot, &lanes, batch)));
        tokio::select! {
            () = lanes.stop.cancelled() => return,
            () = slot.gone.cancelled() => return,
            Some((id, outcome)) = sending.next() => {
                settle(&slot, &lanes, id, outcome);
                while let Some(Some((id, outcome))) = sending.next().now_or_never() {
                    settle(&slot, &lanes, id, outcome);
                }
            }
            () = slot.work.notified() => {}
            _ = signs.changed(), if awaits_sign => {}
            () = until(wake) => {}
        }
    }
}

/// What to do now, and when to look again.
struct Turn {
    batches: Vec<Batch>,
    wake: Option<Instant>,
    /// A sign of life of the gateway would change it.
    awaits_sign: bool,
}

/// Everything that may go out now. `tried` is the last sign of life of the gateway when something
/// was last sent: a newer one ends an ejection.
fn turn(slot: &GatewaySlot, lanes: &Lanes, tried: &mut Option<u64>) -> Turn {
    let now = Instant::now();
    let epochs = lanes.epochs();
    let sign = lanes.registry.sign_of(&slot.gateway);
    let mut lane = slot.lane();
    lane.set_reach(MAX_OPEN * epochs.len().max(1));
    lane.own(epochs);
    lane.set_absent(sign.is_none());
    if sign > *tried {
        lane.sign_of_life();
    }
    let mut batches = Vec::new();
    while let Some(batch) = lane.poll(now) {
        batches.push(batch);
    }
    if !batches.is_empty() {
        *tried = sign;
    }
    metrics::lane(slot.label.as_deref(), &mut lane);
    Turn { batches, wake: lane.wake(now), awaits_sign: lane.awaits_sign() }
}

async fn send(slot: &GatewaySlot, lanes: &Lanes, batch: Batch) -> (BatchId, Outcome) {
    let started = Instant::now();
    // One that went since the turn began: its events wait.
    let outcome = match lanes.registry.gateway(&slot.gateway) {
        Some(gateway) => lanes.deliverer.deliver(&gateway, &batch).await,
        None => Outcome::Unreached,
    };
    metrics::delivery(&outcome, batch.items.len(), started.elapsed());
    (batch.id, outcome)
}

fn settle(slot: &GatewaySlot, lanes: &Lanes, id: BatchId, outcome: Outcome) {
    let came_back = !matches!(outcome, Outcome::Accepted);
    let epochs = lanes.epochs();
    let mut released = {
        let mut lane = slot.lane();
        lane.own(epochs);
        lane.settle(id, outcome, Instant::now(), fastrand::f64())
    };
    if came_back {
        // What comes back to a parked gateway is read from the topic again with the rest.
        released.extend(slot.leave_to_readers());
    }
    metrics::released(&released);
    lanes.records.release(slot.gateway.as_str(), &released);
    slot.room.notify_waiters();
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RoutingConfig;
    use crate::deliver::{Deliverer, Delivering};
    use crate::event::{Event, Operation};
    use crate::lane::{Item, Lane, Position};
    use crate::name::{GatewayId, Tenant};
    use crate::node::RouterOptions;
    use crate::node::records::{InHand, Records, Source};
    use crate::registry::{Gateway, Registry};
    use firth::Broker;
    use tokio_util::sync::CancellationToken;

    /// A wire to gateways that take everything.
    struct TakesAll;

    impl Deliverer for TakesAll {
        fn deliver<'a>(&'a self, _: &'a Gateway, _: &'a Batch) -> Delivering<'a> {
            Box::pin(async { Outcome::Accepted })
        }
    }

    /// A turn finds it registered, and the sending that follows does not.
    #[tokio::test]
    async fn events_of_a_gateway_that_goes_within_a_turn_wait() {
        let broker = Broker::memory();
        broker.create_topic("changes").await.unwrap();
        broker.producer("changes").await.unwrap().send("event").await.unwrap();
        let mut consumer = broker.consumer("changes", "router").await.unwrap();
        let delivery = consumer.next().await.unwrap().unwrap();
        let records = Arc::new(Records::new(true));
        let id = delivery.id();
        let numbers = records.open([(InHand::new(delivery), 1, None)], Source::Live);
        let registry = Registry::open(&broker, RoutingConfig::default().subscriptions).await.unwrap();
        let options = RouterOptions::new("changes");
        let handle = consumer.handle();
        let epoch = handle.hold(0).unwrap().epoch;
        let lanes = Arc::new(Lanes::new(registry, Arc::new(TakesAll), &options, records.clone(), handle));
        let gateway = GatewayId::new("g").unwrap();
        let slot = GatewaySlot::new(
            (gateway, 0, None),
            Lane::new(options.routing.clone()),
            CancellationToken::new(),
        );
        let event = Arc::new(Event::new(Operation::Insert, Tenant::new("t").unwrap(), "c", "k"));
        let item = Item::new(Position { partition: 0, seq: id.seq }, epoch.0, event, &[]);
        slot.offer_all(vec![item.with_record_number(numbers.start)]).for_each(drop);
        slot.lane().own(lanes.epochs());
        let batch = slot.lane().poll(Instant::now()).expect("an idle lane sends at once");

        let (sent, outcome) = send(&slot, &lanes, batch).await;
        settle(&slot, &lanes, sent, outcome);
        assert_eq!((slot.lane().held(), records.len()), (1, 1), "the event waits for its gateway");
        records.give_back(0, Source::Live);
        consumer.close().await.unwrap();
    }
}
