//! The books balance and the bounds hold, whatever is pushed, taken and written.

use super::*;
use crate::frame::Body;
use crate::position::Offsets;
use firth_router::Tenant;
use firth_router::event::{Event, Operation};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};

fn room(policy: SlowPolicy) -> Room {
    Room { events: 8, bytes: 4 << 10, tick: Duration::from_millis(10), policy }
}

pub(super) fn parcel(offset: u64, key: &str, names: &[&str]) -> Parcel {
    let event = Event::new(Operation::Update, Tenant::new("t").unwrap(), "c", key);
    let at = Position::new(1, Offsets::single(offset));
    let frame = Arc::new(Frame::new(at, 0, Body::new(event).unwrap()));
    let marks = names.iter().map(|name| Mark { name: (*name).into(), leaves: false }).collect();
    Parcel::new(Arc::new(Shipment::new(frame, marks)))
}

fn push_all(outbox: &mut Outbox, count: u64, keys: u64, now: Instant) {
    for offset in 1..=count {
        outbox.push(parcel(offset, &format!("k{}", offset % keys), &["a"]), now);
    }
}

fn shown(taken: &Taken) -> Vec<String> {
    let show = |item: &Item| match item {
        Item::Event(parcel) => format!("{}+{}", parcel.shipment.frame.offset(), parcel.replaced),
        Item::Run(run) => {
            let offsets: Vec<_> = run.shipments().iter().map(|one| one.frame.offset().to_string()).collect();
            format!("run {}", offsets.join(" "))
        }
        Item::Gap(gap) => {
            format!("gap {}..{} of {}", gap.after.offsets.get(0), gap.until.offsets.get(0), gap.events)
        }
        Item::Text(said) => said.text.to_string(),
        Item::Replay(_) => "replay".to_owned(),
    };
    taken.items.iter().map(show).collect()
}

#[test]
fn an_idle_connection_is_written_to_at_once_and_a_busy_one_once_per_tick() {
    let (mut outbox, start) = (Outbox::new(room(SlowPolicy::Gap)), Instant::now());
    assert_eq!(outbox.push(parcel(1, "k", &["a"]), start), Wake::Now);
    assert_eq!(outbox.push(parcel(2, "k", &["a"]), start), Wake::No);
    assert_eq!(outbox.take(usize::MAX, start).items.len(), 2);
    assert_eq!(outbox.push(parcel(3, "k", &["a"]), start + Duration::from_millis(3)), Wake::Later);
    assert_eq!(outbox.push(parcel(4, "k", &["a"]), start + Duration::from_millis(4)), Wake::No);
    assert_eq!(outbox.take(usize::MAX, start + Duration::from_millis(10)).items.len(), 2);
    assert_eq!(outbox.push(parcel(5, "k", &["a"]), start + Duration::from_millis(21)), Wake::Now);
}

#[test]
fn conflation_keeps_the_newest_of_each_document_and_says_how_many_it_stands_for() {
    let (mut outbox, now) = (Outbox::new(room(SlowPolicy::Conflate)), Instant::now());
    push_all(&mut outbox, 9, 2, now);
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["7+3", "8+3", "9+0"]);
    assert_eq!((outbox.books().conflated, outbox.books().gap_marked), (6, 0));
}

#[test]
fn conflation_never_hides_an_event_from_a_subscription_that_the_newer_one_is_not_for() {
    let (mut outbox, now) = (Outbox::new(room(SlowPolicy::Conflate)), Instant::now());
    outbox.push(parcel(1, "k", &["a"]), now);
    outbox.push(parcel(2, "k", &["a", "b"]), now);
    for offset in 3..=9 {
        outbox.push(parcel(offset, "k", &["b"]), now);
    }
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["1+0", "2+0", "8+5", "9+0"]);
}

#[test]
fn when_conflation_does_not_help_a_gap_says_so() {
    let (mut outbox, now) = (Outbox::new(room(SlowPolicy::Conflate)), Instant::now());
    push_all(&mut outbox, 9, 100, now);
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["gap 0..8 of 8", "9+0"]);
}

