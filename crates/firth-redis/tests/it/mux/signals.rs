//! Signals about gaps that last, and resubscription on demand, on a single server.

use super::{KINDS, SOON, ServerSubscriptions, client, message, name, signal, tell};
use crate::support::ms;
use firth_redis::mux::{GapReason, MuxConfig, Signal, Subscription, SubscriptionKind};
use firth_redis::{Client, cmd};
use firth_testkit::{Direction, Flavor, Proxy, RedisServer, on_both, wait};
use std::time::Duration;

on_both!(
    a_gap_that_lasts_is_called_stalled_and_then_timed_out_and_still_ends,
    without_auto_resubscribe_a_gap_ends_when_it_is_asked_to,
    c20_resubscribe_works_on_a_thread_without_a_runtime,
    defect_4_an_idle_connection_that_breaks_is_told,
);

fn short() -> MuxConfig {
    let mut config = MuxConfig::default();
    config.stalled_after = ms(200);
    config.timed_out_after = Duration::from_secs(1);
    config
}

async fn one_of_each_kind(mux: &firth_redis::mux::Mux) -> Vec<Subscription> {
    vec![
        mux.subscribe(["a", "b"]).await.unwrap(),
        mux.subscribe_pattern(["a"]).await.unwrap(),
        mux.subscribe_sharded(["a"]).await.unwrap(),
    ]
}

async fn everybody_hears(client: &Client, all: &mut [Subscription]) {
    for kind in KINDS {
        assert!(tell(client, kind, "a", "1").await >= 1, "{kind:?}");
    }
    for subscription in all {
        assert_eq!(&message(subscription).await.payload[..], b"1");
    }
}

async fn a_gap_that_lasts_is_called_stalled_and_then_timed_out_and_still_ends(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let mux = client.mux_with(short());
    let mut all = one_of_each_kind(&mux).await;
    let killed = std::time::Instant::now();
    server.kill().await;
    for subscription in &mut all {
        let names = subscription.names().len();
        let lost = signal(subscription).await;
        assert!(killed.elapsed() < ms(1_000), "told after {:?}", killed.elapsed());
        assert!(matches!(&lost, Signal::NodeLost { channels, .. } if channels.len() == names), "{lost:?}");
        let gap = signal(subscription).await;
        let Signal::Gap { reason: GapReason::NodeLost, since, channels } = gap else { panic!("{gap:?}") };
        assert!(since >= killed && channels.len() == names);
    }
    for subscription in &mut all {
        let stalled = signal(subscription).await;
        assert!(matches!(stalled, Signal::Stalled { after, .. } if after == ms(200)), "{stalled:?}");
        let late = signal(subscription).await;
        assert!(matches!(late, Signal::TimedOut { after, .. } if after == ms(1_000)), "{late:?}");
    }
    assert!(killed.elapsed() >= ms(1_000));
    let stats = mux.stats();
    assert_eq!((stats.gaps, stats.stalled, stats.timed_out, stats.resumed, stats.unserved), (4, 4, 4, 0, 4));
    server.restart().await;
    for subscription in &mut all {
        let resumed = signal(subscription).await;
        assert!(matches!(resumed, Signal::Resumed { after, .. } if after >= ms(1_000)), "{resumed:?}");
    }
    wait::until(SOON, "the client is back", async || client.call::<()>(cmd("PING")).await.is_ok()).await;
    everybody_hears(&client, &mut all).await;
    assert_eq!((mux.stats().resumed, mux.stats().unserved), (4, 0));
}

async fn c20_resubscribe_works_on_a_thread_without_a_runtime(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let mux = client.mux_with({
        let mut config = short();
        config.auto_resubscribe = false;
        config
    });
    let mut subscription = mux.subscribe(["a"]).await.unwrap();
    client.call::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await.unwrap();
    for wanted in ["lost", "gap", "stalled", "timed-out"] {
        assert_eq!(name(&signal(&mut subscription).await), wanted);
    }
    let asked = std::thread::spawn(move || {
        assert!(tokio::runtime::Handle::try_current().is_err(), "the thread has no runtime");
        subscription.resubscribe();
        subscription
    });
    let mut subscription = asked.join().expect("resubscribe does not panic");
    assert_eq!(name(&signal(&mut subscription).await), "resumed");
    tell(&client, SubscriptionKind::Channel, "a", "1").await;
    assert_eq!(&message(&mut subscription).await.payload[..], b"1");
}

