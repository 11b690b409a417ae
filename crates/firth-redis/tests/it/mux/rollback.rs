//! Calls that end early take back what they had begun, on the server too.

use super::{KINDS, SOON, ServerSubscriptions, client, message, publish, tell};
use crate::support::{ms, soon};
use firth_redis::mux::{Mux, SubscribeCall, SubscriptionKind};
use firth_redis::{CallError, Client};
use firth_testkit::{Direction, Flavor, Proxy, RedisServer, on_both, wait};
use std::time::Duration;

on_both!(
    a_call_that_is_dropped_leaves_nothing_behind,
    a_call_that_is_out_of_time_leaves_nothing_behind,
    a_refused_name_of_any_kind_takes_back_the_others_of_its_call,
);

fn prepare<'m>(mux: &'m Mux, kind: SubscriptionKind, names: &[&'static str]) -> SubscribeCall<'m> {
    let names = names.iter().map(|name| name.as_bytes());
    match kind {
        SubscriptionKind::Channel => mux.subscribe(names),
        SubscriptionKind::Pattern => mux.subscribe_pattern(names),
        SubscriptionKind::Sharded => mux.subscribe_sharded(names),
    }
}

/// A server whose answers can be held back, a client behind them, and a subscription that keeps its
/// connection open.
async fn behind_a_proxy(flavor: Flavor) -> (RedisServer, Proxy, Client) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(proxy.url()).await.unwrap();
    (server, proxy, client)
}

async fn a_call_that_is_dropped_leaves_nothing_behind(flavor: Flavor) {
    let (server, proxy, client) = behind_a_proxy(flavor).await;
    let mux = client.mux();
    let mut other = mux.subscribe(["shared", "other"]).await.unwrap();
    for kind in KINDS {
        proxy.stall(Direction::ToClient);
        {
            let call = prepare(mux, kind, &["shared", "mine"]).into_future();
            let seen = wait::until_some(SOON, async || {
                let view = ServerSubscriptions::of(&server).await;
                let here =
                    view.channels.contains("mine") || view.sharded.contains("mine") || view.patterns == 2;
                here.then_some(())
            });
            tokio::select! {
                outcome = call => panic!("nobody has confirmed it: {:?}", outcome.err()),
                seen = seen => seen.expect("the server has it"),
            }
        }
        proxy.heal().await;
        wait::until(SOON, format!("{kind:?} is taken back"), async || {
            let view = ServerSubscriptions::of(&server).await;
            view.channels.len() == 2 && view.patterns == 0 && view.sharded.is_empty()
        })
        .await;
        let stats = mux.stats();
        assert_eq!((stats.subscriptions, stats.channels, stats.unserved), (1, 2, 0), "{stats:?}");
    }
    assert_eq!(publish(&client, "shared", "1").await, 1);
    assert_eq!(&message(&mut other).await.payload[..], b"1", "whoever shared the name keeps it");
}

async fn a_call_that_is_out_of_time_leaves_nothing_behind(flavor: Flavor) {
    let (server, proxy, client) = behind_a_proxy(flavor).await;
    let mux = client.mux();
    let first = mux.subscribe(["warm"]).await.unwrap();
    proxy.stall(Direction::ToClient);
    for kind in KINDS {
        let error = prepare(mux, kind, &["mine"]).timeout(ms(50)).await.unwrap_err();
        assert!(matches!(error, CallError::Timeout { .. }), "{error}");
    }
    let error = soon(first.unsubscribe()).await;
    proxy.heal().await;
    assert!(matches!(error, Err(CallError::Timeout { .. })), "the server never confirmed it");
    wait::until(SOON, "all is taken back", async || ServerSubscriptions::of(&server).await.is_empty()).await;
    wait::until(SOON, "here too", async || mux.stats().channels + mux.stats().unserved == 0).await;
    assert_eq!(mux.stats().subscriptions, 0);
    // The connection is as good as new: nothing was mixed up.
    let mut again = mux.subscribe(["mine"]).await.unwrap();
    publish(&client, "mine", "1").await;
    assert_eq!(&message(&mut again).await.payload[..], b"1");
}

async fn a_refused_name_of_any_kind_takes_back_the_others_of_its_call(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).acl_user("app", "on >pw +@all ~* &ok:*").start().await;
    let client = Client::connect(server.tcp_url().replace("redis://", "redis://app:pw@")).await.unwrap();
    let mux = client.mux();
    let many: Vec<String> = (0..600).map(|n| format!("ok:{n}")).collect();
    let mut kept = mux.subscribe(many.clone()).await.unwrap();
    for kind in [SubscriptionKind::Channel, SubscriptionKind::Sharded] {
        // Under one hash tag, so that sharded names go in one command too.
        let error = prepare(mux, kind, &["ok:{t}1", "ok:{t}2", "secret{t}", "ok:5"]).await.unwrap_err();
        assert_eq!(error.code(), Some("NOPERM"), "{error}");
    }
    let error = prepare(mux, SubscriptionKind::Pattern, &["ok:*", "*"]).await.unwrap_err();
    assert_eq!(error.code(), Some("NOPERM"), "{error}");
    wait::until(SOON, "all is taken back", async || {
        let view = ServerSubscriptions::of(&server).await;
        view.channels.len() == 600 && view.patterns == 0 && view.sharded.is_empty()
    })
    .await;
    assert_eq!(mux.stats().channels, 600);
    tell(&client, SubscriptionKind::Channel, "ok:5", "1").await;
    assert_eq!(&message(&mut kept).await.channel[..], b"ok:5");
}

/// Two calls wait for the same connection; the one with a forbidden name must not drag the other
/// along.
#[tokio::test]
async fn a_refused_call_does_not_harm_one_that_was_sent_with_it() {
    let server = RedisServer::builder().acl_user("app", "on >pw +@all ~* &ok:*").start().await;
    let client = Client::connect(server.tcp_url().replace("redis://", "redis://app:pw@")).await.unwrap();
    let mux = client.mux();
    let (fine, foul, also) = tokio::join!(
        mux.subscribe(["ok:1", "ok:2"]).into_future(),
        mux.subscribe(["secret"]).into_future(),
        mux.subscribe(["ok:3"]).into_future(),
    );
    assert_eq!(foul.unwrap_err().code(), Some("NOPERM"));
    let mut fine = fine.unwrap();
    let _also = also.unwrap();
    publish(&client, "ok:2", "1").await;
    assert_eq!(&message(&mut fine).await.payload[..], b"1");
}

#[tokio::test]
async fn names_are_checked_before_anything_is_sent() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let mux = client.mux();
    let none: [&str; 0] = [];
    for wrong in [
        mux.subscribe(none),
        mux.subscribe([""]),
        mux.subscribe(["a", ""]),
        mux.subscribe(["x".repeat(70_000)]),
    ] {
        let error = wrong.timeout(Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(error, CallError::Invalid(_)), "{error}");
    }
    assert_eq!(mux.stats().connections, 0);
}
