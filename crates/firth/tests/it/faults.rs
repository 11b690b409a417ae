//! A bad connection: lost replies, refused calls, stopped processes.

use crate::faulty::{Fault, process};
use crate::world::{Diary, Reader, eventually, fails, lag, numbered, payloads, send, soon, with_topic};
use firth::{Broker, Delivery, ErrorKind, Message, Nack, RetryPolicy};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn an_idempotent_producer_retries_lost_replies_and_the_message_is_there_once() {
    let broker = with_topic(1).await;
    let (ours, faults) = process(broker.engine());
    let producer = ours.producer("orders").idempotent().await.unwrap();
    for n in 0..20 {
        if n % 3 == 0 {
            faults.plan("append", Fault::LostReply);
        }
        let receipt = producer.send(n.to_string()).await.unwrap();
        assert_eq!(receipt.duplicate, n % 3 == 0);
    }
    let expected: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(payloads(broker.engine(), "orders", 0).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_plain_producer_never_repeats_an_unknown_outcome_and_says_so() {
    let broker = with_topic(1).await;
    let (ours, faults) = process(broker.engine());
    let producer = ours.producer("orders").await.unwrap();
    faults.plan("append", Fault::LostReply);
    let error = producer.send("once").await.unwrap_err();
    assert!(error.may_have_happened() && error.kind() == ErrorKind::Timeout, "{error:?}");
    faults.plan("append", Fault::Refused);
    producer.send("refused first").await.unwrap();
    assert_eq!(payloads(broker.engine(), "orders", 0).await, ["once", "refused first"]);
}

#[tokio::test(start_paused = true)]
async fn an_idempotent_producer_goes_on_after_an_outcome_that_stayed_unknown() {
    let broker = with_topic(1).await;
    let (ours, faults) = process(broker.engine());
    let producer = ours.producer("orders").idempotent().timeout(Duration::ZERO).await.unwrap();
    producer.send("first").await.unwrap();
    faults.plan("append", Fault::LostReply);
    assert!(producer.send("unknown").await.unwrap_err().may_have_happened());
    faults.plan("append", Fault::Refused);
    fails(producer.send("refused").await, ErrorKind::Unavailable);
    producer.send("last").await.unwrap();
    assert_eq!(payloads(broker.engine(), "orders", 0).await, ["first", "unknown", "last"]);
}

#[tokio::test(start_paused = true)]
async fn one_append_carries_a_batch_and_nothing_else_is_asked_per_message() {
    let broker = with_topic(1).await;
    let (ours, faults) = process(broker.engine());
    let producer = ours.producer("orders").linger(Duration::from_millis(5)).await.unwrap();
    let asked = faults.count("get");
    producer.send_all(numbered(0, 500)).await.unwrap();
    assert_eq!((faults.count("append"), faults.count("get") - asked), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn lost_and_refused_commits_reads_and_openings_repeat_no_record() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 300).await;
    let (ours, faults) = process(broker.engine());
    let diary = Diary::default();
    let consumer = ours.consumer("orders", "billing").max_in_flight(20).await.unwrap();
    for name in ["commit", "read", "commit", "due", "promote_due", "open", "commit"] {
        faults.plan(name, if name == "promote_due" { Fault::Refused } else { Fault::LostReply });
        faults.plan(name, Fault::Refused);
    }
    let reader = Reader::start(consumer, "a", &diary);
    eventually("everything settled", async || lag(&broker, "billing").await == 0).await;
    let mut next = 300;
    eventually("every fault happened", async || {
        next += 1;
        send(&broker, "orders", next - 1, next).await;
        faults.are_spent()
    })
    .await;
    eventually("everything settled", async || lag(&broker, "billing").await == 0).await;
    reader.close().await;
    let numbers = diary.numbers();
    assert!(numbers.len() == diary.len(), "a lane that starts over hands nothing out twice");
    assert!((0..300).all(|n| numbers.contains(&n)));
}

#[tokio::test(start_paused = true)]
async fn a_lost_commit_of_a_retry_and_a_dead_letter_counts_each_attempt_once() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 1).await;
    let (ours, faults) = process(broker.engine());
    let diary = Diary::default();
    let retry = RetryPolicy::fixed(3, Duration::from_secs(1));
    let consumer = ours.consumer("orders", "billing").retry(retry).await.unwrap();
    (0..3).for_each(|_| faults.plan("commit", Fault::LostReply));
    let reader = {
        let diary = diary.clone();
        Reader::with(consumer, move |record| {
            diary.note(&record.attempt().to_string(), &record);
            async { Err(Nack::retry("no")) }
        })
    };
    eventually("given up", async || broker.dead_letters("orders").count().await.unwrap() == 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    reader.close().await;
    assert_eq!((diary.of("1").len(), diary.of("2").len(), diary.of("3").len(), diary.len()), (1, 1, 1, 3));
    assert_eq!(broker.dead_letters("orders").list(None, 10).await.unwrap().letters[0].attempts(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_process_that_wakes_after_the_takeover_settles_nothing_and_starts_nothing() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 4).await;
    let (zombie, faults) = process(broker.engine());
    let mut stopped = zombie.consumer("orders", "billing").lease(Duration::from_secs(2)).await.unwrap();
    stopped.next().await.unwrap().unwrap().ack().await.unwrap();
    let held = stopped.next().await.unwrap().unwrap();
    faults.cut();
    let diary = Diary::default();
    let heir = broker.consumer("orders", "billing").lease(Duration::from_secs(2)).await.unwrap();
    let heir = Reader::start(heir, "heir", &diary);
    diary.reaches(3).await;
    assert_eq!(diary.payloads(), ["1", "2", "3"], "the heir goes on at the frontier, in order");
    faults.heal();
    let verdict = held.nack(Nack::reject("zombie")).await;
    fails(verdict, ErrorKind::Fenced);
    assert_eq!(broker.dead_letters("orders").count().await.unwrap(), 0);
    heir.close().await;
    // It is a member all the same, and owns the partition again after the heir has left.
    send(&broker, "orders", 4, 5).await;
    let next = soon("it takes part again", stopped.next()).await.unwrap().unwrap();
    assert_eq!(next.text().unwrap(), "4");
    next.ack().await.unwrap();
    stopped.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn health_tells_of_an_engine_that_is_away_and_of_leases_that_may_be_lost() {
    let broker = with_topic(2).await;
    let (ours, faults) = process(broker.engine());
    let consumer = ours.consumer("orders", "billing").lease(Duration::from_secs(2)).await.unwrap();
    let reader = Reader::start(consumer, "a", &Diary::default());
    let handle = reader.handle.clone();
    soon("assigned", handle.assigned(|owned| owned.len() == 2)).await;
    ours.check().await.unwrap();
    assert!(handle.is_healthy());
    faults.plan("get", Fault::Refused);
    fails(ours.check().await, ErrorKind::Unavailable);
    ours.check().await.unwrap();
    faults.cut();
    let asked = tokio::time::Instant::now();
    fails(ours.check().await, ErrorKind::Unavailable);
    assert_eq!(asked.elapsed(), Duration::from_secs(5), "it does not wait for ever");
    assert!(!handle.is_healthy() && handle.assignment().len() == 2, "others may have taken them");
    faults.heal();
    ours.check().await.unwrap();
    eventually("it is healthy again", async || handle.is_healthy()).await;
    reader.close().await;
    assert!(!handle.is_healthy(), "it has ended");
    broker.close().await.unwrap();
    fails(ours.check().await, ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn no_record_starts_once_the_lease_may_have_run_out() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 100).await;
    let (ours, faults) = process(broker.engine());
    let diary = Diary::default();
    let consumer = ours.consumer("orders", "billing").lease(Duration::from_secs(2)).await.unwrap();
    let reader = {
        let diary = diary.clone();
        Reader::with(consumer, move |record| {
            let diary = diary.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                diary.note("a", &record);
                Ok(())
            }
        })
    };
    diary.reaches(10).await;
    faults.cut();
    let before = diary.len();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after = diary.len();
    assert!(after - before <= 21, "at most what fits into the lease: {before} to {after}");
    faults.heal();
    diary.reaches(100).await;
    reader.close().await;
    assert_eq!(diary.len(), 100, "nobody took over, so nothing is repeated");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_kills_its_consumers_becomes_a_dead_letter_and_its_neighbours_are_handled() {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    for payload in ["before", "killer", "after"] {
        producer.send(Message::new(payload)).await.unwrap();
    }
    let diary = Diary::default();
    for _ in 0..20 {
        let retry = RetryPolicy { max_crashes: 3, ..RetryPolicy::default() };
        let builder = broker.consumer("orders", "billing").retry(retry).lease(Duration::from_secs(1));
        let mut consumer = builder.await.unwrap();
        while let Ok(next) = tokio::time::timeout(Duration::from_secs(30), consumer.next()).await {
            let next = next.unwrap().unwrap();
            if next.payload() == "killer" {
                // The process dies here: no verdict, no goodbye.
                std::mem::forget(next);
                break;
            }
            diary.note("a", &next);
            next.ack().await.unwrap();
        }
        drop(consumer);
        if diary.len() == 2 {
            break;
        }
    }
    assert_eq!(diary.payloads(), ["before", "after"]);
    let letters = broker.dead_letters("orders").list(None, 10).await.unwrap().letters;
    assert_eq!((letters.len(), letters[0].record.text().unwrap()), (1, "killer"));
    assert!(letters[0].reason.contains("vanished"), "{}", letters[0].reason);
}

/// If the next owner vanished as well, both would be blamed.
#[tokio::test(start_paused = true)]
async fn after_an_owner_vanished_nothing_goes_out_beside_what_is_due() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 3).await;
    let builder = |broker: &Broker| {
        let retry = RetryPolicy::fixed(9, Duration::from_millis(10));
        broker.consumer("orders", "billing").concurrency(9).retry(retry).lease(Duration::from_secs(1))
    };
    let mut victim = builder(&broker).await.unwrap();
    let first = victim.next().await.unwrap().unwrap();
    first.nack(Nack::retry("later")).await.unwrap();
    std::mem::forget(victim.next().await.unwrap().unwrap());
    drop(victim);
    let (ours, faults) = process(broker.engine());
    faults.hold_up("due");
    let mut heir = builder(&ours).await.unwrap();
    eventually("a look for what is due", async || faults.count("due") > 0).await;
    let early = tokio::time::timeout(Duration::from_secs(30), heir.next()).await;
    assert!(early.is_err(), "{:?} was handed out", early.unwrap().unwrap().unwrap().text());
    faults.heal();
    for expected in ["0", "1", "2"] {
        let delivery = soon("the next one", heir.next()).await.unwrap().unwrap();
        assert_eq!(delivery.text().unwrap(), expected);
        delivery.ack().await.unwrap();
    }
}

/// Records of the log come while a look for due ones is on its way: there is room for either, not
/// for both.
#[tokio::test(start_paused = true)]
async fn no_more_is_out_than_may_be_also_if_due_records_come_late() {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    let numbers = |range: std::ops::Range<u32>| range.map(|n| Message::new(n.to_string()));
    producer.send_all(numbers(0..2)).await.unwrap();
    let (ours, faults) = process(broker.engine());
    let retry = RetryPolicy::fixed(9, Duration::from_millis(10));
    let builder = ours.consumer("orders", "billing").concurrency(9).max_in_flight(4).retry(retry);
    let mut consumer = builder.await.unwrap();
    faults.hold_up("due");
    for _ in 0..2 {
        consumer.next().await.unwrap().unwrap().nack(Nack::retry("later")).await.unwrap();
    }
    eventually("a look for what is due", async || faults.count("due") > 0).await;
    producer.send_all(numbers(2..9)).await.unwrap();
    let mut out = Vec::new();
    for _ in 0..4 {
        out.push(soon("one of the log", consumer.next()).await.unwrap().unwrap());
    }
    faults.heal();
    let fifth = tokio::time::timeout(Duration::from_secs(30), consumer.next()).await;
    assert!(fifth.is_err(), "four may be out");
    let mut texts = Vec::new();
    while texts.len() < 9 {
        let delivery: Delivery = match out.pop() {
            Some(delivery) => delivery,
            None => soon("the rest", consumer.next()).await.unwrap().unwrap(),
        };
        texts.push(delivery.text().unwrap().to_owned());
        delivery.ack().await.unwrap();
    }
    texts.sort();
    assert_eq!(texts, payloads(broker.engine(), "orders", 0).await);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_verdict_hears_what_became_of_it_also_over_a_lost_reply() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 8).await;
    let (ours, faults) = process(broker.engine());
    let retry = RetryPolicy::fixed(2, Duration::from_millis(10));
    let builder = ours.consumer("orders", "billing").retry(retry).lease(Duration::from_secs(5));
    let mut consumer = builder.await.unwrap();
    for (n, fault) in
        [Fault::LostReply, Fault::Refused, Fault::LostReply, Fault::Refused].into_iter().enumerate()
    {
        let delivery = consumer.next().await.unwrap().unwrap();
        faults.plan("commit", fault);
        if n < 2 {
            delivery.ack().await.unwrap();
        } else {
            delivery.reject("no").await.unwrap();
        }
        let status = broker.admin().group("orders", "billing").await.unwrap();
        assert_eq!((status.lag(), status.dead()), (7 - n as u64, n.saturating_sub(1) as u64), "it is stored");
    }
    // A retry, then the verdict on the due record: both behind lost replies.
    let delivery = consumer.next().await.unwrap().unwrap();
    assert_eq!(delivery.text().unwrap(), "4");
    faults.plan("commit", Fault::LostReply);
    delivery.nack(Nack::retry("again")).await.unwrap();
    loop {
        let delivery = consumer.next().await.unwrap().unwrap();
        faults.plan("commit", Fault::LostReply);
        let is_last = delivery.text().unwrap() == "4";
        let before = lag(&broker, "billing").await;
        delivery.ack().await.unwrap();
        assert_eq!(lag(&broker, "billing").await, before - 1);
        if is_last {
            break;
        }
    }
    assert!(faults.are_spent());
    // An engine that stays away longer than the lease leaves the outcome open.
    send(&broker, "orders", 8, 9).await;
    let delivery = soon("one more", consumer.next()).await.unwrap().unwrap();
    for name in ["commit", "open", "renew"] {
        (0..100).for_each(|_| faults.plan(name, Fault::Refused));
    }
    let error = soon("nobody waits for ever", delivery.ack()).await.unwrap_err();
    assert!(error.may_have_happened(), "{error:?}");
}
