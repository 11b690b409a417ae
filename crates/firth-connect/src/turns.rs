//! [`Turns`]: a node's turns at one source. It claims the source, reads it as operators want, and
//! gives it back.

use crate::config::SourceConfig;
use crate::control::{DesiredState, SourceControl};
use crate::error::{ErrorKind, Result};
#[cfg(feature = "mongodb")]
use crate::mongodb::Mongo;
#[cfg(feature = "nats")]
use crate::nats::{self, LossyNats, NatsStream};
#[cfg(feature = "postgres")]
use crate::outlets::Outlets;
#[cfg(feature = "postgres")]
use crate::postgres;
use crate::progress::{Condition, Progress};
#[cfg(feature = "redis")]
use crate::redis_keys::RedisKeys;
use crate::reports::{Report, Reports};
#[cfg(feature = "_shared_reader")]
use crate::source::{Kept, Reader, Source};
use crate::sources::SERVICE;
#[cfg(feature = "postgres")]
use crate::state::State;
use firth::Broker;
use firth::claims::{Claim, WorkerHandle};
#[cfg(feature = "_reader")]
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often a node asks for a source that another has.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// This node's turns at one source.
pub(crate) struct Turns {
    pub(crate) broker: Broker,
    pub(crate) handle: WorkerHandle,
    pub(crate) config: SourceConfig,
    pub(crate) control: SourceControl,
    pub(crate) progress: Progress,
}

impl Turns {
    /// Takes turns until the node stops.
    pub(crate) async fn run(self, mut stopped: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = self.rest() => {}
                _ = stopped.wait_for(|stop| *stop) => return,
            }
            self.turn(&mut stopped).await;
            let pause = ASK_EVERY.mul_f64(0.5 + fastrand::f64());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stopped.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Waits while the source is paused. No node claims it until then.
    async fn rest(&self) {
        let rests = |desired: &DesiredState| desired.paused && !desired.removed;
        if rests(&self.control.desired()) {
            self.progress.enter(Condition::Paused, Some("an operator paused it".to_owned()));
            self.control.wait_for(move |desired| !rests(desired)).await;
            self.progress.enter(Condition::Waiting, None);
        }
    }

