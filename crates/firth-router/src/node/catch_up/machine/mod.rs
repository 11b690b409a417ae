//! [`CatchUp`]: how a gateway stands to one partition, from being parked until it has caught up.
//! Pure: events go in with the time, actions come out, and the driver does the I/O.
//!
//! ```text
//!        Park              GroupMade                  Looked                    Removed
//! Live ──────► Doubtful ─────────────► CatchingUp ─────────────► CaughtUp ─────────────► Live
//!                                        ▲ └──────── Park, LetGo ────┘
//!                                      Found (by the next owner)
//! ```
//! - *Live*: the gateway gets events as they happen, and has no group.
//! - *Doubtful*: the node has asked for a group and has no answer yet.
//! - *Catching up*: the group feeds the gateway from the topic. No live event goes into its lane.
//!   So the events of a document in the lane are a contiguous piece of its history, even if the
//!   ownership ends in the middle.
//! - *Caught up*: live events go into the lane again. The group stays until everything that it fed
//!   is settled.
//!
//! The state belongs to one ownership of the partition: `H` is the hold of that ownership, and the
//! machine hands it out with each step on the group. An answer to a step of an earlier ownership
//! changes nothing (invariant 5).

use firth::{Epoch, RecordId};
use std::time::Duration;
use tokio::time::Instant;

/// Interval at which the reader looks whether live events may go on.
const LOOK: Duration = Duration::from_millis(100);

