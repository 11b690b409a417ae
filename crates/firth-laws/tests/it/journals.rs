//! What a power cut or a broken disk leaves in journals: a torn tail is cut off, damage is named.

use super::files::{copy, noise, open};
use bytes::Bytes;
use firth_engine::facet::Append;
use firth_engine::{Content, Engine, ErrorKind, FileOptions, Partition};
use firth_laws::world::{partition, read_all};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Fills a synced store with one record for each payload.
async fn filled(payloads: &[Bytes]) -> (TempDir, Engine, Partition) {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::file(dir.path(), FileOptions::default()).await.unwrap();
    let at = partition(&engine).await;
    for payload in payloads {
        engine.append(&at, Append::new([Content::new(payload.clone())])).await.unwrap();
    }
    (dir, engine, at)
}

/// The store as it would be found if the power failed now.
fn image(dir: &Path) -> TempDir {
    let image = tempfile::tempdir().unwrap();
    copy(dir, image.path());
    image
}

/// Overwrites a page in the middle of a payload in the journal with zeroes, and answers which file
/// that is.
fn lose_page_of(dir: &Path, payload: &[u8]) -> PathBuf {
    for number in 0..9 {
        let path = dir.join(format!("store/{number}.jnl"));
        let Ok(bytes) = std::fs::read(&path) else { continue };
        if let Some(at) = bytes.windows(64).position(|window| window == &payload[..64]) {
            let page = (at + payload.len() / 2) / 4096 * 4096;
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[0; 4096], page as u64).unwrap();
            return path;
        }
    }
    panic!("no journal holds the payload");
}

async fn payloads(engine: &Engine, at: &Partition) -> Vec<Bytes> {
    read_all(engine, at).await.into_iter().map(|record| record.content.payload).collect()
}

#[tokio::test]
async fn q01_a_torn_tail_inside_a_value_is_cut_off_and_the_rest_opens() {
    let sent = [noise(100), noise(5_000), noise(64 << 10)];
    let (dir, engine, at) = filled(&sent).await;
    let image = image(dir.path());
    engine.close().await.unwrap();
    lose_page_of(image.path(), &sent[2]);
    for more in 0..3 {
        let engine = open(image.path()).await;
        let found = payloads(&engine, &at).await;
        assert_eq!(found[..2], sent[..2]);
        assert_eq!(found.len(), 2 + more, "what is written afterwards stays");
        engine.append(&at, Append::new([Content::new(noise(9_000))])).await.unwrap();
        engine.close().await.unwrap();
    }
}

#[tokio::test]
async fn q01_damage_before_synced_records_is_refused_and_named() {
    let sent = [noise(5_000), noise(64 << 10), noise(5_000), noise(100)];
    let (dir, engine, _) = filled(&sent).await;
    let image = image(dir.path());
    engine.close().await.unwrap();
    let journal = lose_page_of(image.path(), &sent[1]);
    let before = std::fs::read(&journal).unwrap();
    let error = Engine::file(image.path(), FileOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.context().contains(journal.to_str().unwrap()), "{error}");
    assert!(error.context().contains("later batches are readable"), "{error}");
    assert!(std::fs::read(&journal).unwrap() == before, "it is left as it was found");
}

#[tokio::test]
async fn q05_what_is_not_known_to_be_synced_is_moved_to_a_new_journal() {
    let sent = [noise(5_000), noise(5_000)];
    let (dir, engine, at) = filled(&sent).await;
    let unclean = image(dir.path());
    engine.close().await.unwrap();
    let journals = |dir: &Path| (0..9).filter(|n| dir.join(format!("store/{n}.jnl")).exists()).count();
    let newest = |dir: &Path| (0..9).rev().find(|n| dir.join(format!("store/{n}.jnl")).exists());
    let before = newest(unclean.path());
    let engine = open(unclean.path()).await;
    assert_eq!(payloads(&engine, &at).await, sent);
    assert!(newest(unclean.path()) > before, "a new file has only new pages");
    engine.close().await.unwrap();

    let before = (newest(dir.path()), journals(dir.path()));
    for _ in 0..3 {
        let engine = open(dir.path()).await;
        assert_eq!(payloads(&engine, &at).await, sent);
        engine.close().await.unwrap();
    }
    assert_eq!((newest(dir.path()), journals(dir.path())), before, "after a clean end nothing is moved");
}

#[tokio::test]
async fn k08_a_half_made_store_is_refused() {
    for missing in ["keyspaces/0", "keyspaces/1", "keyspaces", "version"] {
        let (dir, engine, _) = filled(&[noise(100)]).await;
        let image = image(dir.path());
        engine.close().await.unwrap();
        let path = image.path().join("store").join(missing);
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
        let error = Engine::file(image.path(), FileOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "without {missing}: {error}");
    }
}
