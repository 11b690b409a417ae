//! The mux's mind: a desired set of channels, the nodes that serve them, and one reconcile step. Every event (a
//! subscriber comes or goes, a frame, a broken connection, a new topology, a tick) only changes this state; what must
//! be done about it comes out as [`Order`]s. No I/O and no clock: `now` is a parameter.

mod gaps;
mod hear;
mod local;
mod reconcile;
mod standin;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU32,
    sync::Arc,
    task::Waker,
};

use bytes::Bytes;
use slab::Slab;
use tokio::time::Instant;

use super::{
    config::MuxConfig,
    event::{GapReason, Kind},
    link::{Link, LinkState, Op},
    mailbox::Mailbox,
    registry::{ChannelId, Confirm, Home, LinkId, Registry},
    stats::Tally,
    wire,
};
use crate::{
    cluster::topology::Topology,
    config::{Address, AddressMap},
    error::{CallError, LostCause},
};

/// A connection that serves nothing is kept for so long.
const IDLE: std::time::Duration = std::time::Duration::from_secs(10);

/// What the driver must do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Make a connection to this node.
    Open(LinkId, Address),
    /// Send these bytes to this node; this operation is the last one in them.
    Send(LinkId, u64, Vec<u8>),
    /// The connection to this node is no longer needed.
    Close(LinkId),
    /// The node's answers make no sense: start its connection afresh.
    Reset(LinkId),
    /// Ask for the topology now.
    Refresh,
    /// A node said that this slot lives there.
    Moved(u16, Address),
}

/// What one subscriber wants, or wants no longer.
#[derive(Clone, Copy)]
pub(crate) struct Want<'a> {
    pub(crate) kind: Kind,
    pub(crate) names: &'a [Bytes],
    pub(crate) mailbox: &'a Arc<Mailbox>,
}

pub(crate) struct Core {
    pub(crate) config: MuxConfig,
    pub(crate) registry: Registry,
    pub(crate) links: Slab<Link>,
    /// Names that each master speaks of for itself.
    locals: local::Locals,
    pub(crate) tally: Tally,
    by_address: HashMap<Address, LinkId>,
    topology: Arc<Topology>,
    /// Owners learned from a redirection, until the topology changes.
    hints: HashMap<u16, Address>,
    /// Channels that wait for a home. Each knows its place here.
    homeless: Vec<ChannelId>,
    /// Those of them that nobody has looked at yet.
    fresh: Vec<ChannelId>,
    /// Something changed that may give any homeless channel its home; without it, only the fresh
    /// ones are looked at.
    stirred: bool,
    /// When all homeless channels were last looked at, and when the first of them may be asked for
    /// again.
    looked_at: Option<Instant>,
    retry_at: Option<Instant>,
    /// A homeless channel waits for a node, rather than for its time: news of the topology would help.
    searching: bool,
    /// Whether very many channels were without a home when homes were looked for last.
    storm: bool,
    next_op: u64,
    orders: Vec<Order>,
    wakers: Vec<Waker>,
    /// Messages for one mailbox that came in a row, delivered together.
    run: VecDeque<super::Message>,
    run_for: Option<Arc<Mailbox>>,
    /// A message of the node that is being heard found no room: nothing more is taken from it now.
    jammed: bool,
    /// Channels that were confirmed again since the last message, told before the next one.
    resumed: Vec<ChannelId>,
    /// Channels with a gap whose age still matters.
    gapped: Vec<ChannelId>,
    /// Channels that a node serves of which it is not sure that it still is their master.
    doubtful: Vec<ChannelId>,
    place: Place,
}

/// Where the mux lives.
#[derive(Debug, Clone, Default)]
pub(crate) enum Place {
    /// At one server, or wherever the sentinels say.
    #[default]
    Single,
    /// In a cluster, whose nodes may be known here by other addresses.
    Cluster(Option<AddressMap>),
}

impl Core {
    pub(crate) fn new(config: MuxConfig, topology: Arc<Topology>, place: Place) -> Self {
        Self {
            config,
            registry: Registry::default(),
            links: Slab::new(),
            locals: local::Locals::default(),
            tally: Tally::default(),
            by_address: HashMap::new(),
            topology,
            hints: HashMap::new(),
            homeless: Vec::new(),
            fresh: Vec::new(),
            stirred: false,
            looked_at: None,
            retry_at: None,
            searching: false,
            storm: false,
            next_op: 1,
            orders: Vec::new(),
            wakers: Vec::new(),
            run: VecDeque::new(),
            run_for: None,
            jammed: false,
            resumed: Vec::new(),
            gapped: Vec::new(),
            doubtful: Vec::new(),
            place,
        }
    }

