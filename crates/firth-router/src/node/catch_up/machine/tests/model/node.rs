//! One node of the model: its naive lane, the reader of the partition and the catch-up reader.

use super::store::Store;
use super::{CatchUp, CatchUpAction, CatchUpEvent, Counts, document, owner, record};
use fastrand::Rng;
use firth::Epoch;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// The lane holds no more than this.
const ROOM: usize = 6;

/// An event in the lane.
#[derive(Clone, Debug)]
struct Held {
    seq: u64,
    is_live: bool,
    /// The ownership, or the consumer of the gateway's group, whose record waits for it.
    record_number: Option<u64>,
    sent_under: u64,
    refusals: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Round,
    Feeding,
    Draining,
    Closing,
    Removing { hold: u64, mark: Option<u64> },
}

#[derive(Debug)]
struct Feeder {
    epoch: u64,
    phase: Phase,
    session: u64,
    at: u64,
    is_stopped: bool,
}

#[derive(Debug)]
pub(super) struct Node {
    /// What its consumer knows, and what its reader has begun.
    handle: Option<u64>,
    epoch: Option<u64>,
    machine: CatchUp<u64>,
    waiting: Vec<Held>,
    out: Vec<Held>,
    read: u64,
    feeder: Option<Feeder>,
    /// Steps that the reader of the partition awaits.
    pub(super) todo: VecDeque<CatchUpAction<u64>>,
    letters: BTreeSet<u64>,
    now: Instant,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            handle: None,
            epoch: None,
            machine: CatchUp::new(),
            waiting: Vec::new(),
            out: Vec::new(),
            read: 0,
            feeder: None,
            todo: VecDeque::new(),
            letters: BTreeSet::new(),
            now: Instant::now(),
        }
    }
}

impl Node {
    pub(super) fn is_at_rest(&self) -> bool {
        self.waiting.is_empty() && self.out.is_empty() && self.todo.is_empty() && self.feeder.is_none()
    }

    pub(super) fn wants_park(&self) -> bool {
        !self.todo.is_empty() || self.machine.is_doubtful()
    }

    /// Events on their way arrive or not; everything else is gone.
    pub(super) fn crash(&mut self, random: &mut Rng, store: &mut Store) {
        for held in std::mem::take(&mut self.out) {
            let refuses = random.bool();
            store.deliver(held.sent_under, held.seq, refuses);
        }
        *self = Self::default();
    }

    /// Tells the machine what happened, does to the lane what follows, and answers the rest.
    fn apply(&mut self, store: &mut Store, event: CatchUpEvent<u64>) -> Vec<CatchUpAction<u64>> {
        let mut rest = Vec::new();
        for action in self.machine.on(self.now, event) {
            match action {
                CatchUpAction::LeaveToReader { from } => self.leave_to_reader(store, from),
                CatchUpAction::Detach { from } => {
                    for held in self.out.iter_mut().filter(|held| held.is_live && held.seq >= from) {
                        if let Some(epoch) = held.record_number.take() {
                            store.settle(epoch, held.seq);
                        }
                    }
                }
                CatchUpAction::DropLive => {
                    self.waiting.retain(|held| !held.is_live);
                    self.out
                        .iter_mut()
                        .filter(|held| held.is_live)
                        .for_each(|held| held.record_number = None);
                }
                CatchUpAction::DropFed => {
                    self.waiting.retain(|held| held.is_live);
                    self.out
                        .iter_mut()
                        .filter(|held| !held.is_live)
                        .for_each(|held| held.record_number = None);
                }
                CatchUpAction::StopReader => {
                    self.feeder.as_mut().expect("a reader is stopped while it runs").is_stopped = true;
                }
                CatchUpAction::StartReader { hold } => {
                    assert!(self.feeder.is_none(), "one reader at a time");
                    let phase = Phase::Round;
                    let is_stopped = false;
                    self.feeder = Some(Feeder { epoch: hold, phase, session: 0, at: 0, is_stopped });
                }
                rest_of_it => rest.push(rest_of_it),
            }
        }
        rest
    }

    fn leave_to_reader(&mut self, store: &mut Store, from: u64) {
        for held in self.waiting.extract_if(.., |held| held.is_live && held.seq >= from) {
            if let Some(epoch) = held.record_number {
                store.settle(epoch, held.seq);
            }
        }
    }

