//! [`TopicFeed`]: a topic of change events into a hub, with nothing between but the queue. Any
//! other source calls [`Hub::publish`].
//!
//! Each gateway reads every partition, so each has a group of its own. It is deleted when the feed
//! closes. After a crash it stays, and holds back retention, until the gateway starts again under
//! the same name, or until another gateway of the topic has seen it without members for ten
//! minutes.

use crate::hub::Hub;
use crate::metrics;
use crate::position::Offsets;
use firth::{Admin, Broker, ConsumerHandle, ErrorKind, Record, RecordId, Result, StartAt, TopicInfo};
use firth_router::event::Event;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long a start waits for the leases of a predecessor that crashed.
const PREDECESSOR: Duration = Duration::from_secs(30);
/// How long a gateway that crashed keeps its group from the next one of its name. Short: only that
/// one waits for it, and a reader that loses its partitions to it takes them back.
const LEASE: Duration = Duration::from_secs(4);
/// The pause between two looks at them.
const PAUSE: Duration = Duration::from_millis(250);
/// The pause between two looks at how much of the window is still to be read.
const LOOK: Duration = Duration::from_millis(10);

/// A topic with more partitions is not followed: a position would be too long, in every message.
const FOLLOWED: usize = 64;

/// Records of a partition that are given to clients in one go.
const BURST: usize = 256;

/// How often a feed looks for groups that crashed gateways left.
const SWEEP: Duration = Duration::from_secs(60);
/// How long such a group has had no members when it is deleted: longer than any gateway is cut off
/// and comes back.
const ABANDONED: Duration = Duration::from_secs(600);

/// A running feed.
pub struct TopicFeed {
    broker: Broker,
    topic: String,
    group: String,
    consumer: ConsumerHandle,
    task: JoinHandle<Result<()>>,
    sweeper: JoinHandle<()>,
}

impl TopicFeed {
    /// What the names of gateways' groups should begin with: such a group is deleted by other feeds
    /// of its topic once it was without members for ten minutes. A group of another name stays for
    /// ever if its gateway crashes and does not come back.
    pub const GROUPS: &str = "gateway.";

    /// Begins to feed the hub with what is sent to the topic. `group` must be this gateway's alone:
    /// it is refused while another process reads with it, because each would see only a part.
    ///
    /// If the topic has at most 64 partitions, the hub follows it: it reads the window first, so
    /// that clients of other gateways and of an earlier life can resume here. Otherwise it begins
    /// with what is sent from now on, and positions hold for this life alone.
    pub async fn start(hub: Hub, broker: &Broker, topic: &str, group: &str) -> Result<Self> {
        let admin = broker.admin();
        free(&admin, topic, group).await?;
        let status = admin.topic(topic).await?;
        let partitions = status.partitions.len();
        let follows = partitions <= FOLLOWED && hub.follow(epoch(&status.info), partitions);
        let start = if follows { StartAt::Age(hub.config().window.age) } else { StartAt::Newest };
        admin.create_group(topic, group, start).await?;
        let consumer = broker.consumer(topic, group).name("gateway").lease(LEASE).start_at(start).await?;
        let handle = consumer.handle();
        // From then on another gateway with this group is refused.
        handle.assigned(|owned| owned.len() >= partitions).await;
        let feeder = Feeder { hub: hub.clone(), consumer: handle.clone(), follows, seen: Mutex::default() };
        let feeder = Arc::new(feeder);
        let run = consumer.run_batches(BURST, move |records| {
            let feeder = feeder.clone();
            async move {
                feeder.take(&records);
                // Connections write now, or a backlog would run over before they can.
                tokio::task::yield_now().await;
                Ok(())
            }
        });
        let task = tokio::spawn(run.into_future());
        let topic = topic.to_owned();
        let group = group.to_owned();
        let sweeper = tokio::spawn(sweep(admin, topic.clone(), group.clone()));
        let feed = Self { broker: broker.clone(), topic, group, consumer: handle, task, sweeper };
        if follows {
            let last = status.partitions.iter().map(|partition| (partition.index, partition.last));
            feed.catch_up(&hub, last.collect()).await?;
        }
        Ok(feed)
    }

