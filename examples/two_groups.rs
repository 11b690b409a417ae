//! Two groups read one topic: each gets everything, at its own pace, and neither notices the
//! other's failures.

use firth::{Broker, Nack, Result, RetryPolicy};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let broker = Broker::memory();
    broker.create_topic("orders").partitions(2).await?;
    broker.producer("orders").await?.send_all((1..=4).map(|n| format!("order {n}"))).await?;

    let billing = broker.consumer("orders", "billing").await?;
    let shipping = broker.consumer("orders", "shipping");
    let shipping = shipping.retry(RetryPolicy::fixed(3, Duration::from_millis(100))).await?;
    let billing = billing.run(|record| async move {
        println!("billing   {}", record.text()?);
        Ok(())
    });
    let shipping = shipping.run(|record| async move {
        if record.attempt() == 1 {
            return Err(Nack::retry("no van here"));
        }
        println!("shipping  {} at attempt {}", record.text()?, record.attempt());
        Ok(())
    });
    let drained = |group| broker.admin().drained("orders", group);
    let (billing, shipping) = tokio::join!(
        billing.until(drained("billing")).into_future(),
        shipping.until(drained("shipping")).into_future()
    );
    billing.and(shipping)
}
