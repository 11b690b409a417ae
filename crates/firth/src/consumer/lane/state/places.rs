//! Where a record is, as far as its lane knows (invariant 6).

use super::LaneState;
use crate::consumer::lane::flow::InFlow;
use firth_engine::Verdict;

/// The one place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Waiting: in the log, not read yet.
    Unread,
    /// Waiting: due again and taken, until there is room for its bytes.
    Unopened,
    /// Waiting: may be handed out.
    Ready,
    /// Waiting: an earlier record of its key comes first.
    HeldBack,
    /// In flight: handed out.
    Out,
    /// Its verdict waits for the next commit, or is in the commit on its way.
    Settled { is_sent: bool, verdict: SettledAs },
    /// The engine has its verdict: done, dead, or due and not taken.
    Stored,
}

/// The verdict on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettledAs {
    Done,
    Due,
    Dead,
}

impl LaneState {
    /// The place of a record of the log. It costs a search: for tests and for errors.
    pub(super) fn place_of(&self, seq: u64) -> Place {
        if self.window.is_open(seq) {
            return match self.flow.find(seq) {
                _ if self.intake.unopened.iter().any(|record| record.id.seq == seq) => Place::Unopened,
                Some(InFlow::Ready) => Place::Ready,
                Some(InFlow::HeldBack) => Place::HeldBack,
                None => Place::Out,
            };
        }
        if let Some((verdict, is_sent)) = self.verdicts.find(seq) {
            let verdict = match verdict {
                Verdict::Ack => SettledAs::Done,
                Verdict::Retry { .. } => SettledAs::Due,
                Verdict::Dead { .. } => SettledAs::Dead,
            };
            return Place::Settled { is_sent, verdict };
        }
        if seq > self.window.position().seq { Place::Unread } else { Place::Stored }
    }
}
