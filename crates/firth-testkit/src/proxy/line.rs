//! One direction of a link: reads, shapes as the plan says, writes.
//!
//! Without faults a buffer goes straight through. With faults, chunks wait in a queue that is
//! bounded by [`QUEUE_BYTES`]: beyond it the line stops reading, as a full network would.

use super::Shared;
use super::link::Reset;
use super::plan::{Direction, Plan, Shape};
use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

const BUFFER: usize = 128 * 1024;
const QUEUE_BYTES: usize = 16 * 1024 * 1024;

/// Bytes that wait for their time.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    sent: usize,
}

/// The state of one direction.
pub(super) struct Line<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    way: Direction,
    plan: watch::Receiver<Plan>,
    forwarded: &'a AtomicU64,
    shape: Shape,
    queue: VecDeque<Chunk>,
    queued: usize,
    /// Bytes written since the plan was set.
    done: u64,
    /// When the throttle allows the next piece.
    rested: Instant,
    /// Bytes were swallowed, so the connection cannot go on once the plan stops swallowing.
    lost: bool,
    /// The sender has closed.
    closed: bool,
}

impl<'a> Line<'a> {
    pub(super) fn new(from: ReadHalf<'a>, to: WriteHalf<'a>, way: Direction, shared: &'a Shared) -> Self {
        let mut plan = shared.plan.subscribe();
        let shape = plan.borrow_and_update().shape(way);
        let forwarded = if way == Direction::ToClient { &shared.to_client } else { &shared.to_server };
        Self {
            from,
            to,
            way,
            plan,
            forwarded,
            shape,
            queue: VecDeque::new(),
            queued: 0,
            done: 0,
            rested: Instant::now(),
            lost: false,
            closed: false,
        }
    }

    /// Forwards until the sender closes; the close is passed on.
    pub(super) async fn run(mut self) -> Result<(), Reset> {
        let mut buffer = vec![0; BUFFER];
        loop {
            if self.closed && self.queue.is_empty() && !self.shape.swallow && !self.shape.stall {
                let _ = self.to.shutdown().await; // the receiver may be gone already
                return Ok(());
            }
            let may_read = !self.closed && !self.shape.stall && self.queued < QUEUE_BYTES;
            let next = self.next_write();
            tokio::select! {
                // a plan that was set before bytes arrived holds for them
                biased;
                _ = self.plan.changed() => self.adopt_plan()?,
                () = at(next) => self.write_piece().await?,
                read = self.from.read(&mut buffer), if may_read => {
                    let count = read.map_err(|_| Reset)?;
                    self.take_in(&mut buffer[..count]).await?;
                }
            }
        }
    }

    fn adopt_plan(&mut self) -> Result<(), Reset> {
        self.shape = self.plan.borrow_and_update().shape(self.way);
        self.done = 0;
        if self.shape.swallow {
            self.lost |= !self.queue.is_empty();
            self.queue.clear();
            self.queued = 0;
        } else if self.lost {
            return Err(Reset);
        }
        Ok(())
    }

    /// When the next piece may be written; `None` while there is none.
    fn next_write(&self) -> Option<Instant> {
        let front = self.queue.front().filter(|_| !self.shape.stall)?;
        Some(front.due.max(self.rested))
    }

    async fn take_in(&mut self, bytes: &mut [u8]) -> Result<(), Reset> {
        if bytes.is_empty() {
            self.closed = true;
            self.lost |= self.shape.swallow; // a swallowed close is lost as well
            return Ok(());
        }
        if self.shape.swallow {
            self.lost = true;
            return Ok(());
        }
        if self.shape.is_plain() && self.queue.is_empty() {
            return self.write(bytes).await;
        }
        self.queued += bytes.len();
        let due = Instant::now() + self.shape.delay;
        self.queue.push_back(Chunk { due, bytes: bytes.to_vec(), sent: 0 });
        Ok(())
    }

    async fn write_piece(&mut self) -> Result<(), Reset> {
        let Some(mut chunk) = self.queue.pop_front() else { return Ok(()) };
        let waiting = chunk.bytes.len() - chunk.sent;
        let piece = self.shape.piece(waiting, self.done);
        let bytes = &mut chunk.bytes[chunk.sent..chunk.sent + piece];
        self.shape.corrupt(bytes, self.done);
        self.write(bytes).await?;
        if self.shape.is_over(self.done) {
            return Err(Reset);
        }
        self.rest(self.shape.rest_after(piece));
        self.queued -= piece;
        chunk.sent += piece;
        if chunk.sent < chunk.bytes.len() {
            self.queue.push_front(chunk);
        }
        if self.shape.split.is_some() {
            tokio::task::yield_now().await; // lets the receiver see the pieces apart
        }
        Ok(())
    }

    /// Moves the time of the next piece on. A late piece may be caught up with, an idle hour may
    /// not.
    fn rest(&mut self, pause: Duration) {
        let now = Instant::now();
        let earliest = now.checked_sub(pause).unwrap_or(now);
        self.rested = self.rested.max(earliest) + pause;
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Reset> {
        self.to.write_all(bytes).await.map_err(|_| Reset)?;
        self.done += bytes.len() as u64;
        self.forwarded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) if time <= Instant::now() => {}
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
