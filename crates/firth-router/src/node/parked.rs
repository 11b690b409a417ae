//! How a parked gateway stands to one partition. Pure.
//!
//! While it is behind, none of its events is taken as it happens: only what its group keeps is put into its lane. So whatever the lane holds
//! of a document is a whole piece of its history, also when the ownership ends in the middle.

use firth::{Epoch, RecordId};

/// The standing under one ownership of the partition; the next one finds out anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parked {
    pub(super) epoch: Epoch,
    /// The group of the gateway keeps everything behind this record that is not settled.
    pub(super) behind: RecordId,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is fed from the topic; everything that happened up to `skipped_to` was left out.
    Behind { skipped_to: u64 },
    /// It has been fed everything up to `after`, and gets what comes then as it happens; `done` when what it was fed is settled.
    Resumed { after: u64, done: bool },
}

impl Parked {
    /// Behind a record, while everything up to another one was or will be left out.
    pub(super) fn new(epoch: Epoch, behind: RecordId, skipped_to: u64) -> Self {
        Self { epoch, behind, stage: Stage::Behind { skipped_to } }
    }

    /// The first event that it is fed.
    pub(super) fn from(&self) -> u64 {
        self.behind.seq + 1
    }

    pub(super) fn is_behind(&self) -> bool {
        matches!(self.stage, Stage::Behind { .. })
    }

    /// Whether everything that it was fed is settled, and its group is gone.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Resumed { done: true, .. })
    }

    /// Whether an event that happens goes into the lane; otherwise it was or will be read from the topic.
    pub(super) fn admits(&mut self, seq: u64) -> bool {
        // A dead letter that is replayed: nobody else feeds it.
        if seq < self.from() {
            return true;
        }
        match &mut self.stage {
            Stage::Behind { skipped_to } => {
                *skipped_to = seq.max(*skipped_to);
                false
            }
            Stage::Resumed { after, .. } => seq > *after,
        }
    }

    /// Whether it need not be kept in mind any more when this event happens.
    pub(super) fn is_over(&self, seq: u64) -> bool {
        matches!(self.stage, Stage::Resumed { after, done: true } if seq > after)
    }

    /// Whether everything that was left out was taken, if everything up to here was.
    pub(super) fn is_near(&self, taken: u64) -> bool {
        match self.stage {
            Stage::Behind { skipped_to } => taken >= skipped_to,
            Stage::Resumed { .. } => true,
        }
    }

    /// Goes on with what happens, if everything that was left out was taken.
    pub(super) fn resume(&mut self, taken: u64) {
        if let Stage::Behind { skipped_to } = self.stage
            && taken >= skipped_to
        {
            self.stage = Stage::Resumed { after: taken, done: false };
        }
    }

    /// Whether it has resumed, and everything that it was fed is settled, if everything up to here is.
    pub(super) fn is_settled(&self, settled: u64) -> bool {
        matches!(self.stage, Stage::Resumed { after, .. } if settled >= after)
    }

    /// It is behind again; of what happened, everything up to `last` was taken out of the lane.
    pub(super) fn fall_behind(&mut self, last: u64) {
        let so_far = match self.stage {
            Stage::Behind { skipped_to } => skipped_to,
            Stage::Resumed { after, .. } => after,
        };
        self.stage = Stage::Behind { skipped_to: so_far.max(last) };
    }

    /// What it was fed is settled, and its group is gone.
    pub(super) fn end(&mut self) {
        if let Stage::Resumed { done, .. } = &mut self.stage {
            *done = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_must_be_fed_before_events_are_taken_as_they_happen() {
        let mut parked = Parked::new(Epoch(1), RecordId::new(1, 10), 20);
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
        let mut parked = Parked::new(Epoch(1), RecordId::new(1, 10), 20);
        parked.resume(20);
        assert!(parked.admits(30));
        parked.fall_behind(30);
        assert!(parked.is_behind() && !parked.is_near(29) && parked.is_near(30));
    }

    #[test]
    fn it_is_kept_in_mind_until_something_happens_behind_what_was_fed() {
        let mut parked = Parked::new(Epoch(1), RecordId::new(1, 10), 20);
        parked.end();
        assert!(!parked.is_done(), "what is behind has no end");
        parked.resume(20);
        assert!(!parked.is_over(21));
        parked.end();
        assert!(parked.is_done() && !parked.is_over(20) && parked.is_over(21));
    }
}
