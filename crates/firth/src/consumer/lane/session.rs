//! One life of a lane's window: from opening the group to a stop, a loss or an error.
//!
//! The loop only sequences steps: bring in, hand out, commit, then wait for whatever comes first. Everything here is bounded by the window.

use super::fill::{InLook, InRead, look_back};
use super::memory::Memory;
use super::reach::{Reach, Suspects};
use super::tail::Tail;
use super::waiter::{Key, Waiter, Waiting};
use super::{Carry, Common, Lane, Left};
use crate::company::Companion;
use crate::consumer::delivery::{ChunkEnd, Delivery, Event, Judgement, Tie};
use crate::consumer::flow::{Back, Flow};
use crate::error::{Error, ErrorKind, Result};
use crate::record::Record;
use firth_engine::facet::Committed;
use firth_engine::{Hint, HintKey, Partition, Progress, RecordId, Verdict, Window};
use futures_util::future::BoxFuture;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Wakes an idle lane even if no hint ever comes.
const SLOW_POLL: Duration = Duration::from_secs(5);
/// How long verdicts that may or may not be stored wait for their records to come again.
const REMEMBER: Duration = Duration::from_secs(10);
/// How long a lane that lost its partition waits for the answer to the commit that was on its way.
const LAST_WORD: Duration = Duration::from_secs(2);
/// How many events are taken per turn.
const CHUNK: usize = 256;

pub(super) enum Ended {
    Stopped,
    Lost,
    Broken { left: Left, error: Error, worked: bool },
}

pub(super) struct Session<'l> {
    pub(super) lane: &'l Lane,
    pub(super) window: Window,
    /// Where the window began.
    pub(super) opened_at: RecordId,
    pub(super) flow: Flow,
    pub(super) tie: Arc<Tie>,
    events: mpsc::UnboundedReceiver<Event>,
    chunks_out: usize,
    hint: Hint,
    /// Fires when the stream that the topic follows has changed.
    stream: Option<Hint>,
    paused: watch::Receiver<bool>,
    renewals: watch::Receiver<Instant>,
    /// Whether the log may hold more after the window's position.
    pub(super) more: bool,
    /// Bytes of the records that are handed out, ready or held back.
    pub(super) bytes_at_hand: usize,
    /// The last read brought compressed payloads for which there was no room.
    pub(super) is_cut_short: bool,
    /// Due records that were taken and wait until there is room for their bytes.
    pub(super) unopened: VecDeque<firth_engine::Record>,
    pub(super) due_at: Option<Instant>,
    /// What failed in this session and is not due yet.
    pub(super) failed: Memory,
    /// The draw for the jitter of retries, the same for all of one commit: what fails together is tried again together, which costs the engine
    /// less, and what fails elsewhere or later is spread.
    pub(super) luck: f64,
    /// When the lane last looked for due records.
    pub(super) due_looked: Instant,
    /// When to look for delayed messages next.
    pub(super) ripen_at: Option<Instant>,
    /// When a hint last made the lane look for delayed and due records.
    pub(super) looked: Instant,
    pub(super) next_poll: Instant,
    /// Records to hand out one at a time, because an owner vanished with them.
    pub(super) suspects: Suspects,
    /// How far records may be handed out before the next commit.
    pub(super) reach: Reach,
    /// Why the next record of the log is given up, if too many owners vanished with it.
    pub(super) condemned: Option<String>,
    /// Verdicts of the session before, and until when a record that comes again can be one of them.
    pub(super) known: Carry,
    known_until: Instant,
    /// Who waits to hear of them.
    pub(super) waiting: Waiting,
    pub(super) in_read: Option<InRead>,
    pub(super) tail: Tail,
    pub(super) in_look: Option<InLook>,
    pub(super) uncommitted: usize,
    pub(super) oldest: Option<Instant>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) in_commit: Option<BoxFuture<'static, Result<Committed>>>,
    /// Verdicts that are not confirmed: in the commit on its way, and later ones.
    pub(super) committing: Vec<(Key, Verdict)>,
    pub(super) settled: Vec<(Key, Verdict)>,
    /// Acks that are not counted yet.
    pub(super) acks: u64,
    pub(super) answering: Vec<Waiter>,
    /// Given up, and holding back their keys until that is stored: not yet, and in the commit on its way.
    pub(super) given_up: Vec<firth_engine::Record>,
    pub(super) burying: Vec<firth_engine::Record>,
    drain_until: Option<Instant>,
    worked: bool,
}

