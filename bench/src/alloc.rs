//! The global allocator: the system's or the server program's, with counters that are off unless a
//! round asks for them.
//!
//! A library runs on its user's allocator, so peers and firth are measured on the system's; parts
//! of the program `firth` are measured on the program's own, mimalloc. A process takes the one that
//! its environment names ([`NAME`]) and keeps to it. Timed rounds run with the counters off, so
//! that a subject that allocates much is charged for the allocations themselves and not for our
//! counting; a separate round counts. This is the only file of the workspace with `unsafe`: every
//! call is handed to the chosen allocator unchanged.
#![allow(unsafe_code)]

use mimalloc::MiMalloc;
use nix::libc;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64};
use std::sync::atomic::Ordering::Relaxed;

/// The variable that is set, to anything, for processes that run on the program's allocator.
pub(crate) const NAME: &str = "BENCH_MIMALLOC";
const NAME_C: &std::ffi::CStr = c"BENCH_MIMALLOC";

/// Which one it is; 0 before the first allocation.
static CHOICE: AtomicU8 = AtomicU8::new(0);
const SYSTEM: u8 = 1;
const PROGRAM: u8 = 2;

static ON: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The chosen one, counted while a [`Count`] is alive.
pub(crate) struct Counting;

#[global_allocator]
static GLOBAL: Counting = Counting;

fn is_program() -> bool {
    match CHOICE.load(Relaxed) {
        0 => {
            // SAFETY: the name ends with a zero, and the first allocation is before any thread that
            // could change the environment.
            let is_named = unsafe { !libc::getenv(NAME_C.as_ptr()).is_null() };
            CHOICE.store(if is_named { PROGRAM } else { SYSTEM }, Relaxed);
            is_named
        }
        choice => choice == PROGRAM,
    }
}

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

// SAFETY: each method forwards its arguments to one allocator, always the same, and returns what it
// returned.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, signed(layout.size()));
        // SAFETY: the caller's contract is ours, handed on.
        unsafe { if is_program() { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, signed(layout.size()));
        // SAFETY: as above.
        unsafe { if is_program() { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        note(0, -signed(layout.size()));
        // SAFETY: as above.
        unsafe { if is_program() { MiMalloc.dealloc(ptr, layout) } else { System.dealloc(ptr, layout) } }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, signed(size) - signed(layout.size()));
        // SAFETY: as above.
        unsafe {
            if is_program() { MiMalloc.realloc(ptr, layout, size) } else { System.realloc(ptr, layout, size) }
        }
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
