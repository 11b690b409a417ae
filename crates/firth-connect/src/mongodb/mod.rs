//! MongoDB: the change stream of a database's collections, each change once.
//!
//! What was there before is copied first, by `_id`; the stream is then read from the time at which
//! the copy began. So a copied document is never older than what the topic gets in the end.

mod config;
mod follow;
mod place;
mod read;
mod value;

pub use config::{CopyMode, MongoConfig, MongoOptions};
pub use place::MongoPlace;

use crate::error::{Error, ErrorKind, Result};
use crate::pump::Limits;
use crate::source::{ChangeStream, Opening, Policy, Source, Step};
use follow::Following;
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::error::{Error as DriverError, ErrorKind as DriverErrorKind};
use mongodb::options::{ClientOptions, Credential};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Steps that wait for the reader, at most.
const AHEAD: usize = 64;
/// How long a primary is looked for.
const SELECT: Duration = Duration::from_secs(10);
/// From this version on large events come in parts.
const SPLITS: [i32; 3] = [6, 0, 9];

/// Collections of MongoDB as a source.
#[derive(Clone, Debug)]
pub struct Mongo {
    config: Arc<MongoConfig>,
    /// Numbers the copied documents of all sessions under one epoch.
    count: Arc<AtomicU64>,
}

impl Mongo {
    /// The collections of this source.
    pub fn new(config: Arc<MongoConfig>) -> Self {
        Self { config, count: Arc::default() }
    }
}

impl Source for Mongo {
    type Place = MongoPlace;
    type Stream = Told;

    fn name(&self) -> &str {
        &self.config.name
    }

    fn policy(&self) -> &Policy {
        &self.config.policy
    }

    fn collections(&self) -> Vec<String> {
        let shown = self.config.collections.iter().map(|name| self.config.shown(name).to_owned());
        shown.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn limits(&self) -> Limits {
        self.config.limits.clone()
    }

    async fn open(&self, place: Option<&MongoPlace>, context: &Opening<'_>) -> Result<(Told, MongoPlace)> {
        let config = self.config.clone();
        let client = connect(&config).await?;
        let admin = client.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 }).await.map_err(|error| failed(&error))?;
        let cluster = cluster(&client, &hello).await?;
        let place = match place {
            Some(place) if place.cluster != cluster => {
                let context = format!("this is cluster {cluster}; {} was read before", place.cluster);
                return Err(Error::new(ErrorKind::Lost, context));
            }
            Some(place) => place.clone(),
            None => begin(&config, cluster, &hello)?,
        };
        let built = admin.run_command(doc! { "buildInfo": 1 }).await.map_err(|error| failed(&error))?;
        let version: Vec<i32> = built
            .get_array("versionArray")
            .map(|parts| parts.iter().filter_map(mongodb::bson::Bson::as_i32).collect())
            .unwrap_or_default();
        let (steps, told) = mpsc::channel(AHEAD);
        let splits = version[..] >= SPLITS[..];
        let (progress, numbers) = (context.progress.clone(), (context.epoch, self.count.clone()));
        let following = Following::new(config, client, place.clone(), steps, progress);
        let mut task = JoinSet::new();
        task.spawn(following.run(numbers, splits));
        Ok((Told { told, _task: task }, place))
    }
}

/// Where a new source begins: now, with all that is there.
fn begin(config: &MongoConfig, cluster: String, hello: &Document) -> Result<MongoPlace> {
    let time = hello.get_timestamp("operationTime");
    let time = time.map_err(|_| Error::refused("the server tells no time of operations"))?;
    let copy = match config.snapshot {
        CopyMode::Initial => config.collections.iter().cloned().collect(),
        CopyMode::Never => [].into(),
    };
    // What was committed up to this time is copied.
    Ok(MongoPlace {
        cluster,
        time: (time.time, time.increment.saturating_add(1)),
        copy,
        ..MongoPlace::default()
    })
}

async fn connect(config: &MongoConfig) -> Result<Client> {
    let mut options = ClientOptions::parse(&config.url).await.map_err(|error| match *error.kind {
        DriverErrorKind::DnsResolve { .. } => Error::unavailable("the hosts cannot be resolved"),
        _ => Error::invalid("url: the driver does not understand it"),
    })?;
    options.app_name = Some(format!("firth source {}", config.name));
    options.server_selection_timeout = Some(SELECT);
    options.credential = config.login.clone().map(|(user, password)| {
        let mut credential = Credential::default();
        credential.username = Some(user);
        credential.password = Some(password);
        credential
    });
    Client::with_options(options).map_err(|error| failed(&error))
}

/// The name of the replica set, or the number of the cluster behind a router.
async fn cluster(client: &Client, hello: &Document) -> Result<String> {
    if let Ok(name) = hello.get_str("setName") {
        return Ok(name.to_owned());
    }
    if !hello.get_str("msg").is_ok_and(|told| told == "isdbgrid") {
        return Err(Error::refused("a single server has no change streams: make it a replica set"));
    }
    let versions = client.database("config").collection::<Document>("version");
    let version = versions.find_one(doc! {}).await.map_err(|error| failed(&error))?;
    let id = version.and_then(|version| version.get_object_id("clusterId").ok());
    let id = id.ok_or_else(|| Error::refused("the cluster does not tell its number"))?;
    Ok(id.to_hex())
}

/// A failure of the driver. Its words are kept aside, as they may quote values.
pub(super) fn failed(error: &DriverError) -> Error {
    let (code, name) = match &*error.kind {
        DriverErrorKind::Command(told) => (told.code, told.code_name.clone()),
        DriverErrorKind::Authentication { .. } => (18, "AuthenticationFailed".to_owned()),
        DriverErrorKind::ServerSelection { .. } => (0, "no primary answers".to_owned()),
        _ => (0, "the connection failed".to_owned()),
    };
    let told = format!("MongoDB: {name} ({code})");
    let says =
        |words: &str| matches!(&*error.kind, DriverErrorKind::Command(told) if told.message.contains(words));
    match code {
        286 | 280 | 136 => {
            Error::new(ErrorKind::Lost, format!("{told}: the history behind its place is gone"))
        }
        _ if error.contains_label("NonResumableChangeStreamError") || says("resume token was not found") => {
            Error::new(ErrorKind::Lost, format!("{told}: the history behind its place is gone"))
        }
        13 | 18 => Error::new(ErrorKind::Unauthorized, told),
        10334 => Error::poison(format!("{told}: an event is larger than 16 MiB; MongoDB 6.0.9 splits such")),
        40573 => Error::refused("change streams need a replica set or a sharded cluster"),
        47 => Error::refused(format!("{told}: turn on changeStreamPreAndPostImages by collMod")),
        _ => Error::unavailable(told),
    }
}

/// An open stream; a task reads it.
pub struct Told {
    told: mpsc::Receiver<Result<Step<MongoPlace>>>,
    _task: JoinSet<()>,
}

impl ChangeStream for Told {
    type Place = MongoPlace;

    async fn next(&mut self) -> Result<Step<MongoPlace>> {
        match self.told.recv().await {
            Some(step) => step,
            None => Err(Error::unavailable("the reader of the change stream ended")),
        }
    }
}