impl<'l> Session<'l> {
    pub(super) async fn open(lane: &'l Lane, left: Left) -> Result<Self, (Left, Error)> {
        let common = &lane.common;
        // Listen before reading, so that nothing appended in between is missed.
        let hint = common.engine.hint(HintKey::Log(lane.at.clone()));
        let stream = common.follows.clone().map(|stream| common.engine.hint(HintKey::Stream(stream)));
        let start = common.config.start.into();
        let opened = common.engine.open(&lane.at, &common.group, start, &lane.held.hold).await;
        let progress = match opened {
            Ok(progress) => progress,
            Err(error) => return Err((left, error)),
        };
        let (sender, events) = mpsc::unbounded_channel();
        let now = Instant::now();
        let mut session = Self {
            lane,
            window: Window::new(&progress, common.config.window()),
            opened_at: progress.frontier,
            flow: Flow::new(common.config.is_strict()),
            tie: Arc::new(Tie::new(sender, lane.held.clone())),
            events,
            chunks_out: 0,
            hint,
            stream,
            paused: common.paused.clone(),
            renewals: lane.held.renewals(),
            more: true,
            bytes_at_hand: 0,
            is_cut_short: false,
            unopened: VecDeque::new(),
            due_at: progress.next_due.map(|delay| now + delay),
            failed: Memory::default(),
            luck: fastrand::f64(),
            due_looked: now,
            ripen_at: Some(now),
            looked: now,
            next_poll: now + SLOW_POLL,
            suspects: match common.config.retry.doubts(progress.crashes) {
                true => Suspects::after(&progress, common.config.window()),
                false => Suspects::default(),
            },
            reach: Reach::new(&progress, common.at_once(), now),
            condemned: common.config.retry.condemns(progress.crashes),
            known: left.known,
            known_until: now + REMEMBER,
            waiting: left.waiting,
            in_read: None,
            tail: Tail::default(),
            in_look: None,
            acks: 0,
            uncommitted: 0,
            oldest: None,
            waiters: Vec::new(),
            in_commit: None,
            committing: Vec::new(),
            answering: Vec::new(),
            settled: Vec::new(),
            given_up: Vec::new(),
            burying: Vec::new(),
            drain_until: None,
            worked: false,
        };
        match session.catch_up(&progress).await {
            Ok(()) => Ok(session),
            Err(error) => Err((session.leave(), error)),
        }
    }

    /// Learns what became of earlier sessions.
    async fn catch_up(&mut self, progress: &Progress) -> Result<()> {
        look_back(self.lane, progress).await?;
        self.answer_stored(progress).await?;
        if progress.due > 0 { self.learn_due().await } else { Ok(()) }
    }

    pub(super) fn common(&self) -> &Arc<Common> {
        &self.lane.common
    }

    pub(super) fn at(&self) -> &Partition {
        &self.lane.at
    }

    pub(super) async fn run(mut self) -> Ended {
        loop {
            if self.is_drained() {
                return Ended::Stopped;
            }
            if self.turn() == Turn::LetGo {
                let_others_go().await;
                continue;
            }
            if self.is_drained() {
                return Ended::Stopped;
            }
            match self.wait().await {
                Ok(Next::Go) => {}
                Ok(Next::Lost) => return self.lost().await,
                Err(error) => return self.broken(error).await,
            }
        }
    }

