//! Tables of replies and what they ask for.

use super::*;
use crate::cluster::redirect::{AnnouncedAddress, RetryReason};
use crate::command::cmd;
use crate::resp::{Decoder, ReplyLimits};
use bytes::BytesMut;

fn replies(wire: &[&str]) -> Replies {
    let mut bytes = BytesMut::from(wire.concat().as_str());
    let mut decoder = Decoder::new(ReplyLimits::default());
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

fn moved() -> RetryDecision {
    RetryDecision::Moved { slot: 5, to: AnnouncedAddress { host: "h".into(), port: 1 } }
}

fn ask() -> RetryDecision {
    RetryDecision::Ask { to: AnnouncedAddress { host: "h".into(), port: 1 } }
}

#[test]
fn a_transaction_is_sent_again_only_if_nothing_of_it_ran() {
    let transaction = many(pipe().then(cmd("INCR").key("a")).then(cmd("INCR").key("a")).in_transaction());
    for (wire, expected) in [
        ([OK, QUEUED, QUEUED, "*2\r\n:1\r\n:2\r\n"], RetryDecision::Finish),
        ([OK, MOVED, MOVED, ABORT], moved()),
        ([OK, QUEUED, ASK, ABORT], ask()),
        ([OK, QUEUED, QUEUED, MOVED], moved()),
        ([OK, QUEUED, QUEUED, "-TRYAGAIN Multiple keys\r\n"], RetryDecision::Retry(RetryReason::TryAgain)),
        ([OK, DOWN, DOWN, ABORT], RetryDecision::Retry(RetryReason::ClusterDown)),
        ([OK, QUEUED, "-ERR unknown command\r\n", ABORT], RetryDecision::Finish),
        ([OK, QUEUED, QUEUED, "_\r\n"], RetryDecision::Finish),
        // MULTI was refused, so that the commands ran by themselves.
        ([LOADING, ONE, ONE, "-ERR EXEC without MULTI\r\n"], RetryDecision::Finish),
        (
            [LOADING, LOADING, LOADING, "-ERR EXEC without MULTI\r\n"],
            RetryDecision::Retry(RetryReason::Loading),
        ),
    ] {
        assert_eq!(decide(&transaction, &replies(&wire)), expected, "{wire:?}");
    }
}

#[test]
fn commands_bound_together_are_sent_again_only_if_all_were_refused() {
    let write = || pipe().then(cmd("INCR").key("a")).then(cmd("INCR").key("a"));
    let together = many(write().then(cmd("WAIT").arg(1).arg(9)).together());
    for (wire, expected) in [
        ([ONE, ONE, ONE], RetryDecision::Finish),
        ([MOVED, MOVED, ONE], moved()),
        ([ASK, ASK, ONE], ask()),
        ([ONE, MOVED, ONE], RetryDecision::Finish),
        ([MOVED, WRONG, ONE], RetryDecision::Finish),
        ([LOADING, LOADING, LOADING], RetryDecision::Retry(RetryReason::Loading)),
    ] {
        assert_eq!(decide(&together, &replies(&wire)), expected, "{wire:?}");
    }
    let with_effect =
        many(pipe().then(cmd("INCR").key("a")).then(cmd("PUBLISH").arg("c").arg("m")).together());
    assert_eq!(decide(&with_effect, &replies(&[MOVED, ONE])), RetryDecision::Finish, "the message went out");
}

#[test]
fn a_single_command_goes_where_its_answer_says() {
    let get = Request::from(cmd("GET").key("a"));
    assert_eq!(decide(&get, &replies(&["$1\r\nv\r\n"])), RetryDecision::Finish);
    assert_eq!(decide(&get, &replies(&[MOVED])), moved());
    assert_eq!(decide(&get, &replies(&[WRONG])), RetryDecision::Finish);
    let lone = many(pipe().then(cmd("GET").key("a")).together());
    assert_eq!(decide(&lone, &replies(&[MOVED])), moved());
}

#[test]
fn keys_of_one_unit_must_share_a_slot() {
    let same = pipe().then(cmd("GET").key("{t}a")).then(cmd("WAIT")).then(cmd("GET").key("{t}b"));
    assert_eq!(common_slot(&many(same.in_transaction())).unwrap(), Some(slot(b"t")));
    let different = pipe().then(cmd("GET").key("a")).then(cmd("GET").key("b"));
    for unit in [different.clone().in_transaction(), different.together()] {
        let error = common_slot(&many(unit)).unwrap_err();
        assert!(matches!(&error, CallError::Invalid(text) if text.starts_with("CROSSSLOT")), "{error}");
    }
    assert_eq!(common_slot(&many(pipe().then(cmd("PING")).together())).unwrap(), None);
    assert_eq!(common_slot(&Request::from(cmd("GET").key("a"))).unwrap(), Some(slot(b"a")));
}

fn names(asking: &AskingRequest) -> Vec<String> {
    let name = |command: PipedCommand<'_>| {
        let text = String::from_utf8_lossy(command.bytes).into_owned();
        text.split("\r\n").nth(2).unwrap_or_default().to_owned()
    };
    asking.pipe.commands().map(name).collect()
}

#[test]
fn asking_stands_before_each_command_that_has_a_key_and_once_before_a_transaction() {
    let one = AskingRequest::new(&Request::from(cmd("GET").key("a")));
    assert_eq!(names(&one), ["ASKING", "GET"]);
    assert!(matches!(one.strip(replies(&[OK, ONE])), Replies::One(f) if f.value().as_i64() == Some(1)));

    let two = pipe().then(cmd("GET").key("a")).then(cmd("WAIT")).then(cmd("SET").key("a"));
    let together = AskingRequest::new(&many(two.clone().together()));
    assert_eq!(names(&together), ["ASKING", "GET", "WAIT", "ASKING", "SET"]);
    let Replies::Many(own) = together.strip(replies(&[OK, ":1\r\n", ":2\r\n", OK, ":3\r\n"])) else {
        panic!("three commands have three replies")
    };
    assert_eq!(own.iter().filter_map(|f| f.value().as_i64()).collect::<Vec<_>>(), [1, 2, 3]);

    let transaction = AskingRequest::new(&many(two.in_transaction()));
    assert_eq!(names(&transaction), ["ASKING", "MULTI", "GET", "WAIT", "SET", "EXEC"]);
}