/// How a gateway stands to one partition.
#[derive(Clone, Debug)]
pub(in crate::node) struct CatchUp<H> {
    /// The ownership under which the state holds; `None` once it has ended.
    owner: Option<(Epoch, H)>,
    stage: Stage,
    /// The group keeps everything behind this record that is not settled.
    behind: RecordId,
    /// Last event that happened, here or at an earlier owner's, as far as it is known: taken or
    /// left out.
    last: u64,
    /// How far the reader has taken records from the topic.
    taken: u64,
    /// Version of the group's mark in the catalog.
    mark: Option<u64>,
    /// A step on the group whose answer is awaited.
    step: Option<GroupStep>,
    reader: ReaderStage,
    looked: Option<Instant>,
    /// Since when the gateway is behind without a break.
    since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What comes behind `after` goes into the lane as it happens.
    Live {
        after: u64,
    },
    /// As `Live`; perhaps there is a group that no reader uses.
    Doubtful {
        after: u64,
    },
    CatchingUp,
    /// As `Live`; the group has fed everything up to `after`, and not all of it is settled. After a
    /// removal without an answer it is perhaps gone.
    CaughtUp {
        after: u64,
        is_there: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupStep {
    /// The group is made; live events up to `last` are left out then.
    Making { last: u64 },
    /// The reader closes its consumer, looks where the group stands, and removes it.
    Closing,
}

/// The catch-up reader, as far as the machine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderStage {
    None,
    Running,
    /// A reader of an earlier ownership ends.
    Ending,
    /// As `Ending`; a reader of this ownership starts then.
    Next,
}

/// What happened.
#[derive(Clone, Debug)]
pub(in crate::node) enum CatchUpEvent<H> {
    /// An earlier owner has parked the gateway: its group is there, with this mark. Any event up to
    /// `last` may have been left out.
    Found { owner: (Epoch, H), behind: RecordId, last: u64, mark: u64 },
    /// The gateway holds up the partition, of which events up to `last` were read. The lane holds
    /// live events from the one behind `behind` on, if it holds any.
    Park { owner: (Epoch, H), behind: Option<RecordId>, last: u64 },
    /// The group is there, marked, and keeps everything behind this record; `None`: perhaps not.
    GroupMade { epoch: Epoch, made: Option<(RecordId, u64)> },
    /// The ownership has ended.
    Lost,
    /// A reader begins a round: it feeds from where the group stands.
    Round { epoch: Epoch },
    /// The group is there for certain.
    Kept { epoch: Epoch },
    /// The group of a gateway that has caught up is gone.
    Gone { epoch: Epoch },
    /// The reader has taken everything up to here from the topic.
    Took { epoch: Epoch, seq: u64 },
    /// The reader has looked whether live events may go on.
    Looked { epoch: Epoch, may_go_on: bool },
    /// Everything that the reader has put into the lane is settled.
    Drained { epoch: Epoch },
    /// The consumer of the reader is closed, and its group stands here.
    Closed { epoch: Epoch, settled: RecordId, keeps_letters: bool },
    /// The group is removed; `false`: it is not, or that is not known.
    Removed { epoch: Epoch, is_gone: bool },
    /// A reader ends its round before the gateway has caught up.
    LetGo { epoch: Epoch },
    /// A reader has ended, without having removed the group.
    ReaderEnded,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) enum CatchUpAction<H> {
    /// Takes the live events from `from` on that are not on their way out of the lane: a reader
    /// reads them again.
    LeaveToReader {
        from: u64,
    },
    /// Lets the records of live events from `from` on that are on their way go: a reader reads them
    /// again, so no record need wait for the answer.
    Detach {
        from: u64,
    },
    /// Takes all live events that are not on their way out of the lane: the next owner reads them
    /// again.
    DropLive,
    /// Takes the events that a reader put in and that are not on their way out of the lane, and
    /// gives their records back.
    DropFed,
    /// Makes the group with its mark, or moves it back. `behind`: where it begins; `None` means
    /// behind everything that is settled for all gateways.
    MakeGroup {
        hold: H,
        behind: Option<RecordId>,
    },
    /// Removes dead letters of events from `from` on that the gateway is fed again.
    TakeBackLetters {
        hold: H,
        from: u64,
    },
    StartReader {
        hold: H,
    },
    StopReader,
    /// Closes the reader's consumer, and tells where the group stands.
    CloseReader,
    /// Removes the group, and then the mark.
    RemoveGroup {
        hold: H,
        mark: Option<u64>,
    },
    /// The gateway is parked now, and was not before.
    TellParked,
    TellResumed,
}

impl<H: Clone> CatchUp<H> {
    /// Of a gateway that gets everything as it happens.
    pub(in crate::node) fn new() -> Self {
        Self {
            owner: None,
            stage: Stage::Live { after: 0 },
            behind: RecordId::ZERO,
            last: 0,
            taken: 0,
            mark: None,
            step: None,
            reader: ReaderStage::None,
            looked: None,
            since: None,
        }
    }

    /// Takes in what happened; answers what to do.
    pub(in crate::node) fn on(&mut self, now: Instant, event: CatchUpEvent<H>) -> Vec<CatchUpAction<H>> {
        let actions = self.take_in(now, event);
        self.since = self.since.or(Some(now)).filter(|_| self.is_behind());
        actions
    }

