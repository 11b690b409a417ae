//! The stage: a thread with its own runtime that owns the cluster, publishes, and makes the change
//! while the subject, on the main thread, listens. Everything ends with the thread, also when the
//! subject fails.

use super::owners::{Owners, Taken};
use super::publisher::{Book, Publisher, Sent};
use super::{CHANNELS, Change};
use crate::cell::{Cell, Rounds};
use crate::pubsub::publisher::now;
use crate::pubsub::workload::channel;
use crate::server;
use anyhow::{Context, Result, bail, ensure};
use firth_testkit::wait::Poll;
use firth_testkit::{RedisCluster, Reply, slot_of};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::sleep;

/// Keys for the requests beside the subscriptions.
const KEYS: usize = 90;
/// The master that loses its slots or its life, and the one that inherits in a migration.
const VICTIM: usize = 0;
const TARGET: usize = 1;
/// How long every channel may take to be heard once before anything happens.
const FIRST_MESSAGES: Duration = Duration::from_secs(5);
/// How long the cluster may take to promote a replica.
const PROMOTION: Duration = Duration::from_secs(30);
/// How often a promotion is looked for.
const LOOK: Duration = Duration::from_millis(1);
/// What happens on a channel for this long after it is back belongs to the change; a quick watch
/// ends then.
pub(crate) const AFTERMATH: Duration = Duration::from_secs(1);
/// How long messages may be on their way at the end.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// What the subject is given.
pub(crate) struct Scene {
    pub(crate) nodes: Vec<SocketAddr>,
    pub(crate) channels: Vec<String>,
    pub(crate) keys: Arc<[String]>,
}

/// What happened, and what was published during the change.
pub(crate) struct Story {
    pub(crate) change: Change,
    /// Channels of the victim.
    pub(crate) affected: Vec<bool>,
    /// The victim's port.
    pub(crate) victim: u16,
    /// When the change began: the first slot, or the kill.
    pub(crate) began: Duration,
    /// When all slots had moved, or when the heir called itself a master.
    pub(crate) changed: Duration,
    /// When publishing stopped.
    pub(crate) ended: Duration,
    pub(crate) published: Book,
}

/// The newest number heard on each channel: how the stage knows what the subject is up to.
pub(crate) type Progress = Arc<[AtomicU64]>;

/// The subject's handle on the stage.
pub(crate) struct Stage {
    pub(crate) scene: oneshot::Receiver<Scene>,
    /// To be sent when everything is subscribed; dropping it ends the stage.
    pub(crate) subscribed: oneshot::Sender<()>,
    /// Ends when there is nothing more to hear.
    pub(crate) over: oneshot::Receiver<()>,
    /// To be dropped when the subject needs the cluster no longer.
    pub(crate) leave: oneshot::Sender<()>,
    pub(crate) progress: Progress,
    pub(crate) thread: std::thread::JoinHandle<Result<Story>>,
}

impl Stage {
    /// Sets it up for the change of a cell.
    pub(crate) fn start(cell: &Cell, change: Change) -> Self {
        let progress: Progress = (0..CHANNELS).map(|_| AtomicU64::new(0)).collect();
        let (scene_sender, scene) = oneshot::channel();
        let (subscribed, confirmed) = oneshot::channel();
        let (over_sender, over) = oneshot::channel();
        let (leave, left) = oneshot::channel();
        let cell = cell.clone();
        let heard = progress.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut play = Play::prepare(&cell, change, heard).await?;
                ensure!(scene_sender.send(play.scene()).is_ok(), "the subject is gone");
                confirmed.await.context("the subject did not subscribe")?;
                let story = play.perform(cell.rounds).await;
                drop(over_sender);
                // Nothing is ever sent: this waits for the other end to be dropped.
                drop(left.await);
                story
            })
        });
        Self { scene, subscribed, over, leave, progress, thread }
    }
}

/// The cluster and what is needed to change it.
struct Play {
    change: Change,
    quick: bool,
    heard: Progress,
    cluster: RedisCluster,
    /// All channels with the port of their owner.
    channels: Vec<(String, u16)>,
    keys: Arc<[String]>,
    owners: Owners,
}

impl Play {
    async fn prepare(cell: &Cell, change: Change, heard: Progress) -> Result<Self> {
        let quick = cell.quick;
        let flavor = server::named(&cell.server)?;
        let node_timeout = if quick { 1000 } else { 2000 };
        let cluster = RedisCluster::builder().flavor(flavor).node_timeout(node_timeout).start().await;
        let masters: Vec<u16> =
            cluster.masters().await.iter().map(|index| cluster.node(*index).server().port()).collect();
        let mut owners = Owners::new(masters.clone());
        let mut channels = vec![];
        for name in (0..CHANNELS).map(channel) {
            let owner = owner_of(&mut owners, masters[0], &name).await?;
            channels.push((name, owner));
        }
        let taken: BTreeSet<u16> = channels.iter().map(|(name, _)| slot_of(name)).collect();
        let free = |key: &String| !taken.contains(&slot_of(key));
        let keys: Arc<[String]> =
            (0..).map(|n| format!("bench:key:{n:04}")).filter(free).take(KEYS).collect();
        for key in keys.iter() {
            let command: [&[u8]; 3] = [b"SET", key.as_bytes(), key.as_bytes()];
            owners.call(masters[0], &command).await.with_context(|| format!("write {key}"))?;
        }
        Ok(Self { change, quick, heard, cluster, channels, keys, owners })
    }

