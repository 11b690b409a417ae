//! Conversions from replies to the caller's types: every form of a value is read, and an error
//! names the place.

use crate::support::*;
use bytes::Bytes;
use firth_redis::resp::{ConvertProblem, Frame, Ignore, StreamEntry, ValueKind};
use firth_redis::{CallError, Client, Unpack, cmd, pipe};
use firth_testkit::{Flavor, RedisServer, on_both};
use std::collections::{BTreeMap, HashMap, HashSet};

on_both!(
    answers_are_read_as_the_usual_types,
    booleans_and_doubles_take_what_servers_send_for_them,
    an_answer_that_does_not_fit_names_the_element,
    one_bad_answer_does_not_hide_the_others,
    the_number_of_answers_must_be_right_before_anything_is_sent,
    pipelines_of_any_size_keep_their_order,
);

async fn client(flavor: Flavor) -> (RedisServer, Client) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    (server, client)
}

async fn answers_are_read_as_the_usual_types(flavor: Flavor) {
    let (_server, client) = client(flavor).await;
    let binary = Bytes::from_static(b"\0\r\n\xff$5\r\n");
    client.call::<()>(cmd("SET").key(&b"\0key"[..]).arg(&binary[..])).await.unwrap();
    assert_eq!(client.call::<Bytes>(cmd("GET").key(&b"\0key"[..])).await.unwrap(), binary);
    assert_eq!(client.call::<Vec<u8>>(cmd("GET").key(&b"\0key"[..])).await.unwrap(), binary);
    let error = client.call::<String>(cmd("GET").key(&b"\0key"[..])).await.unwrap_err();
    assert!(
        matches!(&error, CallError::Convert(e) if e.problem() == &ConvertProblem::InvalidUtf8),
        "{error:?}"
    );

    client.call::<i64>(cmd("HSET").key("h").field("a", 1).field("b", 2)).await.unwrap();
    let map: HashMap<String, u8> = client.call(cmd("HGETALL").key("h")).await.unwrap();
    let sorted: BTreeMap<String, i64> = client.call(cmd("HGETALL").key("h")).await.unwrap();
    let pairs: Vec<(String, i64)> = client.call(cmd("HGETALL").key("h")).await.unwrap();
    assert_eq!((map["a"], sorted["b"], pairs.len()), (1, 2, 2));
    client.call::<i64>(cmd("SADD").key("s").args(["x", "y"])).await.unwrap();
    let set: HashSet<String> = client.call(cmd("SMEMBERS").key("s")).await.unwrap();
    assert_eq!(set, ["x".to_owned(), "y".to_owned()].into());
    let array: [Option<i64>; 2] = client.call(cmd("HMGET").key("h").arg("a").arg("none")).await.unwrap();
    assert_eq!(array, [Some(1), None]);
    client.call::<i64>(cmd("ZADD").key("z").arg(1.5).arg("m").arg(2).arg("n")).await.unwrap();
    let scores: Vec<(String, f64)> =
        client.call(cmd("ZRANGE").key("z").arg(0).arg(-1).arg("WITHSCORES")).await.unwrap();
    assert_eq!(scores, [("m".to_owned(), 1.5), ("n".to_owned(), 2.0)]);
    client.call::<String>(cmd("XADD").key("x").arg("7-1").field("f", "v")).await.unwrap();
    let entries: Vec<StreamEntry> = client.call(cmd("XRANGE").key("x").arg("-").arg("+")).await.unwrap();
    assert_eq!(entries.len(), 1);
    let frame: Frame = client.call(cmd("HGETALL").key("h")).await.unwrap();
    assert_eq!(frame.kind(), ValueKind::Map);
    let _: Ignore = client.call(cmd("GET").key("none")).await.unwrap();
    let nothing = client.call::<()>(cmd("SET").key("h2").arg(1).arg("XX")).await.unwrap_err();
    assert!(matches!(nothing, CallError::Convert(_)), "SET … XX did not set: {nothing:?}");
}

async fn booleans_and_doubles_take_what_servers_send_for_them(flavor: Flavor) {
    let (_server, client) = client(flavor).await;
    assert!(client.call::<bool>(cmd("SADD").key("s").arg("x")).await.unwrap(), "an integer");
    assert!(!client.call::<bool>(cmd("SADD").key("s").arg("x")).await.unwrap());
    assert!(client.call::<bool>(cmd("SET").key("k").arg(1)).await.unwrap(), "a status");
    assert!(client.call::<bool>(cmd("GET").key("k")).await.unwrap(), "text");
    assert_eq!(client.call::<f64>(cmd("GET").key("k")).await.unwrap(), 1.0, "text");
    assert_eq!(client.call::<f64>(cmd("INCR").key("k")).await.unwrap(), 2.0, "an integer");
    assert_eq!(client.call::<f64>(cmd("INCRBYFLOAT").key("k").arg(0.5)).await.unwrap(), 2.5, "text");
    client.call::<()>(cmd("ZADD").key("z").arg("inf").arg("m")).await.unwrap();
    assert_eq!(client.call::<f64>(cmd("ZSCORE").key("z").arg("m")).await.unwrap(), f64::INFINITY, "a double");
    let real: bool = client.call(cmd("EVAL").arg("redis.setresp(3); return true").arg(0)).await.unwrap();
    assert!(real, "a boolean");
}

