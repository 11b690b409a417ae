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
#[cfg(feature = "_shared_reader")]
mod reader;

pub use kept::Kept;
pub use policy::{OnError, OnLost, Policy, PolicyOptions};
#[cfg(feature = "_shared_reader")]
pub(crate) use reader::Reader;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::pump::Limits;
use bytes::Bytes;
use firth_router::event::Event;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
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
    /// reads was saved before. [`Lost`](crate::error::ErrorKind::Lost) if the source no longer has
    /// what follows.
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
