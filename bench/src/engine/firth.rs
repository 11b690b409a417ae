//! The engine itself, through its facets and nothing above them.

use super::driver::Worker;
use super::place::Place;
use super::workload::{APPENDED, Kind, LEASES, Payloads, READ, RECORDS, Site, Workload};
use anyhow::{Context, Result, bail, ensure};
use firth_engine::facet::{Acquire, Append, ReadLimit, StartPosition, TakeDue};
use firth_engine::{
    Commit, Content, Dead, Engine, GroupName, Hold, HolderName, LeaseName, MemberName, Partition, PoolName,
    Record, RecordId, Retry, TopicName,
};
use futures_util::future::try_join_all;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
/// Callers that share a sync on files: one alone would measure the disk's latency and nothing else.
const SHARING: usize = 16;

/// The tasks of this workload, on data that is ready.
pub(crate) async fn workers(workload: Workload, place: &Place) -> Result<Vec<Firth>> {
    let engine = Engine::at(&place.url()).await?;
    let at = Partition::new(TopicName::new("bench")?, 0);
    engine.create_partition(&at).await?;
    let reads = matches!(workload.kind, Kind::Settle | Kind::Retry | Kind::Dead);
    if reads {
        fill(&engine, &at, RECORDS).await?;
    }
    let count = match (workload.kind, workload.place) {
        (Kind::Append | Kind::Delay, Site::File) => SHARING,
        _ => 1,
    };
    let mut workers = Vec::new();
    for _ in 0..count {
        let mut worker = Firth {
            engine: engine.clone(),
            at: at.clone(),
            kind: workload.kind,
            payloads: Payloads::new(),
            reader: None,
            holds: vec![],
            groups: 0,
        };
        if reads {
            worker.next_group().await?;
        }
        if workload.kind == Kind::Renew {
            worker.acquire_all().await?;
        }
        workers.push(worker);
    }
    Ok(workers)
}

/// Appends `count` records.
pub(crate) async fn fill(engine: &Engine, at: &Partition, count: usize) -> Result<()> {
    let mut payloads = Payloads::new();
    for from in (0..count).step_by(1000) {
        let batch: Vec<_> = (from..count.min(from + 1000)).map(|_| Content::new(payloads.next())).collect();
        engine.append(at, Append::new(batch)).await?;
    }
    Ok(())
}

/// One task.
pub(crate) struct Firth {
    engine: Engine,
    at: Partition,
    kind: Kind,
    payloads: Payloads,
    reader: Option<Reader>,
    holds: Vec<Hold>,
    groups: usize,
}

/// The owner of a group, and how far it has read.
struct Reader {
    group: GroupName,
    hold: Hold,
    position: RecordId,
}

impl Worker for Firth {
    async fn step(&mut self) -> Result<u64> {
        match self.kind {
            Kind::Append => self.append(Duration::ZERO).await,
            Kind::Delay => self.append(HOUR).await,
            Kind::Renew => self.renew().await,
            Kind::Settle => self.settle().await,
            Kind::Retry | Kind::Dead | Kind::Restart => self.work().await,
        }
    }
}

impl Firth {
    async fn append(&mut self, after: Duration) -> Result<u64> {
        let batch: Vec<_> = (0..APPENDED).map(|_| Content::new(self.payloads.next())).collect();
        let appended = self.engine.append(&self.at, Append { after, ..Append::new(batch) }).await?;
        Ok(appended.count)
    }

    async fn renew(&mut self) -> Result<u64> {
        let renewed = self.engine.renew(&self.holds, HOUR).await?;
        ensure!(renewed.iter().all(|renewed| *renewed), "a lease was lost");
        Ok(renewed.len() as u64)
    }

    /// Reads a batch and commits the one before in the same round trip, as the raw limit does.
    async fn settle(&mut self) -> Result<u64> {
        let reader = self.reader.as_mut().context("a reader has a group")?;
        let read = self.engine.read(&self.at, reader.position, ReadLimit::records(READ));
        let commit = async {
            match reader.position {
                RecordId::ZERO => Ok(()),
                done => {
                    let commit = Commit::up_to(done);
                    self.engine.commit(&self.at, &reader.group, &reader.hold, commit).await.map(drop)
                }
            }
        };
        let (records, committed) = futures_util::join!(read, commit);
        committed?;
        let records = records?;
        match records.last() {
            Some(last) => reader.position = last.id,
            None => self.next_group().await?,
        }
        Ok(records.len() as u64)
    }

    /// Reads a batch and settles it; a group that has seen everything is followed by a fresh one.
    async fn work(&mut self) -> Result<u64> {
        let reader = self.reader.as_mut().context("a reader has a group")?;
        let records = self.engine.read(&self.at, reader.position, ReadLimit::records(READ)).await?;
        let Some(last) = records.last() else {
            self.next_group().await?;
            return Ok(0);
        };
        reader.position = last.id;
        let count = records.len() as u64;
        let frontier = last.id;
        let commit = match self.kind {
            Kind::Retry => {
                Commit { frontier, retries: records.iter().map(retry).collect(), ..Commit::default() }
            }
            Kind::Dead => {
                let dead = records.into_iter().map(|record| Dead { record, reason: "given up".into() });
                Commit { frontier, dead: dead.collect(), ..Commit::default() }
            }
            _ => bail!("not a kind of work"),
        };
        self.engine.commit(&self.at, &reader.group, &reader.hold, commit).await?;
        if self.kind == Kind::Retry {
            let due = self.engine.due(&self.at, &reader.group, &reader.hold, TakeDue::up_to(READ)).await?;
            ensure!(due.records.len() as u64 == count, "what was retried is due at once");
            let done = due.records.iter().map(|record| record.id).collect();
            let commit = Commit { frontier, done, ..Commit::default() };
            self.engine.commit(&self.at, &reader.group, &reader.hold, commit).await?;
        }
        Ok(count)
    }

    async fn next_group(&mut self) -> Result<()> {
        self.groups += 1;
        let group = GroupName::new(format!("group-{}", self.groups))?;
        if let Some(former) = self.reader.take() {
            // Its dead letters would fill the server: what is measured is giving records up, not
            // keeping them.
            self.engine.delete_group(&self.at, &former.group, None).await?;
        }
        let wish = Acquire::new(LeaseName::group(&self.at, &group), HolderName::new("bench")?, HOUR);
        let hold = self.engine.acquire(wish).await?.granted().context("the lease is free")?;
        self.engine.open(&self.at, &group, StartPosition::Start, &hold).await?;
        self.reader = Some(Reader { group, hold, position: RecordId::ZERO });
        Ok(())
    }

    async fn acquire_all(&mut self) -> Result<()> {
        let pool = PoolName::new("bench")?;
        for from in (0..LEASES).step_by(500) {
            let acquire = |n: usize| {
                let engine = self.engine.clone();
                let pool = pool.clone();
                async move {
                    let name = LeaseName::pool(&pool, &MemberName::new(format!("claim-{n}"))?);
                    let wish = Acquire::new(name, HolderName::new("bench")?, HOUR);
                    engine.acquire(wish).await?.granted().context("the lease is free")
                }
            };
            self.holds.extend(try_join_all((from..from + 500).map(acquire)).await?);
        }
        Ok(())
    }
}

fn retry(record: &Record) -> Retry {
    Retry { id: record.id, after: Duration::ZERO, reason: "try again".into(), kept: None }
}
