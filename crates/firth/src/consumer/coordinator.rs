//! The group coordinator: one task per consumer that keeps its share of the partitions.
//!
//! Each turn reads the topic, the members and the owners, computes the plan and acts on the
//! difference: it takes free partitions, and tells lanes to give up those of other members. It
//! never waits for a lane; lanes end on their own. Hints wake it, and so does the next lease that
//! expires; half a TTL is the slow path.

use super::in_flight::{AskLane, Questions};
use super::lane::{Common, Lane, LaneEnd};
use super::lease_note::{self, Note, succeeded};
use super::leases::{HeldLease, LeaseRenewer};
use super::plan::{GroupView, Member, plan};
use crate::error::{Error, ErrorKind, Result};
use crate::failure_detector::FailureDetector;
use crate::topic::{TopicInfo, Topics};
use firth_engine::facet::{Acquire, LeaseQuery};
use firth_engine::{
    Backoff, Engine, Epoch, GroupName, HintKey, HintSet, HolderName, LeaseInfo, LeaseName, MemberName,
    Partition, PoolName, TopicName,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// While the engine does not answer, so that the consumer resumes soon after its return.
const AWAY: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_millis(500));
/// Before a lane that cannot go on is tried again.
const REST: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(5));

pub(crate) struct Coordinator {
    common: Arc<Common>,
    topics: Topics,
    topic: TopicName,
    me: String,
    pool: PoolName,
    leases: LeaseRenewer,
    member: Option<Arc<HeldLease>>,
    lanes: HashMap<u32, Owned>,
    tasks: JoinSet<(u32, LaneEnd)>,
    hints: HintSet,
    hinted_partitions: u32,
    detector: FailureDetector<LeaseName>,
    /// Partitions whose lane failed, and when to try again.
    resting: HashMap<u32, (u32, Instant)>,
    assignment: watch::Sender<BTreeMap<u32, Epoch>>,
    questions: Questions,
}

struct Owned {
    held: Arc<HeldLease>,
    stop: CancellationToken,
    ask: AskLane,
    task: tokio::task::Id,
}

impl Coordinator {
    pub(crate) fn new(
        common: Arc<Common>,
        topic: TopicName,
        me: String,
        leases: LeaseRenewer,
        assignment: watch::Sender<BTreeMap<u32, Epoch>>,
    ) -> Self {
        let topics = Topics::new(common.engine.clone());
        let pool = member_pool(&topic, &common.group);
        let hints = HintSet::from_iter([topics.hint(), common.engine.hint(HintKey::Pool(pool.clone()))]);
        let questions = Questions::new(common.engine.clone(), &pool);
        Self {
            questions,
            common,
            topics,
            topic,
            me,
            pool,
            leases,
            member: None,
            lanes: HashMap::new(),
            tasks: JoinSet::new(),
            hints,
            hinted_partitions: 0,
            detector: FailureDetector::default(),
            resting: HashMap::new(),
            assignment,
        }
    }

