//! Steps that touch many due records: how many commands they run on the server, whose only thread
//! they occupy.

use firth_engine::facet::{Append, Replay, Reset, StartPosition};
use firth_engine::limits::MAX_DUE;
use firth_engine::{
    Commit, Content, Dead, Engine, ErrorKind, GroupName, Partition, RecordId, Retry, Verdict,
};
use firth_laws::world::{Owner, append, fails, group, partition, retry, status};
use firth_testkit::{Flavor, RedisServer, on_both};
use std::time::Duration;

on_both!(
    q17_a_page_of_pending_records_costs_the_same_however_many_are_due,
    q17_a_commit_of_half_of_each_retry_batch_runs_few_commands,
    q17_a_reset_to_before_all_due_records_runs_few_commands,
    a_group_with_as_many_due_records_as_may_be_takes_no_more,
    a_look_at_large_due_records_is_bounded_in_bytes,
);

/// Commands that scripts run on keys, so far. Nothing but these steps uses them.
async fn commands(server: &RedisServer) -> i64 {
    let stats = server.command(&["INFO", "commandstats"]).await.text();
    let names = ["zadd", "zrem", "zscore", "zmscore", "zrangebyscore", "hmget", "hset", "hdel", "unlink"];
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        names.contains(&name).then(|| rest.split(',').next()?.parse::<i64>().ok())?
    };
    stats.lines().filter_map(calls).sum()
}

/// An owner with records that failed, in batches of retries of `size` records each.
async fn failed(engine: &Engine, at: &Partition, name: &GroupName, count: u64, size: u64) -> Owner {
    let mut owner = Owner::new(engine, at, name).await;
    for from in (0..count).step_by(1000) {
        append(engine, at, from, (from + 1000).min(count)).await;
        for record in owner.take(1000.min((count - from) as usize)).await {
            let reason = (record.id.seq / size).to_string().into();
            owner.settle(&record, Verdict::Retry { after: Duration::ZERO, reason, keep: false });
        }
        owner.commit().await;
    }
    owner
}

async fn start(flavor: Flavor) -> (RedisServer, Engine, Partition, GroupName) {
    let server = RedisServer::builder().flavor(flavor).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    (server, engine, at, group("g"))
}

async fn q17_a_page_of_pending_records_costs_the_same_however_many_are_due(flavor: Flavor) {
    let (server, engine, at, name) = start(flavor).await;
    let mut owner = failed(&engine, &at, &name, 5000, 1).await;
    let mut costs = Vec::new();
    for _ in 0..2 {
        let before = commands(&server).await;
        assert_eq!(engine.pending(&at, &name, RecordId::ZERO, 10).await.unwrap().len(), 10);
        costs.push(commands(&server).await - before);
        append(&engine, &at, 0, 1000).await;
        for record in owner.take(1000).await {
            let reason = record.id.to_string().into();
            owner.settle(&record, Verdict::Retry { after: Duration::ZERO, reason, keep: false });
        }
        owner.commit().await;
    }
    // One page of 4 096 numbers, 100 batches of retries in a command.
    assert!(costs[0] == costs[1] && costs[0] < 60, "{costs:?}");
    engine.close().await.unwrap();
}

async fn q17_a_commit_of_half_of_each_retry_batch_runs_few_commands(flavor: Flavor) {
    let (server, engine, at, name) = start(flavor).await;
    let mut owner = failed(&engine, &at, &name, 1000, 2).await;
    let mut taken = owner.due(512).await;
    taken.extend(owner.due(512).await);
    for record in taken.iter().filter(|record| record.id.seq % 2 == 0) {
        owner.settle(record, Verdict::Ack);
    }
    let before = commands(&server).await;
    owner.commit().await;
    let cost = commands(&server).await - before;
    assert!(cost < 40, "{cost} commands for {} verdicts", taken.len() / 2);
    assert_eq!(status(&engine, &at, &name).await.due, 500);
    engine.close().await.unwrap();
}

async fn q17_a_reset_to_before_all_due_records_runs_few_commands(flavor: Flavor) {
    let (server, engine, at, name) = start(flavor).await;
    failed(&engine, &at, &name, 3000, 1).await;
    let before = commands(&server).await;
    let reset = Reset { to: StartPosition::Start, drop_due: false };
    engine.reset(&at, &name, reset, None).await.unwrap();
    let cost = commands(&server).await - before;
    assert!(cost < 20, "{cost} commands");
    let status = status(&engine, &at, &name).await;
    assert_eq!((status.due, status.waiting), (0, 3000));
    engine.close().await.unwrap();
}

/// Retries of records that are due already, and all other verdicts, go on.
async fn a_group_with_as_many_due_records_as_may_be_takes_no_more(flavor: Flavor) {
    let (_server, engine, at, name) = start(flavor).await;
    let mut owner = failed(&engine, &at, &name, MAX_DUE - 1000, 1_000_000).await;
    append(&engine, &at, 0, 1000).await;
    append(&engine, &at, 1000, 1002).await;
    let records = owner.take(1002).await;
    let later = || Verdict::Retry { after: Duration::from_secs(3600), reason: "".into(), keep: false };
    records[..1000].iter().for_each(|record| owner.settle(record, later()));
    owner.commit().await;
    assert_eq!(status(&engine, &at, &name).await.due, MAX_DUE);
    let retry = |id| Retry { id, after: Duration::ZERO, reason: "".into(), kept: None };
    let [first, second] = [records[1000].id, records[1001].id];
    fails(
        owner.send(Commit { retries: vec![retry(first)], ..Commit::up_to(first) }).await,
        ErrorKind::Overloaded,
    );
    let due = owner.due(2).await;
    due.iter().for_each(|record| owner.settle(record, later()));
    owner.commit().await;
    assert_eq!(status(&engine, &at, &name).await.due, MAX_DUE);
    let dead = Dead { record: records[1000].clone(), reason: "no".into() };
    owner.send(Commit { dead: vec![dead], ..Commit::up_to(first) }).await.unwrap();
    // One leaves, and there is room for one.
    let done = owner.due(1).await.remove(0).id;
    owner
        .send(Commit { done: vec![done], retries: vec![retry(second)], ..Commit::up_to(second) })
        .await
        .unwrap();
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.due, now.dead, now.waiting), (MAX_DUE, 1, 0));
    // Letters that would come again wait until there is room.
    let replayed = engine.replay(&at, &name, &[first], Replay::Group).await;
    fails(replayed, ErrorKind::Overloaded);
    engine.close().await.unwrap();
}

async fn a_look_at_large_due_records_is_bounded_in_bytes(flavor: Flavor) {
    let (_server, engine, at, name) = start(flavor).await;
    for _ in 0..12 {
        engine.append(&at, Append::new([Content::new(vec![7; 1 << 20])])).await.unwrap();
    }
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(12).await {
        owner.settle(&record, retry(Duration::ZERO));
    }
    owner.commit().await;
    let mut looks = Vec::new();
    while looks.iter().sum::<usize>() < 12 {
        looks.push(owner.due(100).await.len());
    }
    assert!(looks.iter().all(|count| (1..=9).contains(count)), "{looks:?} MiB at once");
    engine.close().await.unwrap();
}