#[test]
fn a_gap_stands_where_the_first_missing_event_was_and_answers_keep_their_place() {
    let (mut outbox, now) = (Outbox::new(room(SlowPolicy::Gap)), Instant::now());
    outbox.say("first".into());
    push_all(&mut outbox, 4, 100, now);
    outbox.say("second".into());
    for offset in 5..=18 {
        outbox.push(parcel(offset, "k", &["a"]), now);
    }
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["first", "gap 0..16 of 16", "second", "17+0", "18+0"]);
    assert!(outbox.books().balance());
}

#[test]
fn a_cut_connection_says_why_and_takes_nothing_more() {
    let (mut outbox, now) = (Outbox::new(room(SlowPolicy::Cut)), Instant::now());
    push_all(&mut outbox, 12, 100, now);
    let taken = outbox.take(usize::MAX, now);
    assert!(taken.items.is_empty());
    assert_eq!(taken.farewell.unwrap().code, TRY_LATER);
    assert_eq!(outbox.books(), Books { taken: 9, left_behind: 9, ..Books::default() });
}

#[test]
fn events_that_come_together_do_not_make_a_client_slow_that_had_none_waiting() {
    let (mut outbox, now) = (Outbox::new(room(SlowPolicy::Gap)), Instant::now());
    let run = |first: u64| {
        Arc::new(Run::new((first..first + 12).map(|at| parcel(at, "k", &["a"]).shipment).collect()))
    };
    assert_eq!(outbox.push_run(&run(1), now), Wake::Now);
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["run 1 2 3 4 5 6 7 8 9 10 11 12"]);
    assert_eq!(outbox.push_run(&run(13), now), Wake::Now, "too much waits for the tick");
    outbox.push_run(&run(25), now);
    let taken = shown(&outbox.take(usize::MAX, now));
    assert!(taken[0].starts_with("gap 12.."), "it did not read in between: {taken:?}");
    assert!(outbox.books().balance());
}

#[test]
fn whoever_lets_answers_pile_up_is_cut() {
    let (mut outbox, now) = (Outbox::new(room(SlowPolicy::Gap)), Instant::now());
    for _ in 0..100 {
        outbox.say("x".repeat(100).into());
        assert!(outbox.said <= 4 << 10);
    }
    assert!(outbox.take(usize::MAX, now).farewell.is_some());
}

#[test]
fn of_a_room_only_the_newest_state_waits() {
    let (mut outbox, now) = (Outbox::new(room(SlowPolicy::Gap)), Instant::now());
    let name: Arc<str> = "n".into();
    outbox.presence(&name, "old".into());
    outbox.presence(&name, "new".into());
    assert_eq!(outbox.take(usize::MAX, now).presence, [(name, "new".into())]);
}

/// A socket with room for so many bytes.
pub(super) fn pipe<'a>(
    room: &'a Cell<usize>,
    bytes: &'a RefCell<Vec<u8>>,
) -> impl Fn(&[IoSlice<'_>]) -> io::Result<usize> + 'a {
    move |pieces| {
        let all = pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>();
        let written = all.len().min(room.replace(room.get().saturating_sub(all.len())));
        bytes.borrow_mut().extend_from_slice(&all[..written]);
        if written == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(written) }
    }
}

fn follow(run: &Run, covered: &mut u64) -> Result<(), TestCaseError> {
    for shipment in run.shipments() {
        prop_assert!(shipment.frame.offset() > *covered, "order");
        *covered = shipment.frame.offset();
    }
    Ok(())
}

#[derive(Clone, Debug)]
enum Act {
    Push(u8, u8),
    /// Events with these keys together.
    PushRun(Vec<u8>),
    /// A line that takes so many bytes.
    Pass(usize),
    Take(usize),
    Written,
    Say,
    Replayed(u64),
    Close,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0_u8..6, 0_u8..3).prop_map(|(key, names)| Act::Push(key, names)),
        3 => proptest::collection::vec(0_u8..6, 1..10).prop_map(Act::PushRun),
        2 => (0_usize..3000).prop_map(Act::Pass),
        2 => (1_usize..3000).prop_map(Act::Take),
        2 => Just(Act::Written),
        1 => Just(Act::Say),
        1 => (0_u64..3).prop_map(Act::Replayed),
        1 => Just(Act::Close),
    ]
}

