//! A durable queue: partitioned topics, consumer groups, retries, dead letters and delayed messages, embedded in one
//! process or on a server.

mod admin;
mod broker;
mod consumer;
mod dead_letters;
mod error;
mod housekeeping;
mod message;
mod metrics;
pub mod partitioner;
mod producer;
mod record;
mod retry;
mod topic;
mod trace;

pub use admin::{
    Admin, GroupInfo, GroupPartition, MemberInfo, Owner, PartitionInfo, PendingPage, PendingQuery,
    PendingRecord, PendingSort, Position, Reset, TopicStatus, TrimTo,
};
pub use broker::Broker;
pub use consumer::{
    Consumer, ConsumerBuilder, ConsumerConfig, ConsumerHandle, Delivery, Nack, Ordering, Run, Settled,
    StartAt,
};
pub use dead_letters::{DeadId, DeadLetter, DeadLetters, DeadPage, Follow, Replay};
pub use error::{Error, ErrorKind, Result};
pub use firth_engine::{Backoff, Engine, Headers, Origin, RecordId};
pub use housekeeping::Swept;
pub use message::Message;
pub use partitioner::{Mapping, Partitioner, RoundRobin};
pub use producer::{BatchPolicy, Producer, ProducerBuilder, Receipt, Ticket};
pub use record::Record;
pub use retry::RetryPolicy;
pub use topic::{CreateTopic, MAX_PARTITIONS, Retention, TopicConfig, TopicInfo};
pub use trace::TRACEPARENT;