    /// Reads the window, which must not come to clients as news.
    async fn catch_up(&self, hub: &Hub, last: Vec<(u32, RecordId)>) -> Result<()> {
        let mut goal = Offsets::default();
        last.iter().for_each(|(partition, last)| goal.raise(*partition, last.seq));
        while !hub.has_read(&goal) && !self.task.is_finished() {
            if self.broker.admin().group(&self.topic, &self.group).await?.lag() == 0 {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        for (partition, last) in last {
            hub.begin(partition, last);
        }
        Ok(())
    }

    /// Resolves when the feed cannot go on (its topic is gone, say): clients would wait for ever,
    /// so the gateway should end too.
    pub async fn ended(&mut self) -> Result<()> {
        match (&mut self.task).await {
            Ok(outcome) => outcome,
            Err(panic) => Err(firth::Error::new(ErrorKind::Internal, "the feed panicked").with_source(panic)),
        }
    }

    /// Stops, and deletes the group.
    pub async fn close(mut self) -> Result<()> {
        self.sweeper.abort();
        self.consumer.close();
        let outcome = if self.task.is_finished() { Ok(()) } else { self.ended().await };
        self.broker.admin().delete_group(&self.topic, &self.group).await?;
        outcome
    }
}

/// Waits until no member reads with the group, and deletes it.
async fn free(admin: &Admin, topic: &str, group: &str) -> Result<()> {
    let patience = Instant::now() + PREDECESSOR;
    while let Err(error) = admin.delete_group(topic, group).await {
        let is_busy = error.kind() == ErrorKind::Invalid && Instant::now() < patience;
        if !is_busy {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Deletes groups that crashed gateways left behind, from time to time.
async fn sweep(admin: Admin, topic: String, own: String) {
    let mut abandoned = HashMap::new();
    loop {
        tokio::time::sleep(SWEEP).await;
        if let Err(error) = sweep_once(&admin, &topic, &own, &mut abandoned).await {
            tracing::debug!(%error, "groups of other gateways cannot be looked at");
        }
    }
}

/// `abandoned`: the groups without members, and since when that is known.
async fn sweep_once(
    admin: &Admin,
    topic: &str,
    own: &str,
    abandoned: &mut HashMap<String, Instant>,
) -> Result<()> {
    let mut still = HashMap::new();
    for group in admin.groups(topic).await? {
        let name = group.as_str();
        let is_gateways = name.starts_with(TopicFeed::GROUPS) && name != own;
        if !is_gateways || !admin.group(topic, name).await?.members.is_empty() {
            continue;
        }
        let since = abandoned.get(name).copied().unwrap_or_else(Instant::now);
        if since.elapsed() < ABANDONED {
            still.insert(name.to_owned(), since);
        } else if admin.delete_group(topic, name).await? {
            tracing::info!(topic, group = name, "deleted the group of a gateway that did not come back");
        }
    }
    *abandoned = still;
    Ok(())
}

/// The same for all who follow this topic, and another for a later one of its name.
fn epoch(topic: &TopicInfo) -> u64 {
    let created = topic.created.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let digest = Sha256::digest(format!("{}/{created}", topic.name));
    let head = digest.first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(head)
}

/// What the batches of all partitions share.
struct Feeder {
    hub: Hub,
    consumer: ConsumerHandle,
    /// The hub takes its offsets from the records.
    follows: bool,
    seen: Mutex<HashMap<u32, RecordId>>,
}

impl Feeder {
    /// Publishes records of one partition, but none that came before: a consumer that lost its
    /// partition for a moment reads again from the frontier. Clients are told where a lossy trim
    /// has removed some that were not read yet, or where the log went back.
    fn take(&self, records: &[Record]) {
        let mut burst = self.hub.burst();
        let mut before = None;
        for record in records {
            let partition = record.partition();
            let seq = record.id().seq;
            let is_next = before.replace(seq).is_some_and(|before: u64| before + 1 == seq);
            if !is_next && let lost @ 1.. = self.consumer.take_lost(partition, seq) {
                tracing::warn!(
                    partition,
                    lost,
                    "events of the topic are gone: clients must fetch their state anew"
                );
                drop(burst);
                self.hub.lose(partition, record.id());
                // The log may have gone back: then its numbers and times say nothing about what
                // comes.
                self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(&partition);
                burst = self.hub.burst();
            }
            if self.is_repeated(record) {
                metrics::fed("repeated");
                continue;
            }
            let (event, unreadable) = match Event::from_payload(record.payload()) {
                Ok(event) => (Some(event), None),
                Err(error) => (None, Some(error)),
            };
            let published = match event {
                event if self.follows => burst.arrive(event, (partition, record.id())).err(),
                Some(event) => burst.publish(event).err(),
                None => None,
            };
            match unreadable.or(published) {
                None => metrics::fed("ok"),
                Some(error) => {
                    metrics::fed("unreadable");
                    tracing::warn!(%error, partition, id = %record.id(), "a record is not an event: nobody gets it");
                }
            }
        }
    }

    fn is_repeated(&self, record: &Record) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = seen.entry(record.partition()).or_insert(RecordId::ZERO);
        let is_repeated = record.id() <= *last;
        *last = record.id().max(*last);
        is_repeated
    }
}

impl std::fmt::Debug for TopicFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TopicFeed({} as {})", self.topic, self.group)
    }
}
