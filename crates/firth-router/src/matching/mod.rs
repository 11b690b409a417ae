//! Which subscriptions want an event: by index, never by scanning filters.
//!
//! ```text
//! Index ─ tenant ─ collection ─ lists of groups, each under what must be in the event
//!                               (document key · field = value · value in field · prefix · range · field exists)
//! ```
//! A subscription hangs under the rarest thing that its filter demands, so an event only meets
//! those that it has something in common with; the rest of the filter is checked then. One whose
//! filter is a plain conjunction stands *directly* in its list, beside the condition that is left
//! to check: an event goes through an array of numbers. Others that ask for the same share a
//! *group*. Filters that demand nothing an index knows stand in a *slow list*, whose length is
//! limited per tenant. Tenants share nothing: another tenant's lists cannot even be reached.
//!
//! An event with both images matches a filter by the new image, or by the old one alone: then the
//! document *leaves* what the subscription sees.
//!
//! A control is for every subscription of its tenant and collection; a column that the source does
//! not know passes no test, neither before nor after.

mod collection;
mod conditions;
mod fields;
mod group;
mod lists;
mod ranges;

use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::filter::Filter;
use crate::name::{SubscriptionId, Tenant};
use collection::Collection;
use foldhash::fast::RandomState;
use slab::Slab;
use std::collections::HashMap;
use std::fmt;

/// What a subscription asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Whose documents.
    pub tenant: Tenant,
    /// Which collection.
    pub collection: Box<str>,
    /// Only this document.
    pub document: Option<Box<str>>,
    /// Only documents like this.
    pub filter: Option<Filter>,
}

/// One subscription that wants an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// Its number in the index, until it is removed.
    pub number: u32,
    /// The document matched before the change and does not any more.
    pub leaves: bool,
}

/// All subscriptions, each with data of the caller's. Inserting and removing takes microseconds,
/// however many there are.
pub struct Index<T> {
    tenants: HashMap<Tenant, TenantPart, RandomState>,
    collections: Slab<Collection>,
    subscriptions: Slab<Entry<T>>,
    max_slow: usize,
}

#[derive(Default)]
struct TenantPart {
    collections: HashMap<Box<str>, usize, RandomState>,
    numbers: HashMap<SubscriptionId, u32, RandomState>,
    slow: usize,
}

struct Entry<T> {
    id: SubscriptionId,
    tenant: Tenant,
    collection: usize,
    place: group::SubscriptionSlot,
    data: T,
}

impl<T> Index<T> {
    /// An empty index. Each tenant may have `max_slow_per_tenant` filters that no index answers.
    pub fn new(max_slow_per_tenant: usize) -> Self {
        Self {
            tenants: HashMap::default(),
            collections: Slab::new(),
            subscriptions: Slab::new(),
            max_slow: max_slow_per_tenant,
        }
    }

    /// Adds a subscription, or replaces the tenant's one with this id. If it is refused, nothing
    /// changes.
    pub fn insert(&mut self, id: SubscriptionId, interest: Interest, data: T) -> Result<u32> {
        self.admits(&id, &interest)?;
        self.remove(&interest.tenant, &id);
        let collection = self.collection(&interest.tenant, &interest.collection);
        let number = u32::try_from(self.subscriptions.vacant_key()).expect("admitted: there is a number");
        let (place, grown) = self.collections[collection].join(&interest, number);
        let part = self.tenants.entry(interest.tenant.clone()).or_default();
        part.numbers.insert(id.clone(), number);
        part.slow += usize::from(grown);
        self.subscriptions.insert(Entry { id, tenant: interest.tenant, collection, place, data });
        Ok(number)
    }