    /// Runs until `closing`, then hands everything over. An error means that the consumer cannot go
    /// on.
    pub(crate) async fn run(mut self, closing: CancellationToken) -> Result<()> {
        let mut failures: u32 = 0;
        let outcome = loop {
            let wake = match self.turn().await {
                Ok(wake) => {
                    failures = 0;
                    wake
                }
                Err(error) if error.is_retryable() => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        tracing::warn!(%error, topic = %self.topic, "cannot see to the partitions; trying again");
                    }
                    Instant::now() + AWAY.delay(failures)
                }
                Err(error) => break Err(error),
            };
            tokio::select! {
                () = closing.cancelled() => break Ok(()),
                () = self.hints.wait(), if failures == 0 => {}
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                question = self.questions.next() => {
                    let lanes = self.lanes.iter().map(|(index, owned)| (*index, owned.ask.clone()));
                    self.questions.answer(question, &self.me, lanes.collect());
                }
                () = tokio::time::sleep_until(wake) => {}
            }
        };
        self.leave().await;
        outcome
    }

    /// Looks at the group once and acts on what it sees; returns when to look again.
    async fn turn(&mut self) -> Result<Instant> {
        let info = self.topics.get(&self.topic).await?;
        self.listen(&info);
        self.join().await?;
        let engine = self.common.engine.clone();
        let members = engine.leases(&LeaseQuery::Pool(self.pool.clone())).await?;
        let names = info.partitions().map(|at| LeaseName::group(&at, &self.common.group)).collect();
        let owners = engine.leases(&LeaseQuery::Names(names)).await?;
        let now = Instant::now();
        let (view, still) = self.view(&info, &members, &owners, now);
        let wanted: Vec<bool> = plan(&view).iter().map(|owner| *owner == Some(self.me.as_str())).collect();
        for (index, at) in (0..).zip(info.partitions()) {
            let is_mine = self.lanes.contains_key(&index);
            match (wanted[index as usize], is_mine) {
                (true, false) => self.take(&info, &at, &view, still.get(&index)).await?,
                (false, true) => self.lanes[&index].stop.cancel(),
                _ => {}
            }
        }
        let first_end = members.iter().chain(&owners).filter(|lease| lease.is_held() && !self.is_me(lease));
        let first_end = first_end.map(|lease| lease.remaining + Duration::from_millis(1)).min();
        let rests = self.resting.values().map(|(_, until)| until.duration_since(now));
        let soonest = first_end.into_iter().chain(rests).min().unwrap_or(Duration::MAX);
        Ok(now + soonest.min(self.common.config.lease / 2).max(Duration::from_millis(1)))
    }

    fn is_me(&self, lease: &LeaseInfo) -> bool {
        lease.holder.as_ref().is_some_and(|holder| holder.as_str() == self.me)
    }

    /// Who is alive and who owns what; and the leases that may be taken although they seem to run:
    /// those that stand still, and those of members that a newer one of their name succeeds.
    fn view(
        &mut self,
        info: &TopicInfo,
        members: &[LeaseInfo],
        owners: &[LeaseInfo],
        now: Instant,
    ) -> (GroupView, HashMap<u32, LeaseInfo>) {
        let mut view = GroupView::default();
        let mut still = HashMap::new();
        let succeeded = succeeded(members);
        let is_succeeded =
            |lease: &LeaseInfo| lease.holder.as_ref().is_some_and(|holder| succeeded.contains(holder));
        // A lease of ours that ran out while the engine was away is renewed soon, unless another
        // has it.
        for lease in members {
            if !lease.is_held() && !self.is_me(lease) {
                continue;
            }
            let dead = is_succeeded(lease)
                || (!self.is_me(lease) && lease_note::is_stalled(&mut self.detector, lease, now));
            if let (Some(holder), false) = (&lease.holder, dead) {
                let Note { pins, most, .. } = Note::of(lease);
                view.members.insert(holder.to_string(), Member { pins, most });
            }
        }
        self.note_losses(owners);
        view.owners = vec![None; info.config.partitions as usize];
        for lease in owners {
            let LeaseName::Group { at, .. } = &lease.name else { continue };
            let is_ours = self.is_me(lease) && self.lanes.contains_key(&at.index);
            if !lease.is_held() && !is_ours {
                continue;
            }
            let holder = lease.holder.as_ref().map(ToString::to_string);
            view.owners[at.index as usize] = holder.filter(|holder| view.members.contains_key(holder));
            if !self.is_me(lease)
                && (is_succeeded(lease) || lease_note::is_stalled(&mut self.detector, lease, now))
            {
                still.insert(at.index, lease.clone());
            }
        }
        let there: HashSet<&LeaseName> = members.iter().chain(owners).map(|lease| &lease.name).collect();
        self.detector.retain(|name| there.contains(name));
        (view, still)
    }

    /// A lease with a newer epoch was taken away: its lane need not wait for a refusal.
    fn note_losses(&self, owners: &[LeaseInfo]) {
        for lease in owners {
            if let LeaseName::Group { at, .. } = &lease.name
                && let Some(owned) =
                    self.lanes.get(&at.index).filter(|owned| lease.epoch > owned.held.hold.epoch)
            {
                owned.held.lost.cancel();
            }
        }
    }

    /// Makes sure that the others see this consumer.
    async fn join(&mut self) -> Result<()> {
        if self.member.as_ref().is_some_and(|member| !member.lost.is_cancelled()) {
            return Ok(());
        }
        let ttl = self.common.config.lease;
        let name = MemberName::new(&self.me)?;
        let mut request = Acquire::new(LeaseName::pool(&self.pool, &name), HolderName::new(&self.me)?, ttl);
        let config = &self.common.config;
        let pins = config.partitions.clone();
        let sole = config.takes_over.then(|| config.name.clone());
        let most = config.max_partitions;
        let kind = Some(config.kind.clone());
        let host = lease_note::host();
        let pid = Some(std::process::id());
        request.note = Note { ttl_ms: millis(ttl), pins, most, sole, kind, host, pid }.to_bytes();
        let asked = Instant::now();
        // If a lost answer granted the lease to this name, it runs out, and a later turn takes it.
        if let Some(hold) = self.common.engine.acquire(request).await?.granted() {
            let held = HeldLease::new(hold, asked, ttl);
            self.leases.add(held.clone());
            self.member = Some(held);
        }
        Ok(())
    }

    /// Takes a partition if it is free, and starts its lane.
    async fn take(
        &mut self,
        info: &TopicInfo,
        at: &Partition,
        view: &GroupView,
        still: Option<&LeaseInfo>,
    ) -> Result<()> {
        let now = Instant::now();
        let rests = self.resting.get(&at.index).is_some_and(|(_, until)| now < *until);
        let owned = view.owners[at.index as usize].is_some() && still.is_none();
        if rests || owned {
            return Ok(());
        }
        let ttl = self.common.config.lease;
        let name = LeaseName::group(at, &self.common.group);
        let mut request = Acquire::new(name, HolderName::new(&self.me)?, ttl);
        request.note = Note { ttl_ms: millis(ttl), ..Note::default() }.to_bytes();
        request.stalled = still.map(|lease| (lease.epoch, lease.beats));
        let hold = match self.common.engine.acquire(request).await {
            Ok(acquired) => acquired.granted(),
            // The topic was deleted since this turn began: the next turn sees what became of it.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.rest(at.index);
                None
            }
            Err(error) => return Err(error),
        };
        let Some(hold) = hold else { return Ok(()) };
        let held = HeldLease::new(hold, now, ttl);
        let stop = CancellationToken::new();
        self.leases.add(held.clone());
        let common = self.common.clone();
        let index = at.index;
        let start = common.config.start.without_group(index, &common.built_on, info);
        let lane = Lane { common, at: at.clone(), held: held.clone(), stop: stop.clone(), start };
        // Before the lane starts: a handler finds the ownership that its record belongs to.
        self.assignment.send_modify(|owned| {
            owned.insert(index, held.hold.epoch);
        });
        let (ask, asked) = mpsc::channel(1);
        let task = self.tasks.spawn(async move { (index, lane.run(asked).await) }).id();
        self.lanes.insert(index, Owned { held, stop, ask, task });
        self.common.meter.owned.set(self.lanes.len() as f64);
        Ok(())
    }

    fn ended(&mut self, ended: Result<(u32, LaneEnd), tokio::task::JoinError>) {
        let (index, end) = match ended {
            Ok(ended) => ended,
            // A lane does not panic. If one does, its lease runs out and a member takes over.
            Err(error) => {
                let index =
                    self.lanes.iter().find(|(_, owned)| owned.task == error.id()).map(|(index, _)| *index);
                let end = Error::new(ErrorKind::Internal, "a lane ended without a word").with_source(error);
                (index.expect("every lane's task is known"), LaneEnd::Failed(end))
            }
        };
        self.forget(index);
        match end {
            LaneEnd::Stopped | LaneEnd::Lost => {
                self.common.damage.forget(index);
                self.resting.remove(&index);
            }
            LaneEnd::Failed(error) => {
                if error.kind() == ErrorKind::Corrupt {
                    self.common.damage.note(index, &error);
                }
                tracing::error!(%error, topic = %self.topic, partition = index, "the lane failed; trying again later");
                self.rest(index);
            }
        }
    }

    /// Leaves a partition alone for a while, longer each time.
    fn rest(&mut self, index: u32) {
        let failures = self.resting.get(&index).map_or(0, |(failures, _)| *failures) + 1;
        self.resting.insert(index, (failures, Instant::now() + REST.delay(failures)));
    }

    fn forget(&mut self, index: u32) {
        if let Some(owned) = self.lanes.remove(&index) {
            self.leases.remove(&owned.held);
        }
        self.assignment.send_if_modified(|owned| owned.remove(&index).is_some());
        self.common.meter.owned.set(self.lanes.len() as f64);
    }

    /// Listens for changes of owner on partitions that are new.
    fn listen(&mut self, info: &TopicInfo) {
        let new = info.partitions().skip(self.hinted_partitions as usize);
        let engine: &Engine = &self.common.engine;
        self.hints.extend(new.map(|at| engine.hint(HintKey::GroupLeases(at))));
        self.hinted_partitions = self.hinted_partitions.max(info.config.partitions);
    }

    /// Leaves the group: the others may take over at once what each lane gives back.
    async fn leave(mut self) {
        self.questions.close().await;
        for owned in self.lanes.values() {
            owned.stop.cancel();
        }
        if let Some(member) = self.member.take() {
            self.leases.remove(&member);
            if let Err(error) = self.common.engine.release(&member.hold).await {
                tracing::warn!(%error, "a membership was not given back; it runs out");
            }
        }
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended);
        }
        self.common.ready_queue.close();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Takes the members that vanished out of the pool of a group that is gone. With its last lease the
/// pool leaves no trace; a member that lives takes its own lease out at its end.
pub(crate) async fn forget_members(engine: &Engine, topic: &TopicName, group: &GroupName) -> Result<()> {
    let members = engine.leases(&LeaseQuery::Pool(member_pool(topic, group))).await?;
    for vanished in members.iter().filter(|lease| !lease.is_held()) {
        engine.revoke(&vanished.name).await?;
    }
    Ok(())
}

/// The pool in which the members of a group meet. Long names are hashed to fit.
pub(crate) fn member_pool(topic: &TopicName, group: &GroupName) -> PoolName {
    let plain = format!("members.{}.{topic}.{group}", topic.as_str().len());
    PoolName::new(&plain).unwrap_or_else(|_| {
        let a = crate::partitioner::key_hash(plain.as_bytes());
        let b = plain.len();
        let c = crate::partitioner::key_hash(format!("{group}/{topic}").as_bytes());
        PoolName::new(format!("members-{a:016x}{c:016x}-{b}")).expect("a valid name")
    })
}
