//! A paused consumer rests: new records do not wake it, and are all there when it goes on.

use crate::world::soon;
use firth::Broker;
use firth_testkit::{Flavor, RedisServer};
use std::time::Duration;

/// How often clients asked the server to tell them of the next change.
async fn armed(server: &RedisServer) -> u64 {
    let stats = server.info("commandstats").await;
    let line = stats.get("cmdstat_client|caching").map_or("calls=0,", String::as_str);
    let calls = line.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).expect("INFO tells how often a command was called")
}

#[tokio::test]
async fn a_paused_consumer_is_not_woken_by_what_is_appended_and_misses_nothing() {
    const COUNT: u64 = 100;
    let server = RedisServer::start(Flavor::Redis).await;
    let (ours, theirs) =
        (Broker::connect(&server.url()).await.unwrap(), Broker::connect(&server.url()).await.unwrap());
    ours.create_topic("orders").partitions(1).await.unwrap();
    let consumer = ours.consumer("orders", "billing").lease(Duration::from_secs(60)).concurrency(500);
    let mut consumer = consumer.await.unwrap();
    let handle = consumer.handle();
    soon("assigned", handle.assigned(|owned| owned.len() == 1)).await;
    handle.pause();
    let producer = theirs.producer("orders").await.unwrap();
    let before = armed(&server).await;
    for number in 0..COUNT {
        producer.send(number.to_string()).await.unwrap();
    }
    let woken = armed(&server).await - before;
    assert!(woken < COUNT / 4, "it listened anew {woken} times");
    handle.resume();
    for number in 0..COUNT {
        let delivery = soon("the next one", consumer.next()).await.unwrap().unwrap();
        assert_eq!(*delivery.payload(), number.to_string());
        delivery.ack().await.unwrap();
    }
    consumer.close().await.unwrap();
}
