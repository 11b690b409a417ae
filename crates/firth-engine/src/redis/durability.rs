//! Running steps: a script call, and where an acknowledgement must mean more than "the server has it", WAIT or WAITAOF behind it
//! in the same pipeline.
//!
//! WAIT counts the writes of its own connection, so that a waited step travels in one piece over a connection of its own (the
//! client's blocking lane). At most [`WAITING`] do so at once; the others queue here. A shortfall is an
//! unknown outcome: the master has the step, and may keep it or lose it.

use super::start;
use super::trouble::{odd_answer, of_call};
use crate::durability::Durability;
use crate::error::{Error, ErrorKind, Result};
use firth_redis::resp::{Frame, Kind};
use firth_redis::{CallError, Client, Command, Pipe, Script, ScriptCall, cmd, pipe};
use std::time::Duration;
use tokio::sync::{OnceCell, Semaphore};

/// Waited steps under way at once; below the client's limit of blocking connections.
const WAITING: usize = 48;
/// What a waited step may take beside its wait.
const GRACE: Duration = Duration::from_secs(5);

/// Sends steps to the server.
pub(super) struct Steps {
    pub(super) client: Client,
    durability: Durability,
    /// WAITAOF is not needed: the server syncs before it answers. Empty until somebody wants `synced`.
    syncs_always: OnceCell<bool>,
    wait: Duration,
    waiting: Semaphore,
}

impl Steps {
    pub(super) fn new(
        client: Client,
        durability: Durability,
        syncs_always: Option<bool>,
        wait: Duration,
    ) -> Self {
        let syncs_always = OnceCell::new_with(syncs_always);
        Self { client, durability, syncs_always, wait, waiting: Semaphore::new(WAITING) }
    }

    /// Whether acknowledgements can mean this, or what is missing.
    pub(super) async fn can_promise(&self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Fast => Ok(()),
            Durability::Replicated(replicas) => start::can_replicate(&self.client, replicas).await,
            Durability::Synced => self.syncs_always().await.map(drop),
        }
    }

    async fn syncs_always(&self) -> Result<bool> {
        self.syncs_always.get_or_try_init(|| start::can_sync(&self.client)).await.copied()
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability
    }

    /// Runs a step that needs no more than the server's word: reads, and what may be lost without harm.
    pub(super) async fn quick(&self, call: ScriptCall) -> Result<Frame> {
        self.client.eval(&call).await.map_err(of_call)
    }

    /// Runs a step whose answer is an acknowledgement.
    pub(super) async fn durable(&self, script: &Script, call: ScriptCall) -> Result<Frame> {
        self.durable_as(self.durability, script, call).await
    }

    /// Runs a step whose answer is an acknowledgement of this kind.
    pub(super) async fn durable_as(
        &self,
        durability: Durability,
        script: &Script,
        call: ScriptCall,
    ) -> Result<Frame> {
        let Some(wait) = self.wait_command(durability).await? else {
            return self.quick(call).await;
        };
        let _place = self.waiting.acquire().await.expect("the semaphore is never closed");
        let mut answers = self.send(pipe(), &call, &wait).await?;
        if matches!(&answers[..], [Err(CallError::Server(error)), ..] if &*error.code == "NOSCRIPT") {
            let load = pipe().then(cmd("SCRIPT").arg("LOAD").arg(script.source()));
            answers = self.send(load, &call, &wait).await?;
            answers.remove(0).map_err(of_call)?;
        }
        let (Some(confirmed), Some(answer)) = (answers.pop(), answers.pop()) else {
            return Err(odd_answer());
        };
        let answer = answer.map_err(of_call)?;
        if is_refusal(&answer) {
            return Ok(answer);
        }
        self.check(durability, confirmed).map(|()| answer)
    }

    /// Sends a step with its wait behind it, in one piece to one node.
    async fn send(
        &self,
        mut pipe: Pipe,
        call: &ScriptCall,
        wait: &Command,
    ) -> Result<Vec<Result<Frame, CallError>>> {
        pipe.push(call.command());
        pipe.push(wait);
        let limit = self.wait + GRACE;
        self.client.pipeline::<Vec<Frame>>(pipe.together()).timeout(limit).await.map_err(of_call)
    }

    async fn wait_command(&self, durability: Durability) -> Result<Option<Command>> {
        let limit = u64::try_from(self.wait.as_millis()).unwrap_or(u64::MAX).max(1);
        Ok(match durability {
            Durability::Fast => None,
            Durability::Replicated(replicas) => Some(cmd("WAIT").arg(replicas).arg(limit)),
            Durability::Synced if self.syncs_always().await? => None,
            Durability::Synced => Some(cmd("WAITAOF").arg(1).arg(0).arg(limit)),
        })
    }

    /// Whether the wait says what was promised.
    fn check(&self, durability: Durability, confirmed: Result<Frame, CallError>) -> Result<()> {
        let confirmed = confirmed.map_err(|error| of_call(error).with_unknown_outcome())?;
        let value = confirmed.value();
        let (wanted, found, what) = match durability {
            Durability::Replicated(replicas) => (i64::from(replicas), value.as_i64(), "replicas"),
            _ => (1, value.get(0).and_then(firth_redis::resp::Value::as_i64), "disks"),
        };
        let found = found.ok_or_else(|| odd_answer().with_unknown_outcome())?;
        if found >= wanted {
            return Ok(());
        }
        let context = format!(
            "only {found} of {wanted} {what} confirmed within {:?}: the master has it, but may lose it",
            self.wait
        );
        Err(Error::new(ErrorKind::Unavailable, context).with_unknown_outcome())
    }
}

/// Whether a script changed nothing: refusals are plain strings.
pub(super) fn is_refusal(answer: &Frame) -> bool {
    matches!(answer.kind(), Kind::BlobString | Kind::SimpleString)
}
