//! [`Common`]: what all shards of one worker share: its settings, its events, and how much it has and should have.

use super::config::WorkerConfig;
use super::events::Queue;
use super::meter::Meter;
use super::plan;
use crate::broker::Broker;
use crate::renewals::Renewals;
use firth_engine::facet::Pulse;
use firth_engine::{Engine, Epoch, MemberName, ServiceName};
use std::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

pub(crate) struct Common {
    pub(crate) engine: Engine,
    pub(crate) renewals: Renewals,
    pub(crate) service: ServiceName,
    pub(crate) id: MemberName,
    pub(crate) config: WorkerConfig,
    pub(crate) meter: Meter,
    pub(crate) queue: Queue,
    /// Cancelled when the worker shall hand over and end.
    pub(crate) closing: CancellationToken,
    books: Mutex<Books>,
}

/// How much there is, and how much of it is here.
#[derive(Default)]
struct Books {
    /// What the last beat on each shard said; `None` before the first.
    boards: Vec<Option<Standing>>,
    held: u64,
    /// Asked for and not granted yet.
    reserved: u64,
    /// Recalled and not given back yet.
    recalled: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) offers: u64,
    pub(crate) free: u64,
    pub(crate) orphaned: u64,
}

impl Common {
    pub(crate) fn new(
        broker: &Broker,
        service: ServiceName,
        id: MemberName,
        config: WorkerConfig,
        shards: usize,
    ) -> Self {
        let books = Books { boards: vec![None; shards], ..Books::default() };
        Self {
            meter: Meter::new(&service),
            queue: Queue::new(config.buffer),
            closing: CancellationToken::new(),
            books: Mutex::new(books),
            engine: broker.engine().clone(),
            renewals: broker.renewals().clone(),
            service,
            id,
            config,
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("nothing panics under this lock")
    }

    pub(crate) fn held(&self) -> u64 {
        self.books().held
    }

    /// A claim came or went.
    pub(crate) fn count(&self, change: i64) {
        let mut books = self.books();
        books.held = books.held.saturating_add_signed(change);
        self.meter.held.set(books.held as f64);
    }

    /// A recalled claim came or went.
    pub(crate) fn count_recalled(&self, change: i64) {
        let mut books = self.books();
        books.recalled = books.recalled.saturating_add_signed(change);
    }

    /// Notes how a board stands.
    pub(crate) fn note(&self, shard: usize, pulse: &Pulse) {
        let standing = Standing { offers: pulse.offers, free: pulse.free, orphaned: pulse.orphaned };
        self.books().boards[shard] = Some(standing);
        self.meter.waiting.set(self.queue.len() as f64);
    }

    /// All boards together, as last heard.
    pub(crate) fn standing(&self) -> Standing {
        let mut sum = Standing::default();
        for board in self.books().boards.iter().flatten() {
            sum.offers += board.offers;
            sum.free += board.free;
            sum.orphaned += board.orphaned;
        }
        sum
    }

    /// How many claims to ask for now, at most `most`; they count as reserved until [`granted`](Self::granted).
    pub(crate) fn reserve(&self, seats: &[(Epoch, u64)], me: Epoch, most: usize) -> usize {
        let room = self.queue.room();
        let mut books = self.books();
        let total = books.boards.iter().flatten().map(|board| board.offers).sum();
        let quota = plan::quota(total, seats, me);
        let missing = quota.saturating_sub(books.held + books.reserved);
        let wanted = usize::try_from(missing).unwrap_or(usize::MAX).min(most).min(room);
        books.reserved += wanted as u64;
        wanted
    }

    /// What was reserved has been answered.
    pub(crate) fn granted(&self, reserved: usize) {
        let mut books = self.books();
        books.reserved = books.reserved.saturating_sub(reserved as u64);
    }

    /// How many of `available` claims to recall, so that others get their share; they count as recalled from now on. Nothing
    /// before all boards are known.
    pub(crate) fn surplus(&self, seats: &[(Epoch, u64)], me: Epoch, available: usize) -> usize {
        let mut books = self.books();
        if !self.config.automatic || books.boards.iter().any(Option::is_none) {
            return 0;
        }
        let total = books.boards.iter().flatten().map(|board| board.offers).sum();
        let quota = plan::quota(total, seats, me);
        let mine = books.held.saturating_sub(books.recalled);
        if mine <= quota + plan::slack(quota) {
            return 0;
        }
        let recalled = usize::try_from(mine - quota).unwrap_or(usize::MAX).min(available);
        books.recalled += recalled as u64;
        recalled
    }
}
