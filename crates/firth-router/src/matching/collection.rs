//! One collection of one tenant: its groups, and the lists that lead to them.

use super::conditions::Conditions;
use super::fields::{Fields, Seen};
use super::group::{Group, GroupId, Interpreter, Place, Plan, SubscriptionSlot};
use super::lists::{Direct, Hung, ListId, Lists};
use super::{Hit, Interest};
use crate::error::Result;
use crate::event::{Document, Event};
use crate::filter::Filter;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;
use std::hash::BuildHasher;

pub(super) struct Collection {
    name: Box<str>,
    fields: Fields,
    lists: Lists,
    conditions: Conditions,
    groups: Slab<Group>,
    by_interest: HashTable<GroupId>,
    hasher: RandomState,
    /// Groups that need the interpreter.
    with_rest: usize,
}

/// What a removal did.
pub(super) struct Left {
    /// The subscription that took the position.
    pub(super) moved: Option<u32>,
    /// A group left the slow list.
    pub(super) shrunk: bool,
}

type Identity<'a> = (Option<&'a str>, Option<&'a str>);

fn identity<'a>(document: &'a Option<Box<str>>, filter: &'a Option<Filter>) -> Identity<'a> {
    (document.as_deref(), filter.as_ref().map(Filter::canon))
}

impl Collection {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            fields: Fields::default(),
            lists: Lists::default(),
            conditions: Conditions::default(),
            groups: Slab::new(),
            by_interest: HashTable::new(),
            hasher: RandomState::default(),
            with_rest: 0,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_empty(&self) -> bool {
        // A filter that nothing passes hangs nowhere.
        let is_empty = self.groups.is_empty() && self.lists.is_empty();
        debug_assert!(!is_empty || self.conditions.is_empty());
        is_empty
    }

    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn has_group(&self, interest: &Interest) -> bool {
        self.find(identity(&interest.document, &interest.filter)).is_some()
    }

    /// Adds a subscription; true if the slow list grew.
    pub(super) fn join(&mut self, interest: &Interest, number: u32) -> (SubscriptionSlot, bool) {
        let (id, is_new) = match self.find(identity(&interest.document, &interest.filter)) {
            Some(id) => (id, false),
            None => {
                let group = Group::new(interest, &mut self.fields);
                let plans = group.plan(&self.lists);
                if let Some(tests) = group.plain_rest(&plans) {
                    let direct = Direct { number, condition: self.conditions.take(tests) };
                    let token = plans.into_iter().next().expect("a plain rest has one plan").token;
                    let (list, position) = self.lists.enter(token, direct);
                    return (SubscriptionSlot::Direct { list, position }, false);
                }
                (self.create(group, plans), true)
            }
        };
        let group = &mut self.groups[id as usize];
        group.members.push(number);
        let position = u32::try_from(group.members.len() - 1).expect("fewer members than subscriptions");
        (SubscriptionSlot::Group { group: id, position }, is_new && group.is_slow)
    }

    pub(super) fn leave(&mut self, place: SubscriptionSlot) -> Left {
        let (id, position) = match place {
            SubscriptionSlot::Group { group, position } => (group, position),
            SubscriptionSlot::Direct { list, position } => {
                let (gone, moved, answered) = self.lists.exit(list, position);
                let fields = self.conditions.release(gone.condition);
                fields.into_iter().chain(answered).for_each(|field| self.fields.release(field));
                return Left { moved, shrunk: false };
            }
        };
        let group = &mut self.groups[id as usize];
        group.members.swap_remove(position as usize);
        let moved = group.members.get(position as usize).copied();
        if !group.members.is_empty() {
            return Left { moved, shrunk: false };
        }
        let shrunk = group.is_slow;
        self.destroy(id);
        Left { moved, shrunk }
    }

    /// Whether a group leaves the slow list if this subscription leaves.
    pub(super) fn ends_slow(&self, place: SubscriptionSlot) -> bool {
        match place {
            SubscriptionSlot::Group { group, .. } => {
                let group = &self.groups[group as usize];
                group.is_slow && group.members.len() == 1
            }
            SubscriptionSlot::Direct { .. } => false,
        }
    }

