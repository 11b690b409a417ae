//! Backups: one moment of a store that goes on, restored into a new directory or not at all.

use super::files::{fast, noise, open};
use firth_engine::backup::{BackupReader, check_dir, check_file, restore};
use firth_engine::facet::{
    Append, EntryKey, Expect, LeaseQuery, NewMark, ProducerSeq, ReadLimit, StartPosition, Trim, TrimTo,
};
use firth_engine::{
    Commit, Content, Engine, Epoch, ErrorKind, FileOptions, LeaseName, Partition, SourceName, SpaceName,
    Verdict,
};
use firth_laws::world::{
    self, LONG, Owner, append, dead, fresh, group, number, numbers, partition, read_all, retry, soon, status,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How many seeds a test under load runs: 2, or 20 in nextest's profile `long`.
fn seeds() -> u64 {
    if std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "long") { 20 } else { 2 }
}

/// The whole stream of a backup.
async fn taken(engine: &Engine) -> Vec<u8> {
    let mut backup = engine.backup().await.unwrap();
    let mut stream = Vec::new();
    while let Some(block) = backup.next().await.unwrap() {
        stream.extend_from_slice(&block);
    }
    stream
}

fn restored(stream: &[u8], dir: &Path) {
    restore(stream, dir, &mut |_| {}).unwrap();
}

#[tokio::test]
async fn a_restored_store_is_the_store_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("old")).await;
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 10).await;
    let producer = ProducerSeq { name: world::producer(), first: 0, keep: Duration::ZERO };
    let batch = Append { producer: Some(producer), after: LONG, ..Append::new([world::numbered(77)]) };
    engine.append(&at, batch.clone()).await.unwrap();
    let source = SourceName::new(fresh("source")).unwrap();
    let mark = Some(NewMark { source: source.clone(), epoch: Epoch(7), upto: "abc".into() });
    engine.append(&at, Append { mark, ..Append::new([world::numbered(10)]) }).await.unwrap();
    let mut owner = Owner::new(&engine, &at, &name).await;
    let took = owner.take(6).await;
    owner.settle(&took[0], Verdict::Ack);
    owner.settle(&took[1], dead("broken"));
    owner.settle(&took[2], retry(Duration::ZERO));
    owner.judge(&took[4], Verdict::Ack).await;
    let key = EntryKey::new(SpaceName::new("settings").unwrap(), "colour").unwrap();
    engine.put(&key, "green".into(), Expect::Absent).await.unwrap();
    let before = status(&engine, &at, &name).await;
    let records = read_all(&engine, &at).await;
    let stream = taken(&engine).await;
    // What comes later is not in it.
    append(&engine, &at, 50, 60).await;
    let later = owner.hold.epoch;
    let held = (owner.hold.clone(), owner.take(1).await);
    engine.close().await.unwrap();

    let new = dir.path().join("new");
    let report = restore(&stream[..], &new, &mut |_| {}).unwrap();
    assert_eq!((report.partitions, report.records), (1, 11));
    assert!(check_dir(&new, &mut |_, _| {}).unwrap().is_sound());
    let engine = open(&new).await;
    assert_eq!(read_all(&engine, &at).await, records);
    let after = status(&engine, &at, &name).await;
    assert_eq!((after.frontier, after.ahead, after.due, after.dead), (before.frontier, 1, 1, 1));
    assert_eq!(engine.get(&key).await.unwrap().unwrap().value, "green");
    assert_eq!(engine.mark(&at, &source).await.unwrap().unwrap().upto, "abc");
    assert_eq!(engine.bounds(&at).await.unwrap().delayed, 1);
    assert!(engine.append(&at, batch).await.unwrap().duplicate, "the producer is remembered");
    let leases = engine.leases(&LeaseQuery::Names(vec![LeaseName::group(&at, &name)])).await.unwrap();
    assert!(!leases[0].is_held(), "no owner of before owns anything");
    let mut owner = Owner::new(&engine, &at, &name).await;
    assert!(owner.hold.epoch > later, "epochs go on");
    assert_eq!(owner.progress.crashes, 0, "a restore is no crash");
    let late = Commit { frontier: held.1[0].id, ..Commit::default() };
    let refused = engine.commit(&at, &name, &held.0, late).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert_eq!(numbers(&owner.due(9).await), [2]);
    assert_eq!(owner.drain().await, [3, 5, 6, 7, 8, 9, 10]);
    engine.close().await.unwrap();
}

