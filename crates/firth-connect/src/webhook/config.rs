//! [`WebhookConfig`]: a webhook source, every option checked.

use super::verify::{Scheme, Verifier};
use crate::error::{Error, Result};
use crate::rules::{EventRules, Pick, RuleOptions};
use crate::secrets::read_secret;
use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The longest tolerance of a signature's time, and the usual one.
const MAX_TOLERANCE: u64 = 24 * 3600;
const TOLERANCE: u64 = 300;
/// The largest body that can be allowed, and the usual one.
const MAX_BODY: usize = 16 << 20;
const BODY: usize = 1 << 20;
/// Requests per second: the most that can be allowed, and the usual rate.
const MAX_RATE: u32 = 1_000_000;
const RATE: u32 = 100;

/// A webhook as its section of the configuration has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookOptions {
    /// How the sender signs.
    pub verify: Scheme,
    /// A file with the secret; two on two lines while one replaces the other.
    #[serde(default)]
    pub secret_file: Option<PathBuf>,
    /// The topic that gets the events.
    pub topic: String,
    /// What a body is.
    #[serde(default)]
    pub format: Format,
    /// How a body becomes an event.
    #[serde(flatten)]
    pub event: RuleOptions,
    /// The sender's name of an event; by the scheme unless given.
    #[serde(default)]
    pub id: Option<Pick>,
    /// How far a signature's time may be from now, in seconds.
    #[serde(default)]
    pub tolerance: Option<u64>,
    /// The largest body, in bytes.
    #[serde(default)]
    pub max_body: Option<usize>,
    /// Requests per second; short bursts of twice as many are taken.
    #[serde(default)]
    pub rate: Option<u32>,
}

/// What the body of a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A JSON object.
    #[default]
    Json,
    /// A CloudEvent 1.0, binary or structured. Pointers name places of the structured form.
    CloudEvents,
}

/// A checked webhook.
#[derive(Clone)]
pub struct WebhookConfig {
    /// Its name: part of its path and of every record's headers.
    pub name: String,
    /// The topic that gets the events.
    pub topic: String,
    /// The largest body, in bytes.
    pub max_body: usize,
    /// Requests per second.
    pub rate: u32,
    pub(super) verifier: Verifier,
    pub(super) rules: EventRules,
    pub(super) options: WebhookOptions,
}

impl WebhookConfig {
    /// Checks the options of the source `name`. `secret` wins over `secret_file`.
    pub fn new(name: &str, options: &WebhookOptions, secret: Option<String>) -> Result<Self> {
        crate::config::check_name(name)?;
        let secrets = match (secret, &options.secret_file) {
            (Some(secret), _) => secret,
            (None, Some(file)) => read_secret("secret_file", file)?,
            (None, None) => {
                let variable = format!("FIRTH_CONNECT_{}_PASSWORD", name.to_ascii_uppercase());
                return Err(Error::invalid(format!("there is no secret: give secret_file, or {variable}")));
            }
        };
        let rules = EventRules::new(&options.event)?;
        if rules.picks().any(|pick| matches!(pick, Pick::Name(_))) {
            return Err(Error::invalid("a request has no name: give { pointer: /… } or { header: … }"));
        }
        let tolerance = within("tolerance", options.tolerance.unwrap_or(TOLERANCE), MAX_TOLERANCE)?;
        let max_body = within("max_body", options.max_body.unwrap_or(BODY), MAX_BODY)?;
        Ok(Self {
            name: name.to_owned(),
            topic: options.topic.clone(),
            max_body,
            rate: within("rate", options.rate.unwrap_or(RATE), MAX_RATE)?,
            verifier: Verifier::new(&options.verify, &secrets, Duration::from_secs(tolerance))?,
            rules,
            options: options.clone(),
        })
    }
}

fn within<N: Copy + PartialOrd + From<u8> + fmt::Display>(field: &str, value: N, most: N) -> Result<N> {
    if value < N::from(1) || value > most {
        return Err(Error::invalid(format!("{field} is {value}: give 1 to {most}")));
    }
    Ok(value)
}

impl fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookConfig({} to {})", self.name, self.topic)
    }
}
