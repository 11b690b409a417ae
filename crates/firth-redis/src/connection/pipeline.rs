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
}

/// The deadline of a request without one.
pub(crate) const NEVER: u64 = u64::MAX;

/// An index that stands for "nobody waits": the reply is thrown away.
const NOBODY: u32 = u32::MAX;

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

    /// Puts a request at the end of the line and gives the slot in which its caller waits.
    pub(crate) fn push(&mut self, ticket: Ticket, waker: Waker) -> usize {
        debug_assert!(ticket.replies > 0, "a request without replies needs no slot");
        let slot = self.slots.insert(Slot::Waiting { waker, got: Vec::new() });
        self.enter(u32::try_from(slot).expect("the connection bounds the number of requests"), ticket);
        slot
    }

    /// Puts a request of our own (a PING) at the end of the line; its reply is thrown away.
    pub(crate) fn push_unheard(&mut self, ticket: Ticket) {
        self.enter(NOBODY, ticket);
    }

    fn enter(&mut self, slot: u32, ticket: Ticket) {
        self.earliest = self.earliest.min(ticket.deadline);
        self.patient += usize::from(ticket.patient);
        let Ticket { replies, start, deadline, patient } = ticket;
        self.line.push_back(Entry { slot, remaining: replies, start, deadline, patient });
    }

    /// Gives the next reply to the oldest request. Returns the waker of a request that is now complete.
    /// `Err` gives the frame back when nobody asked for it.
    pub(crate) fn reply(&mut self, frame: Frame) -> Result<Option<Waker>, Frame> {
        let Some(entry) = self.line.front_mut() else { return Err(frame) };
        entry.remaining -= 1;
        let last = entry.remaining == 0;
        let slot = entry.slot;
        if last {
            self.patient -= usize::from(entry.patient);
            self.line.pop_front();
        }
        if slot == NOBODY {
            return Ok(None);
        }
        Ok(self.fill(slot as usize, frame, last))
    }

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
    /// own entry and is thrown away. `sent` is the number of bytes that the network has taken.
    pub(crate) fn expire(&mut self, now: u64, sent: u64, wake: &mut Vec<Waker>) {
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
            let failure = Failure::Timeout { sent: entry.start < sent };
            wake.extend(finish(&mut self.slots, slot, failure));
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

fn finish(slots: &mut Slab<Slot>, slot: u32, failure: Failure) -> Option<Waker> {
    if slot == NOBODY {
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
mod tests;
