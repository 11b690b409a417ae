//! How many gateways may be ejected at the same time: a part of them, at least one. When most of
//! them seem unreachable the fault is likely on our side, and giving up on all of them would turn a
//! short trouble into a long one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The slots of ejected gateways, shared by the lanes of a node. Unless told otherwise there is one
/// gateway, and one slot.
#[derive(Clone, Debug, Default)]
pub struct Ejections(Arc<Mutex<EjectionSlots>>);

#[derive(Debug, Default)]
struct EjectionSlots {
    total: usize,
    taken: usize,
}

/// A slot, free again when this is dropped.
#[derive(Debug)]
pub(super) struct EjectionPermit(Ejections);

impl Ejections {
    /// Notes the number of gateways, and the percentage that may be ejected.
    pub fn resize(&self, gateways: usize, percent: u8) {
        self.lock().total = gateways * usize::from(percent) / 100;
    }

    /// How many are ejected now, and how many may be.
    pub fn count(&self) -> (usize, usize) {
        let slots = self.lock();
        (slots.taken, slots.total.max(1))
    }

    pub(super) fn take(&self) -> Option<EjectionPermit> {
        let mut slots = self.lock();
        if slots.taken >= slots.total.max(1) {
            return None;
        }
        slots.taken += 1;
        Some(EjectionPermit(self.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, EjectionSlots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EjectionPermit {
    fn drop(&mut self) {
        self.0.lock().taken -= 1;
    }
}
