//! Tables of replies and what they ask for.

use bytes::BytesMut;

use super::*;
use crate::{
    cluster::redirect::{Announced, Why},
    command::cmd,
    resp::{Decoder, Limits},
};

fn replies(wire: &[&str]) -> Replies {
    let mut bytes = BytesMut::from(wire.concat().as_str());
    let mut decoder = Decoder::new(Limits::default());
    let mut frames = Vec::new();
    while let Some(frame) = decoder.decode(&mut bytes).expect("valid RESP") {
        frames.push(frame);
    }
    if frames.len() == 1 { Replies::One(frames.remove(0)) } else { Replies::Many(frames) }
}

fn many(pipe: Pipe) -> Request<'static> {
    Request::Many(Cow::Owned(pipe))
}

const OK: &str = "+OK\r\n";
const QUEUED: &str = "+QUEUED\r\n";
const ONE: &str = ":1\r\n";
const MOVED: &str = "-MOVED 5 h:1\r\n";
const ASK: &str = "-ASK 5 h:1\r\n";
const DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";
const LOADING: &str = "-LOADING in memory\r\n";
const ABORT: &str = "-EXECABORT Transaction discarded because of previous errors.\r\n";
const WRONG: &str = "-WRONGTYPE Operation\r\n";

fn moved() -> Step {
    Step::Moved { slot: 5, to: Announced { host: "h".into(), port: 1 } }
}

fn ask() -> Step {
    Step::Ask { to: Announced { host: "h".into(), port: 1 } }
}

#[test]
fn a_transaction_is_sent_again_only_if_nothing_of_it_ran() {
    let transaction = many(pipe().then(cmd("INCR").key("a")).then(cmd("INCR").key("a")).in_transaction());
    for (wire, expected) in [
        ([OK, QUEUED, QUEUED, "*2\r\n:1\r\n:2\r\n"], Step::Done),
        ([OK, MOVED, MOVED, ABORT], moved()),
        ([OK, QUEUED, ASK, ABORT], ask()),
        ([OK, QUEUED, QUEUED, MOVED], moved()),
        ([OK, QUEUED, QUEUED, "-TRYAGAIN Multiple keys\r\n"], Step::Again(Why::TryAgain)),
        ([OK, DOWN, DOWN, ABORT], Step::Again(Why::ClusterDown)),
        ([OK, QUEUED, "-ERR unknown command\r\n", ABORT], Step::Done),
        ([OK, QUEUED, QUEUED, "_\r\n"], Step::Done),
        // MULTI was refused, so that the commands ran by themselves.
        ([LOADING, ONE, ONE, "-ERR EXEC without MULTI\r\n"], Step::Done),
        ([LOADING, LOADING, LOADING, "-ERR EXEC without MULTI\r\n"], Step::Again(Why::Loading)),
    ] {
        assert_eq!(judge(&transaction, &replies(&wire)), expected, "{wire:?}");
    }
}

#[test]
fn commands_bound_together_are_sent_again_only_if_all_were_refused() {
    let write = || pipe().then(cmd("INCR").key("a")).then(cmd("INCR").key("a"));
    let together = many(write().then(cmd("WAIT").arg(1).arg(9)).together());
    for (wire, expected) in [
        ([ONE, ONE, ONE], Step::Done),
        ([MOVED, MOVED, ONE], moved()),
        ([ASK, ASK, ONE], ask()),
        ([ONE, MOVED, ONE], Step::Done),
        ([MOVED, WRONG, ONE], Step::Done),
        ([LOADING, LOADING, LOADING], Step::Again(Why::Loading)),
    ] {
        assert_eq!(judge(&together, &replies(&wire)), expected, "{wire:?}");
    }
    let with_effect =
        many(pipe().then(cmd("INCR").key("a")).then(cmd("PUBLISH").arg("c").arg("m")).together());
    assert_eq!(judge(&with_effect, &replies(&[MOVED, ONE])), Step::Done, "the message went out");
}

#[test]
fn a_single_command_goes_where_its_answer_says() {
    let get = Request::from(cmd("GET").key("a"));
    assert_eq!(judge(&get, &replies(&["$1\r\nv\r\n"])), Step::Done);
    assert_eq!(judge(&get, &replies(&[MOVED])), moved());
    assert_eq!(judge(&get, &replies(&[WRONG])), Step::Done);
    let lone = many(pipe().then(cmd("GET").key("a")).together());
    assert_eq!(judge(&lone, &replies(&[MOVED])), moved());
}

#[test]
fn keys_of_one_unit_must_share_a_slot() {
    let same = pipe().then(cmd("GET").key("{t}a")).then(cmd("WAIT")).then(cmd("GET").key("{t}b"));
    assert_eq!(unit_slot(&many(same.in_transaction())).unwrap(), Some(slot(b"t")));
    let different = pipe().then(cmd("GET").key("a")).then(cmd("GET").key("b"));
    for unit in [different.clone().in_transaction(), different.together()] {
        let error = unit_slot(&many(unit)).unwrap_err();
        assert!(matches!(&error, CallError::Invalid(text) if text.starts_with("CROSSSLOT")), "{error}");
    }
    assert_eq!(unit_slot(&many(pipe().then(cmd("PING")).together())).unwrap(), None);
    assert_eq!(unit_slot(&Request::from(cmd("GET").key("a"))).unwrap(), Some(slot(b"a")));
}

fn names(asking: &Asking) -> Vec<String> {
    let name = |piece: Piece<'_>| {
        let text = String::from_utf8_lossy(piece.bytes).into_owned();
        text.split("\r\n").nth(2).unwrap_or_default().to_owned()
    };
    asking.pipe.pieces().map(name).collect()
}

#[test]
fn asking_stands_before_each_command_that_has_a_key_and_once_before_a_transaction() {
    let one = Asking::new(&Request::from(cmd("GET").key("a")));
    assert_eq!(names(&one), ["ASKING", "GET"]);
    assert!(matches!(one.strip(replies(&[OK, ONE])), Replies::One(f) if f.value().as_i64() == Some(1)));

    let two = pipe().then(cmd("GET").key("a")).then(cmd("WAIT")).then(cmd("SET").key("a"));
    let together = Asking::new(&many(two.clone().together()));
    assert_eq!(names(&together), ["ASKING", "GET", "WAIT", "ASKING", "SET"]);
    let Replies::Many(own) = together.strip(replies(&[OK, ":1\r\n", ":2\r\n", OK, ":3\r\n"])) else {
        panic!("three commands have three replies")
    };
    assert_eq!(own.iter().filter_map(|f| f.value().as_i64()).collect::<Vec<_>>(), [1, 2, 3]);

    let transaction = Asking::new(&many(two.in_transaction()));
    assert_eq!(names(&transaction), ["ASKING", "MULTI", "GET", "WAIT", "SET", "EXEC"]);
}
