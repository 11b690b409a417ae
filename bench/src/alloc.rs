//! The global allocator: the system's, with counters that are off unless a round asks for them.
//!
//! Timed rounds run with the counters off, so that a subject that allocates much is charged for the
//! allocations themselves and not for our counting; a separate round counts. This is the only file of
//! the workspace with `unsafe`: every call is handed to `System` unchanged.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static ON: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// `System`, counted while a [`Count`] is alive.
pub(crate) struct Counting;

#[global_allocator]
static GLOBAL: Counting = Counting;

fn note(calls: u64, bytes: i64) {
    if ON.load(Relaxed) {
        CALLS.fetch_add(calls, Relaxed);
        LIVE.fetch_add(bytes, Relaxed);
    }
}

/// Layout sizes never exceed `isize::MAX`, so the conversion keeps the value.
fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

// SAFETY: each method forwards its arguments to `System` and returns what it returned.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, signed(layout.size()));
        // SAFETY: the caller's contract is ours, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note(0, -signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, signed(size) - signed(layout.size()));
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Counts allocations of the whole process from its creation until it is dropped.
pub(crate) struct Count(());

impl Count {
    /// Resets the counters and switches them on. One at a time: a second one would reset the first.
    pub(crate) fn start() -> Self {
        CALLS.store(0, Relaxed);
        LIVE.store(0, Relaxed);
        ON.store(true, Relaxed);
        Self(())
    }

    /// Calls of alloc and realloc so far.
    pub(crate) fn calls(&self) -> u64 {
        CALLS.load(Relaxed)
    }

    /// Bytes allocated and not yet freed since the start.
    #[allow(clippy::cast_precision_loss)] // far below 2^53
    pub(crate) fn live_bytes(&self) -> f64 {
        LIVE.load(Relaxed) as f64
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        ON.store(false, Relaxed);
    }
}
