//! Core of the mux: a desired set of channels, the nodes that serve them, and one reconcile step.
//!
//! Every event (a subscriber comes or goes, a frame, a broken connection, a new topology, a tick)
//! only changes this state. What must be done comes out as [`MuxAction`]s. No I/O and no clock:
//! `now` is a parameter.

mod fallback;
mod gaps;
mod incoming;
mod keyspace;
mod reconcile;
#[cfg(test)]
mod tests;

use super::config::MuxConfig;
use super::event::{GapReason, SubscriptionKind};
use super::link::{Link, LinkState, PendingOp};
use super::mailbox::EventMailbox;
use super::registry::{ChannelId, ChannelRegistry, Confirmation, LinkId, Placement};
use super::stats::MuxCounters;
use super::wire;
use crate::cluster::topology::Topology;
use crate::config::{Address, AddressMap};
use crate::error::{CallError, LostCause};
use bytes::Bytes;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Waker;
use tokio::time::Instant;

/// An idle connection is kept for this long.
const IDLE: std::time::Duration = std::time::Duration::from_secs(10);

/// What the driver must do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MuxAction {
    /// Open a connection to this node.
    Open(LinkId, Address),
    /// Send these bytes to this node; this operation is the last one in them.
    Send(LinkId, u64, Vec<u8>),
    /// The connection to this node is no longer needed.
    Close(LinkId),
    /// The node's answers do not fit: reconnect.
    Reset(LinkId),
    /// Ask for the topology now.
    Refresh,
    /// A node redirected this slot to this address.
    Moved(u16, Address),
}

/// Names that one subscriber wants, or no longer wants.
#[derive(Clone, Copy)]
pub(crate) struct SubscriberNames<'a> {
    pub(crate) kind: SubscriptionKind,
    pub(crate) names: &'a [Bytes],
    pub(crate) mailbox: &'a Arc<EventMailbox>,
}

pub(crate) struct MuxCore {
    pub(crate) config: MuxConfig,
    pub(crate) registry: ChannelRegistry,
    pub(crate) links: Slab<Link>,
    /// Keyspace names, which are subscribed at every master.
    keyspace_names: keyspace::KeyspaceNames,
    pub(crate) counters: MuxCounters,
    by_address: HashMap<Address, LinkId>,
    topology: Arc<Topology>,
    /// Owners learned from a redirection, until the topology changes.
    hints: HashMap<u16, Address>,
    /// Channels without a node. Each knows its position here.
    unplaced: Vec<ChannelId>,
    /// Unplaced channels that no reconcile step has checked yet.
    newly_unplaced: Vec<ChannelId>,
    /// An event may have made a node available for any unplaced channel. Without it, a reconcile
    /// step checks only the new ones.
    recheck_all: bool,
    /// When all unplaced channels were last checked, and when the first of them may be requested
    /// again.
    checked_at: Option<Instant>,
    retry_at: Option<Instant>,
    /// An unplaced channel waits for a node, and not only for its time: a refresh of the topology
    /// would help.
    searching: bool,
    /// Whether very many channels were unplaced at the last reconcile step.
    many_unplaced: bool,
    next_op: u64,
    actions: Vec<MuxAction>,
    wakers: Vec<Waker>,
    /// Messages for one mailbox that came in a row, delivered together.
    run: VecDeque<super::Message>,
    run_for: Option<Arc<EventMailbox>>,
    /// A message of the current node found no room: no more is taken from it now.
    blocked: bool,
    /// Channels that were confirmed again since the last message, told before the next one.
    resumed: Vec<ChannelId>,
    /// Channels with a gap whose age still matters.
    gapped: Vec<ChannelId>,
    /// Channels that are served by a node that may no longer be their master.
    unverified: Vec<ChannelId>,
    deployment: MuxDeployment,
}

/// Kind of servers that the mux uses.
#[derive(Debug, Clone, Default)]
pub(crate) enum MuxDeployment {
    /// One server, or the master that the sentinels name.
    #[default]
    Single,
    /// A cluster, whose nodes may have other addresses for this client.
    Cluster(Option<AddressMap>),
}

