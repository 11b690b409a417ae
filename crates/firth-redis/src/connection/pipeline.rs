//! The pure FIFO that pairs requests with replies (invariant 2: a reply completes one request). Callers wait in slots
//! of a slab, so that an operation allocates nothing; the line remembers in which order the server will answer.
//! No I/O, no clock: time is a parameter, in milliseconds since the connection was made.

use std::{collections::VecDeque, task::Waker};

use slab::Slab;

use crate::{error::LostCause, resp::Frame};

/// The replies of one request: one command, or a pipeline of several.
#[derive(Debug)]
pub(crate) enum Replies {
    One(Frame),
    Many(Vec<Frame>),
}

/// Why a request ended without its replies.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Timeout { sent: bool },
    Lost { sent: bool, cause: LostCause },
    Closed { sent: bool },
}

pub(crate) type Outcome = Result<Replies, Failure>;

/// What a request brings into the line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    /// How many replies it will get.
    pub(crate) replies: u32,
    /// Where its bytes begin in the output of this connection.
    pub(crate) start: u64,
    /// When it gives up waiting, in ms; `NEVER` for no limit.
    pub(crate) deadline: u64,
    /// Whether the server may sit on it for long (BLPOP): silence is then no sign of death.
    pub(crate) patient: bool,
    /// Whether it may take longer than usual: silence alone is then no proof of death.
    pub(crate) long: bool,
}

/// The deadline of a request without one.
pub(crate) const NEVER: u64 = u64::MAX;

/// An index that stands for "nobody waits any more": the reply is thrown away.
const NOBODY: u32 = u32::MAX;
/// An index that stands for a request of our own (PING): its reply is thrown away too.
const OURS: u32 = u32::MAX - 1;

#[derive(Debug)]
enum Slot {
    Waiting {
        waker: Waker,
        got: Vec<Frame>,
    },
    Done(Outcome),
    /// The caller went away; the line still owes a reply to this slot's request.
    Abandoned,
}

#[derive(Debug)]
struct Entry {
    slot: u32,
    remaining: u32,
    start: u64,
    deadline: u64,
    patient: bool,
    long: bool,
}

/// See the module's description. Its size is bounded by the connection, which asks [`len`](Self::len) before it pushes.
#[derive(Debug)]
pub(crate) struct Pipeline {
    slots: Slab<Slot>,
    line: VecDeque<Entry>,
    /// No deadline in the line is earlier than this.
    earliest: u64,
    patient: usize,
}

impl Pipeline {
    pub(crate) fn new() -> Self {
        Self { slots: Slab::new(), line: VecDeque::new(), earliest: NEVER, patient: 0 }
    }

