//! The laws of the shared reader, on a source and a topic in memory: whenever a reader dies, each
//! change is stored once and in order, and nothing is forgotten that is not stored.

use super::*;
use crate::error::ErrorKind;
use crate::sink::{Appended, Sink};
use crate::state::Keep;
use firth::Message;
use firth_router::Tenant;
use firth_router::event::{Document, Operation};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A source that holds numbers. It forgets what is confirmed.
#[derive(Debug)]
struct Numbers {
    policy: Policy,
    /// The first number that it still has, and where it ends.
    first: Mutex<u64>,
    end: AtomicU64,
    /// This one cannot be an event.
    odd: Option<u64>,
}

struct Counting<'a>(&'a Numbers, u64, bool);

fn policy(dead: bool, on_lost: OnLost) -> Policy {
    Policy { on_lost, dead_topic: dead.then(|| "dead".to_owned()) }
}

// The stream borrows nothing in real sources; here it shares the numbers.
impl Source for &'static Numbers {
    type Place = u64;
    type Stream = Counting<'static>;

    fn name(&self) -> &str {
        "numbers"
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn collections(&self) -> Vec<String> {
        vec!["numbers".to_owned()]
    }

    fn limits(&self) -> Limits {
        Limits { batch_records: 3, buffer_bytes: 4_000, ..Limits::default() }
    }

    fn save_every(&self) -> Duration {
        Duration::ZERO
    }

    async fn open(&self, place: Option<&u64>, _: &Opening<'_>) -> Result<(Counting<'static>, u64)> {
        let first = *self.first.lock().unwrap();
        let place = place.copied().unwrap_or(first - 1);
        if place + 1 < first {
            return Err(Error::new(ErrorKind::Lost, "they are gone"));
        }
        Ok((Counting(self, place, false), place))
    }
}

impl ChangeStream for Counting<'_> {
    type Place = u64;

    async fn next(&mut self) -> Result<Step<u64>> {
        tokio::task::yield_now().await;
        if std::mem::take(&mut self.2) {
            return Ok(Step::Place(self.1));
        }
        while self.1 >= self.0.end.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        self.1 += 1;
        self.2 = true;
        let position = Bytes::copy_from_slice(&self.1.to_be_bytes());
        if self.0.odd == Some(self.1) {
            let origin = Origin { name: "odd".to_owned(), payload: self.1.to_string().into() };
            return Ok(Step::Poison(Rejected { position, error: Error::poison("odd"), origin }));
        }
        let document = Document::from_json(format!("{{\"n\":{}}}", self.1)).unwrap();
        let key = (self.1 % 5).to_string();
        let event = Event::new(Operation::Insert, Tenant::new("t").unwrap(), "numbers", key);
        let event = event.with_after(document);
        Ok(Step::Change(SourceChange { position, event, headers: Vec::new(), origin: Origin::default() }))
    }

    async fn confirm(&mut self, place: &u64) -> Result<()> {
        let mut first = self.0.first.lock().unwrap();
        *first = (*first).max(place + 1);
        Ok(())
    }
}

/// A topic in memory: records and marks in one step.
#[derive(Debug, Default)]
struct Stored(Mutex<Vec<(Vec<Event>, Option<Bytes>)>>, Mutex<Vec<Bytes>>);

#[derive(Debug, Default)]
struct Place(Mutex<Kept<u64>>);

impl Sink for Stored {
    fn partitions(&self) -> u32 {
        3
    }

    fn partition_for(&self, key: &[u8]) -> u32 {
        u32::from(key.iter().copied().fold(0, u8::wrapping_add)) % 3
    }

    async fn marks(&self) -> Result<Vec<Option<Bytes>>> {
        let mut stored = self.0.lock().unwrap();
        stored.resize_with(3, Default::default);
        Ok(stored.iter().map(|(_, mark)| mark.clone()).collect())
    }

    async fn append(&self, partition: u32, messages: Vec<Message>, upto: Bytes) -> Result<Appended> {
        // Some appends take longer than all that goes on beside them.
        let turns = upto.last().map_or(0, |last| usize::from(*last) * 7 % 23);
        for _ in 0..=turns {
            tokio::task::yield_now().await;
        }
        {
            let mut stored = self.0.lock().unwrap();
            stored.resize_with(3, Default::default);
            let (events, mark) = &mut stored[partition as usize];
            if mark.as_ref().is_some_and(|mark| upto <= *mark) {
                return Ok(Appended::Duplicate);
            }
            for message in &messages {
                match Event::from_payload(message.payload()) {
                    Ok(event) => events.push(event),
                    Err(_) => self.1.lock().unwrap().push(message.payload().clone()),
                }
            }
            *mark = Some(upto);
        }
        // Its reader may die before it hears of it.
        tokio::task::yield_now().await;
        Ok(Appended::Stored)
    }
}

