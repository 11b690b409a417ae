//! Leases and the proof of having one.
//!
//! A [`Hold`] is checked inside the engine, in the same atomic step as the change that it permits.
//! It is equal to the stored lease or it is worthless: epoch *and* random token must match, because
//! two sides of a network partition can hand out the same epoch.

use crate::id::Epoch;
use crate::name::{GroupName, HolderName, MemberName, Partition, PoolName};
use bytes::Bytes;
use std::fmt;
use std::time::Duration;

/// What a lease is about, and thereby where it lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseName {
    /// The right to work on one partition for one group. It lives with the partition, so that a
    /// commit checks it in the same step.
    Group {
        /// The partition.
        at: Partition,
        /// The group.
        group: GroupName,
    },
    /// A named right inside a pool. All leases of a pool live together: one listing, one renewal
    /// step.
    Pool {
        /// The pool.
        pool: PoolName,
        /// The lease.
        name: MemberName,
    },
}

impl LeaseName {
    /// The lease of `group` on `at`.
    pub fn group(at: &Partition, group: &GroupName) -> Self {
        Self::Group { at: at.clone(), group: group.clone() }
    }

    /// The lease `name` of `pool`.
    pub fn pool(pool: &PoolName, name: &MemberName) -> Self {
        Self::Pool { pool: pool.clone(), name: name.clone() }
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group { at, group } => write!(f, "group {group} on {at}"),
            Self::Pool { pool, name } => write!(f, "{name} in pool {pool}"),
        }
    }
}

/// A random number that only its holder knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub u128);

impl Token {
    /// A random token that no other holder has.
    pub fn random() -> Self {
        Self(fastrand::u128(..))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Proof of holding a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Which lease.
    pub lease: LeaseName,
    /// Who took it.
    pub holder: HolderName,
    /// Grows with each change of holder.
    pub epoch: Epoch,
    /// Tells apart two holders that were given the same epoch.
    pub token: Token,
}

/// A lease as everyone may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Which lease.
    pub name: LeaseName,
    /// Who has it; `None` after a release or a revocation.
    pub holder: Option<HolderName>,
    /// The newest epoch.
    pub epoch: Epoch,
    /// How long it still runs without another renewal; zero once it ran out.
    pub remaining: Duration,
    /// Grows with each renewal. If a process sees no growth for a whole TTL on its own clock, it
    /// may take over with [`Acquire::stalled`](crate::facet::Acquire::stalled). That works even if
    /// the lease still runs on the engine's clock.
    pub beats: u64,
    /// What the holder wrote when it took the lease.
    pub note: Bytes,
}

/// How long the holder of a lease or a membership may count on it, by its own clock, since it
/// asked.
///
/// **Why less than the TTL.** While the engine takes back a step of a wall clock, its time runs up
/// to 5 % fast (`clock.rs`), and the lease ends that much earlier.
pub fn valid_for(ttl: Duration) -> Duration {
    ttl - ttl / crate::clock::SHRINK
}

impl LeaseInfo {
    /// Whether the lease has a holder and has not run out.
    pub fn is_held(&self) -> bool {
        self.holder.is_some() && !self.remaining.is_zero()
    }
}

impl LeaseName {
    pub(crate) fn hint(&self) -> crate::watch::HintKey {
        match self {
            Self::Group { at, .. } => crate::watch::HintKey::GroupLeases(at.clone()),
            Self::Pool { pool, .. } => crate::watch::HintKey::Pool(pool.clone()),
        }
    }
}
