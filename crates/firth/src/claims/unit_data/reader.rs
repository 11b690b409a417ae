//! [`Reader`]: reads a unit's data in order and stores verdicts under the claim.

use crate::claims::claim::Claim;
use crate::consumer::StartAt;
use crate::error::{ErrorKind, Result, invalid};
use crate::payload;
use crate::record::Record;
use crate::shared_record::SharedRecord;
use firth_engine::facet::{Due, ReadLimit, TakeDue};
use firth_engine::limits::MAX_VERDICTS;
use firth_engine::{
    Backoff, Commit, Engine, GroupName, Hint, Hold, Offer, Partition, Record as Raw, Verdict, Window,
};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

/// Verdicts that wait for others, to be stored in one commit.
const COMMIT_AT: usize = 100;
/// Records read at once.
const PAGE: usize = 256;
/// Delayed messages that enter the log per step.
const PROMOTE_DUE: usize = 500;
/// How often hints make a busy feed look for delayed and replayed records.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often it looks without any hint.
const LOOK_ANYWAY: Duration = Duration::from_secs(10);
/// Short, so that reading goes on soon after the engine's return.
const RETRY_BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_millis(500));

/// What is read, and by which right.
pub(super) struct ReadRight {
    pub(super) claim: Claim,
    pub(super) engine: Engine,
    pub(super) at: Partition,
    pub(super) group: GroupName,
    pub(super) start: StartAt,
    pub(super) hold: Hold,
}

pub(super) struct Reader {
    source: ReadRight,
    hint: Hint,
    window: Window,
    /// Records that were read and not handed out.
    shelf: VecDeque<Raw>,
    /// Replayed records.
    due: VecDeque<Raw>,
    upkeep: Upkeep,
    settled: usize,
    /// A commit that is not known to be stored, and whether it may be stored already. If the caller
    /// drops the future of a commit, the verdicts stay here and none is lost.
    unsent: Option<(Commit, bool)>,
}

/// When to look for delayed and replayed records.
struct Upkeep {
    at: Instant,
    looked: Instant,
    /// An answer under way: what it brings would be lost with it.
    asked: Option<Pin<Box<dyn Future<Output = Result<Due>> + Send>>>,
    /// An answer was lost, and with it perhaps records: opening the group gives them back.
    is_unsure: bool,
}

impl Upkeep {
    fn new() -> Self {
        let now = Instant::now();
        Self { at: now, looked: now, asked: None, is_unsure: false }
    }

    /// Something happened: look soon, but not for each of many appends.
    fn hinted(&mut self) {
        self.at = self.at.min(self.looked + LOOK_EVERY);
    }
}

impl Reader {
    pub(super) fn new(source: ReadRight, hint: Hint, window: Window) -> Self {
        Self {
            source,
            hint,
            window,
            shelf: VecDeque::new(),
            due: VecDeque::new(),
            upkeep: Upkeep::new(),
            settled: 0,
            unsent: None,
        }
    }

