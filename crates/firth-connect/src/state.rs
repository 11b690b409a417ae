//! [`State`]: the little that a source must know beside the marks in its topic.

use crate::copy_state::CopyState;
use crate::error::{Error, Result};
use firth_router::event::MAX_CONTROL_REASON;
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
    /// Which parts of the tables the publication sends, if the source chose them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<String>,
    /// Up to where the database was allowed to forget. A slot that stands behind it is not the one
    /// that was read. None before the first session, and from builds that did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Allowed>,
    /// How far the rows that were found are copied.
    #[serde(default, skip_serializing_if = "CopyState::is_empty")]
    pub copy: CopyState,
    /// Whether the slot is to be made anew: what it told before is over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renew: bool,
    /// Whether all is copied, and no changes are followed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub done: bool,
    /// What every partition is to be told after a loss, until it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync: Option<Resync>,
}

/// A new beginning after a loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resync {
    /// Why history was lost.
    pub reason: String,
    /// Where the new slot begins; none until it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
}

impl Resync {
    /// Where its controls stand: before all that a slot tells that begins at `at`, and behind what
    /// was told before. No transaction commits at a place that is not aligned.
    pub(crate) fn commit(at: u64) -> u64 {
        at.saturating_sub(2)
    }
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

    /// The source after a loss: a new slot, and all tables anew.
    pub(crate) fn anew(&self, why: &str) -> Self {
        let mut copy = self.copy.clone();
        copy.retain(|_| false);
        let resync = Some(Resync { reason: control_reason(why), at: None });
        Self { system: self.system, copy, renew: true, resync, ..Self::default() }
    }

    /// As JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data is JSON")
    }
}

/// A text as the reason of a control, cut off if it is too long.
pub(crate) fn control_reason(why: &str) -> String {
    let mut end = why.len().min(MAX_CONTROL_REASON);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why[..end].to_owned()
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
        let anew = state.anew("the slot is gone");
        assert_eq!(State::from_bytes(Some(&anew.to_bytes())).unwrap(), anew);
    }

    #[test]
    fn a_source_that_begins_anew_keeps_the_numbers_of_its_groups() {
        let mut copy = CopyState { stored: 3, request: 2, ..CopyState::default() };
        copy.add(&["public.orders".to_owned()]);
        copy.open = vec![Some(vec!["7".to_owned()]), None];
        let state = State { system: Some(7), has_slot: true, copy, ..State::default() };
        let anew = state.anew(&"é".repeat(150));
        assert_eq!((anew.system, anew.has_slot, anew.renew), (Some(7), false, true));
        assert_eq!(anew.copy, CopyState { stored: 5, request: 2, ..CopyState::default() });
        assert_eq!(anew.resync.unwrap().reason.len(), 200);
    }
}
