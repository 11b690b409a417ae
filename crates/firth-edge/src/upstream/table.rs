//! What is registered with the router for the clients here: one registration for all who ask for the same. Pure.
//!
//! ```text
//!            hold               worker              router says yes
//! (nothing) ─────► Wanted ─────────────► Asked ────────────────────► Live(since)
//!                    ▲  ▲                  │ no                          │ the last holder left, and the
//!                    │  └─ hold ─ Refused ◄┘                             │ window is over
//!                    └───────────────── the router forgot ──────────────┴──► (nothing)
//! ```
//! A registration outlives its last holder by the window, so that a client that comes back finds nothing missing. `since` says from
//! which position on events of it are complete.

use crate::position::Position;
use crate::protocol::{Refusal, Wish};
use firth_router::{SubscriptionId, Tenant};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What clients ask for, whatever they call it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    tenant: Tenant,
    collection: String,
    document: Option<String>,
    filter: Option<String>,
    conditions: Option<String>,
}

impl Key {
    pub(crate) fn new(tenant: &Tenant, wish: &Wish) -> Self {
        Self {
            tenant: tenant.clone(),
            collection: wish.collection.clone(),
            document: wish.document.clone(),
            filter: wish.filter.clone(),
            conditions: wish.conditions.as_ref().map(|list| serde_json::json!(list).to_string()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Wanted,
    Asked,
    /// Events behind this position are complete.
    Live(Position),
    Refused(Refusal),
}

#[derive(Debug)]
struct Entry {
    id: SubscriptionId,
    wish: Wish,
    holders: usize,
    left_at: Instant,
    state: State,
    /// It was live before, so its holders may have missed something.
    is_renewed: bool,
}

/// Something to ask of the router.
#[derive(Clone, Debug)]
pub(crate) struct Errand {
    pub(crate) key: Key,
    pub(crate) tenant: Tenant,
    pub(crate) id: SubscriptionId,
    pub(crate) wish: Wish,
}

#[derive(Debug)]
pub(crate) struct Table {
    gateway: String,
    linger: Duration,
    numbered: u64,
    entries: HashMap<Key, Entry>,
}

impl Table {
    pub(crate) fn new(gateway: &str, linger: Duration) -> Self {
        Self { gateway: gateway.to_owned(), linger, numbered: 0, entries: HashMap::new() }
    }

    /// One more holder. Something that was refused is tried again.
    pub(crate) fn hold(&mut self, key: &Key, wish: &Wish, now: Instant) -> Result<(), Refusal> {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.holders += 1;
            if matches!(entry.state, State::Refused(_)) {
                entry.state = State::Wanted;
            }
            return Ok(());
        }
        self.numbered += 1;
        let id = SubscriptionId::new(format!("{}:{}", self.gateway, self.numbered))
            .map_err(|error| Refusal::invalid("gateway", error.context().to_owned()))?;
        let (wish, state) = (wish.clone(), State::Wanted);
        let entry = Entry { id, wish, holders: 1, left_at: now, state, is_renewed: false };
        self.entries.insert(key.clone(), entry);
        Ok(())
    }

    /// One holder less.
    pub(crate) fn release(&mut self, key: &Key, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.holders -= 1;
            entry.left_at = now;
        }
    }

    pub(crate) fn state(&self, key: &Key) -> Option<State> {
        self.entries.get(key).map(|entry| entry.state.clone())
    }

    /// What the router is to be asked now.
    pub(crate) fn errands(&mut self) -> Vec<Errand> {
        let wanted = |(key, entry): (&Key, &mut Entry)| {
            (entry.state == State::Wanted).then(|| {
                entry.state = State::Asked;
                let (key, tenant) = (key.clone(), key.tenant.clone());
                Errand { key, tenant, id: entry.id.clone(), wish: entry.wish.clone() }
            })
        };
        self.entries.iter_mut().filter_map(wanted).collect()
    }

    /// What the router said. True if clients may have missed events of it.
    pub(crate) fn settle(&mut self, key: &Key, answer: Result<Position, Refusal>) -> bool {
        let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.state == State::Asked) else {
            return false;
        };
        let is_live = answer.is_ok();
        entry.state = answer.map_or_else(State::Refused, State::Live);
        is_live && std::mem::take(&mut entry.is_renewed)
    }

