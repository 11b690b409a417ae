//! [`Faulty`]: an engine that fails and dawdles on purpose, for the crates above.
//!
//! It wraps any engine. Before a call it may fail definitely (nothing happened), after a call it
//! may lose the answer (it happened, and the caller does not know), and it may take its time.
//! Which, is decided by a seeded generator, so that a failing test can be repeated; or by a plan
//! for the next call of a name. All calls, or those of a name, can be held up, like those of a
//! process that is stopped, and they are counted. Hints and subscriptions are passed through,
//! unless it is deaf. Several of these over one engine stand for several processes.

use bytes::Bytes;
use firth_engine::facet::{
    Acquire, Acquired, Adopt, Append, Appended, Backend, Beat, Bounds, Bus, Catalog, ClaimKey, ClaimShard,
    ClaimShardStatus, Committed, DeadLetter, DeadLetters, DelayedAction, DelayedOutcome, DelayedPage, Due,
    Edit, EngineNode, Entry, EntryKey, Expect, Granted, GroupStatus, Groups, Join, LeaseQuery, Leases, Log,
    Membership, MembershipInfo, NewOffer, OfferInfo, Offers, Outcome, Pending, Promoted, Put, ReadLimit,
    Replay, Reply, Reset, SourceMark, StartPosition, StreamGroup, Streams, Subscription, TakeDue, Taken,
    Trim, Trimmed,
};
use firth_engine::{
    ChannelName, Commit, Durability, Engine, Epoch, Error, ErrorKind, GroupName, Hint, HintKey, Hints, Hold,
    LeaseInfo, LeaseName, OfferName, Partition, Progress, Record, RecordId, Result, SourceName, SpaceName,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;

/// How faulty to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The seed of all decisions.
    pub seed: u64,
    /// Probability that a call fails before it happens.
    pub refuse: f64,
    /// Probability that a call happens and its answer is lost.
    pub lose_answer: f64,
    /// Each call takes up to this long.
    pub delay: Duration,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is certainly not done.
    Refused,
    /// It is done, but the caller does not hear of it.
    LostReply,
}

/// A switchable source of faults around an engine.
#[derive(Clone)]
pub struct Faulty {
    engine: Engine,
    state: Arc<Mutex<State>>,
    cut: Arc<watch::Sender<Cut>>,
}

/// Which calls have to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Nothing,
    Call(&'static str),
    Everything,
}

struct State {
    faults: Faults,
    random: fastrand::Rng,
    planned: Vec<(&'static str, Fault)>,
    counts: HashMap<&'static str, u64>,
    is_deaf: bool,
}

/// What happens to one call.
struct Fate {
    fault: Option<Fault>,
    delay: Duration,
}

impl Faulty {
    /// Wraps `engine`; the handle changes the faults later, the engine is for the code under test.
    pub fn wrap(engine: Engine, faults: Faults) -> (Engine, Self) {
        let random = fastrand::Rng::with_seed(faults.seed);
        let state = State { faults, random, planned: Vec::new(), counts: HashMap::new(), is_deaf: false };
        let cut = Arc::new(watch::Sender::new(Cut::Nothing));
        let faulty = Self { engine, state: Arc::new(Mutex::new(state)), cut };
        (Engine::new(faulty.clone()), faulty)
    }

