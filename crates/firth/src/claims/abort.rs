//! [`Worker::abort`]: the end of a worker that is held for a remote process, once that process is
//! known to be dead.

use super::shard::Shard;
use super::worker::Worker;
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// How often a membership is looked at again whose last beat was still on its way.
const LOOKS: u32 = 10;

impl Worker {
    /// Ends as a crash does, but without the wait: its claims are orphans at once and go to other
    /// workers. For a program that holds a worker on behalf of a remote process. The program must
    /// know, by a lease of its own, that the remote process may not work any more. A newer session
    /// of the same name is never touched. After an error, other workers take the claims over when
    /// the TTL has run out.
    pub async fn abort(mut self) -> Result<()> {
        self.coordinators.abort().await;
        let mut outcome = Ok(());
        for shard in self.handle().shards() {
            let expelled = expel(shard).await;
            outcome = outcome.and(expelled);
        }
        outcome
    }
}

async fn expel(shard: &Arc<Shard>) -> Result<()> {
    let Some(session) = shard.table().session.clone() else { return Ok(()) };
    shard.lose_all(&session);
    for _ in 0..LOOKS {
        let memberships = shard.common.engine.members(&shard.claim_shard).await?;
        let ours = memberships.iter().find(|membership| {
            membership.number == session.membership.number && membership.remaining.is_some()
        });
        let Some(membership) = ours else { return Ok(()) };
        if shard.common.engine.expel(&shard.claim_shard, membership.number, membership.beats).await? {
            return Ok(());
        }
    }
    let why = format!(
        "worker {} still beats on {}: its claims wait for its TTL",
        shard.common.id, shard.claim_shard
    );
    Err(Error::new(ErrorKind::Unavailable, why))
}
