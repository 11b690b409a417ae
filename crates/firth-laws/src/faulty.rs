//! [`Faulty`]: an engine that fails and dawdles on purpose, for the crates above.
//!
//! It wraps any engine. Before a call it may fail definitely (nothing happened), after a call it may lose the answer (it
//! happened, and the caller does not know), and it may take its time. Which, is decided by a seeded generator, so that a
//! failing test can be repeated. Hints and subscriptions are passed through.

use bytes::Bytes;
use firth_engine::facet::{
    Acquire, Acquired, Append, Appended, Backend, Beat, Board, Bounds, Bus, Catalog, ClaimKey, Committed,
    DeadLetter, DeadLetters, Due, Entry, EntryKey, Expect, From, Granted, GroupStatus, Groups, Join,
    LeaseQuery, Leases, Log, Max, NewOffer, OfferInfo, Offers, Outcome, Pending, Pulse, Put, Replay, Reply,
    Reset, Ripened, Seat, SeatInfo, Subscription, Taken, Trim, Trimmed,
};
use firth_engine::{
    ChannelName, Commit, Engine, Epoch, Error, ErrorKind, GroupName, Hint, HintKey, Hints, Hold, LeaseInfo,
    LeaseName, OfferName, Partition, Progress, Record, RecordId, SpaceName,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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

/// A switchable source of faults around an engine.
#[derive(Clone)]
pub struct Faulty {
    engine: Engine,
    state: Arc<Mutex<State>>,
}

struct State {
    faults: Faults,
    random: fastrand::Rng,
}

/// What happens to one call.
struct Fate {
    refuse: bool,
    lose_answer: bool,
    delay: Duration,
}

impl Faulty {
    /// Wraps `engine`; the handle changes the faults later, the engine is for the code under test.
    pub fn wrap(engine: Engine, faults: Faults) -> (Engine, Self) {
        let random = fastrand::Rng::with_seed(faults.seed);
        let faulty = Self { engine, state: Arc::new(Mutex::new(State { faults, random })) };
        (Engine::new(faulty.clone()), faulty)
    }

    /// Changes the faults from now on.
    pub fn set(&self, faults: Faults) {
        self.state.lock().expect("nothing panics while it holds this lock").faults = faults;
    }

    /// No more faults.
    pub fn heal(&self) {
        self.set(Faults::default());
    }

    fn fate(&self) -> Fate {
        let mut state = self.state.lock().expect("nothing panics while it holds this lock");
        let State { faults, random } = &mut *state;
        Fate {
            refuse: random.f64() < faults.refuse,
            lose_answer: random.f64() < faults.lose_answer,
            delay: faults.delay.mul_f64(random.f64()),
        }
    }

    fn pass<'a, T: Send + 'a>(&'a self, call: Reply<'a, T>) -> Reply<'a, T> {
        let fate = self.fate();
        Box::pin(async move {
            if !fate.delay.is_zero() {
                tokio::time::sleep(fate.delay).await;
            }
            if fate.refuse {
                return Err(Error::new(ErrorKind::Unavailable, "refused on purpose"));
            }
            let answer = call.await;
            match fate.lose_answer {
                true => {
                    Err(Error::new(ErrorKind::Unavailable, "answer lost on purpose").with_unknown_outcome())
                }
                false => answer,
            }
        })
    }
}

/// Passes each call of a facet through [`Faulty::pass`].
macro_rules! pass {
    ($($facet:ident { $(fn $call:ident($($arg:ident: $type:ty),*) -> $answer:ty;)* })*) => {
        $(impl $facet for Faulty {
            $(fn $call<'a>(&'a self, $($arg: $type),*) -> Reply<'a, $answer> {
                self.pass(self.engine.$call($($arg),*))
            })*
        })*
    };
}

