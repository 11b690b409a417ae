//! [`Sources`]: the sources that a node may read, each read by one node at a time.
//!
//! A source is a unit of the service `sources`. A node claims each unit that no other has, reads
//! while it holds the claim, and stops when it loses it. The epoch of the claim fences the topic.

use crate::config::{SourceConfig, WEBHOOK};
use crate::control::{DesiredStates, SourceControl};
use crate::error::{Error, Result};
use crate::intake::Intake;
use crate::progress::{Progress, Status};
use crate::reports::{Report, Reports};
use crate::turns::Turns;
use firth::Broker;
use firth::claims::Worker;
use std::collections::BTreeMap;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The service whose units are sources.
pub const SERVICE: &str = "sources";
/// Sources of one node, at most.
pub const MAX_SOURCES: usize = 64;

/// The sources of this node; see the [module](self). Dropping it is like a crash: another node
/// takes over when the claims run out.
#[derive(Debug)]
pub struct Sources {
    shown: BTreeMap<String, Progress>,
    intakes: BTreeMap<String, Intake>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Sources {
    /// Offers the sources and reads those that no other node does. `node` is this node's lasting
    /// name.
    pub async fn start<C: Into<SourceConfig>>(
        broker: &Broker,
        node: &str,
        configs: impl IntoIterator<Item = C>,
    ) -> Result<Self> {
        let configs: Vec<SourceConfig> = configs.into_iter().map(Into::into).collect();
        if configs.len() > MAX_SOURCES {
            let count = configs.len();
            return Err(Error::invalid(format!("connect has {count} sources; give at most {MAX_SOURCES}")));
        }
        let claims = broker.claims(SERVICE);
        let read = configs.iter().filter(|config| config.kind() != WEBHOOK);
        claims.offer_all(read.map(|config| (config.name(), ""))).await?;
        let names = configs.iter().map(|config| config.name().to_owned()).collect();
        let (mut controls, keep_up) = DesiredStates::new(broker).follow(names).await?;
        let worker = claims.worker(node).by_name_only().await?;
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut shown = BTreeMap::new();
        let mut intakes = BTreeMap::new();
        for config in configs {
            let name = config.name().to_owned();
            let progress = Progress::default();
            let control = controls.remove(&name).unwrap_or_else(|| SourceControl::detached(&name));
            shown.insert(name.clone(), progress.clone());
            if let Some(webhook) = config.webhook() {
                let intake = Intake::new(webhook.clone(), control, progress);
                intakes.insert(name, intake.clone());
                let report = Report::of(&config, node);
                spawn_until(&mut tasks, stopped.clone(), intake.keep_open(Reports::new(broker), report));
                continue;
            }
            let turns = Turns { broker: broker.clone(), handle: worker.handle(), config, control, progress };
            tasks.spawn(turns.run(stopped.clone()));
        }
        spawn_until(&mut tasks, stopped.clone(), keep_up);
        tasks.spawn(listen(worker, stopped));
        Ok(Self { shown, intakes, stop, tasks })
    }

    /// The webhook of this name, if this node takes requests for it.
    pub fn intake(&self, source: &str) -> Option<Intake> {
        self.intakes.get(source).cloned()
    }

    /// How each source is, as this node sees it.
    pub fn statuses(&self) -> BTreeMap<String, Status> {
        self.shown.iter().map(|(name, progress)| (name.clone(), progress.status())).collect()
    }

    /// Stops reading and gives all sources back.
    pub async fn close(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Runs a task until the node stops.
fn spawn_until(
    tasks: &mut JoinSet<()>,
    mut stopped: watch::Receiver<bool>,
    task: impl Future<Output = ()> + Send + 'static,
) {
    tasks.spawn(async move {
        tokio::select! {
            () = task => {}
            _ = stopped.wait_for(|stop| *stop) => {}
        }
    });
}

/// Keeps the worker alive and its events read; leaves the service when told to.
async fn listen(mut worker: Worker, mut stopped: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            event = worker.next() => match event {
                Some(Ok(_)) => {}
                Some(Err(error)) => return tracing::error!(%error, "this node cannot read sources any more"),
                None => return,
            },
            _ = stopped.wait_for(|stop| *stop) => break,
        }
    }
    if let Err(error) = worker.close().await {
        tracing::warn!(%error, "the sources of this node are taken over when its claims run out");
    }
}
