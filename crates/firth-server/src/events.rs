//! System events for dashboards: what changed since the last look, for the listeners of
//! `/v1/events`.
//!
//! While there are listeners, one task looks at the engine, so it also sees changes by other
//! processes. A pure function computes the events from the difference of two looks. Bounded: the
//! task watches [`MAX_TOPICS`] topics, the busiest. A listener that falls [`BACKLOG`] events behind
//! misses the oldest, and the server tells it how many.

use crate::api::GROUPS_AT_ONCE;
use crate::delivery_leases::DeliveryLeases;
use crate::stats::{GroupFigures, MAX_TOPICS, Stats, StatsFigures, TopicFigures, WatchedTopics};
use crate::telemetry::Series;
use crate::wire::{SystemEvent, millis};
use firth::{Broker, Result, TopicStatus};
use futures_util::stream::{self, StreamExt};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{broadcast, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How many of them are asked about at a time.
const TOPICS_AT_ONCE: usize = 8;
/// How many owners of a group are sampled by name.
const OWNERS: usize = 3;
const BACKLOG: usize = 1024;
/// How old the gauges of topics and groups may be when they are scraped.
const FRESH: Duration = Duration::from_secs(5);
/// How long a scrape waits for them.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the engine is looked at, at most.
const EVERY: Duration = Duration::from_secs(1);
/// Looking takes at most this share of the time: 1 in this many.
const SHARE: u32 = 10;

/// The feed; clones share it.
#[derive(Clone)]
pub(crate) struct Events(Arc<Shared>);

struct Shared {
    broker: Broker,
    metrics: Option<Series>,
    /// What each look is sampled into.
    stats: Stats,
    /// How long deliveries of this server take.
    leases: DeliveryLeases,
    /// Which topics are watched, and when they were last looked at.
    watched: Mutex<(WatchedTopics, Option<Instant>)>,
    closing: CancellationToken,
    sender: broadcast::Sender<SystemEvent>,
    is_watching: Mutex<bool>,
    /// When the last look for a scrape ended. A look holds the lock, so only one runs at a time.
    looked: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

impl Events {
    pub(crate) fn new(
        broker: Broker,
        metrics: Option<Series>,
        leases: DeliveryLeases,
        closing: CancellationToken,
    ) -> Self {
        let (sender, _) = broadcast::channel(BACKLOG);
        let is_watching = Mutex::new(false);
        let looked = Arc::default();
        let stats = Stats::new();
        let watched = Mutex::default();
        Self(Arc::new(Shared {
            broker,
            metrics,
            stats,
            leases,
            watched,
            closing,
            sender,
            is_watching,
            looked,
        }))
    }

    /// Samples of what was seen.
    pub(crate) fn stats(&self) -> &Stats {
        &self.0.stats
    }

    /// Whether a watcher looks at the engine for listeners.
    pub(crate) fn is_watching(&self) -> bool {
        *self.lock()
    }

    /// Looks at the engine for the samples alone.
    pub(crate) async fn sample(&self) {
        if let Err(error) = self.look().await {
            tracing::debug!(%error, "the engine cannot be looked at");
        }
    }

    /// Looks at the engine for a reader of samples if no look was made lately: a command with an
    /// engine of its own has no sampler.
    pub(crate) async fn sample_if_old(&self) {
        if self.0.stats.is_old() {
            self.sample().await;
        }
    }

    /// Everything from now on: comes back when there was a first look to compare with.
    pub(crate) async fn listen(&self) -> broadcast::Receiver<SystemEvent> {
        let (receiver, first_look) = {
            let mut is_watching = self.lock();
            let receiver = self.0.sender.subscribe();
            let first_look = (!*is_watching).then(|| {
                let (looked, first_look) = oneshot::channel();
                tokio::spawn(self.clone().watch(looked));
                first_look
            });
            *is_watching = true;
            (receiver, first_look)
        };
        if let Some(first_look) = first_look {
            // A watcher that is gone has nothing to compare with, and says so in the log.
            let _ = first_look.await;
        }
        receiver
    }

    /// Brings the gauges of topics and groups up to date before a scrape or an export. It looks at
    /// the engine at most once per [`FRESH`], and the caller waits at most [`PATIENCE`].
    pub(crate) async fn refresh(&self) {
        let Ok(mut looked) = self.0.looked.clone().try_lock_owned() else { return };
        if looked.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        let events = self.clone();
        let looking = tokio::spawn(async move {
            if let Err(error) = events.look().await {
                tracing::debug!(%error, "the engine cannot be looked at");
            }
            *looked = Some(Instant::now());
        });
        // One that takes longer goes on for the next scrape.
        let _ = tokio::time::timeout(PATIENCE, looking).await;
    }

    /// Tells what no look at the engine shows.
    pub(crate) fn tell(&self, event: SystemEvent) {
        // Without a listener `send` fails, and the event is not needed.
        let _ = self.0.sender.send(event);
    }

    /// Looks at the engine, and ends the series of what is gone.
    async fn look(&self) -> Result<SystemSnapshot> {
        let since = std::time::Instant::now();
        let look = look(&self.0.broker, &self.0.watched).await?;
        if let Some(metrics) = &self.0.metrics {
            metrics.prune(since, |topic, group| look.may_have(topic, group));
        }
        self.0.stats.note(look.sampled(&self.0.leases.handled()));
        Ok(look)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, bool> {
        self.0.is_watching.lock().expect("nothing panics under this lock")
    }

    async fn watch(self, looked: oneshot::Sender<()>) {
        let mut looked = Some(looked);
        let mut last: Option<(Instant, SystemSnapshot)> = None;
        loop {
            let started = Instant::now();
            match self.look().await {
                Ok(now) => {
                    let changes = match &last {
                        None => now.figures(),
                        Some((at, before)) => now.since(before, (started - *at).as_secs_f64()),
                    };
                    changes.into_iter().for_each(|event| self.tell(event));
                    last = Some((started, now));
                }
                Err(error) => tracing::debug!(%error, "the engine cannot be looked at"),
            }
            if let Some(looked) = looked.take() {
                let _ = looked.send(());
            }
            let pause = EVERY.max(started.elapsed() * SHARE);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.closing.cancelled() => return,
            }
            let mut is_watching = self.lock();
            if self.0.sender.receiver_count() == 0 {
                *is_watching = false;
                return;
            }
        }
    }
}

/// What stands at one moment.
#[derive(Debug, Default)]
struct SystemSnapshot {
    topics: BTreeMap<String, TopicLook>,
    /// The names of all topics that there are.
    all: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct TopicLook {
    partitions: u32,
    /// Records ever appended.
    appended: u64,
    records: u64,
    delayed: u64,
    groups: BTreeMap<String, GroupLook>,
    /// The names of all its groups, if they could be listed.
    listed: Option<BTreeSet<String>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct GroupLook {
    lag: u64,
    due: u64,
    dead: u64,
    oldest_ms: Option<u64>,
    members: BTreeSet<String>,
    owners: BTreeSet<String>,
    unowned: usize,
}

async fn look(broker: &Broker, watched: &Mutex<(WatchedTopics, Option<Instant>)>) -> Result<SystemSnapshot> {
    let lock = || watched.lock().expect("nothing panics under this lock");
    let infos = broker.list_topics().await?;
    let all: BTreeSet<String> = infos.into_iter().map(|info| info.name.to_string()).collect();
    let (names, scouts) = lock().0.choose(&all);
    let at = Instant::now();
    let topics = stream::iter(names).map(|name| look_at(broker, name)).buffered(TOPICS_AT_ONCE);
    let topics: BTreeMap<_, _> = topics.filter_map(std::future::ready).collect().await;
    let scouts = stream::iter(scouts).map(|name| scout(broker, name)).buffered(TOPICS_AT_ONCE);
    let scouts: Vec<_> = scouts.filter_map(std::future::ready).collect().await;
    let (watched, before) = &mut *lock();
    let passed = before.replace(at).map_or(EVERY, |before| at - before);
    let seen = topics.iter().map(|(name, look)| (name.as_str(), look.appended));
    watched.note(passed, seen, scouts.iter().map(|(name, appended)| (name.as_str(), *appended)));
    Ok(SystemSnapshot { topics, all })
}

/// A topic's records ever appended.
async fn scout(broker: &Broker, name: String) -> Option<(String, u64)> {
    let status = broker.admin().topic(&name).await.ok()?;
    Some((name, appended(&status)))
}

fn appended(status: &TopicStatus) -> u64 {
    status.partitions.iter().map(|part| part.last.seq).sum()
}

/// One topic; nothing if it went away while it was looked at.
async fn look_at(broker: &Broker, name: String) -> Option<(String, TopicLook)> {
    let admin = &broker.admin();
    let status = admin.topic(&name).await.ok()?;
    let listed = admin.groups(&name).await.ok();
    let topic = name.as_str();
    let groups = stream::iter(listed.clone().unwrap_or_default());
    let groups = groups.map(|group| async move {
        let info = admin.group(topic, group.as_str()).await.ok()?;
        let members = info.members.iter().map(|member| member.name.clone()).collect();
        let lag = info.lag();
        let due = info.due();
        let dead = info.dead();
        let owners = info.partitions.iter().filter_map(|part| part.owner.as_ref());
        let owners = owners.map(|owner| owner.member.clone()).collect();
        let unowned = info.partitions.iter().filter(|part| part.owner.is_none()).count();
        let oldest_ms = info.oldest().map(millis);
        let figures = GroupLook { lag, due, dead, oldest_ms, members, owners, unowned };
        Some((group.to_string(), figures))
    });
    let look = TopicLook {
        partitions: status.info.config.partitions,
        appended: appended(&status),
        records: status.records(),
        delayed: status.delayed(),
        groups: groups.buffered(GROUPS_AT_ONCE).filter_map(std::future::ready).collect().await,
        listed: listed.map(|listed| listed.iter().map(ToString::to_string).collect()),
    };
    Some((name, look))
}

impl SystemSnapshot {
    /// What is sampled of it, with the deliveries that clients of this server have settled.
    fn sampled(&self, handled: &HashMap<(String, String), (u64, Duration)>) -> StatsFigures {
        let topics = self.topics.iter().map(|(topic, look)| TopicFigures {
            topic: topic.clone(),
            partitions: look.partitions,
            appended: look.appended,
            records: look.records,
            delayed: look.delayed,
        });
        let groups = self.topics.iter().flat_map(|(topic, look)| {
            look.groups.iter().map(|(group, figures)| GroupFigures {
                topic: topic.clone(),
                group: group.clone(),
                lag: figures.lag,
                due: figures.due,
                dead: figures.dead,
                oldest_ms: figures.oldest_ms,
                members: figures.members.len(),
                owners: figures.owners.iter().take(OWNERS).cloned().collect(),
                owner_count: figures.owners.len(),
                unowned: figures.unowned,
                handled: handled.get(&(topic.clone(), group.clone())).copied().unwrap_or_default(),
                handling_ms: None,
            })
        });
        let topics = topics.collect();
        let groups = groups.collect();
        StatsFigures { topics, groups, all_topics: self.all.len(), ..StatsFigures::default() }
    }

    /// Whether a topic, or a group of it, is there as far as was seen.
    fn may_have(&self, topic: &str, group: Option<&str>) -> bool {
        let listed = self.topics.get(topic).and_then(|look| look.listed.as_ref());
        let is_listed = |group| listed.is_none_or(|listed| listed.contains(group));
        self.all.contains(topic) && group.is_none_or(is_listed)
    }

    /// Where things stand, for the first listener.
    fn figures(&self) -> Vec<SystemEvent> {
        let groups = self.topics.iter().flat_map(|(topic, look)| {
            look.groups.iter().map(move |(group, figures)| figures.lag_event(topic, group))
        });
        groups.chain(self.truncated()).collect()
    }

    fn truncated(&self) -> Option<SystemEvent> {
        let topics = self.all.len();
        (topics > MAX_TOPICS).then_some(SystemEvent::Truncated { topics, watched: MAX_TOPICS })
    }

    /// What changed in `seconds`.
    fn since(&self, before: &Self, seconds: f64) -> Vec<SystemEvent> {
        let mut events = Vec::new();
        for topic in before.all.difference(&self.all) {
            events.push(SystemEvent::TopicDeleted { topic: topic.clone() });
        }
        for (topic, now) in &self.topics {
            match before.topics.get(topic) {
                // It is watched from now on; the next look shows what changes.
                None if before.all.contains(topic) => {}
                None => {
                    events
                        .push(SystemEvent::TopicCreated { topic: topic.clone(), partitions: now.partitions });
                    now.since(&TopicLook::default(), topic, seconds, &mut events);
                }
                Some(before) => {
                    if now.partitions > before.partitions {
                        events.push(SystemEvent::TopicGrown {
                            topic: topic.clone(),
                            partitions: now.partitions,
                        });
                    }
                    now.since(before, topic, seconds, &mut events);
                }
            }
        }
        events
    }
}

impl TopicLook {
    fn since(&self, before: &Self, topic: &str, seconds: f64, events: &mut Vec<SystemEvent>) {
        let per_second = |count: u64| count as f64 / seconds.max(0.001);
        let produced = self.appended.saturating_sub(before.appended);
        if produced > 0 || self.delayed != before.delayed || self.records != before.records {
            events.push(SystemEvent::Throughput {
                topic: topic.to_owned(),
                produced_per_second: per_second(produced),
                records: self.records,
                delayed: self.delayed,
            });
        }
        for group in before.groups.keys().filter(|group| !self.groups.contains_key(*group)) {
            events.push(SystemEvent::GroupDeleted { topic: topic.to_owned(), group: group.clone() });
        }
        let none = GroupLook::default();
        for (group, now) in &self.groups {
            let known = before.groups.get(group);
            if known.is_none() {
                events.push(SystemEvent::GroupCreated { topic: topic.to_owned(), group: group.clone() });
            }
            now.since(known.unwrap_or(&none), (topic, group), events);
            let settled = known.map_or(0, |known| (produced + known.lag).saturating_sub(now.lag));
            if settled > 0 {
                let topic = topic.to_owned();
                let group = group.clone();
                events.push(SystemEvent::Settled { topic, group, per_second: per_second(settled) });
            }
        }
    }
}

impl GroupLook {
    fn since(&self, before: &Self, (topic, group): (&str, &str), events: &mut Vec<SystemEvent>) {
        let place = || (topic.to_owned(), group.to_owned());
        let total = self.dead;
        for member in self.members.difference(&before.members) {
            let (topic, group) = place();
            let member = member.clone();
            events.push(SystemEvent::MemberJoined { topic, group, member });
        }
        for member in before.members.difference(&self.members) {
            let (topic, group) = place();
            let member = member.clone();
            events.push(SystemEvent::MemberLeft { topic, group, member });
        }
        let (dead_topic, dead_group) = place();
        let count = self.dead.abs_diff(before.dead);
        match self.dead.cmp(&before.dead) {
            std::cmp::Ordering::Greater => {
                events.push(SystemEvent::DeadLetter { topic: dead_topic, group: dead_group, count, total });
            }
            std::cmp::Ordering::Less => {
                events.push(SystemEvent::DeadLettersGone {
                    topic: dead_topic,
                    group: dead_group,
                    count,
                    total,
                });
            }
            std::cmp::Ordering::Equal => {}
        }
        if (self.lag, self.due) != (before.lag, before.due) {
            events.push(self.lag_event(topic, group));
        }
    }

    fn lag_event(&self, topic: &str, group: &str) -> SystemEvent {
        let topic = topic.to_owned();
        let group = group.to_owned();
        SystemEvent::Lag { topic, group, lag: self.lag, due: self.due, oldest_ms: self.oldest_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(lag: u64, dead: u64, member: &str, appended: u64) -> SystemSnapshot {
        let members = [member.to_owned()].into_iter().filter(|name| !name.is_empty()).collect();
        let group = GroupLook { lag, dead, members, ..GroupLook::default() };
        let groups = BTreeMap::from([("g".to_owned(), group)]);
        let topic = TopicLook { partitions: 1, appended, records: appended, groups, ..TopicLook::default() };
        let all = BTreeSet::from(["t".to_owned()]);
        SystemSnapshot { topics: BTreeMap::from([("t".to_owned(), topic)]), all }
    }

    fn names(events: &[SystemEvent]) -> Vec<&'static str> {
        events.iter().map(SystemEvent::name).collect()
    }

    #[test]
    fn what_changed_between_two_looks_is_told_once() {
        let before = look(5, 0, "a", 10);
        let after = look(3, 1, "b", 14);
        let events = after.since(&before, 2.0);
        assert_eq!(
            names(&events),
            ["throughput", "member_joined", "member_left", "dead_letter", "lag", "settled"]
        );
        assert!(events.contains(&SystemEvent::Settled {
            topic: "t".into(),
            group: "g".into(),
            per_second: 3.0
        }));
        assert!(after.since(&look(3, 1, "b", 14), 1.0).is_empty());
    }

    #[test]
    fn topics_that_come_and_go_are_told() {
        let none = SystemSnapshot::default();
        let some = look(1, 0, "", 1);
        assert_eq!(names(&some.since(&none, 1.0))[..3], ["topic_created", "throughput", "group_created"]);
        assert_eq!(names(&none.since(&some, 1.0)), ["topic_deleted"]);
        assert_eq!(names(&some.figures()), ["lag"]);
    }
}
