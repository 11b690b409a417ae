//! [`DeadLetter`]: what remains of a change that cannot be an event, where a source goes on without
//! it. It holds the key of the row, and none of its other values.

use serde::{Deserialize, Serialize};

/// One change. Its place in the source stands in the headers of its record.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// `schema.table`; empty if it is of no table.
    pub table: String,
    /// What happened to the row: insert, update or delete; `message` for one without a row.
    pub op: String,
    /// The row's key, unless that is missing or too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Why it cannot be an event.
    pub reason: String,
    /// When it was committed, in milliseconds of Unix time.
    pub committed_ms: u64,
}

impl DeadLetter {
    /// As JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data is JSON")
    }
}

/// Never shows the key.
impl std::fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeadLetter({} of {}: {})", self.op, self.table, self.reason)
    }
}
