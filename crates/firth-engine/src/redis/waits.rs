//! Steps that share one proof of their durability: the group commit of a server.
//!
//! The proof is WAIT, or the settings that make the server sync before it answers (`synced.rs`). A
//! wait counts all writes of its own connection. So steps for one place (the server, or a slot of a
//! cluster) that come while others are under way gather, and then travel in one piece with one wait
//! behind them. A lone step never waits for others: up to [`AT_ONCE`] groups per place, each over
//! a connection of its own (the client's blocking lane), are under way at a time.
//!
//! Groups run in tasks of their own, so that a caller that gives up does not cancel the steps of
//! other callers.

use super::durability::is_refusal;
use super::error_mapping::{odd_answer, of_call};
use super::restart_guard::{FreshFile, is_unknown};
use super::synced;
use crate::error::{Error, ErrorKind, Result};
use firth_redis::config::Server;
use firth_redis::resp::Frame;
use firth_redis::{CallError, Client, Command, Pipe, Script, ScriptCall, cmd, pipe};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Groups of one place that are under way at once.
const AT_ONCE: usize = 4;
/// Groups of all places; below the client's limit of blocking connections.
const GROUPS: u32 = 48;
/// Steps and bytes of one group, unless a single step is larger.
const GROUP: usize = 64;
const GROUP_BYTES: usize = 4 << 20;
/// Steps of one place that may gather; one more is refused.
const QUEUE: usize = 16_384;
/// What a group may take beside its wait.
const GRACE: Duration = Duration::from_secs(5);
const UNPOISONED: &str = "nothing panics while it holds this lock";

/// What has to be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Promise {
    /// This many replicas have it.
    Replicas(u32),
    /// The server's disk has it: the server syncs before it answers.
    Disk,
}

/// Runs steps whose acknowledgement needs a wait.
pub(super) struct Waits(Arc<Inner>);

struct Inner {
    client: Client,
    file: Arc<FreshFile>,
    wait: Duration,
    is_cluster: bool,
    groups: Semaphore,
    places: Mutex<HashMap<Place, WaitQueue>>,
}

/// Steps of one place can travel together.
type Place = (Promise, u16);

#[derive(Default)]
struct WaitQueue {
    under_way: usize,
    waiting: VecDeque<WaitJob>,
}

struct WaitJob {
    script: Script,
    call: ScriptCall,
    answer: oneshot::Sender<Result<Frame>>,
}

type Answer = Result<Frame, CallError>;

impl Waits {
    pub(super) fn new(file: Arc<FreshFile>, wait: Duration) -> Self {
        let client = file.client().clone();
        let is_cluster = matches!(client.config().server, Server::Cluster(_));
        let groups = Semaphore::new(GROUPS as usize);
        Self(Arc::new(Inner { client, file, wait, is_cluster, groups, places: Mutex::default() }))
    }

    /// How long a step waits for replicas or the disk.
    pub(super) fn limit(&self) -> Duration {
        self.0.wait
    }

    /// Runs a step in the next group of its place.
    pub(super) async fn run(&self, promise: Promise, script: &Script, call: ScriptCall) -> Result<Frame> {
        let slot = call.command().first_key().filter(|_| self.0.is_cluster).map_or(0, firth_redis::slot);
        let (answer, answered) = oneshot::channel();
        if self.0.queue((promise, slot), WaitJob { script: script.clone(), call, answer })? {
            tokio::spawn(self.0.clone().serve((promise, slot)));
        }
        answered.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "a group of steps was dropped").with_unknown_outcome())
        })
    }

    /// Waits until nothing is under way; for the end, when the client is closed.
    pub(super) async fn ended(&self) {
        let _all = self.0.groups.acquire_many(GROUPS).await;
    }
}

impl Inner {
    /// Queues a step; true if a task has to be started to serve the place.
    fn queue(&self, place: Place, job: WaitJob) -> Result<bool> {
        let mut places = self.places.lock().expect(UNPOISONED);
        let queue = places.entry(place).or_default();
        if queue.waiting.len() == QUEUE {
            return Err(Error::new(
                ErrorKind::Overloaded,
                format!("{QUEUE} steps wait for replicas or the disk already: slow down and try again"),
            ));
        }
        queue.waiting.push_back(job);
        let starts = queue.under_way < AT_ONCE;
        queue.under_way += usize::from(starts);
        Ok(starts)
    }