    /// Reads the source for once, if no other node has it.
    async fn turn(&self, stopped: &mut watch::Receiver<bool>) {
        let source = self.config.name();
        match self.handle.claim(source).await {
            Ok(claim) => {
                let is_removed = tokio::select! {
                    is_removed = self.hold(&claim) => is_removed,
                    _ = stopped.wait_for(|stop| *stop) => false,
                };
                match is_removed {
                    true => self.forget_report().await,
                    false => {
                        if let Err(error) = claim.release().await {
                            tracing::debug!(source, %error, "the claim was gone already");
                        }
                    }
                }
            }
            Err(error) if error.kind() == firth::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == firth::ErrorKind::NotFound => {
                tokio::select! {
                    () = self.offer() => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
            }
            Err(error) => tracing::warn!(source, %error, "a source cannot be claimed"),
        }
        self.progress.enter(Condition::Waiting, None);
    }

    /// Offers a source that is not offered: at once, or when a removed one is wanted again.
    async fn offer(&self) {
        if self.control.desired().removed {
            self.progress.enter(Condition::Paused, Some("an operator removed it".to_owned()));
            self.control.wait_for(|desired| !desired.removed).await;
        }
        if let Err(error) = self.broker.claims(SERVICE).offer(self.config.name(), "").await {
            tracing::warn!(source = self.config.name(), %error, "a source cannot be offered");
        }
    }

    /// Reads until the claim is lost or wanted back, or an operator wants something else. The next
    /// turn has a claim of its own: only that shows what this one saved. Answers whether the source
    /// was taken down.
    async fn hold(&self, claim: &Claim) -> bool {
        let begun = self.control.desired();
        let is_over = |now: &DesiredState| {
            let is_removal = now.removed != begun.removed;
            is_removal || (now.paused && !now.removed) || now.restarts != begun.restarts
        };
        let work = async {
            match begun.removed {
                true => self.remove(claim).await,
                false => self.keep_reading(claim).await,
            }
        };
        tokio::select! {
            () = work => begun.removed,
            () = self.control.wait_for(is_over) => false,
            () = self.report() => false,
            () = claim.recalled() => false,
        }
    }

    /// No node has the source any more, so none tells how it is.
    async fn forget_report(&self) {
        let source = self.config.name();
        if let Err(error) = Reports::new(&self.broker).forget(source).await {
            tracing::debug!(source, %error, "the last report of a removed source stays");
        }
        tracing::info!(source, "a source was removed");
    }

    /// Takes down what the source has in the database and in its topic, and then its offer. Under
    /// the claim, no other node reads it.
    async fn remove(&self, claim: &Claim) {
        let source = self.config.name();
        loop {
            match self.take_down(claim).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(source, %error, "a source cannot be removed yet");
                    self.progress.ended(&error);
                    tokio::time::sleep(ASK_EVERY).await;
                }
            }
        }
    }

    async fn take_down(&self, claim: &Claim) -> Result<()> {
        match &self.config {
            #[cfg(feature = "postgres")]
            SourceConfig::Postgres(config) => postgres::remove(config, claim.epoch().0).await?,
            #[cfg(feature = "nats")]
            SourceConfig::Nats(config) => nats::remove(config).await?,
            // They leave nothing behind.
            #[cfg(feature = "mongodb")]
            SourceConfig::Mongo(_) => {}
            #[cfg(feature = "redis")]
            SourceConfig::RedisKeys(_) => {}
            SourceConfig::Webhook(_) => {}
        }
        let topics = std::iter::once(self.config.topic().to_owned()).chain(self.config.further_topics());
        for topic in topics {
            match self.broker.forget_source(&topic, self.config.name()).await {
                Err(error) if error.kind() != firth::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(claim.done().await?)
    }

    /// Tells every process of the engine how the source is.
    async fn report(&self) {
        let like = Report::of(&self.config, self.handle.id());
        Reports::new(&self.broker).keep_telling(self.config.name(), like, &self.progress).await;
    }

    /// Reads until a newer reader took over.
    async fn keep_reading(&self, claim: &Claim) {
        loop {
            let Some(error) = self.read(claim).await.err() else { return };
            self.progress.ended(&error);
            if error.kind() == ErrorKind::Fenced {
                return;
            }
            tracing::warn!(source = self.config.name(), %error, "a source cannot be read yet");
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Returns once a newer reader took over.
    async fn read(&self, claim: &Claim) -> Result<()> {
        let error: Option<crate::Error> = match &self.config {
            #[cfg(feature = "postgres")]
            SourceConfig::Postgres(config) => Some(self.read_postgres(claim, config).await?),
            #[cfg(feature = "mongodb")]
            SourceConfig::Mongo(config) => Some(self.follow(claim, &Mongo::new(config.clone())).await?),
            #[cfg(feature = "nats")]
            SourceConfig::Nats(config) if config.is_lossy() => {
                Some(self.follow(claim, &LossyNats::new(config.clone())).await?)
            }
            #[cfg(feature = "nats")]
            SourceConfig::Nats(config) => Some(self.follow(claim, &NatsStream(config.clone())).await?),
            #[cfg(feature = "redis")]
            SourceConfig::RedisKeys(config) => {
                Some(self.follow(claim, &RedisKeys::new(config.clone())).await?)
            }
            // It comes to every node, and is never claimed.
            SourceConfig::Webhook(_) => {
                claim.recalled().await;
                None
            }
        };
        if let Some(error) = error {
            tracing::info!(source = self.config.name(), %error, "a newer reader took over");
        }
        Ok(())
    }

    /// Reads a database of PostgreSQL.
    #[cfg(feature = "postgres")]
    async fn read_postgres(&self, claim: &Claim, config: &postgres::Config) -> Result<crate::Error> {
        let Self { control, progress, .. } = self;
        let epoch = claim.epoch();
        let state = State::from_bytes(claim.last_checkpoint().map(|bytes| &bytes[..]))?;
        let further = self.config.further_topics();
        let sink = Outlets::open(&self.broker, &config.name, epoch, &config.topic, &further).await?;
        let sink = Arc::new(sink);
        let reader = postgres::Reader { config, sink, keep: claim, epoch: epoch.0, control, progress };
        Ok(reader.run(state).await)
    }

    /// Reads a source of the kinds that share a reader.
    #[cfg(feature = "_shared_reader")]
    async fn follow<S: Source>(&self, claim: &Claim, source: &S) -> Result<crate::Error> {
        let epoch = claim.epoch();
        let sink = Arc::new(self.broker.source_writer(self.config.topic(), source.name(), epoch).await?);
        let dead = match &source.policy().dead_topic {
            Some(topic) => Some(Arc::new(self.broker.source_writer(topic, source.name(), epoch).await?)),
            None => None,
        };
        let kept = Kept::from_bytes(claim.last_checkpoint().map(|bytes| &bytes[..]))?;
        let progress = &self.progress;
        Ok(Reader { source, sink, dead, keep: claim, epoch: epoch.0, progress }.run(kept).await)
    }
}
