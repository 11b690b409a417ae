//! An engine with a bad connection: calls can be refused, their replies lost, all of them held up, and counted. Several of these over one
//! engine stand for several processes.

use bytes::Bytes;
use firth::{Broker, Engine, Error, ErrorKind, RecordId, Result};
use firth_engine::facet::*;
use firth_engine::{
    ChannelName, Commit, Epoch, GroupName, Hint, HintKey, Hints, Hold, LeaseInfo, LeaseName, OfferName,
    Partition, Progress, Record, SpaceName,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is certainly not done.
    Refused,
    /// It is done, but the caller does not hear of it.
    LostReply,
}

/// The switchboard of one faulty engine; clones share it.
#[derive(Clone)]
pub(crate) struct Faults {
    planned: Arc<Mutex<Vec<(&'static str, Fault)>>>,
    counts: Arc<Mutex<HashMap<&'static str, u64>>>,
    cut: Arc<watch::Sender<bool>>,
}

impl Faults {
    /// The next call of `name` goes wrong. Plans add up.
    pub(crate) fn plan(&self, name: &'static str, fault: Fault) {
        self.planned.lock().unwrap().push((name, fault));
    }

    /// Whether everything planned has happened.
    pub(crate) fn are_spent(&self) -> bool {
        self.planned.lock().unwrap().is_empty()
    }

    /// Every call waits until [`heal`](Self::heal), like a process that is stopped.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub(crate) fn heal(&self) {
        self.cut.send_replace(false);
    }

    /// How often `name` was called.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    fn take(&self, name: &str) -> Option<Fault> {
        let mut planned = self.planned.lock().unwrap();
        let at = planned.iter().position(|(planned, _)| *planned == name)?;
        Some(planned.remove(at).1)
    }
}

/// A broker over `engine` whose connection obeys the returned switchboard.
pub(crate) fn process(engine: &Engine) -> (Broker, Faults) {
    let cut = Arc::new(watch::Sender::new(false));
    let faults = Faults { planned: Arc::default(), counts: Arc::default(), cut };
    let faulty = Faulty { inner: engine.clone(), faults: faults.clone() };
    (Broker::with_engine(Engine::new(faulty)), faults)
}

struct Faulty {
    inner: Engine,
    faults: Faults,
}

impl Faulty {
    async fn pass<T>(&self, name: &'static str, call: Reply<'_, T>) -> Result<T> {
        *self.faults.counts.lock().unwrap().entry(name).or_default() += 1;
        let mut cut = self.faults.cut.subscribe();
        cut.wait_for(|cut| !cut).await.unwrap();
        match self.faults.take(name) {
            None => call.await,
            Some(Fault::Refused) => Err(Error::new(ErrorKind::Unavailable, "refused by plan")),
            Some(Fault::LostReply) => {
                call.await?;
                Err(Error::new(ErrorKind::Timeout, "the reply was lost by plan").with_unknown_outcome())
            }
        }
    }
}

macro_rules! delegate {
    ($facet:ident { $(fn $name:ident($($arg:ident: $kind:ty),*) -> $out:ty;)* }) => {
        impl $facet for Faulty {
            $(fn $name<'a>(&'a self, $($arg: $kind),*) -> Reply<'a, $out> {
                Box::pin(self.pass(stringify!($name), self.inner.$name($($arg),*)))
            })*
        }
    };
}

delegate!(Log {
    fn create_partition(at: &'a Partition) -> bool;
    fn delete_partition(at: &'a Partition) -> bool;
    fn append(at: &'a Partition, batch: Append) -> Appended;
    fn read(at: &'a Partition, after: RecordId, max: Max) -> Vec<Record>;
    fn bounds(at: &'a Partition) -> Bounds;
    fn ripen(at: &'a Partition, max: usize) -> Ripened;
    fn trim(at: &'a Partition, trim: Trim) -> Trimmed;
});

delegate!(Groups {
    fn create_group(at: &'a Partition, group: &'a GroupName, from: From) -> bool;
    fn open(at: &'a Partition, group: &'a GroupName, from: From, hold: &'a Hold) -> Progress;
    fn commit(at: &'a Partition, group: &'a GroupName, hold: &'a Hold, commit: Commit) -> Committed;
    fn due(at: &'a Partition, group: &'a GroupName, hold: &'a Hold, max: usize) -> Due;
    fn status(at: &'a Partition, group: &'a GroupName) -> GroupStatus;
    fn groups(at: &'a Partition) -> Vec<GroupName>;
    fn pending(at: &'a Partition, group: &'a GroupName, after: RecordId, max: usize) -> Vec<Pending>;
    fn reset(at: &'a Partition, group: &'a GroupName, reset: Reset) -> RecordId;
    fn delete_group(at: &'a Partition, group: &'a GroupName) -> bool;
});

delegate!(DeadLetters {
    fn dead(at: &'a Partition, group: &'a GroupName, after: RecordId, max: usize) -> Vec<DeadLetter>;
    fn replay(at: &'a Partition, group: &'a GroupName, ids: &'a [RecordId], to: Replay) -> usize;
    fn delete_dead(at: &'a Partition, group: &'a GroupName, ids: &'a [RecordId]) -> usize;
    fn expire_dead(at: &'a Partition, group: &'a GroupName, age: Duration) -> usize;
});

delegate!(Leases {
    fn acquire(wish: Acquire) -> Acquired;
    fn renew(holds: &'a [Hold], ttl: Duration) -> Vec<bool>;
    fn release(hold: &'a Hold) -> bool;
    fn revoke(name: &'a LeaseName) -> bool;
    fn leases(query: &'a LeaseQuery) -> Vec<LeaseInfo>;
});

delegate!(Offers {
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
});

delegate!(Catalog {
    fn get(key: &'a EntryKey) -> Option<Entry>;
    fn put(key: &'a EntryKey, value: Bytes, expect: Expect) -> Put;
    fn remove(key: &'a EntryKey, expect: Expect) -> Put;
    fn list(space: &'a SpaceName, prefix: &'a str, after: &'a str, max: usize) -> Vec<Entry>;
});

delegate!(Bus {
    fn publish(channel: &'a ChannelName, payload: Bytes) -> ();
    fn subscribe(channel: &'a ChannelName) -> Subscription;
});

impl Hints for Faulty {
    fn hint(&self, key: HintKey) -> Hint {
        self.inner.hint(key)
    }
}

impl Backend for Faulty {
    fn describe(&self) -> String {
        format!("faulty {}", self.inner.describe())
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }
}
