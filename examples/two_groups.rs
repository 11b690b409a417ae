//! Two groups read one topic: each gets everything, at its own pace, and neither notices the other's failures.

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
    let (one, two) = (settled(&broker, "billing"), settled(&broker, "shipping"));
    let (billing, shipping) =
        tokio::join!(billing.until(one).into_future(), shipping.until(two).into_future());
    billing.and(shipping)
}

/// Completes when the group has nothing left to do.
fn settled(broker: &Broker, group: &'static str) -> impl Future<Output = ()> + Send + 'static {
    let admin = broker.admin();
    async move {
        while admin.group("orders", group).await.is_ok_and(|group| group.lag() > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
