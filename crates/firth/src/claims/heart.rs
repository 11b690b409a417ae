//! The heart: one task per seat that does nothing but beat. It depends on nothing else: not on grants, not on readers, not on user code
//! nor its runtime (`renewals.rs`).

use super::shard::Shard;
use super::unit::Life;
use crate::error::ErrorKind;
use crate::renewals::{Renewing, Vital};
use firth_engine::Engine;
use firth_engine::facet::{Beat, Pulse};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Beats asked for in quick succession are one.
const GAP: Duration = Duration::from_millis(4);

/// A beat's answer, with what the worker believed to have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) pulse: Pulse,
    /// How many claims the table held; `None` if it changed meanwhile.
    pub(crate) believed: Option<u64>,
}

/// A beating heart; dropping it stops it.
pub(crate) struct Heart {
    pub(crate) task: Renewing,
    pub(crate) pulses: watch::Receiver<Heard>,
    asked: Arc<Notify>,
}

impl Heart {
    pub(crate) fn start(shard: Arc<Shard>, life: Arc<Life>) -> Self {
        let (sender, pulses) = watch::channel(Heard::default());
        let asked = Arc::new(Notify::new());
        let renewals = shard.common.renewals.clone();
        let task = renewals.spawn(|engine, vital| beat((engine, vital), shard, life, sender, asked.clone()));
        Self { task, pulses, asked }
    }

    /// Asks for a beat now.
    pub(crate) fn ask(&self) {
        self.asked.notify_one();
    }
}

/// Beats until the seat is over, by the engine's word or by our own clock.
async fn beat(
    (engine, vital): (Engine, Vital),
    shard: Arc<Shard>,
    life: Arc<Life>,
    pulses: watch::Sender<Heard>,
    asked: Arc<Notify>,
) {
    let common = shard.common.clone();
    let ttl = common.config.ttl;
    let mut roster = 0;
    loop {
        let begun = Instant::now();
        let before = steps(&shard);
        let wish = Beat { ttl, capacity: common.config.capacity(), roster };
        if !vital.is_alive() {
            tracing::warn!(service = %common.service, "the worker's runtime hangs: its seat is not kept");
            return;
        }
        let answer = tokio::time::timeout_at(life.valid_until(), engine.beat(&life.seat, wish)).await;
        let next = match answer {
            Ok(Ok(pulse)) => {
                life.extend(begun, ttl);
                roster = pulse.roster;
                common.meter.beats.increment(1);
                let believed = {
                    let is_still = before.1 == 0 && steps(&shard) == before;
                    is_still.then(|| shard.table().units.len() as u64)
                };
                tell(&pulses, Heard { pulse, believed });
                begun + ttl / 3
            }
            Ok(Err(error)) if error.kind() == ErrorKind::Fenced => {
                tracing::warn!(%error, service = %common.service, "the worker's seat is over");
                return;
            }
            Ok(Err(error)) => {
                common.meter.failed_beats.increment(1);
                tracing::warn!(%error, service = %common.service, "a beat failed; trying again soon");
                begun + ttl / 10
            }
            Err(_) => {
                common.meter.failed_beats.increment(1);
                begun
            }
        };
        if !life.is_valid() {
            tracing::warn!(service = %common.service, "no beat got through in time: all claims of the shard are lost");
            return;
        }
        tokio::select! {
            () = tokio::time::sleep_until(next.min(life.valid_until())) => {}
            () = asked.notified() => tokio::time::sleep_until(begun + GAP).await,
        }
    }
}

/// The number of steps of ours so far, and of those under way.
fn steps(shard: &Shard) -> (u64, u32) {
    let table = shard.table();
    (table.changes, table.busy)
}

/// Passes a pulse on; the list of seats stays until a newer one comes.
fn tell(pulses: &watch::Sender<Heard>, mut heard: Heard) {
    pulses.send_modify(|last| {
        if heard.pulse.seats.is_none() {
            heard.pulse.seats = last.pulse.seats.take();
        }
        *last = std::mem::take(&mut heard);
    });
}
