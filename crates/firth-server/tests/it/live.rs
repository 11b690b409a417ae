//! Live channels: over a server's engine, and over the channels of a real Redis or Valkey.

use crate::world::{Server, firth, run, stdout};
use firth_testkit::{Flavor, RedisServer, on_both};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

/// A subscriber that is surely there.
fn listen(args: &[&str]) -> Child {
    let mut command = firth();
    command.arg("sub").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut told = String::new();
    let errors = child.stderr.take().unwrap();
    let mut errors = BufReader::new(errors);
    errors.read_line(&mut told).unwrap();
    assert_eq!(told, "-- subscribed\n");
    child.stderr = Some(errors.into_inner());
    child
}

fn heard(mut child: Child) -> String {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    text
}

#[test]
fn what_is_published_is_heard_by_who_listens_on_the_same_server() {
    let server = Server::memory();
    let url = server.url();
    let alone = listen(&["prices", "--max", "2", "--server", &url]);
    let both = listen(&["prices", "news", "--max", "3", "--server", &url]);
    stdout(&run(&["pub", "prices", "1.08", "1.09", "--server", &url]));
    stdout(&run(&["pub", "news", "rain", "--server", &url]));
    assert_eq!(heard(alone), "1.08\n1.09\n");
    let mut all: Vec<_> = heard(both).lines().map(str::to_owned).collect();
    all.sort();
    assert_eq!(all, ["news\train", "prices\t1.08", "prices\t1.09"]);
    let patterns = run(&["sub", "news.*", "--pattern", "--server", &url]);
    assert_eq!(patterns.status.code(), Some(2));
    let bad = run(&["pub", "no such name", "x", "--server", &url]);
    assert_eq!(bad.status.code(), Some(2));
}

#[test]
fn a_server_that_closes_ends_its_subscribers_and_says_so() {
    let server = Server::memory();
    let child = listen(&["prices", "--server", &server.url()]);
    assert!(server.terminate());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{output:?}");
}

async fn redis_channels_patterns_and_shards_are_reached_over_the_mux(flavor: Flavor) {
    let redis = RedisServer::start(flavor).await;
    let url = format!("redis://127.0.0.1:{}?prefix=ours&durability=fast", redis.port());
    let told = tokio::task::spawn_blocking(move || {
        let plain = listen(&["eur", "--max", "1", "--engine", &url]);
        let pattern = listen(&["e*", "--pattern", "--max", "1", "--engine", &url]);
        let sharded = listen(&["eur", "--sharded", "--max", "1", "--engine", &url]);
        stdout(&run(&["pub", "eur", "1.08", "--engine", &url]));
        stdout(&run(&["pub", "eur", "1.09", "--sharded", "--engine", &url]));
        [plain, pattern, sharded].map(heard)
    });
    let [plain, pattern, sharded] = told.await.unwrap();
    assert_eq!((plain.as_str(), pattern.as_str(), sharded.as_str()), ("1.08\n", "eur\t1.08\n", "1.09\n"));
}

on_both!(redis_channels_patterns_and_shards_are_reached_over_the_mux);
