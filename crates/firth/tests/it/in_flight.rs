//! Deliveries in flight, first ones included, told by all members on every engine.

use crate::engines::{Pair, on_every_engine};
use crate::world::{Reader, eventually, soon};
use firth::{ConsumerBuilder, Message, Nack, RetryPolicy};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

fn member(builder: ConsumerBuilder, name: &str) -> ConsumerBuilder {
    let builder = builder.name(name).max_partitions(1).lease(Duration::from_secs(5));
    builder.retry(RetryPolicy::fixed(9, Duration::ZERO))
}

/// Two processes have two records each in a handler, as second attempts; a third caller has one
/// from `next` and many read ahead.
async fn mq46_all_members_tell_what_they_have(pair: Pair) {
    let Pair { first, second } = pair;
    first.create_topic("orders").partitions(3).await.unwrap();
    let admin = first.admin();
    first.admin().create_group("orders", "billing", Default::default()).await.unwrap();
    assert!(admin.in_flight("orders", "billing", 10).await.unwrap().members.is_empty());
    let gate = Arc::new(Semaphore::new(0));
    let mut readers = Vec::new();
    for (broker, name) in [(&first, "a"), (&second, "b")] {
        let consumer =
            member(broker.consumer("orders", "billing"), name).concurrency(2).kind("robot").await.unwrap();
        let gate = gate.clone();
        readers.push(Reader::with(consumer, move |record| {
            let gate = gate.clone();
            async move {
                if record.attempt() == 1 {
                    return Err(Nack::retry("not yet"));
                }
                gate.acquire().await.unwrap().forget();
                Ok(())
            }
        }));
    }
    let mut caller = member(second.consumer("orders", "billing"), "c").await.unwrap();
    for handle in readers.iter().map(|reader| &reader.handle).chain([&caller.handle()]) {
        soon("a partition each", handle.assigned(|owned| owned.len() == 1)).await;
    }
    let producer = first.producer("orders").await.unwrap();
    producer.send_all((0..60).map(|n| Message::new(n.to_string()).to_partition(n % 3))).await.unwrap();
    let taken = caller.next().await.unwrap().unwrap();
    eventually("what each member has", async || {
        let page = admin.in_flight("orders", "billing", 10).await.unwrap();
        let second = page.records.iter().filter(|record| record.attempt == 2).count();
        page.silent.is_empty() && page.members.len() == 3 && (page.records.len(), second) == (5, 4)
    })
    .await;
    let page = admin.in_flight("orders", "billing", 10).await.unwrap();
    let of = |name: &str| page.records.iter().find(|record| record.member.starts_with(name)).unwrap();
    assert_eq!((of("c-").partition, of("c-").id, of("c-").attempt), (taken.partition(), taken.id(), 1));
    assert_eq!((page.members[&of("a-").member], page.members[&of("b-").member]), (2, 2), "{page:?}");
    assert!(page.records.is_sorted_by_key(|record| std::cmp::Reverse(record.age)), "{page:?}");
    assert_eq!((page.total(), admin.in_flight("orders", "billing", 1).await.unwrap().records.len()), (5, 1));
    let info = admin.group("orders", "billing").await.unwrap();
    let robots = info.members.iter().filter(|member| member.kind.as_deref() == Some("robot")).count();
    assert_eq!((robots, info.members.iter().all(|member| member.pid == Some(std::process::id()))), (2, true));
    taken.ack().await.unwrap();
    caller.close().await.unwrap();
    gate.add_permits(1000);
    for reader in readers {
        reader.close().await;
    }
    let page = admin.in_flight("orders", "billing", 10).await.unwrap();
    assert!(page.records.is_empty() && page.silent.is_empty(), "{page:?}");
}

on_every_engine!(mq46_all_members_tell_what_they_have);
