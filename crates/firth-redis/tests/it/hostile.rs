//! Servers that lie: a protocol error, bounded memory and a fresh connection, never a panic, a hang
//! or a shifted reply.

use crate::fake::Fake;
use crate::support::*;
use firth_redis::resp::{ConvertProblem, ProtocolError};
use firth_redis::{CallError, Client, ConnectionEventKind, LostCause, Push, Unpack, cmd, pipe};
use firth_testkit::{Flavor, Proxy, RedisServer, wait};
use std::collections::HashMap;

#[tokio::test]
async fn malformed_and_hostile_replies_give_a_protocol_error_and_a_fresh_connection() {
    let long_line = format!("+{}", "x".repeat(100 << 10));
    let cases: &[(&str, &[u8])] = &[
        ("deep nesting", &b"*1\r\n".repeat(1000)),
        ("deep nesting of maps", &b"%1\r\n+k\r\n".repeat(1000)),
        ("a giant bulk", b"$999999999999\r\n"),
        ("a bulk longer than any number", b"$99999999999999999999999999\r\n"),
        ("a negative bulk", b"$-2\r\n"),
        ("a giant array", b"*2000000000\r\n"),
        ("a negative array", b"*-7\r\n"),
        ("a giant map", b"%9223372036854775807\r\n"),
        ("a negative set", b"~-1\r\n"),
        ("a giant push", b">2000000000\r\n"),
        ("no kind at all", b"hello\r\n"),
        ("a number that is none", b":12a\r\n"),
        ("a boolean that is none", b"#maybe\r\n"),
        ("a double that is none", b",1.2.3\r\n"),
        ("a null with content", b"_x\r\n"),
        ("a big number that is none", b"(12x\r\n"),
        ("a bulk without its end", b"$3\r\nabcdef"),
        ("a line without its end", long_line.as_bytes()),
        ("an end of nothing", b".\r\n"),
        ("a piece of nothing", b";3\r\nabc\r\n"),
        ("attributes of nothing", b"*?\r\n|1\r\n+a\r\n+b\r\n.\r\n"),
        ("a verbatim string without format", b"=2\r\nab\r\n"),
        ("TLS", b"\x15\x03\x03\x00\x02\x02\x28"),
        ("HTTP", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ];
    for (name, bytes) in cases {
        let fake = Fake::once_saying(*bytes).await;
        let client = connect(quick(fake.url())).await;
        let pending = client.call::<String>(cmd("GET").key("b"));
        let (first, second) =
            soon(async { tokio::join!(client.call::<String>(cmd("GET").key("a")), pending) }).await;
        for error in [first.unwrap_err(), second.unwrap_err()] {
            let CallError::Lost { sent: true, cause: LostCause::Protocol(_) } = &error else {
                panic!("{name}: {error:?}")
            };
            assert!(error.may_have_run(), "{name}");
        }
        soon(client.ready()).await.unwrap();
        assert_eq!(client.call::<String>(cmd("PING")).await.unwrap(), "OK", "{name}");
        assert_eq!((fake.connections(), client.in_flight()), (2, 0), "{name}");
    }
}

#[tokio::test]
async fn limits_on_replies_are_kept_as_configured() {
    let server = RedisServer::start(Flavor::Redis).await;
    let mut config = quick(server.tcp_url());
    config.reply_limits.bulk = 1000;
    config.reply_limits.container = 10;
    let client = connect(config).await;
    client.call::<()>(cmd("SET").key("k").arg("x".repeat(1000))).await.unwrap();
    assert_eq!(client.call::<String>(cmd("GET").key("k")).await.unwrap().len(), 1000);
    client.call::<()>(cmd("APPEND").key("k").arg("y")).await.unwrap();
    let error = client.call::<String>(cmd("GET").key("k")).await.unwrap_err();
    assert!(
        matches!(
            error,
            CallError::Lost { cause: LostCause::Protocol(ProtocolError::BulkTooLarge { .. }), .. }
        ),
        "{error:?}"
    );
    soon(client.ready()).await.unwrap();
    let error = client.call::<Vec<String>>(cmd("LRANGE").key("l").arg(0).arg(-1)).await;
    assert_eq!(error.unwrap().len(), 0);
    client.call::<()>(cmd("RPUSH").key("l").args(0..11)).await.unwrap();
    let error = client.call::<Vec<String>>(cmd("LRANGE").key("l").arg(0).arg(-1)).await.unwrap_err();
    assert!(
        matches!(
            error,
            CallError::Lost { cause: LostCause::Protocol(ProtocolError::ContainerTooLarge { .. }), .. }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_announced_size_costs_no_memory() {
    let fake = Fake::once_saying("*900000\r\n$500000000\r\nabc").await;
    let client = connect(quick(fake.url())).await;
    let before = resident_kib();
    let error = client.call::<Vec<String>>(cmd("GET").key("k")).timeout(ms(200)).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB for an announcement");
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_reply_that_nobody_asked_for_ends_the_connection() {
    let fake = Fake::answering_hello(|number, mut peer| async move {
        if number == 0 {
            peer.say(b"+surprise\r\n").await;
        }
        while peer.command().await.is_some() {
            peer.say(b"+asked\r\n").await;
        }
    })
    .await;
    let client = Client::lazy(quick(fake.url())).unwrap();
    let mut events = client.events();
    let mut causes = Vec::new();
    while fake.connections() < 2 {
        let event = soon(events.next()).await.unwrap();
        causes.extend(event.cause.filter(|_| event.kind == ConnectionEventKind::Disconnected));
    }
    assert!(matches!(causes[..], [LostCause::Unsolicited]), "{causes:?}");
    soon(client.ready()).await.unwrap();
    assert_eq!(client.call::<String>(cmd("PING")).await.unwrap(), "asked");
}

#[tokio::test]
async fn pushes_between_replies_never_shift_them() {
    let fake = Fake::answering_hello(|_, mut peer| async move {
        peer.say(b">2\r\n+before\r\n:0\r\n").await;
        while let Some(words) = peer.command().await {
            peer.say(b">2\r\n$5\r\nnews!\r\n:1\r\n").await;
            peer.say_text(&words[1]).await;
            peer.say(b">1\r\n+after\r\n").await;
        }
    })
    .await;
    let client = connect(quick(fake.url())).await;
    let mut pushes = client.pushes();
    for n in 0..50 {
        echo(&client, &format!("single {n}")).await.unwrap();
        let three = (0..3).map(|i| cmd("ECHO").arg(n * 10 + i)).collect::<firth_redis::Pipe>();
        let answers = client.pipeline::<Vec<i64>>(three).await.unwrap().unpack().unwrap();
        assert_eq!(answers, [n * 10, n * 10 + 1, n * 10 + 2]);
    }
    let Some(Push::Frame(frame)) = soon(pushes.next()).await else { panic!("a push") };
    assert!(frame.is_push());
    assert_eq!(fake.connections(), 1);
}

#[tokio::test]
async fn attributes_before_replies_never_shift_them() {
    let fake = Fake::answering_hello(|_, mut peer| async move {
        while let Some(words) = peer.command().await {
            peer.say(b"|1\r\n+key-popularity\r\n%1\r\n$1\r\na\r\n,0.5\r\n").await;
            peer.say_text(&words[1]).await;
        }
    })
    .await;
    let client = connect(quick(fake.url())).await;
    for n in 0..20 {
        echo(&client, &format!("answer {n}")).await.unwrap();
    }
    let frame: firth_redis::resp::Frame = client.call(cmd("ECHO").arg("x")).await.unwrap();
    assert!(frame.attributes().is_some(), "they can be looked at");
}

#[tokio::test]
async fn replies_of_the_wrong_kind_fail_their_request_alone() {
    let fake = Fake::answering_hello(|_, mut peer| async move {
        while let Some(words) = peer.command().await {
            match words[0].as_str() {
                "GET" => peer.say(b"%1\r\n+a\r\n*2\r\n:1\r\n+b\r\n").await,
                "EXEC" => peer.say(b"*1\r\n:1\r\n").await,
                "MULTI" => peer.say(b"+OK\r\n").await,
                _ => peer.say(b"+QUEUED\r\n").await,
            }
        }
    })
    .await;
    let client = connect(quick(fake.url())).await;
    let error = client.call::<String>(cmd("GET").key("k")).await.unwrap_err();
    assert!(matches!(&error, CallError::Convert(_)) && error.may_have_run() && !error.is_retryable());
    let error = client.call::<HashMap<String, Vec<i64>>>(cmd("GET").key("k")).await.unwrap_err();
    let CallError::Convert(error) = error else { panic!("{error:?}") };
    assert_eq!(error.path().to_string(), "[\"a\"][1]");
    // EXEC answers for fewer commands than were queued
    let two = pipe().then(cmd("INCR").key("a")).then(cmd("INCR").key("b"));
    let error = client.transaction::<(i64, i64)>(two).await.unwrap_err();
    let CallError::Convert(error) = error else { panic!("{error:?}") };
    assert_eq!(error.problem(), &ConvertProblem::SizeMismatch { expected: 2, found: 1 });
    assert_eq!(fake.connections(), 1);
}

#[tokio::test]
async fn a_flipped_byte_anywhere_is_survived() {
    let server = RedisServer::start(Flavor::Redis).await;
    let proxy = Proxy::start(server.addr()).await;
    let client = connect(quick(proxy.url())).await;
    // "$5\r\nhello\r\n" and ":1\r\n"
    for offset in 0..15 {
        proxy.flip(offset);
        let two = pipe().then(cmd("ECHO").arg("hello")).then(cmd("EXISTS").key(offset).key(offset));
        match soon(client.pipeline::<(Vec<u8>, i64)>(two)).await {
            Ok((text, number)) => {
                assert!((4..9).contains(&offset), "only a payload can be changed unseen");
                assert_eq!((text.unwrap().len(), number.unwrap()), (5, 0));
            }
            Err(error) => {
                assert!(
                    matches!(error, CallError::Lost { sent: true, cause: LostCause::Protocol(_) }),
                    "{error:?}"
                );
            }
        }
        proxy.heal().await;
        soon(client.ready()).await.unwrap();
        echo(&client, "whole again").await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_never_stops_pushing_is_read_in_bounded_memory() {
    let fake = Fake::answering_hello(|_, mut peer| async move {
        let push = format!(">2\r\n+noise\r\n$65536\r\n{}\r\n", "x".repeat(65536)).repeat(8);
        for _ in 0..512 {
            peer.say(push.as_bytes()).await;
        }
        peer.command().await;
        peer.say(b"+done\r\n").await;
        peer.fall_silent().await;
    })
    .await;
    let client = connect(quick(fake.url())).await;
    let before = resident_kib();
    assert_eq!(client.call::<String>(cmd("PING")).no_timeout().await.unwrap(), "done");
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB for 256 MiB of pushes without a listener");
    wait::until(LONG, "nothing is left", async || client.in_flight() == 0).await;
}
