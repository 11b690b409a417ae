//! Many tasks that subscribe and unsubscribe the same few names at random: in the end the server's
//! view is the mux's view, and nothing is left behind.

use super::{KINDS, SOON, ServerSubscriptions, message, publish, subscriber_connections, tell};
use crate::support::{ms, soon, tasks};
use firth_redis::mux::{Mux, Subscription, SubscriptionKind};
use firth_redis::{CallError, Client, cmd};
use firth_testkit::{Flavor, RedisServer, on_both, wait};
use std::collections::BTreeSet;
use std::sync::Arc;

on_both!(a_hundred_tasks_leave_the_server_with_what_the_mux_believes_it_has);

const TASKS: u64 = 100;
pub(super) const NAMES: u8 = 20;

/// One task: some random steps, then one last subscription that it keeps.
async fn wander(mux: Mux, client: Client, seed: u64, steps: usize) -> Subscription {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut held: Vec<Subscription> = Vec::new();
    for _ in 0..steps {
        match random.u8(..10) {
            0..5 => held.push(subscribe(&mux, &mut random).await.unwrap()),
            5 => cancelled(&mux, &mut random).await,
            6 => tell_something(&client, &mut random).await,
            7 if !held.is_empty() => {
                let last = held.swap_remove(random.usize(..held.len()));
                soon(last.unsubscribe()).await.unwrap();
            }
            _ if !held.is_empty() => drop(held.swap_remove(random.usize(..held.len()))),
            _ => {}
        }
    }
    drop(held);
    subscribe(&mux, &mut random).await.unwrap()
}

fn some_names(random: &mut fastrand::Rng) -> (SubscriptionKind, Vec<String>) {
    let kind = KINDS[random.usize(..3)];
    let names = (0..random.usize(1..4)).map(|_| format!("n{}", random.u8(..NAMES))).collect();
    (kind, names)
}

async fn subscribe(mux: &Mux, random: &mut fastrand::Rng) -> Result<Subscription, CallError> {
    let (kind, names) = some_names(random);
    match kind {
        SubscriptionKind::Channel => mux.subscribe(names).await,
        SubscriptionKind::Pattern => mux.subscribe_pattern(names).await,
        SubscriptionKind::Sharded => mux.subscribe_sharded(names).await,
    }
}

/// A call that is dropped at a random moment.
async fn cancelled(mux: &Mux, random: &mut fastrand::Rng) {
    let patience = std::time::Duration::from_micros(random.u64(..2_000));
    let _ = tokio::time::timeout(patience, subscribe(mux, random)).await;
}

async fn tell_something(client: &Client, random: &mut fastrand::Rng) {
    let (kind, names) = some_names(random);
    tell(client, kind, &names[0], "0").await;
}

/// What the last subscriptions want.
fn wanted(kept: &[Subscription], kind: SubscriptionKind) -> BTreeSet<String> {
    let of_kind = kept.iter().filter(|s| s.kind() == kind);
    of_kind.flat_map(Subscription::names).map(|n| String::from_utf8(n.to_vec()).unwrap()).collect()
}

/// Runs the tasks; when they are done and `calm` has returned, checks every server's view against
/// the mux's. Closes the client.
pub(super) async fn churn(client: &Client, servers: &[&RedisServer], steps: usize, calm: impl AsyncFnOnce()) {
    let mux = client.mux_with(firth_redis::mux::MuxConfig::default());
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let wanderers: Vec<_> = (0..TASKS)
        .map(|n| tokio::spawn(wander(mux.clone(), client.clone(), seed.wrapping_add(n), steps)))
        .collect();
    let mut kept = Vec::new();
    for wanderer in wanderers {
        kept.push(tokio::time::timeout(ms(60_000), wanderer).await.expect("in time").unwrap());
    }
    calm().await;
    let [channels, patterns, sharded] = KINDS.map(|kind| wanted(&kept, kind));
    agree(servers, &mux, &channels, patterns.len(), &sharded).await;
    let stats = mux.stats();
    assert_eq!((stats.subscriptions, stats.dropped), (TASKS as usize, 0), "{stats:?}");
    assert!(stats.connections <= servers.len(), "{stats:?}");
    everybody_hears(client, &mut kept).await;
    drop(kept);
    agree(servers, &mux, &BTreeSet::new(), 0, &BTreeSet::new()).await;
    mux.close().await;
    for server in servers {
        wait::until(SOON, "no connection is left", async || subscriber_connections(server).await == 0).await;
    }
    client.close().await;
    wait::until(SOON, "no task is left", async || tasks() == 0).await;
}