/// A position behind the end of what was restored is told, also once the log has grown again.
#[tokio::test]
async fn a_reader_of_records_that_a_restore_took_back_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("old")).await;
    let at = partition(&engine).await;
    append(&engine, &at, 0, 3).await;
    let stream = taken(&engine).await;
    let lost = append(&engine, &at, 3, 5).await;
    engine.close().await.unwrap();
    restored(&stream, &dir.path().join("new"));
    let engine = open(&dir.path().join("new")).await;
    let read = async || engine.read(&at, lost[0], ReadLimit::records(9)).await;
    assert_eq!(read().await.unwrap_err().kind(), ErrorKind::WentBack);
    append(&engine, &at, 30, 40).await;
    assert_eq!(read().await.unwrap_err().kind(), ErrorKind::WentBack);
    engine.close().await.unwrap();
}

/// What was acknowledged for a partition.
#[derive(Clone, Copy, Default)]
struct Acked {
    appended: u64,
    settled: u64,
}

/// Load on one engine: appends, verdicts, trims, delayed messages, topics that come and go.
struct Load {
    engine: Engine,
    partitions: Vec<Partition>,
    acked: Mutex<BTreeMap<Partition, Acked>>,
    over: AtomicBool,
}

impl Load {
    fn note(&self, at: &Partition, change: impl Fn(&mut Acked)) {
        change(self.acked.lock().unwrap().entry(at.clone()).or_default());
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    async fn produce(self: Arc<Self>, at: Partition, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut next = 0;
        while !self.is_over() {
            let count = random.u64(1..20);
            let batch: Vec<Content> = (next..next + count).map(world::bulky).collect();
            self.engine.append(&at, Append::new(batch)).await.unwrap();
            next += count;
            self.note(&at, |acked| acked.appended = next);
            let delayed = Append { after: LONG, ..Append::new([world::numbered(next)]) };
            self.engine.append(&at, delayed).await.unwrap();
        }
    }

    async fn consume(self: Arc<Self>, at: Partition, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut owner = Owner::new(&self.engine, &at, &group("g")).await;
        let mut settled = 0;
        while !self.is_over() {
            for _ in 0..random.u64(1..8) {
                let Some(record) = owner.next().await else { break };
                assert_eq!(number(&record), settled);
                let verdict = if random.u8(..8) == 0 { dead("no") } else { Verdict::Ack };
                owner.settle(&record, verdict);
                settled += 1;
            }
            owner.commit().await;
            self.note(&at, |acked| acked.settled = settled);
            tokio::task::yield_now().await;
        }
    }

    /// Trims what is settled, and makes and deletes topics with records.
    async fn disturb(self: Arc<Self>, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        while !self.is_over() {
            let at = &self.partitions[random.usize(..self.partitions.len())];
            let keep = Trim { to: TrimTo::Keep(random.u64(..50)), lossy: false };
            self.engine.trim(at, keep).await.unwrap();
            let other = partition(&self.engine).await;
            append(&self.engine, &other, 0, 20).await;
            if random.bool() {
                self.engine.delete_partition(&other).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Runs load on a store while a backup is taken; answers the stream and what was acknowledged
/// before it began.
async fn under_load(dir: &Path, seed: u64) -> (Vec<u8>, BTreeMap<Partition, Acked>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let options = FileOptions { memtable: 1 << 20, outgrown: 64 << 10, ..fast() };
    let engine = Engine::file(dir, options).await.unwrap();
    let mut partitions = Vec::new();
    for _ in 0..3 {
        partitions.push(partition(&engine).await);
    }
    for at in &partitions {
        // Without a group nothing holds a trim back.
        engine.create_group(at, &group("g"), StartPosition::Start, None).await.unwrap();
    }
    let (acked, over) = (Mutex::default(), AtomicBool::new(false));
    let load = Arc::new(Load { engine: engine.clone(), partitions, acked, over });
    let mut tasks = tokio::task::JoinSet::new();
    for at in &load.partitions {
        tasks.spawn(load.clone().produce(at.clone(), random.u64(..)));
        tasks.spawn(load.clone().consume(at.clone(), random.u64(..)));
    }
    tasks.spawn(load.clone().disturb(random.u64(..)));
    let wanted = random.u64(30..150);
    world::eventually("there is load", async || {
        let acked = load.acked.lock().unwrap();
        acked.len() == 3 && acked.values().all(|acked| acked.appended > wanted && acked.settled > wanted / 2)
    })
    .await;
    let before = load.acked.lock().unwrap().clone();
    let mut backup = engine.backup().await.unwrap();
    let mut stream = Vec::new();
    while let Some(block) = backup.next().await.unwrap() {
        stream.extend_from_slice(&block);
        // The load goes on between the pieces, until something more is stored.
        let acked = load.acked.lock().unwrap()[&load.partitions[0]].appended;
        if random.u8(..4) == 0 {
            let moved = || load.acked.lock().unwrap()[&load.partitions[0]].appended > acked + 20;
            world::eventually("the load goes on", async || moved()).await;
        }
    }
    load.over.store(true, Ordering::Release);
    soon("the load ends", tasks.join_all()).await;
    drop(load);
    engine.close().await.unwrap();
    (stream, before)
}

/// The restored store has everything acknowledged before the backup began, in order, once.
async fn holds(dir: &Path, before: &BTreeMap<Partition, Acked>) {
    let engine = open(dir).await;
    for (at, acked) in before {
        let bounds = engine.bounds(at).await.unwrap();
        let seen = numbers(&read_all(&engine, at).await);
        let expected: Vec<u64> = (bounds.trimmed.seq..bounds.last.seq).collect();
        assert_eq!(seen, expected, "{at}");
        assert!(bounds.last.seq >= acked.appended, "{at}: {} of {}", bounds.last.seq, acked.appended);
        let settled = status(&engine, at, &group("g")).await.frontier.seq;
        assert!(settled >= acked.settled, "{at}: {settled} of {}", acked.settled);
        assert!(bounds.trimmed.seq <= settled, "{at}: what is not settled is not trimmed");
        let mut owner = Owner::new(&engine, at, &group("g")).await;
        assert_eq!(owner.drain().await, (settled..bounds.last.seq).collect::<Vec<_>>(), "{at}");
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_has_everything_acknowledged_before_it_began() {
    for seed in 0..seeds() {
        let dir = tempfile::tempdir().unwrap();
        let (stream, before) = under_load(&dir.path().join("old"), seed).await;
        let new = dir.path().join("new");
        restored(&stream, &new);
        let report = check_dir(&new, &mut |_, _| {}).unwrap();
        assert!(report.is_sound(), "seed {seed}: {report:?}");
        let of_file = check_file(&stream[..], &mut |_| {}).unwrap();
        assert!(of_file.is_sound() && of_file.records == report.records, "{of_file:?} {report:?}");
        holds(&new, &before).await;
        assert!(check_dir(&dir.path().join("old"), &mut |_, _| {}).unwrap().is_sound());
    }
}

#[tokio::test]
async fn one_backup_at_a_time_is_taken_and_one_that_is_dropped_ends() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let at = partition(&engine).await;
    append(&engine, &at, 0, 3).await;
    let mut first = engine.backup().await.unwrap();
    first.next().await.unwrap().unwrap();
    assert_eq!(engine.backup().await.unwrap_err().kind(), ErrorKind::Overloaded);
    drop(first);
    assert!(!taken(&engine).await.is_empty());
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "nothing of a backup is left: {names:?}");
    let memory = Engine::memory().backup().await.unwrap_err();
    assert_eq!(memory.kind(), ErrorKind::Unsupported);
    engine.close().await.unwrap();
}

/// Records that are trimmed, and topics that are deleted, while a backup runs are in it: it shows
/// the moment before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_removed_after_the_state_was_read_is_still_there() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileOptions { memtable: 1 << 20, outgrown: 4 << 10, ..fast() };
    let engine = Engine::file(dir.path().join("old"), options).await.unwrap();
    let (trimmed, gone) = (partition(&engine).await, partition(&engine).await);
    for at in [&trimmed, &gone] {
        for _ in 0..100 {
            engine.append(at, Append::new([Content::new(noise(32 << 10))])).await.unwrap();
        }
    }
    let mut backup = engine.backup().await.unwrap();
    let mut reader = BackupReader::new();
    let mut stream = Vec::new();
    while reader.progress().plan.is_none() {
        let block = backup.next().await.unwrap().unwrap();
        reader.push(&block);
        while reader.block().unwrap().is_some() {}
        stream.extend_from_slice(&block);
    }
    engine.trim(&trimmed, Trim { to: TrimTo::Keep(0), lossy: true }).await.unwrap();
    engine.delete_partition(&gone).await.unwrap();
    // Longer than the janitor takes to remove files.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    while let Some(block) = backup.next().await.unwrap() {
        stream.extend_from_slice(&block);
    }
    drop(backup);
    let tables = dir.path().join("old/store/keyspaces");
    let size = || {
        super::files::files_under(&tables)
            .iter()
            .map(|file| file.metadata().map_or(0, |it| it.len()))
            .sum::<u64>()
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(90);
    while size() > 3 << 20 {
        assert!(std::time::Instant::now() < deadline, "{} bytes are never freed", size());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    engine.close().await.unwrap();
    let new = dir.path().join("new");
    restored(&stream, &new);
    let engine = open(&new).await;
    for at in [&trimmed, &gone] {
        assert_eq!(read_all(&engine, at).await.len(), 100, "{at}");
    }
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_damaged_backup_is_refused_with_the_place_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("old")).await;
    let at = partition(&engine).await;
    for n in 0..40 {
        append(&engine, &at, n * 10, n * 10 + 10).await;
        engine.append(&at, Append::new([Content::new(noise(20_000))])).await.unwrap();
    }
    let stream = taken(&engine).await;
    engine.close().await.unwrap();
    let new = dir.path().join("new");
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..60 {
        let mut damaged = stream.clone();
        match round % 3 {
            0 => damaged.truncate(random.usize(..stream.len())),
            1 => damaged[random.usize(..stream.len())] ^= 1 << random.u8(..8),
            _ => {
                let from = random.usize(..stream.len() - 600);
                damaged.drain(from..from + random.usize(1..600));
            }
        }
        let error = restore(&damaged[..], &new, &mut |_| {}).unwrap_err();
        let is_told = error.context().contains("byte") || error.kind() == ErrorKind::Invalid;
        assert!(is_told, "round {round}: {error}");
        assert!(check_file(&damaged[..], &mut |_| {}).is_err(), "round {round}");
        let left = std::fs::read_dir(&new).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["firth.lock"], "round {round}");
    }
    restored(&stream, &new);
    let again = restore(&stream[..], &new, &mut |_| {}).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again}");
    let engine = open(&new).await;
    assert_eq!(read_all(&engine, &at).await.len(), 440);
    let again = restore(&stream[..], &new, &mut |_| {}).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again}");
    engine.close().await.unwrap();
}

/// A restore that was cut short is never taken for an empty store.
#[tokio::test]
async fn a_half_made_restore_is_told_and_the_next_one_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("old")).await;
    let at = partition(&engine).await;
    append(&engine, &at, 0, 5).await;
    let stream = taken(&engine).await;
    engine.close().await.unwrap();
    let new = dir.path().join("new");
    std::fs::create_dir_all(new.join("store.restoring/keyspaces")).unwrap();
    let error = Engine::file(&new, fast()).await.unwrap_err();
    assert!(error.context().contains("firth restore"), "{error}");
    restored(&stream, &new);
    let engine = open(&new).await;
    assert_eq!(numbers(&read_all(&engine, &at).await), [0, 1, 2, 3, 4]);
    engine.close().await.unwrap();
}
