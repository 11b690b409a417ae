//! The driver of one lane: sends what the lane gives, tells it what became of it, settles what it releases.

use super::lanes::{Cell, Lanes};
use super::{MAX_OPEN, metrics};
use crate::lane::{Batch, BatchId, Outcome};
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};

/// Runs until the lanes are stopped or the gateway is gone. Batches on their way are then abandoned; whoever reads the records next sends them again.
pub(super) async fn drive(cell: Arc<Cell>, lanes: Arc<Lanes>) {
    let (mut sending, mut signs, mut tried) = (FuturesUnordered::new(), lanes.registry.signs(), None);
    loop {
        signs.mark_unchanged();
        let Turn { batches, wake, awaits_sign } = turn(&cell, &lanes, &mut tried);
        sending.extend(batches.into_iter().map(|batch| send(&cell, &lanes, batch)));
        tokio::select! {
            () = lanes.stop.cancelled() => return,
            () = cell.gone.cancelled() => return,
            Some((id, outcome)) = sending.next() => {
                settle(&cell, &lanes, id, outcome);
                while let Some(Some((id, outcome))) = sending.next().now_or_never() {
                    settle(&cell, &lanes, id, outcome);
                }
            }
            () = cell.work.notified() => {}
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

/// Everything that may go out now. `tried` is the last sign of life of the gateway when something was last sent: a newer one ends an ejection.
fn turn(cell: &Cell, lanes: &Lanes, tried: &mut Option<u64>) -> Turn {
    let (now, epochs) = (Instant::now(), lanes.epochs());
    let sign = lanes.registry.sign_of(&cell.gateway);
    let mut lane = cell.lane();
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
    metrics::lane(cell.label.as_deref(), &mut lane);
    Turn { batches, wake: lane.wake(now), awaits_sign: lane.awaits_sign() }
}

async fn send(cell: &Cell, lanes: &Lanes, batch: Batch) -> (BatchId, Outcome) {
    let started = Instant::now();
    // One that went since the turn began: its events wait.
    let outcome = match lanes.registry.gateway(&cell.gateway) {
        Some(gateway) => lanes.deliverer.deliver(&gateway, &batch).await,
        None => Outcome::Unreached,
    };
    metrics::delivery(&outcome, batch.items.len(), started.elapsed());
    (batch.id, outcome)
}

fn settle(cell: &Cell, lanes: &Lanes, id: BatchId, outcome: Outcome) {
    let came_back = !matches!(outcome, Outcome::Accepted);
    let epochs = lanes.epochs();
    let mut released = {
        let mut lane = cell.lane();
        lane.own(epochs);
        lane.settle(id, outcome, Instant::now(), fastrand::f64())
    };
    if came_back {
        // What comes back to a parked gateway is read from the topic again with the rest.
        for (partition, from) in cell.fed() {
            released.extend(cell.lane().park(partition, from));
        }
    }
    metrics::released(&released);
    lanes.records.release(cell.gateway.as_str(), &released);
    cell.room.notify_waiters();
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
