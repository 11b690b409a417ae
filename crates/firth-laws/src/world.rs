//! Small hands for the laws: fresh names, an owner with its window, ways to look and to wait.

use firth_engine::facet::{Acquire, Append, GroupStatus, LeaseQuery, ReadLimit, StartPosition, TakeDue};
use firth_engine::{
    Commit, Content, Engine, ErrorKind, GroupName, Hold, HolderName, LeaseInfo, LeaseName, MemberName, Offer,
    Partition, PoolName, ProducerName, Progress, Record, RecordId, Result, SpaceName, TopicName, Verdict,
    Window,
};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// A lease that does not run out during a test.
pub const LONG: Duration = Duration::from_secs(600);
/// A lease that runs out soon, with a margin for busy machines.
pub const SHORT: Duration = Duration::from_millis(150);
/// Longer than any healthy wait.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A name that no other test has.
pub fn fresh(stem: &str) -> String {
    format!("{stem}-{:016x}", fastrand::u64(..))
}

/// A fresh topic's partition 0, made.
pub async fn partition(engine: &Engine) -> Partition {
    let at = unmade_partition();
    assert!(engine.create_partition(&at).await.unwrap());
    at
}

/// A fresh topic's partition 0, not made.
pub fn unmade_partition() -> Partition {
    Partition::new(TopicName::new(fresh("topic")).unwrap(), 0)
}

/// A group by this name.
pub fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

/// A fresh holder.
pub fn holder() -> HolderName {
    HolderName::new(fresh("holder")).unwrap()
}

/// A fresh producer.
pub fn producer() -> ProducerName {
    ProducerName::new(fresh("producer")).unwrap()
}

/// A lease in a fresh pool.
pub fn pool_lease() -> LeaseName {
    LeaseName::pool(&PoolName::new(fresh("pool")).unwrap(), &MemberName::new("lease").unwrap())
}

/// A fresh space of the catalog.
pub fn space() -> SpaceName {
    SpaceName::new(fresh("space")).unwrap()
}

/// Content that says its number.
pub fn numbered(n: u64) -> Content {
    Content::new(n.to_string()).with_key(format!("key-{}", n % 3))
}

/// As [`numbered`], with noise behind the number: it fills pages of a disk, and no compression
/// shrinks it.
pub fn bulky(n: u64) -> Content {
    let mut noise = fastrand::Rng::with_seed(n);
    let mut payload = format!("{n} ").into_bytes();
    let length = [100, 5_000, 20_000][noise.usize(..3)];
    payload.extend(std::iter::repeat_with(|| noise.u8(..)).take(length));
    Content::new(payload).with_key(format!("key-{}", n % 3))
}

/// Appends records numbered `from..to` one batch at a time.
pub async fn append(engine: &Engine, at: &Partition, from: u64, to: u64) -> Vec<RecordId> {
    let batch: Vec<Content> = (from..to).map(numbered).collect();
    engine.append(at, Append::new(batch)).await.unwrap().ids().collect()
}

/// Everything in the log.
pub async fn read_all(engine: &Engine, at: &Partition) -> Vec<Record> {
    let mut all = Vec::new();
    let mut after = RecordId::ZERO;
    loop {
        let page = engine.read(at, after, ReadLimit::records(500)).await.unwrap();
        let Some(last) = page.last() else {
            return all;
        };
        after = last.id;
        all.extend(page);
    }
}

/// The number that [`numbered`] or [`bulky`] wrote into a record.
pub fn number(record: &Record) -> u64 {
    let word = record.content.payload.split(|byte| *byte == b' ').next().unwrap();
    std::str::from_utf8(word).unwrap().parse().unwrap()
}

/// The numbers of records.
pub fn numbers(records: &[Record]) -> Vec<u64> {
    records.iter().map(number).collect()
}

/// Takes the lease of a group, which must be free.
pub async fn acquire(engine: &Engine, at: &Partition, group: &GroupName, ttl: Duration) -> Hold {
    let request = Acquire::new(LeaseName::group(at, group), holder(), ttl);
    engine.acquire(request).await.unwrap().granted().expect("the lease is free")
}

/// Takes the lease of a group from its owner, as if that owner had vanished: it neither released
/// nor was it revoked.
pub async fn take_over(engine: &Engine, at: &Partition, group: &GroupName) -> Hold {
    let name = LeaseName::group(at, group);
    let now = engine.leases(&LeaseQuery::Names(vec![name])).await.unwrap();
    let seen = now.first().expect("somebody had the lease");
    snatch(engine, seen).await.expect("a lease that stands still can be taken")
}