proptest! {
    #[test]
    fn the_books_balance_and_the_bounds_hold_after_every_step(
        acts in proptest::collection::vec(act(), 1..120),
        policy in prop_oneof![Just(SlowPolicy::Conflate), Just(SlowPolicy::Gap), Just(SlowPolicy::Cut)],
    ) {
        let (mut outbox, now) = (Outbox::new(room(policy)), Instant::now());
        let (mut offset, mut in_write, mut covered, mut told) = (0, 0, 0_u64, 0_u64);
        for act in acts {
            match act {
                Act::Push(key, names) => {
                    offset += 1;
                    let names: &[&str] = match names { 0 => &["a"], 1 => &["b"], _ => &["a", "b"] };
                    outbox.push(parcel(offset, &key.to_string(), names), now);
                }
                Act::PushRun(keys) => {
                    let shipment = |(key, at): (u8, u64)| parcel(at, &key.to_string(), &["a"]).shipment;
                    let until = offset + keys.len() as u64;
                    let run = Run::new(keys.into_iter().zip(offset + 1..).map(shipment).collect());
                    offset = until;
                    outbox.push_run(&Arc::new(run), now);
                }
                Act::Pass(room) => {
                    let front: Vec<Arc<Run>> = outbox.items.iter().map_while(|item| match item { Item::Run(run) => Some(run.clone()), _ => None }).collect();
                    let waits = outbox.items.len();
                    outbox.pass(now, pipe(&Cell::new(room), &RefCell::default()));
                    for run in &front[..waits - outbox.items.len()] {
                        follow(run, &mut covered)?;
                    }
                }
                Act::Take(bytes) => {
                    let taken = outbox.take(bytes, now);
                    in_write += taken.begun.map_or(0, |begun| begun.run.shipments().len() as u64);
                    for item in taken.items {
                        match item {
                            Item::Event(parcel) => {
                                in_write += 1;
                                told += u64::from(parcel.replaced);
                                prop_assert!(parcel.shipment.frame.offset() > covered, "order");
                                covered = parcel.shipment.frame.offset();
                            }
                            Item::Run(run) => {
                                in_write += run.shipments().len() as u64;
                                follow(&run, &mut covered)?;
                            }
                            Item::Gap(gap) => {
                                prop_assert!(gap.until.offsets.get(0) > covered && gap.after.offsets.get(0) < gap.until.offsets.get(0));
                                covered = gap.until.offsets.get(0);
                                told += gap.events;
                            }
                            Item::Text(_) | Item::Replay(_) => {}
                        }
                    }
                }
                Act::Written => {
                    outbox.sent(std::mem::take(&mut in_write));
                    outbox.let_go();
                }
                Act::Say => { outbox.say("hello".into()); }
                Act::Replayed(events) if !outbox.is_cut() => { outbox.replayed(events); in_write += events; }
                Act::Replayed(_) => {}
                Act::Close => { outbox.end(Farewell { code: 1012, reason: "x", retry: None }); }
            }
            prop_assert!(outbox.books().balance(), "{:?}", outbox.books());
            let largest = outbox.items.iter().map(|item| match item { Item::Run(run) => run.shipments().len(), _ => 1 }).max();
            prop_assert!(outbox.events <= 8.max(largest.unwrap_or(0)) && outbox.said <= 4 << 10);
            let count = |item: &Item| match item {
                Item::Event(parcel) => (1, cost(parcel)),
                Item::Run(run) => (run.shipments().len(), run.cost),
                _ => (0, 0),
            };
            let queued = outbox.items.iter().map(count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            prop_assert_eq!(queued, (outbox.events, outbox.bytes));
        }
        for item in outbox.take(usize::MAX, now).items {
            match item {
                Item::Event(parcel) => told += u64::from(parcel.replaced),
                Item::Gap(gap) => told += gap.events,
                Item::Text(_) | Item::Replay(_) | Item::Run(_) => {}
            }
        }
        let books = outbox.books();
        prop_assert!(outbox.is_cut() || told == books.conflated + books.gap_marked, "everything left out was told: {told} of {books:?}");
        prop_assert!(outbox.close().balance());
    }
}

#[test]
fn what_waits_is_small() {
    assert!(size_of::<Item>() <= 32, "{}", size_of::<Item>());
}