    /// Sends group after group until no step waits.
    async fn serve(self: Arc<Self>, place: Place) {
        loop {
            let permit = self.groups.acquire().await;
            let jobs = self.next_group(place);
            if jobs.is_empty() {
                return;
            }
            self.send_group(place.0, jobs).await;
            drop(permit);
        }
    }

    /// The steps that go next; none means that this server of the place is done.
    fn next_group(&self, place: Place) -> Vec<WaitJob> {
        let mut places = self.places.lock().expect(UNPOISONED);
        let Some(queue) = places.get_mut(&place) else { return Vec::new() };
        let mut jobs = Vec::new();
        let mut bytes = 0;
        while let Some(job) = queue.waiting.front() {
            bytes += job.call.command().wire_len();
            if jobs.len() == GROUP || (bytes > GROUP_BYTES && !jobs.is_empty()) {
                break;
            }
            jobs.extend(queue.waiting.pop_front());
        }
        if jobs.is_empty() {
            queue.under_way -= 1;
            if queue.under_way == 0 {
                places.remove(&place);
            }
        }
        jobs
    }

    /// Sends the steps with one wait behind them. Scripts that the node does not know are loaded,
    /// and those steps go again.
    async fn send_group(&self, promise: Promise, mut jobs: Vec<WaitJob>) {
        for scripts_known in [false, true] {
            let mut pipe = pipe();
            if scripts_known {
                if let Err(error) = self.file.ensure_for(&jobs[0].call, promise == Promise::Disk).await {
                    return jobs.into_iter().for_each(|job| job.finish(Err(error.clone().into())));
                }
                let load = |job: &WaitJob| cmd("SCRIPT").arg("LOAD").arg(job.script.source());
                jobs.iter().for_each(|job| pipe.push(&load(job)));
            }
            let loads = pipe.len();
            jobs.iter().for_each(|job| pipe.push(job.call.command()));
            pipe.push(&self.proof_command(promise));
            let mut answers = match self.send(pipe).await {
                Ok(mut answers) if answers.len() == loads + jobs.len() + 1 => answers.split_off(loads),
                Ok(_) => {
                    return jobs
                        .into_iter()
                        .for_each(|job| job.finish(Err(odd_answer().with_unknown_outcome())));
                }
                Err(error) => {
                    return jobs.into_iter().for_each(|job| job.finish(Err(of_call(error.clone()))));
                }
            };
            let confirmed = answers.pop().expect("the wait is the last answer");
            let mut unknown = Vec::new();
            for (job, answer) in jobs.into_iter().zip(answers) {
                if is_unknown(&answer) && !scripts_known {
                    unknown.push(job);
                } else {
                    job.finish(self.judge(promise, answer, &confirmed));
                }
            }
            if unknown.is_empty() {
                return;
            }
            jobs = unknown;
        }
    }

    async fn send(&self, pipe: Pipe) -> Result<Vec<Answer>, CallError> {
        self.client.pipeline::<Vec<Frame>>(pipe.together()).timeout(self.wait + GRACE).await
    }

    fn proof_command(&self, promise: Promise) -> Command {
        let limit = u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX).max(1);
        match promise {
            Promise::Replicas(replicas) => cmd("WAIT").arg(replicas).arg(limit),
            Promise::Disk => synced::question(),
        }
    }

    /// What a step's caller gets: a refusal changed nothing and needs no confirmation.
    fn judge(&self, promise: Promise, answer: Answer, confirmed: &Answer) -> Result<Frame> {
        let answer = answer.map_err(of_call)?;
        if is_refusal(&answer) {
            return Ok(answer);
        }
        let confirmed = confirmed.as_ref().map_err(Clone::clone);
        let proven = match promise {
            Promise::Disk => synced::judge(confirmed),
            Promise::Replicas(wanted) => self.judge_replicas(wanted, confirmed),
        };
        proven.map(|()| answer).map_err(Error::with_unknown_outcome)
    }

    fn judge_replicas(&self, wanted: u32, confirmed: Result<&Frame, CallError>) -> Result<()> {
        let found = confirmed.map_err(of_call)?.value().as_i64().ok_or_else(odd_answer)?;
        if found >= i64::from(wanted) {
            return Ok(());
        }
        let context = format!(
            "only {found} of {wanted} replicas confirmed within {:?}: the master has it, but may lose it",
            self.wait
        );
        Err(Error::new(ErrorKind::Unavailable, context))
    }
}

impl WaitJob {
    /// Answers the caller, if it is still there.
    fn finish(self, answer: Result<Frame>) {
        let _ = self.answer.send(answer);
    }
}
