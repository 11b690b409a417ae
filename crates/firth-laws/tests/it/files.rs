//! Troubles of files: who else has the directory, what is in it, and how much room is left.

use firth_engine::facet::{
    Append, EntryKey, Expect, LeaseQuery, ProducerSeq, ReadLimit, StartPosition, Trim, TrimTo,
};
use firth_engine::{
    Content, Durability, Engine, ErrorKind, FileOptions, LeaseName, RecordId, SpaceName, Verdict,
};
use firth_laws::world::{
    self, LONG, Owner, append, dead, eventually, group, numbers, partition, read_all, retry, status,
};
use firth_testkit::{cannot_run, wait};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Files are freed in the background, by compactions that a starved machine takes its time for.
const COMPACTION: Duration = Duration::from_secs(90);

pub(super) fn fast() -> FileOptions {
    FileOptions { durability: Durability::Fast, ..FileOptions::default() }
}

pub(super) async fn open(dir: &Path) -> Engine {
    Engine::file(dir, fast()).await.unwrap()
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 10).await;
    let producer = ProducerSeq { name: world::producer(), first: 0, keep: Duration::ZERO };
    let batch = Append { producer: Some(producer), after: LONG, ..Append::new([world::numbered(77)]) };
    engine.append(&at, batch.clone()).await.unwrap();
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(6).await;
    owner.settle(&taken[0], Verdict::Ack);
    owner.settle(&taken[1], dead("broken"));
    owner.settle(&taken[2], retry(Duration::ZERO));
    owner.judge(&taken[4], Verdict::Ack).await;
    let space = SpaceName::new("settings").unwrap();
    let key = EntryKey::new(space, "colour").unwrap();
    engine.put(&key, "green".into(), Expect::Absent).await.unwrap();
    let before = (
        engine.bounds(&at).await.unwrap(),
        status(&engine, &at, &name).await,
        engine.get(&key).await.unwrap(),
    );
    let epoch = owner.hold.epoch;
    drop(owner);
    engine.close().await.unwrap();
    assert_eq!(engine.bounds(&at).await.unwrap_err().kind(), ErrorKind::Closed);

    let engine = open(dir.path()).await;
    let after = (
        engine.bounds(&at).await.unwrap(),
        status(&engine, &at, &name).await,
        engine.get(&key).await.unwrap(),
    );
    assert_eq!((after.0.last, after.0.delayed, after.2), (before.0.last, 1, before.2));
    assert_eq!((after.1.frontier, after.1.ahead, after.1.due, after.1.dead), (before.1.frontier, 1, 1, 1));
    assert!(engine.append(&at, batch).await.unwrap().duplicate, "the producer is remembered");
    let leases = engine.leases(&LeaseQuery::Names(vec![LeaseName::group(&at, &name)])).await.unwrap();
    assert!(!leases[0].is_held(), "no lease outlives the process that could hold it");
    let mut owner = Owner::new(&engine, &at, &name).await;
    assert!(owner.hold.epoch > epoch);
    assert_eq!(numbers(&owner.due(9).await), [2]);
    assert_eq!(owner.drain().await, [3, 5, 6, 7, 8, 9]);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn an_engine_that_is_only_dropped_can_be_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = {
        let engine = open(dir.path()).await;
        let at = partition(&engine).await;
        append(&engine, &at, 0, 3).await;
        at
    };
    let engine = open(dir.path()).await;
    assert_eq!(read_all(&engine, &at).await.len(), 3);
}

#[tokio::test]
async fn a_second_opener_is_told_who_has_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_crash_child"))
        .arg(dir.path())
        .args(["fast", "none", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let error = Engine::file(dir.path(), fast()).await.unwrap_err();
    let pid = child.id();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.context().contains(&format!("process {pid} (crash_child)")), "{error}");
    open(dir.path()).await.close().await.unwrap();
}

#[tokio::test]
async fn the_same_process_cannot_open_a_directory_twice() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let error = Engine::file(dir.path(), fast()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.context().contains("this process"), "{error}");
    engine.close().await.unwrap();
    open(dir.path()).await.close().await.unwrap();
}