async fn an_answer_that_does_not_fit_names_the_element(flavor: Flavor) {
    let (_server, client) = client(flavor).await;
    client.call::<()>(cmd("RPUSH").key("l").arg(1).arg(2).arg("three").arg(70000)).await.unwrap();
    let list = || cmd("LRANGE").key("l").arg(0).arg(-1);
    let convert = |error: CallError| {
        assert!(error.may_have_run() && !error.is_retryable());
        match error {
            CallError::Convert(error) => (error.path().to_string(), error.problem().clone()),
            other => panic!("{other:?}"),
        }
    };
    let (path, problem) = convert(client.call::<Vec<i64>>(list()).await.unwrap_err());
    assert_eq!(path, "[2]");
    assert!(matches!(
        problem,
        ConvertProblem::TypeMismatch { expected: "integer", found: ValueKind::BlobString }
    ));
    let (path, problem) = convert(client.call::<(u8, u8, String, u16)>(list()).await.unwrap_err());
    assert_eq!((path.as_str(), problem), ("[3]", ConvertProblem::OutOfRange { target: "u16" }));
    let (path, problem) = convert(client.call::<(i64, i64)>(list()).await.unwrap_err());
    assert_eq!((path.as_str(), problem), ("", ConvertProblem::SizeMismatch { expected: 2, found: 4 }));
    client.call::<()>(cmd("HSET").key("h").field("price", "dear")).await.unwrap();
    let (path, _) = convert(client.call::<HashMap<String, f64>>(cmd("HGETALL").key("h")).await.unwrap_err());
    assert_eq!(path, "[\"price\"]");
    let (_, problem) = convert(client.call::<i64>(cmd("GET").key("none")).await.unwrap_err());
    assert!(matches!(problem, ConvertProblem::UnexpectedNull { .. }));
}

async fn one_bad_answer_does_not_hide_the_others(flavor: Flavor) {
    let (_server, client) = client(flavor).await;
    let mixed = pipe()
        .then(cmd("SET").key("k").arg("text"))
        .then(cmd("LPOP").key("k"))
        .then(cmd("GET").key("k"))
        .then(cmd("GET").key("k"));
    let (set, pop, number, text) =
        client.pipeline::<(String, Option<String>, i64, String)>(&mixed).await.unwrap();
    assert_eq!((set.unwrap().as_str(), text.unwrap().as_str()), ("OK", "text"));
    assert_eq!(pop.unwrap_err().code(), Some("WRONGTYPE"));
    assert!(matches!(number, Err(CallError::Convert(_))));
    let all = client.pipeline::<Vec<String>>(&mixed).await.unwrap();
    assert_eq!(all.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!(all.unpack().unwrap_err().code(), Some("WRONGTYPE"), "joined, the first error wins");
}

async fn the_number_of_answers_must_be_right_before_anything_is_sent(flavor: Flavor) {
    let (server, client) = client(flavor).await;
    let two = pipe().then(cmd("INCR").key("n")).then(cmd("INCR").key("n"));
    let error = client.pipeline::<(i64, i64, i64)>(&two).await.unwrap_err();
    assert!(matches!(error, CallError::Invalid(_)) && !error.may_have_run(), "{error:?}");
    assert!(server.command(&["GET", "n"]).await.is_nil());
    let empty = client.pipeline::<Vec<i64>>(pipe()).await.unwrap();
    assert!(empty.is_empty(), "nothing asked, nothing answered");
    assert!(matches!(client.pipeline::<(i64,)>(pipe()).await, Err(CallError::Invalid(_))));
    let (one,) = client.pipeline::<(i64,)>(pipe().then(cmd("INCR").key("n"))).await.unwrap();
    assert_eq!(one.unwrap(), 1);
}

async fn pipelines_of_any_size_keep_their_order(flavor: Flavor) {
    let (_server, client) = client(flavor).await;
    for size in [1usize, 2, 100, 10_000] {
        let all = (0..size).map(|n| cmd("ECHO").arg(n)).collect::<firth_redis::Pipe>();
        let answers = client.pipeline::<Vec<usize>>(all).await.unwrap().unpack().unwrap();
        assert_eq!(answers, (0..size).collect::<Vec<_>>());
    }
    let big = "x".repeat(8 << 20);
    let all = (0..4).map(|_| cmd("ECHO").arg(&big)).collect::<firth_redis::Pipe>();
    for answer in client.pipeline::<Vec<Bytes>>(all).await.unwrap() {
        assert_eq!(answer.unwrap().len(), big.len());
    }
}
