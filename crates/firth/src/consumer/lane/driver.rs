//! The lane's driver: performs the actions of [`LaneState`] and brings it the answers as events.

use super::state::{LaneAction, LaneEvent, LaneState, Next, Rules, Wants};
use super::wait::{LaneHints, Request, answer, let_others_run, sleep_until};
use super::{Asked, Lane, LaneEnd, Out, requests};
use crate::consumer::delivery::{ChunkGuard, Delivery, DeliveryEvent, LaneHandle};
use crate::record::Record;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How many events of deliveries are taken per turn.
const EVENTS: usize = 256;

pub(super) struct LaneDriver {
    lane: Arc<Lane>,
    state: LaneState,
    /// Filled by the state, emptied by [`perform`](Self::perform).
    actions: Vec<LaneAction>,
    handle: Arc<LaneHandle>,
    events: mpsc::UnboundedReceiver<DeliveryEvent>,
    heard: Vec<DeliveryEvent>,
    hints: LaneHints,
    paused: watch::Receiver<bool>,
    asked: Asked,
    renewals: watch::Receiver<Instant>,
    is_stopping: bool,
    is_lost: bool,
    opening: Request,
    commit: Request,
    read: Request,
    look: Request,
}

impl LaneDriver {
    pub(super) fn new(lane: Arc<Lane>, asked: Asked) -> Self {
        let (handle, events) = LaneHandle::new(lane.held.clone());
        let now = Instant::now();
        Self {
            state: LaneState::new(Rules::of(&lane), lane.inputs(&handle, now), now, fastrand::u64(..)),
            actions: Vec::new(),
            handle,
            events,
            heard: Vec::new(),
            hints: LaneHints::new(&lane),
            paused: lane.common.paused.clone(),
            asked,
            renewals: lane.held.renewals(),
            is_stopping: false,
            is_lost: false,
            opening: None,
            commit: None,
            read: None,
            look: None,
            lane,
        }
    }

    pub(super) async fn run(mut self) -> LaneEnd {
        loop {
            let now = Instant::now();
            let next = self.state.turn(now, self.lane.inputs(&self.handle, now), &mut self.actions);
            self.perform();
            match next {
                Next::Wait(wants) => self.wait(wants).await,
                Next::Yield => let_others_run().await,
                Next::End(end) => return end,
            }
        }
    }

    /// Waits for the next events, hands them to the state and performs what it says.
    async fn wait(&mut self, wants: Wants) {
        let lane = &self.lane;
        let event = tokio::select! {
            biased;
            () = lane.held.lost.cancelled(), if !self.is_lost => {
                self.is_lost = true;
                LaneEvent::LeaseLost
            }
            event = answer(&mut self.commit) => event,
            _ = self.events.recv_many(&mut self.heard, EVENTS) => return self.hear(),
            event = answer(&mut self.read) => event,
            event = answer(&mut self.look) => event,
            event = answer(&mut self.opening) => event,
            () = lane.stop.cancelled(), if !self.is_stopping => {
                self.is_stopping = true;
                LaneEvent::Stop
            }
            event = self.hints.wait(wants) => event,
            // The sender lives in the consumer; a consumer that is gone has cancelled `stop`.
            Ok(()) = self.paused.changed() => return,
            Ok(()) = self.renewals.changed() => return,
            Some(reply) = self.asked.recv() => {
                // An operator who went away needs no answer.
                let _ = reply.send(self.out());
                return;
            }
            event = sleep_until(wants.timer) => event,
        };
        self.state.handle(Instant::now(), event, &mut self.actions);
        self.perform();
    }

    /// What handlers and callers of `next` have.
    fn out(&self) -> Vec<Out> {
        let mut out = self.state.out(Instant::now());
        let unstarted = self.lane.common.ready_queue.waiting(self.lane.at.index);
        out.retain(|one| !unstarted.contains(&one.id));
        out
    }

    fn hear(&mut self) {
        let now = Instant::now();
        let is_unstarted = |event: &&DeliveryEvent| matches!(event, DeliveryEvent::Unstarted(_));
        let unstarted = self.heard.iter().filter(is_unstarted).count();
        for event in self.heard.drain(..) {
            self.state.handle(now, LaneEvent::Delivery(event), &mut self.actions);
        }
        self.perform();
        // After the recall: a later delivery in the ready queue must not start before these.
        self.handle.are_back(unstarted);
    }

    fn perform(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.drain(..).for_each(|action| self.act(action));
        self.actions = actions;
    }

    fn act(&mut self, action: LaneAction) {
        let lane = &self.lane;
        let common = &lane.common;
        let index = lane.at.index;
        match action {
            LaneAction::Open(request) => {
                (self.commit, self.read, self.look) = (None, None, None);
                (self.handle, self.events) = LaneHandle::new(lane.held.clone());
                // Listen before reading, so that no append in between is missed.
                self.hints = LaneHints::new(lane);
                self.opening = Some(Box::pin(requests::open(lane.clone(), request)));
            }
            LaneAction::Read { after, max, waits } => {
                self.read = Some(Box::pin(requests::read(lane.clone(), after, max, waits)));
            }
            LaneAction::TakeDue { max, known } => {
                self.look = Some(Box::pin(requests::take_due(lane.clone(), max, known)));
            }
            LaneAction::Promote => self.look = Some(Box::pin(requests::promote(lane.clone()))),
            LaneAction::Commit(commit) => {
                self.commit = Some(Box::pin(requests::commit(lane.clone(), commit)));
            }
            LaneAction::HandOut(records) => {
                let guard = Arc::new(ChunkGuard(self.handle.clone()));
                let deliver = |record| Delivery::new(Record::new(lane.at.clone(), record), guard.clone());
                common.ready_queue.put(index, records.into_iter().map(deliver).collect());
            }
            LaneAction::Recall => common.ready_queue.recall(index),
            LaneAction::StopStarts => self.handle.draining.cancel(),
            LaneAction::Abandon => self.handle.abandoned.cancel(),
            LaneAction::NoteLost { next, count } => common.losses.note(index, next, count),
            LaneAction::NoteRead(position) => common.losses.read(index, position),
        }
    }
}
