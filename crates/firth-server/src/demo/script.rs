//! The story, act by act; each ends by saying where to look for more.

use super::staff::{DemoWorker, until};
use crate::cli::line;
use firth::{Broker, Message, Replay, Result, RetryPolicy};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(super) const TOPIC: &str = "orders";
const GUESTS: [&str; 4] = ["ada", "ben", "cleo", "dan"];
const DRINKS: [&str; 5] = ["espresso", "flat white", "mint tea", "cold brew", "cocoa"];
/// How long a killed worker keeps its partitions.
const LEASE: Duration = Duration::from_secs(1);

pub(super) async fn tell(broker: &Broker, kept: Option<&Path>) -> Result<()> {
    let started = Instant::now();
    act("1. A topic and two producers", "firth topic show orders")?;
    let sent = produce(broker).await?;
    act("2. Two groups read the same orders, each for itself", "firth group list orders")?;
    let is_repaired = Arc::new(AtomicBool::new(false));
    let bar = DemoWorker::open(broker, "bar", "bar", &is_repaired).await?;
    let tills = [
        DemoWorker::start(billing(broker, "till-1"), "billing", &is_repaired).await?,
        DemoWorker::start(billing(broker, "till-2"), "billing", &is_repaired).await?,
    ];
    until("bar to serve everything", || lag_is(broker, "bar", 0)).await?;
    say(&format!("`bar` served all {sent} orders; it never notices what happens in `billing`"))?;

    act(
        "3. Failures are tried again, then given up",
        "firth pending orders billing; firth dead list orders",
    )?;
    until("billing to give up on tea", || lag_is(broker, "billing", 0)).await?;
    let letters = broker.dead_letters(TOPIC).group("billing");
    for letter in letters.list(None, 10).await?.letters {
        let key =
            letter.record.key().map_or_else(String::new, |key| String::from_utf8_lossy(key).into_owned());
        let id = &letter.id;
        let attempts = letter.attempts();
        let reason = &letter.reason;
        say(&format!("dead letter {id} of {key}: {attempts} attempts, {reason}"))?;
    }

    act("4. A worker is killed, the other takes over", "firth group show orders billing; firth top")?;
    let tills = take_over(broker, tills).await?;

    act("5. The cause is repaired, dead letters are replayed", "firth dead replay orders --all")?;
    is_repaired.store(true, Ordering::Relaxed);
    let replayed = letters.replay_all(Replay::Group).await?;
    until("billing to handle the replayed ones", || lag_is(broker, "billing", 0)).await?;
    say(&format!(
        "{replayed} replayed, {} dead letters left, lag 0 for both groups",
        letters.count().await?
    ))?;

    bar.close().await?;
    for till in tills {
        till.close().await?;
    }
    line("")?;
    say(&format!("That was it, in {:.1} s.", started.elapsed().as_secs_f32()))?;
    where_to_look(kept)
}

/// Two producers at a time; answers how many messages there are.
async fn produce(broker: &Broker) -> Result<u64> {
    broker.create_topic(TOPIC).partitions(4).await?;
    say("topic `orders` has 4 partitions; a guest's orders stay in order, because the guest is their key")?;
    let (left, right) = tokio::try_join!(order(broker, &GUESTS[..2]), order(broker, &GUESTS[2..]))?;
    let mut places: BTreeMap<u32, u64> = left;
    for (partition, count) in right {
        *places.entry(partition).or_default() += count;
    }
    let spread: Vec<_> = places.iter().map(|(partition, count)| format!("{count} in {partition}")).collect();
    say(&format!("2 producers sent {} orders: {}", places.values().sum::<u64>(), spread.join(", ")))?;
    Ok(places.values().sum())
}

async fn order(broker: &Broker, guests: &[&str]) -> Result<BTreeMap<u32, u64>> {
    let producer = broker.producer(TOPIC).await?;
    let mut places = BTreeMap::new();
    for drink in DRINKS {
        for guest in guests {
            let receipt = producer.send(Message::new(drink).key(guest.as_bytes().to_vec())).await?;
            *places.entry(receipt.partition).or_default() += 1;
        }
    }
    producer.close().await?;
    Ok(places)
}

fn billing(broker: &Broker, name: &'static str) -> firth::ConsumerBuilder {
    let policy = RetryPolicy::fixed(3, Duration::from_millis(150));
    broker.consumer(TOPIC, "billing").name(name).lease(LEASE).retry(policy)
}

/// Kills a worker with an order in its hands.
async fn take_over(broker: &Broker, tills: [DemoWorker; 2]) -> Result<Vec<DemoWorker>> {
    until("both tills to share the partitions", || async { Ok(tills.iter().all(DemoWorker::has_its_share)) })
        .await?;
    show_owners(broker).await?;
    let [victim, heir] = tills;
    victim.freeze();
    let producer = broker.producer(TOPIC).await?;
    for guest in GUESTS {
        producer.send(Message::new("last orders").key(guest)).await?;
    }
    until("the victim to hold an order", || async { Ok(victim.is_busy()) }).await?;
    let owned = victim.partitions();
    let killed = Instant::now();
    say(&format!("{} is killed with an order in its hands; it owned partitions {owned:?}", victim.name()))?;
    victim.kill();
    until("the other to finish its work", || lag_is(broker, "billing", 0)).await?;
    say(&format!(
        "{} took over and lost nothing: {:.1} s after the kill everything is settled (the lease was {} s)",
        heir.name(),
        killed.elapsed().as_secs_f32(),
        LEASE.as_secs()
    ))?;
    show_owners(broker).await?;
    producer.close().await?;
    Ok(vec![heir])
}

async fn show_owners(broker: &Broker) -> Result<()> {
    let group = broker.admin().group(TOPIC, "billing").await?;
    let owners = group.partitions.iter().map(|part| match &part.owner {
        Some(owner) => format!("{}: {} (epoch {})", part.index, short(&owner.member), owner.epoch),
        None => format!("{}: nobody", part.index),
    });
    say(&format!("owners  {}", owners.collect::<Vec<_>>().join("  ")))
}

/// A member's name without its random part.
fn short(member: &str) -> &str {
    member.rsplit_once('-').map_or(member, |(name, _)| name)
}

pub(super) async fn lag_is(broker: &Broker, group: &str, wanted: u64) -> Result<bool> {
    let info = broker.admin().group(TOPIC, group).await?;
    Ok(info.lag() == wanted)
}

fn where_to_look(kept: Option<&Path>) -> Result<()> {
    match kept {
        Some(dir) => say(&format!("Its topics are kept: firth top --engine file:{}", dir.display()))?,
        None => say("Keep its topics to look at them: firth demo --dir ./tour")?,
    }
    say("Next: firth serve, then firth top in another terminal, and docs/server.md")
}

fn act(title: &str, look: &str) -> Result<()> {
    line(&format!("\n{title}\n   look with: {look}"))
}

pub(super) fn say(text: &str) -> Result<()> {
    line(&format!("   {text}"))
}
