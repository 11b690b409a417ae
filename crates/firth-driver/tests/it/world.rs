//! A server, a topic with its groups, and the processes of a run.

use crate::process::{Policy, Process, Timeline, silence};
use firth_driver::history::{Entry, Fault, Promise, What, check};
use firth_driver::{Event, Input, sha_of};
use firth_testkit::{Persist, RedisServer, wait};
use std::time::Duration;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub(crate) server: RedisServer,
    pub(crate) timeline: Timeline,
    url: String,
    groups: Vec<&'static str>,
}

impl World {
    /// A topic with `partitions` and `groups`, on a server that syncs before it answers.
    pub(crate) async fn new(partitions: u32, groups: &[&'static str]) -> Self {
        let server = RedisServer::builder().persist(Persist::AofAlways).start().await;
        let (url, timeline) = (server.url(), Timeline::default());
        let world = Self { server, timeline, url, groups: groups.to_vec() };
        let partitions = partitions.to_string();
        let mut args = vec!["setup", "--engine", &world.url, "--topic", "t", "--partitions", &partitions];
        args.extend(groups.iter().flat_map(|group| ["--group", *group]));
        assert!(Process::start(&world.timeline, ("setup", None), &args, silence()).finish());
        world
    }

    pub(crate) fn producer(&self, name: &str) -> Process {
        let args = ["produce", "--engine", &self.url, "--topic", "t", "--durability", "synced"];
        Process::start(&self.timeline, (name, None), &args, silence())
    }

    pub(crate) fn consumer(&self, name: &str, group: &str, lease_ms: u64, policy: Policy) -> Process {
        let (engine, lease) = (self.url.as_str(), lease_ms.to_string());
        let args = [
            "consume",
            "--engine",
            engine,
            "--topic",
            "t",
            "--group",
            group,
            "--member",
            name,
            "--lease-ms",
            &lease,
        ];
        Process::start(&self.timeline, (name, Some(group)), &args, policy)
    }

    pub(crate) async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        wait::until(LIMIT, what, async || condition()).await;
    }

    /// Waits until no group has anything left.
    pub(crate) async fn settled(&self) {
        let broker = firth::Broker::connect(&self.url).await.unwrap();
        let admin = broker.admin();
        for group in self.groups.clone() {
            let lag = async || admin.group("t", group).await.map_or(u64::MAX, |info| info.lag());
            wait::until(LIMIT, format!("{group} has nothing left"), async || lag().await == 0).await;
        }
        broker.close().await.unwrap();
    }

    /// How a group stands; also noted in the timeline.
    pub(crate) fn tally(&self, group: &str) -> Event {
        let name = format!("final-{group}-{}", self.timeline.lock().len());
        let args = ["final", "--engine", &self.url, "--topic", "t", "--group", group];
        assert!(Process::start(&self.timeline, (&name, Some(group)), &args, silence()).finish());
        let timeline = self.timeline.lock();
        let last = timeline.iter().rfind(|entry| entry.source == name).expect("a final line");
        let What::Told(event) = &last.what else { panic!("{last:?}") };
        event.clone()
    }

    /// Judges the whole run, once everything is settled.
    pub(crate) async fn judge(&self) {
        self.settled().await;
        for group in &self.groups {
            self.tally(group);
        }
        let found = check(&self.timeline.lock(), Promise::default());
        let story: Vec<String> = found.iter().take(20).map(ToString::to_string).collect();
        assert!(found.is_empty(), "{} violations:\n{}", found.len(), story.join("\n"));
    }

    pub(crate) fn note_server_fault(&self) {
        let what = What::Fault(Fault::Server);
        self.timeline.lock().push(Entry { source: "server".into(), group: None, what });
    }
}

/// The `n`th message of a producer, one of ten keys.
pub(crate) fn message(producer: &str, n: usize) -> Input {
    let body = format!("body {n} of {producer}");
    let (id, key) = (format!("{producer}-{n}"), format!("key-{}", n % 10));
    Input { id, key: Some(key), sha: sha_of(body.as_bytes()), body }
}

pub(crate) fn is_delivered(event: &Event) -> bool {
    matches!(event, Event::Delivered { .. })
}

pub(crate) fn is_assigned(event: &Event) -> bool {
    matches!(event, Event::Assigned { .. })
}

pub(crate) fn is_sent(event: &Event) -> bool {
    matches!(event, Event::SentOk { .. })
}