    /// What is to be done since the last time, and whom to wake once no lock is held.
    pub(crate) fn drain(&mut self, orders: &mut Vec<Order>, wakers: &mut Vec<Waker>) {
        orders.append(&mut self.orders);
        wakers.append(&mut self.wakers);
    }

    /// Whether a tick has anything to look at.
    pub(crate) fn is_settled(&self) -> bool {
        self.homeless.is_empty() && self.gapped.is_empty() && self.doubtful.is_empty()
    }

    // ---- subscribers ---------------------------------------------------------------------------------------------

    /// A subscriber wants these names; `confirm` hears when each is served.
    pub(crate) fn join(&mut self, want: Want<'_>, confirm: &Arc<Confirm>, now: Instant) {
        let Want { kind, names, mailbox } = want;
        self.registry.reserve(kind, names.len());
        for name in names {
            if !self.join_parts(want, name, confirm) {
                let id = self.registry.find_or_insert(kind, name);
                self.listen(id, mailbox, confirm);
            }
        }
        self.reconcile(now);
    }

    fn listen(&mut self, id: ChannelId, mailbox: &Arc<Mailbox>, confirm: &Arc<Confirm>) {
        let stood_in_for = self.is_stood_in_for(&self.registry[id]);
        let channel = &mut self.registry[id];
        channel.listeners.push(mailbox.clone());
        if !stood_in_for && let Home::Live { .. } = channel.home {
            return confirm.done();
        }
        channel.waiters.push(confirm.clone());
        channel.retry_at = None;
        if let Home::Leaving { .. } = channel.home {
            self.settle_at(id, Home::Homeless);
        }
        self.look_for_home(id);
    }

