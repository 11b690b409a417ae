//! The one step that gives homeless channels a home: choose a node for each, open what is not open, and subscribe
//! many names in as few commands as the server allows.

use std::{collections::BTreeMap, time::Duration};

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

/// All homeless channels are looked at this often, whether or not anything seems to have changed.
const LONGEST_REST: Duration = Duration::from_secs(1);

impl Core {
    /// Looks after the homeless channels: all of them if something has changed that concerns them,
    /// else only those that are new on the list. Those that cannot be served now stay on it. May be
    /// called after every event.
    pub(crate) fn reconcile(&mut self, now: Instant) {
        let all = self.stirred;
        self.storm = self.homeless.len() > MOST_STOOD_IN_FOR;
        let ids = self.take_homeless(now);
        if !ids.is_empty() {
            self.find_homes(ids, now);
        }
        if all {
            self.links.iter_mut().for_each(|(_, link)| link.seen = Some(link.outlook(now)));
        }
    }

    fn find_homes(&mut self, ids: Vec<ChannelId>, now: Instant) {
        let mut plan: BTreeMap<(LinkId, usize), Vec<ChannelId>> = BTreeMap::new();
        let mut nowhere = false;
        let mut turned_away = Vec::new();
        for id in ids {
            let Channel { kind, home, retry_at, .. } = self.registry[id];
            if home != Home::Homeless {
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
                place => match place.and_then(|link| self.links[link].refusal()) {
                    Some(error) => turned_away.push((id, error)),
                    None => {
                        nowhere |= place.is_none();
                        self.searching = true;
                        self.queue(id);
                    }
                },
            }
        }
        // The loads above were only to spread this very batch; subscribing counts them for good.
        for ((link, _), ids) in &plan {
            self.links[*link].load -= ids.len();
        }
        for ((link, kind), ids) in plan {
            self.subscribe(link, Kind::ALL[kind], &ids, now);
        }
        for (id, error) in turned_away {
            self.rejected(&[id], &error, now);
            // Those with subscribers wait until the node changes.
            if self.registry[id].gap.is_some() {
                self.queue(id);
            }
        }
        if nowhere {
            self.orders.push(Order::Refresh);
        }
    }

    /// Takes the channels off the list that are to be looked at.
    fn take_homeless(&mut self, now: Instant) -> Vec<ChannelId> {
        let mut fresh = std::mem::take(&mut self.fresh);
        if !std::mem::take(&mut self.stirred) {
            fresh.retain(|&id| self.unqueue(id));
            return fresh;
        }
        (self.looked_at, self.retry_at, self.searching) = (Some(now), None, false);
        let all = std::mem::take(&mut self.homeless);
        for &id in &all {
            self.registry[id].place = None;
        }
        all
    }

    /// Whether time alone may have given a homeless channel its home: a pause is over, or a node
    /// counts as slow.
    pub(super) fn is_time_to_look(&self, now: Instant) -> bool {
        let due = |at: Option<Instant>, after: Duration| at.is_some_and(|at| now >= at + after);
        due(self.retry_at, Duration::ZERO)
            || due(self.looked_at, LONGEST_REST)
            || self.links.iter().any(|(_, link)| link.seen != Some(link.outlook(now)))
    }

    /// The node for a channel; a connection to it is ordered if there is none.
    pub(super) fn place(&mut self, id: ChannelId, now: Instant) -> Option<LinkId> {
        if let Some(node) = self.node_of_part(id) {
            return Some(self.link_to(&node, now));
        }
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
        let (mut last, mut bytes) = (0, Vec::new());
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
            self.orders.push(Order::Send(link, last, bytes));
        }
    }

    /// Sends one more subscription to a node that has just answered.
    pub(super) fn subscribe_now(&mut self, link: LinkId, kind: Kind, ids: &[ChannelId]) {
        let mut bytes = Vec::new();
        let op = self.ask(link, kind, ids, &mut bytes);
        self.orders.push(Order::Send(link, op, bytes));
    }

    fn ask(&mut self, link: LinkId, kind: Kind, ids: &[ChannelId], bytes: &mut Vec<u8>) -> u64 {
        let op = self.take_op();
        wire::change(kind, true, ids.iter().map(|&id| &self.registry[id].name), bytes);
        for &id in ids {
            self.settle_at(id, Home::Asked { link, op });
        }
        self.tally.asked(kind, ids.len());
        let channels = ids.to_vec();
        self.links[link].ops.push_back(Op::Subscribe { id: op, kind, channels, confirmed: 0 });
        self.leave_twins(link, ids);
        op
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
