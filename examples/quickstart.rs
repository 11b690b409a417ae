//! Send and handle messages with nothing installed: `cargo run -p firth --example quickstart`.

use firth::{Broker, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let broker = Broker::memory(); // Broker::open("./data") keeps them, Broker::connect("redis://…") shares them
    broker.create_topic("orders").partitions(4).await?;
    let producer = broker.producer("orders").await?;
    producer.send("one coffee, please").await?;
    let mut consumer = broker.consumer("orders", "bar").await?;
    if let Some(delivery) = consumer.next().await.transpose()? {
        println!("serving {:?}", delivery.text()?);
        delivery.ack().await?;
    }
    consumer.close().await
}
