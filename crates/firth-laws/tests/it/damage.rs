//! Damaged tables, and who may read the data directory.

use super::files::{fast, files_under, noise, open};
use firth_engine::facet::{Append, ReadLimit};
use firth_engine::{Content, Engine, ErrorKind, FileOptions, Partition, RecordId, Result};
use firth_laws::world::{append, eventually, numbers, partition, read_all};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The largest table file of the store.
pub(super) fn largest_table(dir: &Path) -> Option<(u64, PathBuf)> {
    let tables = files_under(&dir.join("store/keyspaces")).into_iter();
    tables.filter_map(|file| Some((file.metadata().ok()?.len(), file))).max()
}

/// Reads to the end of the log, or to the first error.
async fn read_through(engine: &Engine, at: &Partition) -> Result<usize> {
    let mut after = RecordId::ZERO;
    let mut count = 0;
    loop {
        let page = engine.read(at, after, ReadLimit::records(10)).await?;
        let Some(last) = page.last() else { return Ok(count) };
        after = last.id;
        count += page.len();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn u05_a_damaged_partition_is_an_error_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileOptions { memtable: 1 << 20, outgrown: 4 << 10, ..fast() };
    let engine = Engine::file(dir.path(), options).await.unwrap();
    let at = partition(&engine).await;
    let whole = partition(&engine).await;
    append(&engine, &whole, 0, 3).await;
    let payload = noise(32 << 10);
    eventually("records reach a table", async || {
        engine.append(&at, Append::new([Content::new(payload.clone())])).await.unwrap();
        largest_table(dir.path()).is_some_and(|(size, _)| size > 512 << 10)
    })
    .await;
    assert_eq!(engine.health().map_err(|error| error.to_string()), Ok(()));
    engine.close().await.unwrap();
    let (size, table) = largest_table(dir.path()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(table).unwrap();
    file.write_all_at(&[7; 64], size / 2).unwrap();

    let engine = open(dir.path()).await;
    let error = read_through(&engine, &at).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains(&format!("partition {at}")), "{error}");
    let health = engine.health().unwrap_err();
    assert_eq!(health.kind(), ErrorKind::Corrupt);
    assert!(health.context().contains(&at.to_string()), "{health}");
    assert!(!health.context().contains(&whole.to_string()), "{health}");
    assert_eq!(numbers(&read_all(&engine, &whole).await), [0, 1, 2]);
    engine.delete_partition(&at).await.unwrap();
    engine.health().unwrap();
    engine.close().await.unwrap();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn u12_the_data_directory_is_its_owners_alone() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    open(&dir).await.close().await.unwrap();
    assert_eq!(mode(&dir), 0o700);
    // As older builds left it.
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
    open(&dir).await.close().await.unwrap();
    assert_eq!(mode(&dir), 0o700);
    // A folder with things of others in it is left to them; the store in it is not.
    let shared = parent.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(shared.join("theirs"), "x").unwrap();
    for _ in 0..2 {
        open(&shared).await.close().await.unwrap();
    }
    assert_eq!((mode(&shared), mode(&shared.join("store"))), (0o755, 0o700));
}
