//! [`NatsConfig`]: a NATS source, every option checked.

use crate::error::{Error, Result};
use crate::pump::Limits;
use crate::rules::{EventRules, RuleOptions};
use crate::secrets::{self, read_secret};
use crate::source::{Policy, PolicyOptions};
use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;

/// Subjects of one source, at most.
const MAX_SUBJECTS: usize = 100;

/// A NATS source as its section of the configuration has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsOptions {
    /// `nats://host:port` or `tls://host:port`; several are separated by commas.
    pub url: String,
    /// The user, if the server asks for a password.
    #[serde(default)]
    pub user: Option<String>,
    /// A file with the user's password, or without a user with a token.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// A file with the seed of an nkey.
    #[serde(default)]
    pub nkey_file: Option<PathBuf>,
    /// A credentials file, as `nsc` writes it.
    #[serde(default)]
    pub creds_file: Option<PathBuf>,
    /// Authorities to trust instead of the system's, PEM.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Our certificate, PEM.
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// Its key, PEM.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The JetStream stream.
    #[serde(default)]
    pub stream: Option<String>,
    /// Which subjects; all of the stream unless given.
    #[serde(default)]
    pub subjects: Vec<String>,
    /// Subjects without a stream: what is published while no node listens is missed.
    #[serde(default)]
    pub lossy: bool,
    /// Where a new source begins.
    #[serde(default)]
    pub start: StreamStart,
    /// The topic that gets the events.
    pub topic: String,
    /// How a message becomes an event.
    #[serde(flatten)]
    pub event: RuleOptions,
    /// What follows if something goes wrong.
    #[serde(flatten)]
    pub policy: PolicyOptions,
}

/// Where a new source begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamStart {
    /// With the first message that the stream has.
    #[default]
    All,
    /// With the next message.
    New,
}

/// A checked NATS source.
#[derive(Clone)]
pub struct NatsConfig {
    /// Its name: part of its consumers' and of every record's headers.
    pub name: String,
    /// The topic that gets the events.
    pub topic: String,
    /// Batches and buffer.
    pub limits: Limits,
    pub(super) urls: Vec<String>,
    pub(super) login: Login,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) certificate: Option<(PathBuf, PathBuf)>,
    /// None for subjects without a stream.
    pub(super) stream: Option<String>,
    pub(super) subjects: Vec<String>,
    pub(super) start: StreamStart,
    pub(super) rules: EventRules,
    pub(super) policy: Policy,
}

/// Who we are to the server. Never shown.
#[derive(Clone)]
pub(super) enum Login {
    Anyone,
    User(String, String),
    Token(String),
    Nkey(String),
    Creds(String),
}

impl NatsConfig {
    /// Checks the options of the source `name`. `password` wins over `password_file`.
    pub fn new(name: &str, options: &NatsOptions, password: Option<String>) -> Result<Self> {
        crate::config::check_name(name)?;
        let NatsOptions { stream, subjects, lossy, start, topic, .. } = options;
        match (stream, lossy) {
            (Some(_), true) => {
                return Err(Error::invalid("a stream is not lossy: give `stream`, or `lossy: true`"));
            }
            (None, false) => {
                return Err(Error::invalid(
                    "give `stream`; or `lossy: true` and `subjects`, which misses what is published while no node listens",
                ));
            }
            (None, true) if *start != StreamStart::All => {
                return Err(Error::invalid("start is for streams: subjects alone hold nothing"));
            }
            _ => {}
        }
        if stream.as_ref().is_some_and(|name| name.is_empty() || name.contains([' ', '.', '*', '>', '/'])) {
            return Err(Error::invalid("stream: give the name of a stream"));
        }
        check_subjects(subjects, *lossy)?;
        let rules = EventRules::new(&options.event)?;
        let policy = Policy::new(&options.policy, topic, rules.collection())?;
        let certificate = match (&options.cert_file, &options.key_file) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => return Err(Error::invalid("give both cert_file and key_file, or none")),
        };
        Ok(Self {
            name: name.to_owned(),
            topic: topic.clone(),
            limits: Limits::default(),
            urls: urls(&options.url)?,
            login: login(options, password)?,
            ca_file: options.ca_file.clone(),
            certificate,
            stream: stream.clone(),
            subjects: subjects.clone(),
            start: *start,
            rules,
            policy,
        })
    }

    /// Where changes go that cannot be events.
    pub fn dead_topic(&self) -> Option<&str> {
        self.policy.dead_topic.as_deref()
    }

    /// Whether it reads subjects without a stream.
    pub fn is_lossy(&self) -> bool {
        self.stream.is_none()
    }

    /// The collections of its events, as far as they are known.
    pub(super) fn collections(&self) -> Vec<String> {
        self.rules.collection().map(str::to_owned).into_iter().collect()
    }
}

