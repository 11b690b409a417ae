//! Order per key with concurrency: customers are served side by side, each customer's events
//! strictly one after the other, also when one of them must be tried again.

use firth::{Broker, KeyOrdering, Message, Nack, Result, RetryPolicy};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let broker = Broker::memory();
    broker.create_topic("customers").partitions(2).await?;
    let producer = broker.producer("customers").await?;
    for step in ["registers", "orders", "pays"] {
        for customer in ["ada", "bob", "cyd"] {
            producer.send(Message::new(step).key(customer)).await?;
        }
    }

    let consumer = broker
        .consumer("customers", "crm")
        .concurrency(8) // per partition; two records of one key never run at the same time
        .ordering(KeyOrdering::Strict)
        .retry(RetryPolicy::fixed(5, Duration::from_millis(100)))
        .await?;
    let run = consumer.run(|record| async move {
        let customer = String::from_utf8_lossy(record.key().map_or(&[][..], |key| key)).into_owned();
        let step = record.text()?;
        if customer == "bob" && step == "orders" && record.attempt() == 1 {
            println!("{customer} {step}: fails, later events of {customer} wait");
            return Err(Nack::retry("out of stock"));
        }
        println!("{customer} {step}");
        Ok(())
    });
    run.until(broker.admin().drained("customers", "crm")).await
}
