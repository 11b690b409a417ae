//! Lines of `/v1/check`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One partition, as it was read.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct CheckedPartition {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    /// Records that were read, and the bytes of their payloads.
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Groups, all of whose retries and dead letters were read.
    pub(crate) groups: u64,
    /// What is wrong; nothing if it is sound.
    pub(crate) findings: Vec<String>,
    /// How many partitions are still to come.
    pub(crate) left: u64,
}
