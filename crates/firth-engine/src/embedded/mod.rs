//! The embedded engine: `memory:` and `file:DIR`, one process, nothing to install.
//!
//! ```text
//! facets ─► driver ─► step (pure: view → batch) ─► memory: lock, apply
//!                                               └► file:   committer thread: write, one fsync per group, answer
//! ```
//! Each call of the contract is one function in `steps/`, written once for both. Reads look at the
//! last durable state.

#[cfg(feature = "embedded")]
pub(crate) mod backup;
mod bus;
mod claim_shard_facet;
mod claim_shard_values;
mod clock;
#[cfg(feature = "embedded")]
mod committer;
#[cfg(feature = "embedded")]
mod directory;
mod driver;
mod facets;
#[cfg(feature = "embedded")]
mod file;
#[cfg(feature = "embedded")]
mod format;
#[cfg(all(feature = "embedded", any(test, feature = "testing")))]
pub(crate) mod fuzzing;
mod hints;
#[cfg_attr(
    not(all(feature = "testing", feature = "embedded")),
    allow(dead_code, unreachable_pub, reason = "only tests ask for them")
)]
mod hooks;
#[cfg(feature = "embedded")]
mod janitor;
#[cfg(feature = "embedded")]
mod journal;
#[cfg_attr(not(feature = "embedded"), allow(dead_code, reason = "the format is that of files"))]
mod keys;
#[cfg(feature = "embedded")]
mod lock;
#[cfg(feature = "embedded")]
mod logs;
mod memory;
#[cfg(feature = "embedded")]
mod recover;
#[cfg(feature = "embedded")]
mod rescue;
mod step;
mod steps;
#[cfg(feature = "embedded")]
mod tombstone_watermarks;
#[cfg(feature = "embedded")]
mod upgrade;
mod values;

#[cfg(feature = "embedded")]
pub use file::FileOptions;
#[cfg(not(feature = "testing"))]
pub(crate) use hooks::Hooks;
#[cfg(feature = "testing")]
pub use hooks::{CrashPoint, Hooks, Mutation};

use bus::LocalBus;
use driver::StepDriver;

/// The embedded engine behind all facets.
pub(crate) struct Embedded {
    driver: StepDriver,
    bus: LocalBus,
    description: String,
}

impl Embedded {
    pub(crate) fn memory(hooks: Hooks) -> Self {
        Self {
            driver: StepDriver::memory(hooks),
            bus: LocalBus::default(),
            description: "memory:".to_owned(),
        }
    }

    #[cfg(feature = "embedded")]
    pub(crate) fn file(path: &std::path::Path, options: FileOptions, hooks: Hooks) -> crate::Result<Self> {
        if let crate::Durability::Replicated(_) = options.durability {
            let context = "files have no replicas: use durability synced or fast";
            return Err(crate::Error::new(crate::ErrorKind::Unsupported, context));
        }
        let (store, newest_us) = file::FileStore::open(path, options)?;
        Ok(Self {
            driver: StepDriver::file(store, newest_us, hooks)?,
            bus: LocalBus::default(),
            description: format!("file:{}", path.display()),
        })
    }
}
