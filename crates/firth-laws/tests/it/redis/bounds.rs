//! Steps that touch many due records: how many commands they run on the server, whose only thread
//! they occupy.

use firth_engine::facet::{Append, Replay, Reset, StartPosition};
use firth_engine::limits::MAX_DUE;
use firth_engine::{
    Commit, Content, Dead, Engine, ErrorKind, GroupName, Partition, RecordId, Retry, Verdict,
};
use firth_laws::world::{Owner, append, fails, group, number, partition, retry, status};
use firth_testkit::{Flavor, RedisServer, Reply, on_both};
use std::time::Duration;

on_both!(
    q17_a_page_of_pending_records_costs_the_same_however_many_are_due,
    q17_a_commit_of_half_of_each_retry_batch_runs_few_commands,
    q17_a_reset_to_before_all_due_records_runs_few_commands,
    q17_a_reset_into_due_records_works_in_bounded_steps,
    q17_a_reset_that_is_cut_off_leaves_each_record_in_one_place,
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
    // The page has 4 096 numbers, but the first 100 batches of retries have enough.
    assert!(costs[0] == costs[1] && costs[0] < 10, "{costs:?}");
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

/// How often scripts were called.
async fn script_calls(server: &RedisServer) -> i64 {
    let stats = server.command(&["INFO", "commandstats"]).await.text();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

async fn q17_a_reset_into_due_records_works_in_bounded_steps(flavor: Flavor) {
    let mut costs = Vec::new();
    for count in [3000, 9000] {
        let (server, engine, at, name) = start(flavor).await;
        failed(&engine, &at, &name, count, 1).await;
        let back = StartPosition::After(engine.pending(&at, &name, RecordId::ZERO, 10).await.unwrap()[9].id);
        let before = (script_calls(&server).await, commands(&server).await);
        engine.reset(&at, &name, Reset { to: back, drop_due: false }, None).await.unwrap();
        let steps = script_calls(&server).await - before.0;
        costs.push((steps, (commands(&server).await - before.1) / steps));
        let now = status(&engine, &at, &name).await;
        assert_eq!((now.due, now.waiting), (10, count - 10));
        engine.close().await.unwrap();
    }
    let [(few, small), (many, large)] = costs[..] else { panic!("two resets") };
    // One step reads 100 batches of retries in a command: its own 512, and those of one page.
    assert!(few > 5 && many >= 2 * few, "{costs:?}");
    assert!(small < 60 && large < 60, "{costs:?}");
}

/// Runs the first step of the last reset again, on another group.
async fn reset_by_one_step(server: &RedisServer, of: &str, on: &str) {
    let log = server.command(&["SLOWLOG", "GET", "-1"]).await;
    let calls = log.items().iter().map(|entry| entry.items()[3].items().iter().map(Reply::text));
    let mut call: Vec<String> = calls.map(Vec::from_iter).find(|call| call[0] == "EVALSHA").unwrap();
    for argument in &mut call[3..] {
        if let Some(stem) = argument.strip_suffix(of) {
            *argument = format!("{stem}{on}");
        }
    }
    let answer = server.order(&call).await;
    assert_eq!(answer.items()[1].int(), 1, "there is more to do: {answer:?}");
}

async fn q17_a_reset_that_is_cut_off_leaves_each_record_in_one_place(flavor: Flavor) {
    for first_is_open in [false, true] {
        let (server, engine, at, name) = start(flavor).await;
        let twin = group("twin");
        let mut ids = Vec::new();
        for name in [&name, &twin] {
            let mut owner = Owner::new(&engine, &at, name).await;
            for from in (0..3000).step_by(750) {
                if *name != twin {
                    ids.extend(append(&engine, &at, from, from + 750).await);
                }
                for record in owner.take(750).await {
                    let number = number(&record);
                    let reason = (number % 700).to_string().into();
                    let keep = number % 5 > 2;
                    match number {
                        0 if first_is_open => {}
                        _ if number.is_multiple_of(5) => owner.settle(&record, Verdict::Ack),
                        _ => owner.settle(&record, Verdict::Retry { after: Duration::ZERO, reason, keep }),
                    }
                }
                owner.commit().await;
            }
        }
        server.order(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await;
        let back = Reset { to: StartPosition::After(ids[100]), drop_due: false };
        engine.reset(&at, &twin, back, None).await.unwrap();
        reset_by_one_step(&server, "twin", "g").await;

        let mut due = Vec::new();
        while let page =
            engine.pending(&at, &name, due.last().copied().unwrap_or_default(), 999).await.unwrap()
            && !page.is_empty()
        {
            due.extend(page.into_iter().map(|pending| pending.id));
        }
        let now = status(&engine, &at, &name).await;
        assert_eq!(now.due, due.len() as u64);
        let mut owner = Owner::new(&engine, &at, &name).await;
        let mut waiting = Vec::new();
        while let Some(record) = owner.next().await {
            waiting.push(record.id);
            owner.settle(&record, Verdict::Ack);
            if waiting.len().is_multiple_of(500) {
                owner.commit().await;
            }
        }
        assert_eq!(now.waiting, waiting.len() as u64);
        assert!(due.len() > 500 && waiting.len() > 500, "{} due, {} wait", due.len(), waiting.len());
        let is_done = |(number, id): (usize, &RecordId)| {
            let is_open = due.contains(id) || waiting.contains(id);
            assert!(!(due.contains(id) && waiting.contains(id)), "{number} is in two places");
            let was_done = number.is_multiple_of(5) && !(first_is_open && number == 0);
            assert!(is_open || was_done, "{number} is lost");
            !is_open
        };
        let done = ids.iter().enumerate().filter(|one| is_done(*one)).count();
        assert_eq!(done + due.len() + waiting.len(), ids.len());
        engine.close().await.unwrap();
    }
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
