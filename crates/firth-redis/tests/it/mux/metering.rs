//! What the mux tells about itself as metrics: right values, bounded labels.

use super::{SOON, client, event, message, publish, signal, spublish};
use firth_redis::mux::{Mux, MuxConfig};
use firth_redis::{Client, cmd};
use firth_testkit::{Flavor, RedisServer, wait};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use metrics_util::{CompositeKey, MetricKind};
use std::collections::BTreeMap;

/// A mux whose metrics go to a recorder of its own.
fn metered(client: &Client, recorder: &DebuggingRecorder, config: MuxConfig) -> Mux {
    metrics::with_local_recorder(recorder, || client.mux_with(config))
}

/// Everything recorded so far, added up: `name{label=value}` → number (for histograms, of values).
struct Readings {
    snapshotter: Snapshotter,
    sums: BTreeMap<String, f64>,
    keys: Vec<CompositeKey>,
}

impl Readings {
    fn new(recorder: &DebuggingRecorder) -> Self {
        Self { snapshotter: recorder.snapshotter(), sums: BTreeMap::new(), keys: Vec::new() }
    }

    /// A snapshot takes everything away, gauges too.
    fn take(&mut self) {
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let labels: Vec<String> =
                key.key().labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
            let name = match labels.is_empty() {
                true => key.key().name().to_owned(),
                false => format!("{}{{{}}}", key.key().name(), labels.join(",")),
            };
            let sum = self.sums.entry(name).or_default();
            match value {
                DebugValue::Counter(n) => *sum += n as f64,
                DebugValue::Gauge(n) => *sum += n.into_inner(),
                DebugValue::Histogram(values) => *sum += values.len() as f64,
            }
            self.keys.push(key);
        }
    }

    fn get(&mut self, name: &str) -> f64 {
        self.take();
        *self.sums.get(name).unwrap_or_else(|| panic!("{name} is not recorded: {:?}", self.sums.keys()))
    }

    async fn reaches(&mut self, name: &str, wanted: f64) {
        let reached = wait::until_some(SOON, async || (self.get(name) == wanted).then_some(()));
        if reached.await.is_none() {
            panic!("{name} is {}, not {wanted}", self.get(name));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sub_41_callbacks_are_counted_by_kind_and_what_was_never_run_is_told() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let recorder = DebuggingRecorder::new();
    let mut readings = Readings::new(&recorder);
    let mut config = MuxConfig::default();
    config.max_callbacks = 1;
    let mux = metered(&client, &recorder, config);
    let (began, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let stuck = mux.subscribe_pattern(["p*"]).for_each(move |_, _| {
        began.send(()).unwrap();
        std::future::pending()
    });
    let stuck = stuck.await.unwrap();
    assert!(mux.subscribe(["a"]).for_each(|_, _| async {}).await.is_err());
    assert_eq!(readings.get("firth_mux_callback_refused_total"), 1.0);
    for _ in 0..3 {
        publish(&client, "p1", "x").await;
    }
    readings.reaches("firth_mux_messages_received_total{kind=pattern}", 3.0).await;
    begun.recv().await.unwrap();
    drop(stuck);
    assert_eq!(readings.get("firth_mux_callback_events_dropped_total"), 2.0, "the first was being run");
    // Another kind has its own count.
    let held = mux.subscribe_sharded(["s"]).for_each(|_, _| async {}).await.unwrap();
    spublish(&client, "s", "x").await;
    readings.reaches("firth_mux_callbacks_total{kind=sharded}", 1.0).await;
    assert_eq!(readings.get("firth_mux_callbacks_total{kind=pattern}"), 0.0, "it never ended");
    drop(held);
}

/// The names between quotes that begin with `firth_`, without their labels.
fn names_in(text: &str, quote: char) -> std::collections::BTreeSet<&str> {
    let quoted = text.split(quote).filter(|part| part.starts_with("firth_"));
    quoted.map(|name| name.split('{').next().unwrap_or(name)).collect()
}

#[test]
fn sub_42_every_metric_stands_in_the_guide() {
    let mut recorded = names_in(include_str!("../../../src/mux/meter.rs"), '"');
    recorded.extend(names_in(include_str!("../../../src/metrics/mod.rs"), '"'));
    assert!(recorded.len() > 40, "{recorded:?}");
    assert_eq!(names_in(include_str!("../../../docs/guide.md"), '`'), recorded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defect_9_metrics_say_what_happened_and_what_is_held() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let recorder = DebuggingRecorder::new();
    let mut readings = Readings::new(&recorder);
    let mux = metered(&client, &recorder, MuxConfig::default());
    let mut first = mux.subscribe(["a", "b"]).await.unwrap();
    let mut second = mux.subscribe(["a"]).await.unwrap();
    let mut sharded = mux.subscribe_sharded(["a"]).await.unwrap();
    let pattern = mux.subscribe_pattern(["z*"]).await.unwrap();

    // What is held: names at the server are counted once, handles apart from them.
    readings.reaches("firth_mux_server_subscriptions{kind=channel}", 2.0).await;
    readings.reaches("firth_mux_server_subscriptions{kind=sharded}", 1.0).await;
    readings.reaches("firth_mux_server_subscriptions{kind=pattern}", 1.0).await;
    readings.reaches("firth_mux_subscriptions", 4.0).await;
    readings.reaches("firth_mux_connections", 1.0).await;
    assert_eq!(readings.get("firth_mux_homeless_channels"), 0.0);
    assert_eq!(
        readings.get("firth_mux_subscribe_attempts_total{kind=channel}"),
        2.0,
        "`a` was there already"
    );
    assert_eq!(readings.get("firth_mux_subscribe_confirmed_total{kind=channel}"), 2.0);
    assert_eq!(readings.get("firth_mux_connections_opened_total"), 1.0);

    // Messages are counted as they come from the server, however many subscribers share them.
    publish(&client, "a", "1").await;
    spublish(&client, "a", "1").await;
    for subscription in [&mut first, &mut second, &mut sharded] {
        message(subscription).await;
    }
    assert_eq!(readings.get("firth_mux_messages_received_total{kind=channel}"), 1.0);
    assert_eq!(readings.get("firth_mux_messages_received_total{kind=sharded}"), 1.0);
    publish(&client, "b", "1").await;
    readings.reaches("firth_mux_queued_events", 1.0).await;
    message(&mut first).await;
    readings.reaches("firth_mux_queued_events", 0.0).await;

    // A gap that has not ended is not counted as ended.
    server.kill().await;
    signal(&mut first).await;
    assert_eq!(readings.get("firth_mux_gaps_total{reason=node_lost}"), 4.0);
    assert_eq!(readings.get("firth_mux_gaps_resumed_total"), 0.0);
    readings.reaches("firth_mux_homeless_channels", 4.0).await;
    readings.reaches("firth_mux_server_subscriptions{kind=channel}", 0.0).await;
    assert_eq!(readings.get("firth_mux_connections_lost_total"), 1.0);
    drop(pattern);
    wait::until(SOON, "a try fails", async || readings.get("firth_mux_connections_failed_total") >= 1.0)
        .await;
    server.restart().await;
    readings.reaches("firth_mux_gaps_resumed_total", 3.0).await;
    assert_eq!(readings.get("firth_mux_gap_seconds"), 3.0, "the one whose subscriber left has no end");
    assert_eq!(readings.get("firth_mux_connections_opened_total"), 2.0);
    assert_eq!(readings.get("firth_mux_connections_lost_total"), 1.0);
    assert_eq!(readings.get("firth_mux_channels_moved_total"), 0.0);
    readings.reaches("firth_mux_server_subscriptions{kind=channel}", 2.0).await;

    // Gauges add up over muxes and fall back when one ends.
    let other = metered(&client, &recorder, MuxConfig::default());
    wait::until(SOON, "the client is back", async || client.call::<()>(cmd("PING")).await.is_ok()).await;
    let _more = other.subscribe(["x", "y", "z"]).await.unwrap();
    readings.reaches("firth_mux_server_subscriptions{kind=channel}", 5.0).await;
    mux.close().await;
    readings.reaches("firth_mux_server_subscriptions{kind=channel}", 3.0).await;
    other.close().await;
    for gauge in
        ["firth_mux_subscriptions", "firth_mux_connections", "firth_mux_server_subscriptions{kind=channel}"]
    {
        readings.reaches(gauge, 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drops_refusals_and_callbacks_are_counted() {
    let server = RedisServer::builder().acl_user("app", "on >pw +@all ~* &ok:*").start().await;
    let client = Client::connect(server.tcp_url().replace("redis://", "redis://app:pw@")).await.unwrap();
    let recorder = DebuggingRecorder::new();
    let mut readings = Readings::new(&recorder);
    let mux = metered(&client, &recorder, {
        let mut config = MuxConfig::default();
        config.buffer.bytes = 1_024;
        config.max_callbacks = 77;
        config.stalled_after = crate::support::ms(100);
        config.timed_out_after = crate::support::ms(1_000);
        config
    });
    mux.subscribe(["secret"]).await.unwrap_err();
    assert_eq!(readings.get("firth_mux_subscribe_refused_total{kind=channel}"), 1.0);
    let mut slow = mux.subscribe(["ok:slow"]).await.unwrap();
    for _ in 0..10 {
        publish(&client, "ok:slow", &"x".repeat(500)).await;
    }
    readings.reaches("firth_mux_messages_received_total{kind=channel}", 10.0).await;
    let dropped = readings.get("firth_mux_messages_dropped_total");
    assert!((8.0..10.0).contains(&dropped), "{dropped}");
    event(&mut slow).await;

    let held = mux.subscribe(["ok:c"]).for_each(|event, _| async move {
        assert_ne!(event.message().map(|m| &m.payload[..]), Some(&b"2"[..]));
    });
    let held = held.await.unwrap();
    for n in 0..5 {
        publish(&client, "ok:c", &n.to_string()).await;
    }
    readings.reaches("firth_mux_callbacks_total{kind=channel}", 5.0).await;
    assert_eq!(readings.get("firth_mux_callback_panics_total{kind=channel}"), 1.0);
    assert_eq!(readings.get("firth_mux_callback_seconds"), 5.0);
    assert!(readings.get("firth_mux_callback_wait_seconds") >= 1.0);
    readings.reaches("firth_mux_callback_queue", 0.0).await;
    assert_eq!(readings.get("firth_mux_callback_queue_capacity"), 77.0);
    assert!(readings.get("firth_mux_callback_submissions_total") >= 1.0);
    assert!(readings.get("firth_mux_delivery_seconds") >= 2.0, "one reader and one callback have read");
    drop(held);

    server.kill().await;
    readings.reaches("firth_mux_gaps_stalled_total", 1.0).await;
    readings.reaches("firth_mux_gaps_timed_out_total", 1.0).await;
    assert_eq!(readings.get("firth_mux_gaps_resumed_total"), 0.0);
    mux.close().await;
    drop((slow, mux));
    readings.reaches("firth_mux_callback_queue_capacity", 0.0).await;

    // Labels are bounded: none names a channel, a pattern, a slot or a node.
    assert!(readings.keys.iter().any(|key| key.kind() == MetricKind::Histogram));
    for key in &readings.keys {
        for label in key.key().labels() {
            let bounded = match label.key() {
                "kind" => ["channel", "pattern", "sharded"].contains(&label.value()),
                "reason" => ["migrated", "node_lost", "reassigned", "refused"].contains(&label.value()),
                _ => false,
            };
            assert!(bounded, "{label:?} of {}", key.key().name());
        }
    }
}
