//! The reconcile step: chooses a node for each unplaced channel, opens missing connections, and
//! subscribes many names in few commands.

use super::fallback::FALLBACK_LIMIT;
use super::{MuxAction, MuxCore};
use crate::config::Address;
use crate::mux::event::SubscriptionKind;
use crate::mux::link::{Link, PendingOp, Readiness};
use crate::mux::placement::{self, NodeLoad};
use crate::mux::registry::{Channel, ChannelId, LinkId, Placement};
use crate::mux::wire;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Longest time between two checks of all unplaced channels.
const LONGEST_REST: Duration = Duration::from_secs(1);

impl MuxCore {
    /// Places unplaced channels: all of them if an event concerns them, else only the new ones.
    /// Those that cannot be served now stay in the list. May be called after every event.
    pub(crate) fn reconcile(&mut self, now: Instant) {
        let all = self.recheck_all;
        self.many_unplaced = self.unplaced.len() > FALLBACK_LIMIT;
        let ids = self.take_unplaced(now);
        if !ids.is_empty() {
            self.place_all(ids, now);
        }
        if all {
            self.links.iter_mut().for_each(|(_, link)| link.checked_health = Some(link.health(now)));
        }
    }

    fn place_all(&mut self, ids: Vec<ChannelId>, now: Instant) {
        let mut plan: BTreeMap<(LinkId, usize), Vec<ChannelId>> = BTreeMap::new();
        let mut nowhere = false;
        let mut rejected_channels = Vec::new();
        for id in ids {
            let Channel { kind, placement, retry_at, .. } = self.registry[id];
            if placement != Placement::None {
                continue;
            }
            if let Some(at) = retry_at.filter(|at| now < *at) {
                self.retry_at = Some(self.retry_at.map_or(at, |first| first.min(at)));
                self.queue(id);
                continue;
            }
            match self.place(id, now) {
                Some(link) if self.links[link].readiness(now) != Readiness::NotNow => {
                    plan.entry((link, kind.index())).or_default().push(id);
                    self.links[link].load += 1;
                }
                place => match place.and_then(|link| self.links[link].permanent_error()) {
                    Some(error) => rejected_channels.push((id, error)),
                    None => {
                        nowhere |= place.is_none();
                        self.searching = true;
                        self.queue(id);
                    }
                },
            }
        }
        // The loads above only spread this batch; subscribing counts them for good.
        for ((link, _), ids) in &plan {
            self.links[*link].load -= ids.len();
        }
        for ((link, kind), ids) in plan {
            self.subscribe(link, SubscriptionKind::ALL[kind], &ids, now);
        }
        for (id, error) in rejected_channels {
            self.rejected(&[id], &error, now);
            // Those with subscribers wait until the node changes.
            if self.registry[id].gap.is_some() {
                self.queue(id);
            }
        }
        if nowhere {
            self.actions.push(MuxAction::Refresh);
        }
    }

    /// Takes the channels to be checked off the list.
    fn take_unplaced(&mut self, now: Instant) -> Vec<ChannelId> {
        let mut newly_unplaced = std::mem::take(&mut self.newly_unplaced);
        if !std::mem::take(&mut self.recheck_all) {
            newly_unplaced.retain(|&id| self.unqueue(id));
            return newly_unplaced;
        }
        (self.checked_at, self.retry_at, self.searching) = (Some(now), None, false);
        let all = std::mem::take(&mut self.unplaced);
        for &id in &all {
            self.registry[id].unplaced_index = None;
        }
        all
    }

    /// Whether time alone may allow a placement: a pause is over, or a node counts as slow.
    pub(super) fn is_check_due(&self, now: Instant) -> bool {
        let due = |at: Option<Instant>, after: Duration| at.is_some_and(|at| now >= at + after);
        due(self.retry_at, Duration::ZERO)
            || due(self.checked_at, LONGEST_REST)
            || self.links.iter().any(|(_, link)| link.checked_health != Some(link.health(now)))
    }