    /// Everything that can be done now.
    fn turn(&mut self) -> Turn {
        // Verdicts ride along with a read: both go out in one write.
        let mut rides = false;
        if self.may_take() {
            // Nothing is gained by asking early for what is not there yet: handlers begin first.
            if self.would_wait() && self.hand_out() {
                return Turn::LetGo;
            }
            // What is due has waited longest: it gets room before what comes next in the log.
            self.look_if_wanted();
            rides = self.read_if_wanted();
            self.hand_out();
        }
        self.commit_if_wanted(rides);
        Turn::Wait
    }

    pub(super) fn is_draining(&self) -> bool {
        self.drain_until.is_some()
    }

    fn may_take(&self) -> bool {
        self.drain_until.is_none() && !*self.paused.borrow() && self.lane.held.is_valid()
    }

    /// Hands out what may go; true if anything did. Nothing while others come back: those go first.
    fn hand_out(&mut self) -> bool {
        if self.tie.is_returning() {
            return false;
        }
        let before = self.chunks_out;
        let common = self.lane.common.clone();
        let isolates = self.suspects.any();
        let (chunk, limit) = if isolates { (1, 1) } else { (common.chunk(), common.config.concurrency) };
        let most = common.config.max_in_flight;
        while self.chunks_out < limit && self.flow.ready() > 0 && self.flow.out() < most {
            let records = self.flow.take(chunk.min(most - self.flow.out()), self.reach.limit());
            let Some(furthest) = records.iter().map(|record| record.id.seq).max() else { break };
            self.reach.start(furthest);
            common.meter.in_flight.increment(records.len() as f64);
            let end = Arc::new(ChunkEnd(self.tie.clone()));
            let deliver = |record| Delivery::new(Record::new(self.lane.at.clone(), record), end.clone());
            let deliveries = records.into_iter().map(deliver).collect();
            self.chunks_out += 1;
            common.desk.put(self.lane.at.index, deliveries);
        }
        self.chunks_out > before
    }

