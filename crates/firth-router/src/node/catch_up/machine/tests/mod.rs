//! One promise of the machine each; `model` looks at all of them together.

mod model;

use super::{CatchUp, CatchUpAction, CatchUpEvent};
use firth::{Epoch, RecordId};
use std::time::Duration;
use tokio::time::Instant;

/// A machine and its time, under the ownership with epoch 1.
struct Fixture {
    machine: CatchUp<u64>,
    now: Instant,
}

const EPOCH: Epoch = Epoch(1);

impl Fixture {
    fn new() -> Self {
        Self { machine: CatchUp::new(), now: Instant::now() }
    }

    /// Of a gateway whose group keeps everything behind 10, while events up to 20 are left out.
    fn parked() -> Self {
        let mut fixture = Self::new();
        fixture.park(20);
        let made = Some((RecordId::new(1, 10), 7));
        let actions = fixture.on(CatchUpEvent::GroupMade { epoch: EPOCH, made });
        assert!(actions.contains(&CatchUpAction::StartReader { hold: 1 }));
        fixture
    }

    fn on(&mut self, event: CatchUpEvent<u64>) -> Vec<CatchUpAction<u64>> {
        self.machine.on(self.now, event)
    }

    fn park(&mut self, last: u64) -> Vec<CatchUpAction<u64>> {
        self.on(CatchUpEvent::Park { owner: (EPOCH, 1), behind: None, last })
    }

    /// The reader takes everything up to a place, and would let live events go on.
    fn look_at(&mut self, seq: u64) -> bool {
        self.on(CatchUpEvent::Took { epoch: EPOCH, seq });
        self.now += Duration::from_secs(1);
        self.on(CatchUpEvent::Looked { epoch: EPOCH, may_go_on: true });
        self.machine.has_caught_up(EPOCH)
    }

    fn close_at(&mut self, seq: u64) -> Vec<CatchUpAction<u64>> {
        assert_eq!(self.on(CatchUpEvent::Drained { epoch: EPOCH }), [CatchUpAction::CloseReader]);
        let settled = RecordId::new(1, seq);
        self.on(CatchUpEvent::Closed { epoch: EPOCH, settled, keeps_letters: false })
    }
}

#[test]
fn what_is_left_out_is_fed_before_live_events_go_on() {
    let mut fixture = Fixture::parked();
    assert!(fixture.machine.admits(10), "a replayed dead letter");
    assert!(!fixture.machine.admits(11) && !fixture.machine.admits(25));
    assert!(!fixture.look_at(24) && !fixture.machine.wants_look(fixture.now + Duration::from_secs(1), EPOCH));
    assert!(fixture.look_at(27));
    assert!(!fixture.machine.admits(27) && fixture.machine.admits(28));
}

#[test]
fn progress_is_told_from_the_park_until_live_events_go_on() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.machine.progress(), None);
    fixture = Fixture::parked();
    let since = fixture.now;
    assert_eq!(fixture.machine.progress(), Some((since, 0, 10)));
    fixture.now += Duration::from_secs(5);
    assert!(!fixture.machine.admits(25));
    fixture.on(CatchUpEvent::Took { epoch: EPOCH, seq: 18 });
    assert_eq!(fixture.machine.progress(), Some((since, 8, 15)));
    assert!(fixture.look_at(27));
    assert_eq!(fixture.machine.progress(), None);
}

#[test]
fn a_group_that_has_settled_less_than_it_fed_feeds_the_rest_again() {
    let mut fixture = Fixture::parked();
    assert!(fixture.look_at(27));
    let actions = fixture.close_at(26);
    let again =
        [CatchUpAction::LeaveToReader { from: 11 }, CatchUpAction::TakeBackLetters { hold: 1, from: 27 }];
    assert_eq!(actions, again);
    assert!(fixture.machine.is_behind() && !fixture.machine.is_busy());
}

#[test]
fn the_group_and_its_mark_go_when_everything_is_settled() {
    let mut fixture = Fixture::parked();
    assert!(fixture.look_at(27));
    assert_eq!(fixture.close_at(27), [CatchUpAction::RemoveGroup { hold: 1, mark: Some(7) }]);
    let removed = fixture.on(CatchUpEvent::Removed { epoch: EPOCH, is_gone: true });
    assert_eq!(removed, [CatchUpAction::TellResumed]);
    assert!(fixture.machine.is_live() && !fixture.machine.has_backlog());
    assert!(!fixture.machine.is_over(27) && fixture.machine.is_over(28), "what was fed does not come again");
}

#[test]
fn a_gateway_that_falls_behind_is_fed_also_what_it_took_live() {
    let mut fixture = Fixture::parked();
    assert!(fixture.look_at(20) && fixture.machine.admits(30));
    let actions = fixture.on(CatchUpEvent::LetGo { epoch: EPOCH });
    assert_eq!(actions, [CatchUpAction::LeaveToReader { from: 11 }, CatchUpAction::DropFed]);
    assert!(!fixture.look_at(29) && fixture.look_at(30));
}