    /// The reader of the partition does its next step of catch-up; false if it awaits none.
    fn perform(&mut self, random: &mut Rng, store: &mut Store, counts: &mut Counts, is_calm: bool) -> bool {
        let Some(action) = self.todo.pop_front() else { return false };
        let rest = match action {
            CatchUpAction::MakeGroup { hold, behind } => {
                let (fails_before, is_answered) = match is_calm {
                    true => (false, true),
                    false => (random.u32(..4) == 0, random.u32(..4) > 0),
                };
                let behind = behind.map_or_else(|| store.frontier(), |behind| behind.seq);
                let mut made = None;
                if !fails_before {
                    let mark = store.set_mark();
                    counts.fenced += usize::from(hold != store.epoch);
                    if hold == store.epoch {
                        store.make_group(behind);
                        counts.lost_replies += usize::from(!is_answered);
                        made = is_answered.then_some((record(behind), mark));
                    }
                }
                self.apply(store, CatchUpEvent::GroupMade { epoch: Epoch(hold), made })
            }
            CatchUpAction::TakeBackLetters { from, .. } => {
                self.take_back(store, from);
                Vec::new()
            }
            CatchUpAction::TellParked => {
                counts.parked += 1;
                Vec::new()
            }
            CatchUpAction::TellResumed => {
                counts.resumed += 1;
                Vec::new()
            }
            other => panic!("not for the reader of the partition: {other:?}"),
        };
        self.todo.extend(rest);
        true
    }

    fn take_back(&mut self, store: &mut Store, from: u64) {
        for seq in self.letters.split_off(&from) {
            store.letters.remove(&seq);
        }
    }

    /// The node parks the gateway.
    pub(super) fn park(&mut self, random: &mut Rng, store: &mut Store, counts: &mut Counts, is_calm: bool) {
        if self.perform(random, store, counts, is_calm) {
            return;
        }
        let Some(epoch) = self.epoch.filter(|epoch| self.handle == Some(*epoch)) else { return };
        let live = self.waiting.iter().chain(&self.out).filter(|held| held.is_live);
        let lowest = live.min_by_key(|held| held.seq);
        let behind = lowest.filter(|held| held.record_number == Some(epoch)).map(|held| record(held.seq - 1));
        let event = CatchUpEvent::Park { owner: owner(epoch), behind, last: self.read };
        let rest = self.apply(store, event);
        self.todo.extend(rest);
    }

    /// The reader of the partition takes the next event.
    pub(super) fn route(&mut self, random: &mut Rng, store: &mut Store, counts: &mut Counts, is_calm: bool) {
        if self.perform(random, store, counts, is_calm) {
            return;
        }
        let Some(epoch) = self.epoch.filter(|epoch| self.handle == Some(*epoch)) else { return };
        let Some(seq) = (self.read + 1..=store.log).find(|seq| !store.settled.contains(seq)) else { return };
        if self.waiting.len() + self.out.len() >= ROOM {
            return;
        }
        self.read = seq;
        if !self.machine.admits(seq) {
            store.settle(epoch, seq);
            return;
        }
        if self.machine.is_over(seq) {
            self.machine = CatchUp::new();
        }
        self.waiting.push(Held {
            seq,
            is_live: true,
            record_number: Some(epoch),
            sent_under: 0,
            refusals: 0,
        });
    }

    /// The driver sends an event whose document has none on its way.
    pub(super) fn send(&mut self, random: &mut Rng) {
        let Some(epoch) = self.handle.or(self.epoch) else { return };
        let busy: BTreeSet<_> = self.out.iter().map(|held| document(held.seq)).collect();
        let mut seen = busy.clone();
        let first_of_document = |held: &Held| seen.insert(document(held.seq));
        let may: Vec<_> = self.waiting.iter().map(first_of_document).enumerate().collect();
        let may: Vec<_> = may.into_iter().filter(|(_, may)| *may).map(|(index, _)| index).collect();
        if let Some(index) = random.choice(may) {
            let mut held = self.waiting.remove(index);
            held.sent_under = epoch;
            self.out.push(held);
        }
    }

    /// The gateway answers, or does not.
    pub(super) fn hear(&mut self, random: &mut Rng, store: &mut Store, counts: &mut Counts) {
        if self.out.is_empty() {
            return;
        }
        let mut held = self.out.swap_remove(random.usize(..self.out.len()));
        let refuses = store.gateway_refuses && random.u32(..3) > 0;
        let arrives = random.u32(..4) > 0 || !store.gateway_refuses;
        let is_accepted = arrives && store.deliver(held.sent_under, held.seq, refuses);
        // An answer may be lost.
        if is_accepted && (random.u32(..4) > 0 || !store.gateway_refuses) {
            if let Some(record_number) = held.record_number {
                match held.is_live {
                    true => store.settle(record_number, held.seq),
                    false => store.settle_side(record_number, held.seq),
                };
            }
            return;
        }
        let is_spared = held.is_live && self.machine.exempt().is_some_and(|from| from <= held.seq);
        held.refusals += u32::from(arrives && refuses && !is_spared);
        if held.refusals >= 3 && self.epoch == Some(held.sent_under) {
            counts.given_up += 1;
            self.give_up(store, &held);
            return;
        }
        self.waiting.insert(0, held);
        if let Some(from) = self.machine.fed_from() {
            self.leave_to_reader(store, from);
        }
    }

