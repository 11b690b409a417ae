//! From a topic of change events to the one gateway that asked for them: match, route, batch,
//! deliver, with pressure handled and nothing silently dropped.
//!
//! | module | what |
//! |---|---|
//! | [`event`] | a change of a document, in JSON and in the compact form that topics hold |
//! | [`config`] | the `routing:` section of the configuration, every option checked |
//! | [`filter`] | filters in CEL or as plain conditions, taken apart once into what an index can answer and a rest |
//! | [`matching`] | which subscriptions want an event: by index, never by scanning filters |
//! | [`lane`] | the queue of one gateway: batches, order, retries, pressure, accounting |
//! | [`registry`] | who wants what: subscriptions and gateways, shared by all nodes |
//! | [`node`] | the router itself: reads a topic, matches, feeds the lanes |
//! | [`deliver`], [`wire`] | how batches reach gateways |
//! | [`receive`] | the receiving half, for anyone's gateway |
//! | [`pattern`] | names with `*` for any part |
//! | [`routing`] | the partition of a document, the gateways of a subscription |

pub mod config;
pub mod deliver;
mod error;
pub mod event;
pub mod filter;
#[doc(hidden)]
pub mod fuzzing;
pub mod lane;
pub mod matching;
mod name;
pub mod node;
pub mod pattern;
pub mod receive;
pub mod registry;
pub mod routing;
pub mod wire;

pub use error::{Error, ErrorKind, Result};
pub use name::{GatewayId, SubscriptionId, Tenant};