impl MuxCore {
    pub(crate) fn new(config: MuxConfig, topology: Arc<Topology>, deployment: MuxDeployment) -> Self {
        Self {
            config,
            registry: ChannelRegistry::default(),
            links: Slab::new(),
            keyspace_names: keyspace::KeyspaceNames::default(),
            counters: MuxCounters::default(),
            by_address: HashMap::new(),
            topology,
            hints: HashMap::new(),
            unplaced: Vec::new(),
            newly_unplaced: Vec::new(),
            recheck_all: false,
            checked_at: None,
            retry_at: None,
            searching: false,
            many_unplaced: false,
            next_op: 1,
            actions: Vec::new(),
            wakers: Vec::new(),
            run: VecDeque::new(),
            run_for: None,
            blocked: false,
            resumed: Vec::new(),
            gapped: Vec::new(),
            unverified: Vec::new(),
            deployment,
        }
    }

    /// Takes the actions since the last call, and the wakers to wake once no lock is held.
    pub(crate) fn drain(&mut self, actions: &mut Vec<MuxAction>, wakers: &mut Vec<Waker>) {
        actions.append(&mut self.actions);
        wakers.append(&mut self.wakers);
    }

    /// Whether a tick would change nothing.
    pub(crate) fn is_settled(&self) -> bool {
        self.unplaced.is_empty() && self.gapped.is_empty() && self.unverified.is_empty()
    }

    // ---- subscribers ------------------------------------------------------------------------

    /// A subscriber wants these names; `confirm` counts those that are served.
    pub(crate) fn join(&mut self, want: SubscriberNames<'_>, confirm: &Arc<Confirmation>, now: Instant) {
        let SubscriberNames { kind, names, mailbox } = want;
        self.registry.reserve(kind, names.len());
        for name in names {
            if !self.join_parts(want, name, confirm) {
                let id = self.registry.find_or_insert(kind, name);
                self.listen(id, mailbox, confirm);
            }
        }
        self.reconcile(now);
    }

    fn listen(&mut self, id: ChannelId, mailbox: &Arc<EventMailbox>, confirm: &Arc<Confirmation>) {
        let on_fallback = self.is_on_fallback(&self.registry[id]);
        let channel = &mut self.registry[id];
        channel.listeners.push(mailbox.clone());
        if !on_fallback && let Placement::Live { .. } = channel.placement {
            return confirm.done();
        }
        channel.waiters.push(confirm.clone());
        channel.retry_at = None;
        if let Placement::Leaving { .. } = channel.placement {
            self.place_at(id, Placement::None);
        }
        self.queue_for_placement(id);
    }

    /// A subscriber no longer wants these names. The last subscriber ends the subscription on the
    /// server; `confirm` then has one more operation to wait for.
    pub(crate) fn leave(&mut self, want: SubscriberNames<'_>, confirm: Option<&Arc<Confirmation>>) {
        let SubscriberNames { kind, names, mailbox } = want;
        let mut unsubscribes: HashMap<LinkId, Vec<ChannelId>> = HashMap::new();
        let mut forgotten = Vec::new();
        let ids: Vec<ChannelId> = names.iter().flat_map(|name| self.ids_of(kind, name)).collect();
        names.iter().for_each(|name| self.leave_parts(want, name));
        for id in ids {
            let channel = &mut self.registry[id];
            channel.drop_listener(mailbox);
            if !channel.listeners.is_empty() {
                continue;
            }
            channel.gap = None;
            channel.waiters.clear();
            if let Some(previous) = channel.previous.take() {
                unsubscribes.entry(previous).or_default().push(id);
            }
            match channel.placement {
                Placement::None => forgotten.push(id),
                Placement::Requested { link, .. } | Placement::Live { link } => {
                    unsubscribes.entry(link).or_default().push(id);
                }
                Placement::Leaving { .. } => {}
            }
        }
        for (link, channels) in unsubscribes {
            self.unsubscribe(link, kind, &channels, confirm);
        }
        forgotten.into_iter().for_each(|id| self.forget(id));
    }