    fn give_up(&mut self, store: &mut Store, held: &Held) {
        // Also if that is not stored, because the ownership is over: later events went on.
        store.given_up.insert(held.seq);
        let Some(record_number) = held.record_number else { return };
        if held.is_live {
            if store.settle(record_number, held.seq) {
                store.letters.insert(held.seq);
                self.letters.insert(held.seq);
            }
        } else if store.settle_side(record_number, held.seq) {
            store.group.as_mut().expect("it was just settled there").letters.insert(held.seq);
        }
    }

    /// The consumer of the node, or its reader, notices who owns the partition.
    pub(super) fn notice(&mut self, number: usize, random: &mut Rng, store: &mut Store, counts: &mut Counts) {
        if self.perform(random, store, counts, false) {
            return;
        }
        if random.bool() {
            self.handle = (store.owner == number).then_some(store.epoch);
            return;
        }
        if self.epoch.is_none() {
            // What was on its way when the partition went, and has come back since.
            let has_feeder = self.feeder.is_some();
            self.waiting.retain(|held| !held.is_live && has_feeder);
        }
        if self.epoch == self.handle {
            return;
        }
        self.apply(store, CatchUpEvent::Lost);
        self.waiting.retain(|held| !held.is_live);
        self.out.iter_mut().filter(|held| held.is_live).for_each(|held| held.record_number = None);
        self.epoch = None;
        let Some(epoch) = self.handle.filter(|epoch| *epoch == store.epoch) else { return };
        (self.epoch, self.read) = (Some(epoch), store.frontier());
        match (&store.group, store.mark) {
            (Some(group), Some(mark)) => {
                let behind = group.frontier();
                store.letters.retain(|seq| *seq <= behind);
                let last = store.log;
                let found = CatchUpEvent::Found { owner: owner(epoch), behind: record(behind), last, mark };
                let rest = self.apply(store, found);
                self.todo.extend(rest);
            }
            (Some(_), None) => panic!("seed {}: a group without a mark", store.seed),
            (None, _) => store.mark = None,
        }
    }

    /// The catch-up reader does its next step.
    pub(super) fn read(&mut self, random: &mut Rng, store: &mut Store, counts: &mut Counts, is_calm: bool) {
        let Some(Feeder { epoch, phase, is_stopped, .. }) = self.feeder.as_ref() else { return };
        let is_over = *is_stopped || self.handle != Some(*epoch);
        let epoch = *epoch;
        let phase = *phase;
        self.now += Duration::from_millis(60);
        let fails = !is_calm && random.u32(..12) == 0;
        match phase {
            _ if is_over && !matches!(phase, Phase::Closing | Phase::Removing { .. }) => {
                self.tell(store, CatchUpEvent::LetGo { epoch: Epoch(epoch) });
                self.feeder = None;
                self.tell(store, CatchUpEvent::ReaderEnded);
            }
            Phase::Round if !fails => self.begin_round(store, epoch, counts),
            Phase::Feeding => self.feed(store, epoch, fails),
            Phase::Draining => {
                // The consumer loses the group, and cannot settle any more.
                if !is_calm && random.u32(..4) == 0 {
                    store.take_session();
                }
                let is_open = |held: &Held| !held.is_live && held.record_number.is_some();
                let is_drained = !self.waiting.iter().chain(&self.out).any(is_open);
                if is_drained || self.machine.is_behind() {
                    let actions = self.apply(store, CatchUpEvent::Drained { epoch: Epoch(epoch) });
                    let closes = actions.contains(&CatchUpAction::CloseReader);
                    self.set_phase(if closes { Phase::Closing } else { Phase::Feeding });
                }
            }
            Phase::Closing => self.close(store, counts, epoch, fails),
            Phase::Removing { hold, mark } => {
                self.remove(random, store, counts, (epoch, hold, mark, is_calm));
            }
            Phase::Round => {}
        }
    }

    fn set_phase(&mut self, phase: Phase) {
        if let Some(feeder) = &mut self.feeder {
            feeder.phase = phase;
        }
    }

    /// Tells the machine, for the catch-up reader; letters are taken back at once.
    fn tell(&mut self, store: &mut Store, event: CatchUpEvent<u64>) -> bool {
        let mut is_done = false;
        for action in self.apply(store, event) {
            match action {
                CatchUpAction::TakeBackLetters { from, .. } => self.take_back(store, from),
                CatchUpAction::TellResumed => is_done = true,
                other => panic!("not for the catch-up reader: {other:?}"),
            }
        }
        is_done
    }

