//! Random events against a naive model of the engine, the ready queue and the handlers.
//!
//! After each step the model checks: a record is in one place, keys stay in order, memory and
//! records in flight are bounded, every verdict is stored or given back, and no record is handed
//! out twice at once.

mod engine;
mod world;

use super::{Inputs, LaneAction, LaneEvent, LaneState, Next};
use crate::consumer::config::ConsumerConfig;
use crate::consumer::delivery::{DeliveryEvent, HandlerVerdict};
use crate::consumer::lane::requests::OpenedGroup;
use firth_engine::facet::{Due, DueRecord, Promoted};
use firth_engine::{Content, Progress, Record, RecordId};
use std::time::Duration;
use tokio::time::Instant;
use world::{INPUTS, Seen, World, rules};

const SEEDS: u64 = 150;
const STEPS: usize = 400;

#[test]
fn a_lane_keeps_its_promises_under_random_events() {
    let mut stories = Vec::new();
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.random_step();
            if world.end.is_some() {
                break;
            }
        }
        stories.push(world.finish());
    }
    let sum = |count: fn(&Seen) -> usize| stories.iter().map(count).sum::<usize>();
    let counts = [
        sum(|seen| seen.handed_out),
        sum(|seen| seen.reopened),
        sum(|seen| seen.returned),
        sum(|seen| seen.held_back),
        sum(|seen| seen.isolated),
        sum(|seen| seen.preset),
        sum(|seen| seen.retried),
        sum(|seen| seen.dead),
        sum(|seen| seen.stopped),
        sum(|seen| seen.lost),
    ];
    assert!(counts.iter().all(|count| *count > 10), "the events were too tame: {counts:?}");
}

/// A look takes the only place of a lane that hands out one record at a time. With an engine that
/// answers slower than hints come, the next look was always due when the last one ended.
#[test]
fn an_isolated_lane_reads_its_log_although_looks_are_slow_and_hints_many() {
    let mut now = Instant::now();
    let mut state = LaneState::new(rules(ConsumerConfig::default()), INPUTS, now, 7);
    let mut actions = Vec::new();
    let progress = Progress { crashes: 1, reach: Some(5), last: RecordId::new(7, 5), ..Progress::default() };
    state.turn(now, INPUTS, &mut actions);
    let none = Due { records: Vec::new(), lost: 0, next: None };
    for event in [
        LaneEvent::Opened(Ok(OpenedGroup { progress, ..OpenedGroup::default() })),
        LaneEvent::Read(Ok(Some(Vec::new()))),
        LaneEvent::Promoted(Ok(Promoted { moved: 0, next: None })),
    ] {
        state.handle(now, event, &mut actions);
        state.turn(now, INPUTS, &mut actions);
    }
    actions.clear();
    for _ in 0..5 {
        state.handle(now, LaneEvent::Hint, &mut actions);
        now += Duration::from_millis(60);
        if actions.iter().any(|action| matches!(action, LaneAction::TakeDue { .. })) {
            state.handle(now, LaneEvent::Due(Ok(none.clone())), &mut actions);
        }
        state.turn(now, INPUTS, &mut actions);
    }
    assert!(actions.iter().any(|action| matches!(action, LaneAction::TakeDue { .. })));
    assert!(actions.iter().any(|action| matches!(action, LaneAction::Read { .. })), "the log starves");
}

/// A look costs much the same however many records it brings. A lane that has other work waits for
/// room for many, but only a moment: its handlers may be slow.
#[test]
fn a_busy_lane_takes_due_records_by_the_half_or_after_a_moment() {
    let mut now = Instant::now();
    let inputs = Inputs { chunk: 260, at_once: 260, ..INPUTS };
    let mut state = LaneState::new(rules(ConsumerConfig::default()), inputs, now, 7);
    let mut step = |now, event: Option<LaneEvent>| {
        let mut actions = Vec::new();
        event.into_iter().for_each(|event| state.handle(now, event, &mut actions));
        while matches!(state.turn(now, inputs, &mut actions), Next::Yield) {}
        actions
    };
    let look = |actions: Vec<LaneAction>| {
        actions.into_iter().find_map(|action| match action {
            LaneAction::TakeDue { max, .. } => Some(max),
            _ => None,
        })
    };
    let id = |seq| RecordId::new(7, seq);
    let content = || Content::new("x");
    let due = |seqs: std::ops::Range<u64>| {
        let record = |seq| DueRecord { id: id(seq), attempt: 2, crashes: 0, content: Some(content()) };
        let records = seqs.map(record).collect();
        Some(LaneEvent::Due(Ok(Due { records, lost: 0, next: Some(Duration::ZERO) })))
    };

    step(now, None);
    let progress = Progress {
        frontier: id(300),
        last: id(900),
        reach: Some(900),
        due: 300,
        next_due: Some(Duration::ZERO),
        ..Progress::default()
    };
    let opened = OpenedGroup { progress, ..OpenedGroup::default() };
    assert_eq!(look(step(now, Some(LaneEvent::Opened(Ok(opened))))), Some(125), "an idle lane looks at once");
    let log = |seq| Record { id: id(seq), attempt: 1, crashes: 0, content: content() };
    let read = step(now, Some(LaneEvent::Read(Ok(Some((301..=600).map(log).collect())))));
    let handed = read.into_iter().find_map(|action| match action {
        LaneAction::HandOut(records) => Some(records),
        _ => None,
    });
    assert_eq!(look(step(now, due(1..126))), None, "there is room for 75");
    let promoted = LaneEvent::Promoted(Ok(Promoted { moved: 0, next: None }));
    assert_eq!(look(step(now, Some(promoted))), None);
    now += Duration::from_millis(19);
    assert_eq!(look(step(now, None)), None);
    now += Duration::from_millis(1);
    assert_eq!(look(step(now, None)), Some(75), "this was long enough");
    assert_eq!(look(step(now, due(126..201))), None, "there is no room");
    let handled = handed.unwrap().into_iter().map(|record| (record, HandlerVerdict::Ack)).collect();
    let handled = LaneEvent::Delivery(DeliveryEvent::Handled(handled));
    assert_eq!(look(step(now, Some(handled))), Some(125), "half of the room is free");
}
