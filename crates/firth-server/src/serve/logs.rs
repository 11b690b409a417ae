//! Logs to stderr, for people or as JSON, at a level that can be changed while the server runs.

use crate::wire::invalid;
use firth::Result;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// The level's handle.
pub(super) struct Level(reload::Handle<EnvFilter, Registry>);

impl Level {
    pub(super) fn set(&self, level: &str) -> Result<()> {
        let filter = EnvFilter::builder().parse(level);
        let filter = filter.map_err(|error| invalid("log.level is not a level").with_source(error))?;
        self.0.reload(filter).map_err(|error| invalid("the log level cannot be changed").with_source(error))
    }
}

/// Starts logging; `None` if something else in this process does already.
pub(super) fn start(level: &str, json: bool) -> Option<Level> {
    let filter = EnvFilter::builder().parse(level).unwrap_or_else(|_| EnvFilter::new("info"));
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    let started = if json {
        registry.with(fmt::layer().json().with_writer(std::io::stderr)).try_init()
    } else {
        registry.with(fmt::layer().with_ansi(false).with_writer(std::io::stderr)).try_init()
    };
    match started {
        Ok(()) => Some(Level(handle)),
        Err(error) => {
            eprintln!("no logs: {error}");
            None
        }
    }
}
