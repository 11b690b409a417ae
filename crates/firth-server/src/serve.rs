//! `firth serve`: binds, accepts, and on SIGINT or SIGTERM drains: no new connections, waiting fetches end, running requests finish,
//! every group is left and the engine is closed.

use crate::api;
use crate::app::App;
use crate::auth::Guard;
use clap::Args;
use firth::{Broker, Error, ErrorKind, Result};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

/// The most connections at a time; more wait in the system's queue.
const MAX_CONNECTIONS: usize = 10_000;
/// How long a client may take to send its request's head.
const HEAD: Duration = Duration::from_secs(15);
/// How long running requests may finish after the signal.
const DRAIN: Duration = Duration::from_secs(20);

/// Where to keep topics, where to listen, whom to serve.
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Where topics are kept: file:./DIR, memory:, redis://HOST, …
    #[arg(long, env = "FIRTH_ENGINE", default_value = "file:./firth-data", value_name = "URL")]
    engine: String,
    /// The address to serve; addresses that others can reach need a token
    #[arg(long, env = "FIRTH_LISTEN", default_value = "127.0.0.1:7171", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// A file of lines `sha256:…` as `firth token` prints them; FIRTH_TOKEN gives one token plainly
    #[arg(long, env = "FIRTH_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Write logs as JSON, one object per line
    #[arg(long)]
    log_json: bool,
}

/// Serves until a signal.
pub(crate) async fn run(args: ServeArgs) -> Result<()> {
    start_logs(args.log_json);
    let plain = std::env::var("FIRTH_TOKEN").ok();
    let guard = Guard::choose(args.listen, args.token_file.as_deref(), plain.as_deref())?;
    let (mut interrupt, mut terminate) =
        (listen_for(SignalKind::interrupt())?, listen_for(SignalKind::terminate())?);
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        let context = format!("cannot listen on {}: choose another --listen address", args.listen);
        Error::new(ErrorKind::Unavailable, context).with_source(error)
    })?;
    let metrics = start_metrics()?;
    let broker = Broker::connect(&args.engine).await?;
    let app = App::new(broker, guard, Some(metrics));
    let address = listener.local_addr().unwrap_or(args.listen);
    println!("firth listens on http://{address}");
    tracing::info!(%address, "serving");
    let stop = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    accept(listener, app.clone(), stop).await;
    let closed = app.close().await;
    tracing::info!("closed");
    closed
}

async fn accept(listener: TcpListener, app: App, stop: impl Future<Output = ()>) {
    let service = TowerToHyperService::new(api::router(app.clone()));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let (graceful, room) = (GracefulShutdown::new(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    let mut stop = std::pin::pin!(stop);
    loop {
        let next = async {
            let permit = room.clone().acquire_owned().await.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        let Ok((stream, _)) = accepted.inspect_err(|error| tracing::warn!(%error, "accept failed")) else {
            // Mostly a want of file descriptors: others must end first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Answers are small and wanted at once.
        let _ = stream.set_nodelay(true);
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service.clone()));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
            drop(permit);
        });
    }
    drop(listener);
    tracing::info!("draining");
    app.drain();
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!(seconds = DRAIN.as_secs(), "some requests did not finish in time");
    }
}

fn listen_for(kind: SignalKind) -> Result<tokio::signal::unix::Signal> {
    signal(kind)
        .map_err(|error| Error::new(ErrorKind::Internal, "cannot listen for signals").with_source(error))
}

fn start_logs(json: bool) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FIRTH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if json { logs.json().try_init() } else { logs.with_ansi(false).try_init() };
    if let Err(error) = started {
        eprintln!("no logs: {error}");
    }
}

fn start_metrics() -> Result<PrometheusHandle> {
    const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];
    const RECORDS: [f64; 7] = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0];
    let wrong = |error| Error::new(ErrorKind::Internal, "cannot count").with_source(format!("{error}"));
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_records".to_owned()), &RECORDS))
        .map_err(wrong)?;
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)
        .map_err(|error| Error::new(ErrorKind::Internal, "cannot count").with_source(error.to_string()))?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_secs(5));
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}
