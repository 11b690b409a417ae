//! Storage engines of firth: one set of laws, several engines.
//!
//! An [`Engine`] does what must be atomic or durable and nothing else, in small facets ([`facet`]):
//! the log of a partition, the progress of groups, dead letters, leases, offers and their owners, a
//! catalog, a bus. Everything above (queue, claims, router) gets its correctness from here.
//! `memory:` and `file:DIR` run inside the process, `redis:` and its kin on Redis or Valkey. One
//! step touches one partition, pool, claim shard or space, so that an engine may spread those over
//! nodes.
//!
//! The contract is the documentation of the facets; the crate `firth-laws` tests it on every
//! engine.

mod ahead;
mod backoff;
#[cfg(feature = "embedded")]
pub mod backup;
mod checks;
mod clock;
mod codec;
mod commit;
mod durability;
mod embedded;
mod engine;
mod error;
pub mod facet;
mod failures;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
mod headers;
mod hold;
mod id;
pub mod limits;
mod name;
mod progress;
mod record;
#[cfg(feature = "redis")]
mod redis;
mod watch;

pub use ahead::Ahead;
pub use backoff::Backoff;
pub use commit::{Commit, Dead, DeadNote, Retry, Verdict, cut_reason};
pub use durability::Durability;
#[cfg(feature = "embedded")]
pub use embedded::FileOptions;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use embedded::{CrashPoint, Hooks, Mutation};
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use failures::FailedAttempt;
pub use headers::Headers;
pub use hold::{Hold, LeaseInfo, LeaseName, Token, valid_for};
pub use id::{Epoch, RecordId};
pub use name::{
    ChannelName, GroupName, HolderName, MAX_NAME, MemberName, OfferName, Partition, PoolName, ProducerName,
    ServiceName, SourceName, SpaceName, TopicName,
};
pub use progress::{MAX_SPAN, Offer, Progress, Window};
pub use record::{Content, Encoding, Origin, Record};
#[cfg(feature = "redis")]
pub use redis::RedisOptions;
pub use watch::{CatalogWatch, Hint, HintKey, HintSet, Hints, LeaseWatch};
