//! The server's part of the sources: those of the section `connect:`, read while the server runs,
//! and what operators see and want of all sources of the engine.

mod metrics;
mod view;

use crate::wire::{Examined, NewSnapshot, SourceShown, Sources as SourcesShown};
use firth::claims::{OfferOwner, worker_id_from_env};
use firth::{Broker, Error, ErrorKind, Result};
use firth_connect::control::{DesiredState, DesiredStates};
use firth_connect::reports::Reports;
use firth_connect::sources::{SERVICE, Sources};
use firth_connect::{Intake, Progress, SourceConfig, Status, WEBHOOK};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use view::KnownSource;

const METRICS_EVERY: Duration = Duration::from_secs(2);
/// How long a request waits for a node to take a source down.
const REMOVAL: Duration = Duration::from_secs(15);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) struct Connect {
    broker: Broker,
    configs: Vec<SourceConfig>,
    desired: DesiredStates,
    reports: Reports,
    running: Mutex<Option<ReadingNode>>,
}

/// The sources of this server, and its name among the nodes.
struct ReadingNode {
    node: String,
    sources: Sources,
}

impl Connect {
    pub(crate) fn new(broker: Broker, configs: Vec<SourceConfig>) -> Self {
        let desired = DesiredStates::new(&broker);
        let reports = Reports::new(&broker);
        Self { broker, configs, desired, reports, running: Mutex::new(None) }
    }

    /// Starts reading, if there is anything to read.
    pub(crate) async fn start(&self) -> Result<()> {
        if self.configs.is_empty() {
            return Ok(());
        }
        // Two servers of one name would end each other's sessions.
        let node = worker_id_from_env().unwrap_or_else(|_| format!("server-{:016x}", fastrand::u64(..)));
        let sources = Sources::start(&self.broker, &node, self.configs.clone()).await.map_err(told)?;
        tracing::info!(sources = self.configs.len(), node, "reading sources");
        *self.running.lock().await = Some(ReadingNode { node, sources });
        Ok(())
    }

    /// How each source of this server is, as this server sees it.
    async fn statuses(&self) -> BTreeMap<String, Status> {
        self.running.lock().await.as_ref().map(|running| running.sources.statuses()).unwrap_or_default()
    }

    /// Every source of the configuration, and those that another server told of.
    pub(crate) async fn shown(&self) -> Result<SourcesShown> {
        let now = Progress::now_ms();
        let known = self.known().await?;
        Ok(SourcesShown { sources: known.into_iter().map(|(name, one)| one.shown(&name, now)).collect() })
    }

    /// One of them.
    pub(crate) async fn one(&self, source: &str) -> Result<SourceShown> {
        Ok(self.known_one(source).await?.shown(source, Progress::now_ms()))
    }

    /// The webhook of this name, if this server takes requests for it.
    pub(crate) async fn intake(&self, source: &str) -> Option<Intake> {
        self.running.lock().await.as_ref().and_then(|running| running.sources.intake(source))
    }

