//! The edge of firth: events to browsers and other clients over WebSocket, server-sent events and
//! long poll.
//!
//! | module | what |
//! |---|---|
//! | [`Hub`] | the core: sessions, subscriptions, presence, the window for resuming, what happens to slow clients |
//! | [`Edge`] | the hub behind HTTP: routes for an axum program of yours, or a server of its own |
//! | [`TopicFeed`] | events from a topic into the hub |
//! | [`RouterFeed`] | batches from a router into the hub |
//! | [`Registrar`] | what clients subscribe to, registered with that router |
//! | [`auth`] | tokens, tickets, origins |
//!
//! A client that was away for a moment resumes behind the last position that it saw, and gets every
//! event that it wants once and in order; if that is not possible any more, it is told so. Nothing
//! is dropped silently: see [`Accounting`].

mod accounting;
pub mod auth;
mod config;
mod edge;
mod feed;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod hub;
mod journal;
mod limits;
mod metrics;
mod outbox;
mod packet;
mod position;
mod presence;
mod protocol;
mod replay;
mod router_feed;
mod serve;
mod upstream;

pub use accounting::Accounting;
pub use config::{Config, Limits};
pub use edge::Edge;
pub use feed::TopicFeed;
pub use hub::{Burst, Hub, HubClient, HubClients, HubStatus, Outgoing, Published, Session, Step};
pub use journal::Window;
pub use limits::{Pace, TokenBucket};
pub use outbox::SlowPolicy;
pub use position::{NotAPosition, Position};
pub use protocol::{Code, EdgeError, SubscriptionRequest, VERSION};
pub use router_feed::RouterFeed;
pub use upstream::{Heartbeat, Registrar, Upstream};
