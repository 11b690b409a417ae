//! Slots that move while messages flow: sharded channels follow with a short, told gap; ordinary
//! ones notice nothing.

use super::accounting::{PublishLoad, PublishMode, PublishedMessages, Reader, ReceivedEvents};
use super::clusters::{asked_in_all, builder, channels_at, connect, each, start};
use super::{SOON, ServerSubscriptions, message, name, publish, signal, spublish};
use firth_redis::mux::{GapReason, Mux, MuxConfig, Signal};
use firth_testkit::{Flavor, RedisCluster, on_both, slot_of, wait};
use std::sync::Arc;
use std::time::Duration;

on_both!(
    defect_3_a_subscription_that_the_server_takes_away_is_taken_up_at_the_new_owner,
    defect_4_a_redirection_that_comes_as_a_reply_is_followed,
    defect_5_ordinary_channels_are_not_bound_to_slots,
    a_slot_moved_key_by_key_loses_only_what_nobody_could_have_received,
);

/// Two masters are enough to move something.
async fn pair(flavor: Flavor) -> Arc<RedisCluster> {
    start(builder(flavor).masters(2).replicas_per_master(0)).await
}

async fn defect_3_a_subscription_that_the_server_takes_away_is_taken_up_at_the_new_owner(flavor: Flavor) {
    let cluster = pair(flavor).await;
    let client = connect(&cluster).await;
    let channel = channels_at(&cluster, 0, 1).await.remove(0);
    let mut subscription = client.mux().subscribe_sharded([channel.clone()]).await.unwrap();
    cluster.migrate_slot(slot_of(&channel), 0, 1).await;
    let gap = signal(&mut subscription).await;
    assert!(matches!(&gap, Signal::Gap { reason: GapReason::Migrated, .. }), "{gap:?}");
    let moved = signal(&mut subscription).await;
    let Signal::Moved { slot, from, to, channels } = &moved else { panic!("{moved:?}") };
    assert_eq!((*slot, channels.len()), (slot_of(&channel), 1));
    assert_eq!((from.port, to.port), (cluster.node(0).addr().port(), cluster.node(1).addr().port()));
    let resumed = signal(&mut subscription).await;
    let Signal::Resumed { after, .. } = resumed else { panic!("{resumed:?}") };
    println!("silent for {after:?}");
    assert!(after < Duration::from_secs(1), "long before the next look at the topology: {after:?}");
    assert_eq!(spublish(&client, &channel, "1").await, 1);
    assert_eq!(&message(&mut subscription).await.payload[..], b"1");
}

async fn defect_4_a_redirection_that_comes_as_a_reply_is_followed(flavor: Flavor) {
    let cluster = pair(flavor).await;
    let client = connect(&cluster).await;
    let channels = channels_at(&cluster, 0, 2).await;
    // A subscription elsewhere, so that both connections stand and nothing but the reply can tell.
    let elsewhere = channels_at(&cluster, 1, 1).await;
    let _other = client.mux().subscribe_sharded(elsewhere).await.unwrap();
    let mut kept = client.mux().subscribe_sharded([channels[1].clone()]).await.unwrap();
    cluster.migrate_slot(slot_of(&channels[0]), 0, 1).await;
    let mut moved = client.mux().subscribe_sharded([channels[0].clone()]).await.unwrap();
    assert_eq!(spublish(&client, &channels[0], "1").await, 1);
    assert_eq!(&message(&mut moved).await.payload[..], b"1");
    assert!(ServerSubscriptions::of(cluster.node(1).server()).await.sharded.contains(&channels[0]));
    assert!(ServerSubscriptions::of(cluster.node(0).server()).await.sharded.contains(&channels[1]));
    assert_eq!((moved.pending(), client.mux().stats().gaps), (0, 0), "a detour is not a gap");
    assert_eq!(spublish(&client, &channels[1], "2").await, 1);
    assert_eq!(&message(&mut kept).await.payload[..], b"2");
}

