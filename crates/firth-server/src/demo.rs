//! `firth demo`: a tour in memory. Two groups read the same orders; one of them fails, retries, gives up and gets a second chance.

use firth::{Broker, Consumer, Error, ErrorKind, Message, Nack, Replay, Result, RetryPolicy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// No step takes longer, or something is broken.
const PATIENCE: Duration = Duration::from_secs(15);
const DRINKS: [&str; 4] = ["espresso", "flat white", "mint tea", "cold brew"];

/// Tells the story.
pub(crate) async fn run() -> Result<()> {
    let started = Instant::now();
    let broker = Broker::memory();
    broker.create_topic("orders").partitions(2).await?;
    say("made topic `orders` with 2 partitions, in memory");

    let producer = broker.producer("orders").await?;
    for (index, drink) in DRINKS.into_iter().enumerate() {
        let guest = format!("guest-{}", index % 2);
        let receipt = producer.send(Message::new(drink).key(guest.clone())).await?;
        say(&format!("sent {drink:?} for {guest}: stored in partition {}", receipt.partition));
    }

    say("two groups read all of it, each for itself: `bar` and `billing`");
    let is_fixed = Arc::new(AtomicBool::new(false));
    let policy = RetryPolicy::fixed(2, Duration::from_millis(300));
    let bar = start(broker.consumer("orders", "bar").await?, "bar", None);
    let fixed = Some(is_fixed.clone());
    let billing = start(broker.consumer("orders", "billing").retry(policy).await?, "billing", fixed);

    settled(&broker, "bar").await?;
    settled(&broker, "billing").await?;
    let letters = broker.dead_letters("orders").group("billing");
    for letter in letters.list(None, 10).await?.letters {
        say(&format!(
            "dead letter {} after {} attempts: {}; `bar` never noticed",
            letter.id,
            letter.attempts(),
            letter.reason
        ));
    }

    say("the card reader is repaired: replay the dead letter");
    is_fixed.store(true, Ordering::Relaxed);
    let replayed = letters.replay_all(Replay::Group).await?;
    settled(&broker, "billing").await?;
    say(&format!("{replayed} replayed, {} dead letters left, lag 0 for both groups", letters.count().await?));

    for (handle, task) in [bar, billing] {
        handle.close();
        task.await
            .map_err(|error| Error::new(ErrorKind::Internal, "a consumer failed").with_source(error))??;
    }
    producer.close().await?;
    broker.close().await?;
    say(&format!(
        "all closed after {:.1} s; next: `firth serve`, and docs/server.md",
        started.elapsed().as_secs_f32()
    ));
    Ok(())
}

type Running = (firth::ConsumerHandle, tokio::task::JoinHandle<Result<()>>);

/// A consumer that serves everything; with `is_fixed` it fails on tea until that is set.
fn start(consumer: Consumer, group: &'static str, is_fixed: Option<Arc<AtomicBool>>) -> Running {
    let handle = consumer.handle();
    let task = tokio::spawn(async move {
        let work = consumer.run(move |record| {
            let is_broken = is_fixed.as_ref().is_some_and(|fixed| !fixed.load(Ordering::Relaxed));
            async move {
                let (drink, attempt) = (record.text()?, record.attempt());
                if is_broken && drink.contains("tea") {
                    say(&format!("  {group}: {drink:?}, attempt {attempt}: the card reader is broken"));
                    return Err(Nack::retry("the card reader is broken"));
                }
                say(&format!("  {group}: {drink:?} done, attempt {attempt}"));
                Ok(())
            }
        });
        work.await
    });
    (handle, task)
}

/// Waits until a group has settled everything.
async fn settled(broker: &Broker, group: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while broker.admin().group("orders", group).await?.lag() > 0 {
        if Instant::now() > deadline {
            return Err(Error::new(ErrorKind::Timeout, format!("group {group} did not get done")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn say(text: &str) {
    println!("{text}");
}