    /// Sends the end of some subscriptions of one kind to a node.
    fn unsubscribe(
        &mut self,
        link: LinkId,
        kind: SubscriptionKind,
        channels: &[ChannelId],
        confirm: Option<&Arc<Confirmation>>,
    ) {
        if self.links[link].state != LinkState::Open {
            // The connection is gone, and its subscriptions with it.
            return channels.iter().for_each(|&id| self.forget_unless_wanted(id, link));
        }
        for by_slot in self.by_slot(kind, channels) {
            for chunk in wire::chunks(&by_slot) {
                let id = self.take_op();
                let mut bytes = Vec::new();
                wire::change(kind, false, chunk.iter().map(|&c| &self.registry[c].name), &mut bytes);
                wire::barrier(id, &mut bytes);
                for &channel in chunk {
                    if self.registry[channel].listeners.is_empty()
                        && self.registry[channel].placement.link() == Some(link)
                    {
                        self.place_at(channel, Placement::Leaving { link, op: id });
                    }
                }
                if let Some(confirm) = confirm {
                    confirm.expect();
                }
                let waiter = confirm.cloned();
                let channels = chunk.to_vec();
                let op = PendingOp::Unsubscribe { id, kind, left: channels.len(), channels, waiter };
                self.links[link].ops.push_back(op);
                self.actions.push(MuxAction::Send(link, id, bytes));
            }
        }
    }

    fn forget_unless_wanted(&mut self, id: ChannelId, link: LinkId) {
        if self.registry[id].listeners.is_empty() && self.registry[id].placement.link() == Some(link) {
            self.place_at(id, Placement::None);
            self.forget(id);
        }
    }

    /// Channels that may go into one command: sharded ones only with those of the same slot.
    fn by_slot(&self, kind: SubscriptionKind, channels: &[ChannelId]) -> Vec<Vec<ChannelId>> {
        if kind != SubscriptionKind::Sharded {
            return vec![channels.to_vec()];
        }
        let mut sorted: Vec<ChannelId> = channels.to_vec();
        sorted.sort_by_key(|&id| self.registry[id].slot);
        sorted
            .chunk_by(|&a, &b| self.registry[a].slot == self.registry[b].slot)
            .map(<[ChannelId]>::to_vec)
            .collect()
    }

    /// Subscribes channels that wait for their subscriber because automatic resubscription is off.
    pub(crate) fn resubscribe(&mut self, kind: SubscriptionKind, names: &[Bytes], now: Instant) {
        let ids: Vec<ChannelId> = names.iter().flat_map(|name| self.ids_of(kind, name)).collect();
        for id in ids {
            if self.registry[id].placement == Placement::None {
                self.registry[id].retry_at = None;
                self.queue(id);
                self.newly_unplaced.push(id);
            }
        }
        self.reconcile(now);
    }

    /// Error of a subscribe call that timed out; `None` if no node explains it.
    pub(crate) fn timeout_reason(
        &mut self,
        want: SubscriberNames<'_>,
        limit: std::time::Duration,
        now: Instant,
    ) -> Option<CallError> {
        let names = want.names.iter();
        let ids: Vec<ChannelId> = names.flat_map(|name| self.ids_of(want.kind, name)).collect();
        let sent = ids.iter().any(|&id| matches!(self.registry[id].placement, Placement::Requested { .. }));
        let late = CallError::Timeout { after: limit, sent };
        let unplaced = ids.iter().copied().find(|&id| self.registry[id].placement == Placement::None);
        match unplaced {
            Some(id) => self.place(id, now).map(|link| self.links[link].failure().unwrap_or(late)),
            None if ids.is_empty() => None,
            None => Some(late),
        }
    }

    // ---- bookkeeping ------------------------------------------------------------------------

