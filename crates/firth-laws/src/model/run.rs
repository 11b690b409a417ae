//! Runs random operations on the model and on an engine, and compares.

use super::{DueState, Model, Place};
use crate::world::{
    self, Owner, acquire, dead, fails, group, numbered, read_all, retry, retry_kept, take_over,
};
use firth_engine::facet::{
    Append, DeadLetter, DelayedAction, ProducerSeq, ReadLimit, Replay, Reset, StartPosition, Trim, TrimTo,
};
use firth_engine::{
    Commit, Content, Engine, ErrorKind, Hold, Partition, ProducerName, Record, RecordId, Verdict,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const GROUPS: [&str; 2] = ["red", "blue"];

/// One operation. Groups are chosen by number; positions and counts are taken modulo what is there.
#[derive(Clone, Debug)]
pub enum Op {
    /// Append this many records.
    Append(u8),
    /// Append a batch of an idempotent producer, and send it again.
    AppendTwice(u8),
    /// Delay this many messages by an hour.
    Delay(u8),
    /// Cancel the n-th delayed message, or deliver it now.
    ChangeDelayed(u8, bool),
    /// Make a group: from the start, or from the end.
    Create(u8, bool),
    /// Become the owner, in place of any other.
    Own(u8),
    /// Open again with the same hold.
    Reopen(u8),
    /// Leave properly.
    Leave(u8),
    /// Take due and waiting records, and give these verdicts; what has none stays in hand.
    Work(u8, u8, Vec<u8>),
    /// A former owner tries everything.
    Zombie(u8),
    /// Keep this many records.
    Trim(u8),
    /// Replay the n-th dead letter, to the group or to everyone.
    Replay(u8, u8, bool),
    /// Delete the n-th dead letter.
    DeleteDead(u8, u8),
    /// Move the group: to the start, the end, or after the n-th record; with or without what is
    /// due.
    Reset(u8, u8, bool),
    /// Delete the group.
    DeleteGroup(u8),
}

/// Sequences of operations in which work is common and administration rare.
pub fn operations(len: usize) -> impl Strategy<Value = Vec<Op>> {
    let g = || 0u8..2;
    let op = prop_oneof![
        6 => (1u8..5).prop_map(Op::Append),
        1 => (1u8..4).prop_map(Op::AppendTwice),
        1 => (1u8..4).prop_map(Op::Delay),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(n, deliver)| Op::ChangeDelayed(n, deliver)),
        1 => (g(), any::<bool>()).prop_map(|(g, end)| Op::Create(g, end)),
        3 => g().prop_map(Op::Own),
        1 => g().prop_map(Op::Reopen),
        1 => g().prop_map(Op::Leave),
        10 => (g(), 1u8..12, prop::collection::vec(0u8..8, 0..12)).prop_map(|(g, n, v)| Op::Work(g, n, v)),
        2 => g().prop_map(Op::Zombie),
        2 => (0u8..6).prop_map(Op::Trim),
        2 => (g(), any::<u8>(), any::<bool>()).prop_map(|(g, n, all)| Op::Replay(g, n, all)),
        1 => (g(), any::<u8>()).prop_map(|(g, n)| Op::DeleteDead(g, n)),
        1 => (g(), any::<u8>(), any::<bool>()).prop_map(|(g, n, drop)| Op::Reset(g, n, drop)),
        1 => g().prop_map(Op::DeleteGroup),
    ];
    prop::collection::vec(op, 1..len)
}

/// Runs `ops` on a fresh partition of `engine` and on a model; panics where they differ.
pub async fn agree(engine: Engine, ops: Vec<Op>) {
    let at = world::partition(&engine).await;
    let mut run = Run {
        engine,
        at,
        model: Model::default(),
        lanes: BTreeMap::new(),
        zombies: Vec::new(),
        next_number: 0,
        owners: 0,
        producer: (world::producer(), 0),
    };
    for (step, op) in ops.iter().enumerate() {
        run.apply(op).await;
        run.compare(&format!("after step {step}, {op:?}")).await;
    }
}

