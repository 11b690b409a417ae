//! The FIFO that pairs requests with replies (invariant 2: a reply completes one request). Pure:
//! time is a parameter, in milliseconds since the connection was made.
//!
//! Callers wait in slots of a slab, so that an operation allocates nothing. The queue keeps the
//! order in which the server will answer.

use crate::error::LostCause;
use crate::resp::Frame;
use slab::Slab;
use std::collections::VecDeque;
use std::task::Waker;

/// The replies of one request: one command, or a pipeline of several.
#[derive(Debug)]
pub(crate) enum Replies {
    One(Frame),
    Many(Vec<Frame>),
}

/// Why a request ended without its replies.
#[derive(Debug, Clone)]
pub(crate) enum RequestFailure {
    Timeout { sent: bool },
    Lost { sent: bool, cause: LostCause },
    Closed { sent: bool },
}

pub(crate) type RequestOutcome = Result<Replies, RequestFailure>;

/// What the pipeline must know of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestMeta {
    /// How many replies it will get.
    pub(crate) replies: u32,
    /// Where its bytes begin in the output of this connection.
    pub(crate) start: u64,
    /// Deadline in ms; `NEVER` for no limit.
    pub(crate) deadline: u64,
    /// Whether the server may hold the reply for long (BLPOP): silence is then no sign of a dead
    /// connection.
    pub(crate) blocking: bool,
    /// Whether it may take longer than usual: silence alone is then no proof of a dead connection.
    pub(crate) long: bool,
}

/// The deadline of a request without one.
pub(crate) const NEVER: u64 = u64::MAX;

/// Slot index of a request without a receiver: its reply is thrown away.
const NO_RECEIVER: u32 = u32::MAX;
/// Slot index of the connection's own requests (PING): their replies are thrown away too.
const INTERNAL: u32 = u32::MAX - 1;

#[derive(Debug)]
enum ReplySlot {
    Waiting {
        waker: Waker,
        got: Vec<Frame>,
    },
    Done(RequestOutcome),
    /// The caller dropped its future; a reply to this slot is still expected.
    Abandoned,
}

#[derive(Debug)]
struct QueuedRequest {
    slot: u32,
    remaining: u32,
    start: u64,
    deadline: u64,
    blocking: bool,
    long: bool,
}

/// See the module's description. Its size is bounded by the connection, which asks
/// [`len`](Self::len) before it pushes.
#[derive(Debug)]
pub(crate) struct Pipeline {
    slots: Slab<ReplySlot>,
    queue: VecDeque<QueuedRequest>,
    /// Lower bound of all deadlines in the queue.
    earliest: u64,
    blocking: usize,
}

impl Pipeline {
    pub(crate) fn new() -> Self {
        Self { slots: Slab::new(), queue: VecDeque::new(), earliest: NEVER, blocking: 0 }
    }