async fn without_auto_resubscribe_a_gap_ends_when_it_is_asked_to(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let mux = client.mux_with({
        let mut config = short();
        config.auto_resubscribe = false;
        config
    });
    let mut all = one_of_each_kind(&mux).await;
    client.call::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await.unwrap();
    for subscription in &mut all {
        for wanted in ["lost", "gap", "stalled", "timed-out"] {
            assert_eq!(name(&signal(subscription).await), wanted);
        }
    }
    assert!(ServerSubscriptions::of(&server).await.is_empty(), "nobody asked for anything");
    // A new subscriber gets what it asks for; so does then every subscriber of the name.
    let mut newcomer = mux.subscribe(["b"]).await.unwrap();
    let Signal::Resumed { channels, .. } = signal(&mut all[0]).await else { panic!("b is back") };
    assert_eq!(channels[..], [&b"b"[..]]);
    all.iter().for_each(Subscription::resubscribe);
    for subscription in &mut all {
        assert_eq!(name(&signal(subscription).await), "resumed");
    }
    everybody_hears(&client, &mut all).await;
    tell(&client, SubscriptionKind::Channel, "b", "2").await;
    assert_eq!(&message(&mut newcomer).await.payload[..], b"2");
}

/// Permissions that change while subscriptions live: what is forbidden is told, what is allowed
/// goes on.
#[tokio::test]
async fn a_permission_that_is_taken_away_is_told_and_comes_back_with_the_permission() {
    let server = RedisServer::builder().acl_user("app", "on >pw +@all ~* &ok:* &maybe:*").start().await;
    let client = Client::connect(server.tcp_url().replace("redis://", "redis://app:pw@")).await.unwrap();
    let mut allowed = client.mux().subscribe(["ok:1", "ok:2"]).await.unwrap();
    let mut maybe = client.mux().subscribe(["maybe:1"]).await.unwrap();
    server.order(&["ACL", "SETUSER", "app", "resetchannels", "&ok:*"]).await;
    for wanted in ["lost", "gap", "resumed"] {
        assert_eq!(name(&signal(&mut allowed).await), wanted);
    }
    for wanted in ["lost", "gap"] {
        assert_eq!(name(&signal(&mut maybe).await), wanted);
    }
    let refused = signal(&mut maybe).await;
    assert!(
        matches!(&refused, Signal::Gap { reason: GapReason::Refused(words), .. } if words.starts_with("NOPERM")),
        "{refused:?}"
    );
    assert_eq!(tell(&client, SubscriptionKind::Channel, "ok:2", "1").await, 1);
    assert_eq!(&message(&mut allowed).await.channel[..], b"ok:2");
    server.order(&["ACL", "SETUSER", "app", "&maybe:*"]).await;
    loop {
        match name(&signal(&mut maybe).await) {
            "resumed" => break,
            "stalled" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(tell(&client, SubscriptionKind::Channel, "maybe:1", "1").await, 1);
}

/// Nothing is sent and nothing comes: the break is told all the same, whether the peer says so or
/// just falls silent.
async fn defect_4_an_idle_connection_that_breaks_is_told(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(crate::support::watchful(proxy.url())).await.unwrap();
    let mut idle = client.mux().subscribe(["a"]).await.unwrap();
    proxy.cut().await;
    for wanted in ["lost", "gap", "resumed"] {
        assert_eq!(name(&signal(&mut idle).await), wanted);
    }
    proxy.half_open(Direction::Both);
    for wanted in ["lost", "gap"] {
        assert_eq!(name(&signal(&mut idle).await), wanted);
    }
    proxy.heal().await;
    while name(&signal(&mut idle).await) != "resumed" {}
    wait::until(SOON, "it is heard again", async || {
        matches!(client.call::<i64>(cmd("PUBLISH").arg("a").arg("1")).await, Ok(1))
    })
    .await;
    assert_eq!(&message(&mut idle).await.payload[..], b"1");
}
