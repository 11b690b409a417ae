//! The hub's state and its steps. Pure: no I/O, the time is a parameter; connections are queues.
//!
//! Everything that must be seen as one step happens under one lock: a subscription becomes live at
//! the same moment at which its history is cut off, so no event falls between the two and none is
//! in both.

use super::mailbox::Mailbox;
use super::pending::{Made, Pending};
use super::source::Source;
use super::{HubStatus, Published};
use crate::accounting::Accounting;
use crate::auth::Grant;
use crate::config::Config;
use crate::frame::Body;
use crate::journal::{Journal, Missing};
use crate::outbox::{CloseReason, EncodedEvent, Mark, Outbox, Room, SlowPolicy, Wake};
use crate::position::Position;
use crate::presence::Rooms;
use crate::protocol::{EdgeError, server};
use firth_router::event::Event;
use firth_router::matching::{Hit, Index};
use firth_router::{SubscriptionId, Tenant};
use slab::Slab;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct Core {
    pub(super) config: Config,
    pub(super) index: Index<Wanted>,
    pub(super) sessions: Slab<SessionEntry>,
    pub(super) tenants: HashMap<Tenant, Part>,
    pub(super) rooms: Rooms,
    pub(super) numbered: u64,
    names: HashSet<Arc<str>>,
    /// How many names were in use when those that are not were last thrown away.
    names_kept: usize,
    pub(super) journal_bytes: usize,
    pub(super) source: Option<Source>,
    /// Events come from a router, too.
    pub(super) is_routed: bool,
    /// Given to sessions when the burst ends, or before anything else is done here.
    pub(super) pending: Pending,
    deferred: Vec<Arc<Mailbox>>,
    /// When the first of them may be written to again.
    deferred_until: Option<Instant>,
    burst_budget: BurstBudget,
    hits: Vec<Hit>,
    audience: Audience,
    closed: Accounting,
}

/// Whose subscription it is.
pub(super) struct Wanted {
    pub(super) slot: usize,
    pub(super) name: Arc<str>,
}

/// One session.
pub(super) struct SessionEntry {
    pub(super) grant: Grant,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) subscriptions: Vec<Subscribed>,
    pub(super) joined: Instant,
    /// Nothing was asked for yet, so its position may still be chosen.
    pub(super) is_fresh: bool,
}

/// One subscription of a session.
pub(super) struct Subscribed {
    pub(super) id: SubscriptionId,
    /// The client's name for it, as JSON text.
    pub(super) name: Arc<str>,
    pub(super) room: Option<usize>,
    /// What the router knows it by: see [`Registrar`](crate::Registrar).
    pub(super) registration: Option<u64>,
}

/// One tenant.
pub(super) struct Part {
    pub(super) journal: Journal,
    pub(super) sessions: usize,
    /// When the last session left.
    pub(super) left_at: Instant,
}

impl Part {
    pub(super) fn new(journal: Journal, now: Instant) -> Self {
        Self { journal, sessions: 0, left_at: now }
    }
}

impl Core {
    pub(super) fn new(config: Config) -> Self {
        Self {
            index: Index::new(config.limits.slow_filters),
            config,
            sessions: Slab::new(),
            tenants: HashMap::new(),
            rooms: Rooms::new(),
            numbered: 0,
            names: HashSet::new(),
            names_kept: 0,
            journal_bytes: 0,
            source: None,
            is_routed: false,
            pending: Pending::default(),
            deferred: Vec::new(),
            deferred_until: None,
            burst_budget: BurstBudget::default(),
            hits: Vec::new(),
            audience: Audience::default(),
            closed: Accounting::default(),
        }
    }

