//! [`Feed`]: a unit's own data, read in order and settled under its claim.
//!
//! The partition's lease is ranked by the claim's epoch: opening a feed takes it from every former owner of the unit at once, whoever is
//! still running, and a former owner can never take it back. There is nothing to renew: the claim is the authority, the lease only
//! the fence that is checked with each commit.

use super::claim::Claim;
use crate::company::Companion;
use crate::consumer::StartAt;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::partitioner::key_hash;
use crate::payload;
use crate::record::Record;
use firth_engine::facet::{Acquire, Due, Max, TakeDue};
use firth_engine::limits::{MAX_TTL, MAX_VERDICTS};
use firth_engine::{
    Backoff, Commit, Engine, GroupName, Hint, HintKey, Hold, HolderName, LeaseName, Offer, Partition,
    Record as Raw, TopicName, Verdict, Window,
};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

/// Verdicts that wait for company.
const COMMIT_AT: usize = 100;
/// Records read at once.
const PAGE: usize = 256;
/// Delayed messages that enter the log per step.
const RIPEN: usize = 500;
/// How often hints make a busy feed look for delayed and replayed records.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often it looks without any hint.
const LOOK_ANYWAY: Duration = Duration::from_secs(10);
const PATIENCE: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(2));

/// A feed about to be opened; finish it with `.await`.
#[must_use = "nothing is read until it is awaited"]
pub struct FeedBuilder {
    claim: Claim,
    topic: String,
    partition: u32,
    group: Option<String>,
    start: StartAt,
}

impl FeedBuilder {
    pub(crate) fn new(claim: Claim, topic: &str) -> Self {
        Self { claim, topic: topic.to_owned(), partition: 0, group: None, start: StartAt::default() }
    }

    /// Which partition of the topic is the unit's; the first unless set.
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = partition;
        self
    }

    /// The group whose progress it is; one of the service's own unless set. Do not let consumers join it.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Where the unit's first owner starts; at the oldest record unless set. Later ones go on where the last one was.
    pub fn start_at(mut self, start: StartAt) -> Self {
        self.start = start;
        self
    }

    async fn open(self) -> Result<Feed> {
        let common = &self.claim.shard().common;
        let engine = common.engine.clone();
        let at = Partition::new(TopicName::new(&self.topic)?, self.partition);
        let group = match &self.group {
            Some(group) => GroupName::new(group)?,
            None => own_group(common.service.as_str()),
        };
        let holder = HolderName::new(common.id.as_str())?;
        let mut wish = Acquire::new(LeaseName::group(&at, &group), holder, MAX_TTL);
        wish.rank = Some(self.claim.epoch());
        if !self.claim.is_valid() {
            return Err(outlived(&self.claim));
        }
        let hold = engine.acquire(wish).await?.granted().ok_or_else(|| outlived(&self.claim))?;
        let hint = engine.hint(HintKey::Log(at.clone()));
        let progress = engine.open(&at, &group, self.start.into(), &hold).await?;
        let window = Window::new(&progress, MAX_VERDICTS);
        Ok(Feed {
            claim: self.claim,
            engine,
            at,
            group,
            start: self.start,
            hold,
            hint,
            window,
            shelf: VecDeque::new(),
            due: VecDeque::new(),
            upkeep: Upkeep::new(),
            settled: 0,
            unsent: None,
        })
    }
}

