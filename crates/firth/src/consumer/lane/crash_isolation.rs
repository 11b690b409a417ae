//! How far an owner may start records before its next commit, and which ones its successor
//! isolates. Pure.
//!
//! Each commit carries the owner's word that it starts nothing beyond a number ([`Commit::reach`]).
//! If the owner vanishes, the records up to there may be what took it down, and its successor hands
//! them out one at a time; all others go on as usual. The word is given ahead, so that no record
//! waits for it: by as many records as are started between two commits. Slow handlers start few, so
//! few are suspects.
//!
//! [`Commit::reach`]: firth_engine::Commit::reach

use firth_engine::{Progress, RecordId};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// The furthest that the word is given ahead: twice what goes into the largest commit.
const MOST: u64 = 4096;
/// After this time without a shortage the word is given less far ahead.
const PERIOD: Duration = Duration::from_millis(100);

/// The word of one owner.
pub(super) struct StartLimit {
    /// The engine has this word.
    stored: u64,
    /// The word in the commit on its way, or `stored`.
    told: u64,
    /// The furthest record of the log that was handed out.
    started: u64,
    /// Since when it was far enough.
    enough_since: Instant,
    /// How far ahead the word is given.
    ahead: u64,
    least: u64,
}

impl StartLimit {
    /// For an owner whose handlers have up to `at_once` records at a time. What the engine has
    /// already holds.
    pub(super) fn new(progress: &Progress, at_once: usize, now: Instant) -> Self {
        let stored = progress.reach.unwrap_or(0);
        let started = progress.frontier.seq;
        let least = (2 * at_once as u64 + 2).min(MOST);
        Self { stored, told: stored, started, enough_since: now, ahead: least, least }
    }

    /// Records up to this number may be handed out now.
    pub(super) fn limit(&self) -> u64 {
        self.stored.min(self.told)
    }

    /// A record is handed out.
    pub(super) fn start(&mut self, seq: u64) {
        self.started = self.started.max(seq);
    }

    /// Whether a commit should move the word: the next record is beyond it, or soon will be.
    pub(super) fn is_short(&self, next: u64) -> bool {
        next > self.told || self.told < self.started + self.ahead / 2
    }

    /// The word for a commit that leaves now; `next` may be handed out as soon as it is stored. As
    /// long as there are suspects it covers them, so that the next owner isolates them, too.
    pub(super) fn tell(&mut self, next: Option<u64>, suspects: u64, now: Instant) -> u64 {
        if next.is_some_and(|next| self.is_short(next)) {
            (self.ahead, self.enough_since) = ((self.ahead * 2).min(MOST), now);
        } else if now.duration_since(self.enough_since) >= PERIOD {
            (self.ahead, self.enough_since) = ((self.ahead / 2).max(self.least), now);
        }
        let from = next.map_or(self.started, |next| self.started.max(next - 1));
        self.told = suspects.max(from + self.ahead);
        self.told
    }

    /// The commit is stored.
    pub(super) fn stored(&mut self) {
        self.stored = self.told;
    }
}

/// Records that may have taken an owner down: handed out one at a time.
#[derive(Default)]
pub(super) struct Suspects {
    /// Of the log, up to this number.
    log: u64,
    /// The first record of the log that is not settled.
    open: u64,
    /// Taken from what was due.
    due: HashSet<RecordId>,
}

impl Suspects {
    /// The records that a vanished owner may have had. Where an older version said nothing, the
    /// next `window` records.
    pub(super) fn after(progress: &Progress, window: usize) -> Self {
        let unknown = || progress.frontier.seq + progress.ahead.len() + window as u64;
        let reach = progress.reach.unwrap_or_else(unknown);
        // What came after the owner vanished was never in its hands.
        let log = reach.min(progress.last.seq);
        let open = progress.ahead.first_missing_after(progress.frontier.seq);
        Self { log, open, due: HashSet::new() }
    }