    async fn wait(&mut self) -> Result<Next> {
        let (mut heard, timer, lane) = (Vec::new(), self.next_timer(), self.lane);
        let draining = self.drain_until.is_some();
        let (deaf, is_paused) = (self.is_deaf(), *self.paused.borrow());
        let stored = async {
            match &mut self.in_commit {
                Some(commit) => commit.await,
                None => std::future::pending().await,
            }
        };
        let read = async {
            match &mut self.in_read {
                Some(read) => (read.room, read.waits, (&mut read.answer).await),
                None => std::future::pending().await,
            }
        };
        let look = async {
            match &mut self.in_look {
                Some(look) => (&mut look.answer).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = lane.held.lost.cancelled() => return Ok(Next::Lost),
            result = stored => {
                self.in_commit = None;
                self.stored(result)?;
            }
            _ = self.events.recv_many(&mut heard, CHUNK) => {
                // What lies on the desk behind one that comes back comes back, too, before anything may start again.
                if heard.iter().any(|event| matches!(event, Event::Unstarted(_))) {
                    self.common().desk.recall(self.at().index);
                }
                heard.into_iter().try_for_each(|event| self.hear(event))?;
                self.open_due()?;
            }
            (room, waited, answer) = read, if !draining => {
                self.in_read = None;
                self.answered(room, waited, answer)?;
            }
            answer = look, if !draining => {
                self.in_look = None;
                self.looked(answer?)?;
            }
            () = lane.stop.cancelled(), if !draining => self.drain(),
            () = self.hint.wait(), if !draining && !deaf => self.hinted(),
            () = changed(&mut self.stream), if !draining && !is_paused => self.hinted(),
            // The sender lives in the consumer; a consumer that is gone has cancelled `stop`.
            Ok(()) = self.paused.changed(), if !draining => self.pause(),
            Ok(()) = self.renewals.changed(), if !draining => {}
            () = tokio::time::sleep_until(timer) => self.ring(timer),
        }
        Ok(Next::Go)
    }

    fn hear(&mut self, event: Event) -> Result<()> {
        match event {
            Event::ChunkDone => self.chunks_out -= 1,
            Event::Unstarted(record) => {
                self.came_back(&record);
                self.tie.is_back();
            }
            Event::HeldBack(record) => self.came_back(&record),
            Event::Judged { record, judgement, waiter } => {
                self.waiters.extend(waiter.map(|reply| Waiter::new(&record, reply)));
                self.judged(&record, judgement)?;
                self.count(1);
            }
            Event::Handled(list) => {
                self.count(list.len());
                list.into_iter().try_for_each(|(record, judgement)| self.judged(&record, judgement))?;
            }
        }
        Ok(())
    }

    fn came_back(&mut self, record: &Companion) {
        self.common().meter.in_flight.decrement(1.0);
        self.flow.back(record, Back::Unstarted);
    }

    fn count(&self, judged: usize) {
        self.common().meter.in_flight.decrement(judged as f64);
        self.common().meter.delivered.increment(judged as u64);
    }

    fn judged(&mut self, record: &Companion, judgement: Judgement) -> Result<()> {
        self.bytes_at_hand -= record.content.packed_len();
        let verdict = self.verdict(record, judgement);
        let done = matches!(verdict, Verdict::Ack);
        self.flow.back(record, if done { Back::Settled } else { Back::Postponed });
        self.settle(record, verdict)
    }

    fn verdict(&self, record: &firth_engine::Record, judgement: Judgement) -> Verdict {
        let config = &self.common().config;
        match judgement {
            Judgement::Ack => Verdict::Ack,
            Judgement::Nack(nack) => {
                let in_order = config.is_strict() && record.content.key.is_some();
                config.retry.judge(record, nack, in_order, self.luck)
            }
        }
    }

    /// Whether a hint would bring nothing new: the lane is paused, or waits at the end of the log and will look for the rest soon anyway. What
    /// is not heard now is heard later.
    fn is_deaf(&self) -> bool {
        let is_paused = *self.paused.borrow();
        let waits = self.in_read.as_ref().is_some_and(|read| read.waits)
            && self.ripen_at.is_some_and(|at| at <= self.looked + super::fill::LOOK_EVERY);
        is_paused || waits
    }

    fn hinted(&mut self) {
        self.more |= self.in_read.as_ref().is_none_or(|read| !read.waits);
        // A delayed message or a replayed dead letter looks like an append. Not for each hint: under load there is one per append.
        let soon = self.looked + super::fill::LOOK_EVERY;
        self.ripen_at = Some(self.ripen_at.map_or(soon, |at| at.min(soon)));
        self.due_at = Some(self.due_at.map_or(soon, |at| at.min(soon)));
    }

    fn pause(&mut self) {
        if *self.paused.borrow_and_update() {
            self.common().desk.recall(self.at().index);
        }
    }

    fn drain(&mut self) {
        self.drain_until = Some(Instant::now() + self.common().config.drain);
        self.tie.draining.cancel();
        self.common().desk.recall(self.at().index);
    }

    fn is_drained(&self) -> bool {
        let idle = self.chunks_out == 0 && self.in_commit.is_none() && self.uncommitted == 0;
        self.drain_until.is_some_and(|until| idle || Instant::now() >= until) && {
            // Whoever still works on something is told to stop: the next owner does it again.
            self.tie.abandoned.cancel();
            true
        }
    }

    fn ring(&mut self, timer: Instant) {
        if timer >= self.known_until {
            self.known.clear();
            self.waiting.clear();
        }
        if timer >= self.next_poll {
            self.next_poll = timer + SLOW_POLL;
            (self.more, self.ripen_at, self.due_at) = (true, Some(timer), Some(timer));
        }
    }

    fn next_timer(&self) -> Instant {
        if let Some(until) = self.drain_until {
            return until;
        }
        let commit = self.oldest.map(|oldest| oldest + self.common().config.commit_interval);
        let commit = commit.filter(|_| self.in_commit.is_none());
        let can_take = self.may_take() && self.room() > 0 && self.in_look.is_none();
        let due = self.due_at.filter(|_| can_take);
        let times = [commit, due, self.ripen_at.filter(|_| can_take), Some(self.next_poll)];
        times.into_iter().flatten().min().expect("the poll is always set")
    }

    pub(super) fn note_work(&mut self) {
        self.worked = true;
    }

    /// Drops everything. Verdicts that were not sent to the engine are refused for good; for those on their way its answer says.
    async fn lost(mut self) -> Ended {
        self.tie.abandoned.cancel();
        self.lane.common.desk.recall(self.lane.at.index);
        self.waiters.drain(..).for_each(Waiter::gone);
        if let Some(commit) = self.in_commit.take()
            && let Ok(answer) = tokio::time::timeout(LAST_WORD, commit).await
        {
            // Whoever waits for it is told; there is nothing else to do about it.
            let _ = self.stored(answer);
        }
        Ended::Lost
    }

    /// Waits until nothing is out, so that nothing is handed out twice, and keeps the verdicts that come meanwhile.
    async fn broken(mut self, error: Error) -> Ended {
        if error.kind() == ErrorKind::Fenced {
            return self.lost().await;
        }
        self.tie.draining.cancel();
        self.common().desk.recall(self.at().index);
        let patience = tokio::time::sleep(self.common().config.drain);
        tokio::pin!(patience);
        // A commit that is on its way may still happen: better to know.
        if let Some(mut commit) = self.in_commit.take() {
            let stored = tokio::select! {
                stored = &mut commit => stored,
                () = self.lane.held.lost.cancelled() => {
                    self.in_commit = Some(commit);
                    return self.lost().await;
                }
                () = &mut patience => Err(Error::new(ErrorKind::Timeout, "no answer to a commit")),
            };
            // A failure is no news here: the lane starts over anyway.
            let _ = self.stored(stored);
        }
        while self.chunks_out > 0 {
            let event = tokio::select! {
                event = self.events.recv() => event,
                () = self.lane.held.lost.cancelled() => return self.lost().await,
                () = &mut patience => break,
            };
            match event {
                Some(Event::ChunkDone) => self.chunks_out -= 1,
                Some(Event::Judged { record, judgement, waiter }) => {
                    self.waiters.extend(waiter.map(|reply| Waiter::new(&record, reply)));
                    self.remember(&record, judgement);
                }
                Some(Event::Handled(list)) => {
                    list.into_iter().for_each(|(record, judgement)| self.remember(&record, judgement));
                }
                Some(Event::Unstarted(record) | Event::HeldBack(record)) => self.came_back(&record),
                None => break,
            }
        }
        self.tie.abandoned.cancel();
        Ended::Broken { left: self.leave(), error, worked: self.worked }
    }

    /// What the next session must know.
    fn leave(&mut self) -> Left {
        let mut known = std::mem::take(&mut self.known);
        known.extend(self.unconfirmed());
        let mut waiting = std::mem::take(&mut self.waiting);
        let open = self.answering.drain(..).chain(self.waiters.drain(..));
        waiting.extend(open.map(|waiter| (waiter.key, waiter)));
        Left { known, waiting }
    }

    /// Keeps a verdict for the next session.
    fn remember(&mut self, record: &Companion, judgement: Judgement) {
        let verdict = self.verdict(record, judgement);
        self.settled.push(((record.id, record.attempt), verdict));
        self.flow.back(record, Back::Settled);
        self.common().meter.in_flight.decrement(1.0);
    }
}

/// However a session ends, what is still out is no longer ours. Whoever was heard has an answer: a waiter that is dropped gives one.
impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.lane.common.meter.in_flight.decrement(self.flow.out() as f64);
    }
}

async fn changed(hint: &mut Option<Hint>) {
    match hint {
        Some(hint) => hint.wait().await,
        None => std::future::pending().await,
    }
}

/// Gives way to whatever is ready to run.
async fn let_others_go() {
    let mut gave_way = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut gave_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// What comes after a turn.
#[derive(PartialEq, Eq)]
enum Turn {
    Wait,
    /// Handlers may begin; then there is more to do.
    LetGo,
}

enum Next {
    Go,
    Lost,
}