    pub(super) fn join(
        &mut self,
        grant: Grant,
        slow: Option<SlowPolicy>,
        now: Instant,
    ) -> Result<(usize, Arc<Mailbox>), EdgeError> {
        let limits = self.config.limits;
        let fresh = self.fresh_journal();
        let part = self.tenants.entry(grant.tenant.clone()).or_insert_with(|| Part::new(fresh, now));
        if part.sessions >= limits.per_tenant {
            let message = "this tenant has as many connections as it may: close some";
            return Err(EdgeError::limit("connections", limits.per_tenant as u64, message));
        }
        part.sessions += 1;
        let room = Room {
            events: limits.queued_events,
            bytes: limits.queued_bytes,
            tick: self.config.tick,
            policy: slow.unwrap_or(self.config.slow),
        };
        let mailbox = Arc::new(Mailbox::new(Outbox::new(room)));
        let known = server::HelloLimits {
            subscriptions: limits.subscriptions,
            message_bytes: limits.message_bytes,
            messages_per_second: limits.messages_per_second,
        };
        let hello = server::hello(self.config.heartbeat, known);
        mailbox.outbox().say(hello);
        mailbox.notify();
        let subscriptions = Vec::new();
        let slot =
            SessionEntry { grant, mailbox: mailbox.clone(), subscriptions, joined: now, is_fresh: true };
        Ok((self.sessions.insert(slot), mailbox))
    }

    pub(super) fn leave(&mut self, slot: usize, now: Instant) {
        let SessionEntry { grant, mailbox, subscriptions, .. } = self.sessions.remove(slot);
        for subscribed in &subscriptions {
            self.index.remove(&grant.tenant, &subscribed.id);
            if let Some(room) = subscribed.room {
                self.rooms.leave(room, slot, &subscribed.name, grant.user.as_ref());
            }
        }
        if let Some(part) = self.tenants.get_mut(&grant.tenant) {
            part.sessions -= 1;
            part.left_at = now;
        }
        self.closed += mailbox.outbox().close();
    }

    /// A token was renewed.
    pub(super) fn regrant(&mut self, slot: usize, grant: Grant) -> Result<(), EdgeError> {
        let old = &mut self.sessions[slot].grant;
        if old.tenant != grant.tenant || old.user != grant.user || old.collections != grant.collections {
            let message = "the new token is for another tenant, user or set of collections: connect anew";
            return Err(EdgeError::invalid("token", message));
        }
        *old = grant;
        Ok(())
    }

    /// Places the event, of this partition if the hub follows a topic, and notes it for every
    /// session that wants it.
    pub(super) fn publish(
        &mut self,
        body: Body,
        partition: Option<u32>,
        now: Instant,
    ) -> firth_router::Result<Published> {
        let Some(part) = self.tenants.get_mut(&body.event.tenant) else {
            return Ok(Published::NOBODY);
        };
        self.index.matches_into(&body.event, &mut self.hits)?;
        let others = self.journal_bytes - part.journal.bytes();
        let head = self.source.as_ref().map(|source| &source.head);
        let frame = part.journal.append(body, partition.zip(head), now);
        part.journal.fit(&self.config.window, others, now);
        self.journal_bytes = others + part.journal.bytes();
        let wanted = |hit: &Hit| self.index.get(hit.number).map(|(_, wanted)| wanted);
        // No session comes or goes while something is pending: the same hits are the same sessions.
        if self.pending.is_empty() || self.audience.hits != self.hits {
            self.audience.set(&mut self.hits, |hit| Some(wanted(hit)?.slot));
        }
        let mut connections = 0;
        let mut made = Made::default();
        for group in self.audience.by_seat.chunk_by(|one, two| one.0 == two.0) {
            let marks = || group.iter().filter_map(|(_, hit)| Some((&wanted(hit)?.name, hit.leaves)));
            let fresh = || {
                let marks = marks().map(|(name, leaves)| Mark { name: name.clone(), leaves }).collect();
                EncodedEvent::new(frame.clone(), marks)
            };
            self.pending.add(group[0].0, &mut made, |known| is_for(&known.marks, marks()), fresh);
            connections += 1;
        }
        if let Some(reason) = frame.control_reason() {
            (0..connections).for_each(|_| crate::metrics::resync(reason));
        }
        Ok(Published { at: Some(frame.at.clone()), connections })
    }

