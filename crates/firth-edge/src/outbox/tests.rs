//! The accounting balances and the bounds hold over all orders of pushes, takes and writes.

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

pub(super) fn queued_event(offset: u64, key: &str, names: &[&str]) -> QueuedEvent {
    let event = Event::new(Operation::Update, Tenant::new("t").unwrap(), "c", key);
    let at = Position::new(1, Offsets::single(offset));
    let frame = Arc::new(Frame::new(at, 0, Body::new(event).unwrap()));
    let marks = names.iter().map(|name| Mark { name: (*name).into(), leaves: false }).collect();
    QueuedEvent::new(Arc::new(EncodedEvent::new(frame, marks)))
}

fn push_all(outbox: &mut Outbox, count: u64, keys: u64, now: Instant) {
    for offset in 1..=count {
        outbox.push(queued_event(offset, &format!("k{}", offset % keys), &["a"]), now);
    }
}

fn shown(taken: &Taken) -> Vec<String> {
    let show = |item: &Item| match item {
        Item::Event(queued_event) => {
            format!("{}+{}", queued_event.encoded.frame.offset(), queued_event.replaced)
        }
        Item::Batch(batch) => {
            let offsets: Vec<_> = batch.events().iter().map(|one| one.frame.offset().to_string()).collect();
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
    let mut outbox = Outbox::new(room(SlowPolicy::Gap));
    let start = Instant::now();
    assert_eq!(outbox.push(queued_event(1, "k", &["a"]), start), Wake::Now);
    assert_eq!(outbox.push(queued_event(2, "k", &["a"]), start), Wake::No);
    assert_eq!(outbox.take(usize::MAX, start).items.len(), 2);
    assert_eq!(outbox.push(queued_event(3, "k", &["a"]), start + Duration::from_millis(3)), Wake::Later);
    assert_eq!(outbox.push(queued_event(4, "k", &["a"]), start + Duration::from_millis(4)), Wake::No);
    assert_eq!(outbox.take(usize::MAX, start + Duration::from_millis(10)).items.len(), 2);
    assert_eq!(outbox.push(queued_event(5, "k", &["a"]), start + Duration::from_millis(21)), Wake::Now);
}

#[test]
fn conflation_keeps_the_newest_of_each_document_and_says_how_many_it_stands_for() {
    let mut outbox = Outbox::new(room(SlowPolicy::Conflate));
    let now = Instant::now();
    push_all(&mut outbox, 9, 2, now);
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["7+3", "8+3", "9+0"]);
    assert_eq!((outbox.accounting().conflated, outbox.accounting().gap_marked), (6, 0));
}

#[test]
fn conflation_never_hides_an_event_from_a_subscription_that_the_newer_one_is_not_for() {
    let mut outbox = Outbox::new(room(SlowPolicy::Conflate));
    let now = Instant::now();
    outbox.push(queued_event(1, "k", &["a"]), now);
    outbox.push(queued_event(2, "k", &["a", "b"]), now);
    for offset in 3..=9 {
        outbox.push(queued_event(offset, "k", &["b"]), now);
    }
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["1+0", "2+0", "8+5", "9+0"]);
}

#[test]
fn when_conflation_does_not_help_a_gap_says_so() {
    let mut outbox = Outbox::new(room(SlowPolicy::Conflate));
    let now = Instant::now();
    push_all(&mut outbox, 9, 100, now);
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["gap 0..8 of 8", "9+0"]);
}

#[test]
fn a_gap_stands_where_the_first_missing_event_was_and_answers_keep_their_place() {
    let mut outbox = Outbox::new(room(SlowPolicy::Gap));
    let now = Instant::now();
    outbox.say("first".into());
    push_all(&mut outbox, 4, 100, now);
    outbox.say("second".into());
    for offset in 5..=18 {
        outbox.push(queued_event(offset, "k", &["a"]), now);
    }
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["first", "gap 0..16 of 16", "second", "17+0", "18+0"]);
    assert!(outbox.accounting().balance());
}

#[test]
fn a_cut_connection_says_why_and_takes_nothing_more() {
    let mut outbox = Outbox::new(room(SlowPolicy::Cut));
    let now = Instant::now();
    push_all(&mut outbox, 12, 100, now);
    let taken = outbox.take(usize::MAX, now);
    assert!(taken.items.is_empty());
    assert_eq!(taken.close_reason.unwrap().code, TRY_LATER);
    assert_eq!(outbox.accounting(), Accounting { taken: 9, left_behind: 9, ..Accounting::default() });
}

#[test]
fn events_that_come_together_do_not_make_a_client_slow_that_had_none_waiting() {
    let mut outbox = Outbox::new(room(SlowPolicy::Gap));
    let now = Instant::now();
    let batch = |first: u64| {
        Arc::new(FrameBatch::new(
            (first..first + 12).map(|at| queued_event(at, "k", &["a"]).encoded).collect(),
        ))
    };
    assert_eq!(outbox.push_batch(&batch(1), now), Wake::Now);
    assert_eq!(shown(&outbox.take(usize::MAX, now)), ["run 1 2 3 4 5 6 7 8 9 10 11 12"]);
    assert_eq!(outbox.push_batch(&batch(13), now), Wake::Now, "too much waits for the tick");
    outbox.push_batch(&batch(25), now);
    let taken = shown(&outbox.take(usize::MAX, now));
    assert!(taken[0].starts_with("gap 12.."), "it did not read in between: {taken:?}");
    assert!(outbox.accounting().balance());
}

