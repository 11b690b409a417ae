//! [`UnitData`]: a unit's own data, read in order and settled under its claim.
//!
//! The partition's lease is ranked by the claim's epoch. Opening the data takes the lease from
//! every former owner of the unit at once, even from one that still runs. A former owner can never
//! take it back. There is nothing to renew: the claim is the authority, the lease only the fence
//! that the engine checks with each commit.

mod reader;

use super::claim::Claim;
use crate::consumer::StartAt;
use crate::error::{Error, ErrorKind, Result};
use crate::partitioner::key_hash;
use crate::record::Record;
use firth_engine::facet::Acquire;
use firth_engine::limits::{MAX_TTL, MAX_VERDICTS};
use firth_engine::{GroupName, HintKey, HolderName, LeaseName, Partition, TopicName, Verdict, Window};
use futures_core::Stream;
use reader::{ReadRight, Reader};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::{Mutex, MutexGuard};

/// A unit's data about to be read; finish it with `.await`.
#[must_use = "nothing is read until it is awaited"]
pub struct UnitDataBuilder {
    claim: Claim,
    topic: String,
    partition: u32,
    group: Option<String>,
    start: StartAt,
}

impl UnitDataBuilder {
    pub(crate) fn new(claim: Claim, topic: &str) -> Self {
        Self { claim, topic: topic.to_owned(), partition: 0, group: None, start: StartAt::default() }
    }

    /// Which partition of the topic is the unit's; the first unless set.
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = partition;
        self
    }

    /// The group whose progress it is; one of the service's own unless set. Do not let consumers
    /// join it.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Where the unit's first owner starts; at the oldest record unless set. Later ones go on where
    /// the last one was.
    pub fn start_at(mut self, start: StartAt) -> Self {
        self.start = start;
        self
    }

    async fn open(self) -> Result<UnitData> {
        let common = &self.claim.shard().common;
        let engine = common.engine.clone();
        let at = Partition::new(TopicName::new(&self.topic)?, self.partition);
        let group = match &self.group {
            Some(group) => GroupName::new(group)?,
            None => own_group(common.service.as_str()),
        };
        let holder = HolderName::new(common.id.as_str())?;
        let mut request = Acquire::new(LeaseName::group(&at, &group), holder, MAX_TTL);
        request.rank = Some(self.claim.epoch());
        if !self.claim.is_valid() {
            return Err(outlived(&self.claim));
        }
        let hold = engine.acquire(request).await?.granted().ok_or_else(|| outlived(&self.claim))?;
        let hint = engine.hint(HintKey::Log(at.clone()));
        let progress = engine.open(&at, &group, self.start.into(), &hold).await?;
        let window = Window::new(&progress, MAX_VERDICTS);
        let source = ReadRight { claim: self.claim.clone(), engine, at, group, start: self.start, hold };
        let reader = Arc::new(Mutex::new(Reader::new(source, hint, window)));
        Ok(UnitData { claim: self.claim, reader, reading: None })
    }
}

impl IntoFuture for UnitDataBuilder {
    type Output = Result<UnitData>;
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

type Reading = Pin<Box<dyn Future<Output = Result<Option<Record>>> + Send>>;

/// A unit's own data. Records come in order; [`ack`](Self::ack) or [`reject`](Self::reject) each.
///
/// Verdicts are stored in batches: when 100 wait, when nothing more is to be read, and with
/// [`commit`](Self::commit). What was not stored comes again to the next owner. At most 1000
/// records are unsettled at a time. Delayed messages come when they are due, and dead letters that
/// are replayed come again, before what is new.
pub struct UnitData {
    claim: Claim,
    reader: Arc<Mutex<Reader>>,
    /// A read that a poll of the stream began. Dropping it loses nothing, as each read is
    /// cancel-safe.
    reading: Option<Reading>,
}

impl UnitData {
    /// The next record, as soon as there is one; `None` when the claim is recalled or has ended.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        self.reader().next().await
    }

    /// The next record if there is one now; `None` also when the claim is recalled or has ended.
    /// Cancel-safe.
    pub async fn try_next(&mut self) -> Result<Option<Record>> {
        self.reader().try_next().await
    }

    /// Done with this record.
    pub fn ack(&mut self, record: &Record) -> Result<()> {
        self.reader().settle(record, Verdict::Ack)
    }

    /// Gives the record up: it becomes a dead letter of the group.
    pub fn reject(&mut self, record: &Record, why: impl fmt::Display) -> Result<()> {
        self.reader().settle(record, Verdict::dead(why.to_string()))
    }

    /// Stores all verdicts given so far. If a newer owner has the unit, nothing is stored and the
    /// error is [`Fenced`](ErrorKind::Fenced).
    pub async fn commit(&mut self) -> Result<()> {
        self.reader().commit().await
    }

    /// The claim under which it is read.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Stores all verdicts and ends.
    pub async fn close(mut self) -> Result<()> {
        self.commit().await
    }

    fn reader(&mut self) -> MutexGuard<'_, Reader> {
        self.reading = None;
        self.reader.try_lock().expect("a read ends when it is dropped")
    }
}

/// Records as [`UnitData::next`] gives them.
impl Stream for UnitData {
    type Item = Result<Record>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let reading = this.reading.get_or_insert_with(|| {
            let reader = this.reader.clone();
            Box::pin(async move { reader.lock_owned().await.next().await })
        });
        let read = ready!(reading.as_mut().poll(context));
        this.reading = None;
        Poll::Ready(read.transpose())
    }
}

impl fmt::Debug for UnitData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnitData({:?})", self.claim)
    }
}
