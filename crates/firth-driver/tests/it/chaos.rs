//! Runs in which consumers, producers and servers die at random under load. The seed names the
//! blows and their order: `FIRTH_CHAOS_SEED` repeats them, `FIRTH_CHAOS_SECONDS` makes a run
//! longer, `FIRTH_CHAOS_RECORD` names a file for the record of a run that broke a promise.
//! `cargo xtask chaos` runs them for minutes, also on an engine of yours.

use crate::process::{Process, ack_all};
use crate::stage::Stage;
use crate::world::{World, is_sent, message};
use firth_driver::Event;
use firth_driver::history::What;
use firth_testkit::Flavor;
use std::time::{Duration, Instant};

const GROUPS: [&str; 2] = ["g", "h"];
/// Short enough for a quick takeover, long enough for a busy machine.
const LEASE_MS: u64 = 1000;
/// How long blows fall in one run; with its end a run is about a third of a minute, and there are
/// three.
const SECONDS: u64 = 15;

struct Chaos {
    world: World,
    dice: fastrand::Rng,
    consumers: Vec<(Process, &'static str)>,
    producers: Vec<(Process, usize)>,
    born: usize,
}

impl Chaos {
    async fn new(stage: Stage, seed: u64) -> Self {
        let world = World::on(stage, &format!("chaos-{seed}"), 4, &GROUPS).await;
        let dice = fastrand::Rng::with_seed(seed);
        let mut chaos = Self { world, dice, consumers: Vec::new(), producers: Vec::new(), born: 0 };
        for group in GROUPS {
            (0..2).for_each(|_| chaos.add_consumer(group));
        }
        (0..2).for_each(|_| chaos.add_producer());
        chaos
    }

    fn name(&mut self, stem: &str) -> String {
        self.born += 1;
        format!("{stem}{}", self.born)
    }

    fn add_consumer(&mut self, group: &'static str) {
        let name = self.name("m");
        self.consumers.push((self.world.consumer(&name, group, LEASE_MS, ack_all()), group));
    }

    fn add_producer(&mut self) {
        let name = self.name("p");
        self.producers.push((self.world.producer(&name), 0));
    }

    fn load(&mut self, count: usize) {
        for (producer, next) in &mut self.producers {
            (*next..*next + count).for_each(|n| producer.send(message(&producer.name, n)));
            *next += count;
        }
    }

    fn settled(&self, group: &str) -> usize {
        let is_settled = |what: &What| matches!(what, What::Told(Event::AckOk { .. }));
        self.world.timeline.count(|entry| entry.group.as_deref() == Some(group) && is_settled(&entry.what))
    }

    fn pick_consumer(&mut self) -> (Process, &'static str) {
        self.consumers.swap_remove(self.dice.usize(..self.consumers.len()))
    }

    /// Something dies, sleeps or leaves, while messages are on their way.
    async fn strike(&mut self) {
        let blow = self.dice.usize(..if self.world.stage.can_be_struck() { 12 } else { 9 });
        match blow {
            0..4 => {
                let (victim, group) = self.pick_consumer();
                victim.kill();
                self.add_consumer(group);
            }
            4..6 => {
                let (victim, _) = self.producers.swap_remove(self.dice.usize(..self.producers.len()));
                victim.kill();
                self.add_producer();
            }
            6 => {
                let (sleeper, group) = self.pick_consumer();
                sleeper.stop();
                let before = self.settled(group);
                self.load(20);
                self.goes_on(group, before).await;
                sleeper.go_on();
                self.consumers.push((sleeper, group));
            }
            7..9 => {
                let (leaver, group) = self.pick_consumer();
                assert!(leaver.finish(), "a graceful end is a good one");
                self.add_consumer(group);
            }
            _ => {
                self.world.note_server_fault();
                self.world.stage.strike(&mut self.dice).await;
            }
        }
    }

    /// One blow under load; then each group must get somewhere again.
    async fn round(&mut self) {
        self.load(40);
        let before = GROUPS.map(|group| self.settled(group));
        self.strike().await;
        self.load(20);
        for (group, before) in GROUPS.into_iter().zip(before) {
            self.goes_on(group, before).await;
        }
    }

    async fn goes_on(&self, group: &str, before: usize) {
        let moved = || self.settled(group) >= before + 20;
        self.world.until(&format!("group {group} goes on after a blow"), moved).await;
    }

    async fn end(self) {
        for (producer, sent) in self.producers {
            let answered =
                || producer.heard(is_sent) + producer.heard(|event| matches!(event, Event::SentErr { .. }));
            self.world.until("every message is answered", || answered() == sent).await;
            assert!(producer.finish());
        }
        self.world.settled().await;
        assert!(self.consumers.into_iter().all(|(consumer, _)| consumer.finish()));
        self.world.judge().await;
        self.world.clean_up().await;
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One run; the same seed deals the same blows.
async fn run(stage: Stage, seed: u64, length: Duration) {
    println!("FIRTH_CHAOS_SEED={seed}");
    let mut chaos = Chaos::new(stage, seed).await;
    let until = Instant::now() + length;
    let mut blows = 0;
    while Instant::now() < until {
        chaos.round().await;
        blows += 1;
    }
    chaos.end().await;
    println!("seed {seed}: {blows} blows, no promise broken");
}

fn seed() -> u64 {
    setting("FIRTH_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..))
}

fn length() -> Duration {
    Duration::from_secs(setting("FIRTH_CHAOS_SECONDS").unwrap_or(SECONDS))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_deaths_of_consumers_producers_and_the_server_break_no_promise() {
    run(Stage::alone(Flavor::Redis).await, seed(), length()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_deaths_on_valkey_break_no_promise() {
    run(Stage::alone(Flavor::Valkey).await, seed(), length() / 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_deaths_of_clients_and_of_the_server_they_share_break_no_promise() {
    run(Stage::served(), seed(), length() / 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_deaths_and_failovers_by_sentinels_break_no_promise() {
    run(Stage::watched().await, seed(), length()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_deaths_and_failovers_in_a_cluster_break_no_promise() {
    run(Stage::cluster().await, seed(), length()).await;
}

/// Minute after minute on each stage in turn, or on `FIRTH_CHAOS_ENGINE`; a fresh topic and a fresh
/// seed each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes FIRTH_CHAOS_MINUTES: run it with `cargo xtask chaos`"]
async fn minutes_of_random_deaths_break_no_promise() {
    let minutes = setting("FIRTH_CHAOS_MINUTES").unwrap_or(3);
    let first = seed();
    let engine = std::env::var("FIRTH_CHAOS_ENGINE").ok();
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    for turn in 0_u64.. {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let stage = match (&engine, turn % 5) {
            (Some(url), _) => Stage::Given(url.clone()),
            (None, 0) => Stage::alone(Flavor::Redis).await,
            (None, 1) => Stage::watched().await,
            (None, 2) => Stage::served(),
            (None, 3) => Stage::alone(Flavor::Valkey).await,
            (None, _) => Stage::cluster().await,
        };
        run(stage, first.wrapping_add(turn), left.min(Duration::from_secs(60))).await;
    }
}
