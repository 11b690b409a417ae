//! Hooks for the tests of the tests: planted bugs and crash points.
//!
//! Without the feature `testing` every question here answers "no" at compile time. The conformance
//! suite must catch each planted bug; the crash laws kill a child process at each crash point and
//! reopen its data.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mutation {
    /// `commit` accepts any hold.
    SkipFenceOnCommit,
    /// A stale owner may commit retries.
    SkipFenceOnRetry,
    /// A stale owner may settle due records.
    SkipFenceOnDone,
    /// A stale owner may settle records ahead of the frontier.
    SkipFenceAhead,
    /// `open` accepts any hold.
    SkipFenceOnOpen,
    /// Fencing compares the epoch and forgets the token.
    IgnoreToken,
    /// A renewal with a stale hold extends the lease of another holder.
    RenewAnything,
    /// A rival gets the lease although it still runs.
    AcquireHeldLease,
    /// The epoch stays the same when the holder changes.
    SameEpoch,
    /// The record is settled, but its dead letter is not written.
    LoseDeadLetter,
    /// The record is settled, but it never becomes due.
    LoseRetry,
    /// A retried record stays due after it was acknowledged.
    KeepDoneDue,
    /// Attempts are not counted.
    ForgetAttempts,
    /// A retry forgets the failures before it.
    ForgetFailures,
    /// A taken record is not given back when its owner vanishes.
    LoseTaken,
    /// Retention looks at the highest frontier instead of the lowest.
    TrimToHighestFrontier,
    /// Retention forgets records that are due.
    TrimDue,
    /// A producer's repeated batch is appended again.
    ForgetProducer,
    /// A batch stops in the middle without an error.
    HalfBatch,
    /// The frontier may go back.
    FrontierGoesBack,
    /// A ripe message enters the log and stays delayed too.
    PromoteTwice,
    /// A delayed message is visible at once.
    NoDelay,
    /// A delayed message that was cancelled or delivered stays delayed.
    KeepChangedDelayed,
    /// Replaying to one group appends to the log for all.
    ReplayToAll,
    /// Replaying leaves the dead letter behind.
    ReplayKeepsDead,
    /// Replaying an edited dead letter brings it back as it was.
    ReplayUnedited,
    /// Retention by size believes a sum that another trim has made wrong.
    TrimByStaleSum,
    /// A retry of one group becomes due for all groups of the partition.
    ShareDue,
    /// A reset leaves the old owner in charge.
    ResetWithoutFence,
    /// A former holder of the lease may make a group.
    CreateWithoutFence,
    /// A former holder of the lease may move a group.
    ResetByAnyone,
    /// A former holder of the lease may delete a group.
    DeleteWithoutFence,
    /// A catalog change ignores the expected version.
    IgnoreVersion,
    /// A crashed owner is not counted.
    ForgetCrashes,
    /// An owner that gave its lease back, or lost it to a revocation, counts as crashed.
    RevokeIsCrash,
    /// Larger batches are acknowledged and never written.
    AckWithoutWrite,
    /// A grant takes offers from members that are alive.
    GrantOwned,
    /// Members whose time ran out stay for ever.
    NeverSweep,
    /// A claim is good under any of its epochs.
    SkipFenceOnClaim,
    /// Leaving a claim shard deletes what the member had.
    LeaveDeletes,
    /// Grants do not raise the epoch.
    SameClaimEpoch,
    /// A checkpoint is acknowledged and not stored.
    LoseCheckpoint,
    /// Offering again takes the offer away from its owner.
    OfferAgain,
    /// A member that was declared gone comes back to life by a beat.
    ZombieBeats,
    /// A member that lost its membership joins again over its successor.
    JoinOverNewer,
    /// A join whose answer was lost is another life when it is repeated.
    JoinTwice,
    /// A ranked request takes a lease from a larger rank.
    IgnoreRank,
    /// A late delete removes a partition that was made since.
    DeleteAnyLife,
    /// A reader of a source may append under an old epoch.
    SkipFenceOnMark,
    /// What the mark of a source covers is appended again.
    ForgetMark,
    /// Records are appended, and their source mark is not stored.
    LoseMark,
    /// Steps are acknowledged before they leave the process (files only: a crash shows it).
    AckWithoutSync,
}

impl Mutation {
    /// All that the laws can see without a crash.
    pub const ALL: &'static [Self] = &[
        Self::SkipFenceOnCommit,
        Self::SkipFenceOnRetry,
        Self::SkipFenceOnDone,
        Self::SkipFenceAhead,
        Self::SkipFenceOnOpen,
        Self::IgnoreToken,
        Self::RenewAnything,
        Self::AcquireHeldLease,
        Self::SameEpoch,
        Self::LoseDeadLetter,
        Self::LoseRetry,
        Self::KeepDoneDue,
        Self::ForgetAttempts,
        Self::ForgetFailures,
        Self::LoseTaken,
        Self::TrimToHighestFrontier,
        Self::TrimDue,
        Self::ForgetProducer,
        Self::HalfBatch,
        Self::FrontierGoesBack,
        Self::PromoteTwice,
        Self::NoDelay,
        Self::KeepChangedDelayed,
        Self::ReplayToAll,
        Self::ReplayKeepsDead,
        Self::ReplayUnedited,
        Self::TrimByStaleSum,
        Self::ShareDue,
        Self::ResetWithoutFence,
        Self::CreateWithoutFence,
        Self::ResetByAnyone,
        Self::DeleteWithoutFence,
        Self::IgnoreVersion,
        Self::ForgetCrashes,
        Self::RevokeIsCrash,
        Self::AckWithoutWrite,
        Self::GrantOwned,
        Self::NeverSweep,
        Self::SkipFenceOnClaim,
        Self::LeaveDeletes,
        Self::SameClaimEpoch,
        Self::LoseCheckpoint,
        Self::OfferAgain,
        Self::ZombieBeats,
        Self::JoinOverNewer,
        Self::JoinTwice,
        Self::IgnoreRank,
        Self::DeleteAnyLife,
        Self::SkipFenceOnMark,
        Self::ForgetMark,
        Self::LoseMark,
    ];
}

/// A moment at which the process can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashPoint {
    /// A step was decided, nothing is written.
    BeforeWrite,
    /// Its batch is written, not yet synced.
    AfterWrite,
    /// It is durable, the caller does not know yet.
    AfterSync,
}

/// What a test asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hooks {
    /// The planted bug.
    pub mutation: Option<Mutation>,
    /// Abort the process when this point is passed for the n-th time (from 1).
    pub crash: Option<(CrashPoint, u32)>,
}

impl Hooks {
    pub(super) fn planted(&self, mutation: Mutation) -> bool {
        cfg!(feature = "testing") && self.mutation == Some(mutation)
    }
}

/// Counts the passes of the crash point and aborts at the wanted one.
#[derive(Debug, Default)]
pub(super) struct CrashCounter(u32);

impl CrashCounter {
    pub(super) fn pass(&mut self, hooks: &Hooks, point: CrashPoint) {
        if !cfg!(feature = "testing") {
            return;
        }
        if let Some((wanted, nth)) = hooks.crash
            && wanted == point
        {
            self.0 += 1;
            if self.0 == nth {
                // No destructor runs and no buffer is flushed: for the data this is kill -9.
                std::process::abort();
            }
        }
    }
}
