//! `firth gateway`: serves change events of a topic, or of a router, to browsers, until a signal or
//! until no more can come. SIGHUP reads the key file and the certificate again.

mod grpc;
mod internal;
mod report;
mod source;
mod upstream;

use crate::config::CertificateFiles;
use crate::serve::tls::Tls;
use crate::serve::{HeardSignal, StopSignals};
use crate::wire::invalid;
use clap::{Args, ValueEnum};
use firth::{Error, ErrorKind, Result};
use firth_edge::auth::{Keys, Origins};
use firth_edge::{Code, Config, Edge, EdgeError, Hub, Limits, SlowPolicy};
use firth_router::Tenant;
use source::Source;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(super) const EXAMPLES: &str = "Examples:
  firth gateway --engine redis://10.0.0.1 --topic changes --tenant acme
  firth gateway --engine redis://10.0.0.1 --topic changes --id edge-1 --listen 0.0.0.0:7272 --key-file keys --origin https://app.example.com
  firth gateway --engine redis://10.0.0.1 --topic changes --listen 0.0.0.0:443 --tls-cert chain.pem --tls-key key.pem --key-file keys
  firth gateway --router http://10.0.0.2:7171 --internal 10.0.0.3:7373 --id edge-1 --listen 0.0.0.0:7272 --key-file keys";

/// How long clients have to go when it stops.
const DRAIN: Duration = Duration::from_secs(15);

/// Which topic to serve, where, and to whom.
#[derive(Args)]
pub(crate) struct GatewayArgs {
    /// Where the topic is kept: redis://HOST, redis+cluster://HOST, file:./DIR, …
    #[arg(long, env = "FIRTH_ENGINE", value_name = "URL", required_unless_present = "router")]
    engine: Option<String>,
    /// The topic of change events
    #[arg(long, value_name = "TOPIC", required_unless_present = "router")]
    topic: Option<String>,
    /// Instead of reading a topic: a server that routes, with which this gateway registers what its
    /// clients subscribe to, with the token FIRTH_ROUTER_TOKEN if it needs one: http://, https://,
    /// or grpc:// and grpcs:// for the address of `routing.listen`
    #[arg(long, env = "FIRTH_ROUTER", value_name = "URL", conflicts_with = "topic", requires = "internal")]
    router: Option<String>,
    /// Where the router reaches the internal address [default: http://INTERNAL, or https:// with
    /// --internal-cert]
    #[arg(long, value_name = "URL", requires = "router")]
    endpoint: Option<String>,
    /// This gateway's name at the router, and of its group on the topic. The newest process holds
    /// it: an older one of the same name ends [default: from the names of host and port]
    #[arg(long, env = "FIRTH_GATEWAY_ID", value_name = "NAME")]
    id: Option<String>,
    /// The address for clients; addresses that others can reach need a key file
    #[arg(long, env = "FIRTH_GATEWAY_LISTEN", default_value = "127.0.0.1:7272", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// A file of keys and tokens, see docs/edge.md
    #[arg(long, env = "FIRTH_KEY_FILE", value_name = "FILE", required_unless_present = "tenant")]
    key_file: Option<PathBuf>,
    /// Serve this tenant to everybody on this machine, without tokens
    #[arg(long, value_name = "TENANT", conflicts_with = "key_file")]
    tenant: Option<String>,
    /// Web pages that may connect, like https://app.example.com; repeat it for more
    #[arg(long, value_name = "ORIGIN")]
    origin: Vec<String>,
    /// A name by which clients may call this gateway; repeat it for more. Without one, --tenant
    /// answers to localhost alone, and a gateway with keys to every name
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// What happens to clients that are slow, unless they choose
    #[arg(long, default_value = "gap", value_name = "POLICY")]
    slow: Slow,
    /// Connections that one address may have; raise it behind a proxy
    #[arg(long, default_value_t = Limits::default().per_address, value_name = "COUNT")]
    per_address: usize,
    /// Different subscriptions of all clients that may be registered with the router; one tenant
    /// may have 80 % of them
    #[arg(long, default_value_t = Limits::default().registrations, value_name = "COUNT", requires = "router")]
    registrations: usize,
    /// Certificate and chain, PEM: speak HTTPS only
    #[arg(long, env = "FIRTH_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, env = "FIRTH_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// An address for /metrics and, with FIRTH_GATEWAY_TOKEN, for batches of a router; never one
    /// that clients reach
    #[arg(long, value_name = "ADDRESS")]
    internal: Option<SocketAddr>,
    /// Certificate and chain of the internal address, PEM: speak HTTPS only there
    #[arg(long, value_name = "FILE", requires = "internal_key", requires = "internal")]
    internal_cert: Option<PathBuf>,
    /// The private key of the internal address, PEM
    #[arg(long, value_name = "FILE", requires = "internal_cert")]
    internal_key: Option<PathBuf>,
}

/// What happens to slow clients.
#[derive(Clone, Copy, ValueEnum)]
enum Slow {
    /// Keep the newest event of each document
    Conflate,
    /// Leave out what waits, and say so
    Gap,
    /// Close, so that the client comes back and resumes
    Cut,
}

