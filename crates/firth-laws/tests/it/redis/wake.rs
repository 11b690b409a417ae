//! Waking: pushes at once, the poll when pushes are lost, and quiet when nothing happens.

use super::{append_one, until_ok};
use firth_engine::{Engine, HintKey, Partition, TopicName};
use firth_laws::world::{fresh, partition, soon};
use firth_testkit::{Flavor, Proxy, RedisServer, on_both};
use std::time::{Duration, Instant};

on_both!(
    a_waiting_reader_is_woken_at_once_by_another_process,
    q18_a_clock_that_is_kept_hides_no_append,
    a_lost_connection_does_not_lose_the_wake_up,
    many_waiting_partitions_are_quiet
);

async fn a_waiting_reader_is_woken_at_once_by_another_process(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let (reader, writer) =
        (Engine::at(&server.url()).await.unwrap(), Engine::at(&server.url()).await.unwrap());
    let at = partition(&writer).await;
    let mut hint = reader.hint(HintKey::Log(at.clone()));
    soon("the first look", hint.wait()).await;
    let mut slow = 0;
    for n in 0..40 {
        let waiting = tokio::spawn(async move {
            hint.wait().await;
            (hint, Instant::now())
        });
        // Long enough to be armed: this is about a reader that sleeps.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let start = Instant::now();
        append_one(&writer, &at, n).await.unwrap();
        let woken;
        (hint, woken) = soon("the wake-up", waiting).await.unwrap();
        slow += u32::from(woken.saturating_duration_since(start) > Duration::from_millis(200));
    }
    assert!(slow <= 4, "{slow} of 40 wake-ups came by the poll");
    reader.close().await.unwrap();
    writer.close().await.unwrap();
}

/// Keeping the clock changes the key that waiters watch, but not the version in it.
async fn q18_a_clock_that_is_kept_hides_no_append(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let key = server.command(&["KEYS", "firth:{*:p"]).await.items()[0].text();
    let mut hint = engine.hint(HintKey::Log(at.clone()));
    soon("the first look", hint.wait()).await;
    let mut slow = 0;
    for n in 0..4 {
        let mut waiting = tokio::spawn(async move {
            hint.wait().await;
            hint
        });
        // Long enough to be armed, and to pass the extra look of the turn before.
        while let Ok(done) = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await {
            let mut again = done.unwrap();
            waiting = tokio::spawn(async move {
                again.wait().await;
                again
            });
        }
        server.order(&["HSET", &key, "c", &format!("0 {n}")]).await;
        let mut woken = soon("the push of the clock", waiting).await.unwrap();
        append_one(&engine, &at, n).await.unwrap();
        let start = Instant::now();
        woken.wait().await;
        slow += u32::from(start.elapsed() > Duration::from_secs(3));
        hint = woken;
    }
    assert!(slow <= 1, "{slow} of 4 appends were hidden until the fallback");
    engine.close().await.unwrap();
}

async fn a_lost_connection_does_not_lose_the_wake_up(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let reader = Engine::at(&proxy.url()).await.unwrap();
    let writer = Engine::at(&server.url()).await.unwrap();
    let at = partition(&writer).await;
    let mut hint = reader.hint(HintKey::Log(at.clone()));
    soon("the first look", hint.wait()).await;
    for n in 0..3 {
        let waiting = tokio::spawn(async move {
            hint.wait().await;
            hint
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxy.cut().await;
        append_one(&writer, &at, n).await.unwrap();
        let start = Instant::now();
        hint = soon("the wake-up after a loss", waiting).await.unwrap();
        assert!(
            start.elapsed() < Duration::from_secs(4),
            "before the fallback of the hint: {:?}",
            start.elapsed()
        );
        until_ok("the reader is back", || reader.bounds(&at)).await;
    }
    reader.close().await.unwrap();
    writer.close().await.unwrap();
}

async fn many_waiting_partitions_are_quiet(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let topic = TopicName::new(fresh("topic")).unwrap();
    let mut waiting = Vec::new();
    for index in 0..64 {
        let at = Partition::new(topic.clone(), index);
        engine.create_partition(&at).await.unwrap();
        let mut hint = engine.hint(HintKey::Log(at));
        soon("the first look", hint.wait()).await;
        waiting.push(tokio::spawn(async move { hint.wait().await }));
    }
    let calls =
        async || server.info("stats").await["total_commands_processed"].trim().parse::<u64>().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = calls().await;
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let per_second = (calls().await - before) as f64 / start.elapsed().as_secs_f64();
    assert!(per_second < 64.0 * 2.0 * 2.0, "{per_second} commands a second while nothing happens");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    engine.close().await.unwrap();
}