    /// The next record, as soon as there is one; `None` when the claim is recalled or has ended.
    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Record>> {
        let mut failures = 0;
        loop {
            match self.try_next().await {
                Ok(Some(record)) => return Ok(Some(record)),
                Ok(None) if self.is_over() => return Ok(None),
                Ok(None) => {
                    failures = 0;
                    self.commit().await?;
                    tokio::select! {
                        () = self.hint.wait() => self.upkeep.hinted(),
                        () = tokio::time::sleep_until(self.upkeep.at) => {}
                        () = self.source.claim.recalled() => {}
                    }
                }
                Err(error) if error.is_retryable() && self.source.claim.is_valid() => {
                    failures += 1;
                    tracing::debug!(%error, unit = self.source.claim.name(), "a unit's data cannot be read; trying again");
                    tokio::time::sleep(RETRY_BACKOFF.delay(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The next record if there is one now; `None` also when the claim is recalled or has ended.
    /// Cancel-safe.
    pub(super) async fn try_next(&mut self) -> Result<Option<Record>> {
        while !self.is_over() {
            if let Some(raw) = self.due.pop_front() {
                if self.window.offer_due(&raw)
                    && let Some(record) = self.opened(raw)?
                {
                    return Ok(Some(record));
                }
                continue;
            }
            if let Some(raw) = self.shelf.pop_front() {
                if self.window.offer(&raw) == Offer::Deliver
                    && let Some(record) = self.opened(raw)?
                {
                    return Ok(Some(record));
                }
                continue;
            }
            self.commit_if(self.settled >= COMMIT_AT).await?;
            if !self.fill().await? {
                break;
            }
        }
        Ok(None)
    }

    fn is_over(&self) -> bool {
        self.source.claim.is_recalled() || !self.source.claim.is_valid()
    }

    /// With its payload as it was sent; one that is damaged beyond opening is a dead letter.
    fn opened(&mut self, mut raw: Raw) -> Result<Option<Record>> {
        if let Err(error) = payload::open(&mut raw.content) {
            self.window.settle(&raw, Verdict::dead(error.to_string()))?;
            self.settled += 1;
            return Ok(None);
        }
        Ok(Some(Record::new(self.source.at.clone(), SharedRecord::alone(raw))))
    }

    /// Reads on; false if there is nothing.
    async fn fill(&mut self) -> Result<bool> {
        let mut room = self.window.room();
        if room == 0 {
            self.commit().await?;
            room = self.window.room();
        }
        if room == 0 {
            return Err(invalid(format!(
                "{MAX_VERDICTS} records of {} are unsettled: ack or reject them before reading on",
                self.source.claim.name()
            )));
        }
        let room = PAGE.min(room);
        if self.upkeep.asked.is_some() || Instant::now() >= self.upkeep.at {
            self.look(room).await?;
            if !self.due.is_empty() {
                return Ok(true);
            }
        }
        let records = self
            .source
            .engine
            .read(&self.source.at, self.window.position(), ReadLimit::records(room))
            .await?;
        self.shelf.extend(records);
        Ok(!self.shelf.is_empty())
    }

    /// Brings delayed messages into the log and takes replayed records.
    async fn look(&mut self, room: usize) -> Result<()> {
        let promoted = self.source.engine.promote_due(&self.source.at, PROMOTE_DUE).await?;
        if self.upkeep.is_unsure {
            let ReadRight { engine, at, group, hold, start, .. } = &self.source;
            engine.open(at, group, (*start).into(), hold).await?;
            self.upkeep.is_unsure = false;
        }
        let asked = self.upkeep.asked.get_or_insert_with(|| {
            let ReadRight { engine, at, group, hold, .. } = &self.source;
            let engine = engine.clone();
            let at = at.clone();
            let group = group.clone();
            let hold = hold.clone();
            Box::pin(async move {
                let request = TakeDue { max: room, known: &[] };
                engine.due(&at, &group, &hold, request).await
            })
        });
        let due = asked.await;
        self.upkeep.asked = None;
        let due = due.inspect_err(|error| self.upkeep.is_unsure |= error.may_have_happened())?;
        self.due.extend(due.records.into_iter().filter_map(|record| record.with(|| None)));
        let now = Instant::now();
        let soonest = [due.next, promoted.next, Some(LOOK_ANYWAY)].into_iter().flatten().min();
        self.upkeep.looked = now;
        self.upkeep.at = now + soonest.unwrap_or(LOOK_ANYWAY);
        Ok(())
    }

    pub(super) fn settle(&mut self, record: &Record, verdict: Verdict) -> Result<()> {
        self.window.settle(&record.clone().into_inner(), verdict)?;
        self.settled += 1;
        Ok(())
    }

    /// Stores all verdicts given so far. If a newer owner has the unit, nothing is stored and the
    /// error is [`Fenced`](ErrorKind::Fenced).
    pub(super) async fn commit(&mut self) -> Result<()> {
        self.commit_if(true).await
    }

    async fn commit_if(&mut self, wanted: bool) -> Result<()> {
        if !wanted && self.unsent.is_none() {
            return Ok(());
        }
        loop {
            if self.unsent.is_none() {
                self.settled = 0;
                self.unsent = self.window.take_commit().map(|commit| (commit, false));
            }
            if self.unsent.is_none() {
                return Ok(());
            }
            self.store().await?;
            self.unsent = None;
        }
    }

    /// A commit states the whole progress, so that it may be sent again after a lost answer.
    async fn store(&mut self) -> Result<()> {
        let mut failures = 0;
        while let Some((commit, may_be_stored)) = &mut self.unsent {
            let was_sent = std::mem::replace(may_be_stored, true);
            let ReadRight { engine, at, group, hold, .. } = &self.source;
            match engine.commit(at, group, hold, commit.clone()).await {
                Ok(_) => break,
                Err(error) if was_sent && error.kind() == ErrorKind::Invalid => break,
                Err(error) if error.is_retryable() && self.source.claim.is_valid() => {
                    *may_be_stored = was_sent || error.may_have_happened();
                    failures += 1;
                    tokio::time::sleep(RETRY_BACKOFF.delay(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
