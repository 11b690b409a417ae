//! [`State`]: the little that a source must know beside the marks in its topic.

use crate::copy_state::CopyState;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::future::Future;

/// What a reader leaves to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The identifier of the database cluster that was read.
    #[serde(default)]
    pub system: Option<u64>,
    /// Whether the slot was made: if it is gone later, history was lost.
    #[serde(default)]
    pub has_slot: bool,
    /// The tables that were published.
    #[serde(default)]
    pub tables: BTreeSet<String>,
    /// Up to where the database was allowed to forget. A slot that stands behind it is not the one
    /// that was read. None before the first session, and from builds that did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Allowed>,
    /// How far the rows that were found are copied.
    #[serde(default, skip_serializing_if = "CopyState::is_empty")]
    pub copy: CopyState,
}

/// A place in the history of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowed {
    /// The timeline.
    pub timeline: u32,
    /// The place in the write-ahead log.
    pub lsn: u64,
}

impl State {
    /// Reads what [`to_bytes`](Self::to_bytes) wrote; nothing reads as a new source.
    pub fn from_bytes(bytes: Option<&[u8]>) -> Result<Self> {
        bytes.map_or(Ok(Self::default()), |bytes| {
            serde_json::from_slice(bytes).map_err(|error| {
                Error::corrupt("the stored state of the source is damaged").with_source(error)
            })
        })
    }

    /// As JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data is JSON")
    }
}

/// Where the state of a source lies.
pub trait Keep<S = State>: Send + Sync {
    /// Stores it durably.
    fn save(&self, state: &S) -> impl Future<Output = Result<()>> + Send;
}

/// A claim keeps it as its checkpoint, under its epoch.
impl<S: Serialize + Sync> Keep<S> for firth::claims::Claim {
    async fn save(&self, state: &S) -> Result<()> {
        let bytes = serde_json::to_vec(state).expect("plain data is JSON");
        Ok(self.checkpoint(bytes).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_the_build_before_is_read_and_the_new_one_is_kept_whole() {
        let former = br#"{"system":7,"has_slot":true,"tables":["public.orders"]}"#;
        let mut state = State::from_bytes(Some(former)).unwrap();
        let tables = BTreeSet::from(["public.orders".to_owned()]);
        assert_eq!(state, State { system: Some(7), has_slot: true, tables, ..State::default() });
        assert_eq!(state.to_bytes(), former);
        state.allowed = Some(Allowed { timeline: 2, lsn: u64::MAX });
        assert_eq!(State::from_bytes(Some(&state.to_bytes())).unwrap(), state);
    }
}
