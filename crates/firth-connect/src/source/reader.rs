//! [`Reader`]: reads a source session after session, until a newer reader takes over.

use super::follow::Follower;
use super::{Kept, OnLost, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::sessions::Sessions;
use crate::sink::Sink;
use crate::state::Keep;
use std::sync::Arc;

/// One reader of a source, of one epoch.
pub(crate) struct Reader<'a, S, T, K> {
    pub(crate) source: &'a S,
    /// Where changes go, under this reader's epoch.
    pub(crate) sink: Arc<T>,
    /// Where changes go that cannot be events.
    pub(crate) dead: Option<Arc<T>>,
    /// Where its place lies.
    pub(crate) keep: &'a K,
    /// Grows with each reader.
    pub(crate) epoch: u64,
    /// What operators see.
    pub(crate) progress: &'a Progress,
}

impl<S: Source, T: Sink, K: Keep<Kept<S::Place>>> Reader<'_, S, T, K> {
    /// Reads until a newer reader takes over, and answers that failure. Everything else is tried
    /// again. A lost source begins anew if its policy says so, else it stands still.
    pub(crate) async fn run(&self, mut kept: Kept<S::Place>) -> Error {
        let mut sessions = Sessions::default();
        loop {
            sessions.begin(self.progress);
            let mut error = Follower::follow(self, &mut kept).await;
            if error.kind() == ErrorKind::Lost && self.source.policy().on_lost == OnLost::Resync {
                match self.begin_anew(&mut kept, &error).await {
                    Ok(()) => continue,
                    Err(failed) => error = failed,
                }
            }
            if let Err(error) = sessions.end(self.source.name(), error, self.progress).await {
                return error;
            }
        }
    }

    /// Notes that the history so far is over, and why.
    async fn begin_anew(&self, kept: &mut Kept<S::Place>, error: &Error) -> Result<()> {
        let next = kept.anew(error.context());
        self.keep.save(&next).await?;
        *kept = next;
        tracing::warn!(source = self.source.name(), %error, "a source lost its history and begins anew");
        self.progress.resynced(error);
        Ok(())
    }
}
