//! [`Follow`]: dead letters as a stream, for programs that decide about each of them.

use super::letter::{DeadId, DeadLetter};
use super::view::DeadLetters;
use crate::error::{Error, ErrorKind, Result};
use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// How often it looks for new letters.
const EVERY: Duration = Duration::from_secs(1);
/// How many letters it remembers that were given out and still lie there.
const REMEMBERED: usize = 100_000;

/// Gives out each letter once, as long as this value lives. It is meant for programs that delete or replay what they get: when
/// 100 000 letters were given out and left lying, it stops with `Overloaded`.
#[must_use = "nothing is looked at until `next` is awaited"]
pub struct Follow {
    letters: DeadLetters,
    given: HashSet<DeadId>,
    ready: VecDeque<DeadLetter>,
}

impl Follow {
    pub(super) fn new(letters: DeadLetters) -> Self {
        Self { letters, given: HashSet::new(), ready: VecDeque::new() }
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
        let (mut there, mut fresh, mut after) = (HashSet::new(), VecDeque::new(), None);
        loop {
            let page = self.letters.list(after.as_ref(), 200).await?;
            for letter in page.letters {
                there.insert(letter.id.clone());
                if !self.given.contains(&letter.id) && fresh.len() < 1000 {
                    fresh.push_back(letter);
                }
            }
            if there.len() > REMEMBERED {
                let context = "100 000 dead letters were left lying: delete or replay what was given out";
                return Err(Error::new(ErrorKind::Overloaded, context));
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.given.retain(|id| there.contains(id));
        self.given.extend(fresh.iter().map(|letter| letter.id.clone()));
        self.ready = fresh;
        Ok(self.ready.len())
    }
}
