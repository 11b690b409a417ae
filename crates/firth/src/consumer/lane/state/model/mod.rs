//! Random events against a naive model of the engine, the ready queue and the handlers.
//!
//! After each step the model checks: a record is in one place, keys stay in order, memory and
//! records in flight are bounded, every verdict is stored or given back, and no record is handed
//! out twice at once.

mod engine;
mod world;

use super::{LaneAction, LaneEvent, LaneState};
use crate::consumer::config::ConsumerConfig;
use crate::consumer::lane::requests::OpenedGroup;
use firth_engine::facet::{Due, Promoted};
use firth_engine::{Progress, RecordId};
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
