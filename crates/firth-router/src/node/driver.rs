//! The driver of one lane: sends what the lane gives, tells it what became of it, settles what it releases.

use super::lanes::{Cell, Lanes};
use super::metrics;
use crate::lane::{Batch, BatchId, Outcome};
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};

/// Runs until the lanes are stopped or the gateway is gone. Batches on their way are then abandoned; whoever reads the records next sends them again.
pub(super) async fn drive(cell: Arc<Cell>, lanes: Arc<Lanes>) {
    let mut sending = FuturesUnordered::new();
    loop {
        let (batches, wake) = turn(&cell, &lanes);
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
            () = until(wake) => {}
        }
    }
}

/// Everything that may go out now, and when to look again.
fn turn(cell: &Cell, lanes: &Lanes) -> (Vec<Batch>, Option<Instant>) {
    let (now, epochs) = (Instant::now(), lanes.epochs());
    let mut lane = cell.lane();
    lane.own(epochs);
    let mut batches = Vec::new();
    while let Some(batch) = lane.poll(now) {
        batches.push(batch);
    }
    metrics::lane(&cell.gateway, cell.number, &mut lane);
    (batches, lane.wake(now))
}

async fn send(cell: &Cell, lanes: &Lanes, batch: Batch) -> (BatchId, Outcome) {
    let started = Instant::now();
    // A gateway that is not registered may come (back) any time: its events wait.
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