/// The caller may know of fewer events than the machine does already.
#[test]
fn a_gateway_that_is_parked_again_is_fed_everything_that_was_left_out_before() {
    let mut fixture = Fixture::parked();
    assert!(!fixture.machine.admits(500));
    let again = fixture.park(2);
    assert!(!again.contains(&CatchUpAction::TellParked), "it was parked before");
    assert!(!fixture.look_at(499) && fixture.look_at(600));
    assert!(fixture.park(2).contains(&CatchUpAction::TellParked));
    fixture.on(CatchUpEvent::Round { epoch: EPOCH });
    assert!(!fixture.look_at(599) && fixture.look_at(600));
}

#[test]
fn a_doubt_changes_nothing_but_stays_until_the_group_is_there() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.park(5), [CatchUpAction::MakeGroup { hold: 1, behind: None }]);
    assert_eq!(fixture.machine.exempt(), Some(0), "where the group begins is not known yet");
    assert_eq!(fixture.on(CatchUpEvent::GroupMade { epoch: EPOCH, made: None }), []);
    assert!(fixture.machine.admits(1) && fixture.machine.admits(7) && fixture.machine.is_doubtful());
    assert!(
        !fixture.machine.is_over(8) && fixture.machine.has_backlog() && fixture.machine.exempt().is_none()
    );
    fixture.park(5);
    let made = Some((RecordId::new(1, 2), 1));
    fixture.on(CatchUpEvent::GroupMade { epoch: EPOCH, made });
    assert!(!fixture.machine.is_doubtful() && fixture.machine.exempt() == Some(3));
    assert!(!fixture.look_at(6) && fixture.look_at(7));
}

#[test]
fn an_answer_of_an_earlier_ownership_changes_nothing() {
    let mut fixture = Fixture::new();
    fixture.park(5);
    assert_eq!(fixture.on(CatchUpEvent::Lost), [CatchUpAction::DropLive]);
    let made = Some((RecordId::new(1, 2), 1));
    assert_eq!(fixture.on(CatchUpEvent::GroupMade { epoch: EPOCH, made }), []);
    assert!(fixture.machine.is_idle() && fixture.machine.admits(3));
    let owner = (Epoch(2), 2);
    fixture.on(CatchUpEvent::Found { owner, behind: RecordId::new(1, 4), last: 9, mark: 3 });
    fixture.on(CatchUpEvent::Took { epoch: EPOCH, seq: 9 });
    fixture.on(CatchUpEvent::Looked { epoch: EPOCH, may_go_on: true });
    assert_eq!(fixture.on(CatchUpEvent::LetGo { epoch: EPOCH }), [CatchUpAction::DropFed]);
    assert!(fixture.machine.is_behind() && fixture.machine.group_behind(EPOCH).is_none());
}

#[test]
fn a_reader_begins_when_the_one_of_the_earlier_ownership_has_ended() {
    let mut fixture = Fixture::parked();
    assert_eq!(fixture.on(CatchUpEvent::Lost), [CatchUpAction::StopReader, CatchUpAction::DropLive]);
    let found = |epoch| CatchUpEvent::Found {
        owner: (Epoch(epoch), epoch),
        behind: RecordId::new(1, 4),
        last: 9,
        mark: 3,
    };
    assert!(!fixture.on(found(2)).contains(&CatchUpAction::StartReader { hold: 2 }));
    fixture.on(CatchUpEvent::Lost);
    assert!(!fixture.on(found(3)).contains(&CatchUpAction::StartReader { hold: 3 }));
    assert_eq!(fixture.on(CatchUpEvent::ReaderEnded), [CatchUpAction::StartReader { hold: 3 }]);
}

/// Otherwise the live events that are let go would be in no group.
#[test]
fn a_park_makes_the_group_again_after_a_removal_without_an_answer() {
    let mut fixture = Fixture::parked();
    assert!(fixture.look_at(27));
    fixture.close_at(27);
    assert_eq!(fixture.on(CatchUpEvent::Removed { epoch: EPOCH, is_gone: false }), []);
    assert_eq!(fixture.park(30), [CatchUpAction::MakeGroup { hold: 1, behind: None }]);
    let made = Some((RecordId::new(1, 27), 8));
    let actions = fixture.on(CatchUpEvent::GroupMade { epoch: EPOCH, made });
    assert!(actions.contains(&CatchUpAction::LeaveToReader { from: 28 }));
    assert!(!actions.contains(&CatchUpAction::StartReader { hold: 1 }), "the reader goes on");
}

#[test]
fn a_park_waits_while_the_reader_removes_the_group() {
    let mut fixture = Fixture::parked();
    assert!(fixture.look_at(27));
    fixture.close_at(27);
    assert!(fixture.machine.is_busy() && fixture.park(30).is_empty());
    fixture.on(CatchUpEvent::Removed { epoch: EPOCH, is_gone: true });
    assert_eq!(fixture.park(30), [CatchUpAction::MakeGroup { hold: 1, behind: None }]);
}
