//! [`CreateTopic`]: the builder behind `broker.create_topic(..)`, finished by `.await`.

use super::{Retention, TopicConfig, TopicInfo};
use crate::broker::Broker;
use crate::error::{ErrorKind, Result};
use crate::partitioner::Mapping;
use firth_engine::TopicName;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

/// A topic about to be created; finish it with `.await`.
#[must_use = "nothing is created until it is awaited"]
pub struct CreateTopic<'b> {
    broker: &'b Broker,
    name: String,
    config: TopicConfig,
    if_missing: bool,
}

impl<'b> CreateTopic<'b> {
    pub(crate) fn new(broker: &'b Broker, name: &str) -> Self {
        Self { broker, name: name.to_owned(), config: TopicConfig::default(), if_missing: false }
    }

    /// How many partitions; 1 unless set.
    pub fn partitions(mut self, count: u32) -> Self {
        self.config.partitions = count;
        self
    }

    /// What to remove in time; nothing unless set.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.config.retention = retention;
        self
    }

    /// Lets retention remove records that some group has not settled.
    pub fn lossy(mut self) -> Self {
        self.config.lossy = true;
        self
    }

    /// The largest payload in bytes; 1 MiB unless set.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.config.max_payload = bytes;
        self
    }

    /// How keys map to partitions; fixed for the topic's life.
    pub fn mapping(mut self, mapping: Mapping) -> Self {
        self.config.mapping = mapping;
        self
    }

    /// Removes dead letters of this age; they stay for ever unless set.
    pub fn dead_letters_for(mut self, age: Duration) -> Self {
        self.config.dead_letters_for = Some(age);
        self
    }

    /// Everything at once.
    pub fn config(mut self, config: TopicConfig) -> Self {
        self.config = config;
        self
    }

    /// If the topic exists already, answers it as it is and changes nothing.
    pub fn if_missing(mut self) -> Self {
        self.if_missing = true;
        self
    }
}

impl<'b> IntoFuture for CreateTopic<'b> {
    type Output = Result<TopicInfo>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'b>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let name = TopicName::new(&self.name)?;
            self.broker.start_housekeeping();
            match self.broker.topics().create(&name, &self.config).await {
                Err(error) if self.if_missing && error.kind() == ErrorKind::AlreadyExists => {
                    self.broker.topics().get(&name).await
                }
                done => done,
            }
        })
    }
}
