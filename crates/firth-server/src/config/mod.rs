//! The configuration: one `firth.yaml`, `FIRTH_*` variables and flags, merged by `values`, given
//! their meaning here.
//!
//! Every setting stands once, in `table`; `firth config` prints it from there. On SIGHUP everything
//! is read again, and what the table calls live is taken over.

mod print;
mod table;
mod values;
mod variables;

pub(crate) use firth_router::config::{parse_bytes as size, parse_duration as duration};
pub(crate) use print::effective_file;
pub(crate) use values::{Given, SettingValues};
pub(crate) use variables::{variable, variables};

use firth::{AutoCreate, MAX_PARTITIONS, Result, TopicConfig};
use firth_router::config::NodeConfig;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// What the server does, all of it checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) engine: SecretText,
    pub(crate) listen: SocketAddr,
    pub(crate) log_level: String,
    pub(crate) log_json: bool,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) token: Option<SecretText>,
    pub(crate) audit_file: Option<PathBuf>,
    pub(crate) tls: Option<CertificateFiles>,
    /// Whether `/` answers with the console.
    pub(crate) console: bool,
    /// How many partitions a topic gets that names none.
    pub(crate) partitions: u32,
    /// Missing topics are made like this if it is there.
    pub(crate) auto_create: Option<AutoCreate>,
    pub(crate) limits: Limits,
    pub(crate) otlp: Option<Otlp>,
    /// A node of the router runs if this is there.
    pub(crate) routing: Option<NodeConfig>,
    /// The databases whose changes are read here.
    pub(crate) connect: Vec<firth_connect::SourceConfig>,
}

/// Text that is never shown: tokens, and URLs that may hold a password.
#[derive(Clone)]
pub(crate) struct SecretText(String);

impl SecretText {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Where certificate and key lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// What a client may ask of the server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) streams: usize,
    pub(crate) request_size: usize,
    pub(crate) buffered: usize,
    pub(crate) request_time: Duration,
    pub(crate) head_time: Duration,
    pub(crate) body_time: Duration,
    pub(crate) write_time: Duration,
    pub(crate) drain_time: Duration,
    /// Requests per second; zero: any number.
    pub(crate) rate: f64,
    pub(crate) burst: u32,
    pub(crate) failures: u32,
}

impl Default for Limits {
    fn default() -> Self {
        limits(&SettingValues::defaults()).expect("the table's defaults are valid; a test reads them all")
    }
}

/// Where metrics and traces go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Otlp {
    pub(crate) endpoint: String,
    pub(crate) interval: Duration,
    pub(crate) sample: f64,
    pub(crate) service: String,
}

impl Config {
    /// Reads everything that `given` names.
    pub(crate) fn load(given: &Given) -> Result<Self> {
        Self::read(&SettingValues::load(given)?)
    }

    /// Gives values their meaning, or says which one has none.
    pub(crate) fn read(values: &SettingValues) -> Result<Self> {
        let path = |key| values.option(key).map(PathBuf::from);
        let tls = match (path("tls.cert"), path("tls.key")) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(CertificateFiles { cert, key }),
            (Some(_), None) => return Err(crate::wire::invalid("tls.key is not set: tls.cert needs it")),
            (None, Some(_)) => return Err(crate::wire::invalid("tls.cert is not set: tls.key needs it")),
        };
        let level = |text: &str| EnvFilter::builder().parse(text).is_ok().then(|| text.to_owned());
        let json = |text: &str| match text {
            "text" => Some(false),
            "json" => Some(true),
            _ => None,
        };
        Ok(Self {
            engine: SecretText(values.get("engine").to_owned()),
            listen: values.parse("listen", "an address like 127.0.0.1:7171", |text| text.parse().ok())?,
            log_level: values.parse("log.level", "a level like info, or info,firth=debug", level)?,
            log_json: values.parse("log.format", "text or json", json)?,
            token_file: path("auth.token_file"),
            token: values.option("auth.token").map(|token| SecretText(token.to_owned())),
            audit_file: path("auth.audit_file"),
            tls,
            console: values.parse("console.enabled", "true or false", |text| text.parse().ok())?,
            partitions: partitions(values)?,
            auto_create: auto_create(values)?,
            limits: limits(values)?,
            otlp: otlp(values)?,
            routing: routing(values)?,
            connect: connect(values)?,
        })
    }
}

