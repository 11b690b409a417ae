//! PostgreSQL by logical replication: `pgoutput`, protocol 1.

pub mod assembler;
mod catalog;
pub mod config;
mod connection;
mod copying;
pub mod decode;
mod doctor;
mod emitted;
mod history;
mod literal;
pub mod position;
mod prepare;
mod records;
mod remove;
mod server_error;
pub mod shape;
mod slot;
pub mod snapshot;
mod stream;
pub mod target;
mod tls;
pub mod value;
mod watch;

pub use config::{Config, Options, SnapshotMode};
pub use doctor::examine;
pub use emitted::Emitted;
pub(crate) use remove::remove;

use crate::control::SourceControl;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::sessions::Sessions;
use crate::sink::Sink;
use crate::source::OnLost;
use crate::state::{Keep, State};
use std::sync::Arc;

/// One reader of a source, of one epoch.
pub struct Reader<'a, S, K> {
    /// The source.
    pub config: &'a Config,
    /// Where its changes go, under this reader's epoch.
    pub sink: Arc<S>,
    /// Where its state lies.
    pub keep: &'a K,
    /// Grows with each reader.
    pub epoch: u64,
    /// What operators want.
    pub control: &'a SourceControl,
    /// What operators see.
    pub progress: &'a Progress,
}

impl<S: Sink, K: Keep> Reader<'_, S, K> {
    /// Reads until a newer reader takes over, and answers that failure. Everything else is tried
    /// again. A lost source begins anew if its policy says so, else it stands still.
    ///
    /// `state` is what the former reader saved. Drop the future at any time: what was stored is
    /// stored once, and the next reader goes on behind it.
    pub async fn run(&self, mut state: State) -> Error {
        let mut sessions = Sessions::default();
        loop {
            sessions.begin(self.progress);
            let mut error = stream::follow(self, &mut state).await;
            if error.kind() == ErrorKind::Lost && self.config.policy.on_lost == OnLost::Resync {
                match self.begin_anew(&mut state, &error).await {
                    Ok(()) => continue,
                    Err(failed) => error = failed,
                }
            }
            if let Err(error) = sessions.end(&self.config.name, error, self.progress).await {
                return error;
            }
        }
    }

    /// Notes that the history so far is over, and why. The next session makes a slot, tells every
    /// partition, and copies all tables.
    async fn begin_anew(&self, state: &mut State, error: &Error) -> Result<()> {
        let next = state.anew(error.context());
        self.keep.save(&next).await?;
        *state = next;
        tracing::warn!(source = self.config.name, %error, "a source lost its history and begins anew");
        self.progress.resynced(error);
        Ok(())
    }
}
