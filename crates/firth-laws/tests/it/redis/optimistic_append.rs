//! Optimistic appends: without a script while one process appends to a log, and without harm while
//! two do.

use super::{append_one, until_ok};
use firth_engine::facet::{Append, ReadLimit, Trim, TrimTo};
use firth_engine::{Content, Engine, ErrorKind, Partition, RecordId};
use firth_laws::world::{self, PATIENCE, numbers, partition, read_all};
use firth_testkit::{Direction, Flavor, Persist, Proxy, RedisServer, on_both, wait};
use std::time::Duration;

on_both!(
    appends_in_a_row_need_no_script,
    who_appends_at_the_same_time_leaves_no_hole_and_takes_no_number,
    an_append_that_is_given_up_half_way_is_there_whole_or_not_at_all,
    t06_an_append_whose_answer_was_lost_is_not_made_again,
    what_changes_the_partition_in_between_is_not_overwritten,
    a_partition_that_is_gone_is_not_brought_back,
    a_server_that_was_started_again_is_appended_to,
    without_the_rule_scripts_append,
    a_line_without_appends_gives_its_connection_back
);

async fn open(server: &RedisServer) -> Engine {
    Engine::at(&format!("{}?durability=fast", server.url().trim_end_matches('/'))).await.unwrap()
}

/// How many transactions the server has run.
async fn transactions(server: &RedisServer) -> u64 {
    let stats = server.info("commandstats").await;
    let calls = |text: &String| text.strip_prefix("calls=")?.split(',').next()?.parse().ok();
    stats.get("cmdstat_exec").and_then(calls).unwrap_or(0)
}

/// Appends one by one from this number on until some of them were transactions; the number after
/// the last one.
async fn append_in_a_burst(server: &RedisServer, engine: &Engine, at: &Partition, from: u64) -> u64 {
    let before = transactions(server).await;
    let deadline = tokio::time::Instant::now() + 3 * PATIENCE;
    for n in from.. {
        until_ok("an append", || append_one(engine, at, n)).await;
        if transactions(server).await >= before + 5 {
            return n + 1;
        }
        assert!(tokio::time::Instant::now() < deadline, "every append was a script");
    }
    unreachable!("there are enough numbers")
}

/// Whether everything up to `count` is there, in order and without holes.
async fn is_whole(engine: &Engine, at: &Partition, count: u64) {
    let records = read_all(engine, at).await;
    assert_eq!(numbers(&records), (0..count).collect::<Vec<_>>());
    is_without_holes(&records);
}

fn is_without_holes(records: &[firth_engine::Record]) {
    let seqs: Vec<u64> = records.iter().map(|record| record.id.seq).collect();
    assert_eq!(seqs, (1..=records.len() as u64).collect::<Vec<_>>());
    assert!(records.is_sorted_by_key(|record| record.id.ms));
}

async fn appends_in_a_row_need_no_script(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = open(&server).await;
    let at = partition(&engine).await;
    let mut count = append_in_a_burst(&server, &engine, &at, 0).await;
    // Many at once, of many sizes.
    for size in [1, 3, 60, 300] {
        let batch: Vec<Content> = (count..count + size).map(|n| Content::new(n.to_string())).collect();
        let ids: Vec<RecordId> = engine.append(&at, Append::new(batch)).await.unwrap().ids().collect();
        assert_eq!(ids.first().unwrap().seq, count + 1);
        assert_eq!(ids.last().unwrap().seq, count + size);
        count += size;
    }
    engine.append(&at, Append::new([Content::new(vec![b'x'; 100_000])])).await.unwrap();
    let records = read_all(&engine, &at).await;
    let (big, rest) = records.split_last().unwrap();
    assert_eq!((big.content.payload.len(), big.id.seq), (100_000, count + 1));
    assert_eq!(numbers(rest), (0..count).collect::<Vec<_>>());
    is_without_holes(&records);
    let time = server.command(&["TIME"]).await;
    let now: u64 = time.items()[0].text().parse().unwrap();
    let appended = big.id.ms / 1000;
    assert!(appended <= now + 1 && appended + PATIENCE.as_secs() >= now, "{appended} at {now}");
    engine.close().await.unwrap();
}