    pub(super) fn add_due(&mut self, ids: impl IntoIterator<Item = RecordId>) {
        self.due.extend(ids);
    }

    /// The last of them in the log, or 0.
    pub(super) fn last(&self) -> u64 {
        if self.open <= self.log { self.log } else { 0 }
    }

    /// Whether any are left.
    pub(super) fn any(&self) -> bool {
        self.last() > 0 || !self.due.is_empty()
    }

    /// These verdicts are stored, and `open` is the first record of the log without one.
    pub(super) fn settled(&mut self, ids: impl IntoIterator<Item = RecordId>, open: u64) {
        if self.any() {
            self.open = open;
            ids.into_iter().for_each(|id| {
                self.due.remove(&id);
            });
        }
    }

    /// Nothing is due any more: what is not settled was trimmed away.
    pub(super) fn none_due(&mut self) {
        self.due.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(frontier: u64, last: u64, reach: Option<u64>) -> Progress {
        let frontier = RecordId::new(7, frontier);
        let last = RecordId::new(7, last);
        Progress { frontier, last, reach, ..Progress::default() }
    }

    /// Handlers of `jobs` records at a time, each commit with `per_commit` records between.
    fn run(reach: &mut StartLimit, now: &mut Instant, turns: u64, per_commit: u64, period: Duration) -> u64 {
        let mut stalls = 0;
        for _ in 0..turns {
            for _ in 0..per_commit {
                let next = reach.started + 1;
                if next > reach.limit() {
                    stalls += 1;
                    reach.tell(Some(next), 0, *now);
                    reach.stored();
                }
                reach.start(next);
            }
            *now += period;
            reach.tell(Some(reach.started + 1), 0, *now);
            reach.stored();
        }
        stalls
    }

    #[test]
    fn u06_slow_handlers_have_few_suspects_and_fast_ones_soon_never_wait() {
        let mut now = Instant::now();
        let mut reach = StartLimit::new(&progress(0, 9999, None), 4, now);
        assert_eq!((reach.limit(), reach.is_short(1)), (0, true));
        run(&mut reach, &mut now, 50, 4, Duration::from_millis(200));
        assert!(reach.limit() - reach.started <= 16, "{}", reach.limit() - reach.started);
        let ramp = run(&mut reach, &mut now, 4, 2000, Duration::from_millis(1));
        assert!(ramp <= 10, "{ramp}");
        assert_eq!(run(&mut reach, &mut now, 50, 2000, Duration::from_millis(1)), 0);
        run(&mut reach, &mut now, 50, 4, Duration::from_millis(200));
        assert!(reach.limit() - reach.started <= 32, "{}", reach.limit() - reach.started);
    }

    #[test]
    fn u06_only_what_the_vanished_owner_may_have_started_is_isolated() {
        let suspects = |reach| Suspects::after(&progress(10, 500, reach), 1000);
        let mut few = suspects(Some(14));
        assert!(few.any());
        few.settled([], 14);
        assert!(few.any());
        few.settled([], 15);
        assert!(!few.any());
        assert!(!suspects(Some(10)).any(), "it had started nothing");
        assert!(!suspects(Some(0)).any(), "nor had the owner of a new group");
        let mut unknown = suspects(None);
        unknown.settled([], 500);
        assert!(unknown.any(), "an older version said nothing: all that was there");
        unknown.settled([], 501);
        assert!(!unknown.any(), "what came later was never in its hands");
    }

    #[test]
    fn u06_due_records_of_a_vanished_owner_are_isolated_until_they_are_settled() {
        let mut suspects = Suspects::default();
        assert!(!suspects.any());
        suspects.add_due([RecordId::new(1, 1), RecordId::new(1, 2)]);
        suspects.settled([RecordId::new(1, 1)], 9);
        assert!(suspects.any());
        suspects.settled([RecordId::new(1, 2)], 9);
        assert!(!suspects.any());
    }
}
