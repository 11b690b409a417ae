//! Requests beside the subscriptions, on the same client: a change of the cluster must not disturb
//! them.
//!
//! Each key holds its own name, so every reply can be judged. The keys' slots never move.

use super::subject::Follower;
use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Tasks that ask, each one request at a time.
const TASKS: usize = 4;
/// How long each rests between two requests.
const REST: Duration = Duration::from_millis(1);
/// A request without a reply for this long has failed.
const REPLY: Duration = Duration::from_secs(5);

/// How requests went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) right: u64,
    /// Replies with another value than the key's, or of another kind.
    pub(crate) wrong: u64,
    /// Errors, and replies that never came.
    pub(crate) failed: u64,
}

/// Requests under way.
pub(crate) struct Gets {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Outcome>>,
}

impl Gets {
    pub(crate) fn start<F: Follower>(reader: &F::Reader, keys: &Arc<[String]>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..TASKS)
            .map(|task| tokio::spawn(ask::<F>(reader.clone(), keys.clone(), task, stop.clone())))
            .collect();
        Self { stop, tasks }
    }

    /// Ends them and sums up.
    pub(crate) async fn end(self) -> Result<Outcome> {
        self.stop.store(true, Relaxed);
        let mut sum = Outcome::default();
        for task in self.tasks {
            let one = task.await.context("a requesting task panicked")?;
            sum.right += one.right;
            sum.wrong += one.wrong;
            sum.failed += one.failed;
        }
        Ok(sum)
    }
}

async fn ask<F: Follower>(
    mut reader: F::Reader,
    keys: Arc<[String]>,
    first: usize,
    stop: Arc<AtomicBool>,
) -> Outcome {
    let mut outcome = Outcome::default();
    for key in keys.iter().cycle().skip(first * keys.len() / TASKS) {
        if stop.load(Relaxed) {
            break;
        }
        match timeout(REPLY, F::get(&mut reader, key)).await {
            Ok(Ok(Some(value))) if value == key.as_bytes() => outcome.right += 1,
            Ok(Ok(_)) => outcome.wrong += 1,
            Ok(Err(_)) | Err(_) => outcome.failed += 1,
        }
        sleep(REST).await;
    }
    outcome
}
