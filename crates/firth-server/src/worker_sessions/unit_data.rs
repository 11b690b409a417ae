//! The own data of units, read and settled for clients under their claims.
//!
//! The server keeps a record that it read, under a place of its own, until the client settles it.
//! If an answer is lost, the client asks again and gets the same records. The server stores
//! verdicts before it answers. If a feed fails, the server drops it, and the next call opens it
//! again. The engine knows what is settled; the rest comes again.
//!
//! Bounded: [`MAX_FEEDS`] feeds, each with [`MAX_UNSETTLED`] records or [`MAX_BYTES`] and the one
//! record that was too much. A read that waits for a record gives way to a call that settles.

use firth::claims::{Claim, UnitData};
use firth::{Error, ErrorKind, Record, RecordId, Result, StartAt};
use futures_util::FutureExt;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{
    Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, Notify, OwnedSemaphorePermit, Semaphore,
};
use tokio::time::Instant;

/// The most feeds of a server.
pub(super) const MAX_FEEDS: usize = 256;
/// The most records of one feed that are read and not settled.
pub(crate) const MAX_UNSETTLED: usize = 500;
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Which data a unit follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DataSource {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    /// Whose progress it is; the service's own unless set.
    pub(crate) group: Option<String>,
}

/// The feeds of one session.
#[derive(Default)]
pub(super) struct SessionData(Mutex<HashMap<(String, u64, DataSource), Arc<HeldData>>>);

impl SessionData {
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, u64, DataSource), Arc<HeldData>>> {
        self.0.lock().expect("nothing panics under this lock")
    }

    /// The feed of this claim, held from now on.
    pub(super) fn get(
        &self,
        claim: &Claim,
        (source, start): (DataSource, StartAt),
        permits: &Arc<Semaphore>,
    ) -> Result<Arc<HeldData>> {
        let key = (claim.name().to_owned(), claim.epoch().0, source.clone());
        let mut feeds = self.lock();
        if let Some(known) = feeds.get(&key) {
            return Ok(known.clone());
        }
        let permit = permits.clone().try_acquire_owned().map_err(|_| {
            let why = format!("at most {MAX_FEEDS} feeds are open here at a time: finish or release units");
            Error::new(ErrorKind::Overloaded, why)
        })?;
        let held = Arc::new(HeldData {
            claim: claim.clone(),
            source,
            start,
            slot: AsyncMutex::default(),
            places: AtomicU64::new(0),
            wanted: Notify::new(),
            room: Notify::new(),
            _permit: permit,
        });
        feeds.insert(key, held.clone());
        Ok(held)
    }

    /// The claim is over.
    pub(super) fn forget(&self, name: &str, epoch: u64) {
        self.lock().retain(|(unit, grant, _), _| (unit.as_str(), *grant) != (name, epoch));
    }

    /// All claims are over.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }
}

/// What to do when a feed holds as many unsettled records as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    Refuse,
    /// Wait until some are settled; this number counts as full.
    Wait(usize),
}

/// Verdicts on records by their ids.
#[derive(Debug, Default)]
pub(crate) struct DataVerdicts {
    /// Everything up to this place is done.
    pub(crate) ack_to: Option<u64>,
    pub(crate) ack: Vec<String>,
    /// Ids and reasons.
    pub(crate) reject: Vec<(String, String)>,
}

/// Outcome of verdicts.
#[derive(Debug, Default)]
pub(crate) struct DataOutcome {
    pub(crate) settled: u64,
    pub(crate) failed: Vec<(String, Error)>,
}

/// One feed.
pub(crate) struct HeldData {
    claim: Claim,
    source: DataSource,
    start: StartAt,
    slot: AsyncMutex<Option<OpenData>>,
    places: AtomicU64,
    /// Another call waits for the slot.
    wanted: Notify,
    /// Something was settled.
    room: Notify,
    _permit: OwnedSemaphorePermit,
}

struct OpenData {
    feed: UnitData,
    unsettled: BTreeMap<u64, Record>,
    places: HashMap<RecordId, u64>,
    bytes: usize,
}

impl HeldData {
    /// Unsettled records after a place, with their places, waiting up to `until` for the first.
    /// Nothing when the time is up or the claim is wanted back. Cancel-safe.
    pub(crate) async fn read(
        &self,
        (after, max): (u64, usize),
        until: Instant,
        full: WhenFull,
    ) -> Result<Vec<(u64, Record)>> {
        loop {
            self.check()?;
            let Ok(mut slot) = tokio::time::timeout_at(until, self.lock()).await else {
                return Ok(Vec::new());
            };
            let limit = if let WhenFull::Wait(limit) = full { limit } else { MAX_UNSETTLED };
            let page = self.page(&mut slot, (after, max), limit).await?;
            if !page.is_empty() || self.claim.is_recalled() {
                return Ok(page);
            }
            let Some(open) = slot.as_mut() else { continue };
            if open.is_full(limit) && full == WhenFull::Refuse {
                return Err(too_many(&self.claim, open.unsettled.len()));
            }
            if Instant::now() >= until {
                return Ok(page);
            }
            if open.is_full(limit) {
                self.wait_for_room(slot, until).await;
                continue;
            }
            tokio::select! {
                biased;
                () = self.wanted.notified() => {}
                () = tokio::time::sleep_until(until) => {}
                next = open.feed.next() => match next {
                    Ok(Some(record)) => open.take_in(self.next_place(), record),
                    // The claim is wanted back, or over.
                    Ok(None) => {}
                    Err(error) => {
                        *slot = None;
                        return Err(error);
                    }
                },
            }
        }
    }

