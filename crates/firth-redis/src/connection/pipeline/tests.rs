//! Laws of the pairing of requests with replies.

use super::*;
use crate::resp::{Decoder, ReplyLimits};
use bytes::BytesMut;

pub(super) fn frame(n: i64) -> Frame {
    let mut buf = BytesMut::from(format!(":{n}\r\n").as_bytes());
    Decoder::new(ReplyLimits::default()).decode(&mut buf).expect("valid").expect("whole")
}

fn meta(replies: u32, start: u64, deadline: u64) -> RequestMeta {
    RequestMeta { replies, start, deadline, blocking: false, long: false }
}

fn ints(outcome: Option<RequestOutcome>) -> Vec<i64> {
    match outcome.expect("complete").expect("replies") {
        Replies::One(f) => vec![f.value().as_i64().expect("int")],
        Replies::Many(all) => all.iter().map(|f| f.value().as_i64().expect("int")).collect(),
    }
}

#[test]
fn replies_complete_their_requests_in_order() {
    let mut p = Pipeline::new();
    let a = p.push(meta(1, 0, NEVER), Waker::noop().clone());
    let b = p.push(meta(3, 10, NEVER), Waker::noop().clone());
    assert!(p.reply(frame(1), 100).expect("asked").is_some());
    for n in 2..4 {
        assert!(p.reply(frame(n), 100).expect("asked").is_none());
        assert!(p.poll(b, Waker::noop()).is_none());
    }
    assert!(p.reply(frame(4), 100).expect("asked").is_some());
    assert_eq!(ints(p.poll(b, Waker::noop())), [2, 3, 4]);
    assert_eq!(ints(p.poll(a, Waker::noop())), [1]);
    assert!(p.reply(frame(5), 100).is_err(), "nobody asked");
    assert!(p.slots.is_empty());
}

#[test]
fn a_late_reply_is_never_given_to_another_request() {
    let mut p = Pipeline::new();
    let late = p.push(meta(1, 0, 100), Waker::noop().clone());
    let next = p.push(meta(1, 5, 900), Waker::noop().clone());
    let mut wake = Vec::new();
    p.expire(99, 10, &mut wake);
    assert!(wake.is_empty());
    p.expire(100, 10, &mut wake);
    assert_eq!((wake.len(), p.earliest()), (1, 900));
    assert!(matches!(p.poll(late, Waker::noop()), Some(Err(RequestFailure::Timeout { sent: true }))));
    assert!(p.reply(frame(1), 100).expect("its entry still stands").is_none());
    assert!(p.reply(frame(2), 100).expect("asked").is_some());
    assert_eq!(ints(p.poll(next, Waker::noop())), [2]);
    assert!(p.slots.is_empty() && p.is_empty());
}

#[test]
fn an_abandoned_request_neither_leaks_nor_shifts() {
    let mut p = Pipeline::new();
    let gone = p.push(meta(2, 0, NEVER), Waker::noop().clone());
    let kept = p.push(meta(1, 0, NEVER), Waker::noop().clone());
    assert!(p.reply(frame(1), 100).expect("asked").is_none());
    p.abandon(gone);
    assert!(p.reply(frame(2), 100).expect("asked").is_none());
    assert!(p.reply(frame(3), 100).expect("asked").is_some());
    assert_eq!(ints(p.poll(kept, Waker::noop())), [3]);
    let done = p.push(meta(1, 0, NEVER), Waker::noop().clone());
    assert!(p.reply(frame(4), 100).expect("asked").is_some());
    p.abandon(done);
    assert!(p.slots.is_empty());
}

