//! How to test your own handlers: topics in memory and paused time, so that an hour of retries
//! takes no time at all. Run it as a program here; in your tests write
//! `#[tokio::test(start_paused = true)]`.

use firth::{Backoff, Broker, Nack, Record, Result, RetryPolicy};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The handler under test: the mail server is down for the first attempts.
async fn send_mail(record: Record, sent: Arc<AtomicU32>) -> Result<(), Nack> {
    if record.attempt() < 4 {
        return Err(Nack::retry("the mail server is down"));
    }
    sent.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<()> {
    let broker = Broker::memory();
    broker.create_topic("mails").await?;
    broker.producer("mails").await?.send("welcome").await?;

    let sent = Arc::new(AtomicU32::new(0));
    let backoff = Backoff::fixed(Duration::from_secs(20 * 60));
    let retry = RetryPolicy { max_attempts: 5, backoff, ..RetryPolicy::default() };
    let consumer = broker.consumer("mails", "mailer").retry(retry).await?;
    let begun = std::time::Instant::now();
    let on_clock = tokio::time::Instant::now();
    let counter = sent.clone();
    let run = consumer.run(move |record| send_mail(record, counter.clone()));
    run.until(broker.admin().drained("mails", "mailer")).await?;

    assert_eq!(sent.load(Ordering::Relaxed), 1, "the mail is sent once");
    assert_eq!(broker.dead_letters("mails").count().await?, 0);
    println!("{:?} of retries took {:?}", on_clock.elapsed(), begun.elapsed());
    Ok(())
}
