//! `firth serve`: binds, accepts, takes over what changed on SIGHUP, and on SIGINT or SIGTERM
//! drains: no new connections, waiting fetches and streams end, running requests finish, deliveries
//! in hand go back, every group is left and the engine is closed.

mod accept;
mod logs;
mod patient;
pub(crate) mod tls;

use crate::app::{App, Extras};
use crate::auth::{Audit, Guard};
use crate::config::{Config, Given, Limits, SecretText};
use crate::telemetry::{Series, Telemetry};
use clap::Args;
use firth::{Broker, Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tls::Tls;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Flags win over FIRTH_* variables, those over the file.
#[derive(Args, Default)]
pub(crate) struct ServeArgs {
    /// The configuration; ./firth.yaml if it is there [env: FIRTH_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where topics are kept: file:./DIR, memory:, redis://HOST, … [default: file:./firth-data]
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// The address to serve; addresses that others can reach need a token [default: 127.0.0.1:7171]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// A file of lines `sha256:…` as `firth token` prints them; FIRTH_TOKEN gives one token plainly
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Write who changed what and when to this file
    #[arg(long, value_name = "FILE")]
    audit_file: Option<PathBuf>,
    /// Certificate and chain, PEM: speak HTTPS only
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Answer `/` as any unknown path, without the console
    #[arg(long)]
    no_console: bool,
    /// How much to log: error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Write logs as JSON, one object per line
    #[arg(long)]
    log_json: bool,
    /// Any setting of the file, like `--set limits.rate=100`
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl ServeArgs {
    /// What the command line says, for the configuration.
    pub(crate) fn given(self) -> Result<Given> {
        let file = self.config.or_else(|| std::env::var_os("FIRTH_CONFIG").map(PathBuf::from));
        let mut flags = Vec::new();
        for setting in self.set {
            let (key, value) = setting
                .split_once('=')
                .ok_or_else(|| crate::wire::invalid("--set: write NAME=VALUE, like limits.rate=100"))?;
            flags.push((key.to_owned(), value.to_owned()));
        }
        let named = [
            ("engine", self.engine),
            ("listen", self.listen.map(|listen| listen.to_string())),
            ("auth.token_file", written("--token-file", self.token_file)?),
            ("auth.audit_file", written("--audit-file", self.audit_file)?),
            ("tls.cert", written("--tls-cert", self.tls_cert)?),
            ("tls.key", written("--tls-key", self.tls_key)?),
            ("console.enabled", self.no_console.then(|| "false".to_owned())),
            ("log.level", self.log),
            ("log.format", self.log_json.then(|| "json".to_owned())),
        ];
        flags.extend(named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        Ok(Given { file, flags })
    }
}

/// A path as the configuration holds it, which is text.
fn written(option: &str, path: Option<PathBuf>) -> Result<Option<String>> {
    let text = path.map(|path| path.into_os_string().into_string()).transpose();
    text.map_err(|_| crate::wire::invalid(format!("{option}: write the path in UTF-8")))
}

/// Serves until a signal.
pub(crate) async fn run(args: ServeArgs) -> Result<()> {
    run_given(args.given()?).await
}

/// As [`run`], with what was given elsewhere.
pub(crate) async fn run_given(given: Given) -> Result<()> {
    let config = Config::load(&given)?;
    let logs = logs::start(&config.log_level, config.log_json);
    let mut signals = StopSignals::listen()?;
    let token = config.token.as_ref().map(SecretText::expose);
    let guard = Guard::choose(config.listen, config.token_file.as_deref(), token)?;
    let tls = config.tls.as_ref().map(Tls::load).transpose()?;
    let audit = Arc::new(Audit::open(config.audit_file.clone())?);
    let listener = TcpListener::bind(config.listen).await.map_err(|error| {
        let context = format!("cannot listen on {}: choose another --listen address", config.listen);
        Error::new(ErrorKind::Unavailable, context).with_source(error)
    })?;
    let metrics = start_metrics()?;
    let telemetry = Telemetry::start(config.otlp.clone(), metrics.clone());
    let broker = Broker::connect(config.engine.expose()).await?;
    let broker = match &config.auto_create {
        Some(policy) => {
            let audit = audit.clone();
            broker.auto_create(policy.clone().tell(move |topic| audit.made(&topic.name)))
        }
        None => broker,
    };
    let extras = Extras {
        limits: config.limits.clone(),
        audit,
        telemetry,
        routing: config.routing.clone(),
        connect: config.connect.clone(),
        partitions: Some(config.partitions),
        console: config.console,
    };
    let app = App::with(broker, guard, Some(metrics), extras);
    if let Err(error) = app.routing().start(&app).await {
        return app.close().await.and(Err(error));
    }
    if let Err(error) = app.connect().start().await {
        return app.close().await.and(Err(error));
    }
    let measured = app.clone();
    tokio::spawn(async move { measured.connect().keep_metrics(measured.closing().clone()).await });
    let dir = app.broker().describe().strip_prefix("file:").map(PathBuf::from);
    app.events().stats().start(app.events().clone(), dir, app.closing().clone());
    app.routing().reports().start(app.broker().bus(), app.closing().clone());
    app.takeovers().start(app.broker().clone(), app.closing().clone());
    let address = listener.local_addr().unwrap_or(config.listen);
    println!("firth listens on {}://{address}", if tls.is_some() { "https" } else { "http" });
    tracing::info!(%address, tls = tls.is_some(), tokens = app.guard().has_tokens(), "serving");
    let served = Served { app: app.clone(), logs, tls: tls.clone(), given, config };
    let stop = served.until_told_to_stop(&mut signals);
    accept::run(listener, app.clone(), tls, stop).await;
    let closed = app.close().await;
    tracing::info!("closed");
    closed
}

/// What SIGHUP changes.
struct Served {
    app: App,
    logs: Option<logs::Level>,
    tls: Option<Tls>,
    given: Given,
    config: Config,
}

impl Served {
    async fn until_told_to_stop(self, signals: &mut StopSignals) {
        while let HeardSignal::Reload = signals.next().await {
            match Config::load(&self.given) {
                Ok(config) => self.take_over(&config),
                Err(error) => tracing::error!(%error, "the configuration is wrong: nothing was changed"),
            }
        }
    }

    /// Each part by itself: what cannot be taken over stays as it was, and the log says so.
    fn take_over(&self, config: &Config) {
        let Limits { connections, buffered, head_time, write_time, .. } = self.config.limits;
        let limits = Limits { connections, buffered, head_time, write_time, ..config.limits.clone() };
        self.app.set_limits(limits);
        if let Some(otlp) = &config.otlp {
            self.app.telemetry().set_sample(otlp.sample);
        }
        let level = self.logs.as_ref().map_or(Ok(()), |level| level.set(&config.log_level));
        let token = config.token.as_ref().map(SecretText::expose);
        let tokens = self.app.guard().reload(config.token_file.as_deref(), token);
        let certificate = match (&self.tls, &config.tls) {
            (Some(tls), Some(files)) => tls.reload(files),
            _ => Ok(()),
        };
        for (part, outcome) in [
            ("log level", level),
            ("tokens", tokens),
            ("certificate", certificate),
            ("audit file", self.app.audit().reopen()),
        ] {
            if let Err(error) = outcome {
                tracing::error!(%error, part, "not taken over");
            }
        }
        tracing::info!("the configuration was read again");
    }
}

/// What a signal asks of a server.
pub(crate) enum HeardSignal {
    Stop,
    Reload,
}

/// The signals that a server obeys.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl StopSignals {
    /// Listens from now on: the signals end the process no more. A server that answers must listen.
    pub(crate) fn listen() -> Result<Self> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Error::new(ErrorKind::Internal, "cannot listen for signals").with_source(error)
            })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// The next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> HeardSignal {
        tokio::select! {
            _ = self.interrupt.recv() => HeardSignal::Stop,
            _ = self.terminate.recv() => HeardSignal::Stop,
            _ = self.hangup.recv() => HeardSignal::Reload,
        }
    }
}

/// Counts everything in this process from now on.
pub(crate) fn start_metrics() -> Result<Series> {
    Series::start()
}