struct Lane {
    owner: Owner,
    number: u64,
    hand: Vec<Record>,
}

struct Run {
    engine: Engine,
    at: Partition,
    model: Model,
    lanes: BTreeMap<&'static str, Lane>,
    zombies: Vec<(&'static str, Hold)>,
    next_number: u64,
    owners: u64,
    producer: (ProducerName, u64),
}

fn name(g: u8) -> &'static str {
    GROUPS[usize::from(g) % GROUPS.len()]
}

impl Run {
    async fn apply(&mut self, op: &Op) {
        match op {
            Op::Append(count) => self.append(*count, false).await,
            Op::AppendTwice(count) => self.append(*count, true).await,
            Op::Delay(count) => self.delay(*count).await,
            Op::ChangeDelayed(n, deliver) => self.change_delayed(*n, *deliver).await,
            Op::Create(g, end) => self.create(name(*g), *end).await,
            Op::Own(g) => self.own(name(*g)).await,
            Op::Reopen(g) => self.reopen(name(*g)).await,
            Op::Leave(g) => self.leave(name(*g)).await,
            Op::Work(g, count, verdicts) => self.work(name(*g), *count, verdicts).await,
            Op::Zombie(g) => self.zombie(name(*g)).await,
            Op::Trim(keep) => self.trim(u64::from(*keep)).await,
            Op::Replay(g, nth, everyone) => self.replay(name(*g), *nth, *everyone).await,
            Op::DeleteDead(g, nth) => self.delete_dead(name(*g), *nth).await,
            Op::Reset(g, to, drop_due) => self.reset(name(*g), *to, *drop_due).await,
            Op::DeleteGroup(g) => self.delete_group(name(*g)).await,
        }
    }

    async fn append(&mut self, count: u8, twice: bool) {
        let from = self.next_number;
        let to = from + u64::from(count);
        let mut batch = Append::new((from..to).map(numbered).collect::<Vec<_>>());
        if twice {
            batch.producer = Some(ProducerSeq {
                name: self.producer.0.clone(),
                first: self.producer.1,
                keep: Duration::ZERO,
            });
            self.producer.1 += u64::from(count);
        }
        let appended = self.engine.append(&self.at, batch.clone()).await.unwrap();
        assert_eq!(appended.first.map(|id| id.seq), Some(self.model.last + 1));
        if twice {
            let again = self.engine.append(&self.at, batch).await.unwrap();
            assert_eq!((again.first, again.duplicate), (appended.first, true));
        }
        (from..to).for_each(|number| self.model.append(number));
        self.next_number = to;
    }

    async fn delay(&mut self, count: u8) {
        let from = self.next_number;
        let to = from + u64::from(count);
        let batch = (from..to).map(numbered).collect::<Vec<_>>();
        self.engine.append(&self.at, Append { after: HOUR, ..Append::new(batch) }).await.unwrap();
        assert_eq!(self.engine.promote_due(&self.at, 100).await.unwrap().moved, 0);
        self.model.delayed.extend(from..to);
        self.next_number = to;
    }

    async fn change_delayed(&mut self, n: u8, deliver: bool) {
        let listed = self.engine.delayed(&self.at, RecordId::ZERO, ReadLimit::records(1000)).await.unwrap();
        let number = |content: &Content| String::from_utf8_lossy(&content.payload).parse::<u64>().unwrap();
        let found: Vec<u64> = listed.messages.iter().map(|message| number(&message.content)).collect();
        assert_eq!(found, self.model.delayed, "what is delayed");
        if found.is_empty() {
            return;
        }
        let index = usize::from(n) % found.len();
        let action = if deliver { DelayedAction::Deliver } else { DelayedAction::Cancel };
        let id = listed.messages[index].id;
        let outcome = self.engine.change_delayed(&self.at, id, action).await.unwrap();
        assert!(outcome.changed, "{outcome:?}");
        self.model.delayed.remove(index);
        if deliver {
            assert_eq!(outcome.record.map(|id| id.seq), Some(self.model.last + 1));
            self.model.append(found[index]);
        }
        let again = self.engine.change_delayed(&self.at, id, action).await.unwrap();
        assert_eq!((again.state, again.changed), (outcome.state, false));
    }

