//! Reading at both ends of a log: waiting for what comes next, and going through a backlog in small
//! steps.

use super::append_one;
use firth_engine::facet::{Append, ReadLimit};
use firth_engine::{Content, Engine, Partition, Record, RecordId};
use firth_laws::world::{PATIENCE, partition, soon};
use firth_testkit::{Flavor, RedisServer, on_both};

on_both!(
    who_waits_at_the_end_gets_what_is_appended_next,
    who_waits_gets_all_of_an_append_that_there_is_room_for,
    a_wait_without_records_ends_and_leaves_others_alone,
    a_wait_that_is_cut_off_says_so_and_nothing_is_lost,
    small_reads_of_a_backlog_fetch_little_more_than_they_take
);

const MAX: ReadLimit = ReadLimit::records(100);

async fn two(server: &RedisServer) -> (Engine, Engine, Partition) {
    let (reader, writer) =
        (Engine::at(&server.url()).await.unwrap(), Engine::at(&server.url()).await.unwrap());
    let at = partition(&writer).await;
    append_one(&writer, &at, 0).await.unwrap();
    (reader, writer, at)
}

/// The end of the log. Reading it is what makes a wait possible: then the sizes are known.
async fn end(reader: &Engine, at: &Partition) -> RecordId {
    reader.read(at, RecordId::ZERO, MAX).await.unwrap().last().expect("there is a record").id
}

fn texts(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| String::from_utf8(record.content.payload.to_vec()).unwrap()).collect()
}

type Wait = tokio::task::JoinHandle<firth_engine::Result<Option<Vec<Record>>>>;

/// A wait at the end of the log that the server holds. What is known of the sizes soon grows old,
/// so it may take more than one try.
async fn wait_at(server: &RedisServer, reader: &Engine, at: &Partition, last: RecordId) -> Wait {
    loop {
        end(reader, at).await;
        let wait = {
            let reader = reader.clone();
            let at = at.clone();
            tokio::spawn(async move { reader.tail(&at, last, MAX).await })
        };
        firth_testkit::wait::until(PATIENCE, "a read waits", async || {
            let clients = server.info("clients").await;
            wait.is_finished() || clients.get("blocked_clients").is_some_and(|count| count != "0")
        })
        .await;
        if !wait.is_finished() {
            return wait;
        }
    }
}

async fn who_waits_at_the_end_gets_what_is_appended_next(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let (reader, writer, at) = two(&server).await;
    let mut last = end(&reader, &at).await;
    let mut waited = Vec::new();
    // A wait lasts a second: on a starved machine some end before the append.
    for n in 1.. {
        let wait = wait_at(&server, &reader, &at, last).await;
        append_one(&writer, &at, n).await.unwrap();
        waited = soon("the wait", wait).await.unwrap().unwrap().unwrap_or_default();
        if !waited.is_empty() {
            assert_eq!(texts(&waited), [n.to_string()]);
            break;
        }
        last = end(&reader, &at).await;
    }
    assert_eq!(waited[0].id.seq, last.seq + 1);
    // What is there already comes at once.
    let mut at_once = None;
    while at_once.is_none() {
        end(&reader, &at).await;
        at_once = soon("what is there", reader.tail(&at, RecordId::ZERO, MAX)).await.unwrap();
    }
    assert_eq!(texts(&at_once.unwrap())[0], "0");
    reader.close().await.unwrap();
    writer.close().await.unwrap();
}

/// Otherwise a reader that keeps up would go through large appends in many small steps, and slow
/// down everyone.
async fn who_waits_gets_all_of_an_append_that_there_is_room_for(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let (reader, writer, at) = two(&server).await;
    let last = end(&reader, &at).await;
    let contents = vec![Content::new(vec![b'x'; 300]); 90];
    writer.append(&at, Append::new(contents)).await.unwrap();
    let mut waited = None;
    while waited.is_none() {
        end(&reader, &at).await;
        waited = soon("what was appended", reader.tail(&at, last, MAX)).await.unwrap();
    }
    assert_eq!(waited.unwrap().len(), 90);
    reader.close().await.unwrap();
    writer.close().await.unwrap();
}

async fn a_wait_without_records_ends_and_leaves_others_alone(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let (reader, writer, at) = two(&server).await;
    let last = end(&reader, &at).await;
    let wait = wait_at(&server, &reader, &at, last).await;
    // The connection of everybody else is not held up.
    assert_eq!(texts(&reader.read(&at, RecordId::ZERO, MAX).await.unwrap()), ["0"]);
    assert_eq!(soon("the end of the wait", wait).await.unwrap().unwrap().as_deref(), Some(&[][..]));
    reader.close().await.unwrap();
    writer.close().await.unwrap();
}

async fn a_wait_that_is_cut_off_says_so_and_nothing_is_lost(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let (reader, writer, at) = two(&server).await;
    let last = end(&reader, &at).await;
    let wait = wait_at(&server, &reader, &at, last).await;
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let cut = soon("the end of the wait", wait).await.unwrap().unwrap();
    assert!(cut.is_none_or(|records| records.is_empty()), "nothing was there");
    super::until_ok("an append", || append_one(&writer, &at, 1)).await;
    let found = super::until_ok("a read", || reader.read(&at, last, MAX)).await;
    assert!(texts(&found).iter().all(|text| text == "1") && !found.is_empty());
    reader.close().await.unwrap();
    writer.close().await.unwrap();
}

/// Entries hold many records; how many, a reader must learn also when it has room for few of them.
/// Else it asks for more and more.
async fn small_reads_of_a_backlog_fetch_little_more_than_they_take(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let payload = vec![b'x'; 200];
    for _ in 0..40 {
        let records: Vec<_> = (0..200).map(|_| Content::new(payload.clone())).collect();
        engine.append(&at, Append::new(records)).await.unwrap();
    }
    let sent = async || server.info("stats").await["total_net_output_bytes"].parse::<u64>().unwrap();
    let before = sent().await;
    let mut after = RecordId::ZERO;
    let mut bytes = 0;
    loop {
        let records = engine.read(&at, after, ReadLimit::records(50)).await.unwrap();
        let Some(last) = records.last() else { break };
        after = last.id;
        bytes += records.iter().map(|record| record.content.payload.len() as u64).sum::<u64>();
    }
    let fetched = sent().await - before;
    assert_eq!((after.seq, bytes), (8000, 8000 * 200));
    assert!(fetched < 3 * bytes, "{fetched} bytes for {bytes}");
    engine.close().await.unwrap();
}