impl IntoFuture for FeedBuilder {
    type Output = Result<Feed>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

/// The group of a service that reads its units' data. Long names are hashed to fit.
fn own_group(service: &str) -> GroupName {
    GroupName::new(format!("claims.{service}")).unwrap_or_else(|_| {
        GroupName::new(format!("claims-{:016x}", key_hash(service.as_bytes()))).expect("a valid name")
    })
}

fn outlived(claim: &Claim) -> Error {
    let context =
        format!("claim {} under epoch {} is over: a newer owner reads its data", claim.name(), claim.epoch());
    Error::new(ErrorKind::Fenced, context)
}

/// A unit's own data. Records come in order; [`ack`](Self::ack) or [`reject`](Self::reject) each.
///
/// Verdicts are stored in batches: when 100 wait, when nothing more is to be read, and with [`commit`](Self::commit). What was not
/// stored comes again to the next owner. At most 1000 records are unsettled at a time. Delayed messages come when they are due,
/// and dead letters that are replayed come again, before what is new.
pub struct Feed {
    claim: Claim,
    engine: Engine,
    at: Partition,
    group: GroupName,
    start: StartAt,
    hold: Hold,
    hint: Hint,
    window: Window,
    shelf: VecDeque<Raw>,
    /// Replayed records.
    due: VecDeque<Raw>,
    upkeep: Upkeep,
    settled: usize,
    /// A commit that is not stored for sure, and whether it may be: whoever stops waiting for it loses no verdict.
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

impl Feed {
    /// The next record, as soon as there is one; `None` when the claim is recalled or has ended. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Record>> {
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
                        () = self.claim.recalled() => {}
                    }
                }
                Err(error) if error.is_retryable() && self.claim.is_valid() => {
                    failures += 1;
                    tracing::debug!(%error, unit = self.claim.name(), "a feed cannot be read; trying again");
                    tokio::time::sleep(PATIENCE.delay(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The next record if there is one now; `None` also when the claim is recalled or has ended. Cancel-safe.
    pub async fn try_next(&mut self) -> Result<Option<Record>> {
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
        self.claim.is_recalled() || !self.claim.is_valid()
    }

    /// With its payload as it was sent; one that is damaged beyond opening is a dead letter.
    fn opened(&mut self, mut raw: Raw) -> Result<Option<Record>> {
        if let Err(error) = payload::open(&mut raw.content) {
            self.window.settle(&raw, Verdict::Dead { reason: error.to_string().into() })?;
            self.settled += 1;
            return Ok(None);
        }
        Ok(Some(Record::new(self.at.clone(), Companion::alone(raw))))
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
                self.claim.name()
            )));
        }
        let room = PAGE.min(room);
        if self.upkeep.asked.is_some() || Instant::now() >= self.upkeep.at {
            self.look(room).await?;
            if !self.due.is_empty() {
                return Ok(true);
            }
        }
        let records = self.engine.read(&self.at, self.window.position(), Max::records(room)).await?;
        self.shelf.extend(records);
        Ok(!self.shelf.is_empty())
    }

    /// Brings delayed messages into the log and takes replayed records.
    async fn look(&mut self, room: usize) -> Result<()> {
        let ripened = self.engine.ripen(&self.at, RIPEN).await?;
        if self.upkeep.is_unsure {
            self.engine.open(&self.at, &self.group, self.start.into(), &self.hold).await?;
            self.upkeep.is_unsure = false;
        }
        let asked = self.upkeep.asked.get_or_insert_with(|| {
            let (engine, at, group, hold) =
                (self.engine.clone(), self.at.clone(), self.group.clone(), self.hold.clone());
            Box::pin(async move {
                let wish = TakeDue { max: room, known: &[] };
                engine.due(&at, &group, &hold, wish).await
            })
        });
        let due = asked.await;
        self.upkeep.asked = None;
        let due = due.inspect_err(|error| self.upkeep.is_unsure |= error.may_have_happened())?;
        self.due.extend(due.records.into_iter().filter_map(|record| record.with(|| None)));
        let now = Instant::now();
        let soonest = [due.next, ripened.next, Some(LOOK_ANYWAY)].into_iter().flatten().min();
        self.upkeep.looked = now;
        self.upkeep.at = now + soonest.unwrap_or(LOOK_ANYWAY);
        Ok(())
    }

    /// Done with this record.
    pub fn ack(&mut self, record: &Record) -> Result<()> {
        self.settle(record, Verdict::Ack)
    }

    /// Hopeless: make it a dead letter of the feed's group.
    pub fn reject(&mut self, record: &Record, why: impl fmt::Display) -> Result<()> {
        self.settle(record, Verdict::Dead { reason: why.to_string().into() })
    }

    fn settle(&mut self, record: &Record, verdict: Verdict) -> Result<()> {
        self.window.settle(&record.clone().into_inner(), verdict)?;
        self.settled += 1;
        Ok(())
    }

    /// Stores all verdicts given so far; [`Fenced`](ErrorKind::Fenced) if somebody newer owns the unit, and then nothing is stored.
    pub async fn commit(&mut self) -> Result<()> {
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
            match self.engine.commit(&self.at, &self.group, &self.hold, commit.clone()).await {
                Ok(_) => break,
                Err(error) if was_sent && error.kind() == ErrorKind::Invalid => break,
                Err(error) if error.is_retryable() && self.claim.is_valid() => {
                    *may_be_stored = was_sent || error.may_have_happened();
                    failures += 1;
                    tokio::time::sleep(PATIENCE.delay(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The claim under which it is read.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Stores all verdicts and ends.
    pub async fn close(mut self) -> Result<()> {
        self.commit().await
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Feed({} of {:?})", self.at, self.claim)
    }
}
