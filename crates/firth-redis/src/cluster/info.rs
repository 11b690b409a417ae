//! What users are told of a cluster's nodes.

use crate::config::Address;
use std::ops::RangeInclusive;

/// A node of the cluster as this client sees it; see [`Client::nodes`](crate::Client::nodes).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// Where this client reaches it.
    pub address: Address,
    /// Whether it may write.
    pub role: NodeRole,
    /// The slots that it serves; for a replica, those of its master.
    pub slots: Vec<RangeInclusive<u16>>,
}

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeRole {
    /// Owns slots.
    Master,
    /// Copies a master and takes its place when it fails.
    Replica,
}