#[tokio::test]
async fn a_newer_format_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).await.close().await.unwrap();
    let mark = dir.path().join("FORMAT");
    let ours = std::fs::read_to_string(&mark).unwrap();
    std::fs::write(&mark, "99\n").unwrap();
    let error = Engine::file(dir.path(), fast()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.context().contains("format 99"), "{error}");
    std::fs::write(&mark, "what?\n").unwrap();
    assert_eq!(Engine::file(dir.path(), fast()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    std::fs::remove_file(&mark).unwrap();
    assert_eq!(Engine::file(dir.path(), fast()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    std::fs::write(&mark, ours).unwrap();
    open(dir.path()).await.close().await.unwrap();
}

#[tokio::test]
async fn a_path_that_is_no_directory_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let error = Engine::file(&file, fast()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.context().contains("file"), "{error}");
}

pub(super) fn files_under(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_under(&path));
        } else {
            found.push(path);
        }
    }
    found
}

pub(super) fn copy(from: &Path, to: &Path) {
    for file in files_under(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(&file, &target).unwrap();
    }
}

/// Damage is either noticed or harmless: no panic, and no record ever holds anything but what was
/// sent.
#[tokio::test]
async fn damaged_files_never_give_wrong_records() {
    let original = tempfile::tempdir().unwrap();
    let engine = open(original.path()).await;
    let at = partition(&engine).await;
    for from in (0..600).step_by(100) {
        append(&engine, &at, from, from + 100).await;
    }
    engine.close().await.unwrap();
    let mut noticed = 0;
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        copy(original.path(), dir.path());
        let files: Vec<_> =
            files_under(&dir.path().join("store")).into_iter().filter(|file| used(file) > 0).collect();
        let file = &files[random.usize(..files.len())];
        flip_bit(file, random.usize(..used(file)), random.u8(..8));
        match Engine::file(dir.path(), fast()).await {
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable), "{error}");
                noticed += 1;
            }
            Ok(engine) => match engine.read(&at, RecordId::ZERO, ReadLimit::records(1000)).await {
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound), "{error}");
                    noticed += 1;
                }
                Ok(records) => {
                    assert_eq!(numbers(&records), (0..records.len() as u64).collect::<Vec<_>>());
                }
            },
        }
    }
    println!("{noticed} of 30 damages were noticed");
    assert!(noticed > 5);
}

fn flip_bit(file: &Path, position: usize, bit: u8) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position as u64).unwrap();
    byte[0] ^= 1 << bit;
    file.write_all_at(&byte, position as u64).unwrap();
}

/// How many bytes of a file are really there: a journal has a long reserve of nothing.
fn used(file: &Path) -> usize {
    use std::os::unix::fs::MetadataExt;
    let meta = file.metadata().unwrap();
    usize::try_from(meta.len().min(meta.blocks() * 512)).unwrap()
}

fn disk_usage(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    files_under(dir).iter().filter_map(|file| file.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_frees_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::file(dir.path(), FileOptions { memtable: 1 << 20, ..fast() }).await.unwrap();
    let at = partition(&engine).await;
    let payload = noise(128 << 10);
    let write = async |count: usize| {
        for _ in 0..count {
            engine.append(&at, Append::new([Content::new(payload.clone())])).await.unwrap();
        }
    };
    let tables = || disk_usage(&dir.path().join("store/keyspaces"));
    write(80).await;
    eventually("records reach the tables", async || tables() > 6 << 20).await;
    let all = Trim { to: TrimTo::Keep(0), lossy: false };
    assert_eq!(engine.trim(&at, all).await.unwrap().removed, 80);
    // No writer is left, and still the files go; what was in memory goes with a later trim.
    wait::until(COMPACTION, "the disk is freed", async || {
        engine.trim(&at, all).await.unwrap();
        tables() < 1 << 20
    })
    .await;
    write(5).await;
    assert_eq!(read_all(&engine, &at).await.len(), 5);
    assert!(engine.delete_partition(&at).await.unwrap());
    engine.close().await.unwrap();
    assert!(tables() < 1 << 20, "a deleted partition leaves nothing");
}

/// Partitions whose records lie together free the disk too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_frees_the_disk_of_small_partitions() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::file(dir.path(), FileOptions { memtable: 1 << 20, ..fast() }).await.unwrap();
    let payload = noise(64 << 10);
    let mut partitions = Vec::new();
    for _ in 0..20 {
        let at = partition(&engine).await;
        for _ in 0..6 {
            engine.append(&at, Append::new([Content::new(payload.clone())])).await.unwrap();
        }
        partitions.push(at);
    }
    let tables = || disk_usage(&dir.path().join("store/keyspaces"));
    eventually("records reach the tables", async || tables() > 4 << 20).await;
    for (n, at) in partitions.iter().enumerate() {
        if n % 3 == 0 {
            assert!(engine.delete_partition(at).await.unwrap());
        } else {
            engine.trim(at, Trim { to: TrimTo::Keep(1), lossy: false }).await.unwrap();
        }
    }
    wait::until(COMPACTION, "the disk is freed", async || tables() < 2 << 20).await;
    for (n, at) in partitions.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
        assert_eq!(read_all(&engine, at).await.len(), 1, "partition {n}");
    }
    engine.close().await.unwrap();
}