async fn defect_5_ordinary_channels_are_not_bound_to_slots(flavor: Flavor) {
    let cluster = pair(flavor).await;
    let client = connect(&cluster).await;
    let names = channels_at(&cluster, 0, 8).await;
    let mut plain = client.mux().subscribe(names.clone()).await.unwrap();
    let mut pattern = client.mux().subscribe_pattern(["ch-*"]).await.unwrap();
    let before = asked_in_all(&cluster, "subscribe").await + asked_in_all(&cluster, "unsubscribe").await;
    let views = each(&cluster, ServerSubscriptions::of).await;
    for name in &names {
        cluster.migrate_slot(slot_of(name), 0, 1).await;
    }
    cluster.settle().await;
    // The client learns of it: a sharded subscription is redirected.
    let _sharded = client.mux().subscribe_sharded(names.clone()).await.unwrap();
    for name in &names {
        publish(&client, name, "1").await;
        assert_eq!(message(&mut plain).await.channel, name.as_bytes());
        assert_eq!(message(&mut pattern).await.channel, name.as_bytes());
    }
    let after = asked_in_all(&cluster, "subscribe").await + asked_in_all(&cluster, "unsubscribe").await;
    assert_eq!(before, after, "nothing was subscribed again");
    for (before, after) in views.iter().zip(each(&cluster, ServerSubscriptions::of).await) {
        assert_eq!((&before.channels, before.patterns), (&after.channels, after.patterns));
    }
    assert_eq!((plain.pending(), pattern.pending()), (0, 0), "not even a gap was told");
}

/// What a migration did to the messages of some channels.
fn judge(ledger: &PublishedMessages, log: &ReceivedEvents, moved: &[String]) {
    for channel in moved {
        let unheard = ledger.all_came(channel, log);
        let silence = log.gaps(channel);
        println!("{channel}: {unheard} of {} had no receiver, silent for {silence:?}", ledger.len(channel));
        ledger.no_silent_gap(channel, log);
        assert_eq!(log.signals(channel), ["gap", "moved", "resumed"], "{channel}");
        assert!(silence[0] < Duration::from_secs(1), "{channel}: {silence:?}");
    }
}

