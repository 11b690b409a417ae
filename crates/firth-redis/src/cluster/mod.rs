//! Cluster client: sends every request to the node that owns its key's slot, and follows the slot
//! when it moves.
//!
//! Pure parts: `slot` (key → slot), `topology` (slot → node), `parse` (replies of nodes), `arbiter`
//! (which node to trust), `diff` (what changed), `redirect` (what to do about an error), `one_node`
//! (whether anything ran).
//!
//! `monitor` is the task that refreshes the topology (`refresh`); `topology_cache` holds it for the
//! callers, with a `routing_table`. `router` chooses the node, `request` follows one request
//! through the cluster, and `scatter` a pipeline.

mod arbiter;
pub(crate) mod diff;
mod info;
pub(crate) mod monitor;
mod node;
mod one_node;
mod parse;
mod redirect;
mod refresh;
mod request;
mod router;
mod routing_table;
mod scatter;
mod slot;
pub(crate) mod topology;
pub(crate) mod topology_cache;

pub use self::info::{NodeInfo, NodeRole};
pub(crate) use self::redirect::{RetryDecision, RetryReason};
pub(crate) use self::request::ClusterRequest;
pub(crate) use self::router::ClusterRouter;
pub use self::slot::slot;
