//! [`Damage`]: partitions of a consumer that cannot be read. A damaged partition must not look like
//! an empty one.

use firth_engine::{Error, ErrorKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// What is wrong, by partition.
#[derive(Clone, Default)]
pub(crate) struct Damage(Arc<Shared>);

#[derive(Default)]
struct Shared {
    found: Mutex<BTreeMap<u32, Found>>,
    news: Notify,
}

struct Found {
    context: String,
    /// The consumer's user knows.
    told: bool,
}

impl Damage {
    /// A lane could not read its partition. It tries again from time to time, and each failure is
    /// told.
    pub(crate) fn note(&self, partition: u32, error: &Error) {
        self.lock().insert(partition, Found { context: error.context().to_owned(), told: false });
        self.0.news.notify_one();
    }

    /// Another consumer has the partition.
    pub(crate) fn forget(&self, partition: u32) {
        self.lock().remove(&partition);
    }

    /// The first partition that could not be read, as an error.
    pub(crate) fn first(&self) -> Option<Error> {
        self.lock().values().next().map(|found| corrupt(&found.context))
    }

    /// A failure that was not told yet.
    pub(crate) fn take_news(&self) -> Option<Error> {
        let mut found = self.lock();
        let found = found.values_mut().find(|found| !found.told)?;
        found.told = true;
        Some(corrupt(&found.context))
    }

    /// Resolves when there may be a failure that was not told yet. Cancel-safe.
    pub(crate) async fn news(&self) {
        self.0.news.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Found>> {
        self.0.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn corrupt(context: &str) -> Error {
    Error::new(ErrorKind::Corrupt, context.to_owned())
}