    /// Adds the subscriptions that want the event.
    pub(super) fn matches(&self, event: &Event, hits: &mut Vec<Hit>) -> Result<()> {
        if !event.missing.is_empty() && self.fields.asks_for_any(&event.missing) {
            metrics::counter!("firth_router_missing_columns_total").increment(1);
        }
        let values = &self.fields.extract(event, event.document())?[..];
        let mut lists: SmallVec<[ListId; 8]> = SmallVec::new();
        let tell = |list: ListId, direct: &[Direct], hits: &mut Vec<Hit>| {
            lists.push(list);
            let passing = direct.iter().filter(|one| self.conditions.passes(one.condition, values));
            hits.extend(passing.map(|one| Hit { number: one.number, leaves: false }));
        };
        let mut now = self.matching((event, event.document()), values, hits, tell)?;
        self.tell(&now, false, hits);
        let (Some(before), Some(_)) = (&event.before, &event.after) else { return Ok(()) };
        let old = &self.fields.extract(event, Some(before))?[..];
        if old == values && self.with_rest == 0 {
            return Ok(());
        }
        let tell = |list: ListId, direct: &[Direct], hits: &mut Vec<Hit>| {
            let is_still_here = lists.contains(&list);
            let leaves = |one: &&Direct| {
                self.conditions.passes(one.condition, old)
                    && !(is_still_here && self.conditions.passes(one.condition, values))
            };
            hits.extend(direct.iter().filter(leaves).map(|one| Hit { number: one.number, leaves: true }));
        };
        let mut left = self.matching((event, Some(before)), old, hits, tell)?;
        now.sort_unstable();
        left.retain(|group| now.binary_search(group).is_err());
        self.tell(&left, true, hits);
        Ok(())
    }

    fn tell(&self, groups: &[GroupId], leaves: bool, hits: &mut Vec<Hit>) {
        for group in groups {
            let members = &self.groups[*group as usize].members;
            hits.extend(members.iter().map(|&number| Hit { number, leaves }));
        }
    }

    /// The groups that want this image of the document, each once. What stands directly in the
    /// lists is for `tell`.
    fn matching(
        &self,
        (event, document): (&Event, Option<&Document>),
        values: &Seen<'_>,
        hits: &mut Vec<Hit>,
        mut tell: impl FnMut(ListId, &[Direct], &mut Vec<Hit>),
    ) -> Result<Vec<GroupId>> {
        let mut found = Vec::new();
        let mut may_repeat = false;
        let mut interpreter = Interpreter::new(event, document);
        self.lists.candidates(&event.key, values, |id, list| {
            if !list.direct.is_empty() {
                tell(id, &list.direct, hits);
            }
            for Hung { group: id, place } in &list.groups {
                let group = &self.groups[*id as usize];
                if group.wants(*place, values, &mut interpreter) {
                    may_repeat |= group.places.len() > 1;
                    found.push(*id);
                }
            }
        });
        if may_repeat {
            found.sort_unstable();
            found.dedup();
        }
        interpreter.finish()?;
        Ok(found)
    }

    fn find(&self, wanted: Identity<'_>) -> Option<GroupId> {
        let is = |id: &GroupId| {
            let group = &self.groups[*id as usize];
            identity(&group.document, &group.filter) == wanted
        };
        self.by_interest.find(self.hasher.hash_one(wanted), is).copied()
    }

    fn create(&mut self, mut group: Group, plans: Vec<Plan>) -> GroupId {
        let id = u32::try_from(self.groups.vacant_key()).expect("fewer groups than subscriptions");
        for plan in plans {
            let place = u16::try_from(group.places.len()).expect("a filter has at most 256 parts");
            group.is_slow |= plan.token == super::lists::Token::Slow;
            let (list, position) = self.lists.hang(plan.token, Hung { group: id, place });
            group.places.push(Place { list, position, branch: plan.branch, answered: plan.answered });
        }
        self.with_rest += usize::from(group.has_rest());
        self.groups.insert(group);
        let groups = &self.groups;
        let hasher = &self.hasher;
        let hash = |id: &GroupId| {
            let group = &groups[*id as usize];
            hasher.hash_one(identity(&group.document, &group.filter))
        };
        self.by_interest.insert_unique(hash(&id), id, hash);
        id
    }

    fn destroy(&mut self, id: GroupId) {
        let group = self.groups.remove(id as usize);
        let hash = self.hasher.hash_one(identity(&group.document, &group.filter));
        if let Ok(found) = self.by_interest.find_entry(hash, |other| *other == id) {
            found.remove();
        }
        self.with_rest -= usize::from(group.has_rest());
        let mut places = group.places.clone();
        for index in 0..places.len() {
            let Place { list, position, .. } = places[index];
            let Some(moved) = self.lists.unhang(list, position) else { continue };
            // One of its own places may have been moved: then its position changes here.
            let theirs =
                if moved.group == id { &mut places } else { &mut self.groups[moved.group as usize].places };
            theirs[usize::from(moved.place)].position = position;
        }
        group.release(&mut self.fields);
    }

    #[cfg(test)]
    pub(super) fn lists(&self) -> &Lists {
        &self.lists
    }

    #[cfg(test)]
    pub(super) fn values<'a>(&self, event: &'a Event) -> super::fields::Values<'a> {
        self.fields.extract(event, event.document()).expect("documents in tests are valid")
    }
}
