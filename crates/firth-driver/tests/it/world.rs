//! A server, a topic with its groups, and the processes of a run.

use crate::process::{Policy, Process, Timeline, silence};
use crate::stage::Stage;
use firth_driver::history::{Entry, Fault, Promise, What, check};
use firth_driver::{Event, Input, sha_of};
use firth_testkit::{Flavor, wait};
use std::time::Duration;

/// Longer than all retries of a record take: a delivery whose client died counts as a failed
/// attempt, and the fifth comes after 15 s and more.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct World {
    pub(crate) stage: Stage,
    pub(crate) timeline: Timeline,
    url: String,
    topic: String,
    groups: Vec<&'static str>,
}

impl World {
    /// A topic with `partitions` and `groups`, on a server that syncs before it answers.
    pub(crate) async fn new(partitions: u32, groups: &[&'static str]) -> Self {
        Self::on(Stage::alone(Flavor::Redis).await, "t", partitions, groups).await
    }

    pub(crate) async fn on(stage: Stage, topic: &str, partitions: u32, groups: &[&'static str]) -> Self {
        let url = stage.url();
        let topic = topic.to_owned();
        let world = Self { stage, timeline: Timeline::default(), url, topic, groups: groups.to_vec() };
        let partitions = partitions.to_string();
        let option = world.stage.option();
        let mut args =
            vec!["setup", option, &world.url, "--topic", &world.topic, "--partitions", &partitions];
        args.extend(groups.iter().flat_map(|group| ["--group", *group]));
        assert!(Process::start(&world.timeline, ("setup", None), &args, silence()).finish());
        world
    }

    pub(crate) fn producer(&self, name: &str) -> Process {
        let mut args = vec!["produce", self.stage.option(), &self.url, "--topic", &self.topic];
        args.extend(self.stage.durability().into_iter().flat_map(|durability| ["--durability", durability]));
        Process::start(&self.timeline, (name, None), &args, silence())
    }

    pub(crate) fn consumer(&self, name: &str, group: &str, lease_ms: u64, policy: Policy) -> Process {
        let url = self.url.as_str();
        let lease = lease_ms.to_string();
        let args = [
            "consume",
            self.stage.option(),
            url,
            "--topic",
            &self.topic,
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
        if self.stage.is_served() {
            for group in &self.groups {
                let left = || self.ask(&Timeline::default(), "look", group);
                let settled = || matches!(left(), Event::Final { lag: 0, .. });
                self.until(&format!("{group} has nothing left"), settled).await;
            }
            return;
        }
        let broker = firth::Broker::connect(&self.url).await.unwrap();
        let admin = broker.admin();
        for group in self.groups.clone() {
            let lag = async || admin.group(&self.topic, group).await.map_or(u64::MAX, |info| info.lag());
            wait::until(LIMIT, format!("{group} has nothing left"), async || lag().await == 0).await;
        }
        broker.close().await.unwrap();
    }

    /// How a group stands; also noted in the timeline.
    pub(crate) fn tally(&self, group: &str) -> Event {
        let name = format!("final-{group}-{}", self.timeline.lock().len());
        self.ask(&self.timeline, &name, group)
    }

    fn ask(&self, timeline: &Timeline, name: &str, group: &str) -> Event {
        let args = ["final", self.stage.option(), &self.url, "--topic", &self.topic, "--group", group];
        assert!(Process::start(timeline, (name, Some(group)), &args, silence()).finish());
        let timeline = timeline.lock();
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
        let promise = Promise { exclusive: !self.stage.is_served(), ..Promise::default() };
        let found = check(&self.timeline.lock(), promise);
        if let (false, Ok(path)) = (found.is_empty(), std::env::var("FIRTH_CHAOS_RECORD")) {
            std::fs::write(path, self.timeline.lines()).expect("the record can be written");
        }
        let story: Vec<String> = found.iter().take(20).map(ToString::to_string).collect();
        assert!(found.is_empty(), "{} violations:\n{}", found.len(), story.join("\n"));
    }

    /// Leaves nothing behind on a given engine.
    pub(crate) async fn clean_up(&self) {
        if !self.stage.can_be_struck() {
            let broker = firth::Broker::connect(&self.url).await.unwrap();
            broker.delete_topic(&self.topic).await.unwrap();
            broker.close().await.unwrap();
        }
    }

    pub(crate) fn note_server_fault(&self) {
        let what = What::Fault(Fault::Server);
        self.timeline.lock().push(Entry { source: "server".into(), group: None, what });
    }
}

/// The `n`th message of a producer, one of ten keys.
pub(crate) fn message(producer: &str, n: usize) -> Input {
    let body = format!("body {n} of {producer}");
    let id = format!("{producer}-{n}");
    let key = format!("key-{}", n % 10);
    Input { id, key: Some(key), sha: sha_of(body.as_bytes()), body }
}

pub(crate) fn is_delivered(event: &Event) -> bool {
    matches!(event, Event::Delivered { .. })
}

pub(crate) fn is_assigned(event: &Event) -> bool {
    matches!(event, Event::Assigned { .. })
}

pub(crate) fn is_revoked(event: &Event) -> bool {
    matches!(event, Event::Revoked { .. })
}

pub(crate) fn is_sent(event: &Event) -> bool {
    matches!(event, Event::SentOk { .. })
}
