//! A durable queue: partitioned topics, consumer groups, retries, dead letters and delayed
//! messages, embedded in one process or on a server.
//!
//! ```
//! use firth::{Broker, Result};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! let broker = Broker::memory(); // Broker::open("./data") keeps them, Broker::connect("redis://…") shares them
//! broker.create_topic("orders").partitions(4).await?;
//!
//! let producer = broker.producer("orders").await?;
//! producer.send("one coffee, please").await?;
//!
//! let mut consumer = broker.consumer("orders", "bar").await?;
//! if let Some(delivery) = consumer.next().await.transpose()? {
//!     println!("serving {:?}", delivery.text()?);
//!     delivery.ack().await?;
//! }
//! consumer.close().await
//! # }
//! ```
//!
//! The [guide] has pages on delivery, effects that count once, failures, keeping, operating and
//! migrating.
//!
//! # What it promises
//!
//! | promise | how |
//! |---|---|
//! | An acknowledged message reaches every group at least once, until it is settled | the engine stores it before [`Producer::send`] returns; a group's frontier only passes what is settled |
//! | Messages of one key are handled in order, also after a crash | one partition per key, one lane per partition, [`KeyOrdering::Strict`] holds back a key whose record is tried again |
//! | Only the newest owner of a partition settles anything | each change of owner has a larger epoch, checked inside the engine with every commit |
//! | A group never notices another group's failures | retries, dead letters and replays are kept per group |
//! | Retention never removes what some group still needs | unless the topic is `lossy` |
//! | Nothing grows without bound | every buffer states its limit and what happens when it is full |
//!
//! Not promised: exactly once (a crash between a handler's effect and its commit repeats the
//! record: make handlers idempotent by [`Record::id`]), and order across keys or partitions.
//!
//! # Features
//!
//! | feature | gives |
//! |---|---|
//! | `embedded` | topics on files: [`Broker::open`], `file:DIR`; `memory:` is always there |
//! | `redis` | topics on Redis and Valkey: standalone, Sentinel, Cluster |
//! | `tls` | `rediss://` and its variants |
//!
//! All are on by default.
//!
//! # Sending
//!
//! [`Producer`] handles are cheap clones of one task that batches. [`send`](Producer::send) waits
//! for the receipt, [`enqueue`](Producer::enqueue) only for room. Batches form by themselves under
//! load; a [`linger`](ProducerBuilder::linger) makes them larger. An
//! [`idempotent`](ProducerBuilder::idempotent) producer repeats what may or may not have arrived,
//! and it is there once. How keys map to partitions is part of the topic: see [`partitioner`].
//!
//! # Consuming
//!
//! Members of a group share the partitions fairly; who joins gets a share, who leaves or crashes is
//! replaced. Give a consumer a handler with [`run`](Consumer::run), or take deliveries with
//! [`next`](Consumer::next):
//!
//! ```
//! # use firth::{Broker, Nack, Result, RetryPolicy};
//! # use std::time::Duration;
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<()> {
//! # let broker = Broker::memory();
//! # broker.create_topic("orders").await?;
//! # broker.producer("orders").await?.send("7").await?;
//! let consumer = broker
//!     .consumer("orders", "billing")
//!     .concurrency(8) // side by side, but never two of one key
//!     .retry(RetryPolicy { max_attempts: 3, ..RetryPolicy::default() })
//!     .handler_timeout(Duration::from_secs(30))
//!     .await?;
//! consumer
//!     .run(|record| async move {
//!         let order: u32 = record.text()?.parse()?; // `?` means: try again
//!         if order > 1000 {
//!             return Err(Nack::reject("we never sell so much")); // dead letter
//!         }
//!         Ok(()) // done
//!     })
//!     .until(tokio::time::sleep(Duration::from_secs(1))) // or ctrl_c()
//!     .await
//! # }
//! ```
//!
//! # When something fails
//!
//! A failed record is tried again as its [`RetryPolicy`] says, then it becomes a dead letter of its
//! group. [`Broker::dead_letters`] browses, counts, replays, edits and deletes them. Panics and
//! overdue handlers are failures like any other. A record that takes its process down again and
//! again is given up too ([`RetryPolicy::max_crashes`]).
//!
//! # Owning long-running work
//!
//! [`claims`] spreads named units of work over workers, each owned by exactly one of them, with
//! takeover when one dies or hangs.
//!
//! # Operating
//!
//! [`Broker::admin`] shows topics, groups with their exact lag, members and owners, and repairs
//! them. Metrics go through the `metrics` facade under `firth_*` with the labels topic, group and
//! result; logs and spans through `tracing`. Messages that a handler sends inherit the W3C header
//! [`TRACEPARENT`] of its record.
//!
//! # Building on top
//!
//! An owner of a partition keeps records for receivers that are behind in groups of their own:
//! [`Broker::side_groups`]. What the processes of a program share beside their topics lies in
//! [`catalog`].
//!
//! # Testing your own code
//!
//! [`Broker::memory`] with tokio's paused clock runs hours of retries in no time: see
//! `examples/testing_handlers.rs`.

mod admin;
mod adopt;
mod background;
mod broker;
pub mod catalog;
pub mod claims;
mod consumer;
mod dead_letters;
mod error;
mod failure_detector;
pub mod guide;
mod housekeeping;
mod message;
mod metrics;
pub mod partitioner;
mod payload;
mod producer;
mod record;
mod renewals;
mod retry;
mod shared_record;
mod side_groups;
mod source;
mod topic;
mod trace;

pub use admin::{
    Admin, DelayedChange, DelayedId, DelayedMessage, DelayedMessages, DelayedState, GroupInfo,
    GroupPartition, InFlightPage, InFlightRecord, MemberInfo, Owner, PartitionCheck, PartitionInfo,
    PendingPage, PendingQuery, PendingRecord, PendingSort, RecordPage, Reset, StartPosition, TopicStatus,
    TrimTo,
};
pub use adopt::{AS_JSON, AdoptStream, STREAM_ID, TOO_LARGE};
pub use broker::Broker;
pub use consumer::{
    Consumer, ConsumerBuilder, ConsumerConfig, ConsumerHandle, Delivery, KeyOrdering, Nack, Run, Settled,
    StartAt,
};
pub use dead_letters::{DeadId, DeadLetter, DeadLetters, DeadPage, Follow, Replay};
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "embedded")]
pub use firth_engine::backup;
pub use firth_engine::facet::{EngineNode, NodeState};
pub use firth_engine::limits;
pub use firth_engine::{
    Backoff, Durability, Engine, Epoch, FailedAttempt, GroupName, Headers, Hold, Origin, RecordId, TopicName,
};
pub use housekeeping::Swept;
pub use message::Message;
pub use partitioner::{Mapping, Partitioner, RoundRobin};
pub use producer::{BatchPolicy, LostSends, Producer, ProducerBuilder, Receipt, SendFuture};
pub use record::Record;
pub use retry::RetryPolicy;
pub use side_groups::{SideGroupStatus, SideGroups};
pub use source::{SourceAppend, SourceWriter};
pub use topic::{
    Adopted, AutoCreate, CreateTopic, Limits, MAX_PARTITIONS, Retention, TopicConfig, TopicInfo,
};
pub use trace::TRACEPARENT;

/// The README's code compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The code of the crate's own README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
