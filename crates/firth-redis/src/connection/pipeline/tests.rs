//! Laws of the pairing of requests with replies.

use bytes::BytesMut;

use super::*;
use crate::resp::{Decoder, Limits};

fn frame(n: i64) -> Frame {
    let mut buf = BytesMut::from(format!(":{n}\r\n").as_bytes());
    Decoder::new(Limits::default()).decode(&mut buf).expect("valid").expect("whole")
}

fn ticket(replies: u32, start: u64, deadline: u64) -> Ticket {
    Ticket { replies, start, deadline, patient: false }
}

fn ints(outcome: Option<Outcome>) -> Vec<i64> {
    match outcome.expect("complete").expect("replies") {
        Replies::One(f) => vec![f.value().as_i64().expect("int")],
        Replies::Many(all) => all.iter().map(|f| f.value().as_i64().expect("int")).collect(),
    }
}

#[test]
fn replies_complete_their_requests_in_order() {
    let mut p = Pipeline::new();
    let a = p.push(ticket(1, 0, NEVER), Waker::noop().clone());
    let b = p.push(ticket(3, 10, NEVER), Waker::noop().clone());
    assert!(p.reply(frame(1)).expect("asked").is_some());
    for n in 2..4 {
        assert!(p.reply(frame(n)).expect("asked").is_none());
        assert!(p.poll(b, Waker::noop()).is_none());
    }
    assert!(p.reply(frame(4)).expect("asked").is_some());
    assert_eq!(ints(p.poll(b, Waker::noop())), [2, 3, 4]);
    assert_eq!(ints(p.poll(a, Waker::noop())), [1]);
    assert!(p.reply(frame(5)).is_err(), "nobody asked");
    assert!(p.slots.is_empty());
}

#[test]
fn a_late_reply_is_never_given_to_another_request() {
    let mut p = Pipeline::new();
    let late = p.push(ticket(1, 0, 100), Waker::noop().clone());
    let next = p.push(ticket(1, 5, 900), Waker::noop().clone());
    let mut wake = Vec::new();
    p.expire(99, 10, &mut wake);
    assert!(wake.is_empty());
    p.expire(100, 3, &mut wake);
    assert_eq!((wake.len(), p.earliest()), (1, 900));
    assert!(matches!(p.poll(late, Waker::noop()), Some(Err(Failure::Timeout { sent: true }))));
    assert!(p.reply(frame(1)).expect("its entry still stands").is_none());
    assert!(p.reply(frame(2)).expect("asked").is_some());
    assert_eq!(ints(p.poll(next, Waker::noop())), [2]);
    assert!(p.slots.is_empty() && p.is_empty());
}

#[test]
fn an_abandoned_request_neither_leaks_nor_shifts() {
    let mut p = Pipeline::new();
    let gone = p.push(ticket(2, 0, NEVER), Waker::noop().clone());
    let kept = p.push(ticket(1, 0, NEVER), Waker::noop().clone());
    assert!(p.reply(frame(1)).expect("asked").is_none());
    p.abandon(gone);
    assert!(p.reply(frame(2)).expect("asked").is_none());
    assert!(p.reply(frame(3)).expect("asked").is_some());
    assert_eq!(ints(p.poll(kept, Waker::noop())), [3]);
    let done = p.push(ticket(1, 0, NEVER), Waker::noop().clone());
    assert!(p.reply(frame(4)).expect("asked").is_some());
    p.abandon(done);
    assert!(p.slots.is_empty());
}

#[test]
fn a_failure_tells_which_requests_may_have_run() {
    let mut p = Pipeline::new();
    let a = p.push(ticket(1, 0, NEVER), Waker::noop().clone());
    let b = p.push(ticket(1, 20, NEVER), Waker::noop().clone());
    let c = p.push(ticket(1, 40, NEVER), Waker::noop().clone());
    p.abandon(b);
    let mut wake = Vec::new();
    p.fail_all(20, |sent| Failure::Lost { sent, cause: LostCause::Eof }, &mut wake);
    assert_eq!(wake.len(), 2);
    assert!(matches!(p.poll(a, Waker::noop()), Some(Err(Failure::Lost { sent: true, .. }))));
    assert!(matches!(p.poll(c, Waker::noop()), Some(Err(Failure::Lost { sent: false, .. }))));
    assert!(p.slots.is_empty() && p.is_empty());
}

#[test]
fn patience_is_counted_per_request() {
    let mut p = Pipeline::new();
    let slot = p.push(Ticket { patient: true, ..ticket(1, 0, NEVER) }, Waker::noop().clone());
    p.push_unheard(ticket(1, 0, NEVER));
    assert!(p.is_patient());
    assert!(p.reply(frame(1)).expect("asked").is_some());
    assert!(!p.is_patient());
    assert!(p.reply(frame(2)).expect("ours").is_none());
    assert_eq!(ints(p.poll(slot, Waker::noop())), [1]);
}