#[test]
fn a_failure_tells_which_requests_may_have_run() {
    let mut p = Pipeline::new();
    let a = p.push(meta(1, 0, NEVER), Waker::noop().clone());
    let b = p.push(meta(1, 20, NEVER), Waker::noop().clone());
    let c = p.push(meta(1, 40, NEVER), Waker::noop().clone());
    p.abandon(b);
    let mut wake = Vec::new();
    p.fail_all(20, |sent| RequestFailure::Lost { sent, cause: LostCause::Eof }, &mut wake);
    assert_eq!(wake.len(), 2);
    assert!(matches!(p.poll(a, Waker::noop()), Some(Err(RequestFailure::Lost { sent: true, .. }))));
    assert!(matches!(p.poll(c, Waker::noop()), Some(Err(RequestFailure::Lost { sent: false, .. }))));
    assert!(p.slots.is_empty() && p.is_empty());
}

#[test]
fn patience_is_counted_per_request() {
    let mut p = Pipeline::new();
    let slot = p.push(RequestMeta { blocking: true, ..meta(1, 0, NEVER) }, Waker::noop().clone());
    p.push_internal(meta(1, 0, NEVER));
    assert!(p.is_blocking());
    assert!(p.reply(frame(1), 100).expect("asked").is_some());
    assert!(!p.is_blocking());
    assert!(p.reply(frame(2), 100).expect("ours").is_none());
    assert_eq!(ints(p.poll(slot, Waker::noop())), [1]);
}

#[test]
fn a_reply_before_the_request_was_sent_is_nobodys() {
    let mut p = Pipeline::new();
    let slot = p.push(meta(1, 20, NEVER), Waker::noop().clone());
    assert!(p.reply(frame(1), 20).is_err(), "no byte of the request has left");
    assert!(p.poll(slot, Waker::noop()).is_none());
    assert!(p.reply(frame(2), 21).expect("asked").is_some());
    assert_eq!(ints(p.poll(slot, Waker::noop())), [2]);
}

#[test]
fn what_expired_or_was_dropped_unsent_is_taken_back() {
    let mut p = Pipeline::new();
    let sent = p.push(meta(1, 0, 50), Waker::noop().clone());
    let late = p.push(RequestMeta { blocking: true, ..meta(1, 3, 50) }, Waker::noop().clone());
    let kept = p.push(meta(1, 5, 900), Waker::noop().clone());
    let dropped = p.push(meta(1, 8, NEVER), Waker::noop().clone());
    p.push_internal(meta(1, 9, NEVER));
    p.abandon(dropped);
    let mut wake = Vec::new();
    p.expire(50, 3, &mut wake);
    let mut out = b"bbcccdee".to_vec();
    assert_eq!(p.withdraw(3, &mut out), 2);
    assert_eq!((out.as_slice(), p.len(), p.is_blocking()), (&b"cccee"[..], 3, false));
    assert!(matches!(p.poll(sent, Waker::noop()), Some(Err(RequestFailure::Timeout { sent: true }))));
    assert!(matches!(p.poll(late, Waker::noop()), Some(Err(RequestFailure::Timeout { sent: false }))));
    assert!(p.reply(frame(1), 8).expect("the late one's").is_none());
    assert!(p.reply(frame(2), 8).expect("asked").is_some());
    assert!(p.reply(frame(3), 8).expect("ours").is_none());
    assert_eq!(ints(p.poll(kept, Waker::noop())), [2]);
    assert_eq!((p.unfinished(), p.withdraw(8, &mut Vec::new())), (0, 0));
}

#[test]
fn only_what_came_later_is_given_more_time() {
    let mut p = Pipeline::new();
    p.push(meta(1, 0, 100), Waker::noop().clone());
    p.push(meta(1, 5, 100), Waker::noop().clone());
    p.push(meta(1, 9, NEVER), Waker::noop().clone());
    p.postpone(5, 30);
    let mut wake = Vec::new();
    p.expire(129, 20, &mut wake);
    assert_eq!((wake.len(), p.earliest()), (1, 130));
    p.expire(1 << 40, 20, &mut wake);
    assert_eq!(wake.len(), 2, "no limit stays no limit");
}