    /// Stores verdicts on records that were read.
    pub(crate) async fn settle(&self, verdicts: DataVerdicts) -> Result<DataOutcome> {
        let mut slot = self.lock().await;
        let open = self.open(&mut slot).await?;
        let outcome = open.settle(verdicts);
        let stored = open.feed.commit().await;
        if stored.is_err() {
            *slot = None;
        }
        drop(slot);
        self.room.notify_waiters();
        stored.map(|()| outcome)
    }

    /// Whether the claim is wanted back.
    pub(crate) fn is_recalled(&self) -> bool {
        self.claim.is_recalled()
    }

    /// Locks the slot. A read that holds it while it waits for a record gives way.
    async fn lock(&self) -> AsyncMutexGuard<'_, Option<OpenData>> {
        if let Ok(slot) = self.slot.try_lock() {
            return slot;
        }
        self.wanted.notify_one();
        self.slot.lock().await
    }

    /// Fails unless the claim holds.
    fn check(&self) -> Result<()> {
        if self.claim.ended().now_or_never().is_some() {
            let why = format!("claim {} is over: stop working on it", self.claim.name());
            return Err(Error::new(ErrorKind::Fenced, why));
        }
        if !self.claim.is_valid() {
            let why = "the server could not renew the claim in time: others may have it";
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        Ok(())
    }

    fn next_place(&self) -> u64 {
        self.places.fetch_add(1, Ordering::Relaxed) + 1
    }

    async fn wait_for_room(&self, slot: AsyncMutexGuard<'_, Option<OpenData>>, until: Instant) {
        let mut room = std::pin::pin!(self.room.notified());
        room.as_mut().enable();
        drop(slot);
        tokio::select! {
            () = room => {}
            () = self.claim.recalled() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }

    async fn open<'a>(&self, slot: &'a mut Option<OpenData>) -> Result<&'a mut OpenData> {
        if slot.is_none() {
            let DataSource { topic, partition, group } = &self.source;
            let mut feed = self.claim.follow(topic).partition(*partition).start_at(self.start);
            if let Some(group) = group {
                feed = feed.group(group.clone());
            }
            let unsettled = BTreeMap::new();
            let places = HashMap::new();
            *slot = Some(OpenData { feed: feed.await?, unsettled, places, bytes: 0 });
        }
        slot.as_mut().ok_or_else(|| Error::new(ErrorKind::Internal, "a feed was closed while it was opened"))
    }

    /// What is there now.
    async fn page(
        &self,
        slot: &mut Option<OpenData>,
        (after, max): (u64, usize),
        limit: usize,
    ) -> Result<Vec<(u64, Record)>> {
        let open = self.open(slot).await?;
        let mut count = open.unsettled.range(after.saturating_add(1)..).count();
        while count < max && !open.is_full(limit) {
            match open.feed.try_next().await {
                Ok(Some(record)) => open.take_in(self.next_place(), record),
                Ok(None) => break,
                Err(error) => {
                    *slot = None;
                    return Err(error);
                }
            }
            count += 1;
        }
        let rows = open.unsettled.range(after.saturating_add(1)..).take(max);
        Ok(rows.map(|(place, record)| (*place, record.clone())).collect())
    }
}

impl OpenData {
    fn is_full(&self, limit: usize) -> bool {
        self.unsettled.len() >= limit.min(MAX_UNSETTLED) || self.bytes >= MAX_BYTES
    }

    fn take_in(&mut self, place: u64, record: Record) {
        self.bytes += record.payload().len();
        self.places.insert(record.id(), place);
        self.unsettled.insert(place, record);
    }

    fn settle(&mut self, verdicts: DataVerdicts) -> DataOutcome {
        let mut outcome = DataOutcome::default();
        if let Some(to) = verdicts.ack_to {
            let places: Vec<u64> = self.unsettled.range(..=to).map(|(place, _)| *place).collect();
            for place in places {
                let settled = self.settle_one(place, UnitData::ack);
                outcome.note(&place.to_string(), settled);
            }
        }
        for id in verdicts.ack {
            let settled = self.place_of(&id);
            let settled = settled.and_then(|at| self.settle_one(at, UnitData::ack));
            outcome.note(&id, settled);
        }
        for (id, reason) in verdicts.reject {
            let settled = self.place_of(&id);
            let settled =
                settled.and_then(|at| self.settle_one(at, |feed, record| feed.reject(record, &reason)));
            outcome.note(&id, settled);
        }
        outcome
    }

    fn place_of(&self, id: &str) -> Result<u64> {
        let known = id.parse().ok().and_then(|id: RecordId| self.places.get(&id).copied());
        known.ok_or_else(|| {
            let why = format!("record {id} is not in hand: it is settled, or was not read here yet");
            Error::new(ErrorKind::NotFound, why)
        })
    }

    fn settle_one(
        &mut self,
        place: u64,
        verdict: impl FnOnce(&mut UnitData, &Record) -> Result<()>,
    ) -> Result<()> {
        let Some(record) = self.unsettled.remove(&place) else { return Ok(()) };
        self.places.remove(&record.id());
        self.bytes = self.bytes.saturating_sub(record.payload().len());
        verdict(&mut self.feed, &record)
    }
}

impl DataOutcome {
    fn note(&mut self, which: &str, settled: Result<()>) {
        match settled {
            Ok(()) => self.settled += 1,
            Err(error) => self.failed.push((which.to_owned(), error)),
        }
    }
}

fn too_many(claim: &Claim, count: usize) -> Error {
    let why = format!(
        "{count} records of {} are read and not settled: settle some before reading on",
        claim.name()
    );
    Error::new(ErrorKind::Overloaded, why)
}