    /// The router may have forgotten everything.
    pub(crate) fn renew(&mut self) {
        for entry in self.entries.values_mut() {
            entry.is_renewed |= matches!(entry.state, State::Live(_));
            entry.state = State::Wanted;
        }
    }

    /// Tries again what was refused and still has holders.
    pub(crate) fn retry(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| entry.holders > 0) {
            if matches!(entry.state, State::Refused(_)) {
                entry.state = State::Wanted;
            }
        }
    }

    /// Takes away what nobody holds any more; answers what the router must forget.
    pub(crate) fn sweep(&mut self, now: Instant) -> Vec<(Tenant, SubscriptionId)> {
        let mut gone = Vec::new();
        let linger = self.linger;
        self.entries.retain(|key, entry| {
            let is_over = entry.holders == 0
                && match entry.state {
                    State::Refused(_) | State::Wanted => true,
                    State::Asked => false,
                    State::Live(_) => now.saturating_duration_since(entry.left_at) > linger,
                };
            if is_over && matches!(entry.state, State::Live(_)) {
                gone.push((key.tenant.clone(), entry.id.clone()));
            }
            !is_over
        });
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Code;

    const LINGER: Duration = Duration::from_secs(180);

    fn at(offset: u64) -> Position {
        Position::new(1, crate::position::Offsets::single(offset))
    }

    #[test]
    fn all_who_ask_for_the_same_share_one_registration_which_outlives_them_by_the_window() {
        let (mut table, now) = (Table::new("g", LINGER), Instant::now());
        let tenants = ["a", "b"].map(|name| Tenant::new(name).unwrap());
        let wish = Wish::collection("mine", "orders");
        let key = Key::new(&tenants[0], &wish);
        assert_eq!(key, Key::new(&tenants[0], &Wish::collection("yours", "orders")), "names do not matter");
        let others = Key::new(&tenants[1], &wish);
        assert_ne!(key, others, "tenants do");
        for key in [&key, &key, &others] {
            table.hold(key, &wish, now).unwrap();
        }
        let errands = table.errands();
        assert_eq!((errands.len(), table.errands().len()), (2, 0), "each is asked once");
        for errand in &errands {
            assert!(!table.settle(&errand.key, Ok(at(5))));
        }
        assert_eq!(table.state(&key), Some(State::Live(at(5))));
        for key in [&key, &key] {
            table.release(key, now);
        }
        assert!(table.sweep(now + LINGER).is_empty());
        table.hold(&key, &wish, now).unwrap();
        assert!(table.errands().is_empty(), "who comes back in time finds it");
        table.release(&key, now + LINGER);
        let gone = table.sweep(now + 3 * LINGER);
        assert_eq!((gone.len(), table.state(&key)), (1, None));
        assert_eq!(table.state(&others), Some(State::Live(at(5))));
    }

    #[test]
    fn what_the_router_forgot_is_registered_again_and_its_holders_hear_of_it() {
        let (mut table, now) = (Table::new("g", LINGER), Instant::now());
        let (tenant, wish) = (Tenant::new("a").unwrap(), Wish::collection("w", "c"));
        let key = Key::new(&tenant, &wish);
        table.hold(&key, &wish, now).unwrap();
        table.errands();
        table.settle(&key, Ok(at(1)));
        table.renew();
        assert_eq!(table.errands().len(), 1);
        let away = Refusal::new(Code::Unavailable, "away");
        assert!(!table.settle(&key, Err(away.clone())), "nothing can be said yet");
        assert_eq!(table.state(&key), Some(State::Refused(away)));
        table.retry();
        assert_eq!(table.errands().len(), 1);
        assert!(table.settle(&key, Ok(at(9))), "now they must start anew");
        table.release(&key, now);
        table.renew();
        assert!(
            table.sweep(now).is_empty() && table.state(&key).is_none(),
            "nobody wants it: it is not asked for again"
        );
    }
}