async fn who_appends_at_the_same_time_leaves_no_hole_and_takes_no_number(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let first = open(&server).await;
    let at = partition(&first).await;
    let count = append_in_a_burst(&server, &first, &at, 0).await;
    let mut writers = Vec::new();
    for engine in [first.clone(), first.clone(), open(&server).await, open(&server).await] {
        let server = server.addr();
        let at = at.clone();
        writers.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            for n in 0..150_u64 {
                let text = format!("{server}-{n}-{:016x}", fastrand::u64(..));
                let done = engine.append(&at, Append::new([Content::new(text.clone())])).await.unwrap();
                mine.push((done.ids().next().unwrap(), text));
                // Long enough now and then for the others to believe that they are alone.
                let pause = if n % 50 == 49 { 120 } else { fastrand::u64(..2) };
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            mine
        }));
    }
    let mut all = Vec::new();
    for writer in writers {
        let mine = writer.await.unwrap();
        assert!(mine.is_sorted(), "each one's appends are in order");
        all.extend(mine);
    }
    all.sort();
    let records = read_all(&first, &at).await;
    is_without_holes(&records);
    let text = |record: &firth_engine::Record| String::from_utf8(record.content.payload.to_vec()).unwrap();
    let found: Vec<_> = records
        .iter()
        .skip(usize::try_from(count).unwrap())
        .map(|record| (record.id, text(record)))
        .collect();
    assert_eq!(found, all);
    first.close().await.unwrap();
}

async fn an_append_that_is_given_up_half_way_is_there_whole_or_not_at_all(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = open(&server).await;
    let at = partition(&engine).await;
    let mut count = append_in_a_burst(&server, &engine, &at, 0).await;
    let before = count;
    for _ in 0..4 {
        append_in_a_burst(&server, &engine, &at, 0).await;
        for _ in 0..4 {
            let pair = [Content::new("a"), Content::new("b")];
            tokio::select! {
                biased;
                _ = engine.append(&at, Append::new(pair)) => {}
                () = yields(fastrand::usize(..8)) => {}
            }
        }
    }
    append_one(&engine, &at, 0).await.unwrap();
    let records = read_all(&engine, &at).await;
    is_without_holes(&records);
    let rest = records.iter().skip(usize::try_from(before).unwrap()).map(|r| r.content.payload.clone());
    let mut open_pair = false;
    for payload in rest {
        match &payload[..] {
            b"a" => assert!(!std::mem::replace(&mut open_pair, true), "a pair is broken"),
            b"b" => assert!(std::mem::replace(&mut open_pair, false), "a pair is broken"),
            _ => assert!(!open_pair, "something stands in the middle of a pair"),
        }
        count += 1;
    }
    assert!(!open_pair && count > before);
    engine.close().await.unwrap();
}

/// The transaction takes effect, and its answer never comes: the caller is told that it may have
/// happened, and no script makes it a second time.
async fn t06_an_append_whose_answer_was_lost_is_not_made_again(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let engine = Engine::at(&format!("{}?durability=fast", proxy.url())).await.unwrap();
    let at = partition(&engine).await;
    let mut count = 0;
    for _ in 0..3 {
        count = append_in_a_burst(&server, &engine, &at, count).await;
        let before = transactions(&server).await;
        proxy.half_open(Direction::ToClient);
        let appending = tokio::spawn({
            let engine = engine.clone();
            let at = at.clone();
            async move { append_one(&engine, &at, count).await }
        });
        let has_run = async || transactions(&server).await > before;
        wait::until(PATIENCE, "the transaction has run", has_run).await;
        proxy.heal().await;
        let error = appending.await.unwrap().unwrap_err();
        assert!(error.may_have_happened(), "{error}");
        count += 1;
        let there =
            until_ok("the engine reads", || engine.read(&at, RecordId::ZERO, ReadLimit::records(9999)));
        assert_eq!(numbers(&there.await), (0..count).collect::<Vec<_>>());
    }
    engine.close().await.unwrap();
}

