//! What is registered with the router for the clients here: one registration for all clients that
//! ask for the same. Pure.
//!
//! ```text
//!            hold               worker              router says yes
//! (nothing) ─────► Wanted ─────────────► Asked ────────────────────► Live(since)
//!                    ▲  ▲                  │ no                          │ the last holder left, and the window
//!                    │  └─ hold ─ Refused ◄┘                             │ is over or the room is needed
//!                    └───────────────── the router forgot ──────────────┴──► (nothing)
//! ```
//! A registration outlives its last holder by the window, so that a client that comes back finds
//! nothing missing. `since` says from which position on events of it are complete.
//!
//! **Why tenants take turns.** One tenant that asks for much must not delay the registrations of
//! another, nor take its room: a tenant has a limit, and where room is wanted, registrations
//! without holders go first, those of the asking tenant before all others.

use super::Room;
use crate::position::Position;
use crate::protocol::{Code, EdgeError, SubscriptionRequest};
use firth_router::{SubscriptionId, Tenant};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What clients ask for, under any name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    tenant: Tenant,
    collection: String,
    document: Option<String>,
    filter: Option<String>,
    conditions: Option<String>,
}

impl Key {
    pub(crate) fn new(tenant: &Tenant, request: &SubscriptionRequest) -> Self {
        Self {
            tenant: tenant.clone(),
            collection: request.collection.clone(),
            document: request.document.clone(),
            filter: request.filter.clone(),
            conditions: request.conditions.as_ref().map(|list| serde_json::json!(list).to_string()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Wanted,
    Asked,
    /// Events behind this position are complete.
    Live(Position),
    Refused(EdgeError),
}

#[derive(Debug)]
struct Entry {
    key: Key,
    request: SubscriptionRequest,
    holders: usize,
    left_at: Instant,
    state: watch::Sender<State>,
    /// How often the router was asked: an answer to an earlier question does not count.
    asked: u64,
    /// It was live before, so its holders may have missed something.
    is_renewed: bool,
}

impl Entry {
    fn is(&self, state: &State) -> bool {
        *self.state.borrow() == *state
    }

    fn is_live(&self) -> bool {
        matches!(*self.state.borrow(), State::Live(_))
    }
}

/// Something to ask of the router.
#[derive(Clone, Debug)]
pub(crate) enum Errand {
    Register {
        number: u64,
        asked: u64,
        tenant: Tenant,
        id: SubscriptionId,
        request: Box<SubscriptionRequest>,
    },
    /// `is_eviction`: others wait for its room.
    Unregister { tenant: Tenant, id: SubscriptionId, is_eviction: bool },
}

/// What one tenant has here.
#[derive(Debug, Default)]
struct Share {
    count: usize,
    wanted: VecDeque<u64>,
    released: BTreeSet<(Instant, u64)>,
}

#[derive(Debug)]
pub(crate) struct Table {
    /// What the ids of this process begin with.
    prefix: String,
    linger: Duration,
    room: Room,
    numbered: u64,
    entries: HashMap<u64, Entry>,
    numbers: HashMap<Key, u64>,
    tenants: HashMap<Tenant, Share>,
    /// Tenants whose clients wait for registrations.
    turns: VecDeque<Tenant>,
    /// Registrations to repeat. They take turns with new ones.
    renewals: VecDeque<u64>,
    is_renewals_turn: bool,
    /// Registrations without holders, oldest first.
    released: BTreeSet<(Instant, u64)>,
    /// To unregister before anything else, because their room is needed.
    evicted: VecDeque<(Tenant, SubscriptionId)>,
    /// How many of those the router is being asked for.
    evicting: usize,
    /// To unregister when there is nothing else to do.
    expired: VecDeque<(Tenant, SubscriptionId)>,
}

impl Table {
    pub(crate) fn new(gateway: &str, instance: &str, linger: Duration, room: Room) -> Self {
        Self {
            prefix: format!("{gateway}:{instance}:"),
            linger,
            room,
            numbered: 0,
            entries: HashMap::new(),
            numbers: HashMap::new(),
            tenants: HashMap::new(),
            turns: VecDeque::new(),
            renewals: VecDeque::new(),
            is_renewals_turn: false,
            released: BTreeSet::new(),
            evicted: VecDeque::new(),
            evicting: 0,
            expired: VecDeque::new(),
        }
    }

    /// One more holder: the registration's number, and its state from now on. A refused one is
    /// tried again.
    pub(crate) fn hold(
        &mut self,
        tenant: &Tenant,
        request: &SubscriptionRequest,
        now: Instant,
    ) -> Result<(u64, watch::Receiver<State>), EdgeError> {
        let key = Key::new(tenant, request);
        if let Some(number) = self.numbers.get(&key).copied()
            && let Some(entry) = self.entries.get_mut(&number)
        {
            entry.holders += 1;
            let released = (entry.left_at, number);
            let is_refused = matches!(*entry.state.borrow(), State::Refused(_));
            let state = entry.state.subscribe();
            self.forget_release(tenant, released);
            if is_refused {
                self.want(number);
            }
            return Ok((number, state));
        }
        self.make_room(tenant)?;
        let number = self.numbered + 1;
        // Checked before anything is kept: a gateway's name may make the id too long.
        self.id(number)?;
        self.numbered = number;
        let (sender, state) = watch::channel(State::Wanted);
        let request = request.clone();
        let entry = Entry {
            key: key.clone(),
            request,
            holders: 1,
            left_at: now,
            state: sender,
            asked: 0,
            is_renewed: false,
        };
        self.entries.insert(number, entry);
        self.numbers.insert(key, number);
        self.tenants.entry(tenant.clone()).or_default().count += 1;
        self.want(number);
        Ok((number, state))
    }

    /// One holder less.
    pub(crate) fn release(&mut self, number: u64, now: Instant) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.holders -= 1;
        if entry.holders == 0 {
            entry.left_at = now;
            self.released.insert((now, number));
            if let Some(share) = self.tenants.get_mut(&entry.key.tenant) {
                share.released.insert((now, number));
            }
        }
    }

    /// What the router is to be asked next.
    pub(crate) fn next(&mut self) -> Option<Errand> {
        if let Some((tenant, id)) = self.evicted.pop_front() {
            self.evicting += 1;
            return Some(Errand::Unregister { tenant, id, is_eviction: true });
        }
        if self.evicting > 0 {
            return None;
        }
        while let Some(number) = self.next_wanted() {
            let Ok(id) = self.id(number) else { continue };
            let Some(entry) = self.entries.get_mut(&number).filter(|entry| entry.is(&State::Wanted)) else {
                continue;
            };
            entry.asked += 1;
            entry.state.send_replace(State::Asked);
            let tenant = entry.key.tenant.clone();
            let request = Box::new(entry.request.clone());
            return Some(Errand::Register { number, asked: entry.asked, tenant, id, request });
        }
        let (tenant, id) = self.expired.pop_front()?;
        Some(Errand::Unregister { tenant, id, is_eviction: false })
    }

    /// The room of an evicted registration is free.
    pub(crate) fn evicted(&mut self) {
        self.evicting -= 1;
    }

    /// What the router said. True if clients may have missed events of it.
    pub(crate) fn settle(&mut self, number: u64, asked: u64, answer: Result<Position, EdgeError>) -> bool {
        let is_awaited = |entry: &&mut Entry| entry.asked == asked && entry.is(&State::Asked);
        let Some(entry) = self.entries.get_mut(&number).filter(is_awaited) else { return false };
        match answer {
            Ok(since) => {
                entry.state.send_replace(State::Live(since));
                std::mem::take(&mut entry.is_renewed)
            }
            Err(error) => {
                let tenant = entry.key.tenant.clone();
                if error.code == Code::Limit && self.evict_live(&tenant) {
                    self.want(number);
                } else if let Some(entry) = self.entries.get(&number) {
                    entry.state.send_replace(State::Refused(error));
                }
                false
            }
        }
    }

    /// The router may have forgotten everything. What has no holders is not registered again.
    pub(crate) fn renew(&mut self) {
        for number in self.released(|_| true) {
            self.remove(number);
        }
        for (number, entry) in &mut self.entries {
            entry.is_renewed |= entry.is_live();
            entry.state.send_replace(State::Wanted);
            self.renewals.push_back(*number);
        }
    }

    /// Tries again what was refused and still has holders.
    pub(crate) fn retry(&mut self) {
        for (number, entry) in self.entries.iter().filter(|(_, entry)| entry.holders > 0) {
            if matches!(*entry.state.borrow(), State::Refused(_)) {
                entry.state.send_replace(State::Wanted);
                self.renewals.push_back(*number);
            }
        }
    }

    /// Has unregistered what has had no holders for the window.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let linger = self.linger;
        for number in self.released(|left_at| now.saturating_duration_since(left_at) > linger) {
            let gone = self.remove(number);
            self.expired.extend(gone);
        }
    }

    /// Those without holders of which the router is not being asked, oldest first.
    fn released(&self, is_old: impl Fn(Instant) -> bool) -> Vec<u64> {
        let old = self.released.iter().take_while(|(left_at, _)| is_old(*left_at));
        let may_go = |number: &u64| self.entries.get(number).is_some_and(|entry| !entry.is(&State::Asked));
        old.map(|(_, number)| *number).filter(may_go).collect()
    }

    /// Events of these registrations were left out up to now: their numbers. `None` if one of them
    /// was not made here.
    pub(crate) fn gap(
        &mut self,
        ids: &[SubscriptionId],
        head_of: impl Fn(&Tenant) -> Position,
    ) -> Option<HashSet<u64>> {
        let number = |id: &SubscriptionId| id.as_str().strip_prefix(&self.prefix)?.parse::<u64>().ok();
        let numbers: HashSet<u64> = ids.iter().map(number).collect::<Option<_>>()?;
        for number in &numbers {
            if let Some(entry) = self.entries.get(number).filter(|entry| entry.is_live()) {
                entry.state.send_replace(State::Live(head_of(&entry.key.tenant)));
            }
        }
        Some(numbers)
    }

    /// Whether all events of the registration behind the position came here.
    pub(crate) fn covers(&self, number: u64, position: &Position) -> bool {
        self.entries.get(&number).is_some_and(|entry| match &*entry.state.borrow() {
            State::Live(since) => since.epoch != position.epoch || position.offsets.covers(&since.offsets),
            _ => false,
        })
    }

    /// The router's names of everything that it may know of.
    pub(crate) fn all(&self) -> Vec<(Tenant, SubscriptionId)> {
        let name = |(number, entry): (&u64, &Entry)| {
            (entry.asked > 0).then(|| Some((entry.key.tenant.clone(), self.id(*number).ok()?)))?
        };
        self.entries.iter().filter_map(name).collect()
    }

    fn id(&self, number: u64) -> Result<SubscriptionId, EdgeError> {
        SubscriptionId::new(format!("{}{number}", self.prefix))
            .map_err(|error| EdgeError::invalid("gateway", error.context().to_owned()))
    }

    fn want(&mut self, number: u64) {
        let Some(entry) = self.entries.get(&number) else { return };
        entry.state.send_replace(State::Wanted);
        let share = self.tenants.entry(entry.key.tenant.clone()).or_default();
        if share.wanted.is_empty() {
            self.turns.push_back(entry.key.tenant.clone());
        }
        share.wanted.push_back(number);
    }

    fn next_wanted(&mut self) -> Option<u64> {
        self.is_renewals_turn = !self.is_renewals_turn;
        if self.is_renewals_turn
            && let Some(number) = self.renewals.pop_front()
        {
            return Some(number);
        }
        while let Some(tenant) = self.turns.pop_front() {
            let Some(share) = self.tenants.get_mut(&tenant) else { continue };
            let number = share.wanted.pop_front();
            if !share.wanted.is_empty() {
                self.turns.push_back(tenant);
            }
            if number.is_some() {
                return number;
            }
        }
        self.renewals.pop_front()
    }

    /// Makes room for one more of the tenant, or names the limit.
    fn make_room(&mut self, tenant: &Tenant) -> Result<(), EdgeError> {
        let Room { total, per_tenant } = self.room;
        let has = self.tenants.get(tenant).map_or(0, |share| share.count);
        if has >= per_tenant && !self.evict(tenant, true) {
            let message = "this tenant has as many different subscriptions as it may: use fewer filters";
            return Err(EdgeError::limit("subscriptions", per_tenant as u64, message));
        }
        if self.entries.len() >= total && !self.evict(tenant, false) {
            let message = "this gateway has as many different subscriptions as it may: try another";
            return Err(EdgeError::limit("subscriptions", total as u64, message));
        }
        Ok(())
    }

    /// Gives up the oldest registration without holders: of the tenant, if it has one.
    fn evict(&mut self, tenant: &Tenant, own_only: bool) -> bool {
        let may_go = |(_, number): &&(Instant, u64)| {
            self.entries.get(number).is_some_and(|entry| !entry.is(&State::Asked))
        };
        let own = self.tenants.get(tenant).and_then(|share| share.released.iter().find(may_go));
        let other = || self.released.iter().find(may_go).filter(|_| !own_only);
        let Some((_, number)) = own.or_else(other).copied() else { return false };
        let gone = self.remove(number);
        self.evicted.extend(gone);
        true
    }

    /// The same until the router has room for one more.
    fn evict_live(&mut self, tenant: &Tenant) -> bool {
        let before = self.evicted.len();
        while self.evicted.len() == before {
            if !self.evict(tenant, false) {
                return false;
            }
        }
        true
    }

    /// Forgets an entry; answers its name if the router knows it.
    fn remove(&mut self, number: u64) -> Option<(Tenant, SubscriptionId)> {
        let id = self.id(number).ok()?;
        let entry = self.entries.remove(&number)?;
        self.numbers.remove(&entry.key);
        let tenant = entry.key.tenant.clone();
        self.forget_release(&tenant, (entry.left_at, number));
        if let Some(share) = self.tenants.get_mut(&tenant) {
            share.count -= 1;
            if share.count == 0 {
                self.tenants.remove(&tenant);
            }
        }
        (entry.asked > 0).then_some((tenant, id))
    }

    fn forget_release(&mut self, tenant: &Tenant, released: (Instant, u64)) {
        self.released.remove(&released);
        if let Some(share) = self.tenants.get_mut(tenant) {
            share.released.remove(&released);
        }
    }
}

#[cfg(test)]
mod tests;
