//! Live prices: one task publishes them, another listens to all of them, and to every hole between
//! them.
//!
//! Needs a Redis or Valkey server: `redis-server --port 6379`, then
//! `cargo run --example live_prices`. Set `REDIS_URL` for another one; `redis+cluster://host:port`
//! is a cluster, and nothing else changes.

use firth_redis::mux::{Event, Subscription};
use firth_redis::{Client, cmd};
use std::error::Error;
use std::time::Duration;

const PRICES: usize = 30;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://localhost".into());
    let client = match Client::connect(url.as_str()).await {
        Ok(client) => client,
        Err(error) => {
            eprintln!("{error}: start a server (redis-server --port 6379), or name one in REDIS_URL");
            std::process::exit(1);
        }
    };

    // Confirmed by the server: nothing that is published from here on is missed.
    let prices = client.mux().subscribe_pattern(["prices.*"]).await?;
    let publisher = tokio::spawn(publish(client.clone()));
    listen(prices).await;
    publisher.await??;
    client.close().await;
    Ok(())
}

async fn listen(mut prices: Subscription) {
    let mut left = PRICES;
    while let Some(event) = prices.next().await {
        match event {
            Event::Message(message) => {
                let name = show(&message.channel);
                let price = show(&message.payload);
                println!("{name:<12} {price:>9}");
                left -= 1;
            }
            // A node was lost, a slot moved, or we were too slow: the signal stands where
            // messages may be missing.
            Event::Signal(signal) => println!("! {signal:?}"),
        }
        if left == 0 {
            return;
        }
    }
}

/// Every price takes a small step at random.
async fn publish(client: Client) -> Result<(), firth_redis::CallError> {
    let mut prices = [("prices.eur", 108.15), ("prices.gbp", 127.02), ("prices.jpy", 0.65)];
    for n in 0..PRICES {
        let (name, price) = &mut prices[n % 3];
        *price *= 1.0 + (fastrand::f64() - 0.5) / 100.0;
        client.call::<i64>(cmd("PUBLISH").arg(*name).arg(format!("{price:.4}"))).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
