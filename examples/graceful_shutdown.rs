//! A worker that ends on Ctrl-C without losing or repeating anything: running handlers finish,
//! their verdicts are stored, and the partitions go to the other members at once.

use firth::{Broker, Result};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let broker = Broker::memory();
    broker.create_topic("work").partitions(4).await?;
    let producer = broker.producer("work").linger(Duration::from_millis(5)).await?;
    producer.send_all((0..40).map(|n| format!("job {n}"))).await?;

    let consumer = broker.consumer("work", "workers").drain(Duration::from_secs(10)).await?;
    let shutdown = async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => println!("Ctrl-C"),
            () = tokio::time::sleep(Duration::from_millis(350)) => println!("time is up"),
        }
    };
    let run = consumer.run(|record| async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        println!("done  {}", record.text()?);
        Ok(())
    });
    run.until(shutdown).await?;

    producer.close().await?;
    let left = broker.admin().group("work", "workers").await?.lag();
    println!("handed over cleanly; {left} jobs are left for the others");
    broker.close().await
}
