//! Callbacks on the mux's workers: order, concurrency, fairness, panics, and every way to end.

use super::{SOON, ServerSubscriptions, client, number, publish, word};
use crate::support::{ms, soon, tasks};
use firth_redis::mux::{Event, Mux, MuxConfig, SubscriptionKind};
use firth_redis::{CallError, Client, cmd, pipe};
use firth_testkit::{Flavor, RedisServer, wait};
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Barrier, Semaphore};

async fn setup(change: impl FnOnce(&mut MuxConfig)) -> (RedisServer, Client, Mux) {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let mut config = MuxConfig::default();
    change(&mut config);
    let mux = client.mux_with(config);
    (server, client, mux)
}

/// Publishes numbered messages in one piece.
async fn publish_numbers(client: &Client, channel: &str, numbers: std::ops::Range<u64>) {
    let all = numbers.fold(pipe(), |pipe, n| pipe.then(cmd("PUBLISH").arg(channel).arg(n)));
    client.pipeline::<Vec<i64>>(all).await.unwrap();
}

async fn received(mux: &Mux, count: u64) {
    wait::until(SOON, "the messages have come", async || mux.stats().received == count).await;
}

/// Panics when it is dropped, unless a panic is under way.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a payload that panics in its turn");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c10_a_panic_that_panics_again_costs_no_worker() {
    let (_server, client, mux) = setup(|config| config.callback_workers = 1).await;
    let held = mux.subscribe(["a"]).for_each(|_, _| async { std::panic::panic_any(Payload) });
    let held = held.await.unwrap();
    publish_numbers(&client, "a", 0..3).await;
    wait::until(SOON, "each is run", async || mux.stats().callback_panics == 3).await;
    assert_eq!(mux.stats().callbacks, 3);
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sub_25_a_callback_that_decides_for_itself_subscribes_anew() {
    let (server, client, mux) = setup(|config| config.auto_resubscribe = false).await;
    let diary = EventRecorder::default();
    let notes = diary.clone();
    let held = mux.subscribe(["a"]).for_each(move |event, _| {
        notes.note(word(&event));
        async {}
    });
    let held = held.await.unwrap();
    assert_eq!((held.names(), held.kind()), (&[bytes::Bytes::from("a")][..], SubscriptionKind::Channel));
    server.order(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!(diary.reaches(2).await, ["lost", "gap"]);
    wait::until(SOON, "the connection is back", async || mux.stats().connections == 1).await;
    assert_eq!(publish(&client, "a", "1").await, 0, "nobody has asked for it");
    held.resubscribe();
    assert_eq!(diary.reaches(3).await.last().unwrap(), "resumed");
    assert_eq!(publish(&client, "a", "2").await, 1);
    assert_eq!(diary.reaches(4).await.last().unwrap(), "2");
}

/// What callbacks have seen, in order.
#[derive(Clone, Default)]
struct EventRecorder(Arc<Mutex<Vec<String>>>);

impl EventRecorder {
    fn note(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    async fn reaches(&self, count: usize) -> Vec<String> {
        wait::until(SOON, format!("{count} lines in the diary"), async || self.lines().len() >= count).await;
        self.lines()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_one_subscription_run_in_order_and_one_at_a_time() {
    let (_server, client, mux) = setup(|_| ()).await;
    let mut all = Vec::new();
    for name in ["a", "b", "c"] {
        let diary = EventRecorder::default();
        let inside = Arc::new(AtomicUsize::new(0));
        let diary_in = diary.clone();
        let inside_in = inside.clone();
        let held = mux.subscribe([name]).for_each(move |event, _| {
            let diary = diary_in.clone();
            let inside = inside_in.clone();
            async move {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "nobody else is at work on this one");
                tokio::task::yield_now().await;
                diary.note(word(&event));
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        });
        all.push((held.await.unwrap(), diary));
    }
    for start in (0..2_000).step_by(100) {
        for name in ["a", "b", "c"] {
            publish_numbers(&client, name, start..start + 100).await;
        }
    }
    let wanted: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
    for (_held, diary) in &all {
        assert_eq!(diary.reaches(2_000).await, wanted);
    }
    assert_eq!((mux.stats().callbacks, mux.stats().callback_panics), (6_000, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_of_different_subscriptions_run_beside_each_other() {
    let (_server, client, mux) = setup(|config| config.callback_workers = 4).await;
    let meeting = Arc::new(Barrier::new(4));
    let met = Arc::new(AtomicUsize::new(0));
    let mut held = Vec::new();
    for n in 0..4 {
        let meeting = meeting.clone();
        let met = met.clone();
        let callback = move |_, _| {
            let meeting = meeting.clone();
            let met = met.clone();
            async move {
                meeting.wait().await;
                met.fetch_add(1, Ordering::SeqCst);
            }
        };
        held.push(mux.subscribe([format!("c{n}")]).for_each(callback).await.unwrap());
        publish(&client, &format!("c{n}"), "1").await;
    }
    wait::until(SOON, "all four are in their callback at once", async || met.load(Ordering::SeqCst) == 4)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defect_10_a_busy_subscription_does_not_starve_a_quiet_one() {
    let (_server, client, mux) = setup(|config| config.callback_workers = 1).await;
    let gate = Arc::new(Semaphore::new(0));
    let diary = EventRecorder::default();
    let mut held = Vec::new();
    for name in ["busy", "quiet"] {
        let gate = gate.clone();
        let diary = diary.clone();
        let callback = move |_, _| {
            let gate = gate.clone();
            let diary = diary.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                diary.note(name);
            }
        };
        held.push(mux.subscribe([name]).for_each(callback).await.unwrap());
    }
    publish_numbers(&client, "busy", 0..3_000).await;
    publish_numbers(&client, "quiet", 0..1).await;
    received(&mux, 3_001).await;
    gate.add_permits(3_001);
    let lines = diary.reaches(3_001).await;
    let turn = lines.iter().position(|line| line == "quiet").unwrap();
    assert!(turn < 100, "the quiet one had to wait for {turn} events of the busy one");
}

/// Panics when it is dropped.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_caught_and_counted_and_the_subscription_goes_on() {
    let (_server, client, mux) = setup(|config| config.callback_workers = 1).await;
    let diary = EventRecorder::default();
    let diary_in = diary.clone();
    let callback = move |event: Event, _| {
        let what = word(&event);
        assert_ne!(what, "1", "a panic before the first await");
        let diary = diary_in.clone();
        async move {
            tokio::task::yield_now().await;
            assert_ne!(what, "2", "a panic in the middle");
            let _bomb = (what == "3").then(|| PanicsOnDrop);
            diary.note(what);
        }
    };
    let _held = mux.subscribe(["c"]).for_each(callback).await.unwrap();
    publish_numbers(&client, "c", 0..5).await;
    assert_eq!(diary.reaches(3).await, ["0", "3", "4"]);
    wait::until(SOON, "all are counted", async || mux.stats().callbacks == 5).await;
    assert_eq!(mux.stats().callback_panics, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_fires_the_token_and_lets_callbacks_finish_what_was_received() {
    let (server, client, mux) = setup(|config| config.callback_workers = 2).await;
    let diary = EventRecorder::default();
    let before = tasks();
    let diary_in = diary.clone();
    let callback = move |event: Event, token: tokio_util::sync::CancellationToken| {
        let diary = diary_in.clone();
        async move {
            token.cancelled().await;
            diary.note(word(&event));
        }
    };
    let held = mux.subscribe(["c"]).for_each(callback).await.unwrap();
    publish_numbers(&client, "c", 0..500).await;
    received(&mux, 500).await;
    assert!(diary.lines().is_empty(), "nobody has closed anything yet");
    soon(mux.close()).await;
    let wanted: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    assert_eq!(diary.lines(), wanted, "all of it, before close returned");
    assert!(matches!(mux.subscribe(["d"]).await, Err(CallError::Closed { .. })));
    soon(mux.close()).await;
    held.unsubscribe().await.unwrap();
    wait::until(SOON, "the server has nothing left", async || {
        ServerSubscriptions::of(&server).await.is_empty()
    })
    .await;
    assert!(tasks() <= before, "{} tasks, {before} before", tasks());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defect_10_close_does_not_wait_for_a_stuck_callback() {
    let (_server, client, mux) = setup(|config| {
        config.callback_workers = 2;
        config.close_timeout = ms(200);
    })
    .await;
    let entered = Arc::new(AtomicUsize::new(0));
    let finished = Arc::new(AtomicUsize::new(0));
    let entered_in = entered.clone();
    let finished_in = finished.clone();
    let callback = move |_, _| {
        let entered = entered_in.clone();
        let finished = finished_in.clone();
        async move {
            entered.fetch_add(1, Ordering::SeqCst);
            pending::<()>().await;
            finished.fetch_add(1, Ordering::SeqCst);
        }
    };
    let before = tasks();
    let _held = mux.subscribe(["stuck"]).for_each(callback).await.unwrap();
    publish(&client, "stuck", "1").await;
    wait::until(SOON, "it is stuck", async || entered.load(Ordering::SeqCst) == 1).await;
    let started = std::time::Instant::now();
    soon(mux.close()).await;
    let took = started.elapsed();
    assert!(took >= ms(200) && took < Duration::from_secs(5), "{took:?}");
    wait::until(SOON, "no task is left", async || tasks() <= before).await;
    assert_eq!(finished.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defect_10_stuck_callbacks_do_not_hold_up_the_connection() {
    let (_server, client, mux) = setup(|config| {
        config.callback_workers = 1;
        config.close_timeout = ms(10);
    })
    .await;
    let stuck = |_, _| pending::<()>();
    let _stuck = mux.subscribe(["stuck"]).for_each(stuck).await.unwrap();
    let _waiting = mux.subscribe(["waiting"]).for_each(stuck).await.unwrap();
    publish_numbers(&client, "stuck", 0..1_000).await;
    publish_numbers(&client, "waiting", 0..1_000).await;
    let mut stream = mux.subscribe(["stream"]).await.unwrap();
    publish_numbers(&client, "stream", 0..100).await;
    for wanted in 0..100 {
        assert_eq!(number(&super::message(&mut stream).await), wanted);
    }
    assert_eq!(mux.stats().callbacks, 0);
    soon(mux.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_workers_can_be_changed_while_they_work() {
    let (_server, client, mux) = setup(|config| config.callback_workers = 1).await;
    let gate = Arc::new(Semaphore::new(0));
    let inside = Arc::new(AtomicUsize::new(0));
    let mut held = Vec::new();
    for n in 0..6 {
        let gate = gate.clone();
        let inside = inside.clone();
        let callback = move |_, _| {
            let gate = gate.clone();
            let inside = inside.clone();
            async move {
                inside.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await.unwrap().forget();
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        };
        held.push(mux.subscribe([format!("c{n}")]).for_each(callback).await.unwrap());
    }
    let publish_to_all = async || {
        for n in 0..6 {
            publish(&client, &format!("c{n}"), "1").await;
        }
    };
    let at_work = async |wanted: usize| {
        let busy = async || inside.load(Ordering::SeqCst) == wanted;
        wait::until(SOON, format!("{wanted} callbacks are at work"), busy).await;
    };
    publish_to_all().await;
    at_work(1).await;
    mux.set_callback_workers(4);
    at_work(4).await;
    gate.add_permits(6);
    wait::until(SOON, "all have run", async || mux.stats().callbacks == 6).await;
    mux.set_callback_workers(2);
    publish_to_all().await;
    at_work(2).await;
    gate.add_permits(6);
    wait::until(SOON, "all have run", async || mux.stats().callbacks == 12).await;
    assert_eq!(inside.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_many_callbacks_and_no_more() {
    let (server, client, mux) = setup(|config| config.max_callbacks = 2).await;
    let nothing = |_, _| async {};
    let first = mux.subscribe(["a"]).for_each(nothing).await.unwrap();
    let _second = mux.subscribe(["b"]).for_each(nothing).await.unwrap();
    let Err(error) = mux.subscribe(["c"]).for_each(nothing).await else { panic!("one too many") };
    assert!(matches!(error, CallError::Full { limit: 2, .. }), "{error}");
    wait::until(SOON, "the third is taken back", async || publish(&client, "c", "1").await == 0).await;
    drop(first);
    let _third = mux.subscribe(["c"]).for_each(nothing).await.unwrap();
    let view = ServerSubscriptions::of(&server).await;
    assert!(view.channels.contains("c"), "{view:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_its_end_a_callback_is_not_called_any_more() {
    for by_drop in [true, false] {
        let (_server, client, mux) = setup(|config| config.callback_workers = 1).await;
        let gate = Arc::new(Semaphore::new(0));
        let diary = EventRecorder::default();
        let gate_in = gate.clone();
        let diary_in = diary.clone();
        let callback = move |event: Event, _| {
            let gate = gate_in.clone();
            let diary = diary_in.clone();
            async move {
                diary.note("begin");
                gate.acquire().await.unwrap().forget();
                diary.note(word(&event));
            }
        };
        let held = mux.subscribe(["c"]).for_each(callback).await.unwrap();
        publish_numbers(&client, "c", 0..10).await;
        received(&mux, 10).await;
        diary.reaches(1).await;
        if by_drop {
            drop(held);
        } else {
            held.unsubscribe().await.unwrap();
        }
        gate.add_permits(10);
        // The only worker has nothing left of the old one when it serves the new one.
        let served = Arc::new(AtomicBool::new(false));
        let served_in = EventRecorder::default();
        let flag = served.clone();
        let _other = mux
            .subscribe(["other"])
            .for_each(move |_, _| {
                flag.store(true, Ordering::SeqCst);
                served_in.note("served");
                async {}
            })
            .await
            .unwrap();
        publish(&client, "other", "1").await;
        wait::until(SOON, "the other is served", async || served.load(Ordering::SeqCst)).await;
        assert_eq!(
            diary.lines(),
            ["begin", "0"],
            "what was being worked on is finished, the rest is not begun"
        );
        wait::until(SOON, "the server forgets it", async || publish(&client, "c", "1").await == 0).await;
    }
}

/// Small bursts, each waited for: a wake-up that is lost shows as a burst that is not finished.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_wake_up_is_lost_between_news_and_workers() {
    let (_server, client, mux) = setup(|config| config.callback_workers = 3).await;
    let done = Arc::new(Semaphore::new(0));
    let total = Arc::new(AtomicU64::new(0));
    let mut held = Vec::new();
    for n in 0..4 {
        let done = done.clone();
        let total = total.clone();
        let callback = move |event: Event, _| {
            total.fetch_add(number(event.message().unwrap()), Ordering::SeqCst);
            done.add_permits(1);
            async {}
        };
        held.push(mux.subscribe([format!("c{n}")]).for_each(callback).await.unwrap());
    }
    let mut random = fastrand::Rng::with_seed(7);
    let mut sum = 0;
    for _ in 0..3_000 {
        let burst = random.u32(1..5);
        let all = (0..burst).fold(pipe(), |pipe, _| {
            let n = random.u64(1..100);
            sum += n;
            pipe.then(cmd("PUBLISH").arg(format!("c{}", random.u8(..4))).arg(n))
        });
        client.pipeline::<Vec<i64>>(all).await.unwrap();
        soon(done.acquire_many(burst)).await.unwrap().forget();
    }
    assert_eq!(total.load(Ordering::SeqCst), sum);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_hear_signals_in_their_place() {
    let (_server, client, mux) = setup(|_| ()).await;
    let diary = EventRecorder::default();
    let diary_in = diary.clone();
    let callback = move |event: Event, _| {
        diary_in.note(word(&event));
        async {}
    };
    let _held = mux.subscribe(["c"]).for_each(callback).await.unwrap();
    publish(&client, "c", "1").await;
    client.call::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await.unwrap();
    diary.reaches(4).await;
    publish(&client, "c", "2").await;
    assert_eq!(diary.reaches(5).await, ["1", "lost", "gap", "resumed", "2"]);
}