/// As [`take_over`], from an owner that lives: waits for one, and for a moment between two of its
/// renewals.
pub async fn seize(engine: &Engine, at: &Partition, group: &GroupName) -> Hold {
    let query = LeaseQuery::Names(vec![LeaseName::group(at, group)]);
    soon("somebody has the lease, and loses it", async {
        loop {
            let seen = engine.leases(&query).await.unwrap().pop().filter(LeaseInfo::is_held);
            if let Some(seen) = seen
                && let Some(hold) = snatch(engine, &seen).await
            {
                return hold;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// Takes a lease whose holder has not moved since it was seen, as if that were a whole lease ago.
pub async fn snatch(engine: &Engine, seen: &LeaseInfo) -> Option<Hold> {
    let mut request = Acquire::new(seen.name.clone(), holder(), LONG);
    request.stalled = Some((seen.epoch, seen.beats));
    engine.acquire(request).await.unwrap().granted()
}

/// The status of a group.
pub async fn status(engine: &Engine, at: &Partition, group: &GroupName) -> GroupStatus {
    engine.status(at, group).await.unwrap()
}

/// Asserts the kind of a failure.
#[track_caller]
pub fn fails<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) {
    let error = result.expect_err("it must be refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(!error.may_have_happened(), "a refusal is definite: {error:?}");
}

/// Waits until `check` holds; panics after [`PATIENCE`].
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !check().await {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for `future`; panics after [`PATIENCE`].
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// The time between two generations, long enough to tell old from young also on a machine that is
/// starved for a while.
pub struct Gap(Instant);

impl Gap {
    const LENGTH: Duration = Duration::from_secs(2);

    /// Lets what is there grow old.
    pub async fn pass() -> Self {
        tokio::time::sleep(Self::LENGTH).await;
        Self(Instant::now())
    }

    /// An age between the two, if it is used at once.
    pub fn age(&self) -> Duration {
        self.0.elapsed() + Self::LENGTH - Duration::from_millis(50)
    }
}

/// An owner of a group's partition, as a lane would be one.
pub struct Owner {
    /// The engine.
    pub engine: Engine,
    /// The partition.
    pub at: Partition,
    /// The group.
    pub group: GroupName,
    /// The proof.
    pub hold: Hold,
    /// What opening answered.
    pub progress: Progress,
    pub(crate) window: Window,
    queue: VecDeque<Record>,
}

impl Owner {
    /// Takes the free lease and opens the group from the start.
    pub async fn new(engine: &Engine, at: &Partition, group: &GroupName) -> Self {
        let hold = acquire(engine, at, group, LONG).await;
        Self::with(engine, at, group, hold).await
    }

    /// Takes over from an owner that vanished.
    pub async fn after_crash(engine: &Engine, at: &Partition, group: &GroupName) -> Self {
        let hold = take_over(engine, at, group).await;
        Self::with(engine, at, group, hold).await
    }

    /// Opens the group with this hold.
    pub async fn with(engine: &Engine, at: &Partition, group: &GroupName, hold: Hold) -> Self {
        Self::open(engine, at, group, hold).await.unwrap()
    }

    /// As [`with`](Self::with), on an engine that may fail.
    pub async fn open(engine: &Engine, at: &Partition, group: &GroupName, hold: Hold) -> Result<Self> {
        let progress = engine.open(at, group, StartPosition::Start, &hold).await?;
        let window = Window::new(&progress, 1000);
        let engine = engine.clone();
        let at = at.clone();
        let group = group.clone();
        Ok(Self { engine, at, group, hold, progress, window, queue: VecDeque::new() })
    }

    /// The next record of the log, delivered; `None` when there is none.
    pub async fn next(&mut self) -> Option<Record> {
        loop {
            if let Some(record) = self.queue.pop_front() {
                match self.window.offer(&record) {
                    Offer::Deliver => return Some(record),
                    Offer::Skip => continue,
                }
            }
            let page =
                self.engine.read(&self.at, self.window.position(), ReadLimit::records(100)).await.unwrap();
            if page.is_empty() {
                return None;
            }
            self.queue.extend(page);
        }
    }

    /// The next `count` records, which must be there.
    pub async fn take(&mut self, count: usize) -> Vec<Record> {
        let mut taken = Vec::new();
        for _ in 0..count {
            taken.push(self.next().await.expect("the record is there"));
        }
        taken
    }

    /// Takes due records.
    pub async fn due(&mut self, max: usize) -> Vec<Record> {
        self.try_due(max).await.unwrap()
    }

    /// As [`due`](Self::due), on an engine that may fail.
    pub async fn try_due(&mut self, max: usize) -> Result<Vec<Record>> {
        let due = self.engine.due(&self.at, &self.group, &self.hold, TakeDue::up_to(max)).await?;
        let whole =
            due.records.into_iter().map(|record| record.with(|| None).expect("it comes with its content"));
        let records: Vec<Record> = whole.collect();
        records.iter().for_each(|record| assert!(self.window.offer_due(record), "handed out twice"));
        Ok(records)
    }

    /// Notes a verdict.
    pub fn settle(&mut self, record: &Record, verdict: Verdict) {
        self.window.settle(record, verdict).unwrap();
    }

    /// Commits what was settled.
    pub async fn commit(&mut self) {
        self.try_commit().await.unwrap();
    }

    /// As [`commit`](Self::commit), on an engine that may fail. After a failure the owner has to
    /// open the group again.
    pub async fn try_commit(&mut self) -> Result<()> {
        if let Some(commit) = self.window.take_commit() {
            self.engine.commit(&self.at, &self.group, &self.hold, commit).await?;
        }
        Ok(())
    }

    /// Notes a verdict and commits it.
    pub async fn judge(&mut self, record: &Record, verdict: Verdict) {
        self.settle(record, verdict);
        self.commit().await;
    }

    /// Sends a commit of one's own making.
    pub async fn send(&self, commit: Commit) -> Result<firth_engine::facet::Committed> {
        self.engine.commit(&self.at, &self.group, &self.hold, commit).await
    }

    /// Delivers, acknowledges and commits everything; answers the numbers in order.
    pub async fn drain(&mut self) -> Vec<u64> {
        let mut seen = Vec::new();
        while let Some(record) = self.next().await {
            seen.push(number(&record));
            self.settle(&record, Verdict::Ack);
        }
        self.commit().await;
        seen
    }

    /// Gives the lease back.
    pub async fn leave(self) {
        assert!(self.engine.release(&self.hold).await.unwrap());
    }
}

/// "Try again", after a while.
pub fn retry(after: Duration) -> Verdict {
    Verdict::Retry { after, reason: "try again".into(), keep: false }
}

/// "Try again", with the content kept aside.
pub fn retry_kept(after: Duration) -> Verdict {
    Verdict::Retry { after, reason: "try again".into(), keep: true }
}

/// "Give it up".
pub fn dead(reason: &str) -> Verdict {
    Verdict::dead(reason)
}