fn check_subjects(subjects: &[String], are_needed: bool) -> Result<()> {
    if subjects.len() > MAX_SUBJECTS || (are_needed && subjects.is_empty()) {
        let count = subjects.len();
        let least = usize::from(are_needed);
        return Err(Error::invalid(format!("subjects has {count} entries; give {least} to {MAX_SUBJECTS}")));
    }
    let is_wrong =
        |subject: &&String| subject.contains(char::is_whitespace) || subject.split('.').any(str::is_empty);
    match subjects.iter().find(is_wrong) {
        Some(subject) => Err(Error::invalid(format!("subjects: {subject:?} is no subject"))),
        None => Ok(()),
    }
}

fn urls(text: &str) -> Result<Vec<String>> {
    let urls: Vec<String> = text.split(',').map(|url| url.trim().to_owned()).collect();
    for url in &urls {
        // The text of a URL with a password is not told.
        if url.contains('@') {
            return Err(Error::invalid("url holds a user or a password: give user and password_file"));
        }
        let host = url.strip_prefix("nats://").or_else(|| url.strip_prefix("tls://"));
        if host.is_none_or(|host| host.is_empty() || host.contains('/')) {
            return Err(Error::invalid(format!("url is {url:?}: give nats://host:port or tls://host:port")));
        }
    }
    Ok(urls)
}

fn login(options: &NatsOptions, password: Option<String>) -> Result<Login> {
    let NatsOptions { user, password_file, nkey_file, creds_file, .. } = options;
    let password = secrets::password(password, password_file.as_deref())?;
    match (user, password, nkey_file, creds_file) {
        (None, None, None, None) => Ok(Login::Anyone),
        (Some(user), Some(password), None, None) => Ok(Login::User(user.clone(), password)),
        (None, Some(token), None, None) => Ok(Login::Token(token)),
        (None, None, Some(file), None) => {
            Ok(Login::Nkey(read_secret("nkey_file", file)?.trim_end().to_owned()))
        }
        (None, None, None, Some(file)) => Ok(Login::Creds(read_secret("creds_file", file)?)),
        (Some(_), None, ..) => Err(Error::invalid("user has no password: give password_file")),
        _ => Err(Error::invalid("give one of password_file, nkey_file and creds_file")),
    }
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsConfig({}: {:?} to {})", self.name, self.urls, self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::changed::{changed, each_is_named};
    use serde_json::{Value, json};

    fn config(change: &Value) -> Result<NatsConfig> {
        let usual = json!({
            "url": "nats://127.0.0.1:4222", "stream": "ORDERS", "topic": "changes", "tenant": "acme",
            "collection": { "name": 1 }, "key": { "name": 2 },
        });
        NatsConfig::new("orders", &changed(usual, change)?, None)
    }

    #[test]
    fn each_wrong_option_is_named() {
        let cases = [
            (json!({ "lossy": true }), "a stream is not lossy"),
            (json!({ "stream": null }), "give `stream`"),
            (json!({ "stream": "a.b" }), "stream: "),
            (json!({ "stream": null, "lossy": true }), "subjects has 0"),
            (
                json!({ "stream": null, "lossy": true, "subjects": ["a"], "start": "new" }),
                "start is for streams",
            ),
            (json!({ "subjects": ["a..b"] }), "subjects: "),
            (json!({ "url": "nats://u:planted@h" }), "url holds a user"),
            (json!({ "url": "http://h" }), "url is"),
            (json!({ "user": "u" }), "user has no password"),
            (json!({ "password_file": "/nonexistent/file" }), "password_file"),
            (json!({ "cert_file": "c" }), "cert_file and key_file"),
            (json!({ "on_lost": "resync" }), "collection as a text"),
            (json!({ "on_error": "ignore" }), "unknown variant `ignore`"),
            (json!({ "streams": "x" }), "unknown field `streams`"),
            (json!({ "key": "fixed" }), "key is a constant"),
        ];
        each_is_named(&cases, config);
        assert!(!config(&json!({})).unwrap().is_lossy());
        assert!(config(&json!({ "stream": null, "lossy": true, "subjects": ["a.>"] })).unwrap().is_lossy());
    }
}
