//! How a gateway that is or was parked stands to one partition. Pure.
//!
//! While it is behind, none of its events is taken as it happens: only what its group keeps is put into its lane. So whatever the lane holds
//! of a document is a whole piece of its history, also when the ownership ends in the middle.
//!
//! ```text
//!         doubt                 park                     resume                  end
//! Gone ──────────► Doubtful ──────────► Behind ───────────────────────► There ────────► Gone
//!   └─────────────── park ───────────────►└◄─── park, fall_behind ────────┘
//! ```

use firth::{Epoch, RecordId};

/// The standing under one ownership of the partition; the next one finds out anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parked {
    pub(super) epoch: Epoch,
    /// The group of the gateway keeps everything behind this record that is not settled.
    behind: RecordId,
    /// The last event that happened, here or at an earlier owner's, as far as it is known: taken or left out.
    last: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is fed from the topic; what happens is left out.
    Behind,
    /// It has been fed everything up to `after`, and gets what comes then as it happens.
    Live { after: u64, group: Group },
}

/// Whether a gateway that gets events as they happen has a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    /// Not everything that it was fed is settled.
    There,
    /// It was asked for, and there is no answer yet: nobody feeds by it.
    Doubtful,
    Gone,
}

impl Parked {
    /// Of one that gets everything as it happens.
    pub(super) fn new(epoch: Epoch) -> Self {
        let stage = Stage::Live { after: 0, group: Group::Gone };
        Self { epoch, behind: RecordId::ZERO, last: 0, stage }
    }

    /// Its group keeps everything behind this record.
    pub(super) fn behind(&self) -> RecordId {
        self.behind
    }

    /// The first event that it is fed.
    pub(super) fn from(&self) -> u64 {
        self.behind.seq + 1
    }

    pub(super) fn is_behind(&self) -> bool {
        self.stage == Stage::Behind
    }

    /// Whether it may have a group that nobody feeds it by.
    pub(super) fn is_doubtful(&self) -> bool {
        matches!(self.stage, Stage::Live { group: Group::Doubtful, .. })
    }

    /// Whether everything that it was fed is settled, and its group is gone.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Live { group: Group::Gone, .. })
    }

    /// Whether an event that happens goes into the lane; otherwise it was or will be read from the topic.
    pub(super) fn admits(&mut self, seq: u64) -> bool {
        // A dead letter that is replayed: nobody else feeds it.
        if seq < self.from() {
            return true;
        }
        self.last = seq.max(self.last);
        match self.stage {
            Stage::Behind => false,
            Stage::Live { after, .. } => seq > after,
        }
    }

    /// Whether it need not be kept in mind any more when this event happens.
    pub(super) fn is_over(&self, seq: u64) -> bool {
        matches!(self.stage, Stage::Live { after, group: Group::Gone } if seq > after)
    }

    /// Whether everything that was left out was taken, if everything up to here was.
    pub(super) fn is_near(&self, taken: u64) -> bool {
        !self.is_behind() || taken >= self.last
    }

    /// A group is asked for.
    pub(super) fn doubt(&mut self) {
        if let Stage::Live { group, .. } = &mut self.stage {
            *group = Group::Doubtful;
        }
    }

    /// It is fed from now on: its group is there and keeps everything behind a record, while everything up to another one was or will be left out.
    /// What was left out before, or taken as it happened and is perhaps let go, is fed as well.
    pub(super) fn park(&mut self, behind: RecordId, last: u64) {
        self.behind = behind;
        self.last = last.max(self.last);
        self.fall_behind();
    }

    /// Goes on with what happens, if everything that was left out was taken.
    pub(super) fn resume(&mut self, taken: u64) {
        if self.is_behind() && taken >= self.last {
            self.stage = Stage::Live { after: taken, group: Group::There };
        }
    }

    /// Whether it has resumed, and everything that it was fed is settled, if everything up to here is.
    pub(super) fn is_settled(&self, settled: u64) -> bool {
        matches!(self.stage, Stage::Live { after, .. } if settled >= after)
    }

    /// It is behind again: what was taken as it happened is perhaps let go.
    pub(super) fn fall_behind(&mut self) {
        if let Stage::Live { after, .. } = self.stage {
            self.last = after.max(self.last);
        }
        self.stage = Stage::Behind;
    }

    /// What it was fed is settled, and its group is gone.
    pub(super) fn end(&mut self) {
        if let Stage::Live { group, .. } = &mut self.stage {
            *group = Group::Gone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked() -> Parked {
        let mut parked = Parked::new(Epoch(1));
        parked.park(RecordId::new(1, 10), 20);
        parked
    }

    #[test]
    fn what_is_left_out_must_be_fed_before_events_are_taken_as_they_happen() {
        let mut parked = parked();
        assert!(parked.admits(10), "a replayed dead letter");
        assert!(!parked.admits(11) && !parked.admits(25));
        parked.resume(24);
        assert!(parked.is_behind() && !parked.is_near(24) && parked.is_near(25));
        parked.resume(27);
        assert!(!parked.is_behind() && !parked.admits(27) && parked.admits(28));
        assert!(!parked.is_settled(26) && parked.is_settled(27));
    }

    #[test]
    fn who_falls_behind_is_fed_also_what_was_taken_as_it_happened() {
        let mut parked = parked();
        parked.resume(20);
        assert!(parked.admits(30));
        parked.fall_behind();
        assert!(parked.is_behind() && !parked.is_near(29) && parked.is_near(30));
    }

    /// Whoever parks it may know less of what happened than is known already.
    #[test]
    fn who_is_parked_again_is_fed_whatever_was_left_out_before() {
        let mut parked = parked();
        assert!(!parked.admits(500));
        parked.park(RecordId::new(1, 10), 2);
        assert!(!parked.is_near(499) && parked.is_near(500));
        parked.resume(600);
        parked.park(RecordId::new(1, 10), 2);
        assert!(parked.is_behind() && !parked.is_near(599) && parked.is_near(600));
    }

    #[test]
    fn it_is_kept_in_mind_until_something_happens_behind_what_was_fed() {
        let mut parked = parked();
        parked.end();
        assert!(!parked.is_done(), "what is behind has no end");
        parked.resume(20);
        assert!(!parked.is_over(21));
        parked.end();
        assert!(parked.is_done() && !parked.is_over(20) && parked.is_over(21));
    }

    #[test]
    fn a_doubt_changes_nothing_but_stays_until_the_group_is_there() {
        let mut parked = Parked::new(Epoch(1));
        parked.doubt();
        assert!(parked.admits(1) && parked.admits(7) && parked.is_doubtful());
        assert!(!parked.is_behind() && !parked.is_done() && !parked.is_over(8));
        parked.park(RecordId::new(1, 2), 5);
        assert!(!parked.is_doubtful() && !parked.is_near(6) && parked.is_near(7));
        parked.resume(9);
        parked.end();
        parked.doubt();
        assert!(!parked.admits(9) && parked.admits(10), "what was fed does not come again");
    }
}