    /// A control for every tenant as one for each that is known here.
    pub(super) fn for_each_tenant(&self, control: &Event) -> Vec<Event> {
        self.tenants.keys().map(|tenant| Event { tenant: tenant.clone(), ..control.clone() }).collect()
    }

    /// Gives sessions what was noted for them; `due` is told of those that must be written to at
    /// once.
    pub(super) fn deliver(&mut self, now: Instant, mut due: impl FnMut(Arc<Mailbox>)) {
        let Self { pending, sessions, burst_budget, deferred, deferred_until, config, .. } = self;
        pending.drain(|slot, batch| {
            let mailbox = &sessions[slot].mailbox;
            let (wake, tick_ends) = {
                let mut outbox = mailbox.outbox();
                (outbox.push_batch(batch, now), outbox.tick_ends())
            };
            match wake {
                Wake::No => {}
                Wake::Now => due(mailbox.clone()),
                Wake::Later if burst_budget.allows(now, config.tick) => due(mailbox.clone()),
                Wake::Later => {
                    deferred.push(mailbox.clone());
                    *deferred_until = [*deferred_until, tick_ends].into_iter().flatten().min();
                }
            }
        });
    }

    /// The source has left out events of unknown tenants: every client must fetch its state anew,
    /// and no position from before holds.
    pub(super) fn source_gap(&mut self) {
        if let Some(source) = &mut self.source {
            source.forget_all();
        }
        let tenants: Vec<_> = self.tenants.keys().cloned().collect();
        for tenant in tenants {
            let journal = self.fresh_journal();
            self.tenants.entry(tenant).and_modify(|part| part.journal = journal);
        }
        self.journal_bytes = 0;
        self.resync(|_| true);
    }

    /// Every client with such a subscription must fetch its state anew.
    pub(super) fn resync(&self, concerns: impl Fn(&Subscribed) -> bool) {
        for (_, slot) in self.sessions.iter().filter(|(_, slot)| slot.subscriptions.iter().any(&concerns)) {
            let at = self.head_of(&slot.grant.tenant);
            slot.mailbox.outbox().say_at(server::resync_required(Missing::SourceGap, &at), at);
            slot.mailbox.notify();
            crate::metrics::resync(Missing::SourceGap.as_str());
        }
    }

    /// A subscription's name, shared by all that have the same.
    pub(super) fn share(&mut self, name: Arc<str>) -> Arc<str> {
        if self.names.len() >= 2 * self.names_kept.max(64) {
            self.names.retain(|known| Arc::strong_count(known) > 1);
            self.names_kept = self.names.len();
        }
        match self.names.get(&name) {
            Some(known) => known.clone(),
            None => {
                self.names.insert(name.clone());
                name
            }
        }
    }

    /// The place behind everything that was queued for the session.
    pub(super) fn head(&self, slot: usize) -> Position {
        self.head_of(&self.sessions[slot].grant.tenant)
    }

    /// The place behind everything that clients of the tenant were sent; nowhere if there are none.
    pub(super) fn known_head_of(&self, tenant: &Tenant) -> Position {
        let is_known = self.tenants.contains_key(tenant);
        if is_known { self.head_of(tenant) } else { Position::nowhere() }
    }

    pub(super) fn beat(&self, slot: usize) {
        let mailbox = &self.sessions[slot].mailbox;
        let at = self.head(slot);
        mailbox.outbox().heartbeat(at);
        mailbox.notify();
    }

    /// When those that were left for later are to be written to: the first of them in its next
    /// tick, and the others with it.
    pub(super) fn deferred_until(&self) -> Option<Instant> {
        self.deferred_until
    }

