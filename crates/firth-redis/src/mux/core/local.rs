//! Names that each node of a cluster speaks of for itself: keyspace notifications. A node tells
//! only of its own keys, so such a name is subscribed at every master, as one *part* per master.
//! Each part is a channel of the registry that stays with its node; parts come and go with the
//! masters. A gap begins with the first part that is lost, and ends when the last one is served
//! again.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Core, Order, Place, Want};
use crate::{
    config::Address,
    mux::{
        event::{GapReason, Kind, Signal},
        mailbox::Mailbox,
        registry::{ChannelId, Confirm, Gap, Home, LinkId},
    },
};

/// How the channels of keyspace notifications begin.
const PREFIXES: [&[u8]; 2] = [b"__keyspace@", b"__keyevent@"];
/// A pattern that begins with less speaks of ordinary channels too, which every node delivers.
const COMMON: &[u8] = b"__key";

/// Whether a node speaks of this for itself alone.
pub(super) fn is_node_local(kind: Kind, name: &[u8]) -> bool {
    if !name.starts_with(COMMON) {
        return false;
    }
    match kind {
        Kind::Channel => PREFIXES.iter().any(|prefix| name.starts_with(prefix)),
        Kind::Pattern => {
            let literal =
                name.iter().position(|byte| b"*?[\\".contains(byte)).map_or(name, |end| &name[..end]);
            literal.starts_with(COMMON)
                && PREFIXES.iter().any(|prefix| prefix.starts_with(literal) || literal.starts_with(prefix))
        }
        Kind::Sharded => false,
    }
}

/// The names with parts, by kind.
pub(super) type Locals = [HashMap<Bytes, Local>; 3];

/// One such name.
#[derive(Default)]
pub(super) struct Local {
    listeners: Vec<Arc<Mailbox>>,
    /// Callers who wait for a first master.
    waiters: Vec<Arc<Confirm>>,
    parts: Vec<Part>,
}

struct Part {
    node: Address,
    id: ChannelId,
}

impl Core {
    fn is_local(&self, kind: Kind, name: &[u8]) -> bool {
        is_node_local(kind, name) && matches!(self.place, Place::Cluster(_))
    }

    /// Whether a channel is the part of one node.
    pub(super) fn is_part(&self, id: ChannelId) -> bool {
        self.is_local(self.registry[id].kind, &self.registry[id].name)
    }

    /// The channels that stand for a name: one, or one per master.
    pub(super) fn ids_of(&self, kind: Kind, name: &[u8]) -> SmallVec<[ChannelId; 1]> {
        if !self.is_local(kind, name) {
            return self.registry.find(kind, name).into_iter().collect();
        }
        let local = self.locals[kind.index()].get(name);
        local.into_iter().flat_map(|local| &local.parts).map(|part| part.id).collect()
    }

    /// The channel that a node means by a name.
    #[inline]
    pub(super) fn find(&self, link: LinkId, kind: Kind, name: &[u8]) -> Option<ChannelId> {
        self.registry.find(kind, name).or_else(|| {
            let local = self.locals[kind.index()].get(name)?;
            local.parts.iter().map(|part| part.id).find(|&id| self.registry[id].accepts(link))
        })
    }

    /// The node that a part belongs to.
    pub(super) fn node_of_part(&self, id: ChannelId) -> Option<Address> {
        let channel = &self.registry[id];
        if !self.is_local(channel.kind, &channel.name) {
            return None;
        }
        let local = self.locals[channel.kind.index()].get(&channel.name)?;
        local.parts.iter().find(|part| part.id == id).map(|part| part.node.clone())
    }

    /// A subscriber wants a name at every master.
    pub(super) fn join_parts(&mut self, want: Want<'_>, name: &Bytes, confirm: &Arc<Confirm>) -> bool {
        if !self.is_local(want.kind, name) {
            return false;
        }
        let local = self.locals[want.kind.index()].entry(name.clone()).or_default();
        if local.parts.is_empty() {
            let masters = self.topology.shards().iter().map(|shard| shard.master.clone());
            for node in masters {
                let id = self.registry.insert(want.kind, name);
                local.parts.push(Part { node, id });
            }
        }
        local.listeners.push(want.mailbox.clone());
        if local.parts.is_empty() {
            local.waiters.push(confirm.clone());
            self.orders.push(Order::Refresh);
            return true;
        }
        let ids: Vec<ChannelId> = local.parts.iter().map(|part| part.id).collect();
        ids.iter().for_each(|_| confirm.expect());
        ids.into_iter().for_each(|id| self.listen(id, want.mailbox, confirm));
        confirm.done();
        true
    }

    /// A subscriber wants a name no longer; its parts are left like other channels.
    pub(super) fn leave_parts(&mut self, want: Want<'_>, name: &[u8]) {
        let locals = &mut self.locals[want.kind.index()];
        let Some(local) = locals.get_mut(name) else { return };
        if let Some(at) = local.listeners.iter().position(|mailbox| Arc::ptr_eq(mailbox, want.mailbox)) {
            local.listeners.remove(at);
        }
        if local.listeners.is_empty() {
            locals.remove(name);
        }
    }

