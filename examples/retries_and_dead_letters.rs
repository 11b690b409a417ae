//! Failing handlers: tried again with a backoff, given up as dead letters, replayed when the cause
//! is mended.

use firth::{Backoff, Broker, Nack, Record, Replay, Result, RetryPolicy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let broker = Broker::memory();
    broker.create_topic("payments").await?;
    let producer = broker.producer("payments").await?;
    producer.send_all(["12", "25", "not a number"]).await?;

    let bank_is_open = Arc::new(AtomicBool::new(false));
    let retry = RetryPolicy {
        max_attempts: 3,
        backoff: Backoff::exponential(Duration::from_millis(50), Duration::from_secs(1)),
        ..RetryPolicy::default()
    };
    let consumer = broker.consumer("payments", "bank").retry(retry).await?;
    let handle = consumer.handle();
    let open = bank_is_open.clone();
    let running = tokio::spawn(consumer.run(move |record| charge(record, open.clone())).into_future());

    let letters = broker.dead_letters("payments").group("bank");
    let mut given_up = letters.clone().follow();
    for _ in 0..3 {
        let letter = given_up.next().await?;
        println!(
            "gave up {:?} after {} attempts: {}",
            letter.record.text()?,
            letter.attempts(),
            letter.reason
        );
    }

    println!("the bank opens");
    bank_is_open.store(true, Ordering::Relaxed);
    println!("replayed {}", letters.clone().reason("closed").replay_all(Replay::Group).await?);
    broker.admin().drained("payments", "bank").await?;
    println!("{} letter is left: its record is wrong", letters.count().await?);
    handle.close();
    running.await.expect("the consumer does not panic")
}

async fn charge(record: Record, open: Arc<AtomicBool>) -> Result<(), Nack> {
    let Ok(amount) = record.text()?.parse::<u32>() else {
        return Err(Nack::reject("not an amount")); // no use in trying again
    };
    if !open.load(Ordering::Relaxed) {
        println!("attempt {} to charge {amount}: closed", record.attempt());
        return Err(Nack::retry("the bank is closed"));
    }
    println!("charged {amount}");
    Ok(())
}