    async fn create(&mut self, name: &str, end: bool) {
        let (from, after) = if end {
            (StartPosition::End, self.model.last)
        } else {
            (StartPosition::Start, self.model.trimmed)
        };
        let made = self.engine.create_group(&self.at, &group(name), from, None).await.unwrap();
        assert_eq!(made, self.model.create(name, after));
    }

    async fn own(&mut self, name: &'static str) {
        let hold = match self.lanes.remove(name) {
            Some(former) => {
                let hold = take_over(&self.engine, &self.at, &group(name)).await;
                self.zombies.push((name, former.owner.hold));
                hold
            }
            None => acquire(&self.engine, &self.at, &group(name), HOUR).await,
        };
        self.model.create(name, self.model.trimmed);
        self.owners += 1;
        self.open(name, hold, self.owners).await;
    }

    async fn open(&mut self, name: &'static str, hold: Hold, number: u64) {
        let owner = Owner::with(&self.engine, &self.at, &group(name), hold).await;
        let last = self.model.last;
        let model = self.model.groups.get_mut(name).expect("it was made");
        model.open(number, last);
        assert_eq!(owner.progress.crashes, model.crashes);
        assert_eq!(owner.progress.due, model.due().len() as u64);
        self.lanes.insert(name, Lane { owner, number, hand: Vec::new() });
    }

    async fn reopen(&mut self, name: &'static str) {
        if let Some(lane) = self.lanes.remove(name) {
            self.open(name, lane.owner.hold, lane.number).await;
        }
    }

    async fn leave(&mut self, name: &'static str) {
        if let Some(lane) = self.lanes.remove(name) {
            self.zombies.push((name, lane.owner.hold.clone()));
            lane.owner.leave().await;
            if let Some((_, left)) = &mut self.model.groups.get_mut(name).expect("it has an owner").opened {
                *left = true;
            }
        }
    }

    async fn work(&mut self, name: &'static str, count: u8, verdicts: &[u8]) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        let model = self.model.groups.get_mut(name).expect("it has an owner");
        take_due(lane, model).await;
        for _ in 0..count {
            let expected =
                model.waiting().into_iter().find(|seq| lane.hand.iter().all(|had| had.id.seq != *seq));
            let record = lane.owner.next().await;
            assert_eq!(
                record.as_ref().map(|record| record.id.seq),
                expected,
                "the next waiting record, in order"
            );
            let Some(record) = record else { break };
            assert_eq!(world::number(&record), self.model.log[&record.id.seq]);
            lane.hand.push(record);
        }
        for verdict in verdicts {
            if !lane.hand.is_empty() {
                let record = lane.hand.remove(usize::from(*verdict) % lane.hand.len());
                judge(lane, model, &record, *verdict);
            }
        }
        lane.owner.commit().await;
        model.committed(self.model.last);
    }

    async fn zombie(&mut self, name: &'static str) {
        let engine = &self.engine;
        for (_, hold) in self.zombies.iter().filter(|(whose, _)| *whose == name) {
            let at = &self.at;
            // Without its group even the newest owner finds nothing; the fence may answer first.
            let is_gone = !self.model.groups.contains_key(name);
            let commit = engine.commit(at, &group(name), hold, Commit::up_to(RecordId::MAX)).await;
            assert!(
                is_gone && commit.is_err() || commit.is_err_and(|error| error.kind() == ErrorKind::Fenced)
            );
            fails(engine.open(at, &group(name), StartPosition::Start, hold).await, ErrorKind::Fenced);
            assert_eq!(engine.renew(std::slice::from_ref(hold), HOUR).await.unwrap(), [false]);
            assert!(!engine.release(hold).await.unwrap());
        }
    }