    /// A part is served again. If another part of its name is not, the gap goes on there, and this
    /// returns true.
    pub(super) fn gap_goes_on(&mut self, id: ChannelId, since: Instant) -> bool {
        let (kind, aware) = (self.registry[id].kind, self.registry[id].aware);
        if !self.is_part(id) {
            return false;
        }
        let name = self.registry[id].name.clone();
        for other in self.ids_of(kind, &name) {
            let channel = &mut self.registry[other];
            if let Some(gap) = &mut channel.gap {
                gap.since = gap.since.min(since);
                channel.aware = channel.aware.max(aware);
                return true;
            }
        }
        false
    }

    /// The topology has changed: parts of nodes that are masters no longer end, and new masters get
    /// theirs.
    pub(super) fn follow_masters(&mut self, now: Instant) {
        let masters: Vec<Address> = self.topology.shards().iter().map(|shard| shard.master.clone()).collect();
        for kind in [Kind::Channel, Kind::Pattern] {
            let names: Vec<Bytes> = self.locals[kind.index()].keys().cloned().collect();
            for name in names.into_iter().filter(|_| !masters.is_empty()) {
                self.follow(kind, &name, &masters, now);
            }
        }
    }

    fn follow(&mut self, kind: Kind, name: &Bytes, masters: &[Address], now: Instant) {
        let Some(local) = self.locals[kind.index()].get_mut(name) else { return };
        let is_first = local.parts.is_empty();
        let (kept, gone): (Vec<Part>, Vec<Part>) =
            local.parts.drain(..).partition(|part| masters.contains(&part.node));
        let mut waiters = std::mem::take(&mut local.waiters);
        let mut new = Vec::new();
        for node in masters.iter().filter(|node| kept.iter().all(|part| part.node != **node)) {
            let id = self.registry.insert(kind, name);
            self.registry[id].listeners.extend(local.listeners.iter().cloned());
            new.push(id);
            local.parts.push(Part { node: node.clone(), id });
        }
        let kept_one = kept.first().map(|part| part.id);
        local.parts.extend(kept);
        let mut inherited: Option<(Gap, u32)> = None;
        for part in gone {
            let channel = &mut self.registry[part.id];
            waiters.append(&mut channel.waiters);
            if let Some(gap) = channel.gap.take()
                && inherited.as_ref().is_none_or(|(first, _)| gap.since < first.since)
            {
                inherited = Some((*gap, channel.aware));
            }
            self.end_part(part.id);
        }
        for waiter in waiters {
            for &id in &new {
                waiter.expect();
                self.registry[id].waiters.push(waiter.clone());
            }
            waiter.done();
        }
        match (inherited, kept_one) {
            (Some((gap, aware)), Some(part)) if new.is_empty() => self.close_gap(part, &gap, aware, now),
            (inherited, _) if !is_first => self.open_parts(&new, inherited, now),
            _ => {}
        }
        new.into_iter().for_each(|id| self.look_for_home(id));
    }

    fn end_part(&mut self, id: ChannelId) {
        let channel = &mut self.registry[id];
        channel.listeners.clear();
        let kind = channel.kind;
        match channel.home {
            Home::Homeless => self.forget(id),
            Home::Asked { link, .. } | Home::Live { link } => self.unsubscribe(link, kind, &[id], None),
            Home::Leaving { .. } => {}
        }
    }

    /// New masters may have told of their keys before they are asked: a gap, or the rest of the one
    /// of a former master.
    fn open_parts(&mut self, new: &[ChannelId], inherited: Option<(Gap, u32)>, now: Instant) {
        let Some(&first) = new.first() else { return };
        let from = self.topology.shards()[0].master.clone();
        let (gap, told) = inherited.unwrap_or_else(|| (Gap::new(GapReason::Reassigned, from, now), 0));
        for &id in new {
            let channel = &mut self.registry[id];
            channel.aware = u32::try_from(channel.listeners.len()).unwrap_or(u32::MAX);
            channel.gap = Some(Box::new(Gap { doubt: None, ..gap.clone() }));
            self.gapped.push(id);
        }
        self.tally.gaps_begun(&gap.reason, new.len());
        let whom = [(first, told..self.registry[first].aware)];
        let since = now.into_std();
        self.tell_some(&whom, |channels| Signal::Gap { reason: gap.reason.clone(), since, channels });
    }

    /// The master of a part in a gap is gone, and its slots are with masters that have been heard
    /// all along.
    fn close_gap(&mut self, part: ChannelId, gap: &Gap, aware: u32, now: Instant) {
        self.registry[part].aware = self.registry[part].aware.max(aware);
        if self.registry[part].gap.is_none() && !self.gap_goes_on(part, gap.since) {
            let after = now - gap.since;
            self.tell_some(&[(part, 0..aware)], |channels| Signal::Resumed { after, channels });
        }
    }
}