    fn take_in(&mut self, now: Instant, event: CatchUpEvent<H>) -> Vec<CatchUpAction<H>> {
        let mut actions = Vec::new();
        match event {
            CatchUpEvent::Found { owner, behind, last, mark } => {
                self.own(owner);
                self.mark = Some(mark);
                self.catch_up_from(behind, last, &mut actions);
                self.start_reader(&mut actions);
            }
            CatchUpEvent::Park { owner, behind, last } => self.park(owner, behind, last, &mut actions),
            CatchUpEvent::GroupMade { epoch, made } => self.group_made(epoch, made, &mut actions),
            CatchUpEvent::Lost => self.lose(&mut actions),
            CatchUpEvent::Round { epoch } if self.is_of(epoch) => (self.taken, self.looked) = (0, None),
            CatchUpEvent::Kept { epoch } => self.set_there(epoch, true),
            CatchUpEvent::Gone { epoch } => self.gone(epoch, &mut actions),
            CatchUpEvent::Took { epoch, seq } if self.is_of(epoch) => self.taken = seq.max(self.taken),
            CatchUpEvent::Looked { epoch, may_go_on } => self.looked(now, epoch, may_go_on),
            CatchUpEvent::Drained { epoch } => {
                if self.has_caught_up(epoch) && self.step.is_none() {
                    self.step = Some(GroupStep::Closing);
                    actions.push(CatchUpAction::CloseReader);
                }
            }
            CatchUpEvent::Closed { epoch, settled, keeps_letters } => {
                self.closed(epoch, settled, keeps_letters, &mut actions);
            }
            CatchUpEvent::Removed { epoch, is_gone } => {
                if self.is_of(epoch) && self.step == Some(GroupStep::Closing) {
                    self.step = None;
                    match is_gone {
                        true => self.gone(epoch, &mut actions),
                        false => self.set_there(epoch, false),
                    }
                }
            }
            CatchUpEvent::LetGo { epoch } => {
                if self.is_of(epoch) {
                    self.step = None;
                    self.fall_behind(&mut actions);
                }
                actions.push(CatchUpAction::DropFed);
            }
            CatchUpEvent::ReaderEnded => self.reader_ended(&mut actions),
            CatchUpEvent::Round { .. } | CatchUpEvent::Took { .. } => {}
        }
        actions
    }

    /// Whether an event that happens goes into the lane; otherwise it was or will be read from the
    /// topic.
    pub(in crate::node) fn admits(&mut self, seq: u64) -> bool {
        // A replayed dead letter: no reader feeds it.
        if seq < self.from() {
            return true;
        }
        self.last = seq.max(self.last);
        match self.stage {
            Stage::CatchingUp => false,
            Stage::Live { after } | Stage::Doubtful { after } | Stage::CaughtUp { after, .. } => seq > after,
        }
    }

    /// Whether the machine may be forgotten when this event happens: it stands as a new one does.
    pub(in crate::node) fn is_over(&self, seq: u64) -> bool {
        self.is_live() && matches!(self.stage, Stage::Live { after } if seq > after)
    }

    /// Whether the gateway has no group and no reader.
    pub(in crate::node) fn is_live(&self) -> bool {
        let is_idle = self.step.is_none() && self.reader == ReaderStage::None;
        is_idle && matches!(self.stage, Stage::Live { .. })
    }

    /// Whether it stands as a new one, under no ownership.
    pub(in crate::node) fn is_idle(&self) -> bool {
        self.owner.is_none() && self.is_live()
    }

    /// Whether the gateway is owed events: it has a group, or may have one.
    pub(in crate::node) fn has_backlog(&self) -> bool {
        !matches!(self.stage, Stage::Live { .. })
    }

    /// Whether there may be a group that no reader uses.
    pub(in crate::node) fn is_doubtful(&self) -> bool {
        matches!(self.stage, Stage::Doubtful { .. })
    }

    pub(in crate::node) fn is_behind(&self) -> bool {
        self.stage == Stage::CatchingUp
    }

    /// Since when the gateway is behind, how many events the reader has taken for it since its
    /// group begins, and of how many: those that were left out and those that its group keeps.
    pub(in crate::node) fn progress(&self) -> Option<(Instant, u64, u64)> {
        let taken = self.taken.saturating_sub(self.behind.seq);
        let left_out = self.last.saturating_sub(self.behind.seq);
        self.since.map(|since| (since, taken.min(left_out), left_out))
    }

    /// Whether a step on the group goes on that a park must wait for.
    pub(in crate::node) fn is_busy(&self) -> bool {
        self.step.is_some()
    }

    /// Whether a reader may still put events into the lane, or take some out.
    pub(in crate::node) fn has_reader(&self) -> bool {
        self.reader != ReaderStage::None
    }

    /// From which live event on the gateway is fed from the topic, if it is behind.
    pub(in crate::node) fn fed_from(&self) -> Option<u64> {
        self.is_behind().then(|| self.from())
    }

