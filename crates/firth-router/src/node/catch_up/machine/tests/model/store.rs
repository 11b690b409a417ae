//! What the engine stores, and what the gateway has.

use super::document;
use std::collections::BTreeSet;

/// The group of the gateway.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) behind: u64,
    pub(super) settled: BTreeSet<u64>,
    pub(super) letters: BTreeSet<u64>,
    /// Only the newest consumer settles.
    pub(super) session: u64,
}

impl Side {
    pub(super) fn frontier(&self) -> u64 {
        (self.behind + 1..).take_while(|seq| self.settled.contains(seq)).last().unwrap_or(self.behind)
    }
}

#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) seed: u64,
    /// Of the newest ownership, and which node has it.
    pub(super) epoch: u64,
    pub(super) owner: usize,
    /// Events 1 to this one were appended.
    pub(super) log: u64,
    /// In the router's own group.
    pub(super) settled: BTreeSet<u64>,
    pub(super) letters: BTreeSet<u64>,
    pub(super) group: Option<Side>,
    pub(super) mark: Option<u64>,
    pub(super) versions: u64,
    /// What the gateway has accepted, and the newest epoch that it has seen.
    pub(super) received: BTreeSet<u64>,
    gateway_epoch: u64,
    pub(super) gateway_refuses: bool,
    /// Events that a node gave up once: they may come out of order.
    pub(super) given_up: BTreeSet<u64>,
    /// Events whose letter an operator has deleted.
    deleted: BTreeSet<u64>,
    sessions: u64,
}

impl Store {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn take_over(&mut self, node: usize) {
        (self.owner, self.epoch) = (node, self.epoch + 1);
    }

    pub(super) fn frontier(&self) -> u64 {
        (1..).take_while(|seq| self.settled.contains(seq)).last().unwrap_or_default()
    }

    /// Settles an event for the router's own group; the engine refuses a former owner.
    pub(super) fn settle(&mut self, epoch: u64, seq: u64) -> bool {
        let is_owner = epoch == self.epoch;
        if is_owner {
            self.settled.insert(seq);
        }
        is_owner
    }

    pub(super) fn settle_side(&mut self, session: u64, seq: u64) -> bool {
        let group = self.group.as_mut().filter(|group| group.session == session);
        group.map(|group| group.settled.insert(seq)).is_some()
    }

    pub(super) fn set_mark(&mut self) -> u64 {
        self.versions += 1;
        self.mark = Some(self.versions);
        self.versions
    }

    /// Makes the group, or moves it back.
    pub(super) fn make_group(&mut self, behind: u64) {
        self.sessions += 1;
        let session = self.sessions;
        match &mut self.group {
            Some(group) if group.frontier() <= behind => {}
            Some(group) => {
                let letters = std::mem::take(&mut group.letters);
                *group = Side { behind, letters, session, ..Side::default() };
            }
            None => self.group = Some(Side { behind, session, ..Side::default() }),
        }
    }

    /// A consumer joins the group, which is made if it is missing; answers its session, and where
    /// it begins.
    pub(super) fn join_group(&mut self, behind: u64) -> (u64, u64) {
        self.sessions += 1;
        let group = self.group.get_or_insert_with(|| Side { behind, ..Side::default() });
        group.session = self.sessions;
        (group.session, group.behind)
    }

    /// Another consumer takes the group.
    pub(super) fn take_session(&mut self) {
        self.sessions += 1;
        if let Some(group) = &mut self.group {
            group.session = self.sessions;
        }
    }

    /// An operator deletes the letters of the gateway's group.
    pub(super) fn delete_letters(&mut self) {
        if let Some(group) = &mut self.group {
            self.deleted.append(&mut group.letters);
        }
    }

    /// True if the gateway accepts it.
    pub(super) fn deliver(&mut self, epoch: u64, seq: u64, refuses: bool) -> bool {
        if refuses || epoch < self.gateway_epoch {
            return false;
        }
        self.gateway_epoch = epoch;
        let newer = self.received.range(seq + 1..).find(|newer| document(**newer) == document(seq)).copied();
        if self.received.insert(seq) && !self.given_up.contains(&seq) {
            assert!(newer.is_none(), "seed {}: {seq} comes after {newer:?}", self.seed);
        }
        true
    }

    /// Some group keeps each event that the gateway has not accepted.
    pub(super) fn check(&self) {
        for seq in 1..=self.log {
            let is_in_group = |group: &Side| {
                group.letters.contains(&seq) || (seq > group.behind && !group.settled.contains(&seq))
            };
            let is_kept = self.received.contains(&seq)
                || self.deleted.contains(&seq)
                || self.letters.contains(&seq)
                || !self.settled.contains(&seq)
                || self.group.as_ref().is_some_and(is_in_group);
            assert!(is_kept, "seed {}: {seq} is lost: {self:?}", self.seed);
        }
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let is_done =
            |seq| [&self.received, &self.letters, &self.deleted].iter().any(|all| all.contains(&seq));
        let has_all = (1..=self.log).all(is_done);
        has_all && self.group.is_none() && self.frontier() == self.log
    }
}
