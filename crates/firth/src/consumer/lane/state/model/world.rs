//! Everything around one lane, driven by a seeded random generator.

use super::engine::ModelGroup;
use crate::consumer::config::{ConsumerConfig, KeyOrdering};
use crate::consumer::delivery::{DeliveryEvent, HandlerVerdict};
use crate::consumer::lane::LaneEnd;
use crate::consumer::lane::requests::{OpenRequest, OpenedGroup};
use crate::consumer::lane::state::places::{Place, SettledAs};
use crate::consumer::lane::state::{Inputs, LaneAction, LaneEvent, LaneState, Next, Phase, Rules};
use crate::consumer::lane::waiter::DeliveryKey;
use crate::consumer::nack::Nack;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::GroupMeter;
use crate::retry::RetryPolicy;
use crate::shared_record::SharedRecord;
use bytes::Bytes;
use firth_engine::facet::{Promoted, ReadLimit};
use firth_engine::limits::MAX_VERDICTS;
use firth_engine::{Commit, GroupName, Partition, RecordId, TopicName};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

const MOST_RECORDS: usize = 60;

/// Records of one worker; what it has not started yet.
struct Chunk {
    session: u32,
    records: VecDeque<SharedRecord>,
    /// Keys of which a record failed.
    failed: HashSet<Bytes>,
}

/// What the random events brought about: a story without them would prove nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) handed_out: usize,
    pub(super) reopened: usize,
    pub(super) returned: usize,
    pub(super) held_back: usize,
    pub(super) isolated: usize,
    pub(super) preset: usize,
    pub(super) retried: usize,
    pub(super) dead: usize,
    pub(super) stopped: usize,
    pub(super) lost: usize,
}