    async fn trim(&mut self, keep: u64) {
        let trim = Trim { to: TrimTo::Keep(keep), lossy: false };
        let trimmed = self.engine.trim(&self.at, trim).await.unwrap();
        assert!(trimmed.trimmed.seq <= self.model.last.saturating_sub(keep).max(self.model.trimmed));
        assert_eq!(trimmed.removed, trimmed.trimmed.seq - self.model.trimmed);
        self.model.trim(trimmed.trimmed.seq);
    }

    /// The n-th dead letter.
    async fn nth_dead(&self, name: &str, nth: u8) -> Option<DeadLetter> {
        self.model.groups.get(name).filter(|model| !model.dead.is_empty())?;
        let mut letters = self.engine.dead(&self.at, &group(name), RecordId::ZERO, 1000).await.unwrap();
        Some(letters.swap_remove(usize::from(nth) % letters.len()))
    }

    async fn replay(&mut self, name: &'static str, nth: u8, everyone: bool) {
        let Some(DeadLetter { id, content, .. }) = self.nth_dead(name, nth).await else {
            return;
        };
        let first = content.origin.map_or(id, |origin| origin.id);
        let to = if everyone { Replay::Everyone } else { Replay::Group };
        assert_eq!(self.engine.replay(&self.at, &group(name), &[id], to).await.unwrap(), 1);
        let model = self.model.groups.get_mut(name).expect("it has dead letters");
        if everyone {
            model.dead.remove(&id.seq);
            let record = read_all(&self.engine, &self.at).await.pop().expect("it was appended again");
            assert_eq!(record.content.origin.as_ref().map(|origin| origin.id), Some(first));
            self.model.append(world::number(&record));
        } else {
            model.revive(id.seq);
        }
    }

    async fn delete_dead(&mut self, name: &'static str, nth: u8) {
        if let Some(DeadLetter { id, .. }) = self.nth_dead(name, nth).await {
            assert_eq!(self.engine.delete_dead(&self.at, &group(name), &[id]).await.unwrap(), 1);
            self.model.groups.get_mut(name).expect("it has dead letters").dead.remove(&id.seq);
        }
    }

    async fn reset(&mut self, name: &'static str, to: u8, drop_due: bool) {
        if !self.model.groups.contains_key(name) {
            return;
        }
        let log: Vec<_> = read_all(&self.engine, &self.at).await.iter().map(|record| record.id).collect();
        let (to, after) = match (to % 3, log.get(usize::from(to) % log.len().max(1))) {
            (0, _) | (_, None) => (StartPosition::Start, self.model.trimmed),
            (1, _) => (StartPosition::End, self.model.last),
            (_, Some(id)) => (StartPosition::After(*id), id.seq),
        };
        let frontier = self.engine.reset(&self.at, &group(name), Reset { to, drop_due }, None).await.unwrap();
        assert_eq!(frontier.seq, after);
        self.model.reset(name, after, drop_due);
        let lane = self.lanes.remove(name);
        self.zombies.extend(lane.map(|lane| (name, lane.owner.hold)));
    }

    async fn delete_group(&mut self, name: &'static str) {
        let was_there = self.engine.delete_group(&self.at, &group(name), None).await.unwrap();
        assert_eq!(was_there, self.model.groups.remove(name).is_some());
        let lane = self.lanes.remove(name);
        self.zombies.extend(lane.map(|lane| (name, lane.owner.hold)));
    }

