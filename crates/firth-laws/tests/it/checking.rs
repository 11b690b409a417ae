//! Checks of stores that no process has open: what is damaged is counted, and can be set aside.

use super::damage::largest_table;
use super::files::{fast, noise, open};
use firth_engine::backup::{check_dir, restore, set_aside};
use firth_engine::facet::{Append, ReadLimit};
use firth_engine::{Content, Engine, ErrorKind, FileOptions, Partition, RecordId, Verdict};
use firth_laws::world::{Owner, append, dead, eventually, group, numbers, partition, read_all, status};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A store with a partition that has damage in the middle of its tables, another one that is whole,
/// and a group on each. Answers them with the number of records of the damaged one.
async fn damaged_store(dir: &Path, outgrown: u64) -> (Partition, Partition, u64) {
    let options = FileOptions { memtable: 1 << 20, outgrown, ..fast() };
    let engine = Engine::file(dir, options).await.unwrap();
    let (hurt, whole) = (partition(&engine).await, partition(&engine).await);
    append(&engine, &whole, 0, 30).await;
    let count = std::cell::Cell::new(0);
    eventually("records reach a table", async || {
        let batch: Vec<_> = (0..20).map(|_| Content::new(noise(2 << 10))).collect();
        count.set(count.get() + engine.append(&hurt, Append::new(batch)).await.unwrap().count);
        largest_table(dir).is_some_and(|(size, _)| size > 512 << 10)
    })
    .await;
    for at in [&hurt, &whole] {
        let mut owner = Owner::new(&engine, at, &group("g")).await;
        let took = owner.take(3).await;
        owner.settle(&took[0], Verdict::Ack);
        owner.judge(&took[1], dead("broken")).await;
    }
    engine.close().await.unwrap();
    let (size, table) = largest_table(dir).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(table).unwrap();
    file.write_all_at(&[7; 64], size / 2).unwrap();
    (hurt, whole, count.get())
}

async fn serves_again(outgrown: u64) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (hurt, whole, count) = damaged_store(&data, outgrown).await;
    let report = check_dir(&data, &mut |_, _| {}).unwrap();
    assert_eq!(report.damaged.len(), 1, "{report:?}");
    let damage = &report.damaged[0];
    assert_eq!((&damage.at, damage.readable + damage.unreadable), (&hurt, count), "{report:?}");
    assert!((1..count / 2).contains(&damage.unreadable) && damage.last_unreadable < count, "{report:?}");
    let refused = set_aside(&data, std::slice::from_ref(&whole), &mut |_, _| {}).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    let refused = set_aside(&data, &[], &mut |_, _| {}).unwrap_err();
    assert!(refused.context().contains(&format!("--set-aside {hurt}")), "{refused}");

    let done = set_aside(&data, std::slice::from_ref(&hurt), &mut |_, _| {}).unwrap();
    assert_eq!(done.moved + damage.unreadable, damage.last_unreadable);
    assert!(done.old_store.join("version").exists());
    let after = check_dir(&data, &mut |_, _| {}).unwrap();
    assert!(after.is_sound(), "{after:?}");
    let engine = open(&data).await;
    assert_eq!(numbers(&read_all(&engine, &whole).await), (0..30).collect::<Vec<_>>());
    assert_eq!(status(&engine, &whole, &group("g")).await.dead, 1);
    let kept = read_all(&engine, &hurt).await;
    let numbered: Vec<u64> = kept.iter().map(|record| record.id.seq).collect();
    assert_eq!(numbered, (damage.last_unreadable + 1..=count).collect::<Vec<_>>());
    let mut owner = Owner::new(&engine, &hurt, &group("g")).await;
    assert_eq!(status(&engine, &hurt, &group("g")).await.dead, 1, "dead letters stay");
    let first = owner.next().await;
    assert_eq!(first.map(|record| record.id.seq), numbered.first().copied(), "the group goes on behind it");
    append(&engine, &hurt, 0, 1).await;
    assert_eq!(engine.bounds(&hurt).await.unwrap().last.seq, count + 1, "numbers go on");
    engine.close().await.unwrap();

    let other = dir.path().join("other");
    restore(std::fs::File::open(&done.file).unwrap(), &other, &mut |_| {}).unwrap();
    assert!(check_dir(&other, &mut |_, _| {}).unwrap().is_sound());
    let engine = open(&other).await;
    assert_eq!(read_all(&engine, &hurt).await.len() as u64, done.moved);
    assert_eq!(read_all(&engine, &whole).await.len(), 0);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_is_set_aside_and_the_rest_serves() {
    serves_again(4 << 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_among_others_is_set_aside_and_the_rest_serves() {
    serves_again(1 << 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_damaged_store_names_the_partition_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (hurt, _, _) = damaged_store(dir.path(), 4 << 10).await;
    let engine = open(dir.path()).await;
    let mut backup = engine.backup().await.unwrap();
    let error = loop {
        match backup.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended well"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains(&format!("--set-aside {hurt}")), "{error}");
    assert_eq!(backup.next().await.unwrap_err().kind(), ErrorKind::Closed);
    drop(backup);
    engine.read(&hurt, RecordId::ZERO, ReadLimit::records(3)).await.unwrap();
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_store_in_use_or_none_is_not_checked() {
    let dir = tempfile::tempdir().unwrap();
    let none = check_dir(dir.path(), &mut |_, _| {}).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound, "{none}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is made");
    let engine = open(dir.path()).await;
    let used = check_dir(dir.path(), &mut |_, _| {}).unwrap_err();
    assert_eq!(used.kind(), ErrorKind::Unavailable, "{used}");
    engine.close().await.unwrap();
}
