//! The one step that gives homeless channels a home: choose a node for each, open what is not open, and subscribe
//! many names in as few commands as the server allows.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{Core, Order};
use crate::{
    config::Address,
    mux::{
        event::Kind,
        link::{Link, LinkState, Op, Readiness},
        placement::{self, Load},
        registry::{ChannelId, Home, LinkId},
        wire,
    },
};

impl Core {
    /// Looks after every channel on the list of the homeless; those that cannot be served now stay on it.
    pub(crate) fn reconcile(&mut self, now: Instant) {
        if self.homeless.is_empty() {
            return;
        }
        let mut plan: BTreeMap<(LinkId, usize), Vec<ChannelId>> = BTreeMap::new();
        let mut nowhere = false;
        for id in std::mem::take(&mut self.homeless) {
            let Some(channel) = self.registry.get_mut(id) else { continue };
            channel.queued = false;
            if channel.home != Home::Homeless {
                continue;
            }
            let kind = channel.kind;
            let wait = channel.retry_at.is_some_and(|at| now < at);
            match (!wait).then(|| self.place(id)).flatten() {
                Some(link) if self.links[link].readiness(now) != Readiness::NotNow => {
                    plan.entry((link, kind.index())).or_default().push(id);
                    self.links[link].load += 1;
                }
                Some(_) => self.queue(id),
                None => {
                    nowhere |= !wait;
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
    fn place(&mut self, id: ChannelId) -> Option<LinkId> {
        let channel = &self.registry[id];
        let preference = self.config.nodes;
        let load = |node: &Address| match self.by_address.get(node).and_then(|&link| self.links.get(link)) {
            Some(link) => Load { channels: link.load, down: link.state == LinkState::Down },
            None => Load { channels: 0, down: false },
        };
        let node = match channel.kind {
            Kind::Sharded => match self.hints.get(&channel.slot) {
                Some(owner) => Some(owner),
                None => placement::for_slot(&self.topology, channel.slot, preference, load),
            },
            Kind::Channel | Kind::Pattern => placement::for_any(&self.topology, preference, load),
        };
        let node = node?.clone();
        Some(self.link_to(&node))
    }

    fn link_to(&mut self, node: &Address) -> LinkId {
        if let Some(&link) = self.by_address.get(node) {
            return link;
        }
        let link = self.links.insert(Link::new(node.clone()));
        self.by_address.insert(node.clone(), link);
        self.orders.push(Order::Open(link, node.clone()));
        link
    }

    /// Sends subscriptions of one kind to a node: everything in one write, or one probe if the node is in trouble.
    fn subscribe(&mut self, link: LinkId, kind: Kind, ids: &[ChannelId], now: Instant) {
        let mut bytes = Vec::new();
        let groups = self.by_slot(kind, ids);
        for chunk in groups.iter().flat_map(|group| wire::chunks(group)) {
            match self.links[link].readiness(now) {
                Readiness::Ready => {}
                Readiness::Probe => self.links[link].probing(),
                Readiness::NotNow => {
                    chunk.iter().for_each(|&id| self.queue(id));
                    continue;
                }
            }
            let op = self.take_op();
            wire::change(kind, true, chunk.iter().map(|&id| &self.registry[id].name), &mut bytes);
            for &id in chunk {
                self.settle_at(id, Home::Asked { link, op });
            }
            self.tally.asked(kind, chunk.len());
            let channels = chunk.to_vec();
            self.links[link].ops.push_back(Op::Subscribe { id: op, kind, channels, confirmed: 0 });
        }
        if !bytes.is_empty() {
            self.orders.push(Order::Send(link, bytes));
        }
    }
}