    fn scene(&self) -> Scene {
        Scene {
            nodes: self.cluster.nodes().iter().map(|node| node.addr()).collect(),
            channels: self.channels.iter().map(|(name, _)| name.clone()).collect(),
            keys: self.keys.clone(),
        }
    }

    async fn perform(&mut self, rounds: Rounds) -> Result<Story> {
        let victim = self.cluster.node(VICTIM).server().port();
        let affected: Vec<bool> = self.channels.iter().map(|(_, owner)| *owner == victim).collect();
        let publisher = Publisher::start(std::mem::take(&mut self.owners), self.channels.clone());
        let mut first = Poll::new(FIRST_MESSAGES);
        while self.heard.iter().any(|number| number.load(Relaxed) == 0) {
            ensure!(first.again().await, "not every channel was heard before anything happened");
        }
        sleep(rounds.warm).await;
        let began = now();
        match self.change {
            Change::Migrate => self.migrate(victim).await,
            Change::Failover => self.fail_over().await?,
        }
        let changed = now();
        self.watch(rounds.timed, || all_back(&publisher.book(), &affected, victim, &self.heard)).await;
        let ended = now();
        let published = publisher.end().await;
        let mut last = Poll::new(LAST_WAIT);
        while !all_heard(&published, &self.heard) && last.again().await {}
        check(&published, &affected, victim)?;
        Ok(Story { change: self.change, affected, victim, began, changed, ended, published })
    }

    async fn migrate(&self, victim: u16) {
        let affected = self.channels.iter().filter(|(_, owner)| *owner == victim);
        let slots: BTreeSet<u16> = affected.map(|(name, _)| slot_of(name)).collect();
        for slot in slots {
            self.cluster.migrate_slot(slot, VICTIM, TARGET).await;
        }
    }

    /// Kills the victim and returns as soon as its replica calls itself a master.
    async fn fail_over(&self) -> Result<()> {
        let heir = *self.cluster.replicas_of(VICTIM).await.first().context("the victim has a replica")?;
        let heir = self.cluster.node(heir);
        self.cluster.kill(VICTIM).await;
        let deadline = now() + PROMOTION;
        while !heir.is_master().await {
            ensure!(now() < deadline, "nobody took over within {PROMOTION:?}");
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Lets time pass; a quick run needs no more of it once all channels have been back for a
    /// while.
    async fn watch(&self, length: Duration, back: impl Fn() -> bool) {
        let mut watch = Poll::new(length);
        let mut back_since = None;
        while watch.again().await {
            if self.quick && back() && back_since.get_or_insert_with(Instant::now).elapsed() >= AFTERMATH {
                return;
            }
        }
    }
}

/// Who owns a channel's slot: the node that takes a message for it.
async fn owner_of(owners: &mut Owners, anybody: u16, channel: &str) -> Result<u16> {
    match owners.call(anybody, &[b"SPUBLISH", channel.as_bytes(), b""]).await {
        Some(Taken { reply: Reply::Int(_), by, .. }) => Ok(by),
        other => bail!("nobody owns the slot of {channel}: {other:?}"),
    }
}

/// Whether a message that the victim's successor took has been heard on every affected channel.
fn all_back(book: &Book, affected: &[bool], victim: u16, heard: &Progress) -> bool {
    let back = |channel: usize| {
        let renewed = book[channel].iter().rev().take_while(|sent| sent.by != victim).last();
        renewed.is_some_and(|sent| heard[channel].load(Relaxed) >= sent.number)
    };
    (0..book.len()).filter(|channel| affected[*channel]).all(back)
}

/// Whether the last message of every channel has been heard.
fn all_heard(published: &Book, heard: &Progress) -> bool {
    let newest = |channel: &Vec<_>| channel.last().map_or(0, |sent: &Sent| sent.number);
    published.iter().zip(heard.iter()).all(|(channel, heard)| heard.load(Relaxed) >= newest(channel))
}

/// A measurement is worth something only if the cluster itself came through the change.
fn check(published: &Book, affected: &[bool], victim: u16) -> Result<()> {
    let stuck = |(channel, affected): &(&Vec<Sent>, &bool)| {
        **affected && channel.last().is_none_or(|sent| sent.by == victim)
    };
    match published.iter().zip(affected).filter(stuck).count() {
        0 => Ok(()),
        stuck => bail!("{stuck} channels have no new owner: the cluster itself did not recover"),
    }
}