    /// From which live event on the lane gives up none, because a reader reads it again.
    pub(in crate::node) fn exempt(&self) -> Option<u64> {
        match self.step {
            // Where the group will begin is not known yet.
            Some(GroupStep::Making { .. }) => Some(0),
            _ => self.fed_from(),
        }
    }

    /// Behind which record the group begins, if the state is of this ownership.
    pub(in crate::node) fn group_behind(&self, epoch: Epoch) -> Option<RecordId> {
        self.is_of(epoch).then_some(self.behind)
    }

    /// Whether the reader of this ownership may let live events go on, if it looks now: it has
    /// taken everything that was left out.
    pub(in crate::node) fn wants_look(&self, now: Instant, epoch: Epoch) -> bool {
        let is_due = self.looked.is_none_or(|looked| now >= looked + LOOK);
        let is_near = !self.is_behind() || self.taken >= self.last;
        self.is_of(epoch) && is_due && is_near
    }

    /// Whether live events go on, under this ownership, while the group is there.
    pub(in crate::node) fn has_caught_up(&self, epoch: Epoch) -> bool {
        self.is_of(epoch) && matches!(self.stage, Stage::CaughtUp { .. })
    }

    fn is_of(&self, epoch: Epoch) -> bool {
        self.owner.as_ref().is_some_and(|(of, _)| *of == epoch)
    }

    fn hold(&self) -> Option<H> {
        self.owner.as_ref().map(|(_, hold)| hold.clone())
    }

    /// The first event that the gateway is fed.
    fn from(&self) -> u64 {
        self.behind.seq + 1
    }

    /// Begins anew under an ownership, unless it is the one that the state is of.
    fn own(&mut self, owner: (Epoch, H)) {
        if !self.is_of(owner.0) {
            *self = Self { owner: Some(owner), reader: self.reader, ..Self::new() };
        }
    }

    fn park(
        &mut self,
        owner: (Epoch, H),
        behind: Option<RecordId>,
        last: u64,
        actions: &mut Vec<CatchUpAction<H>>,
    ) {
        self.own(owner);
        let Some(hold) = self.hold().filter(|_| !self.is_busy()) else { return };
        let is_fed = matches!(self.reader, ReaderStage::Running | ReaderStage::Next);
        // Live events are let go only while the group is there for certain.
        let is_there = !matches!(self.stage, Stage::CaughtUp { is_there: false, .. });
        if is_fed && is_there && self.has_backlog() {
            let was_behind = self.is_behind();
            self.catch_up_from(self.behind, last, actions);
            self.feed_again(hold, was_behind, actions);
            return;
        }
        if let Stage::Live { after } = self.stage {
            self.stage = Stage::Doubtful { after };
        }
        self.step = Some(GroupStep::Making { last });
        actions.push(CatchUpAction::MakeGroup { hold, behind });
    }

    fn group_made(
        &mut self,
        epoch: Epoch,
        made: Option<(RecordId, u64)>,
        actions: &mut Vec<CatchUpAction<H>>,
    ) {
        let Some(GroupStep::Making { last }) = self.step.filter(|_| self.is_of(epoch)) else { return };
        self.step = None;
        let (Some((behind, mark)), Some(hold)) = (made, self.hold()) else { return };
        self.mark = Some(mark);
        let was_behind = self.is_behind() && self.reader == ReaderStage::Running;
        self.catch_up_from(behind, last, actions);
        self.feed_again(hold, was_behind, actions);
        self.start_reader(actions);
    }

    /// The gateway is fed from now on: its group keeps everything behind a record, while everything
    /// up to another one was or will be left out. A reader feeds also what was left out before, or
    /// taken as it happened and is perhaps let go.
    fn catch_up_from(&mut self, behind: RecordId, last: u64, actions: &mut Vec<CatchUpAction<H>>) {
        self.behind = behind;
        self.last = last.max(self.last);
        self.fall_behind(actions);
    }

