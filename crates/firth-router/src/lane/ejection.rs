//! How many gateways may be ejected at the same time: a part of them, at least one. When most of them seem unreachable the fault is likely
//! on our side, and giving up on all of them would turn a short trouble into a long one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The seats of ejected gateways, shared by the lanes of a node. Unless told otherwise there is one gateway, and one seat.
#[derive(Clone, Debug, Default)]
pub struct Ejections(Arc<Mutex<Seats>>);

#[derive(Debug, Default)]
struct Seats {
    total: usize,
    taken: usize,
}

/// A seat, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Seat(Ejections);

impl Ejections {
    /// There are so many gateways, of which so many percent may be ejected.
    pub fn resize(&self, gateways: usize, percent: u8) {
        self.lock().total = gateways * usize::from(percent) / 100;
    }

    /// How many are ejected now, and how many may be.
    pub fn count(&self) -> (usize, usize) {
        let seats = self.lock();
        (seats.taken, seats.total.max(1))
    }

    pub(super) fn take(&self) -> Option<Seat> {
        let mut seats = self.lock();
        if seats.taken >= seats.total.max(1) {
            return None;
        }
        seats.taken += 1;
        Some(Seat(self.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.lock().taken -= 1;
    }
}
