//! One collection of one tenant: its groups, and the lists that lead to them.

use super::fields::{Fields, Values};
use super::group::{Group, GroupId, Interpreter, Membership, Place};
use super::lists::{Hung, Lists};
use super::{Hit, Interest};
use crate::error::Result;
use crate::event::{Document, Event};
use crate::filter::Filter;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use std::hash::BuildHasher;

pub(super) struct Collection {
    name: Box<str>,
    fields: Fields,
    lists: Lists,
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
        debug_assert!(!self.groups.is_empty() || self.lists.is_empty());
        self.groups.is_empty()
    }

    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn has_group(&self, interest: &Interest) -> bool {
        self.find(identity(&interest.document, &interest.filter)).is_some()
    }

    /// Adds a subscription; true if the slow list grew.
    pub(super) fn join(&mut self, interest: &Interest, number: u32) -> (Membership, bool) {
        let (id, is_new) = match self.find(identity(&interest.document, &interest.filter)) {
            Some(id) => (id, false),
            None => (self.create(interest), true),
        };
        let group = &mut self.groups[id as usize];
        group.members.push(number);
        let position = u32::try_from(group.members.len() - 1).expect("fewer members than subscriptions");
        (Membership { group: id, position }, is_new && group.is_slow)
    }

    pub(super) fn leave(&mut self, place: Membership) -> Left {
        let group = &mut self.groups[place.group as usize];
        group.members.swap_remove(place.position as usize);
        let moved = group.members.get(place.position as usize).copied();
        if !group.members.is_empty() {
            return Left { moved, shrunk: false };
        }
        let shrunk = group.is_slow;
        self.destroy(place.group);
        Left { moved, shrunk }
    }

    /// Adds the subscriptions that want the event.
    pub(super) fn matches(&self, event: &Event, hits: &mut Vec<Hit>) -> Result<()> {
        let values = self.fields.extract(event, event.document())?;
        let mut now = self.matching(event, event.document(), &values)?;
        self.tell(&now, false, hits);
        if let (Some(before), Some(_)) = (&event.before, &event.after) {
            let old = self.fields.extract(event, Some(before))?;
            if old != values || self.with_rest > 0 {
                let mut left = self.matching(event, Some(before), &old)?;
                now.sort_unstable();
                left.retain(|group| now.binary_search(group).is_err());
                self.tell(&left, true, hits);
            }
        }
        Ok(())
    }

    fn tell(&self, groups: &[GroupId], leaves: bool, hits: &mut Vec<Hit>) {
        for group in groups {
            let members = &self.groups[*group as usize].members;
            hits.extend(members.iter().map(|&number| Hit { number, leaves }));
        }
    }

    /// The groups that want this image of the document, each once.
    fn matching(
        &self,
        event: &Event,
        document: Option<&Document>,
        values: &Values<'_>,
    ) -> Result<Vec<GroupId>> {
        let (mut found, mut may_repeat) = (Vec::new(), false);
        let mut interpreter = Interpreter::new(event, document);
        self.lists.candidates(&event.key, values, |hung| {
            for Hung { group: id, place } in hung {
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

    fn create(&mut self, interest: &Interest) -> GroupId {
        let mut group = Group::new(interest, &mut self.fields);
        let id = u32::try_from(self.groups.vacant_key()).expect("fewer groups than subscriptions");
        for plan in group.plan(&self.lists) {
            let place = u16::try_from(group.places.len()).expect("a filter has at most 256 parts");
            group.is_slow |= plan.token == super::lists::Token::Slow;
            let (list, position) = self.lists.hang(plan.token, Hung { group: id, place });
            group.places.push(Place { list, position, branch: plan.branch, answered: plan.answered });
        }
        self.with_rest += usize::from(group.has_rest());
        self.groups.insert(group);
        let (groups, hasher) = (&self.groups, &self.hasher);
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
    pub(super) fn values<'a>(&self, event: &'a Event) -> Values<'a> {
        self.fields.extract(event, event.document()).expect("documents in tests are valid")
    }
}
