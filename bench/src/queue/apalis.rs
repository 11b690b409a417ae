//! apalis-redis without task locks, in bulk both ways; `apalis-bare` also gives up the results and
//! events that it keeps of each task. A backlog of some ten thousand stops it, so the sender keeps
//! near.

use super::meter::Meter;
use super::place::Place;
use super::subject::{Pace, Subject};
use super::workload::PAYLOAD;
use anyhow::{Context, Result, anyhow};
use apalis::prelude::{BoxDynError, Data, TaskSink, WorkerBuilder};
use apalis_redis::{Config, RedisStorage};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const BULK: usize = 500;
/// How far the sender runs ahead of a worker.
const AHEAD: u64 = 4000;

pub(crate) struct Apalis {
    storage: RedisStorage<String>,
}

#[derive(Clone)]
struct Run {
    meter: Arc<Meter>,
    done: Arc<Notify>,
}

impl Apalis {
    pub(crate) async fn open(place: &Place, bare: bool) -> Result<Self> {
        let url = format!("redis://127.0.0.1:{}/", place.port());
        let connection = apalis_redis::connect(url).await.context("connect")?;
        let config = Config::default()
            .queue("bench")
            .batch_size(100)
            .lock_tasks(false)
            .persist_results(!bare)
            .emit_events(!bare);
        Ok(Self { storage: RedisStorage::new(connection).with_config(config) })
    }
}

impl Subject for Apalis {
    async fn produce(&self, meter: &Arc<Meter>, pace: Pace, counts: bool) -> Result<()> {
        if let Pace::Every(_) = pace {
            return Err(anyhow!("apalis stalls at a paced rate"));
        }
        let mut storage = self.storage.clone();
        let payload = "x".repeat(PAYLOAD);
        let mut sent = 0;
        while sent < meter.goal() {
            let count = (BULK as u64).min(meter.goal() - sent);
            let bulk = (0..count).map(|_| payload.clone()).collect();
            storage.push_bulk(bulk).await.map_err(|error| anyhow!("push: {error}"))?;
            sent += count;
            if counts {
                meter.add(count);
            } else {
                while meter.seen() > 0 && sent > meter.seen() + AHEAD {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
        Ok(())
    }

    async fn consume(&self, meter: &Arc<Meter>, _stamped: bool) -> Result<()> {
        let run = Run { meter: meter.clone(), done: Arc::new(Notify::new()) };
        let worker =
            WorkerBuilder::new("worker").backend(self.storage.clone()).data(run.clone()).build(handle);
        let end = async move {
            run.done.notified().await;
            Ok::<(), std::io::Error>(())
        };
        worker.run_until(end).await.map_err(|error| anyhow!("worker: {error}"))
    }
}

async fn handle(_task: String, run: Data<Run>) -> Result<(), BoxDynError> {
    if run.meter.add(1) {
        run.done.notify_one();
    }
    Ok(())
}
