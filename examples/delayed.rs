//! Delayed messages: sent now, seen when their time has come.

use firth::{Broker, Message, Result};
use std::time::{Duration, Instant, SystemTime};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let broker = Broker::memory();
    broker.create_topic("reminders").await?;
    let producer = broker.producer("reminders").await?;
    let start = Instant::now();
    producer.send(Message::new("tea is ready").deliver_after(Duration::from_millis(600))).await?;
    let soon = SystemTime::now() + Duration::from_millis(300);
    producer.send(Message::new("water boils").deliver_at(soon)).await?;
    producer.send("kettle is on").await?;

    let mut consumer = broker.consumer("reminders", "kitchen").await?;
    for _ in 0..3 {
        if let Some(delivery) = consumer.next().await.transpose()? {
            println!("{:>4} ms  {}", start.elapsed().as_millis(), delivery.text()?);
            delivery.ack().await?;
        }
    }
    consumer.close().await
}
