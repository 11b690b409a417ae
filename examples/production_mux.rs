//! A subscriber as it runs in production: callbacks on a bounded pool of workers, every signal in
//! the log, metrics, and a stop on Ctrl-C or SIGTERM that finishes what was received.
//!
//! `cargo run --example production_mux -- orders payments`, with `REDIS_URL` naming the server or
//! cluster (`redis://localhost` unless set). Publish with `redis-cli SPUBLISH orders hello`.

use firth_redis::Client;
use firth_redis::mux::{Buffer, Event, Message, MuxConfig, OverflowPolicy, Signal};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_target(false).init();
    // Any recorder of the `metrics` facade will do; a service would install the exporter of its
    // monitoring here.
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install()?;

    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://localhost".into());
    let client = Client::connect(url.as_str()).await?;
    let mut config = MuxConfig::default();
    config.callback_workers = 8;
    config.close_timeout = Duration::from_secs(10);
    let mux = client.mux_with(config);

    let mut channels: Vec<String> = std::env::args().skip(1).collect();
    if channels.is_empty() {
        channels = vec!["orders".into(), "payments".into()];
    }
    // Rather a notice of what was dropped than stale messages.
    let buffer = Buffer { bytes: 4 << 20, overflow: OverflowPolicy::DropOldest };
    let mut held = Vec::new();
    for channel in &channels {
        let name: Arc<str> = channel.as_str().into();
        let subscribed = mux.subscribe_sharded([channel.clone()]).buffer(buffer);
        // Events of one channel come one after the other; different channels are worked on side by
        // side.
        held.push(subscribed.for_each(move |event, stopping| handle(name.clone(), event, stopping)).await?);
    }
    tracing::info!(?channels, "listening; stop with Ctrl-C");

    tokio::select! {
        () = stop() => tracing::info!("stopping"),
        () = report(&snapshotter) => {}
    }
    // Takes nothing new, lets the callbacks finish what was received, and gives up on those that
    // hang.
    mux.close().await;
    client.close().await;
    tracing::info!(stats = ?mux.stats(), "stopped");
    Ok(())
}

async fn handle(channel: Arc<str>, event: Event, stopping: CancellationToken) {
    match event {
        Event::Message(message) => work(&channel, &message, &stopping).await,
        Event::Signal(signal) => log(&channel, &signal),
    }
}

/// Takes its time, but not when everybody waits for the end.
async fn work(channel: &str, message: &Message, stopping: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(200)) => {}
        () = stopping.cancelled() => {}
    }
    tracing::info!(channel, bytes = message.payload.len(), "worked on a message");
}

/// What may be missing is worth an alarm only if it lasts.
fn log(channel: &str, signal: &Signal) {
    match signal {
        Signal::Gap { reason, .. } => {
            tracing::warn!(channel, ?reason, "messages may be missing from here on");
        }
        Signal::Resumed { after, .. } => tracing::info!(channel, ?after, "nothing is missing from here on"),
        Signal::Moved { from, to, .. } => tracing::info!(channel, %from, %to, "the channel has moved"),
        Signal::NodeLost { node, .. } => tracing::warn!(channel, %node, "the connection broke"),
        Signal::Stalled { after, .. } => tracing::error!(channel, ?after, "no node serves the channel"),
        Signal::TimedOut { after, .. } => {
            tracing::error!(channel, ?after, "still no node: somebody should look");
        }
        Signal::Lagged { dropped } => tracing::warn!(channel, dropped, "we are too slow"),
        other => tracing::info!(channel, ?other, "a signal"),
    }
}

/// Ends on Ctrl-C or SIGTERM.
async fn stop() {
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be listened to");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Logs, every ten seconds, what has happened since the last time.
async fn report(snapshotter: &Snapshotter) {
    let mut rounds = tokio::time::interval(Duration::from_secs(10));
    loop {
        rounds.tick().await;
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let labels: Vec<_> = key.key().labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
            match value {
                DebugValue::Counter(n) if n > 0 => tracing::info!(metric = key.key().name(), ?labels, n),
                DebugValue::Gauge(n) if n.0 != 0.0 => {
                    tracing::info!(metric = key.key().name(), ?labels, n = n.0);
                }
                _ => {}
            }
        }
    }
}
