//! What a hub remembers of a topic, piece by piece: which positions it may serve, and which not.

use super::*;
use crate::Config;
use firth_router::event::{Event, Operation};
use std::time::Duration;

const TIME: u64 = 1_000_000;

/// A record that was appended this many seconds after the first.
fn record(seq: u64, seconds: u64) -> RecordId {
    RecordId::new(TIME + 1000 * seconds, seq)
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

/// A core that follows a topic of two partitions.
fn following(config: Config) -> Core {
    let mut core = Core::new(config);
    core.follow(7, 2);
    core
}

/// A record with an event of the tenant.
fn publish(core: &mut Core, name: &str, partition: u32, id: RecordId, now: Instant) {
    assert!(core.arrive(partition, id));
    if core.keeps(&tenant(name), now) {
        let event = Event::new(Operation::Insert, tenant(name), "c", "k");
        core.publish(crate::frame::Body::new(event).unwrap(), Some(partition), now).unwrap();
    }
}

fn at(text: &str) -> Position {
    format!("{:016x}:{text}", 7).parse().unwrap()
}

/// The offsets of the events behind a position, in partition 0.
fn behind(core: &Core, name: &str, text: &str) -> Result<Vec<u64>, Missing> {
    let frames = core.history(&tenant(name), &at(text))?;
    Ok(frames.iter().map(|frame| frame.at.offsets.get(0)).collect())
}

#[test]
fn the_record_before_the_first_that_was_read_is_a_place_to_go_on_from() {
    let mut core = following(Config::default());
    publish(&mut core, "t", 0, record(5, 5), Instant::now());
    core.begin(1, record(0, 0));
    assert_eq!(behind(&core, "t", "4.0"), Ok(vec![5]));
    assert_eq!(behind(&core, "t", "3.0"), Err(Missing::TooOld), "record 4 was never read");
    assert_eq!(behind(&core, "t", "5.0"), Ok(vec![]));
    core.begin(0, record(5, 5));
    assert_eq!(behind(&core, "t", "4.0"), Ok(vec![5]), "what was read stays known");
}

#[test]
fn a_partition_that_was_not_read_holds_up_no_other_for_ever() {
    let mut core = following(Config::default());
    publish(&mut core, "t", 0, record(1, 1), Instant::now());
    assert_eq!(behind(&core, "t", "0.0"), Err(Missing::TooOld), "partition 1 may hold more");
    core.begin(1, record(9, 9));
    assert_eq!(behind(&core, "t", "0.9"), Ok(vec![1]));
    assert_eq!(core.head_of(&tenant("t")), at("1.9.01009000-8000-0"));
}

#[test]
fn a_trim_in_front_of_the_first_record_is_where_the_hub_begins() {
    let mut core = following(Config::default());
    core.lose(0, record(10, 10));
    core.begin(1, record(0, 0));
    assert_eq!(core.head_of(&tenant("t")).offsets.get(0), 9);
    assert!(core.source.as_ref().unwrap().has_seen(&at("9.0").offsets));
    assert!(!core.source.as_ref().unwrap().has_seen(&at("8.0").offsets));
}

#[test]
fn k04_a_log_may_lose_the_newest_record_alone() {
    let now = Instant::now();
    let mut core = following(Config::default());
    core.begin(1, record(0, 0));
    for seq in 1..=3 {
        publish(&mut core, "t", 0, record(seq, seq), now);
    }
    core.lose(0, record(3, 50));
    assert!(core.arrive(0, record(3, 50)), "its number was given again");
    assert!(core.source.as_ref().unwrap().went_back(&at("3.0.01003000").offsets));
    assert!(!core.source.as_ref().unwrap().went_back(&at("2.0.01002000").offsets));
}

#[test]
fn k04_a_log_that_went_back_behind_the_first_record_begins_there() {
    let mut core = following(Config::default());
    core.begin(1, record(0, 0));
    publish(&mut core, "t", 0, record(5, 5), Instant::now());
    core.lose(0, record(3, 50));
    assert!(core.source.as_ref().unwrap().has_seen(&at("2.0").offsets));
    let source = core.source.as_mut().unwrap();
    assert!(source.times(0).is_empty(), "nothing is known of the records that are lost");
}

#[test]
fn k04_a_position_without_a_time_is_not_suspected() {
    let mut core = following(Config::default());
    core.begin(1, record(0, 0));
    (1..=3).for_each(|seq| assert!(core.arrive(0, record(seq, 10 * seq))));
    let source = core.source.as_ref().unwrap();
    assert!(!source.went_back(&at("3.0").offsets), "an older build gave it");
    assert!(source.went_back(&at("3.0.01001000").offsets), "record 3 came later");
    assert!(!source.went_back(&at("3.0.01030000").offsets));
    assert!(!source.went_back(&at("0.0.01001000").offsets));
}

#[test]
fn records_of_one_moment_are_noted_once_and_moments_are_bounded() {
    let mut core = following(Config::default());
    let moments = |core: &mut Core| core.source.as_mut().unwrap().times(0).len();
    (1..=100).for_each(|seq| assert!(core.arrive(0, RecordId::new(TIME, seq))));
    assert_eq!(moments(&mut core), 1);
    (101..=100 + 2 * MOMENTS as u64).for_each(|seq| assert!(core.arrive(0, record(seq, seq))));
    assert_eq!(moments(&mut core), MOMENTS);
}

#[test]
fn t03_a_tenant_that_comes_after_a_gap_starts_anew() {
    let mut core = following(Config::default());
    core.begin(1, record(0, 0));
    (1..=5).for_each(|seq| assert!(core.arrive(0, record(seq, seq))));
    core.source_gap();
    assert!(core.keeps(&tenant("late"), Instant::now()));
    assert_eq!(behind(&core, "late", "3.0"), Err(Missing::TooOld));
    assert_eq!(behind(&core, "late", "5.0"), Ok(vec![]));
}

/// Half of the room is for tenants with clients here; what others had is not known any more.
#[test]
fn t03_a_tenant_whose_events_found_no_room_starts_anew() {
    let mut config = Config::default();
    config.window.total_bytes = 2;
    let now = Instant::now();
    let mut core = following(config);
    core.begin(1, record(0, 0));
    core.journal_bytes = 1;
    publish(&mut core, "away", 0, record(1, 1), now);
    assert_eq!(core.tenants.len(), 0);
    core.journal_bytes = 0;
    assert!(core.keeps(&tenant("away"), now));
    assert_eq!(behind(&core, "away", "0.0"), Err(Missing::TooOld));
    assert_eq!(behind(&core, "away", "1.0"), Ok(vec![]));
}

#[test]
fn a_tenant_is_kept_while_its_clients_may_come_back_or_events_wait_for_them() {
    let window = Config::default().window;
    let start = Instant::now();
    let mut core = following(Config::default());
    assert!(core.keeps(&tenant("quiet"), start));
    publish(&mut core, "busy", 0, record(1, 1), start + window.age);
    let names = |core: &Core| {
        let mut names: Vec<_> = core.tenants.keys().map(|tenant| tenant.as_str().to_owned()).collect();
        names.sort_unstable();
        names
    };
    core.forget_tenants(start + window.age);
    assert_eq!(names(&core), ["busy", "quiet"]);
    assert!(core.journal_bytes > 0);
    core.forget_tenants(start + window.age + Duration::from_millis(1));
    assert_eq!(names(&core), ["busy"]);
    core.tenants.get_mut(&tenant("busy")).unwrap().left_at = start;
    core.forget_tenants(start + 2 * window.age);
    assert_eq!(names(&core), ["busy"], "its event is young");
    core.forget_tenants(start + 2 * window.age + Duration::from_millis(1));
    assert_eq!(core.tenants.len(), 0);
    assert_eq!(core.journal_bytes, 0);
}

/// Events of before had numbers of their own.
#[test]
fn positions_and_events_of_before_do_not_hold_once_a_hub_follows_a_topic() {
    let now = Instant::now();
    let mut core = Core::new(Config::default());
    core.tenants.insert(tenant("t"), Part::new(core.fresh_journal(), now));
    let event = Event::new(Operation::Insert, tenant("t"), "c", "k");
    core.publish(crate::frame::Body::new(event).unwrap(), None, now).unwrap();
    assert!(core.journal_bytes > 0);
    let before = core.head_of(&tenant("t"));
    core.follow(7, 1);
    assert_eq!(core.journal_bytes, 0);
    core.begin(0, record(0, 0));
    publish(&mut core, "t", 0, record(1, 1), now);
    assert_eq!(core.history(&tenant("t"), &before).err(), Some(Missing::UnknownEpoch));
    assert_eq!(behind(&core, "t", "0"), Ok(vec![1]));
}

#[test]
fn only_a_position_of_this_topic_is_waited_for() {
    let mut core = following(Config::default());
    assert!(core.arrive(0, record(3, 3)));
    assert!(core.is_behind(&at("4.0")));
    assert!(!core.is_behind(&at("3.0")));
    assert!(!core.is_behind(&Position::new(8, at("4.0").offsets)));
}
