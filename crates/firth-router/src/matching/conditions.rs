//! Conditions: what is left to check of a simple filter once a list has led to it. Subscriptions
//! that ask for the same share one, and an event meets it in the list itself, without a way to the
//! subscription.

use super::fields::{FieldId, Seen};
use crate::filter::{Field, Limit, Literal, Num, Test};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;
use std::hash::BuildHasher;

pub(super) type ConditionId = u32;

/// The condition that every event passes.
const ALWAYS: ConditionId = ConditionId::MAX;

/// Tests of fields, all of which must pass.
pub(super) type Tests = SmallVec<[(FieldId, Test); 1]>;

struct Condition {
    tests: Tests,
    uses: usize,
}

/// The first test of a condition, if it asks for whole numbers of a field from `low` to `high`,
/// both included. An event meets many conditions, mostly with this test alone, so these stand side
/// by side in an array of their own.
#[derive(Clone, Copy)]
struct Between {
    field: FieldId,
    /// There is no other test.
    is_all: bool,
    low: i64,
    high: i64,
}

impl Between {
    /// Of a condition whose first test asks for something else: no event has this field.
    const NONE: Self = Self { field: FieldId::MAX, is_all: false, low: 0, high: 0 };

    fn of(tests: &Tests) -> Option<Self> {
        let (field, test) = tests.first()?;
        let Test::Range { lower, upper } = test else { return None };
        // One step inwards if the limit itself is out.
        let whole = |limit: &Option<Limit>, open: i64, step: i64| match limit {
            None => Some(open),
            Some(Limit { at: Literal::Num(Num::Int(at)), inclusive }) => {
                if *inclusive {
                    Some(*at)
                } else {
                    at.checked_add(step)
                }
            }
            Some(_) => None,
        };
        let low = whole(lower, i64::MIN, 1)?;
        let high = whole(upper, i64::MAX, -1)?;
        Some(Self { field: *field, is_all: tests.len() == 1, low, high })
    }
}

#[derive(Default)]
pub(super) struct Conditions {
    conditions: Slab<Condition>,
    /// By the same numbers; those of conditions that are gone are not looked at.
    first: Vec<Between>,
    by_tests: HashTable<ConditionId>,
    hasher: RandomState,
}

impl Conditions {
    /// The condition of these tests, which stays until it was released as often as it was taken.
    pub(super) fn take(&mut self, tests: Tests) -> ConditionId {
        if tests.is_empty() {
            return ALWAYS;
        }
        let conditions = &mut self.conditions;
        let hasher = &self.hasher;
        let hash = hasher.hash_one(&tests);
        if let Some(&id) = self.by_tests.find(hash, |id| conditions[*id as usize].tests == tests) {
            conditions[id as usize].uses += 1;
            return id;
        }
        let between = Between::of(&tests).unwrap_or(Between::NONE);
        let number = conditions.insert(Condition { tests, uses: 1 });
        self.first.resize(self.first.len().max(number + 1), Between::NONE);
        self.first[number] = between;
        let id = u32::try_from(number).expect("fewer conditions than subscriptions");
        self.by_tests.insert_unique(hash, id, |id| hasher.hash_one(&conditions[*id as usize].tests));
        id
    }

    /// Gives a condition up; answers the fields that it looks at.
    pub(super) fn release(&mut self, id: ConditionId) -> SmallVec<[FieldId; 2]> {
        if id == ALWAYS {
            return SmallVec::new();
        }
        let condition = &mut self.conditions[id as usize];
        let fields = condition.tests.iter().map(|(field, _)| *field).collect();
        condition.uses -= 1;
        if condition.uses == 0 {
            let condition = self.conditions.remove(id as usize);
            let hash = self.hasher.hash_one(&condition.tests);
            if let Ok(found) = self.by_tests.find_entry(hash, |other| *other == id) {
                found.remove();
            }
        }
        fields
    }

    #[inline]
    pub(super) fn passes(&self, id: ConditionId, values: &Seen<'_>) -> bool {
        let Some(first) = self.first.get(id as usize) else { return id == ALWAYS };
        let value = values.get(first.field as usize);
        if let Some(Some(Field::Num(Num::Int(value)))) = value {
            return (first.low..=first.high).contains(value) && (first.is_all || self.rest(id, 1, values));
        }
        self.rest(id, 0, values)
    }

    /// Whether all tests from this one on pass.
    fn rest(&self, id: ConditionId, from: usize, values: &Seen<'_>) -> bool {
        let tests = &self.conditions[id as usize].tests[from..];
        tests.iter().all(|(field, test)| test.passes(values[*field as usize].as_ref()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }
}