pub(super) struct World {
    random: fastrand::Rng,
    now: Instant,
    state: LaneState,
    actions: Vec<LaneAction>,
    inputs: Inputs,
    engine: ModelGroup,
    opening: Option<OpenRequest>,
    read: Option<(RecordId, ReadLimit, bool)>,
    due: Option<(usize, Vec<RecordId>)>,
    promote: bool,
    commit: Option<Commit>,
    timer: Option<Instant>,
    /// Chunks that no worker has taken, and running ones.
    queue: VecDeque<Chunk>,
    running: Vec<Chunk>,
    is_draining: bool,
    /// Counts the opened sessions; verdicts of earlier ones go nowhere.
    session: u32,
    events: VecDeque<DeliveryEvent>,
    returning: usize,
    /// Handed out, and the lane has not heard of it since.
    out: BTreeMap<u64, u32>,
    /// Acks that the lane has heard, and when.
    acked: HashMap<DeliveryKey, Instant>,
    waiters: Vec<(DeliveryKey, oneshot::Receiver<Result<()>>)>,
    is_calm: bool,
    /// When the session failed, if it did.
    failed_at: Option<Instant>,
    pub(super) seen: Seen,
    pub(super) end: Option<LaneEnd>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let ordering = if random.bool() { KeyOrdering::Strict } else { KeyOrdering::Relaxed };
        let config = ConsumerConfig {
            ordering,
            max_in_flight: random.usize(1..20),
            concurrency: random.usize(1..5),
            retry: RetryPolicy::fixed(random.u32(1..5), Duration::from_millis(random.u64(0..200))),
            drain: Duration::from_secs(1),
            ..ConsumerConfig::default()
        };
        let inputs = Inputs { chunk: random.usize(1..6), at_once: config.concurrency, ..INPUTS };
        let now = Instant::now();
        let engine = ModelGroup { crashes: random.u32(0..3), ..ModelGroup::default() };
        let mut world = Self {
            state: LaneState::new(rules(config), inputs, now, random.u64(..)),
            random,
            now,
            actions: Vec::new(),
            inputs,
            engine,
            opening: None,
            read: None,
            due: None,
            promote: false,
            commit: None,
            timer: None,
            queue: VecDeque::new(),
            running: Vec::new(),
            is_draining: false,
            session: 0,
            events: VecDeque::new(),
            returning: 0,
            out: BTreeMap::new(),
            acked: HashMap::new(),
            waiters: Vec::new(),
            is_calm: false,
            failed_at: None,
            seen: Seen::default(),
            end: None,
        };
        world.turn();
        world
    }

    pub(super) fn random_step(&mut self) {
        match self.random.u32(0..100) {
            0..12 => self.append(),
            12..20 => self.answer_open(),
            20..32 => self.answer_read(),
            32..40 => self.answer_look(),
            40..52 => self.answer_commit(),
            52..60 => self.start_chunk(),
            60..78 => self.work(),
            78..88 => self.tell(),
            88..94 => self.pass_time(),
            94..96 => self.inputs.paused = self.random.bool(),
            96..98 => self.inputs.has_lease = self.random.bool(),
            98 => self.handle(LaneEvent::Hint),
            _ => self.rare(),
        }
        self.turn();
        self.check();
    }

    /// Ends the story calmly: everything gets done, or the lane has ended and all waiters know.
    pub(super) fn finish(mut self) -> Seen {
        self.is_calm = true;
        self.inputs.paused = false;
        self.inputs.has_lease = true;
        for step in 0.. {
            let is_done = self.engine.log.iter().all(|record| self.engine.is_finished(record.id.seq));
            if self.end.is_some() || (is_done && self.commit.is_none()) {
                break;
            }
            assert!(step < 20_000, "the lane does not get on");
            match step % 8 {
                0 => self.answer_open(),
                1 => self.answer_read(),
                2 => self.answer_look(),
                3 => self.answer_commit(),
                4 => self.start_chunk(),
                5 => (0..8).for_each(|_| self.work()),
                6 => self.tell(),
                _ => self.pass_time(),
            }
            self.turn();
            self.check();
        }
        if self.end.is_none() {
            self.handle(LaneEvent::Stop);
            for step in 0.. {
                self.turn();
                if self.end.is_some() {
                    break;
                }
                assert!(step < 1000, "the lane does not end");
                self.answer_open();
                self.answer_commit();
                (0..8).for_each(|_| self.work());
                self.tell();
            }
            assert!(matches!(self.end, Some(LaneEnd::Stopped)));
        }
        let Self { state, engine, waiters, events, mut seen, end, .. } = self;
        seen.stopped += usize::from(matches!(end, Some(LaneEnd::Stopped)));
        seen.lost += usize::from(matches!(end, Some(LaneEnd::Lost)));
        drop(state);
        drop(events);
        for ((id, attempt), mut answer) in waiters {
            match answer.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => panic!("no answer to {id} at {attempt}"),
                Ok(Ok(())) => {
                    let is_due = engine.due.get(&id.seq).is_some_and(|due| due.attempt > attempt);
                    assert!(engine.is_finished(id.seq) || is_due, "{id} is told as stored and is not");
                }
                Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {}
            }
        }
        seen
    }

    fn handle(&mut self, event: LaneEvent) {
        self.state.handle(self.now, event, &mut self.actions);
        self.note_failure();
        self.perform();
    }

    fn note_failure(&mut self) {
        if matches!(self.state.phase, Phase::Recovering { .. }) {
            self.failed_at.get_or_insert(self.now);
        }
    }

    fn turn(&mut self) {
        while self.end.is_none() {
            self.inputs.returning = self.returning > 0;
            let next = self.state.turn(self.now, self.inputs, &mut self.actions);
            self.perform();
            match next {
                Next::Yield => continue,
                Next::Wait(wants) => self.timer = wants.timer,
                Next::End(end) => self.end = Some(end),
            }
            return;
        }
    }

    fn perform(&mut self) {
        for action in std::mem::take(&mut self.actions) {
            match action {
                LaneAction::Open(request) => {
                    (self.read, self.due, self.promote, self.commit) = (None, None, false, None);
                    let drain = self.state.rules.config.drain;
                    let was_waited = self.failed_at.take().is_some_and(|at| self.now >= at + drain);
                    assert!(was_waited || self.out.is_empty(), "records are out while the lane opens");
                    self.seen.reopened += usize::from(self.session > 0);
                    self.seen.preset += self.state.carried.verdicts.len();
                    self.opening = Some(request);
                    self.session += 1;
                    self.is_draining = false;
                    self.events.clear();
                    self.returning = 0;
                    self.out.clear();
                }
                LaneAction::Read { after, max, waits } => {
                    assert!(self.read.replace((after, max, waits)).is_none());
                    assert!(max.records <= self.state.rules.config.max_in_flight);
                }
                LaneAction::TakeDue { max, known } => assert!(self.due.replace((max, known)).is_none()),
                LaneAction::Promote => assert!(!std::mem::replace(&mut self.promote, true)),
                LaneAction::Commit(commit) => assert!(self.commit.replace(commit).is_none()),
                LaneAction::HandOut(records) => self.handed_out(records),
                LaneAction::Recall => {
                    for chunk in std::mem::take(&mut self.queue) {
                        self.give_back(chunk);
                    }
                }
                LaneAction::StopStarts => self.is_draining = true,
                LaneAction::Abandon | LaneAction::NoteLost { .. } | LaneAction::NoteRead(_) => {}
            }
        }
    }

    /// Checks what may be handed out, and in which order.
    fn handed_out(&mut self, records: Vec<SharedRecord>) {
        assert!(self.inputs.has_lease && !self.inputs.paused && self.returning == 0 && !self.is_draining);
        let is_strict = self.state.rules.config.is_strict();
        let is_isolated = self.state.suspects.any();
        for (n, record) in records.iter().enumerate() {
            let seq = record.id.seq;
            assert!(seq <= self.engine.reach, "{seq} starts beyond the word of its owner");
            assert!(!self.engine.is_finished(seq), "{seq} is finished and comes again");
            assert!(!self.out.contains_key(&seq), "{seq} is out twice");
            if let Some(at) = self.acked.get(&(record.id, record.attempt)) {
                assert!(self.now - *at >= Duration::from_secs(10), "{seq} was acked and comes again");
            }
            let Some(key) = &record.content.key else { continue };
            let other = self.out.keys().find(|other| self.engine.key(**other) == Some(key));
            assert_eq!(other, None, "two chunks have records of one key");
            for earlier in (1..seq).filter(|earlier| is_strict && self.engine.key(*earlier) == Some(key)) {
                let is_before = records[..n].iter().any(|record| record.id.seq == earlier);
                let place = self.state.place_of(earlier);
                let is_acked = matches!(place, Place::Settled { verdict: SettledAs::Done, .. });
                let is_finished = place == Place::Stored && self.engine.is_finished(earlier);
                assert!(
                    is_before || is_acked || is_finished,
                    "{seq} overtakes {earlier}, which is {place:?}"
                );
            }
        }
        self.out.extend(records.iter().map(|record| (record.id.seq, record.attempt)));
        self.seen.handed_out += records.len();
        self.seen.isolated += usize::from(is_isolated);
        let chunks = self.queue.iter().chain(&self.running).filter(|chunk| chunk.session == self.session);
        assert!(chunks.count() < self.state.rules.config.concurrency);
        assert!(!is_isolated || self.out.len() == 1, "a suspect is not alone");
        self.queue.push_back(Chunk {
            session: self.session,
            records: records.into(),
            failed: HashSet::new(),
        });
    }

    fn append(&mut self) {
        for _ in 0..self.random.usize(1..6) {
            if self.engine.log.len() < MOST_RECORDS {
                let key = ["", "a", "b", "c"][self.random.usize(0..4)];
                self.engine.append((!key.is_empty()).then(|| Bytes::from_static(key.as_bytes())));
            }
        }
        if self.random.bool() {
            self.handle(LaneEvent::Hint);
        }
    }

    /// Some answers are errors, unless the story is to end calmly.
    fn fails(&mut self) -> bool {
        !self.is_calm && self.random.u32(0..8) == 0
    }

    fn answer_open(&mut self) {
        let Some(request) = self.opening.take() else { return };
        if self.fails() {
            return self.handle(LaneEvent::Opened(Err(away())));
        }
        let progress = self.engine.open(self.now);
        let is_stored = |(id, attempt): &DeliveryKey| match self.engine.due.get(&id.seq) {
            Some(due) => due.attempt > *attempt,
            None => self.engine.settled.contains(&id.seq),
        };
        let stored = request.unknown.into_iter().filter(is_stored).collect();
        let keyed = self.engine.due.keys().filter_map(|seq| Some((self.engine.key(*seq)?.clone(), *seq)));
        let due = keyed.collect();
        self.handle(LaneEvent::Opened(Ok(OpenedGroup { progress, stored, suspects: Vec::new(), due })));
    }

    fn answer_read(&mut self) {
        let Some((after, max, waits)) = self.read else { return };
        let records = self.engine.read(after, max.records);
        let answer = match self.fails() {
            true => Err(away()),
            false if waits && records.is_empty() && !self.is_calm => return,
            false => Ok(Some(records)),
        };
        self.read = None;
        self.handle(LaneEvent::Read(answer));
    }

    fn answer_look(&mut self) {
        if std::mem::take(&mut self.promote) {
            self.handle(LaneEvent::Promoted(Ok(Promoted { moved: 0, next: None })));
        } else if let Some((max, known)) = self.due.take() {
            let answer = match self.fails() {
                true => Err(away()),
                false => Ok(self.engine.take_due(self.now, max, &known)),
            };
            self.handle(LaneEvent::Due(answer));
        }
    }

    /// Stores the commit, or fails before or after that.
    fn answer_commit(&mut self) {
        let Some(commit) = self.commit.take() else { return };
        let fails = self.fails();
        if fails && self.random.bool() {
            return self.handle(LaneEvent::Committed(Err(away())));
        }
        self.seen.retried += commit.retries.len();
        self.seen.dead += commit.dead.len();
        let done = self.engine.commit(self.now, &commit);
        let answer = if fails { Err(away().with_unknown_outcome()) } else { Ok(done) };
        self.handle(LaneEvent::Committed(answer));
    }

    fn start_chunk(&mut self) {
        self.running.extend(self.queue.pop_front());
    }

    /// One step of a random worker.
    fn work(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.random.usize(0..self.running.len());
        if self.running[at].session != self.session {
            self.running.swap_remove(at);
            return;
        }
        let chunk = &mut self.running[at];
        let Some(record) = chunk.records.pop_front() else {
            self.running.swap_remove(at);
            return self.events.push_back(DeliveryEvent::ChunkDone);
        };
        let key = record.content.key.clone();
        if key.as_ref().is_some_and(|key| chunk.failed.contains(key)) {
            return self.events.push_back(DeliveryEvent::HeldBack(record));
        }
        let refuses = !self.is_calm && self.random.u32(0..20) == 0;
        if self.returning > 0 || self.is_draining || refuses {
            let mut chunk = self.running.swap_remove(at);
            chunk.records.push_front(record);
            return self.give_back(chunk);
        }
        let judgement = match self.random.u32(0..if self.is_calm { 1 } else { 4 }) {
            0 | 1 => HandlerVerdict::Ack,
            2 => HandlerVerdict::Nack(Nack::retry("no")),
            _ => HandlerVerdict::Nack(Nack::reject("never")),
        };
        if self.state.rules.config.is_strict() && matches!(judgement, HandlerVerdict::Nack(_)) {
            chunk.failed.extend(key);
        }
        if self.random.bool() {
            return self.events.push_back(DeliveryEvent::Handled(vec![(record, judgement)]));
        }
        let (reply, answer) = oneshot::channel();
        self.waiters.push(((record.id, record.attempt), answer));
        self.events.push_back(DeliveryEvent::Judged { record, judgement, waiter: Some(reply) });
    }

    /// A worker or the ready queue drops what it has not started.
    fn give_back(&mut self, chunk: Chunk) {
        if chunk.session != self.session {
            return;
        }
        self.returning += chunk.records.len();
        self.events.extend(chunk.records.into_iter().map(DeliveryEvent::Unstarted));
        self.events.push_back(DeliveryEvent::ChunkDone);
    }

    /// Brings some news to the lane.
    fn tell(&mut self) {
        let count = self.random.usize(0..=self.events.len());
        let mut unstarted = 0;
        for event in self.events.drain(..count).collect::<Vec<_>>() {
            match &event {
                DeliveryEvent::Unstarted(record) => {
                    unstarted += 1;
                    self.seen.returned += 1;
                    self.out.remove(&record.id.seq);
                }
                DeliveryEvent::HeldBack(record) => {
                    self.out.remove(&record.id.seq);
                }
                DeliveryEvent::Judged { record, judgement, .. } => self.judged(record, judgement),
                DeliveryEvent::Handled(list) => {
                    list.iter().for_each(|(record, judgement)| self.judged(record, judgement));
                }
                DeliveryEvent::ChunkDone => {}
            }
            self.state.handle(self.now, LaneEvent::Delivery(event), &mut self.actions);
        }
        self.note_failure();
        self.perform();
        self.returning -= unstarted;
    }

    fn judged(&mut self, record: &SharedRecord, judgement: &HandlerVerdict) {
        self.out.remove(&record.id.seq);
        let counts =
            matches!(self.state.phase, Phase::Running | Phase::Draining { .. } | Phase::Recovering { .. });
        if counts && matches!(judgement, HandlerVerdict::Ack) {
            self.acked.insert((record.id, record.attempt), self.now);
        }
    }

    fn pass_time(&mut self) {
        if self.is_calm {
            self.now = self.timer.map_or(self.now, |timer| timer.max(self.now));
        }
        let most = if self.random.u32(0..10) == 0 { 3000 } else { 60 };
        self.now += Duration::from_millis(self.random.u64(0..most));
        if self.timer.is_some_and(|timer| timer <= self.now) {
            self.handle(LaneEvent::Timer);
        }
    }

    fn rare(&mut self) {
        match self.random.u32(0..12) {
            0 => self.handle(LaneEvent::Stop),
            1 => self.handle(LaneEvent::LeaseLost),
            2 if self.commit.take().is_some() => {
                let fenced = Error::new(ErrorKind::Fenced, "another owner");
                self.handle(LaneEvent::Committed(Err(fenced)));
            }
            _ => {}
        }
    }

    /// Holds the lane's picture against the model's.
    fn check(&mut self) {
        let state = &self.state;
        self.seen.held_back += usize::from(state.flow.held_back() > 0);
        assert!(self.out.len() <= state.rules.config.max_in_flight);
        assert!(state.window.in_flight() <= MAX_VERDICTS);
        assert!(state.intake.unopened.len() <= state.rules.config.max_in_flight);
        if !matches!(state.phase, Phase::Running | Phase::Draining { .. }) {
            return;
        }
        let bytes = self.engine.log.iter().filter(|record| {
            matches!(state.place_of(record.id.seq), Place::Ready | Place::HeldBack | Place::Out)
        });
        assert_eq!(state.intake.bytes, bytes.map(|record| record.content.packed_len()).sum::<usize>());
        assert_eq!(state.flow.out(), self.out.len());
        for seq in 1..=self.engine.log.len() as u64 {
            let place = state.place_of(seq);
            let is_waiting = state.flow.find(seq).is_some();
            let is_unopened = state.intake.unopened.iter().any(|record| record.id.seq == seq);
            let is_out = self.out.contains_key(&seq);
            let places = [is_waiting, is_unopened, is_out, state.verdicts.find(seq).is_some()];
            let places = places.into_iter().filter(|is_there| *is_there).count();
            let is_settled = self.engine.settled.contains(&seq);
            match place {
                Place::Out => assert!(is_out && places == 1, "{seq} is {places} times somewhere"),
                Place::Unopened | Place::Ready | Place::HeldBack => assert_eq!(places, 1, "{seq} {place:?}"),
                Place::Settled { .. } => assert_eq!(places, 1, "{seq} {place:?}"),
                Place::Unread => assert_eq!(places, 0, "{seq}"),
                Place::Stored => assert!(is_settled && places == 0, "{seq} is settled nowhere"),
            }
        }
    }
}

pub(super) const INPUTS: Inputs =
    Inputs { paused: false, has_lease: true, returning: false, chunk: 1, at_once: 1 };

pub(super) fn rules(config: ConsumerConfig) -> Rules {
    let at = Partition::new(TopicName::new("t").unwrap(), 0);
    let meter = GroupMeter::new(&at.topic, &GroupName::new("g").unwrap());
    Rules { at, config, max_payload: 1024, meter }
}

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "no answer")
}
