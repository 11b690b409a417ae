//! Everything at once, many times: processes with bad connections that join, leave and crash,
//! handlers that fail, two groups. Paused time and seeds make a run quick; what is checked are the
//! promises of the crate, on what producers and handlers saw.

use crate::world::{Diary, Reader, eventually, lag, with_topic};
use firth::{Broker, Message, Nack, RetryPolicy};
use firth_laws::faulty::{Faults, Faulty};
use std::collections::BTreeSet;
use std::time::Duration;

const KEYS: u64 = 7;
const MESSAGES: u64 = 300;

struct World {
    broker: Broker,
    random: fastrand::Rng,
    connections: Vec<Faulty>,
}

impl World {
    /// A process with a bad connection of its own.
    fn process(&mut self) -> Broker {
        let delay = Duration::from_millis(self.random.u64(0..40));
        let faults = Faults { seed: self.random.u64(..), refuse: 0.05, lose_answer: 0.05, delay };
        let (engine, connection) = Faulty::wrap(self.broker.engine().clone(), faults);
        self.connections.push(connection);
        Broker::with_engine(engine)
    }

    /// A member of `group` that fails now and then and writes down what it finished.
    async fn member(&mut self, group: &str, diary: &Diary) -> Reader {
        let process = self.process();
        let concurrency = self.random.usize(1..6);
        let in_flight = self.random.usize(1..40);
        let retry = RetryPolicy {
            max_attempts: 4,
            max_crashes: 0,
            ..RetryPolicy::fixed(4, Duration::from_millis(300))
        };
        let consumer = loop {
            let builder = process.consumer("orders", group).retry(retry).concurrency(concurrency);
            match builder
                .max_in_flight(in_flight)
                .lease(Duration::from_secs(2))
                .drain(Duration::from_secs(1))
                .await
            {
                Ok(consumer) => break consumer,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        };
        let diary = diary.clone();
        let seed = self.random.u64(..);
        Reader::with(consumer, move |record| {
            let dice = firth::partitioner::key_hash(
                format!("{seed}/{}/{}", record.id(), record.attempt()).as_bytes(),
            );
            let diary = diary.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(dice % 30)).await;
                match dice % 20 {
                    0 => Err(Nack::retry("by chance")),
                    1 => panic!("by chance"),
                    2 if dice % 40 < 20 => Err(Nack::reject("by chance")),
                    _ => {
                        diary.note("done", &record);
                        Ok(())
                    }
                }
            }
        })
    }
}

/// Sends numbered messages, key by key in order; answers the acknowledged ones.
async fn produce(process: Broker, idempotent: bool) -> BTreeSet<u64> {
    let producer = loop {
        let builder = process.producer("orders");
        match if idempotent { builder.idempotent() } else { builder }.await {
            Ok(producer) => break producer,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    };
    let mut acknowledged = BTreeSet::new();
    for n in 0..MESSAGES {
        let message = Message::new(n.to_string()).key(format!("key-{}", n % KEYS));
        match producer.send(message).await {
            Ok(_) => drop(acknowledged.insert(n)),
            Err(error) => assert!(error.may_have_happened(), "a definite refusal is tried again: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(n % 13)).await;
    }
    acknowledged
}

async fn run(seed: u64) {
    let broker = with_topic(3).await;
    let mut world =
        World { broker: broker.clone(), random: fastrand::Rng::with_seed(seed), connections: Vec::new() };
    let idempotent = seed.is_multiple_of(2);
    let producing = tokio::spawn(produce(world.process(), idempotent));
    let groups = ["billing", "audit"].map(|group| (group, Diary::default()));
    let mut members = Vec::new();
    for (group, diary) in &groups {
        members.push((*group, world.member(group, diary).await));
    }
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(world.random.u64(0..900))).await;
        let (group, diary) = &groups[world.random.usize(0..2)];
        if world.random.bool() || members.len() < 3 {
            members.push((*group, world.member(group, diary).await));
        } else {
            let (_, member) = members.remove(world.random.usize(0..members.len()));
            if world.random.bool() { member.crash().await } else { member.close().await }
        }
    }
    let acknowledged = producing.await.unwrap();
    world.connections.iter().for_each(Faulty::heal);
    for (group, diary) in &groups {
        members.push((*group, world.member(group, diary).await));
        world.connections.last().expect("just made").heal();
        settles(&broker, group, seed).await;
        check(&broker, group, diary, &acknowledged, seed).await;
    }
    if idempotent {
        assert_eq!(acknowledged.len() as u64, MESSAGES, "seed {seed}: an idempotent producer gets through");
        let records = broker.admin().topic("orders").await.unwrap().records();
        assert_eq!(records, MESSAGES, "seed {seed}: each message is there once");
    }
    for (_, member) in members {
        member.close().await;
    }
}

async fn settles(broker: &Broker, group: &str, seed: u64) {
    let settled = eventually("everything is settled", async || lag(broker, group).await == 0);
    if tokio::time::timeout(Duration::from_secs(300), settled).await.is_err() {
        panic!("seed {seed}: {group} got stuck: {:#?}", broker.admin().group("orders", group).await);
    }
}

async fn check(broker: &Broker, group: &str, diary: &Diary, acknowledged: &BTreeSet<u64>, seed: u64) {
    let mut settled: BTreeSet<u64> = diary.numbers().into_iter().collect();
    let letters = broker.dead_letters("orders").group(group).list(None, 10_000).await.unwrap().letters;
    settled.extend(letters.iter().map(|letter| letter.record.text().unwrap().parse::<u64>().unwrap()));
    let lost: Vec<_> = acknowledged.difference(&settled).collect();
    assert!(lost.is_empty(), "seed {seed}: {group} lost {lost:?}");
    for key in 0..KEYS {
        let mut seen = BTreeSet::new();
        let all = diary.payloads();
        let firsts = all.iter().map(|payload| payload.parse::<u64>().unwrap());
        let firsts: Vec<u64> = firsts.filter(|n| n % KEYS == key && seen.insert(*n)).collect();
        assert!(firsts.is_sorted(), "seed {seed}: {group} left the order of key {key}: {firsts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_acknowledged_is_lost_and_keys_stay_in_order_whatever_happens() {
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("by chance") {
            eprintln!("{info}");
        }
    }));
    let seeds = std::env::var("FIRTH_CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12);
    for seed in 0..seeds {
        run(seed).await;
    }
}
