//! [`AutoCreate`]: what a broker does about missing topics, within a bound.

use super::{TopicConfig, TopicInfo, Topics};
use crate::error::{Error, ErrorKind, Result};
use firth_engine::TopicName;
use std::fmt;
use std::sync::Arc;

/// A policy that makes missing topics when a producer or a consumer asks for them.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use firth::{AutoCreate, Broker, TopicConfig};
///
/// let like = TopicConfig { partitions: 4, ..TopicConfig::default() };
/// let broker = Broker::memory().auto_create(AutoCreate::like(like).at_most(100));
/// assert_eq!(broker.producer("orders").await?.partitions(), 4);
/// # broker.close().await
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct AutoCreate {
    config: TopicConfig,
    at_most: usize,
    tell: Arc<dyn Fn(&TopicInfo) + Send + Sync>,
}

impl AutoCreate {
    /// How many topics there may be unless [`at_most`](Self::at_most) says otherwise.
    pub const AT_MOST: usize = 1000;

    /// Makes topics that are set up like this.
    pub fn like(config: TopicConfig) -> Self {
        Self { config, at_most: Self::AT_MOST, tell: Arc::new(|_| ()) }
    }

    /// Makes none while there are this many topics or more, however they were made: asking for a
    /// missing one is an error then, as it is without the policy. Processes that make topics at the
    /// same moment may exceed it by one each.
    #[must_use]
    pub fn at_most(mut self, topics: usize) -> Self {
        self.at_most = topics;
        self
    }

    /// Calls this, in the task that asked, with every topic that was made.
    #[must_use]
    pub fn tell(mut self, tell: impl Fn(&TopicInfo) + Send + Sync + 'static) -> Self {
        self.tell = Arc::new(tell);
        self
    }

    /// Makes the missing topic, or opens it if another caller just made it.
    pub(crate) async fn make(&self, topics: &Topics, name: &TopicName) -> Result<TopicInfo> {
        let count = topics.count().await?;
        if count >= self.at_most {
            let most = self.at_most;
            let context = format!(
                "topic {name} does not exist, and with {count} topics it is not made by asking for it (at most {most}): create it, delete \
                 others, or raise the limit"
            );
            return Err(Error::new(ErrorKind::NotFound, context));
        }
        match topics.create(name, &self.config).await {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => topics.open(name).await,
            made => made.inspect(|info| {
                tracing::info!(topic = %name, "a missing topic was made");
                (self.tell)(info);
            }),
        }
    }
}

impl From<TopicConfig> for AutoCreate {
    fn from(config: TopicConfig) -> Self {
        Self::like(config)
    }
}

impl fmt::Debug for AutoCreate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoCreate")
            .field("config", &self.config)
            .field("at_most", &self.at_most)
            .finish_non_exhaustive()
    }
}
