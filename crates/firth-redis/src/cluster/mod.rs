//! The cluster client: every request goes to the node that owns its key's slot, and follows the slot when it moves.
//!
//! Pure parts: `slot` (key → slot), `topology` (slot → node), `parse` (what nodes say), `belief` (whom to believe),
//! `diff` (what changed), `redirect` (what to do about an answer that is none), `unit` (whether anything ran).
//! `monitor` is the task that keeps the topology fresh, `chart` what it shares with those who route requests by it;
//! `router` chooses the node, `voyage` follows one request and `scatter` a pipeline through the cluster.

mod belief;
pub(crate) mod chart;
pub(crate) mod diff;
mod info;
mod look;
pub(crate) mod monitor;
mod node;
mod parse;
mod redirect;
mod router;
mod scatter;
mod slot;
pub(crate) mod topology;
mod unit;
mod view;
mod voyage;

pub use self::{
    info::{NodeInfo, NodeRole},
    slot::slot,
};
pub(crate) use self::{
    redirect::{Step, Why},
    router::Router,
    voyage::Voyage,
};
