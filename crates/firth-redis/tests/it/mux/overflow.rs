//! Subscribers that are too slow: each policy keeps its word, signals are never dropped, memory
//! stays bounded.

use super::clusters::{builder, channels_at, connect_as_usual, start};
use super::{SOON, client, event, name, number, publish, word};
use crate::support::soon;
use firth_redis::mux::{Buffer, Event, MuxConfig, OverflowPolicy, Signal, Subscription};
use firth_redis::{Client, cmd, pipe};
use firth_testkit::{Flavor, RedisServer, on_both, wait};

on_both!(
    a_full_buffer_drops_the_oldest_and_says_so_where_they_are_missing,
    a_full_buffer_drops_the_newest_and_says_so_where_they_are_missing,
    a_subscriber_that_the_server_cuts_off_hears_of_the_gap,
);

const TEN_KB: usize = 10_000;

fn buffer(bytes: usize, overflow: OverflowPolicy) -> Buffer {
    Buffer { bytes, overflow }
}

/// Publishes messages of `size` bytes that begin with their number.
async fn publish_big(client: &Client, channel: &str, numbers: std::ops::Range<u64>, size: usize) {
    let mut numbers = numbers.peekable();
    while numbers.peek().is_some() {
        let some = numbers.by_ref().take(50).fold(pipe(), |pipe, n| {
            let payload = format!("{n} {}", "x".repeat(size));
            pipe.then(cmd("PUBLISH").arg(channel).arg(payload))
        });
        client.pipeline::<Vec<i64>>(some).await.unwrap();
    }
}

/// What is in the buffer, without waiting for more: messages by number, `-n` where n were dropped.
async fn contents(subscription: &mut Subscription) -> Vec<i64> {
    let mut seen = Vec::new();
    while subscription.pending() > 0 {
        seen.push(match event(subscription).await {
            Event::Message(message) => i64::try_from(number(&message)).unwrap(),
            Event::Signal(Signal::Lagged { dropped }) => -i64::try_from(dropped).unwrap(),
            Event::Signal(other) => panic!("nothing else happened, but {other:?}"),
        });
    }
    seen
}

/// On one thread: a link that is held up must not keep the thread busy, or the subscriber would
/// never read.
#[tokio::test]
async fn a_blocking_subscriber_holds_the_server_back_and_then_gets_everything() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let mux = client.mux_with({
        let mut config = MuxConfig::default();
        config.read_ahead = 64 << 10;
        config
    });
    let small = buffer(35_000, OverflowPolicy::Block);
    let mut slow = mux.subscribe(["big"]).buffer(small).await.unwrap();
    publish_big(&client, "big", 0..2_000, TEN_KB).await;
    let held_back = async || server.info("clients").await["client_recent_max_output_buffer"] != "0";
    wait::until(SOON, "the server cannot get rid of its messages", held_back).await;
    let stats = mux.stats();
    assert!(stats.received < 1_000, "reading stopped: {stats:?}");
    assert!(stats.queued <= 4, "the buffer is kept: {stats:?}");
    for wanted in 0..2_000 {
        match event(&mut slow).await {
            Event::Message(message) => assert_eq!(number(&message), wanted),
            Event::Signal(signal) => panic!("nothing was lost, but {signal:?}"),
        }
    }
    assert_eq!((mux.stats().received, mux.stats().dropped), (2_000, 0));
}

/// A blocking subscriber that goes away lets the others go on.
#[tokio::test]
async fn nobody_waits_for_a_blocking_subscriber_that_is_gone() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let slow = client.mux().subscribe(["c"]).buffer(buffer(0, OverflowPolicy::Block)).await.unwrap();
    let roomy = buffer(300 * TEN_KB, OverflowPolicy::DropOldest);
    let mut quick = client.mux().subscribe(["c"]).buffer(roomy).await.unwrap();
    publish_big(&client, "c", 0..200, TEN_KB).await;
    let first = number(event(&mut quick).await.message().unwrap());
    assert_eq!(first, 0);
    drop(slow);
    let mut last = first;
    while last < 199 {
        let next = number(event(&mut quick).await.message().unwrap());
        assert_eq!(next, last + 1);
        last = next;
    }
    assert_eq!(client.mux().stats().dropped, 0);
}

