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
mod limits;
mod literal;
mod parts;
pub mod position;
mod prepare;
mod publication;
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

pub use config::{Config, Options, Origin, SnapshotMode};
pub use doctor::examine;
pub use emitted::Emitted;
pub use limits::{LimitOptions, OnWal, Size};
pub use parts::TableColumns;
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
            let Err(mut error) = self.session(&mut state).await else { continue };
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

    /// One session of the stream. That of a source that only copies ends when all is copied; then
    /// the source rests until an operator asks for more.
    async fn session(&self, state: &mut State) -> Result<()> {
        let is_only = self.config.snapshot == SnapshotMode::Only;
        if state.done && self.config.snapshot == SnapshotMode::Initial {
            let next = state.anew("the source copied rows only, and follows changes from here on");
            self.keep.save(&next).await?;
            *state = next;
        }
        let has_all = self.config.tables.iter().all(|table| state.tables.contains(table));
        if !(is_only && state.done && has_all) {
            stream::follow(self, state).await?;
        }
        if state.has_slot {
            slot::let_go(self.config, self.epoch).await?;
            let next = State { has_slot: false, ..state.clone() };
            self.keep.save(&next).await?;
            *state = next;
        }
        self.progress.done();
        let taken = state.copy.request;
        self.control.wait_for(|desired| desired.snapshots.first().is_some_and(|next| next.id > taken)).await;
        // The next session saves that.
        state.done = false;
        Ok(())
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
