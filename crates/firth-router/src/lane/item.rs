//! What lies in a lane: an event for some subscriptions of one gateway, and the words in which its
//! outcome is told.

use crate::event::{CONTROL_KEY, Event, Operation, Priority};
use crate::name::{SubscriptionId, Tenant};
use crate::registry::{Overflow, Wanted};
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};

/// The place of an event in the topic. With the epoch it is the event's idempotency key: receivers
/// drop what they have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The partition.
    pub partition: u32,
    /// The place in it.
    pub seq: u64,
}

/// A subscription that an event is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct For {
    /// Which one.
    pub subscription: SubscriptionId,
    /// The document has left what the subscription sees.
    pub leaves: bool,
}

/// One event on its way to one gateway, with everyone there who wants it: never one copy per
/// subscription.
#[derive(Clone)]
pub struct Item {
    /// Its place.
    pub position: Position,
    /// Under which ownership of the partition it was read; a receiver refuses an older one than it
    /// has seen.
    pub epoch: u64,
    /// When its record was appended, in milliseconds; 0 if unknown. A log that lost records gives
    /// their places again, at a later time.
    pub appended_ms: u64,
    /// The event.
    pub event: Arc<Event>,
    /// Who wants it.
    pub wanted: SmallVec<[For; 1]>,
    /// The most urgent priority among them.
    pub priority: Priority,
    /// The most careful policy among them.
    pub overflow: Overflow,
    /// What it counts against limits in bytes.
    pub bytes: usize,
    /// Deliveries that the gateway refused.
    pub refusals: u32,
    /// The caller's number for it, given back when it is released.
    pub record_number: RecordNumber,
    /// Whether it came as it happened, and not from reading the topic again.
    pub live: bool,
    /// The trace context that it was sent with (W3C `traceparent`).
    pub trace: Option<Arc<str>>,
    /// A tenant that wants a control for all tenants.
    some_tenant: Option<Tenant>,
    /// The hash of its document's name, made once.
    document: u64,
}

/// A caller's number for an event in a lane; 0 if it has none, or not any more.
pub type RecordNumber = u64;

impl Item {
    /// An event for some subscriptions of one gateway; at least one.
    pub fn new(position: Position, epoch: u64, event: Arc<Event>, wanted: &[Wanted]) -> Self {
        let careful = |overflow: Overflow| match overflow {
            Overflow::Shed => 0,
            Overflow::Conflate => 1,
            Overflow::Keep => 2,
        };
        let priority = wanted.iter().map(|one| one.subscription.priority).min().unwrap_or_default();
        let overflow =
            wanted.iter().map(|one| one.subscription.overflow).max_by_key(|overflow| careful(*overflow));
        let documents = [&event.before, &event.after].into_iter().flatten();
        let texts: usize = documents.map(|document| document.text().len()).sum();
        let names: usize = wanted.iter().map(|one| one.subscription.id.as_str().len() + 16).sum();
        let wanted_tenant = wanted.first().map(|one| &one.subscription.tenant);
        let some_tenant = wanted_tenant.filter(|_| event.is_for_all_tenants()).cloned();
        let wanted = wanted
            .iter()
            .map(|one| For { subscription: one.subscription.id.clone(), leaves: one.leaves })
            .collect();
        let bytes = 200 + texts + names + event.key.len() + event.collection.len();
        let overflow = overflow.unwrap_or_default();
        let document = Key::hash_of(&event);
        Self {
            position,
            epoch,
            appended_ms: 0,
            event,
            wanted,
            priority,
            overflow,
            bytes,
            refusals: 0,
            record_number: 0,
            live: true,
            trace: None,
            some_tenant,
            document,
        }
    }

    /// With the caller's number.
    #[must_use]
    pub fn with_record_number(mut self, record_number: RecordNumber) -> Self {
        self.record_number = record_number;
        self
    }

    /// With the time at which its record was appended.
    #[must_use]
    pub fn appended_at(mut self, ms: u64) -> Self {
        self.appended_ms = ms;
        self
    }

    /// With the trace context that it was sent with.
    #[must_use]
    pub fn with_trace(mut self, trace: Option<Arc<str>>) -> Self {
        self.trace = trace;
        self
    }

    /// As one that was read from the topic again.
    #[must_use]
    pub fn read_again(mut self) -> Self {
        self.live = false;
        self
    }

    /// How it stands on the wire, as operation, tenant and key. To a gateway that does not know
    /// controls, one looks like the delete of a document that is not there.
    pub(crate) fn on_wire(&self) -> (Operation, &str, &str) {
        let event = &*self.event;
        let tenant = self.tenant().as_str();
        match event.is_control() {
            true => (Operation::Delete, tenant, CONTROL_KEY),
            false => (event.operation, tenant, &event.key),
        }
    }

    /// The tenant, or one that wants a control for all.
    pub(crate) fn tenant(&self) -> &Tenant {
        self.some_tenant.as_ref().unwrap_or(&self.event.tenant)
    }

    /// What a control says on the wire; empty for the others.
    pub(crate) fn control(&self) -> &'static str {
        if self.event.is_control() { self.event.operation.as_str() } else { "" }
    }

    /// The hash of its document's name.
    pub(super) fn hash(&self) -> u64 {
        self.document
    }

    /// What keeps its order: events of one document.
    pub(super) fn key(&self) -> Key {
        Key { hash: self.document, event: Arc::clone(&self.event) }
    }
}

/// Never shows the document or its key.
impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Item({:?} {:?} for {})", self.position, self.priority, self.wanted.len())
    }
}

/// A document, named by one of its events so that no text is copied.
#[derive(Clone)]
pub(super) struct Key {
    hash: u64,
    event: Arc<Event>,
}

impl Key {
    fn hash_of(event: &Event) -> u64 {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        SEED.hash_one((event.tenant.as_str(), &*event.collection, &*event.key))
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether an event is of this document.
    pub(super) fn is_of(&self, item: &Item) -> bool {
        self.is((item.document, &item.event))
    }

    fn is(&self, (hash, event): (u64, &Arc<Event>)) -> bool {
        Arc::ptr_eq(&self.event, event) || (self.hash == hash && parts(&self.event) == parts(event))
    }
}

fn parts(event: &Event) -> (&str, &str, &str) {
    (event.tenant.as_str(), &event.collection, &event.key)
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.is((other.hash, &other.event))
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        parts(&self.event).cmp(&parts(&other.event))
    }
}

/// Outcome of an event in a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseCause {
    /// The gateway accepted it.
    Delivered,
    /// The gateway refused it too often; with its last reason, and how often it was tried.
    Dead(String),
    /// It was left out under pressure, and the gateway has been told so.
    Gapped,
    /// It was taken out to be read from the topic later.
    Parked,
}

/// An event that left a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// Which one.
    pub position: Position,
    /// The caller's number for it.
    pub record_number: RecordNumber,
    /// How.
    pub cause: ReleaseCause,
}