    async fn known_one(&self, source: &str) -> Result<KnownSource<'_>> {
        self.known().await?.remove(source).ok_or_else(|| {
            let context =
                format!("no server has told of source {source}, and this one is not configured for it");
            Error::new(ErrorKind::NotFound, context).with_field("source")
        })
    }

    async fn known(&self) -> Result<BTreeMap<String, KnownSource<'_>>> {
        let mut reports = self.reports.all().await?;
        let configured = self.configs.iter().map(|config| config.name().to_owned());
        let names: BTreeSet<String> = configured.chain(reports.keys().cloned()).collect();
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut desired = self.desired.all().await?;
        let mut offers = self.offers().await?;
        let mut statuses = self.statuses().await;
        let node = self.running.lock().await.as_ref().map(|running| running.node.clone());
        let known = names.into_iter().map(|name| {
            let offer = offers.remove(&name);
            let is_ours = node.is_some() && offer.as_ref().and_then(Option::as_ref) == node.as_ref();
            let config = self.config(&name);
            let is_open = config.is_some_and(|config| config.kind() == WEBHOOK);
            let known = KnownSource {
                config,
                desired: desired.remove(&name).unwrap_or_default(),
                report: reports.remove(&name),
                offer,
                here: statuses.remove(&name).filter(|_| is_ours || is_open),
            };
            (name, known)
        });
        Ok(known.collect())
    }

    /// The sources that a node can claim, and the living node that has claimed each.
    async fn offers(&self) -> Result<BTreeMap<String, Option<String>>> {
        let claims = self.broker.claims(SERVICE);
        // Without another node that looks, no step declares a dead one gone.
        let workers = claims.workers().await?.into_iter().filter(|worker| !worker.remaining.is_zero());
        let alive: BTreeSet<String> = workers.map(|worker| worker.id).collect();
        let offers = claims.offers(None, 1_000).await?.into_iter().map(|offer| match offer.owner {
            OfferOwner::Worker(name) => (offer.name, Some(name).filter(|name| alive.contains(name))),
            OfferOwner::Free { .. } | OfferOwner::Orphaned { .. } => (offer.name, None),
        });
        Ok(offers.collect())
    }

    fn config(&self, source: &str) -> Option<&SourceConfig> {
        self.configs.iter().find(|config| config.name() == source)
    }

    /// Lets the reader of a source rest.
    pub(crate) async fn pause(&self, source: &str) -> Result<SourceShown> {
        self.change(source, |desired| {
            desired.paused = true;
            Ok(())
        })
        .await
    }

    /// Lets the source be read again, also one that was removed.
    pub(crate) async fn resume(&self, source: &str) -> Result<SourceShown> {
        self.change(source, |desired| {
            desired.paused = false;
            desired.removed = false;
            Ok(())
        })
        .await
    }

    /// Lets the reader of a source begin anew.
    pub(crate) async fn restart(&self, source: &str) -> Result<SourceShown> {
        self.change(source, |desired| {
            desired.restarts += 1;
            Ok(())
        })
        .await
    }

    /// Asks for a copy of a table, or of all.
    pub(crate) async fn snapshot(&self, source: &str, request: &NewSnapshot) -> Result<SourceShown> {
        let known = self.known_one(source).await?;
        let kind = match (known.config, &known.report) {
            (Some(config), _) => config.kind(),
            (None, report) => report.as_ref().map_or("", |report| &*report.kind),
        };
        if !firth_connect::can_copy(kind) {
            let context = format!("source {source} is of kind {kind}: it holds nothing that could be copied");
            return Err(Error::new(ErrorKind::Invalid, context).with_field("source"));
        }
        if let (Some(SourceConfig::Postgres(config)), Some(table)) = (known.config, &request.table)
            && !config.has_table(table)
        {
            let context = format!("table {table} is none of source {source}: its section names its tables");
            return Err(Error::new(ErrorKind::Invalid, context).with_field("table"));
        }
        let ask = |desired: &mut DesiredState| {
            desired.ask_snapshot(request.table.as_deref(), request.condition.as_deref()).map(drop)
        };
        self.change(source, ask).await
    }

    /// Looks whether the other side of a source is fit.
    pub(crate) async fn examine(&self, source: &str) -> Result<Examined> {
        self.known_one(source).await?;
        let config = self.config(source).ok_or_else(|| {
            let context = format!("this server is not configured for source {source}: ask one that is");
            Error::new(ErrorKind::NotFound, context).with_field("source")
        })?;
        let findings = firth_connect::examine(config).await;
        Ok(Examined { findings: findings.into_iter().map(Into::into).collect() })
    }

    async fn change(
        &self,
        source: &str,
        change: impl FnMut(&mut DesiredState) -> Result<()>,
    ) -> Result<SourceShown> {
        self.known_one(source).await?;
        self.desired.change(source, change).await?;
        self.one(source).await
    }

    /// Takes a paused source down: a node that has it drops what it left in the database, and its
    /// marks in the topic. Returns when that is done.
    pub(crate) async fn remove(&self, source: &str) -> Result<()> {
        let known = self.known_one(source).await?;
        let rests = known.desired.paused && known.reader().is_none();
        if !known.desired.removed && !rests {
            let reader = known.reader().map_or("a node", |reader| reader);
            let context = format!(
                "source {source} is read, or {reader} has not stopped yet: pause it first (`firth connect pause {source}`)"
            );
            return Err(Error::new(ErrorKind::AlreadyExists, context).with_field("source"));
        }
        self.desired.set_removed(source, true).await?;
        let until = Instant::now() + REMOVAL;
        while Instant::now() < until {
            match self.known().await?.remove(source) {
                Some(known) if known.offer.is_some() => tokio::time::sleep(LOOK).await,
                _ => return self.reports.forget(source).await,
            }
        }
        let why = self.one(source).await?.reason.unwrap_or_default();
        let context = format!("source {source} is not removed yet; a node goes on trying: {why}");
        Err(Error::new(ErrorKind::Unavailable, context).with_unknown_outcome())
    }

    /// Forgets a source that no node reads. What it left in the database stays.
    pub(crate) async fn forget(&self, source: &str) -> Result<()> {
        let known = self.known_one(source).await?;
        if let Some(reader) = known.reader() {
            let context = format!("node {reader} has source {source}: pause it first, or remove it");
            return Err(Error::new(ErrorKind::AlreadyExists, context).with_field("source"));
        }
        let topic = known.shown(source, 0).topic;
        match self.broker.forget_source(&topic, source).await {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.broker.claims(SERVICE).withdraw(source).await?;
        self.reports.forget(source).await?;
        match self.config(source) {
            // It would begin anew.
            Some(_) => self.desired.set_removed(source, true).await,
            None => self.desired.forget(source).await,
        }
    }

    /// Keeps the gauges up to date until `stop`, for exports that no scrape asks for.
    pub(crate) async fn keep_metrics(&self, stop: CancellationToken) {
        let mut ticks = interval(METRICS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            self.tell_metrics().await;
        }
    }

    /// Brings the gauges up to date, for a scrape too.
    pub(crate) async fn tell_metrics(&self) {
        for (source, status) in self.statuses().await {
            metrics::tell(&source, &status);
        }
    }

    /// Stops reading and gives the sources to other servers.
    pub(crate) async fn close(&self) {
        let running = self.running.lock().await.take();
        if let Some(running) = running {
            running.sources.close().await;
        }
    }
}

/// A source's failure as the server tells it.
pub(crate) fn told(error: firth_connect::Error) -> Error {
    let kind = match error.kind() {
        firth_connect::ErrorKind::Invalid => ErrorKind::Invalid,
        firth_connect::ErrorKind::Unauthorized => ErrorKind::Unauthorized,
        firth_connect::ErrorKind::Fenced => ErrorKind::Fenced,
        firth_connect::ErrorKind::Corrupt => ErrorKind::Corrupt,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, error.context().to_owned()).with_source(error)
}