async fn a_full_buffer_drops_the_oldest_and_says_so_where_they_are_missing(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let policy = buffer(100 * TEN_KB, OverflowPolicy::DropOldest);
    let mut slow = client.mux().subscribe(["c"]).buffer(policy).await.unwrap();
    publish_big(&client, "c", 0..300, TEN_KB).await;
    wait::until(SOON, "all have come", async || client.mux().stats().received == 300).await;
    let seen = contents(&mut slow).await;
    let kept = seen.len() as i64 - 1;
    assert!((90..=100).contains(&kept), "{kept} were kept");
    assert_eq!(seen[0], kept - 300, "first the notice of those that are missing");
    assert_eq!(seen[1..], (300 - kept..300).collect::<Vec<i64>>());
    assert_eq!(client.mux().stats().dropped, (300 - kept) as u64);
    publish(&client, "c", "300").await;
    assert_eq!(word(&event(&mut slow).await), "300", "there is room again");
}

async fn a_full_buffer_drops_the_newest_and_says_so_where_they_are_missing(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let policy = buffer(100 * TEN_KB, OverflowPolicy::DropNewest);
    let mut slow = client.mux().subscribe(["c"]).buffer(policy).await.unwrap();
    publish_big(&client, "c", 0..300, TEN_KB).await;
    wait::until(SOON, "all have come", async || client.mux().stats().received == 300).await;
    publish(&client, "c", "300").await;
    wait::until(SOON, "one more", async || client.mux().stats().received == 301).await;
    let seen = contents(&mut slow).await;
    let notice = seen.iter().position(|n| *n < 0).unwrap();
    assert!((90..=100).contains(&notice), "{notice} were kept");
    assert_eq!(seen[..notice], (0..notice as i64).collect::<Vec<i64>>(), "no hole up to the notice");
    // The last one is small and may have found room: then it stands behind the notice.
    match &seen[notice..] {
        [dropped] => assert_eq!(-dropped, 301 - notice as i64),
        [dropped, 300] => assert_eq!(-dropped, 300 - notice as i64),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn defect_6_signals_find_room_in_a_full_buffer() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    for policy in [OverflowPolicy::DropNewest, OverflowPolicy::DropOldest] {
        let before = client.mux().stats().received;
        let mut slow = client.mux().subscribe(["c"]).buffer(buffer(3 * TEN_KB, policy)).await.unwrap();
        publish_big(&client, "c", 0..50, TEN_KB).await;
        wait::until(SOON, "all have come", async || client.mux().stats().received == before + 50).await;
        let gaps = client.mux().stats().resumed;
        client.call::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await.unwrap();
        wait::until(SOON, "it is mended", async || client.mux().stats().resumed == gaps + 1).await;
        publish_big(&client, "c", 50..100, TEN_KB).await;
        wait::until(SOON, "more have come", async || client.mux().stats().received == before + 100).await;
        let mut words = Vec::new();
        while slow.pending() > 0 {
            words.push(word(&event(&mut slow).await));
        }
        let signals: Vec<&String> = words.iter().filter(|w| w.parse::<u64>().is_err()).collect();
        let wanted = match policy {
            OverflowPolicy::DropNewest => ["lagged", "lost", "gap", "resumed", "lagged"],
            _ => ["lagged", "lost", "gap", "resumed", "lagged"],
        };
        assert_eq!(signals, wanted, "{policy:?}: {words:?}");
        slow.unsubscribe().await.unwrap();
    }
}

async fn a_subscriber_that_the_server_cuts_off_hears_of_the_gap(flavor: Flavor) {
    let server = RedisServer::builder()
        .flavor(flavor)
        .arg("client-output-buffer-limit", "pubsub 1mb 1mb 1")
        .start()
        .await;
    let client = client(&server).await;
    let mux = client.mux_with({
        let mut config = MuxConfig::default();
        config.read_ahead = 64 << 10;
        config
    });
    let policy = buffer(10 * TEN_KB, OverflowPolicy::Block);
    let mut slow = mux.subscribe(["c"]).buffer(policy).await.unwrap();
    let count = async || publish(&client, "c", "9999").await;
    publish_big(&client, "c", 0..3_000, TEN_KB).await;
    wait::until(SOON, "the server cuts it off", async || count().await == 0).await;
    let mut seen = 0;
    let signals = loop {
        match event(&mut slow).await {
            Event::Message(message) => {
                assert_eq!(number(&message), seen, "no hole before the signal");
                seen += 1;
            }
            Event::Signal(signal) => {
                let mut names = vec![name(&signal)];
                while names.last() != Some(&"resumed") {
                    names.push(name(&super::signal(&mut slow).await));
                }
                break names;
            }
        }
    };
    assert_eq!(signals, ["lost", "gap", "resumed"]);
    assert!((10..3_000).contains(&seen), "{seen} came through before the cut");
    assert_eq!(soon(publish(&client, "c", "5000")).await, 1);
    assert_eq!(word(&event(&mut slow).await), "5000");
}

/// Kilobytes of memory that this process uses.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Messages are slices of what was read. A few small ones that wait must not keep all the rest in
/// memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_subscriber_of_little_does_not_hold_on_to_much() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let slow = client.mux().subscribe(["quiet"]).await.unwrap();
    let mut quick = client.mux().subscribe(["noise"]).await.unwrap();
    let reader = tokio::spawn(async move { while !quick.next_batch().await.is_empty() {} });
    let noise = "x".repeat(100_000);
    let mut before = 0;
    for round in 0..2_200 {
        let both = pipe()
            .then(cmd("PUBLISH").arg("quiet").arg("a small message"))
            .then(cmd("PUBLISH").arg("noise").arg(noise.as_str()));
        client.pipeline::<Vec<i64>>(both).await.unwrap();
        if round == 200 {
            before = resident();
        }
    }
    wait::until(SOON, "all have come", async || client.mux().stats().received == 4_400).await;
    let kept = slow.pending();
    let grown = resident().saturating_sub(before);
    println!("{kept} small messages wait, {grown} kB more than before");
    assert_eq!(kept, 2_200);
    assert!(grown < 64 << 10, "{grown} kB for {kept} small messages");
    client.mux().close().await;
    reader.await.unwrap();
}