    fn fall_behind(&mut self, actions: &mut Vec<CatchUpAction<H>>) {
        if let Stage::Live { after } | Stage::Doubtful { after } | Stage::CaughtUp { after, .. } = self.stage
        {
            self.last = after.max(self.last);
        }
        self.stage = Stage::CatchingUp;
        actions.push(CatchUpAction::LeaveToReader { from: self.from() });
    }

    fn feed_again(&self, hold: H, was_behind: bool, actions: &mut Vec<CatchUpAction<H>>) {
        let from = self.from();
        actions.push(CatchUpAction::Detach { from });
        if !was_behind {
            actions.push(CatchUpAction::TellParked);
        }
        actions.push(CatchUpAction::TakeBackLetters { hold, from });
    }

    fn set_there(&mut self, epoch: Epoch, there: bool) {
        if let Stage::CaughtUp { is_there, .. } = &mut self.stage
            && self.owner.as_ref().is_some_and(|(of, _)| *of == epoch)
        {
            *is_there = there;
        }
    }

    fn looked(&mut self, now: Instant, epoch: Epoch, may_go_on: bool) {
        if self.is_of(epoch) {
            self.looked = Some(now);
            if may_go_on && self.is_behind() && self.taken >= self.last {
                self.stage = Stage::CaughtUp { after: self.taken, is_there: true };
            }
        }
    }

    /// If the consumer lost the group in the meantime, it has settled less than it took.
    fn closed(
        &mut self,
        epoch: Epoch,
        settled: RecordId,
        keeps_letters: bool,
        actions: &mut Vec<CatchUpAction<H>>,
    ) {
        let Some(hold) = self.hold().filter(|_| self.is_of(epoch)) else { return };
        let (Some(GroupStep::Closing), Stage::CaughtUp { after, .. }) = (self.step, self.stage) else {
            return;
        };
        if keeps_letters || settled.seq < after {
            self.step = None;
            self.fall_behind(actions);
            actions.push(CatchUpAction::TakeBackLetters { hold, from: settled.seq + 1 });
        } else {
            actions.push(CatchUpAction::RemoveGroup { hold, mark: self.mark });
        }
    }

    /// The group of a gateway that has caught up is gone, and with it the reader.
    fn gone(&mut self, epoch: Epoch, actions: &mut Vec<CatchUpAction<H>>) {
        if let Stage::CaughtUp { after, .. } = self.stage
            && self.is_of(epoch)
        {
            self.stage = Stage::Live { after };
            (self.mark, self.reader) = (None, ReaderStage::None);
            actions.push(CatchUpAction::TellResumed);
        }
    }

    fn lose(&mut self, actions: &mut Vec<CatchUpAction<H>>) {
        let reader = match self.reader {
            ReaderStage::None => ReaderStage::None,
            ReaderStage::Running => {
                actions.push(CatchUpAction::StopReader);
                ReaderStage::Ending
            }
            ReaderStage::Ending | ReaderStage::Next => ReaderStage::Ending,
        };
        *self = Self { reader, ..Self::new() };
        actions.push(CatchUpAction::DropLive);
    }

    fn start_reader(&mut self, actions: &mut Vec<CatchUpAction<H>>) {
        match (self.reader, self.hold()) {
            (ReaderStage::None, Some(hold)) => {
                self.reader = ReaderStage::Running;
                actions.push(CatchUpAction::StartReader { hold });
            }
            (ReaderStage::Ending, Some(_)) => self.reader = ReaderStage::Next,
            _ => {}
        }
    }

    fn reader_ended(&mut self, actions: &mut Vec<CatchUpAction<H>>) {
        let starts = self.reader == ReaderStage::Next;
        self.reader = ReaderStage::None;
        if starts {
            self.start_reader(actions);
        }
    }
}

#[cfg(test)]
mod tests;