pass! {
    Log {
        fn create_partition(at: &'a Partition) -> bool;
        fn delete_partition(at: &'a Partition) -> bool;
        fn append(at: &'a Partition, batch: Append) -> Appended;
        fn read(at: &'a Partition, after: RecordId, max: Max) -> Vec<Record>;
        fn bounds(at: &'a Partition) -> Bounds;
        fn ripen(at: &'a Partition, max: usize) -> Ripened;
        fn trim(at: &'a Partition, trim: Trim) -> Trimmed;
    }
    Groups {
        fn create_group(at: &'a Partition, group: &'a GroupName, from: From) -> bool;
        fn open(at: &'a Partition, group: &'a GroupName, from: From, hold: &'a Hold) -> Progress;
        fn commit(at: &'a Partition, group: &'a GroupName, hold: &'a Hold, commit: Commit) -> Committed;
        fn due(at: &'a Partition, group: &'a GroupName, hold: &'a Hold, max: usize) -> Due;
        fn status(at: &'a Partition, group: &'a GroupName) -> GroupStatus;
        fn groups(at: &'a Partition) -> Vec<GroupName>;
        fn pending(at: &'a Partition, group: &'a GroupName, after: RecordId, max: usize) -> Vec<Pending>;
        fn reset(at: &'a Partition, group: &'a GroupName, reset: Reset) -> RecordId;
        fn delete_group(at: &'a Partition, group: &'a GroupName) -> bool;
    }
    DeadLetters {
        fn dead(at: &'a Partition, group: &'a GroupName, after: RecordId, max: usize) -> Vec<DeadLetter>;
        fn replay(at: &'a Partition, group: &'a GroupName, ids: &'a [RecordId], to: Replay) -> usize;
        fn delete_dead(at: &'a Partition, group: &'a GroupName, ids: &'a [RecordId]) -> usize;
        fn expire_dead(at: &'a Partition, group: &'a GroupName, age: Duration) -> usize;
    }
    Leases {
        fn acquire(wish: Acquire) -> Acquired;
        fn renew(holds: &'a [Hold], ttl: Duration) -> Vec<bool>;
        fn release(hold: &'a Hold) -> bool;
        fn revoke(name: &'a LeaseName) -> bool;
        fn leases(query: &'a LeaseQuery) -> Vec<LeaseInfo>;
    }
    Offers {
        fn offer(board: &'a Board, offers: Vec<NewOffer>) -> Vec<bool>;
        fn withdraw(board: &'a Board, names: &'a [OfferName]) -> Vec<bool>;
        fn join(board: &'a Board, wish: Join) -> Seat;
        fn leave(seat: &'a Seat) -> bool;
        fn beat(seat: &'a Seat, beat: Beat) -> Pulse;
        fn grant(seat: &'a Seat, max: usize) -> Vec<Granted>;
        fn take(seat: &'a Seat, name: &'a OfferName, seize: bool) -> Taken;
        fn done(seat: &'a Seat, claims: &'a [ClaimKey]) -> Vec<Outcome>;
        fn give_back(seat: &'a Seat, claims: &'a [ClaimKey], rest: Duration) -> Vec<Outcome>;
        fn checkpoint(seat: &'a Seat, claim: &'a ClaimKey, state: Bytes) -> Outcome;
        fn force_release(board: &'a Board, names: &'a [OfferName]) -> Vec<bool>;
        fn owned(seat: &'a Seat, skip: usize, max: usize) -> Vec<ClaimKey>;
        fn offers(board: &'a Board, after: Option<&'a OfferName>, max: usize) -> Vec<OfferInfo>;
        fn orphans(board: &'a Board, max: usize) -> Vec<OfferInfo>;
        fn members(board: &'a Board) -> Vec<SeatInfo>;
        fn expel(board: &'a Board, number: Epoch, beats: u64) -> bool;
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
        self.engine.hint(key)
    }
}

impl Backend for Faulty {
    fn describe(&self) -> String {
        format!("faulty {}", self.engine.describe())
    }

    fn close(&self) -> Reply<'_, ()> {
        self.engine.close()
    }
}
