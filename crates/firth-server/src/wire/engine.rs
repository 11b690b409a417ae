//! The engine of a server, and the servers that it runs on.

use firth::{EngineNode, NodeState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where topics are kept, and how that is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct EngineShown {
    /// `memory`, `file`, `redis`, `redis+unix`, `redis+sentinel` or `redis+cluster`.
    pub(crate) kind: String,
    /// Its URL, without secrets.
    pub(crate) place: String,
    /// Whether it answers; if not, why.
    pub(crate) ready: bool,
    pub(crate) problem: Option<String>,
    /// Memory of the server's process that is in RAM, in bytes.
    pub(crate) process_memory: Option<u64>,
    /// Of an engine on files: its directory, the bytes in it, and those that are free on its disk,
    /// measured every 30 s.
    pub(crate) directory: Option<String>,
    pub(crate) disk: Option<u64>,
    pub(crate) disk_free: Option<u64>,
    /// The servers that it runs on, each master before its replicas; at most a few seconds old.
    /// Empty for `memory` and `file`.
    pub(crate) nodes: Vec<EngineNodeShown>,
}

/// A server that the engine runs on.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct EngineNodeShown {
    /// Host and port, or the path of a socket.
    pub(crate) address: String,
    pub(crate) role: EngineRole,
    /// The master that a replica copies.
    pub(crate) replica_of: Option<String>,
    pub(crate) state: EngineNodeState,
    /// Kind and version; null for replicas.
    pub(crate) version: Option<String>,
    /// Bytes of memory in use; null for replicas, and where the user may not call INFO.
    pub(crate) memory: Option<u64>,
    /// How many it may use; null without a limit.
    pub(crate) max_memory: Option<u64>,
    /// Ranges of the cluster's slots, first and last.
    pub(crate) slots: Vec<[u16; 2]>,
}

/// What a server of the engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EngineRole {
    Master,
    Replica,
}

/// How a server of the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EngineNodeState {
    /// It answers; a replica is connected to its master.
    Online,
    /// A replica that does not have all data yet.
    Syncing,
    /// It does not answer; a replica is not connected to its master.
    Away,
}

impl From<EngineNode> for EngineNodeShown {
    fn from(node: EngineNode) -> Self {
        let EngineNode { address, replica_of, state, version, memory, max_memory, slots, .. } = node;
        let role = if replica_of.is_some() { EngineRole::Replica } else { EngineRole::Master };
        let state = match state {
            NodeState::Online => EngineNodeState::Online,
            NodeState::Syncing => EngineNodeState::Syncing,
            NodeState::Away => EngineNodeState::Away,
        };
        let slots = slots.into_iter().map(|range| [*range.start(), *range.end()]).collect();
        Self { address, role, replica_of, state, version, memory, max_memory, slots }
    }
}