pub(super) async fn run(args: GatewayArgs) -> Result<()> {
    let logs = tracing_subscriber::EnvFilter::try_from_env("FIRTH_LOG");
    let logs = logs.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(logs)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .try_init();
    let keys = args.keys()?;
    let tls = args.tls_files().as_ref().map(Tls::load).transpose()?;
    let internal_tls = args.internal_files().as_ref().map(Tls::load).transpose()?;
    let mut signals = StopSignals::listen()?;
    let hub = Hub::start(args.config()).map_err(refused)?;
    let edge = Edge::new(hub.clone(), keys, Origins::of(&args.origin).with_hosts(&args.host));
    let listener = bind(args.listen).await?;
    let address = listener.local_addr().unwrap_or(args.listen);
    let id = args.id.clone().unwrap_or_else(|| default_id(&host_name(), address.port()));
    let stop = CancellationToken::new();
    let internal = args.serve_internal(&hub, &id, internal_tls.clone(), stop.clone()).await?;
    let mut source = Source::open(&args, &id, &hub).await?;
    let reporting =
        source.servers().map(|servers| tokio::spawn(report::run(hub.clone(), id.clone(), servers)));
    println!("firth gateway listens on {}://{address}", if tls.is_some() { "https" } else { "http" });
    tracing::info!(%address, tls = tls.is_some(), id, "serving clients");
    let serving = tokio::spawn(serve(edge.clone(), listener, tls.clone(), stop.clone()));
    let ended = tokio::select! {
        ended = source.ended() => ended,
        () = until_told_to_stop(&mut signals, &args, &edge, [tls.as_ref(), internal_tls.as_ref()]) => Ok(()),
    };
    stop.cancel();
    if let Some(reporting) = reporting {
        reporting.abort();
    }
    let _ = serving.await;
    if let Some(internal) = internal {
        let _ = internal.await;
    }
    let closed = source.close().await;
    tracing::info!("closed");
    ended.and(closed)
}

impl GatewayArgs {
    fn config(&self) -> Config {
        let slow = match self.slow {
            Slow::Conflate => SlowPolicy::Conflate,
            Slow::Gap => SlowPolicy::Gap,
            Slow::Cut => SlowPolicy::Cut,
        };
        Config {
            slow,
            limits: Limits {
                per_address: self.per_address,
                registrations: self.registrations,
                registrations_per_tenant: (self.registrations / 5 * 4).max(1),
                ..Limits::default()
            },
            ..Config::default()
        }
    }

    fn keys(&self) -> Result<Keys> {
        match (&self.key_file, &self.tenant) {
            (Some(file), _) => read_keys(file),
            (None, Some(tenant)) if self.listen.ip().is_loopback() => {
                let tenant = Tenant::new(tenant).map_err(|error| invalid(error.context().to_owned()))?;
                Ok(Keys::open(tenant))
            }
            _ => Err(invalid(format!(
                "{} can be reached from other machines, so it needs --key-file: see docs/edge.md; or listen on 127.0.0.1",
                self.listen
            ))),
        }
    }

    fn tls_files(&self) -> Option<CertificateFiles> {
        Some(CertificateFiles { cert: self.tls_cert.clone()?, key: self.tls_key.clone()? })
    }

    fn internal_files(&self) -> Option<CertificateFiles> {
        Some(CertificateFiles { cert: self.internal_cert.clone()?, key: self.internal_key.clone()? })
    }

    /// Each part by itself: what is wrong stays as it was, and the log says so.
    fn reload(&self, edge: &Edge, tls: [Option<&Tls>; 2]) {
        match self.keys() {
            Ok(keys) => edge.set_keys(keys),
            Err(error) => tracing::error!(%error, "the key file is wrong: the old keys stay"),
        }
        for (tls, files) in tls.into_iter().zip([self.tls_files(), self.internal_files()]) {
            if let (Some(tls), Some(files)) = (tls, files)
                && let Err(error) = tls.reload(&files)
            {
                tracing::error!(%error, "the certificate is wrong: the old one stays");
            }
        }
        tracing::info!("keys and certificates were read again");
    }
}

/// The same after a restart, and different for every gateway of a machine: each has a port of its
/// own.
fn default_id(host: &str, port: u16) -> String {
    let mut host: String =
        host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(48).collect();
    if host.is_empty() {
        host.push_str("host");
    }
    format!("{host}-{port}")
}

fn host_name() -> String {
    let told = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    told.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default().trim().to_owned()
}

async fn serve(edge: Edge, listener: TcpListener, tls: Option<Tls>, stop: CancellationToken) {
    match tls {
        Some(tls) => {
            edge.serve_tls(listener, move || tls.current(), stop.cancelled_owned(), DRAIN).await;
        }
        None => edge.serve(listener, stop.cancelled_owned(), DRAIN).await,
    }
}

async fn until_told_to_stop(
    signals: &mut StopSignals,
    args: &GatewayArgs,
    edge: &Edge,
    tls: [Option<&Tls>; 2],
) {
    while let HeardSignal::Reload = signals.next().await {
        args.reload(edge, tls);
    }
}

fn read_keys(file: &Path) -> Result<Keys> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| invalid(format!("key file {shown} cannot be read")).with_source(error))?;
    Keys::parse(&text).map_err(refused)
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let context = format!("cannot listen on {address}: choose another address");
        Error::new(ErrorKind::Unavailable, context).with_source(error)
    })
}

fn refused(refusal: EdgeError) -> Error {
    match refusal.code {
        Code::Forbidden => Error::new(ErrorKind::Unauthorized, refusal.message),
        _ => invalid(refusal.message.into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_router::GatewayId;

    #[test]
    fn r02_the_default_id_is_a_name_and_differs_by_host_and_port() {
        let ids =
            [("web-1", 7272), ("web-1", 7273), ("web-2.example.com", 7272), ("", 1), (&*"ü".repeat(99), 2)];
        let ids = ids.map(|(host, port)| default_id(host, port));
        for (at, id) in ids.iter().enumerate() {
            assert!(GatewayId::new(id).is_ok(), "{id}");
            assert!(!ids[..at].contains(id), "{id}");
        }
        assert_eq!(ids[0], "web-1-7272");
    }
}
