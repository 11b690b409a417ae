//! Pushes on the shared connection reach every listener, and never pass for a reply.

use crate::support::*;
use firth_redis::{Client, Config, Push, cmd};
use firth_testkit::{Flavor, RedisServer, on_both};

on_both!(
    client_tracking_tells_of_changes_and_shifts_no_reply,
    a_slow_listener_is_told_what_it_missed,
    what_is_set_on_connect_is_set_again_after_a_reconnection,
);

async fn tracking(server: &RedisServer) -> Client {
    let client = connect(server.tcp_url()).await;
    client.call::<()>(cmd("CLIENT").arg("TRACKING").arg("ON")).await.unwrap();
    client
}

async fn client_tracking_tells_of_changes_and_shifts_no_reply(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = tracking(&server).await;
    let mut pushes = client.pushes();
    for round in 0..50 {
        let key = format!("k{round}");
        client.call::<Option<String>>(cmd("GET").key(&key)).await.unwrap();
        let calls = (0..20).map(|n| client.call::<i64>(cmd("ECHO").arg(n)));
        let set = ["SET", &key, "v"];
        let (answers, _) = tokio::join!(futures_util::future::join_all(calls), server.command(&set));
        for (answer, n) in answers.into_iter().zip(0..) {
            assert_eq!(answer.unwrap(), n);
        }
        let Some(Push::Frame(frame)) = soon(pushes.next()).await else { panic!("a push") };
        let value = frame.value();
        assert_eq!(value.get(0).unwrap().as_str(), Some("invalidate"));
        assert_eq!(value.get(1).unwrap().get(0).unwrap().as_str(), Some(key.as_str()));
    }
}

async fn a_slow_listener_is_told_what_it_missed(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = tracking(&server).await;
    let mut pushes = client.pushes();
    let keys: Vec<String> = (0..3000).map(|n| format!("k{n}")).collect();
    client.call::<Vec<Option<String>>>(cmd("MGET").keys(&keys)).await.unwrap();
    for batch in keys.chunks(500) {
        let set = batch.iter().map(|key| cmd("SET").key(key).arg(1)).collect::<firth_redis::Pipe>();
        client.pipeline::<Vec<String>>(set).await.unwrap();
    }
    let Some(Push::Lagged(missed)) = soon(pushes.next()).await else { panic!("it fell behind") };
    let mut kept = 0;
    while kept + missed < 3000 {
        match soon(pushes.next()).await {
            Some(Push::Frame(_)) => kept += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(kept, 1024, "what is kept is bounded, what is not is counted");
}

async fn what_is_set_on_connect_is_set_again_after_a_reconnection(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let config = Config::from_url(&server.tcp_url()).unwrap();
    let client = Client::connect(config.on_connect([cmd("CLIENT").arg("TRACKING").arg("ON")])).await.unwrap();
    let mut pushes = client.pushes();
    for round in 0..3 {
        client.call::<Option<String>>(cmd("GET").key("watched")).await.unwrap();
        server.command(&["SET", "watched", "v"]).await;
        assert!(matches!(soon(pushes.next()).await, Some(Push::Frame(_))), "round {round}");
        let mut events = client.events();
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        soon(events.next()).await.expect("the connection breaks");
        client.ready().await.unwrap();
    }
    let refused = Config::from_url(&server.tcp_url()).unwrap().on_connect([cmd("NO-SUCH-COMMAND")]);
    assert!(Client::connect(refused).await.is_err());
}