    pub(super) fn take_deferred(&mut self) -> Vec<Arc<Mailbox>> {
        self.deferred_until = None;
        std::mem::take(&mut self.deferred)
    }

    /// Tells rooms, forgets what is old.
    pub(super) fn keep_house(&mut self, now: Instant) {
        let sessions = &self.sessions;
        self.rooms.flush(self.config.limits.named_members, |slot, name, text| {
            let mailbox = &sessions[slot].mailbox;
            mailbox.outbox().presence(name, text.clone());
            mailbox.notify();
        });
        self.forget_tenants(now);
    }

    pub(super) fn end_unless(&self, passes: impl Fn(&Grant) -> bool) {
        for (_, slot) in self.sessions.iter().filter(|(_, slot)| !passes(&slot.grant)) {
            slot.end(CloseReason { code: REVOKED, reason: "the token is not valid any more", retry: None });
        }
    }

    pub(super) fn drain(&self) {
        for (_, slot) in &self.sessions {
            let retry = Some(spread(self.config.retry_spread));
            slot.end(CloseReason { code: RESTART, reason: "the gateway restarts", retry });
        }
    }

    pub(super) fn status(&self) -> HubStatus {
        let mut accounting = self.closed;
        for (_, slot) in &self.sessions {
            accounting += slot.mailbox.outbox().accounting();
        }
        HubStatus {
            connections: self.sessions.len(),
            subscriptions: self.index.len(),
            tenants: self.tenants.len(),
            journal_bytes: self.journal_bytes,
            accounting,
        }
    }
}

/// Who wanted the event before. Events that come together are mostly for the same.
#[derive(Default)]
struct Audience {
    hits: Vec<Hit>,
    /// In the order of sessions.
    by_seat: Vec<(usize, Hit)>,
}

impl Audience {
    /// Takes these hits, and leaves the room of the old ones.
    fn set(&mut self, hits: &mut Vec<Hit>, slot: impl Fn(&Hit) -> Option<usize>) {
        std::mem::swap(&mut self.hits, hits);
        self.by_seat.clear();
        self.by_seat.extend(self.hits.iter().filter_map(|hit| Some((slot(hit)?, *hit))));
        self.by_seat.sort_unstable();
    }
}

/// Writes that a hub with little to do makes at once, though the connection has just written.
#[derive(Default)]
struct BurstBudget {
    tick_began: Option<Instant>,
    made: usize,
}

/// Most of them that one tick handles: few enough to cost little.
const BURST_WRITES: usize = 128;

impl BurstBudget {
    fn allows(&mut self, now: Instant, tick: Duration) -> bool {
        if self.tick_began.is_none_or(|began| now.saturating_duration_since(began) >= tick) {
            (self.tick_began, self.made) = (Some(now), 0);
        }
        self.made += 1;
        self.made <= BURST_WRITES
    }
}

/// Whether these are the same marks. Equal names are mostly the same text: see [`Core::share`].
fn is_for<'a>(marks: &[Mark], wanted: impl Iterator<Item = (&'a Arc<str>, bool)>) -> bool {
    let same = |mark: &Mark, (name, leaves): (&Arc<str>, bool)| {
        mark.leaves == leaves && (Arc::ptr_eq(&mark.name, name) || mark.name == *name)
    };
    let mut known = marks.iter();
    let fits = wanted.into_iter().all(|wanted| known.next().is_some_and(|mark| same(mark, wanted)));
    fits && known.next().is_none()
}

/// Some time within this one.
pub(super) fn spread(time: Duration) -> Duration {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(fastrand::u64(0..millis))
}

/// The close code of a token that is over.
pub(crate) const REVOKED: u16 = 4401;
/// The close code of a service that restarts.
pub(crate) const RESTART: u16 = 1012;

impl SessionEntry {
    fn end(&self, close_reason: CloseReason) {
        self.mailbox.outbox().end(close_reason);
        self.mailbox.notify();
    }
}