/// A partition costs a key, not a folder: otherwise a thousand of them take minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_partitions_share_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let mut partitions = Vec::new();
    for n in 0..1000 {
        let at = partition(&engine).await;
        append(&engine, &at, n, n + 2).await;
        partitions.push(at);
    }
    let folders = std::fs::read_dir(dir.path().join("store/keyspaces")).unwrap().count();
    assert!(folders < 8, "{folders} folders for 1000 partitions");
    engine.close().await.unwrap();
    let engine = open(dir.path()).await;
    for (n, at) in partitions.iter().enumerate() {
        assert_eq!(numbers(&read_all(&engine, at).await), [n as u64, n as u64 + 1]);
    }
    engine.close().await.unwrap();
}

/// A log that moves to files of its own is still one log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grown_partition_reads_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let options = || FileOptions { outgrown: 4 << 10, ..fast() };
    let engine = Engine::file(dir.path(), options()).await.unwrap();
    let at = partition(&engine).await;
    let folders = || std::fs::read_dir(dir.path().join("store/keyspaces")).unwrap().count();
    let small = folders();
    let mut count = 0;
    eventually("it gets files of its own", || {
        let engine = engine.clone();
        let at = at.clone();
        count += 20;
        async move {
            append(&engine, &at, count - 20, count).await;
            folders() > small
        }
    })
    .await;
    for _ in 0..5 {
        append(&engine, &at, count, count + 100).await;
        count += 100;
    }
    let all = read_all(&engine, &at).await;
    assert_eq!(numbers(&all), (0..count).collect::<Vec<_>>());
    engine.close().await.unwrap();
    let engine = Engine::file(dir.path(), options()).await.unwrap();
    assert_eq!(read_all(&engine, &at).await, all);
    for record in all.iter().step_by(37) {
        let after = engine.read(&at, record.id, ReadLimit::records(3)).await.unwrap();
        let expected: Vec<_> = all.iter().skip(record.id.seq as usize).take(3).cloned().collect();
        assert_eq!(after, expected);
    }
    let trim = Trim { to: TrimTo::Keep(50), lossy: false };
    engine.trim(&at, trim).await.unwrap();
    assert_eq!(read_all(&engine, &at).await, all[all.len() - 50..]);
    engine.close().await.unwrap();
}

/// A small file system of its own, unmounted at the end.
pub(super) struct Mount(PathBuf);

impl Mount {
    /// Mounts a tmpfs, or says loudly that it may not.
    pub(super) fn new(dir: &Path, options: &str) -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(dir).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(dir.to_owned()));
        }
        cannot_run("mount", "mounting a file system is not allowed here");
        None
    }

    fn remount(&self, options: &str) {
        let status =
            Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l"]).arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_read_only_disk_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(dir.path(), "size=64m") else { return };
    open(dir.path()).await.close().await.unwrap();
    mount.remount("ro");
    let error = Engine::file(dir.path(), fast()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.context().to_lowercase().contains("read-only"), "{error}");
    mount.remount("rw");
    open(dir.path()).await.close().await.unwrap();
}

