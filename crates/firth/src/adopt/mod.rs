//! Adopting a plain Redis stream that other programs write, as a topic of one partition.
//!
//! The topic follows the stream: each entry becomes a record once, in order, and everything else
//! (groups, retries, dead letters, replays, retention) works on that copy. The stream itself is
//! only read; nothing of it is trimmed, acknowledged or deleted, unless
//! [`AdoptStream::remove_entries`] was asked for. Deleting the topic leaves the stream alone, too.

mod import;

pub(crate) use import::catch_up;

use crate::broker::Broker;
use crate::consumer::StartAt;
use crate::error::Result;
use crate::topic::{Adopted, Retention, TopicConfig, TopicInfo};
use firth_engine::{GroupName, TopicName};
use std::future::{Future, IntoFuture};
use std::pin::Pin;

pub use firth_engine::facet::{AS_JSON, STREAM_ID, TOO_LARGE};

/// A stream about to be adopted; finish it with `.await`.
///
/// ```no_run
/// # async fn example(broker: firth::Broker) -> firth::Result<()> {
/// // Somebody's program: XADD orders * customer ada item coffee
/// broker.adopt_stream("orders").key_field("customer").import_group("billing").await?;
/// let mut consumer = broker.consumer("orders", "billing").await?;
/// if let Some(delivery) = consumer.next().await.transpose()? {
///     println!("{}", delivery.text()?); // {"customer":"ada","item":"coffee"}
///     delivery.ack().await?;
/// }
/// # consumer.close().await }
/// ```
#[must_use = "nothing is adopted until it is awaited"]
pub struct AdoptStream<'b> {
    broker: &'b Broker,
    topic: String,
    adopted: Adopted,
    retention: Retention,
    from: StartAt,
    imports: Vec<(String, String)>,
}

impl<'b> AdoptStream<'b> {
    pub(crate) fn new(broker: &'b Broker, topic: &str) -> Self {
        let adopted = Adopted { stream: topic.to_owned(), ..Adopted::default() };
        let topic = topic.to_owned();
        let retention = Retention::Forever;
        let from = StartAt::Oldest;
        Self { broker, topic, adopted, retention, from, imports: Vec::new() }
    }

    /// The key of the stream; the topic's name unless set.
    pub fn stream(mut self, key: impl Into<String>) -> Self {
        self.adopted.stream = key.into();
        self
    }

    /// The field whose value is the key of the record: records of one key stay in order under
    /// retry. No key unless set.
    pub fn key_field(mut self, name: impl Into<String>) -> Self {
        self.adopted.key_field = Some(name.into());
        self
    }

    /// The field whose value is the payload, byte for byte; the others become headers. Unless set,
    /// the payload is a JSON object of all fields. An entry that lacks the field, or whose other
    /// fields are no headers, comes as JSON with the header [`AS_JSON`].
    pub fn payload_field(mut self, name: impl Into<String>) -> Self {
        self.adopted.payload_field = Some(name.into());
        self
    }

    /// From which entry on; from the oldest unless set.
    pub fn start_at(mut self, start: StartAt) -> Self {
        self.from = start;
        self
    }

    /// What the topic forgets of its copy; nothing unless set.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Removes entries from the stream once the topic has them: the stream is moved instead of
    /// copied. Other readers of the stream miss these entries.
    pub fn remove_entries(mut self) -> Self {
        self.adopted.remove_entries = true;
        self
    }

    /// Makes a group that goes on where the stream's consumer group of this name stands: what that
    /// group handed out and did not get acknowledged is due at once, as a second attempt; then
    /// comes what it has not seen. Stop its old consumers first. The old group stays as it is.
    pub fn import_group(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.import_group_as(name.clone(), name)
    }

    /// As [`import_group`](Self::import_group), under another name.
    pub fn import_group_as(mut self, old: impl Into<String>, new: impl Into<String>) -> Self {
        self.imports.push((old.into(), new.into()));
        self
    }

    async fn adopt(self) -> Result<TopicInfo> {
        let Self { broker, topic, adopted, retention, from, imports } = self;
        let name = TopicName::new(&topic)?;
        let mut groups = Vec::new();
        for (old, new) in imports {
            groups.push((old, GroupName::new(new)?));
        }
        broker.start_housekeeping();
        let max_payload = firth_engine::limits::MAX_PAYLOAD;
        let config = TopicConfig { adopted: Some(adopted), retention, max_payload, ..TopicConfig::default() };
        let info = broker.topics().adopt(&name, config, from.into()).await?;
        for (old, new) in groups {
            import::group(broker.engine(), &info, &old, &new).await?;
        }
        Ok(info)
    }
}

impl<'b> IntoFuture for AdoptStream<'b> {
    type Output = Result<TopicInfo>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'b>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.adopt())
    }
}