    async fn compare(&self, when: &str) {
        let bounds = self.engine.bounds(&self.at).await.unwrap();
        let expected = (self.model.last, self.model.trimmed, self.model.delayed.len() as u64);
        assert_eq!((bounds.last.seq, bounds.trimmed.seq, bounds.delayed), expected, "{when}");
        let log = read_all(&self.engine, &self.at).await;
        let log: BTreeMap<u64, u64> =
            log.iter().map(|record| (record.id.seq, world::number(record))).collect();
        assert_eq!(log, self.model.log, "{when}");
        let mut names: Vec<String> = self.model.groups.keys().cloned().collect();
        names.sort();
        let groups = self.engine.groups(&self.at).await.unwrap();
        assert_eq!(groups.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>(), names, "{when}");
        for name in names {
            self.compare_group(&name, when).await;
        }
    }

    async fn compare_group(&self, name: &str, when: &str) {
        let model = &self.model.groups[name];
        let status = self.engine.status(&self.at, &group(name)).await.unwrap();
        let found = (status.waiting, status.due, status.dead, status.crashes);
        let due = model.due();
        let dead = &model.dead;
        let expected = (model.waiting().len() as u64, due.len() as u64, dead.len() as u64, model.crashes);
        assert_eq!(found, expected, "waiting, due, dead, crashes of {name} {when}");
        let pending = self.engine.pending(&self.at, &group(name), RecordId::ZERO, 1000).await.unwrap();
        let pending: BTreeMap<u64, DueState> = pending
            .into_iter()
            .map(|pending| {
                let later = pending.due_in.is_some_and(|due_in| due_in > HOUR / 2);
                let attempt = pending.attempt;
                let crashes = pending.crashes;
                let kept = pending.kept;
                (pending.id.seq, DueState { attempt, crashes, taken: pending.due_in.is_none(), later, kept })
            })
            .collect();
        assert_eq!(pending, due, "due records of {name} {when}");
        let letters = self.engine.dead(&self.at, &group(name), RecordId::ZERO, 1000).await.unwrap();
        let letters: BTreeMap<u64, u32> =
            letters.iter().map(|letter| (letter.id.seq, letter.attempts)).collect();
        assert_eq!(&letters, dead, "dead letters of {name} {when}");
    }
}

/// The owner takes all that is due: exactly what the model says.
async fn take_due(lane: &mut Lane, model: &mut super::ModelGroup) {
    let mut due = lane.owner.due(1000).await;
    due.sort_by_key(|record| record.id);
    let mut expected = Vec::new();
    for (seq, place) in &mut model.places {
        if let Place::Due(due) = place
            && !due.taken
            && !due.later
        {
            due.taken = true;
            expected.push((*seq, due.attempt, due.crashes));
        }
    }
    let found: Vec<_> = due.iter().map(|record| (record.id.seq, record.attempt, record.crashes)).collect();
    assert_eq!(found, expected, "due records in hand");
    lane.hand.extend(due);
}

/// Gives a verdict to the owner and to the model.
fn judge(lane: &mut Lane, model: &mut super::ModelGroup, record: &Record, verdict: u8) {
    let seq = record.id.seq;
    let former = match &model.places[&seq] {
        Place::Due(due) => Some(due.clone()),
        _ => None,
    };
    let attempt = former.as_ref().map_or(1, |due| due.attempt);
    let crashes = former.as_ref().map_or(0, |due| due.crashes);
    let was_kept = former.is_some_and(|due| due.kept);
    let due = |later, kept| Place::Due(DueState { attempt: attempt + 1, crashes, taken: false, later, kept });
    let (verdict, place) = match verdict {
        0 => (retry(Duration::ZERO), due(false, was_kept)),
        1 => (retry(HOUR), due(true, was_kept)),
        2 => (retry_kept(Duration::ZERO), due(false, true)),
        3 => {
            model.dead.insert(seq, attempt);
            (dead("model"), Place::Settled)
        }
        _ => (Verdict::Ack, Place::Settled),
    };
    lane.owner.settle(record, verdict);
    model.places.insert(seq, place);
}