/// Bytes that cannot be compressed.
pub(super) fn noise(len: usize) -> bytes::Bytes {
    let mut bytes = vec![0; len];
    fastrand::fill(&mut bytes);
    bytes.into()
}

/// Appends of 256 KiB until one is refused; answers how many were acknowledged, and the refusal.
async fn fill(engine: &Engine, at: &firth_engine::Partition) -> (u64, firth_engine::Error) {
    let payload = noise(256 << 10);
    for acknowledged in 0..1000 {
        if let Err(error) = engine.append(at, Append::new([Content::new(payload.clone())])).await {
            return (acknowledged, error);
        }
    }
    panic!("the disk never filled up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_little_room_appends_are_refused_and_everything_else_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::new(dir.path(), "size=96m") else { return };
    let filler = dir.path().join("filler");
    std::fs::write(&filler, vec![1; 40 << 20]).unwrap();
    let options = FileOptions { min_free: 24 << 20, ..FileOptions::default() };
    let engine = Engine::file(dir.path().join("data"), options).await.unwrap();
    let at = partition(&engine).await;
    let name = group("g");
    let (acknowledged, refusal) = fill(&engine, &at).await;
    assert_eq!(refusal.kind(), ErrorKind::Unavailable);
    assert!(!refusal.may_have_happened(), "a refusal is definite");
    assert!(refusal.context().contains("MiB free"), "{refusal}");
    let mut owner = Owner::new(&engine, &at, &name).await;
    let records = owner.take(acknowledged as usize).await;
    records.iter().for_each(|record| owner.settle(record, Verdict::Ack));
    owner.commit().await;
    assert_eq!(engine.renew(std::slice::from_ref(&owner.hold), LONG).await.unwrap(), [true]);
    let trim = Trim { to: TrimTo::Keep(1), lossy: false };
    assert_eq!(engine.trim(&at, trim).await.unwrap().removed, acknowledged - 1);
    std::fs::remove_file(&filler).unwrap();
    eventually("appends go on by themselves", async || {
        engine.append(&at, Append::new([Content::new("again")])).await.is_ok()
    })
    .await;
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing_acknowledged_and_heals_without_restart() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::new(dir.path(), "size=48m") else { return };
    let filler = dir.path().join("filler");
    std::fs::write(&filler, vec![1; 20 << 20]).unwrap();
    let options = FileOptions { min_free: 0, ..FileOptions::default() };
    let engine = Engine::file(dir.path().join("data"), options).await.unwrap();
    let at = partition(&engine).await;
    let (acknowledged, failure) = fill(&engine, &at).await;
    assert_eq!(failure.kind(), ErrorKind::Unavailable);
    assert!(failure.context().contains("full"), "{failure}");
    let refusal = engine.append(&at, Append::new([Content::new("x")])).await.unwrap_err();
    assert_eq!((refusal.kind(), refusal.may_have_happened()), (ErrorKind::Unavailable, false));
    assert!(refusal.context().contains("read-only"), "{refusal}");
    assert!(engine.health().unwrap_err().context().contains("full"), "readiness says so");
    let readable = read_all(&engine, &at).await.len() as u64;
    assert_eq!(readable, acknowledged, "reading goes on, and shows what was acknowledged");
    std::fs::remove_file(&filler).unwrap();
    eventually("it heals by itself", async || {
        engine.append(&at, Append::new([Content::new("healed")])).await.is_ok()
    })
    .await;
    engine.health().unwrap();
    let records = read_all(&engine, &at).await;
    let unknown = u64::from(failure.may_have_happened());
    assert!((acknowledged + 1..=acknowledged + 1 + unknown).contains(&(records.len() as u64)));
    assert_eq!(records.last().unwrap().content.payload, "healed");
    engine.create_group(&at, &group("g"), StartPosition::Start, None).await.unwrap();
    engine.close().await.unwrap();
    let engine = Engine::file(dir.path().join("data"), FileOptions { min_free: 0, ..fast() }).await.unwrap();
    assert_eq!(read_all(&engine, &at).await.len(), records.len());
    engine.close().await.unwrap();
}