impl Keep<Kept<u64>> for Place {
    async fn save(&self, kept: &Kept<u64>) -> Result<()> {
        tokio::task::yield_now().await;
        *self.0.lock().unwrap() = kept.clone();
        tokio::task::yield_now().await;
        Ok(())
    }
}

struct World {
    numbers: &'static Numbers,
    topic: Arc<Stored>,
    dead: Option<Arc<Stored>>,
    place: Place,
    progress: Progress,
}

impl World {
    fn new(policy: Policy, odd: Option<u64>) -> Self {
        let dead = policy.dead_topic.as_ref().map(|_| Arc::default());
        let numbers = Numbers { policy, first: Mutex::new(1), end: AtomicU64::new(0), odd };
        let numbers = Box::leak(Box::new(numbers));
        Self { numbers, topic: Arc::default(), dead, place: Place::default(), progress: Progress::default() }
    }

    /// A reader that lives for `turns` turns of the runtime.
    async fn read(&self, turns: usize) {
        let kept = self.place.0.lock().unwrap().clone();
        let (source, sink, dead) = (&self.numbers, self.topic.clone(), self.dead.clone());
        let reader = Reader { source, sink, dead, keep: &self.place, epoch: 1, progress: &self.progress };
        let life = async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            error = reader.run(kept) => panic!("{error:?}"),
            () = life => {}
        }
    }

    /// The numbers of all partitions, and that they are in order.
    fn numbers(&self) -> Vec<u64> {
        let mut all = Vec::new();
        for (events, _) in self.topic.0.lock().unwrap().iter() {
            let documents = events.iter().filter_map(|event| event.after.as_ref());
            let numbers: Vec<u64> = documents.map(|d| d.to_value().unwrap()["n"].as_u64().unwrap()).collect();
            assert!(numbers.is_sorted(), "{numbers:?}");
            all.extend(numbers);
        }
        all.sort_unstable();
        all
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn each_change_is_stored_once_and_in_order_whenever_readers_die(
        lives in prop::collection::vec((0_u64..12, 0_usize..60), 1..20), odd in 1_u64..30
    ) {
        runtime().block_on(async {
            let world = World::new(policy(true, OnLost::Stop), Some(odd));
            let mut end = 0;
            for (more, turns) in lives {
                end += more;
                world.numbers.end.store(end, Ordering::SeqCst);
                world.read(turns).await;
                // What the source has forgotten is stored.
                let first = *world.numbers.first.lock().unwrap();
                let stored = world.numbers();
                assert!((1..first).all(|n| n == odd || stored.contains(&n)), "{first} {stored:?}");
            }
            world.read(3_000).await;
            assert_eq!(world.numbers(), (1..=end).filter(|n| *n != odd).collect::<Vec<_>>());
            let letters = world.dead.as_ref().unwrap().1.lock().unwrap().len();
            assert_eq!(letters, usize::from(odd <= end));
        });
    }

    #[test]
    fn a_loss_is_told_to_every_partition_once_and_what_is_there_follows(
        lives in prop::collection::vec(0_usize..60, 1..10)
    ) {
        runtime().block_on(async {
            let world = World::new(policy(false, OnLost::Resync), None);
            world.numbers.end.store(10, Ordering::SeqCst);
            world.read(2_000).await;
            *world.numbers.first.lock().unwrap() = 15;
            world.numbers.end.store(20, Ordering::SeqCst);
            for turns in lives {
                world.read(turns).await;
            }
            world.read(3_000).await;
            for (events, _) in world.topic.0.lock().unwrap().iter() {
                let resyncs = events.iter().filter(|event| event.operation == Operation::Resync).count();
                assert_eq!(resyncs, 1, "{events:?}");
            }
            assert_eq!(world.numbers(), (1..=10).chain(15..=20).collect::<Vec<_>>());
        });
    }
}

#[test]
fn a_source_stands_before_what_cannot_be_an_event_and_has_stored_all_before_it() {
    runtime().block_on(async {
        let world = World::new(policy(false, OnLost::Stop), Some(8));
        world.numbers.end.store(20, Ordering::SeqCst);
        world.read(2_000).await;
        assert_eq!(world.numbers(), (1..8).collect::<Vec<_>>());
        let status = world.progress.status();
        assert_eq!(status.condition, crate::Condition::Failed);
        assert!(status.reason.unwrap().starts_with("odd (position "), "it names the place");
    });
}
