//! [`DesiredState`]: what operators want of one source. Pure.

use bytes::Bytes;
use firth::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Copies of tables that are asked for and not done yet, at most.
pub const MAX_SNAPSHOTS: usize = 100;
/// Bytes of the condition of a snapshot, at most.
pub const MAX_CONDITION: usize = 4096;
/// Bytes of a table's name with its schema, at most.
const MAX_TABLE: usize = 256;

/// What operators want of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DesiredState {
    /// Whether its reader shall rest.
    #[serde(default)]
    pub paused: bool,
    /// Whether it shall be taken down: its slot, its marks and its saved state.
    #[serde(default)]
    pub removed: bool,
    /// Grows with each wish that its reader begins anew.
    #[serde(default)]
    pub restarts: u64,
    /// Copies that were asked for and are not done, oldest first.
    #[serde(default)]
    pub snapshots: Vec<SnapshotRequest>,
    /// The number of the last one that was asked for.
    #[serde(default)]
    last_snapshot: u64,
}

/// A copy of what a source holds now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// Its number; it grows with each request of the source.
    pub id: u64,
    /// The table, `schema.table`; all tables unless it is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Which rows, as the condition of a `WHERE`; all unless it is given.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

impl DesiredState {
    pub(super) fn from_bytes(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("plain data is JSON").into()
    }

    /// Asks for a copy; answers its number.
    pub fn ask_snapshot(&mut self, table: Option<&str>, condition: Option<&str>) -> Result<u64> {
        let limited = |field: &'static str, text: Option<&str>, limit: usize| match text {
            Some(text) if text.is_empty() || text.len() > limit || text.contains('\0') => {
                let context =
                    format!("{field} has {} bytes; give 1 to {limit}, and no zero byte", text.len());
                Err(Error::new(ErrorKind::Invalid, context).with_field(field).with_limit(limit as u64))
            }
            _ => Ok(()),
        };
        limited("table", table, MAX_TABLE)?;
        limited("where", condition, MAX_CONDITION)?;
        if condition.is_some() && table.is_none() {
            let context = "a condition belongs to one table: name it";
            return Err(Error::new(ErrorKind::Invalid, context).with_field("table"));
        }
        if self.snapshots.len() >= MAX_SNAPSHOTS {
            let context = format!("{MAX_SNAPSHOTS} snapshots wait already: ask again when some are done");
            return Err(Error::new(ErrorKind::Overloaded, context).with_limit(MAX_SNAPSHOTS as u64));
        }
        self.last_snapshot += 1;
        self.snapshots.push(SnapshotRequest {
            id: self.last_snapshot,
            table: table.map(str::to_owned),
            condition: condition.map(str::to_owned),
        });
        Ok(self.last_snapshot)
    }

    /// A copy is done, or was given up.
    pub fn end_snapshot(&mut self, id: u64) {
        self.snapshots.retain(|request| request.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_counted_and_limited() {
        let mut desired = DesiredState::default();
        assert_eq!(desired.ask_snapshot(None, None).unwrap(), 1);
        assert_eq!(desired.ask_snapshot(Some("public.orders"), Some("total > 5")).unwrap(), 2);
        desired.end_snapshot(1);
        desired.end_snapshot(1);
        assert_eq!(desired.ask_snapshot(None, None).unwrap(), 3);
        assert_eq!(desired.snapshots.iter().map(|request| request.id).collect::<Vec<_>>(), [2, 3]);
        let fields: [(Option<&str>, Option<&str>, &str); 4] = [
            (Some(""), None, "table"),
            (None, Some("true"), "table"),
            (Some("t"), Some("a\0"), "where"),
            (Some("t"), Some(""), "where"),
        ];
        for (table, condition, field) in fields {
            assert_eq!(desired.ask_snapshot(table, condition).unwrap_err().field(), Some(field));
        }
        while desired.snapshots.len() < MAX_SNAPSHOTS {
            desired.ask_snapshot(None, None).unwrap();
        }
        assert_eq!(desired.ask_snapshot(None, None).unwrap_err().kind(), ErrorKind::Overloaded);
    }

    #[test]
    fn what_is_stored_is_read_and_unknown_fields_do_not_disturb() {
        let mut desired = DesiredState { paused: true, restarts: 3, ..DesiredState::default() };
        desired.ask_snapshot(Some("orders"), Some("id > 7")).unwrap();
        assert_eq!(DesiredState::from_bytes(&desired.to_bytes()).unwrap(), desired);
        let newer = br#"{"paused":true,"colour":"red"}"#;
        let read = DesiredState::from_bytes(newer).unwrap();
        assert_eq!(read, DesiredState { paused: true, ..DesiredState::default() });
    }
}
