//! Requests of a lane to its engine; each answers one event.

use super::Lane;
use super::state::LaneEvent;
use super::waiter::DeliveryKey;
use crate::error::{ErrorKind, Result};
use bytes::Bytes;
use firth_engine::facet::{Pending, ReadLimit, TakeDue};
use firth_engine::limits::MAX_READ;
use firth_engine::{Commit, Progress, RecordId};
use futures_util::future::try_join_all;
use std::sync::Arc;
use tokio::time::Instant;

/// How many delayed messages enter the log per step.
const PROMOTE: usize = 500;
/// How many records are looked up at once when a new owner learns the keys of due records.
const LOOK_UPS: usize = 64;

pub(super) async fn read(lane: Arc<Lane>, after: RecordId, max: ReadLimit, waits: bool) -> LaneEvent {
    let engine = &lane.common.engine;
    LaneEvent::Read(match waits {
        true => engine.tail(&lane.at, after, max).await,
        false => engine.read(&lane.at, after, max).await.map(Some),
    })
}

pub(super) async fn take_due(lane: Arc<Lane>, max: usize, known: Vec<RecordId>) -> LaneEvent {
    let common = &lane.common;
    let wanted = TakeDue { max, known: &known };
    LaneEvent::Due(common.engine.due(&lane.at, &common.group, &lane.held.hold, wanted).await)
}

pub(super) async fn promote(lane: Arc<Lane>) -> LaneEvent {
    LaneEvent::Promoted(lane.common.engine.promote_due(&lane.at, PROMOTE).await)
}

pub(super) async fn commit(lane: Arc<Lane>, commit: Commit) -> LaneEvent {
    let common = &lane.common;
    let begun = Instant::now();
    let done = common.engine.commit(&lane.at, &common.group, &lane.held.hold, commit).await;
    if done.is_ok() {
        common.meter.committed(begun.elapsed());
    }
    LaneEvent::Committed(done)
}

/// What a lane wants to know when it opens its group.
pub(super) struct OpenRequest {
    /// Verdicts of earlier sessions whose outcome is unknown.
    pub(super) unknown: Vec<DeliveryKey>,
}

/// What a lane learns when it opens its group.
#[derive(Default)]
pub(super) struct OpenedGroup {
    pub(super) progress: Progress,
    /// The unknown verdicts that turn out to be stored. No other owner can have settled these
    /// records: the lease is still this lane's.
    pub(super) stored: Vec<DeliveryKey>,
    /// Due records that a vanished owner had.
    pub(super) suspects: Vec<RecordId>,
    /// Keys of the due records in the log, which hold back later ones; only with strict ordering.
    pub(super) due: Vec<(Bytes, u64)>,
}

pub(super) async fn open(lane: Arc<Lane>, request: OpenRequest) -> LaneEvent {
    LaneEvent::Opened(learn(&lane, request).await)
}

async fn learn(lane: &Lane, request: OpenRequest) -> Result<OpenedGroup> {
    let common = &lane.common;
    let progress = common.engine.open(&lane.at, &common.group, lane.start, &lane.held.hold).await?;
    look_back(lane, &progress).await?;
    let mut opened = OpenedGroup { progress, ..OpenedGroup::default() };
    for key in request.unknown {
        if !is_open(lane, &opened.progress, key).await? {
            opened.stored.push(key);
        }
    }
    if opened.progress.due > 0 {
        learn_due(lane, &mut opened).await?;
    }
    Ok(opened)
}

/// Notes a loss if a crash or a failover took back records that this consumer has read. A consumer
/// that passes numbers on must know: the log gives them again.
async fn look_back(lane: &Lane, progress: &Progress) -> Result<()> {
    let common = &lane.common;
    let at = &lane.at;
    let Some(read) = common.losses.last_read(at.index) else { return Ok(()) };
    match common.engine.read(at, read, ReadLimit::records(1)).await {
        Err(error) if error.kind() == ErrorKind::WentBack => {
            tracing::warn!(%error, partition = %at, "records that were read are lost");
            let count = read.seq.saturating_sub(progress.last.seq).max(1);
            common.meter.lost.increment(count);
            common.losses.went_back(at.index, progress.frontier.seq + 1, count);
            Ok(())
        }
        answer => answer.map(drop),
    }
}

/// Whether a delivery still needs a verdict: its record waits in the log, or is due at the same
/// attempt.
async fn is_open(lane: &Lane, progress: &Progress, (id, attempt): DeliveryKey) -> Result<bool> {
    if id.seq > progress.frontier.seq && !progress.ahead.contains(id.seq) {
        return Ok(true);
    }
    if progress.due == 0 {
        return Ok(false);
    }
    let before = RecordId::new(id.ms, id.seq - 1);
    let found = lane.common.engine.pending(&lane.at, &lane.common.group, before, 1).await?;
    Ok(found.first().is_some_and(|due| due.id == id && due.attempt == attempt))
}

/// Learns which due records a vanished owner had, and with strict ordering which keys wait for a
/// retry. Content that is kept aside holds back nothing.
async fn learn_due(lane: &Lane, opened: &mut OpenedGroup) -> Result<()> {
    let common = &lane.common;
    let at = &lane.at;
    let is_strict = common.config.is_strict();
    let isolates = common.config.retry.max_crashes > 0;
    if !is_strict && !isolates {
        return Ok(());
    }
    let mut after = RecordId::ZERO;
    loop {
        let page = common.engine.pending(at, &common.group, after, MAX_READ).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.id;
        let is_suspect =
            |due: &&Pending| isolates && due.crashes > 0 && due.due_in.is_some_and(|wait| wait.is_zero());
        opened.suspects.extend(page.iter().filter(is_suspect).map(|due| due.id));
        let in_log = page.iter().filter(|due| is_strict && !due.kept).map(|due| due.id);
        let in_log: Vec<RecordId> = in_log.collect();
        for ids in in_log.chunks(LOOK_UPS) {
            let look_up = |id: &RecordId| {
                let before = RecordId::new(id.ms, id.seq - 1);
                async move { common.engine.read(at, before, ReadLimit::records(1)).await }
            };
            let found = try_join_all(ids.iter().map(look_up)).await?;
            for (id, record) in ids.iter().zip(found) {
                // Another id: a lossy trim removed the record.
                let record = record.into_iter().next().filter(|record| record.id == *id);
                opened.due.extend(record.and_then(|record| record.content.key).map(|key| (key, id.seq)));
            }
        }
    }
}
