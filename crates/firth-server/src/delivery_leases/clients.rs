//! Who consumes a group over HTTP: all of them are one member of it, so the server tells them
//! apart.
//!
//! Bounded: at most [`MAX_CLIENTS`] of a group are known; one beyond that is served and not shown.

use crate::wire::{ClientShown, millis};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const MAX_CLIENTS: usize = 1000;
/// A client that was not heard of for this long, and has nothing unsettled, is gone.
const GONE: Duration = Duration::from_secs(60);

/// A client as it presents itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseClient {
    /// What it calls itself.
    pub(crate) name: Option<String>,
    /// Where it comes from; nothing inside this process.
    pub(crate) address: Option<IpAddr>,
    /// How it consumes: `fetch` or `stream`.
    pub(crate) kind: &'static str,
}

/// All clients of a group.
#[derive(Default)]
pub(super) struct LeaseClients(HashMap<Arc<LeaseClient>, LastSeen>);

struct LastSeen {
    /// Its fetches and streams under way.
    running: usize,
    last: Instant,
}

impl LastSeen {
    fn is_here(&self, now: Instant) -> bool {
        self.running > 0 || now.saturating_duration_since(self.last) < GONE
    }
}

impl LeaseClients {
    pub(super) fn begin(&mut self, client: &Arc<LeaseClient>, now: Instant) {
        if self.0.len() >= MAX_CLIENTS {
            self.0.retain(|_, seen| seen.is_here(now));
        }
        if self.0.len() < MAX_CLIENTS || self.0.contains_key(client) {
            self.0.entry(client.clone()).or_insert(LastSeen { running: 0, last: now }).running += 1;
        }
    }

    pub(super) fn end(&mut self, client: &Arc<LeaseClient>, now: Instant) {
        if let Some(seen) = self.0.get_mut(client) {
            *seen = LastSeen { running: seen.running.saturating_sub(1), last: now };
        }
    }

    /// Those that are here, by name and address; `holders` are the clients of unsettled deliveries.
    pub(super) fn show<'a>(
        &self,
        now: Instant,
        holders: impl Iterator<Item = &'a Arc<LeaseClient>>,
    ) -> Vec<ClientShown> {
        let mut unsettled: HashMap<&LeaseClient, usize> = HashMap::new();
        holders.for_each(|client| *unsettled.entry(client).or_default() += 1);
        let shown = self.0.iter().filter_map(|(client, seen)| {
            let unsettled = unsettled.get(&**client).copied().unwrap_or(0);
            (seen.is_here(now) || unsettled > 0).then(|| ClientShown {
                name: client.name.clone(),
                address: client.address.map(|address| address.to_string()),
                kind: client.kind.to_owned(),
                unsettled,
                idle_ms: if seen.running > 0 { 0 } else { millis(now.saturating_duration_since(seen.last)) },
            })
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort_by(|a, b| (&a.name, &a.address, &a.kind).cmp(&(&b.name, &b.address, &b.kind)));
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> Arc<LeaseClient> {
        Arc::new(LeaseClient { name: Some(name.to_owned()), address: None, kind: "fetch" })
    }

    #[tokio::test(start_paused = true)]
    async fn u15_clients_are_told_apart_and_forgotten_when_they_are_gone() {
        let mut clients = LeaseClients::default();
        let start = Instant::now();
        let one = client("one");
        let other = client("other");
        for client in [&one, &other, &one] {
            clients.begin(client, start);
        }
        clients.end(&other, start);
        let names = |clients: &LeaseClients, now, holders: &[Arc<LeaseClient>]| -> Vec<_> {
            let shown = clients.show(now, holders.iter());
            shown.into_iter().map(|client| (client.name.unwrap(), client.unsettled)).collect()
        };
        let first = "one".to_owned();
        let second = "other".to_owned();
        assert_eq!(names(&clients, start, &[]), [(first.clone(), 0), (second.clone(), 0)]);
        let later = start + GONE;
        assert_eq!(names(&clients, later, &[]), [(first.clone(), 0)], "one of its two fetches still runs");
        assert_eq!(names(&clients, later, &[other]), [(first, 0), (second, 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_clients_are_known_as_the_bound_says() {
        let mut clients = LeaseClients::default();
        let start = Instant::now();
        for number in 0..MAX_CLIENTS + 5 {
            clients.begin(&client(&number.to_string()), start);
        }
        assert_eq!(clients.show(start, [].into_iter()).len(), MAX_CLIENTS);
        for number in 0..MAX_CLIENTS + 5 {
            clients.end(&client(&number.to_string()), start);
        }
        clients.begin(&client("new"), start + GONE);
        assert_eq!(clients.show(start + GONE, [].into_iter()).len(), 1);
    }
}