fn limits(values: &SettingValues) -> Result<Limits> {
    let time = |key| {
        let read = |text: &str| duration(text).filter(|time| !time.is_zero());
        values.parse(key, "a time like 30s or 1m30s", read)
    };
    let size = |key| values.parse(key, "a size like 16MiB", |text| size(text).filter(|size| *size >= 1024));
    let count = |key| values.parse(key, "a number from 1 on", |text| text.parse().ok().filter(|n| *n > 0));
    let small =
        |key| values.parse(key, "a number from 1 on", |text| text.parse().ok().filter(|n: &u32| *n > 0));
    let rate = |text: &str| text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
    Ok(Limits {
        connections: count("limits.connections")?,
        streams: count("limits.streams")?,
        request_size: size("limits.request_size")?,
        buffered: size("limits.buffered")?,
        request_time: time("limits.request_time")?,
        head_time: time("limits.head_time")?,
        body_time: time("limits.body_time")?,
        write_time: time("limits.write_time")?,
        drain_time: time("limits.drain_time")?,
        rate: values.parse("limits.rate", "requests per second, or 0", rate)?,
        burst: small("limits.burst")?,
        failures: small("limits.failures")?,
    })
}

fn partitions(values: &SettingValues) -> Result<u32> {
    let count = |text: &str| text.parse().ok().filter(|count| (1..=MAX_PARTITIONS).contains(count));
    values.parse("topics.partitions", "a number from 1 to 4096", count)
}

fn auto_create(values: &SettingValues) -> Result<Option<AutoCreate>> {
    let wanted = values.parse("topics.auto_create", "true or false", |text| text.parse::<bool>().ok())?;
    let partitions = partitions(values)?;
    let most = values.parse("topics.auto_create_limit", "a number of topics", |text| text.parse().ok())?;
    let like = TopicConfig { partitions, ..TopicConfig::default() };
    Ok(wanted.then(|| AutoCreate::like(like).at_most(most)))
}

/// The section `routing:`, read by the router itself.
fn routing(values: &SettingValues) -> Result<Option<NodeConfig>> {
    let read = |section| NodeConfig::from_value(section).map_err(crate::routing::told);
    values.routing().map(read).transpose()
}

/// The section `connect:`, read by the crate of the sources.
fn connect(values: &SettingValues) -> Result<Vec<firth_connect::SourceConfig>> {
    let password = |source: &str| {
        let name = format!("FIRTH_CONNECT_{}_PASSWORD", source.to_ascii_uppercase());
        std::env::var(name).ok().filter(|password| !password.is_empty())
    };
    let read =
        |section| firth_connect::section::read_section(section, password).map_err(crate::connect::told);
    values.connect().map_or(Ok(Vec::new()), read)
}

fn otlp(values: &SettingValues) -> Result<Option<Otlp>> {
    let share = |text: &str| text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
    let sample = values.parse("otlp.sample", "a share from 0 to 1", share)?;
    let every = |text: &str| duration(text).filter(|time| *time >= Duration::from_millis(100));
    let interval = values.parse("otlp.interval", "a time from 100ms on", every)?;
    if values.option("otlp.endpoint").is_none() {
        return Ok(None);
    }
    let plain = |text: &str| text.strip_prefix("http://").map(|_| text.trim_end_matches('/').to_owned());
    let endpoint = values.parse("otlp.endpoint", "an address like http://127.0.0.1:4318", plain)?;
    Ok(Some(Otlp { endpoint, interval, sample, service: values.get("otlp.service").to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_their_figures_are_the_documented_ones() {
        let config = Config::read(&SettingValues::defaults()).unwrap();
        assert_eq!(config.limits, Limits::default());
        assert_eq!(config.limits.request_size, 32 << 20);
        assert!(config.listen.ip().is_loopback() && config.tls.is_none() && config.otlp.is_none());
    }
}
