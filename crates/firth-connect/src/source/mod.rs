//! [`Source`]: a kind of source as its reader needs it, and the `Reader` that such kinds share.
//!
//! A source opens a stream of [`Step`]s behind a place. The reader appends them with their
//! positions as marks, saves the place once everything before it is in the topic, and only then
//! tells the source that it may forget. PostgreSQL has a reader of its own, because it copies rows
//! beside its stream; pump, sink, state and sessions are the same.

#[cfg(feature = "_shared_reader")]
mod follow;
mod kept;
#[cfg(test)]
mod laws;
mod policy;

pub use kept::Kept;
pub use policy::{OnError, OnLost, Policy, PolicyOptions};

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::pump::Limits;
use crate::sessions::Sessions;
use crate::sink::Sink;
use crate::state::Keep;
use bytes::Bytes;
use firth_router::event::Event;
use follow::Follower;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The most bytes of a step's position: a mark holds them behind the number of the history.
pub const MAX_POSITION: usize = 60;

/// A kind of source.
pub trait Source: Send + Sync {
    /// From where a stream goes on; what a reader leaves to the next one.
    type Place: Serialize + DeserializeOwned + Clone + PartialEq + Send + Sync;
    /// An open stream.
    type Stream: ChangeStream<Place = Self::Place>;

    /// Its name.
    fn name(&self) -> &str;

    /// What follows on a loss, and on a change that cannot be an event.
    fn policy(&self) -> &Policy;

    /// The collections whose documents are to be loaded anew after a loss.
    fn collections(&self) -> Vec<String>;

    /// How much goes in a batch, and how much may wait.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// How often its place is saved while changes flow.
    fn save_every(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Opens the stream behind a place, or where a new source begins; answers that place. What it
    /// reads was saved before. [`Lost`](ErrorKind::Lost) if the source no longer has what follows.
    fn open(
        &self,
        place: Option<&Self::Place>,
        context: &Opening<'_>,
    ) -> impl Future<Output = Result<(Self::Stream, Self::Place)>> + Send;
}

/// The place of a source that remembers none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoPlace {}

/// What a stream is opened with.
#[derive(Debug)]
pub struct Opening<'a> {
    /// Grows with each reader.
    pub epoch: u64,
    /// Grows with each loss after which the source began anew.
    pub history: u32,
    /// What operators see.
    pub progress: &'a Progress,
}

/// A stream of changes, in the order of the source.
pub trait ChangeStream: Send {
    /// From where it goes on.
    type Place: Send;

    /// The next step. Dropping the future loses nothing.
    fn next(&mut self) -> impl Future<Output = Result<Step<Self::Place>>> + Send;

    /// This place is saved: what lies before it may be forgotten.
    fn confirm(&mut self, place: &Self::Place) -> impl Future<Output = Result<()>> + Send {
        let _ = place;
        async { Ok(()) }
    }
}

/// What a stream tells.
#[derive(Debug)]
pub enum Step<P> {
    /// A change of a document.
    Change(SourceChange),
    /// A control, for every partition.
    Control {
        /// Where it stands.
        position: Bytes,
        /// The control.
        event: Event,
    },
    /// A change that cannot be an event.
    Poison(Rejected),
    /// A later reader may begin here: every step before it is told.
    Place(P),
}

/// A change of a document.
#[derive(Debug)]
pub struct SourceChange {
    /// Where it stands: greater, byte by byte, than that of the step before, and the same whenever
    /// it is read.
    pub position: Bytes,
    /// What happened.
    pub event: Event,
    /// Headers of its record beside those that every record has.
    pub headers: Vec<(&'static str, String)>,
    /// As the source told it, for the case that it cannot be stored.
    pub origin: Origin,
}

/// A change as the source told it.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The name under which it came, such as a subject.
    pub name: String,
    /// Its bytes. Never logged.
    pub payload: Bytes,
}

/// A change that cannot be an event.
#[derive(Debug)]
pub struct Rejected {
    /// Where it stands.
    pub position: Bytes,
    /// Why. It quotes no values.
    pub error: Error,
    /// As the source told it.
    pub origin: Origin,
}

/// One reader of a source, of one epoch.
#[cfg(feature = "_shared_reader")]
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

#[cfg(feature = "_shared_reader")]
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
