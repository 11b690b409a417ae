//! Conditions: what is left to check of a simple filter once a list has led to it. Whoever asks for the same shares one, and an event meets it in
//! the list itself, without a way to the subscription.

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
    /// The first test, if it asks for whole numbers between two.
    between: Option<Between>,
    tests: Tests,
    uses: usize,
}

/// Whole numbers of a field from `low` to `high`, both included.
#[derive(Clone, Copy)]
struct Between {
    field: FieldId,
    low: i64,
    high: i64,
}

impl Between {
    fn of((field, test): &(FieldId, Test)) -> Option<Self> {
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
        Some(Self { field: *field, low: whole(lower, i64::MIN, 1)?, high: whole(upper, i64::MAX, -1)? })
    }
}

#[derive(Default)]
pub(super) struct Conditions {
    conditions: Slab<Condition>,
    by_tests: HashTable<ConditionId>,
    hasher: RandomState,
}

impl Conditions {
    /// The condition of these tests, which stays until it was released as often as it was taken.
    pub(super) fn take(&mut self, tests: Tests) -> ConditionId {
        if tests.is_empty() {
            return ALWAYS;
        }
        let (conditions, hasher) = (&mut self.conditions, &self.hasher);
        let hash = hasher.hash_one(&tests);
        if let Some(&id) = self.by_tests.find(hash, |id| conditions[*id as usize].tests == tests) {
            conditions[id as usize].uses += 1;
            return id;
        }
        let id = u32::try_from(conditions.insert(Condition {
            between: tests.first().and_then(Between::of),
            tests,
            uses: 1,
        }));
        let id = id.expect("fewer conditions than subscriptions");
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

    pub(super) fn passes(&self, id: ConditionId, values: &Seen<'_>) -> bool {
        if id == ALWAYS {
            return true;
        }
        let Condition { between, tests, .. } = &self.conditions[id as usize];
        let mut left = &tests[..];
        if let Some(Between { field, low, high }) = between
            && let Some(Field::Num(Num::Int(value))) = &values[*field as usize]
        {
            if !(*low..=*high).contains(value) {
                return false;
            }
            left = &left[1..];
        }
        left.iter().all(|(field, test)| test.passes(values[*field as usize].as_ref()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }
}
