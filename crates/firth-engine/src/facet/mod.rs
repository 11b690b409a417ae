//! The facets: what an engine must do atomically or durably, and nothing else.
//!
//! The docs of each trait are the contract, and the conformance laws test it word by word on every
//! engine. The traits are object-safe; a call returns one boxed future per *batch*, never per
//! record.
//!
//! Rules that hold for all of them:
//! - A step is atomic: it happens whole or not at all, and it checks everything before its first
//!   write.
//! - Time crosses the interface as a duration, never as an instant; the engine's clock decides.
//! - A step touches one partition, one pool, one claim shard or one space, so that an engine may
//!   spread those over nodes.
//! - An error whose [`may_have_happened`](crate::Error::may_have_happened) is false means: not
//!   done.
//! - Dropping a future does not undo its step: it may still happen.

mod bus;
mod catalog;
mod dead;
mod delayed;
mod groups;
mod leases;
mod log;
mod mark;
mod node;
mod offers;
mod streams;

pub use bus::{Bus, Signal, Subscription};
pub use catalog::{Catalog, Entry, EntryKey, Expect, Put};
pub use dead::{DeadLetter, DeadLetters, Edit, Replay};
pub(crate) use delayed::CANCELLED_WINDOW;
pub use delayed::{DelayedAction, DelayedContent, DelayedOutcome, DelayedPage, DelayedState};
pub use groups::{Committed, Due, DueRecord, GroupStatus, Groups, Pending, Reset, StartPosition, TakeDue};
pub use leases::{Acquire, Acquired, LeaseQuery, Leases};
pub use log::{
    Append, Appended, Bounds, Log, ProducerSeq, Promoted, ReadLimit, SequenceGap, Trim, TrimTo, Trimmed,
};
pub(crate) use mark::MarkJudgement;
pub use mark::{NewMark, SourceMark};
pub use node::{EngineNode, NodeState};
pub use offers::{
    Beat, ClaimKey, ClaimShard, ClaimShardStatus, Granted, Join, Membership, MembershipInfo, NewOffer,
    OfferInfo, OfferState, Offers, Outcome, PreviousOwner, Taken,
};
pub(crate) use offers::{check_checkpoint, check_count, check_offers, check_rest};

pub use streams::{AS_JSON, Adopt, STREAM_ID, StreamGroup, StreamPending, Streams, TOO_LARGE};

use crate::durability::Durability;
use crate::engine::Engine;
use crate::error::Result;
use crate::watch::Hints;
use std::pin::Pin;

/// What a facet call returns.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// An engine: all facets together.
pub trait Backend:
    Log + Streams + Groups + DeadLetters + Leases + Offers + Catalog + Bus + Hints + Send + Sync + 'static
{
    /// What this engine is, for people: `memory:`, `file:./data`. Never contains secrets.
    fn describe(&self) -> String;

    /// Whether acknowledgements can mean this, asked of what the engine runs on now; else
    /// `Unsupported` with what is missing.
    fn can_promise(&self, durability: Durability) -> Reply<'_, ()>;

    /// What the engine knows to be wrong with what it stores, for health checks: that it cannot be
    /// written to, or which partitions are damaged. It asks nothing of what the engine runs on.
    fn health(&self) -> Result<()> {
        Ok(())
    }

    /// The servers that the engine runs on, as it saw them a few seconds ago; none for an engine
    /// inside the process. It asks nothing of them.
    fn nodes(&self) -> Vec<EngineNode> {
        Vec::new()
    }

    /// A handle on the same data whose background work runs on the runtime that calls this, so that
    /// a blocked runtime elsewhere does not hold it up. Close it there. `None` if the engine needs
    /// none: its calls may come from any runtime.
    fn apart(&self) -> Option<Engine> {
        None
    }

    /// Whether appends are taken now: a store that failed, or whose disk is nearly full, refuses
    /// them. A caller that cannot wait asks before it appends. It asks nothing of what the engine
    /// runs on.
    fn takes_appends(&self) -> Result<()> {
        Ok(())
    }

    /// Begins a [backup](crate::backup): what it holds is one moment between this call and its
    /// end, and everything acknowledged before this call is in it. Only engines on files take one.
    #[cfg(feature = "embedded")]
    fn backup(&self) -> Reply<'_, crate::backup::Backup> {
        let context = format!(
            "{} takes no backup: back up the files of its servers, the RDB or the append-only files of every \
             master",
            self.describe()
        );
        Box::pin(async { Err(crate::Error::new(crate::ErrorKind::Unsupported, context)) })
    }

    /// Stops background work and makes everything acknowledged as durable as promised. Later calls
    /// fail with [`ErrorKind::Closed`](crate::ErrorKind::Closed). Closing twice is fine.
    fn close(&self) -> Reply<'_, ()>;
}