    /// Whether there is room for a subscription, which may replace the tenant's one with this id.
    pub fn admits(&self, id: &SubscriptionId, interest: &Interest) -> Result<()> {
        if u32::try_from(self.subscriptions.vacant_key()).is_err() {
            return Err(Error::new(ErrorKind::Quota, "an index holds at most 4 294 967 295 subscriptions"));
        }
        let is_slow = interest.document.is_none()
            && interest.filter.as_ref().is_some_and(|filter| !filter.is_indexed());
        let part = self.tenants.get(&interest.tenant);
        let slow = part.map_or(0, |part| part.slow);
        if !is_slow || slow < self.max_slow {
            return Ok(());
        }
        let collection = part.and_then(|part| part.collections.get(&interest.collection));
        let has_group = collection.is_some_and(|&at| self.collections[at].has_group(interest));
        let replaced =
            part.and_then(|part| part.numbers.get(id)).map(|&old| &self.subscriptions[old as usize]);
        // The one that it replaces may be the last of its group, and make room.
        let freed = replaced.is_some_and(|old| self.collections[old.collection].ends_slow(old.place));
        if has_group || slow - usize::from(freed) < self.max_slow {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Quota,
            format!(
                "tenant {} has {slow} filters that no index can answer, which is its quota; ask for an equality, a range, a prefix or an element",
                interest.tenant
            ),
        ))
    }

    /// Removes a subscription, and answers its data.
    pub fn remove(&mut self, tenant: &Tenant, id: &SubscriptionId) -> Option<T> {
        let number = self.tenants.get_mut(tenant)?.numbers.remove(id)?;
        let entry = self.subscriptions.remove(number as usize);
        let at = &mut self.collections[entry.collection];
        let left = at.leave(entry.place);
        if let Some(moved) = left.moved {
            self.subscriptions[moved as usize].place.moved_to(entry.place.position());
        }
        let part = self.tenants.get_mut(&entry.tenant).expect("a subscription's tenant is known");
        part.slow -= usize::from(left.shrunk);
        if at.is_empty() {
            let name = at.name().to_owned();
            self.prune(&entry.tenant, &name);
        }
        Some(entry.data)
    }

    /// The subscriptions that want the event, each once, in no particular order.
    pub fn matches(&self, event: &Event) -> Result<Vec<Hit>> {
        let mut hits = Vec::new();
        self.matches_into(event, &mut hits)?;
        Ok(hits)
    }

    /// As [`matches`](Self::matches), into a buffer that is cleared first.
    pub fn matches_into(&self, event: &Event, hits: &mut Vec<Hit>) -> Result<()> {
        hits.clear();
        if event.is_control() {
            self.all_of(event, hits);
            return Ok(());
        }
        let collections = self.tenants.get(&event.tenant).map(|part| &part.collections);
        match collections.and_then(|collections| collections.get(&*event.collection)) {
            Some(&collection) => self.collections[collection].matches(event, hits),
            None => Ok(()),
        }
    }

    /// Adds every subscription that a control is about. Controls are rare: this looks at all.
    fn all_of(&self, control: &Event, hits: &mut Vec<Hit>) {
        let is_meant = |entry: &Entry<T>| {
            *self.collections[entry.collection].name() == *control.collection
                && (control.is_for_all_tenants() || entry.tenant == control.tenant)
        };
        let meant = self.subscriptions.iter().filter(|(_, entry)| is_meant(entry));
        hits.extend(
            meant.filter_map(|(number, _)| Some(Hit { number: u32::try_from(number).ok()?, leaves: false })),
        );
    }

    /// A subscription by its number.
    pub fn get(&self, number: u32) -> Option<(&SubscriptionId, &T)> {
        self.subscriptions.get(number as usize).map(|entry| (&entry.id, &entry.data))
    }

    /// The number of a subscription.
    pub fn number(&self, tenant: &Tenant, id: &SubscriptionId) -> Option<u32> {
        self.tenants.get(tenant)?.numbers.get(id).copied()
    }

    /// All subscriptions.
    pub fn iter(&self) -> impl Iterator<Item = (&SubscriptionId, &T)> {
        self.subscriptions.iter().map(|(_, entry)| (&entry.id, &entry.data))
    }

    /// How many a tenant has.
    pub fn len_of(&self, tenant: &Tenant) -> usize {
        self.tenants.get(tenant).map_or(0, |part| part.numbers.len())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    /// How many groups there are, of subscriptions that do not stand directly in a list; those that
    /// ask for the same count once.
    pub fn groups(&self) -> usize {
        self.collections.iter().map(|(_, collection)| collection.groups()).sum()
    }

    /// How many groups of a tenant stand in slow lists.
    pub fn slow(&self, tenant: &Tenant) -> usize {
        self.tenants.get(tenant).map_or(0, |part| part.slow)
    }

    fn collection(&mut self, tenant: &Tenant, name: &str) -> usize {
        let part = self.tenants.entry(tenant.clone()).or_default();
        match part.collections.get(name) {
            Some(&collection) => collection,
            None => {
                let collection = self.collections.insert(Collection::new(name));
                part.collections.insert(name.into(), collection);
                collection
            }
        }
    }

    /// Removes a collection that no subscription asks for any more. Then removes the tenant if none
    /// of its subscriptions is left.
    fn prune(&mut self, tenant: &Tenant, collection: &str) {
        let Some(part) = self.tenants.get_mut(tenant) else { return };
        if let Some(&at) = part.collections.get(collection)
            && self.collections[at].is_empty()
        {
            part.collections.remove(collection);
            self.collections.remove(at);
        }
        if part.numbers.is_empty() && part.collections.is_empty() {
            self.tenants.remove(tenant);
        }
    }
}

impl<T> fmt::Debug for Index<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({} subscriptions, {} tenants)", self.len(), self.tenants.len())
    }
}

#[cfg(test)]
mod tests;