/// Waits until the servers together hold exactly these names, each once, and the mux counts the
/// same.
async fn agree(
    servers: &[&RedisServer],
    mux: &Mux,
    channels: &BTreeSet<String>,
    patterns: usize,
    sharded: &BTreeSet<String>,
) {
    let found = wait::until_some(SOON, async || {
        let mut all = ServerSubscriptions::default();
        let mut names = 0;
        for server in servers {
            let view = ServerSubscriptions::of(server).await;
            names += view.channels.len() + view.sharded.len();
            all.channels.extend(view.channels);
            all.sharded.extend(view.sharded);
            all.patterns += view.patterns;
        }
        let once = names == all.channels.len() + all.sharded.len();
        let right = all.channels == *channels && all.sharded == *sharded && all.patterns == patterns as i64;
        let stats = mux.stats();
        let counted = (stats.channels, stats.patterns, stats.sharded, stats.unserved)
            == (channels.len(), patterns, sharded.len(), 0);
        (once && right && counted).then_some(())
    });
    if found.await.is_none() {
        for server in servers {
            eprintln!("{:?}", ServerSubscriptions::of(server).await);
        }
        panic!("wanted {channels:?}, {patterns} patterns, {sharded:?}; the mux has {:?}", mux.stats());
    }
}

/// Publishes once to every name of every subscription and reads it there.
async fn everybody_hears(client: &Client, kept: &mut [Subscription]) {
    for (round, subscription) in kept.iter_mut().enumerate() {
        let kind = subscription.kind();
        let names = subscription.names().to_vec();
        for name in names {
            let token = format!("{round}-token");
            let name = std::str::from_utf8(&name).unwrap().to_owned();
            // In a cluster only the node that serves an ordinary channel counts its subscriber.
            let receivers = tell(client, kind, &name, &token).await;
            assert!(receivers >= 1 || kind != SubscriptionKind::Sharded, "{name} has a subscriber");
            while message(subscription).await.payload != token.as_bytes() {}
        }
    }
}

async fn a_hundred_tasks_leave_the_server_with_what_the_mux_believes_it_has(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = Client::connect(server.tcp_url()).await.unwrap();
    churn(&client, &[&server], 60, async || ()).await;
}

/// The narrowest form of the race: the last one leaves while the next one comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defect_2_a_newcomer_never_inherits_the_end_of_the_one_who_leaves() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = Arc::new(Client::connect(server.tcp_url()).await.unwrap());
    let mut last = client.mux().subscribe(["c"]).await.unwrap();
    for n in 0..1_000 {
        let mux = client.mux().clone();
        let leaving =
            tokio::spawn(
                async move { if n % 2 == 0 { drop(last) } else { last.unsubscribe().await.unwrap() } },
            );
        let next = tokio::spawn(async move { mux.subscribe(["c"]).await.unwrap() });
        last = next.await.unwrap();
        assert_eq!(publish(&client, "c", &n.to_string()).await, 1, "round {n}: confirmed means confirmed");
        assert_eq!(message(&mut last).await.payload, n.to_string().as_bytes());
        leaving.await.unwrap();
    }
    let _: i64 = client.call(cmd("PUBLISH").arg("c").arg("end")).await.unwrap();
}
