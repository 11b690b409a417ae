//! The servers that an engine runs on, for operators.

use std::ops::RangeInclusive;

/// A server that an engine runs on, as the engine saw it last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineNode {
    /// Host and port, or the path of a socket; never a secret.
    pub address: String,
    /// The address of its master, if it is a replica.
    pub replica_of: Option<String>,
    /// How it is.
    pub state: NodeState,
    /// Its kind and version, such as `valkey 9.1.2`; unknown of replicas.
    pub version: Option<String>,
    /// Bytes of memory that it uses; unknown of replicas, and where INFO is forbidden.
    pub memory: Option<u64>,
    /// How many it may use; `None` if it has no limit.
    pub max_memory: Option<u64>,
    /// The slots of a cluster that it serves; for a replica, those of its master.
    pub slots: Vec<RangeInclusive<u16>>,
}

/// How a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It answers; a replica is connected to its master.
    Online,
    /// A replica that does not have all data yet.
    Syncing,
    /// It did not answer; a replica is not connected to its master.
    Away,
}