    /// Requests under way, the abandoned ones included: each still owes us bytes.
    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }

    /// Requests whose reply has not come or not been picked up; 0 means that nothing is left of any request.
    pub(crate) fn unfinished(&self) -> usize {
        self.line.len().max(self.slots.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// The time at which [`expire`](Self::expire) may have something to do.
    pub(crate) fn earliest(&self) -> u64 {
        self.earliest
    }

    /// Whether a request is under way that the server may rightly answer very late.
    pub(crate) fn is_patient(&self) -> bool {
        self.patient > 0
    }

    /// Whether a caller waits for a request that may take longer than usual, and whose time is not
    /// up. Walks along the line.
    pub(crate) fn waits_long(&self, now: u64) -> bool {
        let awaited = |slot: u32| slot < OURS && matches!(self.slots[slot as usize], Slot::Waiting { .. });
        self.line.iter().any(|entry| entry.long && entry.deadline > now && awaited(entry.slot))
    }

    /// Puts a request at the end of the line and gives the slot in which its caller waits.
    #[inline]
    pub(crate) fn push(&mut self, ticket: Ticket, waker: Waker) -> usize {
        debug_assert!(ticket.replies > 0, "a request without replies needs no slot");
        let got = if ticket.replies > 1 { Vec::with_capacity(ticket.replies as usize) } else { Vec::new() };
        let slot = self.slots.insert(Slot::Waiting { waker, got });
        self.enter(u32::try_from(slot).expect("the connection bounds the number of requests"), ticket);
        slot
    }

    /// Puts a request of our own (a PING) at the end of the line; its reply is thrown away.
    pub(crate) fn push_unheard(&mut self, ticket: Ticket) {
        self.enter(OURS, ticket);
    }

    #[inline]
    fn enter(&mut self, slot: u32, ticket: Ticket) {
        self.earliest = self.earliest.min(ticket.deadline);
        self.patient += usize::from(ticket.patient);
        let Ticket { replies, start, deadline, patient, long } = ticket;
        self.line.push_back(Entry { slot, remaining: replies, start, deadline, patient, long });
    }

    /// Gives the next reply to the oldest request. Returns the waker of a request that is now complete.
    /// `Err` gives the frame back when nobody asked for it: no request is under way, or none of its bytes is among
    /// the first `sent` that the network has taken.
    #[inline]
    pub(crate) fn reply(&mut self, frame: Frame, sent: u64) -> Result<Option<Waker>, Frame> {
        let Some(entry) = self.line.front_mut().filter(|e| e.start < sent) else { return Err(frame) };
        entry.remaining -= 1;
        let last = entry.remaining == 0;
        let slot = entry.slot;
        if last {
            self.patient -= usize::from(entry.patient);
            self.line.pop_front();
        }
        if slot >= OURS {
            return Ok(None);
        }
        Ok(self.fill(slot as usize, frame, last))
    }

    #[inline]
    fn fill(&mut self, key: usize, frame: Frame, last: bool) -> Option<Waker> {
        let slot = &mut self.slots[key];
        match slot {
            Slot::Waiting { got, .. } if !last => {
                got.push(frame);
                None
            }
            Slot::Waiting { got, .. } => {
                let replies = if got.is_empty() {
                    Replies::One(frame)
                } else {
                    let mut all = std::mem::take(got);
                    all.push(frame);
                    Replies::Many(all)
                };
                match std::mem::replace(slot, Slot::Done(Ok(replies))) {
                    Slot::Waiting { waker, .. } => Some(waker),
                    _ => None,
                }
            }
            Slot::Abandoned if last => {
                self.slots.remove(key);
                None
            }
            Slot::Abandoned | Slot::Done(_) => None,
        }
    }

    /// Takes the outcome if there is one, else remembers whom to wake.
    #[inline]
    pub(crate) fn poll(&mut self, slot: usize, waker: &Waker) -> Option<Outcome> {
        match &mut self.slots[slot] {
            Slot::Waiting { waker: known, .. } => {
                known.clone_from(waker);
                None
            }
            Slot::Done(_) => match self.slots.remove(slot) {
                Slot::Done(outcome) => Some(outcome),
                _ => None,
            },
            Slot::Abandoned => unreachable!("an abandoned slot has no caller"),
        }
    }

    /// The caller went away: whatever comes for it is thrown away.
    pub(crate) fn abandon(&mut self, slot: usize) {
        match &mut self.slots[slot] {
            Slot::Done(_) => {
                self.slots.remove(slot);
            }
            waiting => *waiting = Slot::Abandoned,
        }
    }

    /// Ends every request whose deadline has passed; its place in the line stays, so that a late reply finds its
    /// own entry and is thrown away. Requests from the offset `taken` on can still be taken back: the caller must
    /// [`withdraw`](Self::withdraw) them, because they are told that they will never run.
    pub(crate) fn expire(&mut self, now: u64, taken: u64, wake: &mut Vec<Waker>) {
        if now < self.earliest {
            return;
        }
        self.earliest = NEVER;
        for entry in &mut self.line {
            if entry.deadline > now {
                self.earliest = self.earliest.min(entry.deadline);
                continue;
            }
            entry.deadline = NEVER;
            let slot = std::mem::replace(&mut entry.slot, NOBODY);
            let failure = Failure::Timeout { sent: entry.start < taken };
            wake.extend(finish(&mut self.slots, slot, failure));
        }
    }

    /// Takes back requests that nobody waits for any more and whose bytes still lie in `out`, which begins at the
    /// offset `taken`. Returns their number.
    pub(crate) fn withdraw(&mut self, taken: u64, out: &mut Vec<u8>) -> usize {
        let first = self.line.partition_point(|entry| entry.start < taken);
        if !self.line.range(first..).any(|entry| self.is_unwanted(entry.slot)) {
            return 0;
        }
        let unsent: Vec<Entry> = self.line.drain(first..).collect();
        let mut ends: Vec<usize> = unsent.iter().skip(1).map(|entry| offset(entry.start, taken)).collect();
        ends.push(out.len());
        let count = unsent.len();
        let mut kept = Vec::with_capacity(out.len());
        kept.extend_from_slice(&out[..unsent.first().map_or(0, |entry| offset(entry.start, taken))]);
        for (mut entry, end) in unsent.into_iter().zip(ends) {
            if self.is_unwanted(entry.slot) {
                self.patient -= usize::from(entry.patient);
                if entry.slot != NOBODY {
                    self.slots.remove(entry.slot as usize);
                }
                continue;
            }
            let bytes = &out[offset(entry.start, taken)..end];
            entry.start = taken + kept.len() as u64;
            kept.extend_from_slice(bytes);
            self.line.push_back(entry);
        }
        *out = kept;
        count - (self.line.len() - first)
    }

    fn is_unwanted(&self, slot: u32) -> bool {
        match slot {
            NOBODY => true,
            OURS => false,
            slot => matches!(self.slots[slot as usize], Slot::Abandoned),
        }
    }

    /// Gives the requests from the offset `from` on more time.
    pub(crate) fn postpone(&mut self, from: u64, by: u64) {
        let first = self.line.partition_point(|entry| entry.start < from);
        for entry in self.line.range_mut(first..) {
            entry.deadline = entry.deadline.saturating_add(by);
        }
    }

    /// Ends every request: the connection is gone.
    pub(crate) fn fail_all(&mut self, sent: u64, failure: impl Fn(bool) -> Failure, wake: &mut Vec<Waker>) {
        for entry in self.line.drain(..) {
            wake.extend(finish(&mut self.slots, entry.slot, failure(entry.start < sent)));
        }
        self.earliest = NEVER;
        self.patient = 0;
    }
}

/// Where an offset of the whole output lies in the part that begins at `taken`.
fn offset(start: u64, taken: u64) -> usize {
    usize::try_from(start - taken).expect("the output fits into memory")
}

fn finish(slots: &mut Slab<Slot>, slot: u32, failure: Failure) -> Option<Waker> {
    if slot >= OURS {
        return None;
    }
    let key = slot as usize;
    match std::mem::replace(&mut slots[key], Slot::Done(Err(failure))) {
        Slot::Waiting { waker, .. } => Some(waker),
        Slot::Abandoned => {
            slots.remove(key);
            None
        }
        Slot::Done(_) => None,
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
