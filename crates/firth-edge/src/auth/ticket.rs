//! Tickets: for what cannot send a header (an `EventSource` of a browser). A token is changed for a
//! ticket that is good once and for a short time, so that no token stands in an address. Pure.
//!
//! Each tenant has places and a rate of its own: one that asks for many tickets uses up its own
//! places and no other's.

use super::Grant;
use crate::limits::MessageRate;
use crate::protocol::{Code, EdgeError};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use firth_router::Tenant;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a ticket is good.
pub(crate) const LIFE: Duration = Duration::from_secs(30);
/// Tickets out at a time, in all and of one tenant; beyond that the oldest of the tenant with the
/// most is not good any more.
pub(super) const MAX: usize = 10_000;
pub(super) const MAX_OF_TENANT: usize = 1_000;
/// Tickets of a tenant per second, on average; ten times as many at once.
const RATE: u32 = 50;

#[derive(Default)]
pub(crate) struct Tickets {
    open: HashMap<String, (Instant, Grant)>,
    tenants: HashMap<Tenant, TenantTickets>,
}

/// The tickets of one tenant.
struct TenantTickets {
    rate: MessageRate,
    open: usize,
    /// Oldest first; some were used.
    order: VecDeque<(Instant, String)>,
}

impl Tickets {
    /// A new ticket.
    pub(crate) fn issue(&mut self, grant: Grant, now: Instant) -> Result<String, EdgeError> {
        let mut bytes = [0; 24];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| EdgeError::new(Code::Unavailable, "this system has no source of randomness"))?;
        let ticket = URL_SAFE_NO_PAD.encode(bytes);
        self.forget_old(now);
        let tenant = grant.tenant.clone();
        let line = self.tenants.entry(tenant.clone()).or_insert_with(|| TenantTickets {
            rate: MessageRate::new(RATE, now),
            open: 0,
            order: VecDeque::new(),
        });
        line.rate.pass(now)?;
        if line.open >= MAX_OF_TENANT {
            self.drop_oldest(&tenant);
        }
        if self.open.len() >= MAX
            && let Some(most) =
                self.tenants.iter().max_by_key(|(_, line)| line.open).map(|(most, _)| most.clone())
        {
            self.drop_oldest(&most);
        }
        if let Some(line) = self.tenants.get_mut(&tenant) {
            line.open += 1;
            line.order.push_back((now + LIFE, ticket.clone()));
        }
        self.open.insert(ticket.clone(), (now + LIFE, grant));
        Ok(ticket)
    }

    /// What a ticket allows, once.
    pub(crate) fn redeem(&mut self, ticket: &str, now: Instant) -> Option<Grant> {
        let (until, grant) = self.open.remove(ticket)?;
        if let Some(line) = self.tenants.get_mut(&grant.tenant) {
            line.open -= 1;
        }
        (now < until).then_some(grant)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    fn drop_oldest(&mut self, tenant: &Tenant) {
        let Some(line) = self.tenants.get_mut(tenant) else { return };
        while let Some((_, ticket)) = line.order.pop_front() {
            if self.open.remove(&ticket).is_some() {
                line.open -= 1;
                return;
            }
        }
    }

    /// A tenant without tickets is forgotten once it may have as many at once as at first.
    fn forget_old(&mut self, now: Instant) {
        let open = &mut self.open;
        self.tenants.retain(|_, line| {
            while line.order.front().is_some_and(|(until, _)| *until <= now) {
                if let Some((_, ticket)) = line.order.pop_front()
                    && open.remove(&ticket).is_some()
                {
                    line.open -= 1;
                }
            }
            !line.order.is_empty()
        });
    }
}
