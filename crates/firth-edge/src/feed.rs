//! [`TopicFeed`]: a topic of change events into a hub, with nothing between but the queue. Any other source calls [`Hub::publish`].
//!
//! Each gateway reads every partition, so each has a group of its own. The group begins with what is sent from now on: clients of an earlier life
//! of the gateway must fetch their state anyway. It is deleted when the feed closes; after a crash it stays, and holds back
//! retention, until the gateway starts again under the same name.

use crate::hub::Hub;
use crate::metrics;
use firth::{Broker, ConsumerHandle, ErrorKind, Record, RecordId, Result, StartAt};
use firth_router::event::Event;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long a start waits for the leases of a predecessor that crashed.
const PREDECESSOR: Duration = Duration::from_secs(30);
/// The pause between two looks at them.
const PAUSE: Duration = Duration::from_millis(500);

/// So many records of a partition are given to clients in one go.
const BURST: usize = 256;

/// A running feed.
pub struct TopicFeed {
    broker: Broker,
    topic: String,
    group: String,
    consumer: ConsumerHandle,
    task: JoinHandle<Result<()>>,
}

impl TopicFeed {
    /// Begins to feed the hub with what is sent to the topic from now on. `group` must be this gateway's alone: it is refused while
    /// another process reads with it, because each would see only a part.
    pub async fn start(hub: Hub, broker: &Broker, topic: &str, group: &str) -> Result<Self> {
        let admin = broker.admin();
        let patience = tokio::time::Instant::now() + PREDECESSOR;
        while let Err(error) = admin.delete_group(topic, group).await {
            let is_busy = error.kind() == ErrorKind::Invalid && tokio::time::Instant::now() < patience;
            if !is_busy {
                return Err(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
        admin.create_group(topic, group, StartAt::Newest).await?;
        let consumer = broker.consumer(topic, group).name("gateway").start_at(StartAt::Newest).await?;
        let handle = consumer.handle();
        let partitions = broker.topic(topic).await?.partitions().count();
        // From then on another gateway with this group is refused.
        handle.assigned(|owned| owned.len() >= partitions).await;
        let feeder = Arc::new(Feeder { hub, seen: Mutex::default() });
        let run = consumer.run_batches(BURST, move |records| {
            feeder.take(&records);
            std::future::ready(Ok(()))
        });
        let task = tokio::spawn(run.into_future());
        let (topic, group) = (topic.to_owned(), group.to_owned());
        Ok(Self { broker: broker.clone(), topic, group, consumer: handle, task })
    }

    /// Resolves when the feed cannot go on (its topic is gone, say): clients would wait for ever, so the gateway should end too.
    pub async fn ended(&mut self) -> Result<()> {
        match (&mut self.task).await {
            Ok(outcome) => outcome,
            Err(panic) => Err(firth::Error::new(ErrorKind::Internal, "the feed panicked").with_source(panic)),
        }
    }

    /// Stops, and deletes the group.
    pub async fn close(mut self) -> Result<()> {
        self.consumer.close();
        let outcome = if self.task.is_finished() { Ok(()) } else { self.ended().await };
        self.broker.admin().delete_group(&self.topic, &self.group).await?;
        outcome
    }
}

/// What the batches of all partitions share.
struct Feeder {
    hub: Hub,
    seen: Mutex<HashMap<u32, RecordId>>,
}

impl Feeder {
    /// Publishes records of one partition, but none that came before: a consumer that lost its partition for a moment reads again from the
    /// frontier. What a crash repeats is of no use to the clients of another life.
    fn take(&self, records: &[Record]) {
        let mut burst = self.hub.burst();
        for record in records {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let last = seen.entry(record.partition()).or_insert(RecordId::ZERO);
            if record.id() <= *last {
                metrics::fed("repeated");
                continue;
            }
            *last = record.id();
            drop(seen);
            match Event::from_payload(record.payload()).and_then(|event| burst.publish(event)) {
                Ok(_) => metrics::fed("ok"),
                Err(error) => {
                    metrics::fed("unreadable");
                    tracing::warn!(%error, partition = record.partition(), id = %record.id(), "a record is not an event: nobody gets it");
                }
            }
        }
    }
}

impl std::fmt::Debug for TopicFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TopicFeed({} as {})", self.topic, self.group)
    }
}