    fn begin_round(&mut self, store: &mut Store, epoch: u64, counts: &mut Counts) {
        self.tell(store, CatchUpEvent::Round { epoch: Epoch(epoch) });
        if self.machine.has_caught_up(Epoch(epoch)) && store.group.is_none() {
            assert!(self.tell(store, CatchUpEvent::Gone { epoch: Epoch(epoch) }));
            (self.feeder, counts.resumed) = (None, counts.resumed + 1);
            return;
        }
        let Some(behind) = self.machine.group_behind(Epoch(epoch)) else { return };
        if epoch != store.epoch {
            counts.fenced += 1;
            return;
        }
        let (session, at) = store.join_group(behind.seq);
        self.tell(store, CatchUpEvent::Kept { epoch: Epoch(epoch) });
        if let Some(feeder) = &mut self.feeder {
            (feeder.session, feeder.at, feeder.phase) = (session, at, Phase::Feeding);
        }
    }

    fn feed(&mut self, store: &mut Store, epoch: u64, fails: bool) {
        let Some(feeder) = &self.feeder else { return };
        let session = feeder.session;
        let at = feeder.at;
        let group = store.group.as_ref().filter(|group| group.session == session && !fails);
        let Some(group) = group else {
            self.tell(store, CatchUpEvent::LetGo { epoch: Epoch(epoch) });
            self.set_phase(Phase::Round);
            return;
        };
        let keeps_letters = !group.letters.is_empty();
        let next = (at.max(group.behind) + 1..=store.log).find(|seq| !group.settled.contains(seq));
        let frontier = group.frontier();
        if self.machine.wants_look(self.now, Epoch(epoch)) {
            let may_go_on = !keeps_letters && self.waiting.len() < ROOM / 2;
            self.tell(store, CatchUpEvent::Looked { epoch: Epoch(epoch), may_go_on });
            if !keeps_letters && self.machine.has_caught_up(Epoch(epoch)) {
                self.set_phase(Phase::Draining);
                return;
            }
        }
        match next {
            Some(seq) if self.waiting.len() + self.out.len() < ROOM => {
                let record_number = Some(session);
                self.waiting.push(Held { seq, is_live: false, record_number, sent_under: 0, refusals: 0 });
                self.feeder.iter_mut().for_each(|feeder| feeder.at = seq);
                self.tell(store, CatchUpEvent::Took { epoch: Epoch(epoch), seq });
            }
            Some(_) => {}
            None => {
                self.tell(store, CatchUpEvent::Took { epoch: Epoch(epoch), seq: frontier });
            }
        }
    }

    fn close(&mut self, store: &mut Store, counts: &mut Counts, epoch: u64, fails: bool) {
        let group = store.group.as_ref().filter(|_| !fails);
        let Some((frontier, has_letters)) = group.map(|group| (group.frontier(), !group.letters.is_empty()))
        else {
            self.tell(store, CatchUpEvent::Removed { epoch: Epoch(epoch), is_gone: false });
            return self.set_phase(Phase::Round);
        };
        let settled = record(frontier);
        let keeps_letters = has_letters;
        let event = CatchUpEvent::Closed { epoch: Epoch(epoch), settled, keeps_letters };
        let mut phase = Phase::Round;
        for action in self.apply(store, event) {
            match action {
                CatchUpAction::RemoveGroup { hold, mark } => phase = Phase::Removing { hold, mark },
                CatchUpAction::TakeBackLetters { from, .. } => {
                    counts.unsettled_at_close += 1;
                    self.take_back(store, from);
                }
                other => panic!("not at the close of a reader: {other:?}"),
            }
        }
        self.set_phase(phase);
    }

    fn remove(
        &mut self,
        random: &mut Rng,
        store: &mut Store,
        counts: &mut Counts,
        (epoch, hold, mark, is_calm): (u64, u64, Option<u64>, bool),
    ) {
        let is_fenced = hold != store.epoch;
        counts.fenced += usize::from(is_fenced);
        let happens = !is_fenced && (is_calm || random.u32(..4) > 0);
        let is_answered = is_calm || random.u32(..4) > 0;
        if happens {
            store.group = None;
            counts.lost_replies += usize::from(!is_answered);
            if is_answered && store.mark == mark {
                store.mark = None;
            }
        }
        let is_gone = happens && is_answered;
        if self.tell(store, CatchUpEvent::Removed { epoch: Epoch(epoch), is_gone }) {
            (self.feeder, counts.resumed) = (None, counts.resumed + 1);
            return;
        }
        if is_fenced {
            self.tell(store, CatchUpEvent::LetGo { epoch: Epoch(epoch) });
        }
        self.set_phase(Phase::Round);
    }
}