    fn take_op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op
    }

    /// Changes where a channel is served and keeps the loads right.
    fn place_at(&mut self, id: ChannelId, placement: Placement) {
        let counted = |placement: Placement| match placement {
            Placement::Requested { link, .. } | Placement::Live { link } => Some(link),
            Placement::None | Placement::Leaving { .. } => None,
        };
        let before = self.registry.set_placement(id, placement);
        if let Some(link) = counted(before).and_then(|link| self.links.get_mut(link)) {
            link.load -= 1;
        }
        if let Some(link) = counted(placement) {
            self.links[link].load += 1;
        }
    }

    /// Queues a channel without a node, unless it waits for `resubscribe`.
    fn queue_for_placement(&mut self, id: ChannelId) {
        let channel = &self.registry[id];
        let given_up = channel.gap.is_some() && !self.config.auto_resubscribe && channel.waiters.is_empty();
        if channel.placement == Placement::None && !given_up {
            self.queue(id);
            self.newly_unplaced.push(id);
        }
    }

    /// Appends a channel to the unplaced list, unless it is there.
    fn queue(&mut self, id: ChannelId) {
        let channel = &mut self.registry[id];
        if channel.unplaced_index.is_none() {
            self.unplaced.push(id);
            channel.unplaced_index = u32::try_from(self.unplaced.len()).ok().and_then(NonZeroU32::new);
        }
    }

    /// Removes a channel from the unplaced list; the last one takes its position. False if it was
    /// not there.
    fn unqueue(&mut self, id: ChannelId) -> bool {
        let Some(place) = self.registry.get_mut(id).and_then(|channel| channel.unplaced_index.take()) else {
            return false;
        };
        let at = place.get() as usize - 1;
        self.unplaced.swap_remove(at);
        if let Some(&moved) = self.unplaced.get(at) {
            self.registry[moved].unplaced_index = Some(place);
        }
        true
    }

    /// Removes a channel that has no subscriber and no server.
    fn forget(&mut self, id: ChannelId) {
        self.unqueue(id);
        self.registry.remove(id);
    }

    // ---- nodes ------------------------------------------------------------------------------

    /// A connection opened; the server has no subscription on it.
    pub(crate) fn opened(&mut self, link: LinkId, generation: u64, now: Instant) {
        let Some(node) = self.links.get_mut(link) else { return };
        node.state = LinkState::Open;
        node.cause = None;
        node.generation = generation;
        node.failures = 0;
        node.start_probation(now);
        self.counters.connected();
        self.recheck_all = true;
        self.return_to_master(link);
        self.reconcile(now);
    }

    /// A connection broke, or could not be made.
    pub(crate) fn lost(&mut self, link: LinkId, cause: LostCause, now: Instant) {
        let Some(node) = self.links.get_mut(link) else { return };
        debug_assert!(
            node.blocked.is_empty(),
            "what came before the break was delivered before it is dealt with"
        );
        let stood = node.state == LinkState::Open;
        self.counters.disconnected(stood);
        node.state = LinkState::Down;
        node.cause = Some(cause);
        node.has_stale_subscriptions = false;
        node.failures = node.failures.saturating_add(1);
        self.recheck_all = true;
        let ops = std::mem::take(&mut node.ops);
        for op in ops {
            if let PendingOp::Unsubscribe { waiter: Some(waiter), .. } = op {
                waiter.done();
            }
        }
        let touched =
            |c: &super::registry::Channel| c.placement.link() == Some(link) || c.previous == Some(link);
        // A connection that never opened has no channels: a failed attempt need not search for
        // them.
        let all = stood.then(|| self.registry.iter()).into_iter().flatten();
        let ids: Vec<ChannelId> = all.filter(|(_, c)| touched(c)).map(|(id, _)| id).collect();
        let mut interrupted = Vec::new();
        for id in ids {
            self.forget_link(id, link, &mut interrupted);
        }
        self.tell_node_lost(link, &interrupted);
        self.begin_gap(&interrupted, &GapReason::NodeLost, now);
        self.actions.push(MuxAction::Refresh);
        self.reconcile(now);
    }

    fn forget_link(&mut self, id: ChannelId, link: LinkId, interrupted: &mut Vec<ChannelId>) {
        let channel = &mut self.registry[id];
        if channel.previous == Some(link) {
            channel.previous = None;
        }
        match channel.placement {
            Placement::Live { link: at } if at == link => interrupted.push(id),
            Placement::Requested { link: at, .. } if at == link => {
                self.place_at(id, Placement::None);
                self.queue_for_placement(id);
            }
            Placement::Leaving { link: at, .. } if at == link => self.forget(id),
            _ => {}
        }
    }

    /// Applies a new topology: channels whose node is no longer right move.
    pub(crate) fn set_topology(&mut self, topology: Arc<Topology>, now: Instant) {
        if Arc::ptr_eq(&self.topology, &topology) {
            return;
        }
        self.topology = topology;
        self.hints.clear();
        self.recheck_all = true;
        self.follow_masters(now);
        let misplaced: Vec<ChannelId> =
            self.registry.iter().filter(|(_, c)| self.is_misplaced(c)).map(|(id, _)| id).collect();
        let mut interrupted = Vec::new();
        let mut unsubscribes = HashMap::<(LinkId, SubscriptionKind), Vec<ChannelId>>::new();
        for id in misplaced {
            let channel = &mut self.registry[id];
            let kind = channel.kind;
            match channel.placement {
                // Only the old owner sends what was published there, so its messages are still
                // taken.
                Placement::Live { link } if kind == SubscriptionKind::Sharded => {
                    channel.previous = Some(link);
                    interrupted.push(id);
                }
                Placement::Live { link } => {
                    unsubscribes.entry((link, kind)).or_default().push(id);
                    interrupted.push(id);
                }
                // Its answer may never come, or come too late.
                Placement::Requested { link, .. } => {
                    unsubscribes.entry((link, kind)).or_default().push(id);
                    self.place_at(id, Placement::None);
                    self.queue_for_placement(id);
                }
                Placement::None | Placement::Leaving { .. } => {}
            }
        }
        self.begin_gap(&interrupted, &GapReason::Reassigned, now);
        for ((link, kind), ids) in unsubscribes {
            self.unsubscribe(link, kind, &ids, None);
        }
        self.reconcile(now);
        self.sweep(now);
    }

    fn is_misplaced(&self, channel: &super::registry::Channel) -> bool {
        let (Placement::Live { link } | Placement::Requested { link, .. }) = channel.placement else {
            return false;
        };
        let node = &self.links[link].address;
        match channel.kind {
            SubscriptionKind::Sharded => {
                !super::placement::serves(&self.topology, channel.slot, self.config.nodes, node)
            }
            SubscriptionKind::Channel | SubscriptionKind::Pattern => !self.topology.contains(node),
        }
    }

    /// Closes connections that serve nothing: at once if the node has left the cluster, else after
    /// a while.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let mut idle: Vec<LinkId> = Vec::new();
        for (id, link) in &mut self.links {
            let hinted = !self.hints.is_empty() && self.hints.values().any(|node| *node == link.address);
            if link.load > 0 || link.is_owed_answers() || !link.blocked.is_empty() || hinted {
                link.idle_since = None;
                continue;
            }
            let since = *link.idle_since.get_or_insert(now);
            let needless = link.has_stale_subscriptions || (now - since >= IDLE && !self.searching);
            if needless || !self.topology.contains(&link.address) {
                idle.push(id);
            }
        }
        if idle.is_empty() {
            return;
        }
        for (_, channel) in self.registry.iter() {
            idle.retain(|&id| channel.previous != Some(id));
        }
        for id in idle {
            let link = self.links.remove(id);
            self.by_address.remove(&link.address);
            self.actions.push(MuxAction::Close(id));
        }
    }
}