#[test]
fn whoever_lets_answers_pile_up_is_cut() {
    let mut outbox = Outbox::new(room(SlowPolicy::Gap));
    let now = Instant::now();
    for _ in 0..100 {
        outbox.say("x".repeat(100).into());
        assert!(outbox.said <= 4 << 10);
    }
    assert!(outbox.take(usize::MAX, now).close_reason.is_some());
}

#[test]
fn of_a_room_only_the_newest_state_waits() {
    let mut outbox = Outbox::new(room(SlowPolicy::Gap));
    let now = Instant::now();
    let name: Arc<str> = "n".into();
    outbox.presence(&name, "old".into());
    outbox.presence(&name, "new".into());
    assert_eq!(outbox.take(usize::MAX, now).presence, [(name, "new".into())]);
}

/// A socket with room for this many bytes.
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

fn follow(batch: &FrameBatch, covered: &mut u64) -> Result<(), TestCaseError> {
    for encoded in batch.events() {
        prop_assert!(encoded.frame.offset() > *covered, "order");
        *covered = encoded.frame.offset();
    }
    Ok(())
}

#[derive(Clone, Debug)]
enum Act {
    Push(u8, u8),
    /// Events with these keys together.
    Together(Vec<u8>),
    /// A line that takes this many bytes.
    Room(usize),
    Take(usize),
    Written,
    Say,
    Replayed(u64),
    Close,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0_u8..6, 0_u8..3).prop_map(|(key, names)| Act::Push(key, names)),
        3 => proptest::collection::vec(0_u8..6, 1..10).prop_map(Act::Together),
        2 => (0_usize..3000).prop_map(Act::Room),
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
        let mut outbox = Outbox::new(room(policy));
        let now = Instant::now();
        let mut offset = 0;
        let mut in_write = 0;
        let mut covered = 0_u64;
        let mut told = 0_u64;
        for act in acts {
            match act {
                Act::Push(key, names) => {
                    offset += 1;
                    let names: &[&str] = match names { 0 => &["a"], 1 => &["b"], _ => &["a", "b"] };
                    outbox.push(queued_event(offset, &key.to_string(), names), now);
                }
                Act::Together(keys) => {
                    let encoded = |(key, at): (u8, u64)| queued_event(at, &key.to_string(), &["a"]).encoded;
                    let until = offset + keys.len() as u64;
                    let batch = FrameBatch::new(keys.into_iter().zip(offset + 1..).map(encoded).collect());
                    offset = until;
                    outbox.push_batch(&Arc::new(batch), now);
                }
                Act::Room(room) => {
                    let front: Vec<Arc<FrameBatch>> = outbox.items.iter().map_while(|item| match item { Item::Batch(batch) => Some(batch.clone()), _ => None }).collect();
                    let waits = outbox.items.len();
                    outbox.write_direct(now, pipe(&Cell::new(room), &RefCell::default()));
                    for batch in &front[..waits - outbox.items.len()] {
                        follow(batch, &mut covered)?;
                    }
                }
                Act::Take(bytes) => {
                    let taken = outbox.take(bytes, now);
                    in_write += taken.partial.map_or(0, |partial| partial.batch.events().len() as u64);
                    for item in taken.items {
                        match item {
                            Item::Event(queued_event) => {
                                in_write += 1;
                                told += u64::from(queued_event.replaced);
                                prop_assert!(queued_event.encoded.frame.offset() > covered, "order");
                                covered = queued_event.encoded.frame.offset();
                            }
                            Item::Batch(batch) => {
                                in_write += batch.events().len() as u64;
                                follow(&batch, &mut covered)?;
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
                Act::Close => { outbox.end(CloseReason { code: 1012, reason: "x", retry: None }); }
            }
            prop_assert!(outbox.accounting().balance(), "{:?}", outbox.accounting());
            let largest = outbox.items.iter().map(|item| match item { Item::Batch(batch) => batch.events().len(), _ => 1 }).max();
            prop_assert!(outbox.events <= 8.max(largest.unwrap_or(0)) && outbox.said <= 4 << 10);
            let count = |item: &Item| match item {
                Item::Event(queued_event) => (1, cost(queued_event)),
                Item::Batch(batch) => (batch.events().len(), batch.cost),
                _ => (0, 0),
            };
            let queued = outbox.items.iter().map(count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            prop_assert_eq!(queued, (outbox.events, outbox.bytes));
        }
        for item in outbox.take(usize::MAX, now).items {
            match item {
                Item::Event(queued_event) => told += u64::from(queued_event.replaced),
                Item::Gap(gap) => told += gap.events,
                Item::Text(_) | Item::Replay(_) | Item::Batch(_) => {}
            }
        }
        let accounting = outbox.accounting();
        prop_assert!(outbox.is_cut() || told == accounting.conflated + accounting.gap_marked, "everything left out was told: {told} of {accounting:?}");
        prop_assert!(outbox.close().balance());
    }
}

#[test]
fn what_waits_is_small() {
    assert!(size_of::<Item>() <= 32, "{}", size_of::<Item>());
}
