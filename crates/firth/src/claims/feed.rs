//! [`Feed`]: a unit's own data, read in order and settled under its claim.
//!
//! The partition's lease is ranked by the claim's epoch: opening a feed takes it from every former owner of the unit at once, whoever is
//! still running, and a former owner can never take it back. There is nothing to renew: the claim is the authority, the lease only
//! the fence that is checked with each commit.

use super::claim::Claim;
use crate::consumer::StartAt;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::partitioner::key_hash;
use crate::record::Record;
use firth_engine::facet::{Acquire, Max};
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

/// Verdicts that wait for company.
const COMMIT_AT: usize = 100;
/// Records read at once.
const PAGE: usize = 256;
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
        let shelf = VecDeque::new();
        Ok(Feed { claim: self.claim, engine, at, group, hold, hint, window, shelf, settled: 0 })
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
/// stored comes again to the next owner. At most 1000 records are unsettled at a time.
pub struct Feed {
    claim: Claim,
    engine: Engine,
    at: Partition,
    group: GroupName,
    hold: Hold,
    hint: Hint,
    window: Window,
    shelf: VecDeque<Raw>,
    settled: usize,
}

impl Feed {
    /// The next record, as soon as there is one; `None` when the claim is recalled or has ended. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        let mut failures = 0;
        loop {
            if self.claim.is_recalled() || !self.claim.is_valid() {
                return Ok(None);
            }
            if let Some(raw) = self.shelf.pop_front() {
                match self.window.offer(&raw) {
                    Offer::Deliver => return Ok(Some(Record::new(self.at.clone(), raw))),
                    Offer::Skip => continue,
                }
            }
            let filled = match self.commit_if(self.settled >= COMMIT_AT).await {
                Ok(()) => self.fill().await,
                Err(error) => Err(error),
            };
            match filled {
                Ok(true) => failures = 0,
                Ok(false) => {
                    self.commit().await?;
                    tokio::select! {
                        () = self.hint.wait() => {}
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
        let records =
            self.engine.read(&self.at, self.window.position(), Max::records(PAGE.min(room))).await?;
        self.shelf.extend(records);
        Ok(!self.shelf.is_empty())
    }

    /// Done with this record.
    pub fn ack(&mut self, record: &Record) -> Result<()> {
        self.settle(record, Verdict::Ack)
    }

    /// Hopeless: make it a dead letter of the feed's group.
    pub fn reject(&mut self, record: &Record, why: impl fmt::Display) -> Result<()> {
        self.settle(record, Verdict::Dead { reason: why.to_string() })
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
        if !wanted {
            return Ok(());
        }
        self.settled = 0;
        let Some(commit) = self.window.take_commit() else { return Ok(()) };
        self.store(commit).await
    }

    /// A commit states the whole progress, so that it may be sent again after a lost answer.
    async fn store(&self, commit: Commit) -> Result<()> {
        let (mut failures, mut unsure) = (0, false);
        loop {
            match self.engine.commit(&self.at, &self.group, &self.hold, commit.clone()).await {
                Ok(_) => return Ok(()),
                Err(error) if unsure && error.kind() == ErrorKind::Invalid => return Ok(()),
                Err(error) if error.is_retryable() && self.claim.is_valid() => {
                    unsure |= error.may_have_happened();
                    failures += 1;
                    tokio::time::sleep(PATIENCE.delay(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
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
