//! The cluster client: every request goes to the node that owns its key's slot, and follows the slot when it moves.
//!
//! Pure parts: `slot` (key → slot), `topology` (slot → node), `parse` (what nodes say), `belief` (whom to believe).
//! `monitor` is the task that keeps the topology fresh, `chart` what it shares with those who route requests.

mod belief;
mod chart;
mod look;
pub(crate) mod monitor;
mod node;
mod parse;
mod slot;
pub(crate) mod topology;
mod view;

pub use self::slot::slot;
