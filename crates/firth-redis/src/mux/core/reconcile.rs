//! The one step that gives homeless channels a home: choose a node for each, open what is not open, and subscribe
//! many names in as few commands as the server allows.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{Core, Order, standin::MOST_STOOD_IN_FOR};
use crate::{
    config::Address,
    mux::{
        event::Kind,
        link::{Link, Op, Readiness},
        placement::{self, Load},
        registry::{Channel, ChannelId, Home, LinkId},
        wire,
    },
};

impl Core {
    /// Looks after every channel on the list of the homeless; those that cannot be served now stay on it. Does nothing
    /// unless something has changed since the last time, so that it may be called after every event.
    pub(crate) fn reconcile(&mut self, now: Instant) {
        if !std::mem::take(&mut self.stirred) || self.homeless.is_empty() {
            return;
        }
        let mut plan: BTreeMap<(LinkId, usize), Vec<ChannelId>> = BTreeMap::new();
        let mut nowhere = false;
        self.searching = false;
        self.storm = self.homeless.len() > MOST_STOOD_IN_FOR;
        for id in std::mem::take(&mut self.homeless) {
            let Some(channel) = self.registry.get_mut(id) else { continue };
            channel.queued = false;
            if channel.home != Home::Homeless {
                continue;
            }
            if channel.retry_at.is_some_and(|at| now < at) {
                self.queue(id);
                continue;
            }
            let kind = channel.kind;
            match self.place(id, now) {
                Some(link) if self.links[link].readiness(now) != Readiness::NotNow => {
                    plan.entry((link, kind.index())).or_default().push(id);
                    self.links[link].load += 1;
                }
                place => {
                    nowhere |= place.is_none();
                    self.searching = true;
                    self.queue(id);
                }
            }
        }
        // The loads above were only to spread this very batch; subscribing counts them for good.
        for ((link, _), ids) in &plan {
            self.links[*link].load -= ids.len();
        }
        for ((link, kind), ids) in plan {
            self.subscribe(link, Kind::ALL[kind], &ids, now);
        }
        if nowhere {
            self.orders.push(Order::Refresh);
        }
    }

    /// The node for a channel; a connection to it is ordered if there is none.
    fn place(&mut self, id: ChannelId, now: Instant) -> Option<LinkId> {
        let Channel { kind, slot, .. } = self.registry[id];
        if kind == Kind::Sharded
            && let Some(owner) = self.hints.get(&slot).cloned()
        {
            let link = self.link_to(&owner, now);
            if !self.links[link].is_down(now) {
                return Some(link);
            }
            // It cannot be reached: whoever named it may have been wrong.
            self.hints.remove(&slot);
        }
        let load = |node: &Address| match self.by_address.get(node).and_then(|&link| self.links.get(link)) {
            Some(link) => Load { channels: link.load, down: link.is_down(now) },
            None => Load { channels: 0, down: false },
        };
        let node = match kind {
            Kind::Sharded => placement::for_slot(&self.topology, slot, self.config.nodes, load)
                .map(|node| self.stand_in(&self.registry[id], node, load).unwrap_or(node)),
            Kind::Channel | Kind::Pattern => placement::for_any(&self.topology, self.config.nodes, load),
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
        self.orders.push(Order::Open(link, node.clone()));
        link
    }

    /// Sends subscriptions of one kind to a node: everything in one write, or one probe if the node has yet to show
    /// that it serves.
    fn subscribe(&mut self, link: LinkId, kind: Kind, ids: &[ChannelId], now: Instant) {
        let mut groups = self.by_slot(kind, ids);
        if let Some(last) = self.links[link].last_probe() {
            let next = groups.iter().position(|group| self.registry[group[0]].slot > last);
            groups.rotate_left(next.unwrap_or(0));
        }
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
            self.ask(link, kind, chunk, &mut bytes);
        }
        if !bytes.is_empty() {
            self.orders.push(Order::Send(link, bytes));
        }
    }

    /// Sends one more subscription to a node that has just answered.
    pub(super) fn subscribe_now(&mut self, link: LinkId, kind: Kind, ids: &[ChannelId]) {
        let mut bytes = Vec::new();
        self.ask(link, kind, ids, &mut bytes);
        self.orders.push(Order::Send(link, bytes));
    }

    fn ask(&mut self, link: LinkId, kind: Kind, ids: &[ChannelId], bytes: &mut Vec<u8>) {
        let op = self.take_op();
        wire::change(kind, true, ids.iter().map(|&id| &self.registry[id].name), bytes);
        for &id in ids {
            self.settle_at(id, Home::Asked { link, op });
        }
        self.tally.asked(kind, ids.len());
        let channels = ids.to_vec();
        self.links[link].ops.push_back(Op::Subscribe { id: op, kind, channels, confirmed: 0 });
        self.leave_twins(link, ids);
    }

    /// Masters and replicas of one shard deliver the same messages. So whoever asks one of them listens to the other no
    /// longer, or would hear some twice.
    fn leave_twins(&mut self, link: LinkId, ids: &[ChannelId]) {
        let mut twins: BTreeMap<LinkId, Vec<ChannelId>> = BTreeMap::new();
        for &id in ids {
            let channel = &mut self.registry[id];
            let Some(former) = channel.former else { continue };
            let is_twin = |node: LinkId| {
                let shard = self.topology.shard_of(channel.slot);
                shard.is_some_and(|shard| shard.nodes().any(|n| *n == self.links[node].address))
            };
            if former == link || (is_twin(former) && is_twin(link)) {
                channel.former = None;
                twins.entry(former).or_default().push(id);
            }
        }
        twins.remove(&link);
        for (former, ids) in twins {
            self.unsubscribe(former, Kind::Sharded, &ids, None);
        }
    }
}