    /// Changes the faults from now on.
    pub fn set(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// The next call of `name` goes wrong. Plans add up.
    pub fn plan(&self, name: &'static str, fault: Fault) {
        self.lock().planned.push((name, fault));
    }

    /// Whether everything planned has happened.
    pub fn are_spent(&self) -> bool {
        self.lock().planned.is_empty()
    }

    /// Every call waits until [`heal`](Self::heal), like those of a process that is stopped.
    pub fn cut(&self) {
        self.cut.send_replace(Cut::Everything);
    }

    /// Every call of `name` waits until [`heal`](Self::heal); others go on.
    pub fn hold_up(&self, name: &'static str) {
        self.cut.send_replace(Cut::Call(name));
    }

    /// No more faults but planned ones.
    pub fn heal(&self) {
        self.set(Faults::default());
        self.cut.send_replace(Cut::Nothing);
    }

    /// How often `name` was called.
    pub fn count(&self, name: &str) -> u64 {
        self.lock().counts.get(name).copied().unwrap_or(0)
    }

    /// Waits until `name` was called `count` times.
    pub async fn reaches(&self, name: &str, count: u64) {
        while self.count(name) < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// How many calls there were in all.
    pub fn total(&self) -> u64 {
        self.lock().counts.values().sum()
    }

    /// Hints that are asked for from now on never fire.
    pub fn deafen(&self) {
        self.lock().is_deaf = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }

    fn fate(&self, name: &'static str) -> Fate {
        let mut state = self.lock();
        let State { faults, random, planned, .. } = &mut *state;
        let planned = planned.iter().position(|(other, _)| *other == name).map(|at| planned.remove(at).1);
        let refused = (random.f64() < faults.refuse).then_some(Fault::Refused);
        let lost = (random.f64() < faults.lose_answer).then_some(Fault::LostReply);
        Fate { fault: planned.or(refused).or(lost), delay: faults.delay.mul_f64(random.f64()) }
    }

    fn pass<'a, T: Send + 'a>(&'a self, name: &'static str, call: Reply<'a, T>) -> Reply<'a, T> {
        *self.lock().counts.entry(name).or_default() += 1;
        Box::pin(async move {
            let waits = |cut: &Cut| *cut == Cut::Everything || *cut == Cut::Call(name);
            self.cut.subscribe().wait_for(|cut| !waits(cut)).await.expect("the sender lives in self");
            let fate = self.fate(name);
            if !fate.delay.is_zero() {
                tokio::time::sleep(fate.delay).await;
            }
            match fate.fault {
                None => call.await,
                Some(Fault::Refused) => Err(Error::new(ErrorKind::Unavailable, "refused on purpose")),
                Some(Fault::LostReply) => {
                    call.await?;
                    Err(Error::new(ErrorKind::Timeout, "answer lost on purpose").with_unknown_outcome())
                }
            }
        })
    }
}

/// Passes each call of a facet through [`Faulty::pass`].
macro_rules! pass {
    ($($facet:ident { $(fn $call:ident($($arg:ident: $type:ty),*) -> $answer:ty;)* })*) => {
        $(impl $facet for Faulty {
            $(fn $call<'a>(&'a self, $($arg: $type),*) -> Reply<'a, $answer> {
                self.pass(stringify!($call), self.engine.$call($($arg),*))
            })*
        })*
    };
}

pass! {
    Log {
        fn create_partition_as(at: &'a Partition, rank: u64) -> bool;
        fn delete_partition_as(at: &'a Partition, rank: u64) -> bool;
        fn append(at: &'a Partition, batch: Append) -> Appended;
        fn mark(at: &'a Partition, source: &'a SourceName) -> Option<SourceMark>;
        fn forget_source(at: &'a Partition, source: &'a SourceName) -> bool;
        fn read(at: &'a Partition, after: RecordId, max: ReadLimit) -> Vec<Record>;
        fn bounds(at: &'a Partition) -> Bounds;
        fn delayed(at: &'a Partition, after: RecordId, max: ReadLimit) -> DelayedPage;
        fn change_delayed(at: &'a Partition, id: RecordId, action: DelayedAction) -> DelayedOutcome;
        fn promote_due(at: &'a Partition, max: usize) -> Promoted;
        fn trim(at: &'a Partition, trim: Trim) -> Trimmed;
    }
    Streams {
        fn stream_mark(stream: &'a str, from: StartPosition) -> RecordId;
        fn adopt(at: &'a Partition, adopt: Option<Adopt>, rank: u64) -> bool;
        fn stream_group(at: &'a Partition, group: &'a str) -> StreamGroup;
    }
    Groups {
        fn create_group(at: &'a Partition, group: &'a GroupName, from: StartPosition, by: Option<&'a Hold>) -> bool;
        fn open(at: &'a Partition, group: &'a GroupName, from: StartPosition, hold: &'a Hold) -> Progress;
        fn commit(at: &'a Partition, group: &'a GroupName, hold: &'a Hold, commit: Commit) -> Committed;
        fn due(at: &'a Partition, group: &'a GroupName, hold: &'a Hold, take: TakeDue<'a>) -> Due;
        fn status(at: &'a Partition, group: &'a GroupName) -> GroupStatus;
        fn groups(at: &'a Partition) -> Vec<GroupName>;
        fn pending(at: &'a Partition, group: &'a GroupName, after: RecordId, max: usize) -> Vec<Pending>;
        fn reset(at: &'a Partition, group: &'a GroupName, reset: Reset, by: Option<&'a Hold>) -> RecordId;
        fn delete_group(at: &'a Partition, group: &'a GroupName, by: Option<&'a Hold>) -> bool;
    }
    DeadLetters {
        fn dead(at: &'a Partition, group: &'a GroupName, after: RecordId, max: usize) -> Vec<DeadLetter>;
        fn dead_ids(at: &'a Partition, group: &'a GroupName, after: RecordId, max: usize) -> Vec<RecordId>;
        fn replay(at: &'a Partition, group: &'a GroupName, ids: &'a [RecordId], to: Replay) -> usize;
        fn replay_edited(at: &'a Partition, group: &'a GroupName, edit: Edit, to: Replay) -> bool;
        fn delete_dead(at: &'a Partition, group: &'a GroupName, ids: &'a [RecordId]) -> usize;
        fn expire_dead(at: &'a Partition, group: &'a GroupName, age: Duration) -> usize;
    }
    Leases {
        fn acquire(request: Acquire) -> Acquired;
        fn renew(holds: &'a [Hold], ttl: Duration) -> Vec<bool>;
        fn release(hold: &'a Hold) -> bool;
        fn revoke(name: &'a LeaseName) -> bool;
        fn leases(query: &'a LeaseQuery) -> Vec<LeaseInfo>;
    }
    Offers {
        fn offer(claim_shard: &'a ClaimShard, offers: Vec<NewOffer>) -> Vec<bool>;
        fn withdraw(claim_shard: &'a ClaimShard, names: &'a [OfferName]) -> Vec<bool>;
        fn join(claim_shard: &'a ClaimShard, request: Join) -> Membership;
        fn leave(membership: &'a Membership) -> bool;
        fn beat(membership: &'a Membership, beat: Beat) -> ClaimShardStatus;
        fn grant(membership: &'a Membership, max: usize) -> Vec<Granted>;
        fn take(membership: &'a Membership, name: &'a OfferName, seize: bool) -> Taken;
        fn done(membership: &'a Membership, claims: &'a [ClaimKey]) -> Vec<Outcome>;
        fn give_back(membership: &'a Membership, claims: &'a [ClaimKey], rest: Duration) -> Vec<Outcome>;
        fn checkpoint(membership: &'a Membership, claim: &'a ClaimKey, state: Bytes) -> Outcome;
        fn force_release(claim_shard: &'a ClaimShard, names: &'a [OfferName]) -> Vec<bool>;
        fn owned(membership: &'a Membership, skip: usize, max: usize) -> Vec<ClaimKey>;
        fn offers(claim_shard: &'a ClaimShard, after: Option<&'a OfferName>, max: usize) -> Vec<OfferInfo>;
        fn orphans(claim_shard: &'a ClaimShard, max: usize) -> Vec<OfferInfo>;
        fn members(claim_shard: &'a ClaimShard) -> Vec<MembershipInfo>;
        fn expel(claim_shard: &'a ClaimShard, number: Epoch, beats: u64) -> bool;
    }
    Catalog {
        fn get(key: &'a EntryKey) -> Option<Entry>;
        fn put(key: &'a EntryKey, value: Bytes, expect: Expect) -> Put;
        fn remove(key: &'a EntryKey, expect: Expect) -> Put;
        fn list(space: &'a SpaceName, prefix: &'a str, after: &'a str, max: usize) -> Vec<Entry>;
    }
    Bus {
        fn publish(channel: &'a ChannelName, payload: Bytes) -> ();
        fn subscribe(channel: &'a ChannelName) -> Subscription;
    }
}

impl Hints for Faulty {
    fn hint(&self, key: HintKey) -> Hint {
        match self.lock().is_deaf {
            true => Hint::new(watch::channel(0).1, None),
            false => self.engine.hint(key),
        }
    }
}

impl Backend for Faulty {
    fn describe(&self) -> String {
        format!("faulty {}", self.engine.describe())
    }

    fn can_promise(&self, durability: Durability) -> Reply<'_, ()> {
        self.engine.can_promise(durability)
    }

    fn health(&self) -> Result<()> {
        self.engine.health()
    }

    fn nodes(&self) -> Vec<EngineNode> {
        self.engine.nodes()
    }

    fn takes_appends(&self) -> Result<()> {
        self.engine.takes_appends()
    }

    fn close(&self) -> Reply<'_, ()> {
        self.engine.close()
    }
}