async fn a_slot_moved_key_by_key_loses_only_what_nobody_could_have_received(flavor: Flavor) {
    let cluster = pair(flavor).await;
    let client = connect(&cluster).await;
    let moving = channels_at(&cluster, 0, 6).await;
    let staying = channels_at(&cluster, 1, 2).await;
    for n in 0..40 {
        // Keys, so that moving a slot takes its time.
        let key = format!("{{{}}}:{n}", moving[n % 6]);
        cluster.node(0).server().order(&["SET", &key, "x"]).await;
    }
    under_load(&cluster, &client, &moving, &staying, async || {
        for channel in &moving {
            cluster.migrate_slot(slot_of(channel), 0, 1).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_moved_at_once_lose_only_what_nobody_could_have_received() {
    let cluster = pair(Flavor::Valkey).await;
    let client = connect(&cluster).await;
    let mut moving = channels_at(&cluster, 0, 8).await;
    moving.retain(|channel| slot_of(channel) < 8_000);
    let staying = channels_at(&cluster, 1, 2).await;
    // Not all of them: a master without slots would become a replica.
    under_load(&cluster, &client, &moving, &staying, async || cluster.migrate_atomic(0..=8_000, 0, 1).await)
        .await;
}

/// Publishes to sharded and ordinary channels while `change` moves the slots of some.
async fn under_load(
    cluster: &Arc<RedisCluster>,
    client: &firth_redis::Client,
    moving: &[String],
    staying: &[String],
    change: impl AsyncFn(),
) {
    let sharded: Vec<String> = moving.iter().chain(staying).cloned().collect();
    let mux = client.mux();
    let reader = Reader::start(mux.subscribe_sharded(sharded.clone()).await.unwrap());
    let plain = Reader::start(mux.subscribe(moving.to_vec()).await.unwrap());
    let sharded_load =
        PublishLoad::start(cluster, sharded.iter().map(|c| (c.clone(), PublishMode::Sharded)).collect());
    let plain_load = PublishLoad::start(
        cluster,
        moving.iter().map(|c| (c.clone(), PublishMode::Ordinary(None))).collect(),
    );
    wait::until(SOON, "messages flow", async || mux.stats().received > 200).await;
    change().await;
    let back = async || mux.stats().resumed >= moving.len() as u64;
    wait::until(SOON, "all are back", back).await;
    let then = mux.stats().received;
    wait::until(SOON, "messages flow again", async || mux.stats().received > then + 200).await;
    let sent = sharded_load.stop().await;
    let sent_plain = plain_load.stop().await;
    let (_s, log) = reader.finish(&sent).await;
    judge(&sent, &log, moving);
    for channel in staying {
        assert_eq!(sent.all_came(channel, &log), 0);
        assert!(log.signals(channel).is_empty());
    }
    let (_p, log) = plain.finish_with_all(&sent_plain).await;
    for channel in moving {
        assert_eq!(sent_plain.missing(channel, &log), [""; 0], "{channel}, whatever node took it");
        assert!(log.signals(channel).is_empty(), "ordinary channels notice nothing");
    }
    assert_eq!(each(cluster, async |s| super::subscriber_connections(s).await).await, [1, 1]);
}

/// A mux that waits for `resubscribe`, so that the caller's thread opens the missing connection.
fn manual(client: &firth_redis::Client) -> Mux {
    let mut config = MuxConfig::default();
    config.auto_resubscribe = false;
    config.stalled_after = crate::support::ms(100);
    client.mux_with(config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c20_resubscribe_opens_a_connection_on_a_thread_without_a_runtime() {
    let cluster = pair(Flavor::Redis).await;
    let client = connect(&cluster).await;
    let mux = manual(&client);
    let channel = channels_at(&cluster, 0, 1).await.remove(0);
    let mut subscription = mux.subscribe_sharded([channel.clone()]).await.unwrap();
    cluster.migrate_slot(slot_of(&channel), 0, 1).await;
    for wanted in ["gap", "stalled"] {
        assert_eq!(name(&signal(&mut subscription).await), wanted);
    }
    assert_eq!(mux.stats().connections, 1, "the new owner has no connection yet");
    let plain = std::thread::spawn(move || {
        assert!(tokio::runtime::Handle::try_current().is_err(), "no runtime on this thread");
        subscription.resubscribe();
        subscription
    });
    let joined = tokio::task::spawn_blocking(|| plain.join()).await.unwrap();
    let mut subscription = joined.expect("resubscribe does not panic");
    assert_eq!(mux.stats().connections, 2, "the plain thread opened it");
    for wanted in ["moved", "resumed"] {
        assert_eq!(name(&signal(&mut subscription).await), wanted);
    }
    assert_eq!(spublish(&client, &channel, "1").await, 1);
    assert_eq!(&message(&mut subscription).await.payload[..], b"1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_auto_resubscribe_a_moved_channel_waits_to_be_asked_for() {
    let cluster = pair(Flavor::Redis).await;
    let client = connect(&cluster).await;
    let mux = manual(&client);
    let channel = channels_at(&cluster, 0, 1).await.remove(0);
    let mut subscription = mux.subscribe_sharded([channel.clone()]).await.unwrap();
    cluster.migrate_slot(slot_of(&channel), 0, 1).await;
    for wanted in ["gap", "stalled"] {
        assert_eq!(name(&signal(&mut subscription).await), wanted);
    }
    assert!(
        each(&cluster, ServerSubscriptions::of).await.iter().all(ServerSubscriptions::is_empty),
        "nobody asked for anything"
    );
    subscription.resubscribe();
    for wanted in ["moved", "resumed"] {
        assert_eq!(name(&signal(&mut subscription).await), wanted);
    }
    assert_eq!(spublish(&client, &channel, "1").await, 1);
    assert_eq!(&message(&mut subscription).await.payload[..], b"1");
}