    /// Requests in flight, abandoned ones included: each still gets a reply.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Requests whose reply has not come or not been picked up; 0 means that nothing is left of any
    /// request.
    pub(crate) fn unfinished(&self) -> usize {
        self.queue.len().max(self.slots.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The time at which [`expire`](Self::expire) may have something to do.
    pub(crate) fn earliest(&self) -> u64 {
        self.earliest
    }

    /// Whether a request is in flight that the server may answer very late.
    pub(crate) fn is_blocking(&self) -> bool {
        self.blocking > 0
    }

    /// Whether a caller waits for a request that may take longer than usual and has time left.
    /// Walks the queue.
    pub(crate) fn awaits_long_request(&self, now: u64) -> bool {
        let awaited =
            |slot: u32| slot < INTERNAL && matches!(self.slots[slot as usize], ReplySlot::Waiting { .. });
        self.queue.iter().any(|entry| entry.long && entry.deadline > now && awaited(entry.slot))
    }

    /// Appends a request and returns the slot in which its caller waits.
    #[inline]
    pub(crate) fn push(&mut self, meta: RequestMeta, waker: Waker) -> usize {
        debug_assert!(meta.replies > 0, "a request without replies needs no slot");
        let got = if meta.replies > 1 { Vec::with_capacity(meta.replies as usize) } else { Vec::new() };
        let slot = self.slots.insert(ReplySlot::Waiting { waker, got });
        self.enter(u32::try_from(slot).expect("the connection bounds the number of requests"), meta);
        slot
    }

    /// Appends a request of the connection (a PING); its reply is thrown away.
    pub(crate) fn push_internal(&mut self, meta: RequestMeta) {
        self.enter(INTERNAL, meta);
    }

    #[inline]
    fn enter(&mut self, slot: u32, meta: RequestMeta) {
        self.earliest = self.earliest.min(meta.deadline);
        self.blocking += usize::from(meta.blocking);
        let RequestMeta { replies, start, deadline, blocking, long } = meta;
        self.queue.push_back(QueuedRequest { slot, remaining: replies, start, deadline, blocking, long });
    }

    /// Gives the next reply to the oldest request. Returns the waker of a request that is now
    /// complete.
    ///
    /// `Err` returns a frame that no request asked for: no request is in flight, or none of its
    /// bytes is among the first `sent` that the network has taken.
    #[inline]
    pub(crate) fn reply(&mut self, frame: Frame, sent: u64) -> Result<Option<Waker>, Frame> {
        let Some(entry) = self.queue.front_mut().filter(|e| e.start < sent) else { return Err(frame) };
        entry.remaining -= 1;
        let last = entry.remaining == 0;
        let slot = entry.slot;
        if last {
            self.blocking -= usize::from(entry.blocking);
            self.queue.pop_front();
        }
        if slot >= INTERNAL {
            return Ok(None);
        }
        Ok(self.fill(slot as usize, frame, last))
    }

    #[inline]
    fn fill(&mut self, key: usize, frame: Frame, last: bool) -> Option<Waker> {
        let slot = &mut self.slots[key];
        match slot {
            ReplySlot::Waiting { got, .. } if !last => {
                got.push(frame);
                None
            }
            ReplySlot::Waiting { got, .. } => {
                let replies = if got.is_empty() {
                    Replies::One(frame)
                } else {
                    let mut all = std::mem::take(got);
                    all.push(frame);
                    Replies::Many(all)
                };
                match std::mem::replace(slot, ReplySlot::Done(Ok(replies))) {
                    ReplySlot::Waiting { waker, .. } => Some(waker),
                    _ => None,
                }
            }
            ReplySlot::Abandoned if last => {
                self.slots.remove(key);
                None
            }
            ReplySlot::Abandoned | ReplySlot::Done(_) => None,
        }
    }

    /// Takes the outcome if there is one, else stores the waker.
    #[inline]
    pub(crate) fn poll(&mut self, slot: usize, waker: &Waker) -> Option<RequestOutcome> {
        match &mut self.slots[slot] {
            ReplySlot::Waiting { waker: known, .. } => {
                known.clone_from(waker);
                None
            }
            ReplySlot::Done(_) => match self.slots.remove(slot) {
                ReplySlot::Done(outcome) => Some(outcome),
                _ => None,
            },
            ReplySlot::Abandoned => unreachable!("an abandoned slot has no caller"),
        }
    }

    /// The caller dropped its future: its reply is thrown away.
    pub(crate) fn abandon(&mut self, slot: usize) {
        match &mut self.slots[slot] {
            ReplySlot::Done(_) => {
                self.slots.remove(slot);
            }
            waiting => *waiting = ReplySlot::Abandoned,
        }
    }

    /// Ends every request whose deadline has passed. Its place in the queue stays, so that a late
    /// reply finds its own entry and is thrown away.
    ///
    /// Requests from the offset `taken` on can still be taken back. They are told that they will
    /// never run, so the caller must [`withdraw`](Self::withdraw) them.
    pub(crate) fn expire(&mut self, now: u64, taken: u64, wake: &mut Vec<Waker>) {
        if now < self.earliest {
            return;
        }
        self.earliest = NEVER;
        for entry in &mut self.queue {
            if entry.deadline > now {
                self.earliest = self.earliest.min(entry.deadline);
                continue;
            }
            entry.deadline = NEVER;
            let slot = std::mem::replace(&mut entry.slot, NO_RECEIVER);
            let failure = RequestFailure::Timeout { sent: entry.start < taken };
            wake.extend(finish(&mut self.slots, slot, failure));
        }
    }

    /// Takes back abandoned requests whose bytes still lie in `out`, which begins at the offset
    /// `taken`. Returns their number.
    pub(crate) fn withdraw(&mut self, taken: u64, out: &mut Vec<u8>) -> usize {
        let first = self.queue.partition_point(|entry| entry.start < taken);
        if !self.queue.range(first..).any(|entry| self.is_unwanted(entry.slot)) {
            return 0;
        }
        let unsent: Vec<QueuedRequest> = self.queue.drain(first..).collect();
        let mut ends: Vec<usize> = unsent.iter().skip(1).map(|entry| offset(entry.start, taken)).collect();
        ends.push(out.len());
        let count = unsent.len();
        let mut kept = Vec::with_capacity(out.len());
        kept.extend_from_slice(&out[..unsent.first().map_or(0, |entry| offset(entry.start, taken))]);
        for (mut entry, end) in unsent.into_iter().zip(ends) {
            if self.is_unwanted(entry.slot) {
                self.blocking -= usize::from(entry.blocking);
                if entry.slot != NO_RECEIVER {
                    self.slots.remove(entry.slot as usize);
                }
                continue;
            }
            let bytes = &out[offset(entry.start, taken)..end];
            entry.start = taken + kept.len() as u64;
            kept.extend_from_slice(bytes);
            self.queue.push_back(entry);
        }
        *out = kept;
        count - (self.queue.len() - first)
    }

    fn is_unwanted(&self, slot: u32) -> bool {
        match slot {
            NO_RECEIVER => true,
            INTERNAL => false,
            slot => matches!(self.slots[slot as usize], ReplySlot::Abandoned),
        }
    }

    /// Gives the requests from the offset `from` on more time.
    pub(crate) fn postpone(&mut self, from: u64, by: u64) {
        let first = self.queue.partition_point(|entry| entry.start < from);
        for entry in self.queue.range_mut(first..) {
            entry.deadline = entry.deadline.saturating_add(by);
        }
    }

    /// Ends every request: the connection is gone.
    pub(crate) fn fail_all(
        &mut self,
        sent: u64,
        failure: impl Fn(bool) -> RequestFailure,
        wake: &mut Vec<Waker>,
    ) {
        for entry in self.queue.drain(..) {
            wake.extend(finish(&mut self.slots, entry.slot, failure(entry.start < sent)));
        }
        self.earliest = NEVER;
        self.blocking = 0;
    }
}

/// Where an offset of the whole output lies in the part that begins at `taken`.
fn offset(start: u64, taken: u64) -> usize {
    usize::try_from(start - taken).expect("the output fits into memory")
}

fn finish(slots: &mut Slab<ReplySlot>, slot: u32, failure: RequestFailure) -> Option<Waker> {
    if slot >= INTERNAL {
        return None;
    }
    let key = slot as usize;
    match std::mem::replace(&mut slots[key], ReplySlot::Done(Err(failure))) {
        ReplySlot::Waiting { waker, .. } => Some(waker),
        ReplySlot::Abandoned => {
            slots.remove(key);
            None
        }
        ReplySlot::Done(_) => None,
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
