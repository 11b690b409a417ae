//! The operator's view: exact figures, owners, repairs; metrics and trace context.

use crate::world::{Diary, Reader, eventually, fails, lag, send, soon, with_topic};
use firth::{
    Broker, ErrorKind, Message, Nack, PendingQuery, PendingSort, RecordId, Reset, RetryPolicy, StartPosition,
    TRACEPARENT, TrimTo,
};
use firth_testkit::{Flavor, RedisServer};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

#[tokio::test(start_paused = true)]
async fn lag_is_a_count_and_ages_and_owners_are_shown() {
    let broker = with_topic(2).await;
    let consumer = broker.consumer("orders", "billing").name("worker").await.unwrap();
    let handle = consumer.handle();
    handle.pause();
    soon("assigned", handle.assigned(|owned| owned.len() == 2)).await;
    send(&broker, "orders", 0, 30).await;
    tokio::time::sleep(Duration::from_secs(42)).await;
    send(&broker, "orders", 30, 50).await;
    let group = broker.admin().group("orders", "billing").await.unwrap();
    assert_eq!((group.lag(), group.due(), group.dead()), (50, 0, 0));
    assert!(
        group.oldest().unwrap() >= Duration::from_secs(42)
            && group.oldest().unwrap() < Duration::from_secs(43)
    );
    assert_eq!(group.members.len(), 1);
    let member = &group.members[0];
    assert_eq!((member.name.as_str(), &member.owns), (handle.name(), &[0, 1].into()));
    assert!(member.name.starts_with("worker-") && member.beats > 3);
    for partition in &group.partitions {
        let owner = partition.owner.as_ref().unwrap();
        assert_eq!(owner.member, handle.name());
        assert!(owner.remaining > Duration::ZERO && owner.beats > 3);
    }
    assert_eq!(broker.admin().groups("orders").await.unwrap()[0].as_str(), "billing");
    fails(broker.admin().delete_group("orders", "billing").await, ErrorKind::Invalid);
    consumer.close().await.unwrap();
    assert!(broker.admin().delete_group("orders", "billing").await.unwrap());
    assert!(broker.admin().groups("orders").await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn topics_are_shown_with_lengths_and_delayed_messages() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 30).await;
    let producer = broker.producer("orders").await.unwrap();
    producer.send(Message::new("later").deliver_after(Duration::from_secs(90))).await.unwrap();
    let topics = broker.admin().topics().await.unwrap();
    assert_eq!((topics.len(), topics[0].records(), topics[0].delayed()), (1, 30, 1));
    assert_eq!(broker.admin().trim("orders", TrimTo::Keep(3), false).await.unwrap(), (24, 0));
    assert_eq!(broker.admin().browse("orders", 0, RecordId::ZERO, 10).await.unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn pending_records_are_merged_sorted_and_paged() {
    let broker = with_topic(3).await;
    send(&broker, "orders", 0, 10).await;
    let consumer = broker
        .consumer("orders", "billing")
        .retry(RetryPolicy::fixed(9, Duration::from_secs(50)))
        .await
        .unwrap();
    let reader = Reader::with(consumer, |record| async move {
        let number: u64 = record.text()?.parse()?;
        let delay = Duration::from_secs(if number == 7 && record.attempt() < 3 { 1 } else { 1000 + number });
        Err(Nack::retry_after(delay, format!("no {number}")))
    });
    let query = PendingQuery { sort: PendingSort::Attempt, descending: true, ..PendingQuery::default() };
    let admin = broker.admin();
    // Strict order: the first record of each key waits for its retry, the second waits for the
    // first.
    eventually("five keys wait", async || {
        let page = admin.pending("orders", "billing", query).await.unwrap();
        page.total == 5
    })
    .await;
    let by_due = PendingQuery { sort: PendingSort::Due, skip: 1, max: 2, ..PendingQuery::default() };
    let page = admin.pending("orders", "billing", by_due).await.unwrap();
    assert_eq!(
        page.records.iter().map(|record| record.reason.as_str()).collect::<Vec<_>>(),
        ["no 1", "no 2"]
    );
    assert_eq!((page.total, page.records[0].attempt, lag(&broker, "billing").await), (5, 2, 10));
    let old =
        PendingQuery { sort: PendingSort::Age, min_age: page.records[0].age, ..PendingQuery::default() };
    assert_eq!(admin.pending("orders", "billing", old).await.unwrap().total, 5);
    let older = PendingQuery { min_age: Duration::from_secs(3600), ..old };
    assert_eq!(admin.pending("orders", "billing", older).await.unwrap().total, 0);
    reader.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_moves_a_running_group_and_keeps_or_drops_what_waits_as_told() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 10).await;
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    diary.reaches(10).await;
    eventually("settled", async || lag(&broker, "billing").await == 0).await;
    broker
        .admin()
        .reset_group("orders", "billing", Reset { to: StartPosition::Start, drop_due: true })
        .await
        .unwrap();
    diary.reaches(20).await;
    eventually("settled", async || lag(&broker, "billing").await == 0).await;
    assert_eq!(diary.payloads()[10..], (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(broker.admin().force_release("orders", "billing", 0).await.unwrap());
    send(&broker, "orders", 10, 12).await;
    diary.reaches(22).await;
    reader.close().await;
    assert_eq!(diary.payloads()[20..], ["10", "11"]);
}

#[tokio::test(start_paused = true)]
async fn trace_context_travels_from_topic_to_topic_through_handlers() {
    let broker = with_topic(1).await;
    broker.create_topic("invoices").await.unwrap();
    let (orders, invoices) =
        (broker.producer("orders").await.unwrap(), broker.producer("invoices").await.unwrap());
    let consumer = broker.consumer("orders", "billing").await.unwrap();
    let reader = Reader::with(consumer, move |record| {
        let invoices = invoices.clone();
        async move {
            invoices.send(record.payload().clone()).await?;
            Ok(())
        }
    });
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    orders.send(Message::new("traced").header(TRACEPARENT, parent)).await.unwrap();
    let mut next = broker.consumer("invoices", "mail").await.unwrap();
    let delivery = soon("the invoice", next.next()).await.unwrap().unwrap();
    assert_eq!(delivery.headers().get(TRACEPARENT).unwrap(), parent);
    delivery.ack().await.unwrap();
    reader.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_one_trace_passes_its_context_on_and_a_mixed_one_none() {
    let broker = with_topic(1).await;
    broker.create_topic("invoices").await.unwrap();
    let orders = broker.producer("orders").await.unwrap();
    let parents = ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-1-2-01"];
    let traced = |parent: &'static str| Message::new("x").header(TRACEPARENT, parent);
    for (batch, expected) in [([parents[0], parents[0]], Some(parents[0])), ([parents[0], parents[1]], None)]
    {
        orders.send_all(batch.map(traced)).await.unwrap();
        let invoices = broker.producer("invoices").await.unwrap();
        let done = Arc::new(Notify::new());
        let finished = done.clone();
        let run = broker.consumer("orders", "billing").await.unwrap().run_batches(2, move |records| {
            let invoices = invoices.clone();
            let done = done.clone();
            async move {
                assert_eq!(records.len(), 2);
                invoices.send("invoice").await?;
                done.notify_one();
                Ok(())
            }
        });
        run.until(async move { finished.notified().await }).await.unwrap();
        let mut next = broker.consumer("invoices", "mail").await.unwrap();
        let delivery = soon("the invoice", next.next()).await.unwrap().unwrap();
        assert_eq!(delivery.headers().get(TRACEPARENT).as_deref(), expected.map(str::as_bytes));
        delivery.ack().await.unwrap();
        next.close().await.unwrap();
    }
}

#[test]
fn metrics_count_what_happened_with_bounded_labels() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let broker = with_topic(2).await;
            send(&broker, "orders", 0, 20).await;
            let consumer = broker.consumer("orders", "billing").retry(RetryPolicy::never()).await.unwrap();
            let reader = Reader::with(consumer, |record| async move {
                if record.payload() == "3" { Err(Nack::reject("no")) } else { Ok(()) }
            });
            eventually("settled", async || lag(&broker, "billing").await == 0).await;
            reader.close().await;
            let tight =
                broker.producer("orders").linger(Duration::from_secs(1)).max_buffered(1024).await.unwrap();
            tight.send_all((0..8).map(|_| "x".repeat(200))).await.unwrap();
            broker.admin().group("orders", "billing").await.unwrap();
            broker.admin().topic("orders").await.unwrap();
            broker.housekeep().await.unwrap();
            broker.dead_letters("orders").replay_all(firth::Replay::Group).await.unwrap();
        });
    });
    let snapshot = snapshotter.snapshot().into_vec();
    let counter = |name: &str| -> u64 {
        let found = snapshot.iter().filter(|(key, ..)| key.key().name() == name);
        found.map(|(.., value)| if let DebugValue::Counter(count) = value { *count } else { 0 }).sum()
    };
    let gauge = |name: &str| {
        let found = snapshot.iter().find(|(key, ..)| key.key().name() == name);
        found.map(|(.., value)| if let DebugValue::Gauge(value) = value { value.0 } else { f64::NAN })
    };
    let timed = |name: &str| snapshot.iter().any(|(key, ..)| key.key().name() == name);
    assert_eq!(counter("firth_produced_total"), 28);
    assert_eq!((counter("firth_delivered_total"), counter("firth_acked_total")), (20, 19));
    assert_eq!(counter("firth_dead_letters_total"), 1);
    assert!(counter("firth_backpressure_waits_total") > 0 && timed("firth_backpressure_wait_seconds"));
    assert!(timed("firth_produce_seconds"));
    assert!(counter("firth_commits_total") > 0 && timed("firth_commit_seconds"));
    assert!(timed("firth_handle_seconds") && timed("firth_end_to_end_seconds"));
    assert_eq!((counter("firth_sweeps_total"), counter("firth_replayed_total")), (1, 1));
    assert_eq!((gauge("firth_topic_records"), gauge("firth_group_lag")), (Some(28.0), Some(8.0)));
    assert_eq!((gauge("firth_group_dead_letters"), gauge("firth_records_in_flight")), (Some(1.0), Some(0.0)));
    let allowed = ["topic", "group", "result"];
    let labels = snapshot.iter().flat_map(|(key, ..)| key.key().labels());
    assert!(labels.map(metrics::Label::key).all(|label| allowed.contains(&label)));
}

