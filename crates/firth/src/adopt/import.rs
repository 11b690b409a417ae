//! Taking over a consumer group of an adopted stream: where it stood, and what it had pending.
//!
//! The new group is made right before the oldest pending entry, and then settled up to where the
//! old one stood, as an owner would: what is pending is due, the rest done. A crash half way leaves
//! a group that stands too early, which repeats and loses nothing.

use crate::error::{Error, ErrorKind, Result};
use crate::topic::TopicInfo;
use firth_engine::facet::{Acquire, ReadLimit, STREAM_ID, StartPosition, StreamGroup, StreamPending};
use firth_engine::limits::{MAX_BATCH, MAX_VERDICTS};
use firth_engine::{
    Engine, GroupName, Hold, HolderName, LeaseName, Offer, Partition, Record, RecordId, Verdict, Window,
};
use std::collections::HashMap;
use std::time::Duration;

/// How long the owner that settles the past may take between two steps.
const LEASE: Duration = Duration::from_secs(60);

/// Makes `new` go on where the stream's group `old` stands. A group that is there already stays as
/// it is.
pub(super) async fn group(engine: &Engine, info: &TopicInfo, old: &str, new: &GroupName) -> Result<()> {
    let at = info.partitions().next().expect("an adopted topic has a partition");
    let old = engine.stream_group(&at, old).await?;
    catch_up(engine, &at).await?;
    let (first, last) = locate(engine, &at, &old).await?;
    if !engine.create_group(&at, new, StartPosition::After(first), None).await? {
        let context = format!("group {new} of topic {} exists already: nothing was imported", info.name);
        return Err(Error::new(ErrorKind::AlreadyExists, context));
    }
    if first == last {
        return Ok(());
    }
    let holder = HolderName::new(format!("import-{:016x}", fastrand::u64(..)))?;
    let request = Acquire::new(LeaseName::group(&at, new), holder, LEASE);
    let Some(hold) = engine.acquire(request).await?.granted() else {
        let context = format!("group {new} of topic {} already has an owner", info.name);
        return Err(Error::new(ErrorKind::AlreadyExists, context));
    };
    let settled = settle(engine, &at, (new, &hold), last, old.pending).await;
    engine.release(&hold).await?;
    settled
}

/// Brings everything in that the stream holds now.
pub(crate) async fn catch_up(engine: &Engine, at: &Partition) -> Result<()> {
    while engine.promote_due(at, MAX_BATCH).await?.next == Some(Duration::ZERO) {}
    Ok(())
}

/// Settles records up to `last`: those that were pending are due, the others done.
async fn settle(
    engine: &Engine,
    at: &Partition,
    (group, hold): (&GroupName, &Hold),
    last: RecordId,
    pending: Vec<StreamPending>,
) -> Result<()> {
    let mut pending: HashMap<RecordId, StreamPending> =
        pending.into_iter().map(|entry| (entry.id, entry)).collect();
    let progress = engine.open(at, group, StartPosition::Start, hold).await?;
    let mut window = Window::new(&progress, MAX_VERDICTS);
    while window.position() < last {
        let page = engine.read(at, window.position(), ReadLimit::records(MAX_VERDICTS / 2)).await?;
        if page.is_empty() {
            break;
        }
        for record in page.iter().take_while(|record| record.id <= last) {
            if window.offer(record) == Offer::Deliver {
                let waiting = stream_id(record).and_then(|id| pending.remove(&id));
                window.settle(record, waiting.map_or(Verdict::Ack, |entry| again(&entry)))?;
            }
        }
        if let Some(commit) = window.take_commit() {
            engine.commit(at, group, hold, commit).await?;
        }
        engine.renew(std::slice::from_ref(hold), LEASE).await?;
    }
    if !pending.is_empty() {
        tracing::warn!(%group, partition = %at, gone = pending.len(), "pending entries are no longer in the stream");
    }
    Ok(())
}

fn again(entry: &StreamPending) -> Verdict {
    let StreamPending { consumer, idle, deliveries, .. } = entry;
    let reason =
        format!("pending with {consumer} for {idle:?} after {deliveries} deliveries when it was imported");
    Verdict::Retry { after: Duration::ZERO, reason: reason.into(), keep: false }
}

/// The last record before the oldest pending entry, and the last one that the old group had handed
/// out.
async fn locate(engine: &Engine, at: &Partition, old: &StreamGroup) -> Result<(RecordId, RecordId)> {
    let start = engine.bounds(at).await?.trimmed;
    let mut first = start;
    let mut last = start;
    let mut after = start;
    loop {
        let page = engine.read(at, after, ReadLimit::records(MAX_VERDICTS)).await?;
        let Some(end) = page.last() else { return Ok((first, last)) };
        after = end.id;
        for record in page {
            let Some(id) = stream_id(&record) else { continue };
            if id > old.delivered {
                return Ok((first, last));
            }
            last = record.id;
            if old.pending.first().is_none_or(|oldest| id < oldest.id) {
                first = record.id;
            }
        }
    }
}

/// Which entry a record was.
fn stream_id(record: &Record) -> Option<RecordId> {
    std::str::from_utf8(&record.content.headers.get(STREAM_ID)?).ok()?.parse().ok()
}
