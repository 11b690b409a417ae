//! Keyspace notifications in a cluster.
//!
//! A node tells only of its own keys, so such a name is subscribed at every master, as one *part*
//! per master. Each part is a channel of the registry that stays with its node. Parts come and go
//! with the masters. A gap begins with the first part that is lost, and ends when the last one is
//! served again.

use super::{MuxAction, MuxCore, MuxDeployment, SubscriberNames};
use crate::config::Address;
use crate::mux::event::{GapReason, Signal, SubscriptionKind};
use crate::mux::mailbox::EventMailbox;
use crate::mux::registry::{ChannelGap, ChannelId, Confirmation, LinkId, Placement};
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::Instant;

/// How the channels of keyspace notifications begin.
const PREFIXES: [&[u8]; 2] = [b"__keyspace@", b"__keyevent@"];
/// A pattern with a shorter literal start matches ordinary channels too, which every node delivers.
const COMMON: &[u8] = b"__key";

/// Whether a node publishes this only for its own keys.
pub(super) fn is_node_local(kind: SubscriptionKind, name: &[u8]) -> bool {
    if !name.starts_with(COMMON) {
        return false;
    }
    match kind {
        SubscriptionKind::Channel => PREFIXES.iter().any(|prefix| name.starts_with(prefix)),
        SubscriptionKind::Pattern => {
            let literal =
                name.iter().position(|byte| b"*?[\\".contains(byte)).map_or(name, |end| &name[..end]);
            literal.starts_with(COMMON)
                && PREFIXES.iter().any(|prefix| prefix.starts_with(literal) || literal.starts_with(prefix))
        }
        SubscriptionKind::Sharded => false,
    }
}

/// The names with parts, by kind.
pub(super) type KeyspaceNames = [HashMap<Bytes, KeyspaceName>; 3];

/// One such name.
#[derive(Default)]
pub(super) struct KeyspaceName {
    listeners: Vec<Arc<EventMailbox>>,
    /// Callers who wait for a first master.
    waiters: Vec<Arc<Confirmation>>,
    parts: Vec<KeyspacePart>,
}

struct KeyspacePart {
    node: Address,
    id: ChannelId,
}

impl MuxCore {
    fn is_keyspace_name(&self, kind: SubscriptionKind, name: &[u8]) -> bool {
        is_node_local(kind, name) && matches!(self.deployment, MuxDeployment::Cluster(_))
    }

    /// Whether a channel is the part of one node.
    pub(super) fn is_part(&self, id: ChannelId) -> bool {
        self.is_keyspace_name(self.registry[id].kind, &self.registry[id].name)
    }

    /// The channels that stand for a name: one, or one per master.
    pub(super) fn ids_of(&self, kind: SubscriptionKind, name: &[u8]) -> SmallVec<[ChannelId; 1]> {
        if !self.is_keyspace_name(kind, name) {
            return self.registry.find(kind, name).into_iter().collect();
        }
        let name_state = self.keyspace_names[kind.index()].get(name);
        name_state.into_iter().flat_map(|name_state| &name_state.parts).map(|part| part.id).collect()
    }

    /// Channel that this node means by a name.
    #[inline]
    pub(super) fn find(&self, link: LinkId, kind: SubscriptionKind, name: &[u8]) -> Option<ChannelId> {
        self.registry.find(kind, name).or_else(|| {
            let name_state = self.keyspace_names[kind.index()].get(name)?;
            name_state.parts.iter().map(|part| part.id).find(|&id| self.registry[id].accepts(link))
        })
    }

    /// The node that a part belongs to.
    pub(super) fn node_of_part(&self, id: ChannelId) -> Option<Address> {
        let channel = &self.registry[id];
        if !self.is_keyspace_name(channel.kind, &channel.name) {
            return None;
        }
        let name_state = self.keyspace_names[channel.kind.index()].get(&channel.name)?;
        name_state.parts.iter().find(|part| part.id == id).map(|part| part.node.clone())
    }

    /// A subscriber wants a name at every master.
    pub(super) fn join_parts(
        &mut self,
        want: SubscriberNames<'_>,
        name: &Bytes,
        confirm: &Arc<Confirmation>,
    ) -> bool {
        if !self.is_keyspace_name(want.kind, name) {
            return false;
        }
        let name_state = self.keyspace_names[want.kind.index()].entry(name.clone()).or_default();
        if name_state.parts.is_empty() {
            let masters = self.topology.shards().iter().map(|shard| shard.master.clone());
            for node in masters {
                let id = self.registry.insert(want.kind, name);
                name_state.parts.push(KeyspacePart { node, id });
            }
        }
        name_state.listeners.push(want.mailbox.clone());
        if name_state.parts.is_empty() {
            name_state.waiters.push(confirm.clone());
            self.actions.push(MuxAction::Refresh);
            return true;
        }
        let ids: Vec<ChannelId> = name_state.parts.iter().map(|part| part.id).collect();
        ids.iter().for_each(|_| confirm.expect());
        ids.into_iter().for_each(|id| self.listen(id, want.mailbox, confirm));
        confirm.done();
        true
    }

