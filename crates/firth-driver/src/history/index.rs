//! A timeline sorted by what the laws ask about: sends, and per group deliveries with their
//! verdicts.

use super::{Entry, Fault, What};
use crate::protocol::{Command, Event};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

#[derive(Default)]
pub(super) struct Run<'t> {
    pub(super) sends: HashMap<&'t str, Send<'t>>,
    pub(super) groups: BTreeMap<&'t str, Group<'t>>,
    pub(super) broken: HashSet<&'t str>,
    pub(super) server_broken: bool,
}

/// A message that was handed to a producer.
pub(super) struct Send<'t> {
    pub(super) pos: usize,
    pub(super) source: &'t str,
    pub(super) key: Option<&'t str>,
    pub(super) sha: &'t str,
    pub(super) outcome: Outcome,
    /// Where its outcome was heard.
    pub(super) answered: Option<usize>,
}

/// What is known about a send or a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Unknown,
    Refused,
}

impl Outcome {
    fn failed(definite: bool) -> Self {
        if definite { Self::Refused } else { Self::Unknown }
    }
}

#[derive(Default)]
pub(super) struct Group<'t> {
    pub(super) deliveries: Vec<Delivered<'t>>,
    /// Where in the timeline each epoch of a partition was first seen, and who had it.
    pub(super) epochs: BTreeMap<(u32, u64), Epoch<'t>>,
    pub(super) revoked: HashSet<(&'t str, u32, u64)>,
    pub(super) lag: Option<u64>,
    pub(super) dead: HashSet<&'t str>,
    by_token: HashMap<(&'t str, u64), usize>,
    /// Verdicts without an answer, oldest first, per process and message.
    asked: HashMap<(&'t str, &'t str), VecDeque<(usize, usize)>>,
}

pub(super) struct Epoch<'t> {
    pub(super) seen: usize,
    pub(super) owners: BTreeSet<&'t str>,
}

pub(super) struct Delivered<'t> {
    pub(super) pos: usize,
    pub(super) source: &'t str,
    pub(super) id: &'t str,
    pub(super) key: Option<&'t str>,
    pub(super) sha: &'t str,
    pub(super) partition: u32,
    pub(super) epoch: u64,
    pub(super) verdicts: Vec<Verdict>,
}

pub(super) struct Verdict {
    pub(super) pos: usize,
    /// Whether it ends the message's life in the group, and not only this attempt.
    pub(super) settles: bool,
    pub(super) outcome: Outcome,
    /// Where its answer was heard.
    pub(super) answered: Option<usize>,
}

impl<'t> Delivered<'t> {
    /// Who had the partition, and by which right.
    pub(super) fn owner(&self) -> (&'t str, u32, u64) {
        (self.source, self.partition, self.epoch)
    }

    /// Where a verdict on it was confirmed that ends the message's life.
    pub(super) fn settled_at(&self) -> Option<usize> {
        let done = |verdict: &&Verdict| verdict.settles && verdict.outcome == Outcome::Done;
        self.verdicts.iter().find(done).and_then(|verdict| verdict.answered)
    }

    /// Where a verdict was asked for that may have ended the message's life.
    pub(super) fn may_settle_from(&self) -> Option<usize> {
        let may = |verdict: &&Verdict| verdict.settles && verdict.outcome != Outcome::Refused;
        self.verdicts.iter().find(may).map(|verdict| verdict.pos)
    }

    /// Where a verdict was asked for that would have ended the message's life.
    pub(super) fn asked_from(&self) -> Option<usize> {
        self.verdicts.iter().find(|verdict| verdict.settles).map(|verdict| verdict.pos)
    }
}

impl<'t> Run<'t> {
    pub(super) fn read(timeline: &'t [Entry]) -> Self {
        let mut run = Self::default();
        for (pos, entry) in timeline.iter().enumerate() {
            run.take(pos, entry);
        }
        run
    }

    fn take(&mut self, pos: usize, entry: &'t Entry) {
        let source = entry.source.as_str();
        match (&entry.what, &entry.group) {
            (What::Fault(Fault::Server), _) => self.server_broken = true,
            (What::Fault(Fault::Process), _) => drop(self.broken.insert(source)),
            (What::Input(input), _) => {
                let key = input.key.as_deref();
                let sha = input.sha.as_str();
                let send = Send { pos, source, key, sha, outcome: Outcome::Unknown, answered: None };
                self.sends.insert(&input.id, send);
            }
            (What::Told(Event::SentOk { id }), _) => self.sent(pos, id, Outcome::Done),
            (What::Told(Event::SentErr { id, definite }), _) => {
                self.sent(pos, id, Outcome::failed(*definite));
            }
            (What::Told(event), Some(group)) => {
                self.groups.entry(group).or_default().hear(pos, source, event);
            }
            (What::Asked(command), Some(group)) => {
                self.groups.entry(group).or_default().ask(pos, source, command);
            }
            // A consumer without a group says nothing that can be judged.
            (_, None) => {}
        }
    }

    fn sent(&mut self, pos: usize, id: &str, outcome: Outcome) {
        if let Some(send) = self.sends.get_mut(id) {
            (send.outcome, send.answered) = (outcome, send.answered.or(Some(pos)));
        }
    }
}

impl<'t> Group<'t> {
    fn hear(&mut self, pos: usize, source: &'t str, event: &'t Event) {
        match event {
            Event::Assigned { partition, epoch } => self.own(pos, source, (*partition, *epoch)),
            Event::Revoked { partition, epoch } => drop(self.revoked.insert((source, *partition, *epoch))),
            Event::Delivered { id, key, partition, epoch, sha, token, .. } => {
                self.own(pos, source, (*partition, *epoch));
                self.by_token.insert((source, *token), self.deliveries.len());
                let key = key.as_deref();
                let verdicts = Vec::new();
                let partition = *partition;
                let epoch = *epoch;
                self.deliveries.push(Delivered { pos, source, id, key, sha, partition, epoch, verdicts });
            }
            Event::AckOk { id } => self.answer(pos, (source, id), Outcome::Done),
            Event::AckErr { id, definite, .. } => self.answer(pos, (source, id), Outcome::failed(*definite)),
            Event::Final { lag, dead, .. } => {
                self.lag = Some(*lag);
                self.dead = dead.iter().map(String::as_str).collect();
            }
            Event::SentOk { .. } | Event::SentErr { .. } => {}
        }
    }

    fn own(&mut self, pos: usize, source: &'t str, epoch: (u32, u64)) {
        let epoch = self.epochs.entry(epoch).or_insert_with(|| Epoch { seen: pos, owners: BTreeSet::new() });
        epoch.owners.insert(source);
    }

    fn ask(&mut self, pos: usize, source: &'t str, command: &'t Command) {
        let Some(delivery) = self.by_token.get(&(source, command.token())).copied() else { return };
        let settles = !matches!(command, Command::Nack { .. });
        let verdicts = &mut self.deliveries[delivery].verdicts;
        self.asked.entry((source, command.id())).or_default().push_back((delivery, verdicts.len()));
        verdicts.push(Verdict { pos, settles, outcome: Outcome::Unknown, answered: None });
    }

    fn answer(&mut self, pos: usize, whose: (&'t str, &'t str), outcome: Outcome) {
        let Some((delivery, verdict)) = self.asked.get_mut(&whose).and_then(VecDeque::pop_front) else {
            return;
        };
        let verdict = &mut self.deliveries[delivery].verdicts[verdict];
        (verdict.outcome, verdict.answered) = (outcome, Some(pos));
    }
}