/// One node's slow subscriber is cut off; subscribers at the other node lose nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_is_cut_off_harms_nobody_at_other_nodes() {
    let limited = builder(Flavor::Redis).config("client-output-buffer-limit pubsub 1mb 1mb 1");
    let cluster = start(limited.masters(2).replicas_per_master(0)).await;
    let client = connect_as_usual(&cluster).await;
    let here = channels_at(&cluster, 0, 1).await.remove(0);
    let there = channels_at(&cluster, 1, 1).await.remove(0);
    let policy = buffer(10 * TEN_KB, OverflowPolicy::Block);
    let mut slow = client.mux().subscribe_sharded([here.clone()]).buffer(policy).await.unwrap();
    let roomy = buffer(50 * TEN_KB, OverflowPolicy::Block);
    let mut quick = client.mux().subscribe_sharded([there.clone()]).buffer(roomy).await.unwrap();
    let mut heard = 0;
    while super::spublish(&client, &here, &"x".repeat(TEN_KB)).await > 0 {
        super::spublish(&client, &there, &format!("{heard} {}", "y".repeat(TEN_KB))).await;
        assert_eq!(number(&super::message(&mut quick).await), heard);
        heard += 1;
        assert!(heard < 20_000, "the server never cuts it off");
    }
    assert!(slow.pending() <= 10, "its buffer is kept: {}", slow.pending());
    assert_eq!(quick.pending(), 0);
    while name(&super::signal(&mut slow).await) != "resumed" {}
    assert_eq!(super::spublish(&client, &there, "7").await, 1);
    assert_eq!(word(&event(&mut quick).await), "7", "not even a signal");
    println!("cut off after {heard} messages");
}
