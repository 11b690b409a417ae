//! One write carries what many callers ask for at once, and a lone caller never waits for
//! company.

use crate::support::*;
use firth_redis::{Client, cmd};
use firth_testkit::{Flavor, RedisServer, on_both};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

on_both!(many_callers_share_writes, a_lone_caller_is_written_at_once);

const TASKS: usize = 64;
const EACH: usize = 300;

/// A client whose metrics can be read.
async fn measured(server: &RedisServer) -> (Client, Snapshotter) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let client = metrics::with_local_recorder(&recorder, || Client::lazy(server.tcp_url()).unwrap());
    soon(client.ready()).await.unwrap();
    (client, snapshotter)
}

/// The counter of the shared lane since the last look.
fn counters(snapshotter: &Snapshotter) -> impl Fn(&str) -> u64 {
    let all = snapshotter.snapshot().into_vec();
    move |name| {
        let found = all.iter().find(|(key, ..)| {
            key.key().name() == name && key.key().labels().any(|label| label.value() == "shared")
        });
        match found {
            Some((.., DebugValue::Counter(count))) => *count,
            other => panic!("no counter {name}: {other:?}"),
        }
    }
}

async fn many_callers_share_writes(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let (client, snapshotter) = measured(&server).await;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..EACH {
                    client.call::<Option<String>>(cmd("GET").key("k")).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    let count = counters(&snapshotter);
    let replies = count("firth_redis_replies_total");
    let writes = count("firth_redis_writes_total");
    assert_eq!(replies, (TASKS * EACH) as u64);
    assert!(replies / writes >= 16, "{replies} commands in {writes} writes");
    assert_eq!(count("firth_redis_connections_opened_total"), 1);
}

async fn a_lone_caller_is_written_at_once(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let (client, snapshotter) = measured(&server).await;
    for _ in 0..100 {
        client.call::<Option<String>>(cmd("GET").key("k")).await.unwrap();
    }
    let count = counters(&snapshotter);
    assert_eq!((count("firth_redis_replies_total"), count("firth_redis_writes_total")), (100, 100));
}
