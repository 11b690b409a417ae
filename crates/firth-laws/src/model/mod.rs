//! The reference model: what a partition with its groups *is*, told as plainly as possible.
//!
//! Per group every record has one [`Place`]. There is no frontier, no index, no fencing arithmetic:
//! those are how an engine does it, and the model says only what must come out. Random operations
//! run on a model and on an engine side by side; every answer, and the whole state after every
//! operation, must agree.
//!
//! Time is out of the picture: delays are "now" or "in an hour", leases do not run out. Lossy trims
//! have laws of their own.

mod run;

pub use run::{Op, agree, operations};

use std::collections::BTreeMap;

/// Where a record is, for one group. Numbers are `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the log, waiting or in flight.
    Waiting,
    /// Waiting for a retry.
    Due(DueState),
    /// Settled: done, or given up.
    Settled,
}

/// A due record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueState {
    /// The attempt that comes next.
    pub attempt: u32,
    /// Owners that vanished with it.
    pub crashes: u32,
    /// The owner has it.
    pub taken: bool,
    /// Its time is an hour away.
    pub later: bool,
    /// Its content is kept aside.
    pub kept: bool,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub struct ModelGroup {
    /// Where every record from the group's start on is; what is missing is before the start.
    pub places: BTreeMap<u64, Place>,
    /// Dead letters: `seq` to attempts.
    pub dead: BTreeMap<u64, u32>,
    /// Who opened last (a number that grows with each owner), and whether they left properly.
    pub opened: Option<(u64, bool)>,
    /// Owners in a row that vanished over the same first waiting record.
    pub crashes: u32,
    /// That record.
    pub crash_at: u64,
}

/// A partition with its groups.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The payload number of each record still there, by `seq`.
    pub log: BTreeMap<u64, u64>,
    /// The newest `seq` ever.
    pub last: u64,
    /// The newest `seq` that was trimmed.
    pub trimmed: u64,
    /// The payload numbers of the delayed messages, the next one first.
    pub delayed: Vec<u64>,
    /// The groups.
    pub groups: BTreeMap<String, ModelGroup>,
}

impl Model {
    /// Appends one record.
    pub fn append(&mut self, number: u64) {
        self.last += 1;
        self.log.insert(self.last, number);
        for group in self.groups.values_mut() {
            group.places.insert(self.last, Place::Waiting);
        }
    }

    /// Makes a group that starts after `seq`, unless it is there.
    pub fn create(&mut self, name: &str, after: u64) -> bool {
        if self.groups.contains_key(name) {
            return false;
        }
        self.groups.insert(name.to_owned(), ModelGroup::default());
        self.place_after(name, after);
        true
    }

    fn place_after(&mut self, name: &str, after: u64) {
        let last = self.last;
        let group = self.groups.get_mut(name).expect("the group is there");
        for seq in after + 1..=last {
            group.places.insert(seq, Place::Waiting);
        }
    }

    /// The last record that no group needs.
    pub fn floor(&self) -> u64 {
        let needs = |group: &ModelGroup| {
            let needed = group.places.iter().find(|(_, place)| match place {
                Place::Waiting => true,
                Place::Due(due) => !due.kept,
                Place::Settled => false,
            });
            needed.map_or(self.last, |(seq, _)| seq - 1)
        };
        self.groups.values().map(needs).min().unwrap_or(self.last)
    }

    /// Notes that everything up to `target` was trimmed, which must be allowed. An engine may keep
    /// more than it must.
    pub fn trim(&mut self, target: u64) {
        assert!(
            target <= self.floor().max(self.trimmed),
            "trimmed up to {target}, but {} is the floor",
            self.floor()
        );
        self.trimmed = target;
        self.log.retain(|seq, _| *seq > target);
    }

    /// Moves a group to start after `after`.
    pub fn reset(&mut self, name: &str, after: u64, drop_due: bool) {
        let group = self.groups.get_mut(name).expect("the group is there");
        for (seq, place) in &mut group.places {
            match place {
                Place::Due(_) if drop_due => *place = Place::Settled,
                Place::Due(due) if *seq <= after => due.taken = false,
                Place::Due(_) => {}
                Place::Waiting if *seq <= after => *place = Place::Settled,
                Place::Waiting | Place::Settled => {}
            }
        }
        group.crashes = 0;
        if let Some((_, left)) = &mut group.opened {
            *left = true;
        }
        group.crash_at = after + 1;
        self.place_after(name, after);
    }
}

impl ModelGroup {
    /// The verdicts of a commit have been applied: an owner that moved on starts a new count.
    pub fn committed(&mut self, last: u64) {
        if self.first_waiting(last) != self.crash_at {
            self.crashes = 0;
        }
    }

    /// A dead letter comes back to its group, unless its record comes anyway.
    pub fn revive(&mut self, seq: u64) {
        if self.dead.remove(&seq).is_some() && self.places.get(&seq) == Some(&Place::Settled) {
            let due = DueState { attempt: 1, crashes: 0, taken: false, later: false, kept: true };
            self.places.insert(seq, Place::Due(due));
        }
    }

    /// The first record that is waiting, or the one after the last.
    pub fn first_waiting(&self, last: u64) -> u64 {
        self.places.iter().find(|(_, place)| **place == Place::Waiting).map_or(last + 1, |(seq, _)| *seq)
    }

    /// Waiting records.
    pub fn waiting(&self) -> Vec<u64> {
        let is_waiting = |(_, place): &(&u64, &Place)| **place == Place::Waiting;
        self.places.iter().filter(is_waiting).map(|(seq, _)| *seq).collect()
    }

    /// All due records.
    pub fn due(&self) -> BTreeMap<u64, DueState> {
        let due = |(seq, place): (&u64, &Place)| match place {
            Place::Due(due) => Some((*seq, due.clone())),
            _ => None,
        };
        self.places.iter().filter_map(due).collect()
    }

    /// A new owner, or the same one again, opens the group.
    pub fn open(&mut self, owner: u64, last: u64) {
        let is_new = self.opened.is_none_or(|(before, _)| before != owner);
        let crashed = is_new && self.opened.is_some_and(|(_, left)| !left);
        for place in self.places.values_mut() {
            if let Place::Due(due) = place
                && due.taken
            {
                (due.taken, due.later) = (false, false);
                due.crashes += u32::from(crashed);
            }
        }
        if is_new {
            let first = self.first_waiting(last);
            let had_work = !self.waiting().is_empty();
            self.crashes = match (crashed && had_work, self.crash_at == first) {
                (true, true) => self.crashes + 1,
                (true, false) => 1,
                (false, _) => 0,
            };
            self.crash_at = first;
        }
        self.opened = Some((owner, false));
    }
}
