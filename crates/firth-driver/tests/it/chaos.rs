//! A bounded run in which consumers, producers and the server die at random under load. The seed names the run: set `FIRTH_CHAOS_SEED` to
//! repeat one, `FIRTH_CHAOS_ROUNDS` to make it longer.

use crate::process::{Process, ack_all};
use crate::world::{World, is_sent, message};
use firth_driver::Event;
use firth_driver::history::What;

const GROUPS: [&str; 2] = ["g", "h"];
/// Short enough for a quick takeover, long enough for a busy machine.
const LEASE_MS: u64 = 1000;

struct Chaos {
    world: World,
    dice: fastrand::Rng,
    consumers: Vec<(Process, &'static str)>,
    producers: Vec<(Process, usize)>,
    born: usize,
}

impl Chaos {
    async fn new(seed: u64) -> Self {
        let (world, dice) = (World::new(4, &GROUPS).await, fastrand::Rng::with_seed(seed));
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

    /// Something dies, or leaves, while messages are on their way.
    async fn strike(&mut self) {
        match self.dice.usize(..10) {
            0..4 => {
                let (victim, group) = self.consumers.swap_remove(self.dice.usize(..self.consumers.len()));
                victim.kill();
                self.add_consumer(group);
            }
            4..6 => {
                let (victim, _) = self.producers.swap_remove(self.dice.usize(..self.producers.len()));
                victim.kill();
                self.add_producer();
            }
            6..8 => {
                self.world.note_server_fault();
                self.world.server.restart().await;
            }
            _ => {
                let (leaver, group) = self.consumers.swap_remove(self.dice.usize(..self.consumers.len()));
                assert!(leaver.finish(), "a graceful end is a good one");
                self.add_consumer(group);
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
            let moved = || self.settled(group) >= before + 20;
            self.world.until(&format!("group {group} goes on after a blow"), moved).await;
        }
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
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_deaths_of_consumers_producers_and_the_server_break_no_promise() {
    let seed = setting("FIRTH_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    let rounds = setting("FIRTH_CHAOS_ROUNDS").unwrap_or(50);
    println!("FIRTH_CHAOS_SEED={seed}");
    let mut chaos = Chaos::new(seed).await;
    for _ in 0..rounds {
        chaos.round().await;
    }
    chaos.end().await;
}
