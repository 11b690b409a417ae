//! Leases: exclusive rights that end by themselves.

use super::Reply;
use crate::hold::{Hold, LeaseInfo, LeaseName};
use crate::id::Epoch;
use crate::name::{HolderName, PoolName};
use bytes::Bytes;
use std::time::Duration;

/// Exclusive rights with a deadline on the engine's clock and an epoch that fences.
///
/// - At most one hold is the newest; only it can renew, release or commit.
/// - Each change of holder gives a larger epoch: `max(stored + 1, engine time in µs)`, and a fresh
///   random token.
/// - A lease is free when it has no holder or its time ran out. A late renewal still succeeds until
///   another holder acquires the lease; after that it never does.
/// - The same holder name gives no right: a process that restarts waits for its former life like
///   any other process.
/// - A holder counts its own deadline from *before* it sent the call, on its own monotonic clock.
pub trait Leases {
    /// Takes a lease if it is free, or tells who has it. A group's lease on a partition that does
    /// not exist is `NotFound`.
    fn acquire<'a>(&'a self, request: Acquire) -> Reply<'a, Acquired>;

    /// Renews many leases in one call; per hold, whether it is still the newest. At most
    /// [`MAX_RENEW`](crate::limits::MAX_RENEW).
    fn renew<'a>(&'a self, holds: &'a [Hold], ttl: Duration) -> Reply<'a, Vec<bool>>;

    /// Gives a lease back; false if the hold was not the newest (then nothing changes). A holder
    /// that releases has not crashed.
    fn release<'a>(&'a self, hold: &'a Hold) -> Reply<'a, bool>;

    /// Takes a lease away from its holder, for admin: the epoch grows, and the lease has no holder.
    /// False if it never existed.
    fn revoke<'a>(&'a self, name: &'a LeaseName) -> Reply<'a, bool>;

    /// Leases as they stand: all of a pool in the order of their names, or the named ones that
    /// exist.
    fn leases<'a>(&'a self, query: &'a LeaseQuery) -> Reply<'a, Vec<LeaseInfo>>;
}

/// A request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Which lease.
    pub name: LeaseName,
    /// Who wants it.
    pub holder: HolderName,
    /// For how long, 1 ms to [`MAX_TTL`](crate::limits::MAX_TTL).
    pub ttl: Duration,
    /// Anything others should see, at most [`MAX_NOTE`](crate::limits::MAX_NOTE) bytes.
    pub note: Bytes,
    /// What the caller saw standing still for a whole TTL on its own clock: epoch and beats. If
    /// both are unchanged, the engine grants the lease even if its own clock says that the lease
    /// still runs. That clock may have gone back.
    pub stalled: Option<(Epoch, u64)>,
    /// Epoch of an authority elsewhere (a claim) that decides who holds this lease. The engine
    /// grants the lease at once, even if it still runs. If an earlier request had a larger rank,
    /// the answer is `Held`, and stays so for good.
    pub rank: Option<Epoch>,
}

impl Acquire {
    /// A plain request.
    pub fn new(name: LeaseName, holder: HolderName, ttl: Duration) -> Self {
        Self { name, holder, ttl, note: Bytes::new(), stalled: None, rank: None }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It is yours.
    Granted(Hold),
    /// The lease has a holder; try again after `remaining`.
    Held(LeaseInfo),
}

impl Acquired {
    /// The hold, if it was granted.
    pub fn granted(self) -> Option<Hold> {
        match self {
            Self::Granted(hold) => Some(hold),
            Self::Held(_) => None,
        }
    }
}

/// Which leases to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseQuery {
    /// All of a pool.
    Pool(PoolName),
    /// These.
    Names(Vec<LeaseName>),
}