    /// Node for a channel; requests a connection to it if there is none.
    pub(super) fn place(&mut self, id: ChannelId, now: Instant) -> Option<LinkId> {
        if let Some(node) = self.node_of_part(id) {
            return Some(self.link_to(&node, now));
        }
        let Channel { kind, slot, .. } = self.registry[id];
        if kind == SubscriptionKind::Sharded
            && let Some(owner) = self.hints.get(&slot).cloned()
        {
            let link = self.link_to(&owner, now);
            if !self.links[link].is_down(now) {
                return Some(link);
            }
            // The hint leads to an unreachable node: drop it.
            self.hints.remove(&slot);
        }
        let load = |node: &Address| match self.by_address.get(node).and_then(|&link| self.links.get(link)) {
            Some(link) => NodeLoad { channels: link.load, down: link.is_down(now) },
            None => NodeLoad { channels: 0, down: false },
        };
        let node = match kind {
            SubscriptionKind::Sharded => placement::for_slot(&self.topology, slot, self.config.nodes, load)
                .map(|node| self.fallback_replica(&self.registry[id], node, load).unwrap_or(node)),
            SubscriptionKind::Channel | SubscriptionKind::Pattern => {
                placement::for_any(&self.topology, self.config.nodes, load)
            }
        };
        let node = node?.clone();
        Some(self.link_to(&node, now))
    }

    fn link_to(&mut self, node: &Address, now: Instant) -> LinkId {
        if let Some(&link) = self.by_address.get(node) {
            return link;
        }
        let link = self.links.insert(Link::new(node.clone(), now));
        self.by_address.insert(node.clone(), link);
        self.actions.push(MuxAction::Open(link, node.clone()));
        link
    }

    /// Sends subscriptions of one kind to a node: everything in one write, or one probe if the node
    /// has not served yet.
    fn subscribe(&mut self, link: LinkId, kind: SubscriptionKind, ids: &[ChannelId], now: Instant) {
        let mut groups = self.by_slot(kind, ids);
        if let Some(last) = self.links[link].last_probe() {
            let next = groups.iter().position(|group| self.registry[group[0]].slot > last);
            groups.rotate_left(next.unwrap_or(0));
        }
        let mut last = 0;
        let mut bytes = Vec::new();
        for chunk in groups.iter().flat_map(|group| wire::chunks(group)) {
            match self.links[link].readiness(now) {
                Readiness::Ready => {}
                Readiness::Probe => self.links[link].probing(self.registry[chunk[0]].slot),
                Readiness::NotNow => {
                    chunk.iter().for_each(|&id| self.queue(id));
                    continue;
                }
            }
            last = self.ask(link, kind, chunk, &mut bytes);
        }
        if !bytes.is_empty() {
            self.actions.push(MuxAction::Send(link, last, bytes));
        }
    }

    /// Sends one more subscription to a node that has just answered.
    pub(super) fn subscribe_now(&mut self, link: LinkId, kind: SubscriptionKind, ids: &[ChannelId]) {
        let mut bytes = Vec::new();
        let op = self.ask(link, kind, ids, &mut bytes);
        self.actions.push(MuxAction::Send(link, op, bytes));
    }

    fn ask(&mut self, link: LinkId, kind: SubscriptionKind, ids: &[ChannelId], bytes: &mut Vec<u8>) -> u64 {
        let op = self.take_op();
        wire::change(kind, true, ids.iter().map(|&id| &self.registry[id].name), bytes);
        for &id in ids {
            self.place_at(id, Placement::Requested { link, op });
        }
        self.counters.asked(kind, ids.len());
        let channels = ids.to_vec();
        self.links[link].ops.push_back(PendingOp::Subscribe { id: op, kind, channels, confirmed: 0 });
        self.leave_same_shard(link, ids);
        op
    }

    /// Unsubscribes from the previous node of the same shard. Masters and replicas of one shard
    /// deliver the same messages, so subscribers would get some twice.
    fn leave_same_shard(&mut self, link: LinkId, ids: &[ChannelId]) {
        let mut same_shard: BTreeMap<LinkId, Vec<ChannelId>> = BTreeMap::new();
        for &id in ids {
            let channel = &mut self.registry[id];
            let Some(previous) = channel.previous else { continue };
            let is_in_shard = |node: LinkId| {
                let shard = self.topology.shard_of(channel.slot);
                shard.is_some_and(|shard| shard.nodes().any(|n| *n == self.links[node].address))
            };
            if previous == link || (is_in_shard(previous) && is_in_shard(link)) {
                channel.previous = None;
                same_shard.entry(previous).or_default().push(id);
            }
        }
        same_shard.remove(&link);
        for (previous, ids) in same_shard {
            self.unsubscribe(previous, SubscriptionKind::Sharded, &ids, None);
        }
    }
}
