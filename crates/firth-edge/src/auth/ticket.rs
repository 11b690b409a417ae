//! Tickets: for what cannot send a header (an `EventSource` of a browser). A token is changed for a ticket that is good once and for
//! a short time, so that no token stands in an address. Pure.

use super::Grant;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a ticket is good.
pub(crate) const LIFE: Duration = Duration::from_secs(30);
/// Tickets out at a time; beyond that the oldest is not good any more.
const MAX: usize = 10_000;

#[derive(Default)]
pub(crate) struct Tickets {
    open: HashMap<String, (Instant, Grant)>,
    order: VecDeque<String>,
}

impl Tickets {
    /// A new ticket; `None` if the system has no randomness.
    pub(crate) fn issue(&mut self, grant: Grant, now: Instant) -> Option<String> {
        let mut bytes = [0; 24];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let ticket = URL_SAFE_NO_PAD.encode(bytes);
        while let Some(oldest) = self.order.front() {
            let is_over = self.open.get(oldest).is_none_or(|(until, _)| *until <= now);
            if !is_over && self.order.len() < MAX {
                break;
            }
            self.open.remove(oldest);
            self.order.pop_front();
        }
        self.open.insert(ticket.clone(), (now + LIFE, grant));
        self.order.push_back(ticket.clone());
        Some(ticket)
    }

    /// What a ticket allows, once.
    pub(crate) fn redeem(&mut self, ticket: &str, now: Instant) -> Option<Grant> {
        let (until, grant) = self.open.remove(ticket)?;
        (now < until).then_some(grant)
    }
}
