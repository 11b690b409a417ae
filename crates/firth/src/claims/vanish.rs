//! [`Worker::vanish`]: the end of a worker that is held for somebody else, who is known to be dead.

use super::shard::Shard;
use super::worker::Worker;
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// How often a seat is looked at again whose last beat was still on its way.
const LOOKS: u32 = 10;

impl Worker {
    /// Ends as a crash does, but without the wait: its claims are orphans at once and go to others. For whoever holds a worker on
    /// behalf of a process elsewhere, and knows by a lease of their own that this process may not work any more. A newer life of the
    /// same name is never touched. After an error the claims are taken over when the TTL has run out.
    pub async fn vanish(mut self) -> Result<()> {
        if let Some(task) = self.task.take() {
            task.abort();
            // Waits until the keepers are gone, and their hearts with them; how they ended does not matter.
            drop(task.await);
        }
        let mut outcome = Ok(());
        for shard in self.handle().shards() {
            let expelled = expel(shard).await;
            outcome = outcome.and(expelled);
        }
        outcome
    }
}

async fn expel(shard: &Arc<Shard>) -> Result<()> {
    let Some(life) = shard.table().life.clone() else { return Ok(()) };
    shard.lose_all(&life);
    for _ in 0..LOOKS {
        let seats = shard.common.engine.members(&shard.board).await?;
        let ours = seats.iter().find(|seat| seat.number == life.seat.number && seat.remaining.is_some());
        let Some(seat) = ours else { return Ok(()) };
        if shard.common.engine.expel(&shard.board, seat.number, seat.beats).await? {
            return Ok(());
        }
    }
    let why =
        format!("worker {} still beats on {}: its claims wait for its TTL", shard.common.id, shard.board);
    Err(Error::new(ErrorKind::Unavailable, why))
}