    /// A subscriber no longer wants these names. The last one out ends the subscription on the server; `confirm` then
    /// has one more thing to wait for.
    pub(crate) fn leave(&mut self, want: Want<'_>, confirm: Option<&Arc<Confirm>>) {
        let Want { kind, names, mailbox } = want;
        let mut goodbyes: HashMap<LinkId, Vec<ChannelId>> = HashMap::new();
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
            if let Some(former) = channel.former.take() {
                goodbyes.entry(former).or_default().push(id);
            }
            match channel.home {
                Home::Homeless => forgotten.push(id),
                Home::Asked { link, .. } | Home::Live { link } => goodbyes.entry(link).or_default().push(id),
                Home::Leaving { .. } => {}
            }
        }
        for (link, channels) in goodbyes {
            self.unsubscribe(link, kind, &channels, confirm);
        }
        forgotten.into_iter().for_each(|id| self.forget(id));
    }

    /// Sends the end of some subscriptions of one kind to a node.
    fn unsubscribe(
        &mut self,
        link: LinkId,
        kind: Kind,
        channels: &[ChannelId],
        confirm: Option<&Arc<Confirm>>,
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
                        && self.registry[channel].home.link() == Some(link)
                    {
                        self.settle_at(channel, Home::Leaving { link, op: id });
                    }
                }
                if let Some(confirm) = confirm {
                    confirm.expect();
                }
                let waiter = confirm.cloned();
                let channels = chunk.to_vec();
                let op = Op::Unsubscribe { id, kind, left: channels.len(), channels, waiter };
                self.links[link].ops.push_back(op);
                self.orders.push(Order::Send(link, id, bytes));
            }
        }
    }

    fn forget_unless_wanted(&mut self, id: ChannelId, link: LinkId) {
        if self.registry[id].listeners.is_empty() && self.registry[id].home.link() == Some(link) {
            self.settle_at(id, Home::Homeless);
            self.forget(id);
        }
    }

    /// Channels that may go into one command: sharded ones only with those of the same slot.
    fn by_slot(&self, kind: Kind, channels: &[ChannelId]) -> Vec<Vec<ChannelId>> {
        if kind != Kind::Sharded {
            return vec![channels.to_vec()];
        }
        let mut sorted: Vec<ChannelId> = channels.to_vec();
        sorted.sort_by_key(|&id| self.registry[id].slot);
        sorted
            .chunk_by(|&a, &b| self.registry[a].slot == self.registry[b].slot)
            .map(<[ChannelId]>::to_vec)
            .collect()
    }

    /// Subscribes what was given up because automatic resubscription is off.
    pub(crate) fn revive(&mut self, kind: Kind, names: &[Bytes], now: Instant) {
        let ids: Vec<ChannelId> = names.iter().flat_map(|name| self.ids_of(kind, name)).collect();
        for id in ids {
            if self.registry[id].home == Home::Homeless {
                self.registry[id].retry_at = None;
                self.queue(id);
                self.fresh.push(id);
            }
        }
        self.reconcile(now);
    }

    /// Why these names are not served although the time is up; `None` if no node is known to blame.
    pub(crate) fn excuse(
        &mut self,
        want: Want<'_>,
        limit: std::time::Duration,
        now: Instant,
    ) -> Option<CallError> {
        let names = want.names.iter();
        let ids: Vec<ChannelId> = names.flat_map(|name| self.ids_of(want.kind, name)).collect();
        let sent = ids.iter().any(|&id| matches!(self.registry[id].home, Home::Asked { .. }));
        let late = CallError::Timeout { after: limit, sent };
        let homeless = ids.iter().copied().find(|&id| self.registry[id].home == Home::Homeless);
        match homeless {
            Some(id) => self.place(id, now).map(|link| self.links[link].excuse().unwrap_or(late)),
            None if ids.is_empty() => None,
            None => Some(late),
        }
    }

    // ---- bookkeeping ---------------------------------------------------------------------------------------------

    fn take_op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op
    }

    /// Changes where a channel is served and keeps the loads right.
    fn settle_at(&mut self, id: ChannelId, home: Home) {
        let counted = |home: Home| match home {
            Home::Asked { link, .. } | Home::Live { link } => Some(link),
            Home::Homeless | Home::Leaving { .. } => None,
        };
        let before = self.registry.set_home(id, home);
        if let Some(link) = counted(before).and_then(|link| self.links.get_mut(link)) {
            link.load -= 1;
        }
        if let Some(link) = counted(home) {
            self.links[link].load += 1;
        }
    }

    /// Puts a channel without a home on the list, unless it waits to be revived by its subscriber.
    fn look_for_home(&mut self, id: ChannelId) {
        let channel = &self.registry[id];
        let given_up = channel.gap.is_some() && !self.config.auto_resubscribe && channel.waiters.is_empty();
        if channel.home == Home::Homeless && !given_up {
            self.queue(id);
            self.fresh.push(id);
        }
    }

    /// Puts a channel at the end of the list of the homeless, unless it stands there.
    fn queue(&mut self, id: ChannelId) {
        let channel = &mut self.registry[id];
        if channel.place.is_none() {
            self.homeless.push(id);
            channel.place = u32::try_from(self.homeless.len()).ok().and_then(NonZeroU32::new);
        }
    }

    /// Takes a channel off the list of the homeless, whose last one gets its place. False if it did
    /// not stand there.
    fn unqueue(&mut self, id: ChannelId) -> bool {
        let Some(place) = self.registry.get_mut(id).and_then(|channel| channel.place.take()) else {
            return false;
        };
        let at = place.get() as usize - 1;
        self.homeless.swap_remove(at);
        if let Some(&moved) = self.homeless.get(at) {
            self.registry[moved].place = Some(place);
        }
        true
    }

    /// Nobody wants this channel, and no server has it.
    fn forget(&mut self, id: ChannelId) {
        self.unqueue(id);
        self.registry.remove(id);
    }

    // ---- nodes ---------------------------------------------------------------------------------------------------

    /// A connection stands; the server knows of no subscription on it.
    pub(crate) fn opened(&mut self, link: LinkId, generation: u64, now: Instant) {
        let Some(node) = self.links.get_mut(link) else { return };
        node.state = LinkState::Open;
        node.cause = None;
        node.generation = generation;
        node.failures = 0;
        node.unproved(now);
        self.tally.connected();
        self.stirred = true;
        self.call_home(link);
        self.reconcile(now);
    }

    /// A connection broke, or could not be made.
    pub(crate) fn lost(&mut self, link: LinkId, cause: LostCause, now: Instant) {
        let Some(node) = self.links.get_mut(link) else { return };
        debug_assert!(
            node.stuck.is_empty(),
            "what came before the break was delivered before it is dealt with"
        );
        let stood = node.state == LinkState::Open;
        self.tally.disconnected(stood);
        node.state = LinkState::Down;
        node.cause = Some(cause);
        node.keeps_ghosts = false;
        node.failures = node.failures.saturating_add(1);
        self.stirred = true;
        let ops = std::mem::take(&mut node.ops);
        for op in ops {
            if let Op::Unsubscribe { waiter: Some(waiter), .. } = op {
                waiter.done();
            }
        }
        let touched = |c: &super::registry::Channel| c.home.link() == Some(link) || c.former == Some(link);
        // A connection that never stood has no channels: a failed try need not look for them.
        let all = stood.then(|| self.registry.iter()).into_iter().flatten();
        let ids: Vec<ChannelId> = all.filter(|(_, c)| touched(c)).map(|(id, _)| id).collect();
        let mut silent = Vec::new();
        for id in ids {
            self.forget_link(id, link, &mut silent);
        }
        self.tell_node_lost(link, &silent);
        self.begin_gap(&silent, &GapReason::NodeLost, now);
        self.orders.push(Order::Refresh);
        self.reconcile(now);
    }

    fn forget_link(&mut self, id: ChannelId, link: LinkId, silent: &mut Vec<ChannelId>) {
        let channel = &mut self.registry[id];
        if channel.former == Some(link) {
            channel.former = None;
        }
        match channel.home {
            Home::Live { link: at } if at == link => silent.push(id),
            Home::Asked { link: at, .. } if at == link => {
                self.settle_at(id, Home::Homeless);
                self.look_for_home(id);
            }
            Home::Leaving { link: at, .. } if at == link => self.forget(id),
            _ => {}
        }
    }

    /// The cluster looks different now: channels whose node is no longer the right one move.
    pub(crate) fn retopologise(&mut self, topology: Arc<Topology>, now: Instant) {
        if Arc::ptr_eq(&self.topology, &topology) {
            return;
        }
        self.topology = topology;
        self.hints.clear();
        self.stirred = true;
        self.follow_masters(now);
        let misplaced: Vec<ChannelId> =
            self.registry.iter().filter(|(_, c)| self.is_misplaced(c)).map(|(id, _)| id).collect();
        let (mut silent, mut goodbyes) = (Vec::new(), HashMap::<(LinkId, Kind), Vec<ChannelId>>::new());
        for id in misplaced {
            let channel = &mut self.registry[id];
            let kind = channel.kind;
            match channel.home {
                // What the old owner still sends is still ours, and comes from nobody else.
                Home::Live { link } if kind == Kind::Sharded => {
                    channel.former = Some(link);
                    silent.push(id);
                }
                Home::Live { link } => {
                    goodbyes.entry((link, kind)).or_default().push(id);
                    silent.push(id);
                }
                // Its answer may never come, or come too late.
                Home::Asked { link, .. } => {
                    goodbyes.entry((link, kind)).or_default().push(id);
                    self.settle_at(id, Home::Homeless);
                    self.look_for_home(id);
                }
                Home::Homeless | Home::Leaving { .. } => {}
            }
        }
        self.begin_gap(&silent, &GapReason::Reassigned, now);
        for ((link, kind), ids) in goodbyes {
            self.unsubscribe(link, kind, &ids, None);
        }
        self.reconcile(now);
        self.sweep(now);
    }

    fn is_misplaced(&self, channel: &super::registry::Channel) -> bool {
        let (Home::Live { link } | Home::Asked { link, .. }) = channel.home else { return false };
        let node = &self.links[link].address;
        match channel.kind {
            Kind::Sharded => !super::placement::serves(&self.topology, channel.slot, self.config.nodes, node),
            Kind::Channel | Kind::Pattern => !self.topology.contains(node),
        }
    }

    /// Closes connections that serve nothing: at once if the node has left the cluster, else after a while.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let mut idle: Vec<LinkId> = Vec::new();
        for (id, link) in &mut self.links {
            let hinted = !self.hints.is_empty() && self.hints.values().any(|node| *node == link.address);
            if link.load > 0 || link.is_owed_answers() || !link.stuck.is_empty() || hinted {
                link.idle_since = None;
                continue;
            }
            let since = *link.idle_since.get_or_insert(now);
            let needless = link.keeps_ghosts || (now - since >= IDLE && !self.searching);
            if needless || !self.topology.contains(&link.address) {
                idle.push(id);
            }
        }
        if idle.is_empty() {
            return;
        }
        for (_, channel) in self.registry.iter() {
            idle.retain(|&id| channel.former != Some(id));
        }
        for id in idle {
            let link = self.links.remove(id);
            self.by_address.remove(&link.address);
            self.orders.push(Order::Close(id));
        }
    }
}
