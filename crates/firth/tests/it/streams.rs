//! Consumers, workers and a unit's data as streams, and without waiting.

use crate::world::{fails, soon};
use firth::claims::{Event, Worker};
use firth::{Broker, Delivery, ErrorKind, Message, Nack, RetryPolicy};
use futures_util::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Begins to wait for the next item and gives up, so that the stream keeps what it waits with.
async fn wait_in_vain<S: StreamExt + Unpin>(stream: &mut S) {
    let waiting = tokio::time::timeout(Duration::from_millis(1), StreamExt::next(stream));
    assert!(waiting.await.is_err(), "nothing is there");
}

#[tokio::test(start_paused = true)]
async fn deliveries_come_as_a_stream_until_the_close() {
    let broker = Broker::memory();
    broker.create_topic("orders").await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    let mut consumer = broker.consumer("orders", "billing").concurrency(9).await.unwrap();
    assert!(consumer.try_next().unwrap().is_none());
    wait_in_vain(&mut consumer).await;

    producer.send("1").await.unwrap();
    let one = soon("a delivery after a poll that was given up", consumer.next()).await.unwrap().unwrap();
    wait_in_vain(&mut consumer).await;
    producer.send("2").await.unwrap();
    let two = soon("a chunk after a poll that was given up", consumer.next_many(9)).await.unwrap().unwrap();
    producer.send_all(["3", "4"]).await.unwrap();
    let rest: Vec<_> = soon("a stream", (&mut consumer).take(2).collect::<Vec<_>>()).await;
    let rest = rest.into_iter().map(Result::unwrap);
    let texts = |all: &[Delivery]| all.iter().map(|one| one.text().unwrap().to_owned()).collect::<Vec<_>>();
    let all: Vec<_> = [one].into_iter().chain(two).chain(rest).collect();
    assert_eq!(texts(&all), ["1", "2", "3", "4"]);
    Delivery::ack_all(all);

    wait_in_vain(&mut consumer).await;
    consumer.handle().close();
    assert!(soon("the end", StreamExt::next(&mut consumer)).await.is_none());
    assert!(consumer.try_next().unwrap().is_none());
    assert!(soon("the end again", consumer.next()).await.is_none());
    assert_eq!(broker.admin().group("orders", "billing").await.unwrap().lag(), 0);
}

#[tokio::test(start_paused = true)]
async fn events_of_a_worker_come_as_a_stream_until_the_close() {
    let claims = Broker::memory().claims("calls");
    let mut worker: Worker = claims.worker("w").await.unwrap();
    assert!(worker.try_next().is_none());
    wait_in_vain(&mut worker).await;
    claims.offer("a", "").await.unwrap();
    let Some(Ok(Event::Granted(claim))) = soon("a grant", worker.next()).await else { panic!("no grant") };
    wait_in_vain(&mut worker).await;
    claims.offer("b", "").await.unwrap();
    let granted = soon("another grant", StreamExt::next(&mut worker)).await;
    let Some(Ok(Event::Granted(other))) = granted else { panic!("no grant") };
    for claim in [claim, other] {
        claim.done().await.unwrap();
    }
    wait_in_vain(&mut worker).await;
    worker.handle().close();
    assert!(soon("the end", StreamExt::next(&mut worker)).await.is_none());
    assert!(worker.try_next().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_units_data_comes_as_a_stream_and_a_read_that_is_given_up_loses_nothing() {
    let broker = Broker::memory();
    broker.create_topic("telemetry").await.unwrap();
    let producer = broker.producer("telemetry").await.unwrap();
    let claims = broker.claims("devices");
    claims.offer("device", "").await.unwrap();
    let worker = claims.worker("w").by_name_only().await.unwrap();
    let claim = worker.claim("device").await.unwrap();
    let mut data = claim.follow("telemetry").await.unwrap();
    for number in 0..50 {
        wait_in_vain(&mut data).await;
        producer.send(Message::new(number.to_string())).await.unwrap();
        let record = match number % 3 {
            0 => soon("a record", StreamExt::next(&mut data)).await.unwrap().unwrap(),
            1 => soon("a record", data.next()).await.unwrap().unwrap(),
            _ => data.try_next().await.unwrap().expect("it was sent"),
        };
        assert_eq!(record.text().unwrap(), number.to_string());
        wait_in_vain(&mut data).await;
        data.ack(&record).unwrap();
        data.commit().await.unwrap();
    }
    drop(claim);
    let handle = worker.handle();
    handle.close();
    assert!(soon("the claim is recalled", StreamExt::next(&mut data)).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_group_is_drained_when_nothing_waits_runs_or_is_due() {
    let broker = Broker::memory();
    broker.create_topic("orders").partitions(2).await.unwrap();
    broker.producer("orders").await.unwrap().send_all(["1", "2", "3"]).await.unwrap();
    fails(broker.admin().drained("orders", "nobody").await, ErrorKind::NotFound);

    let retry = RetryPolicy::fixed(3, Duration::from_secs(600));
    let consumer = broker.consumer("orders", "billing").retry(retry).await.unwrap();
    let attempts = Arc::new(AtomicU32::new(0));
    let counter = attempts.clone();
    let run = consumer.run(move |record| {
        counter.fetch_add(1, Ordering::Relaxed);
        async move { if record.attempt() < 3 { Err(Nack::retry("later")) } else { Ok(()) } }
    });
    run.until(broker.admin().drained("orders", "billing")).await.unwrap();
    assert_eq!(attempts.load(Ordering::Relaxed), 9, "every retry ran before the group was drained");
    assert_eq!(broker.admin().group("orders", "billing").await.unwrap().lag(), 0);
}