    /// A subscriber no longer wants a name; its parts are left like other channels.
    pub(super) fn leave_parts(&mut self, want: SubscriberNames<'_>, name: &[u8]) {
        let keyspace_names = &mut self.keyspace_names[want.kind.index()];
        let Some(name_state) = keyspace_names.get_mut(name) else { return };
        if let Some(at) = name_state.listeners.iter().position(|mailbox| Arc::ptr_eq(mailbox, want.mailbox)) {
            name_state.listeners.remove(at);
        }
        if name_state.listeners.is_empty() {
            keyspace_names.remove(name);
        }
    }

    /// A part is served again. If another part of its name is not, the gap continues there, and
    /// this returns true.
    pub(super) fn continue_gap(&mut self, id: ChannelId, since: Instant) -> bool {
        let kind = self.registry[id].kind;
        let informed = self.registry[id].informed;
        if !self.is_part(id) {
            return false;
        }
        let name = self.registry[id].name.clone();
        for other in self.ids_of(kind, &name) {
            let channel = &mut self.registry[other];
            if let Some(gap) = &mut channel.gap {
                gap.since = gap.since.min(since);
                channel.informed = channel.informed.max(informed);
                return true;
            }
        }
        false
    }

    /// The topology has changed: parts of nodes that are masters no longer end, and new masters get
    /// theirs.
    pub(super) fn follow_masters(&mut self, now: Instant) {
        let masters: Vec<Address> = self.topology.shards().iter().map(|shard| shard.master.clone()).collect();
        for kind in [SubscriptionKind::Channel, SubscriptionKind::Pattern] {
            let names: Vec<Bytes> = self.keyspace_names[kind.index()].keys().cloned().collect();
            for name in names.into_iter().filter(|_| !masters.is_empty()) {
                self.follow(kind, &name, &masters, now);
            }
        }
    }

    fn follow(&mut self, kind: SubscriptionKind, name: &Bytes, masters: &[Address], now: Instant) {
        let Some(name_state) = self.keyspace_names[kind.index()].get_mut(name) else { return };
        let is_first = name_state.parts.is_empty();
        let (kept, gone): (Vec<KeyspacePart>, Vec<KeyspacePart>) =
            name_state.parts.drain(..).partition(|part| masters.contains(&part.node));
        let mut waiters = std::mem::take(&mut name_state.waiters);
        let mut new = Vec::new();
        for node in masters.iter().filter(|node| kept.iter().all(|part| part.node != **node)) {
            let id = self.registry.insert(kind, name);
            self.registry[id].listeners.extend(name_state.listeners.iter().cloned());
            new.push(id);
            name_state.parts.push(KeyspacePart { node: node.clone(), id });
        }
        let kept_one = kept.first().map(|part| part.id);
        name_state.parts.extend(kept);
        let mut inherited: Option<(ChannelGap, u32)> = None;
        for part in gone {
            let channel = &mut self.registry[part.id];
            waiters.append(&mut channel.waiters);
            if let Some(gap) = channel.gap.take()
                && inherited.as_ref().is_none_or(|(first, _)| gap.since < first.since)
            {
                inherited = Some((*gap, channel.informed));
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
            (Some((gap, informed)), Some(part)) if new.is_empty() => {
                self.close_gap(part, &gap, informed, now);
            }
            (inherited, _) if !is_first => self.open_parts(&new, inherited, now),
            _ => {}
        }
        new.into_iter().for_each(|id| self.queue_for_placement(id));
    }

    fn end_part(&mut self, id: ChannelId) {
        let channel = &mut self.registry[id];
        channel.listeners.clear();
        let kind = channel.kind;
        match channel.placement {
            Placement::None => self.forget(id),
            Placement::Requested { link, .. } | Placement::Live { link } => {
                self.unsubscribe(link, kind, &[id], None);
            }
            Placement::Leaving { .. } => {}
        }
    }

    /// Opens a gap for new masters, which may have published before they are subscribed. It
    /// continues the gap of a previous master, if there is one.
    fn open_parts(&mut self, new: &[ChannelId], inherited: Option<(ChannelGap, u32)>, now: Instant) {
        let Some(&first) = new.first() else { return };
        let from = self.topology.shards()[0].master.clone();
        let (gap, told) = inherited.unwrap_or_else(|| (ChannelGap::new(GapReason::Reassigned, from, now), 0));
        for &id in new {
            let channel = &mut self.registry[id];
            channel.informed = u32::try_from(channel.listeners.len()).unwrap_or(u32::MAX);
            channel.gap = Some(Box::new(ChannelGap { unverified_since: None, ..gap.clone() }));
            self.gapped.push(id);
        }
        self.counters.gaps_begun(&gap.reason, new.len());
        let whom = [(first, told..self.registry[first].informed)];
        let since = now.into_std();
        self.tell_some(&whom, |channels| Signal::Gap { reason: gap.reason.clone(), since, channels });
    }

    /// Closes the gap of a master that is gone, if masters that were served all along have its
    /// slots.
    fn close_gap(&mut self, part: ChannelId, gap: &ChannelGap, informed: u32, now: Instant) {
        self.registry[part].informed = self.registry[part].informed.max(informed);
        if self.registry[part].gap.is_none() && !self.continue_gap(part, gap.since) {
            let after = now - gap.since;
            self.tell_some(&[(part, 0..informed)], |channels| Signal::Resumed { after, channels });
        }
    }
}