#[tokio::test(start_paused = true)]
async fn the_newest_records_are_found_however_old_they_are() {
    let broker = with_topic(1).await;
    let numbers = async |max| {
        let found = broker.admin().recent("orders", 0, max).await.unwrap();
        found.iter().map(|record| record.text().unwrap().parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    assert!(numbers(5).await.is_empty());
    for n in 0..40 {
        send(&broker, "orders", n * 5, n * 5 + 5).await;
        tokio::time::sleep(Duration::from_millis(n * n * 1000)).await;
    }
    assert_eq!(numbers(3).await, [197, 198, 199]);
    assert_eq!(numbers(150).await, (50..200).collect::<Vec<_>>());
    assert_eq!(numbers(9999).await, (0..200).collect::<Vec<_>>());
    broker.admin().trim("orders", TrimTo::Keep(10), false).await.unwrap();
    assert_eq!(numbers(100).await, (190..200).collect::<Vec<_>>());
    broker.admin().trim("orders", TrimTo::Keep(0), false).await.unwrap();
    assert!(numbers(100).await.is_empty());
}

/// The members of a group meet in a pool, which goes with the group or with its topic, also if a
/// member vanished.
#[tokio::test]
async fn q14_the_pool_of_a_group_that_is_gone_is_gone() {
    let server = RedisServer::start(Flavor::Redis).await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    for deletes_topic in [false, true] {
        broker.create_topic("orders").partitions(2).if_missing().await.unwrap();
        let lease = Duration::from_millis(300);
        let join = async || broker.consumer("orders", "billing").lease(lease).await.unwrap();
        let vanishes = Reader::start(join().await, "a", &Diary::default());
        soon("assigned", vanishes.handle.assigned(|owned| owned.len() == 2)).await;
        join().await.close().await.unwrap();
        vanishes.crash().await;
        let group = async || broker.admin().group("orders", "billing").await.unwrap();
        eventually("its membership runs out", async || group().await.members.is_empty()).await;
        if deletes_topic {
            assert!(broker.delete_topic("orders").await.unwrap());
        } else {
            assert!(broker.admin().delete_group("orders", "billing").await.unwrap());
        }
        let left = server.command(&["KEYS", "firth:pool:{members*"]).await;
        assert!(left.items().is_empty(), "{deletes_topic}: {left:?}");
    }
}
