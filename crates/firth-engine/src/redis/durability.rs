//! Running steps: a script call, and where an acknowledgement must mean more than "the server has
//! it", its proof behind it (`waits.rs`). A shortfall is an unknown outcome: the master has the
//! step, and may keep it or lose it.

use super::error_mapping::of_call;
use super::keys::KeyNames;
use super::restart_guard::{FreshFile, ask, is_unknown};
use super::start;
use super::synced;
use super::waits::{Promise, Waits};
use crate::durability::Durability;
use crate::error::Result;
use firth_redis::resp::{Frame, ValueKind};
use firth_redis::{Client, Script, ScriptCall};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// Sends steps to the server.
pub(super) struct Steps {
    pub(super) client: Client,
    durability: Durability,
    /// Set once the server was able to promise `synced`; from then on each step proves it anew.
    can_sync: OnceCell<()>,
    waits: Waits,
    file: Arc<FreshFile>,
}

impl Steps {
    pub(super) fn new(file: Arc<FreshFile>, durability: Durability, wait: Duration) -> Self {
        let can_sync = OnceCell::new_with((durability == Durability::Synced).then_some(()));
        let waits = Waits::new(file.clone(), wait);
        Self { client: file.client().clone(), durability, can_sync, waits, file }
    }

    /// The same steps over another client of the same server.
    pub(super) fn over(&self, file: Arc<FreshFile>) -> Self {
        Self::new(file, self.durability, self.waits.limit())
    }

    /// Whether acknowledgements can mean this now, or what is missing.
    pub(super) async fn can_promise(&self, keys: &KeyNames, durability: Durability) -> Result<()> {
        match durability {
            Durability::Fast => Ok(()),
            Durability::Replicated(replicas) => start::can_replicate(&self.client, replicas).await,
            Durability::Synced => {
                self.file.ensure(true).await?;
                synced::check(&self.client, keys).await
            }
        }
    }

    /// Refuses the first `synced` step of an engine that promises less by itself, before anything
    /// is done.
    async fn must_sync(&self, call: &ScriptCall) -> Result<()> {
        let find_out = async || {
            self.file.ensure_for(call, true).await?;
            let key = call.command().first_key().unwrap_or_default();
            let answer = ask(&self.client, key, synced::question()).await;
            synced::judge(answer.as_ref().map_err(Clone::clone))
        };
        self.can_sync.get_or_try_init(find_out).await.copied()
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability
    }

    /// Runs a step that needs no more than the server's word: reads, and what may be lost without
    /// harm.
    pub(super) async fn quick(&self, call: ScriptCall) -> Result<Frame> {
        self.run(call, self.durability).await
    }

    async fn run(&self, call: ScriptCall, durability: Durability) -> Result<Frame> {
        let answer = self.client.eval_known(&call).await;
        if is_unknown(&answer) {
            return Box::pin(self.introduce(&call, durability)).await;
        }
        answer.map_err(of_call)
    }

    /// Runs a step at a server that does not know its script: it may have been started again.
    async fn introduce(&self, call: &ScriptCall, durability: Durability) -> Result<Frame> {
        self.file.ensure_for(call, durability == Durability::Synced).await?;
        self.client.eval(call).await.map_err(of_call)
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
        match durability {
            Durability::Replicated(replicas) => {
                self.waits.run(Promise::Replicas(replicas), script, call).await
            }
            Durability::Synced => {
                self.must_sync(&call).await?;
                self.waits.run(Promise::Disk, script, call).await
            }
            Durability::Fast => self.run(call, durability).await,
        }
    }

    /// Ends the connections and what is under way on them.
    pub(super) async fn close(&self) {
        self.client.close().await;
        self.waits.ended().await;
    }
}

/// Whether a script changed nothing: refusals are plain strings.
pub(super) fn is_refusal(answer: &Frame) -> bool {
    matches!(answer.kind(), ValueKind::BlobString | ValueKind::SimpleString)
}
