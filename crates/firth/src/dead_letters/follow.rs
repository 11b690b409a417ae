//! [`Follow`]: dead letters as a stream, for programs that decide about each of them.

use super::letter::{DeadId, DeadLetter};
use super::view::DeadLetters;
use crate::error::{Error, ErrorKind, Result};
use crate::payload;
use firth_engine::limits::{MAX_BATCH_BYTES, MAX_READ};
use firth_engine::{GroupName, Partition, RecordId};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// How often it looks for new letters.
const EVERY: Duration = Duration::from_secs(1);
/// How many letters it remembers that still lie there.
const REMEMBERED: usize = 100_000;
/// How many letters are read at a time.
const PAGE: usize = 200;
/// How many letters are made ready at a time.
const READY: usize = 1000;

/// Gives out each letter once, as long as this value lives. It is meant for programs that delete or
/// replay what they get: when 100 000 letters were given out and left lying, it stops with
/// `Overloaded`.
///
/// Each second it looks at the ids of all letters; only a letter that is new is read.
#[must_use = "nothing is looked at until `next` is awaited"]
pub struct Follow {
    letters: DeadLetters,
    /// Letters that were read and still lie there, and when to read one again: `None` if never.
    seen: HashMap<DeadId, Option<Instant>>,
    ready: VecDeque<DeadLetter>,
}

/// What one pass has found.
struct Pass {
    now: Instant,
    there: HashMap<DeadId, Option<Instant>>,
    ready: VecDeque<DeadLetter>,
    bytes: usize,
}

impl Pass {
    fn is_full(&self) -> bool {
        self.ready.len() >= READY || self.bytes >= MAX_BATCH_BYTES
    }
}

impl Follow {
    pub(super) fn new(letters: DeadLetters) -> Self {
        Self { letters, seen: HashMap::new(), ready: VecDeque::new() }
    }

    /// The next letter; waits until there is one. Cancel-safe.
    pub async fn next(&mut self) -> Result<DeadLetter> {
        loop {
            if let Some(letter) = self.ready.pop_front() {
                return Ok(letter);
            }
            if self.look().await? == 0 {
                tokio::time::sleep(EVERY).await;
            }
        }
    }

    /// One pass over the view: collects what is new, forgets what is gone.
    async fn look(&mut self) -> Result<usize> {
        let there = HashMap::new();
        let ready = VecDeque::new();
        let mut pass = Pass { now: Instant::now(), there, ready, bytes: 0 };
        for (at, group) in self.letters.places().await? {
            let mut after = RecordId::ZERO;
            loop {
                let ids = self.letters.engine().dead_ids(&at, &group, after, MAX_READ).await?;
                let Some(last) = ids.last() else { break };
                after = *last;
                let fresh = self.note(&mut pass, (&at, &group), &ids)?;
                self.read(&mut pass, (&at, &group), &fresh).await?;
            }
        }
        (self.seen, self.ready) = (pass.there, pass.ready);
        Ok(self.ready.len())
    }

    /// Notes letters that are there; answers those that must be read.
    fn note(
        &self,
        pass: &mut Pass,
        (at, group): (&Partition, &GroupName),
        ids: &[RecordId],
    ) -> Result<VecDeque<RecordId>> {
        let mut fresh = VecDeque::new();
        for id in ids {
            let address = DeadId { group: group.clone(), partition: at.index, id: *id };
            match self.seen.get(&address) {
                Some(again) if again.is_none_or(|time| time > pass.now) => {
                    pass.there.insert(address, *again);
                }
                _ => fresh.push_back(*id),
            }
        }
        if pass.there.len() > REMEMBERED {
            let context = "100 000 dead letters were left lying: delete or replay what was given out";
            return Err(Error::new(ErrorKind::Overloaded, context));
        }
        Ok(fresh)
    }

    /// Reads these letters, as far as there is room; what there is none for is new at the next
    /// pass, too.
    async fn read(
        &self,
        pass: &mut Pass,
        (at, group): (&Partition, &GroupName),
        fresh: &VecDeque<RecordId>,
    ) -> Result<()> {
        let mut rest = fresh.iter().copied().peekable();
        while let Some(first) = rest.peek().copied().filter(|_| !pass.is_full()) {
            let before = RecordId::new(first.ms, first.seq.saturating_sub(1));
            let found = self.letters.engine().dead(at, group, before, PAGE).await?;
            let Some(last) = found.last().map(|letter| letter.id) else { return Ok(()) };
            for letter in found {
                // Passes over letters that are gone by now.
                while rest.next_if(|id| *id < letter.id).is_some() {}
                if rest.peek() != Some(&letter.id) || pass.is_full() {
                    continue;
                }
                rest.next();
                let again = self.letters.too_young(&letter).map(|wait| pass.now + wait);
                pass.there.insert(DeadId::of(&letter), again);
                if self.letters.wants(&letter) && again.is_none() {
                    pass.bytes += payload::opened_len(&letter.content);
                    pass.ready.push_back(DeadLetter::new(letter));
                }
            }
            while rest.next_if(|id| *id <= last).is_some() {}
        }
        Ok(())
    }
}