async fn yields(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

async fn what_changes_the_partition_in_between_is_not_overwritten(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = open(&server).await;
    let other = open(&server).await;
    let at = partition(&engine).await;
    let mut count = 0;
    for _ in 0..3 {
        count = append_in_a_burst(&server, &engine, &at, count).await;
        let late = Append { after: Duration::from_secs(3600), ..Append::new([Content::new("late")]) };
        other.append(&at, late).await.unwrap();
        append_one(&engine, &at, count).await.unwrap();
        append_one(&other, &at, count + 1).await.unwrap();
        append_one(&engine, &at, count + 2).await.unwrap();
        count += 3;
    }
    is_whole(&engine, &at, count).await;
    assert_eq!(engine.bounds(&at).await.unwrap().delayed, 3);
    other.trim(&at, Trim { to: TrimTo::Keep(2), lossy: true }).await.unwrap();
    append_one(&engine, &at, count).await.unwrap();
    assert_eq!(numbers(&read_all(&engine, &at).await), [count - 2, count - 1, count]);
    engine.close().await.unwrap();
    other.close().await.unwrap();
}

async fn a_partition_that_is_gone_is_not_brought_back(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = open(&server).await;
    let other = open(&server).await;
    let at = partition(&engine).await;
    append_in_a_burst(&server, &engine, &at, 0).await;
    assert!(other.delete_partition(&at).await.unwrap());
    world::fails(append_one(&engine, &at, 0).await, ErrorKind::NotFound);
    assert!(server.command(&["KEYS", "firth:{*"]).await.items().is_empty());
    assert!(other.create_partition(&at).await.unwrap());
    let count = append_in_a_burst(&server, &engine, &at, 0).await;
    is_whole(&engine, &at, count).await;
    // Gone and there again before anybody looks: what was known of it holds no more.
    assert!(other.delete_partition(&at).await.unwrap() && other.create_partition(&at).await.unwrap());
    append_one(&engine, &at, 0).await.unwrap();
    is_whole(&engine, &at, 1).await;
    engine.close().await.unwrap();
    other.close().await.unwrap();
}

async fn a_server_that_was_started_again_is_appended_to(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await;
    let engine = open(&server).await;
    let at = partition(&engine).await;
    let mut count = append_in_a_burst(&server, &engine, &at, 0).await;
    server.restart().await;
    count = append_in_a_burst(&server, &engine, &at, count).await;
    let mut records = read_all(&engine, &at).await;
    is_without_holes(&records);
    // One that was answered with an unknown outcome may have been made.
    records.dedup_by_key(|record| record.content.payload.clone());
    assert_eq!(numbers(&records), (0..count).collect::<Vec<_>>());
    engine.close().await.unwrap();
}

async fn without_the_rule_scripts_append(flavor: Flavor) {
    let server = RedisServer::builder()
        .flavor(flavor)
        .acl_user("firth", "on >secret ~* &* +@all -watch")
        .start()
        .await;
    let url = format!("redis://firth:secret@{}/?durability=fast", server.addr());
    let engine = Engine::at(&url).await.unwrap();
    let at = partition(&engine).await;
    let before = transactions(&server).await;
    world::eventually("the server has refused a watch", || async {
        append_one(&engine, &at, 0).await.unwrap();
        !server.command(&["ACL", "LOG"]).await.items().is_empty()
    })
    .await;
    for n in 0..50 {
        append_one(&engine, &at, n).await.unwrap();
    }
    assert_eq!(transactions(&server).await, before);
    let denied = server.command(&["ACL", "LOG"]).await;
    assert_eq!(denied.items().len(), 1, "it was not asked for again: {denied:?}");
    is_without_holes(&read_all(&engine, &at).await);
    engine.close().await.unwrap();
}

async fn a_line_without_appends_gives_its_connection_back(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = open(&server).await;
    let at = partition(&engine).await;
    let in_transaction = async || {
        let clients = server.command(&["CLIENT", "LIST"]).await.text();
        clients.lines().filter(|client| !client.contains(" multi=-1 ")).count()
    };
    world::eventually("a transaction is open", || async {
        append_one(&engine, &at, 0).await.unwrap();
        in_transaction().await == 1
    })
    .await;
    world::eventually("the connection is gone", || async { in_transaction().await == 0 }).await;
    append_in_a_burst(&server, &engine, &at, 0).await;
    is_without_holes(&read_all(&engine, &at).await);
    engine.close().await.unwrap();
    world::eventually("all connections are gone", || async { in_transaction().await == 0 }).await;
}
