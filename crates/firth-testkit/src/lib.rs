//! Real servers, faults and laws for the tests of every firth crate.
//!
//! Nothing here knows firth's own client: the kit speaks to servers through its own small RESP2
//! client ([`resp`]), so that it can judge the crates that it tests. Fixtures panic with a full
//! story (what was awaited, the server's log) instead of returning errors, because a test has no
//! better use for them.
//!
//! ```no_run
//! use firth_testkit::{Flavor, Proxy, RedisServer};
//! # async fn demo() {
//! let server = RedisServer::start(Flavor::Redis).await;
//! let proxy = Proxy::start(server.addr()).await;
//! assert_eq!(server.command(&["PING"]).await.text(), "PONG");
//! proxy.cut().await; // every connection through the proxy is reset, the server lives on
//! server.kill().await; // kill -9
//! server.restart().await; // same port, same data
//! # }
//! ```

mod bins;
mod certs;
mod clock;
mod cluster;
mod disk;
mod flavors;
mod isolation;
mod nats;
mod needs;
pub mod peer;
pub mod ports;
mod postgres;
mod proxy;
pub mod resp;
mod server;
pub mod wait;

pub use bins::Flavor;
pub use certs::{Certs, Identity};
pub use clock::ServerClock;
pub use cluster::{ClusterBuilder, ClusterNode, Migration, RedisCluster, slot_of};
pub use disk::{FailedSync, Recording};
pub use isolation::{Isolation, in_own_network};
pub use nats::NatsServer;
pub use needs::cannot_run;
pub use peer::Peer;
pub use postgres::PostgresServer;
pub use proxy::{Direction, Fault, Proxy};
pub use resp::Reply;
pub use server::sentinel::SentinelSet;
pub use server::{Persist, RedisServer, RedisServerBuilder};

#[doc(hidden)]
pub use flavors::run as __run;
