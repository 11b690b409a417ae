//! Handles a node's frames: messages go to mailboxes, confirmations and refusals to the operations
//! that they answer. A server may also end subscriptions by itself.

use super::keyspace::is_node_local;
use super::{MuxAction, MuxCore, MuxDeployment};
use crate::cluster::RetryDecision;
use crate::config::Address;
use crate::connection::push_queue::PushItem;
use crate::error::{CallError, ErrorChain, LostCause};
use crate::mux::config::NodePreference;
use crate::mux::event::{GapReason, Message, Signal, SubscriptionKind};
use crate::mux::link::{BlockedMessages, LinkState, PendingOp};
use crate::mux::mailbox::EventMailbox;
use crate::mux::registry::{Channel, ChannelId, LinkId, Placement};
use crate::mux::wire;
use crate::resp::ServerError;
use crate::resp::pubsub::PubSubFrame;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Redirections in a row that are followed at once. More of them mean that nodes contradict each
/// other, so a pause follows.
const REDIRECTIONS: u8 = 3;
const REDIRECTION_PAUSE: Duration = Duration::from_millis(25);

/// Whether a command got this error because of its slot, which a PING has not.
fn is_of_slots(code: &str) -> bool {
    matches!(code, "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "CROSSSLOT")
}

impl MuxCore {
    /// Handles the items of a node. If a subscriber with policy `Block` has no room, it stops,
    /// leaves the rest in `items`, and returns that subscriber's mailbox.
    pub(crate) fn handle(
        &mut self,
        link: LinkId,
        items: &mut VecDeque<PushItem>,
        now: Instant,
    ) -> Option<Arc<EventMailbox>> {
        if !self.links.contains(link) {
            items.clear();
            return None;
        }
        let received = now.into_std();
        self.blocked = false;
        self.deliver_blocked(link);
        while !self.blocked {
            match items.pop_front() {
                Some(PushItem::Frame(PubSubFrame::Message { kind, name, channel, payload }))
                    if self.resumed.is_empty() =>
                {
                    let message = match channel {
                        Some(channel) => Message::new(kind, channel, Some(name), payload, received),
                        None => Message::new(kind, name, None, payload, received),
                    };
                    self.message(link, message);
                }
                Some(item) => self.take(link, item, items, now),
                None => break,
            }
        }
        self.flush(link);
        self.tell_resumed(now);
        self.reconcile(now);
        self.links[link].blocked.front().map(|blocked| blocked.mailbox.clone())
    }

    /// Handles an item that is not a plain message. If messages before it have no room, the item
    /// goes back: nothing may overtake them.
    fn take(&mut self, link: LinkId, item: PushItem, items: &mut VecDeque<PushItem>, now: Instant) {
        self.flush(link);
        if self.blocked {
            return items.push_front(item);
        }
        if !matches!(item, PushItem::Frame(PubSubFrame::Subscribed { .. })) {
            self.tell_resumed(now);
        }
        match item {
            // Nothing is left to tell, so the message now takes the short path.
            PushItem::Frame(PubSubFrame::Message { .. }) => items.push_front(item),
            PushItem::Frame(said) => self.said(link, said, now),
            PushItem::Opened { server_info, .. } if server_info.protocol < 3 => self.resp2_only(link, now),
            PushItem::Opened { generation, .. } => self.opened(link, generation, now),
            PushItem::Pinged { after } => self.links[link].pinged(after),
            PushItem::Lost(cause) => self.lost(link, cause, now),
            PushItem::Closed => self.lost(link, LostCause::Closed, now),
        }
    }

    fn said(&mut self, link: LinkId, said: PubSubFrame, now: Instant) {
        match said {
            PubSubFrame::Subscribed { kind, name } => self.subscribed(link, kind, &name, now),
            PubSubFrame::Unsubscribed { kind, name } => self.unsubscribed(link, kind, &name, now),
            PubSubFrame::Barrier(id) => self.barrier(link, id),
            PubSubFrame::Error(error) => self.refused(link, &error, now),
            PubSubFrame::Message { .. } | PubSubFrame::Other => {}
        }
    }

    // ---- messages ---------------------------------------------------------------------------

    fn message(&mut self, link: LinkId, message: Message) {
        let kind = message.kind;
        let name = message.subscribed();
        let Some(id) = self.find(link, kind, name) else { return };
        if self.registry[id].accepts(link) {
            self.counters.received(kind);
            self.route(link, id, message);
        }
    }

    /// Hands a message to the channel's mailboxes; runs for the same single mailbox are handed over
    /// together.
    fn route(&mut self, link: LinkId, id: ChannelId, message: Message) {
        let listeners = &self.registry[id].listeners;
        if let [only] = &listeners[..] {
            if self.run_for.as_ref().is_none_or(|run| !Arc::ptr_eq(run, only)) {
                let only = only.clone();
                self.flush(link);
                self.run_for = Some(only);
            }
            self.run.push_back(message);
            return;
        }
        let all = listeners.clone();
        self.flush(link);
        for mailbox in all {
            self.deliver(link, &mailbox, &mut VecDeque::from([message.clone()]));
        }
    }

    /// Delivers the messages that were gathered.
    fn flush(&mut self, link: LinkId) {
        if let Some(mailbox) = self.run_for.take() {
            let mut run = std::mem::take(&mut self.run);
            self.deliver(link, &mailbox, &mut run);
            run.clear();
            self.run = run;
        }
    }

    fn deliver(&mut self, link: LinkId, mailbox: &Arc<EventMailbox>, messages: &mut VecDeque<Message>) {
        let (dropped, waker) = mailbox.deliver(messages);
        self.counters.dropped(dropped);
        self.wakers.extend(waker);
        if !messages.is_empty() {
            let messages = std::mem::take(messages);
            self.links[link].blocked.push_back(BlockedMessages { mailbox: mailbox.clone(), messages });
            self.blocked = true;
        }
    }

    /// Delivers messages again that full mailboxes had refused. Messages of channels that another
    /// node serves by now are dropped: they would come out of order, and their gap was told.
    fn deliver_blocked(&mut self, link: LinkId) {
        while let Some(mut blocked) = self.links[link].blocked.pop_front() {
            blocked.messages.retain(|message| {
                let id = self.find(link, message.kind, message.subscribed());
                id.is_some_and(|id| self.registry[id].accepts(link))
            });
            let (_, waker) = blocked.mailbox.deliver(&mut blocked.messages);
            self.wakers.extend(waker);
            if !blocked.messages.is_empty() {
                self.blocked = true;
                return self.links[link].blocked.push_front(blocked);
            }
        }
    }

    // ---- answers ----------------------------------------------------------------------------

    /// A name was subscribed: the next one of the operation in front.
    fn subscribed(&mut self, link: LinkId, kind: SubscriptionKind, name: &[u8], now: Instant) {
        let id = self.find(link, kind, name);
        let Some(PendingOp::Subscribe { id: op, channels, confirmed, .. }) = self.links[link].ops.front_mut()
        else {
            return self.protocol_violation(link);
        };
        let expected = channels.get(*confirmed).copied();
        *confirmed += 1;
        let op = *op;
        let complete = *confirmed >= channels.len();
        if complete {
            self.links[link].ops.pop_front();
        }
        self.node_serves(link, now);
        match id {
            Some(id)
                if self.registry[id].placement == (Placement::Requested { link, op })
                    && expected == Some(id) =>
            {
                self.confirmed(id, link, now);
            }
            // Its subscribers have left; the unsubscribe is on its way.
            _ => {}
        }
    }

    /// The node serves: channels that waited for its probe are requested at once.
    fn node_serves(&mut self, link: LinkId, now: Instant) {
        if self.links[link].end_probation() {
            self.recheck_all = true;
            self.reconcile(now);
        }
    }

    /// Whether a node must be verified as the channel's master.
    ///
    /// A demoted master accepts subscriptions like a replica, and then may miss messages. So where
    /// masters are wanted, a node counts only if another node named it, or a later refresh does.
    fn needs_verification(&self, channel: &Channel) -> bool {
        let follows_slot = channel.kind == SubscriptionKind::Sharded
            && self.config.nodes == NodePreference::Masters
            && channel.redirections == 0;
        let in_cluster = matches!(self.deployment, MuxDeployment::Cluster(_));
        in_cluster && (follows_slot || is_node_local(channel.kind, &channel.name))
    }

    fn confirmed(&mut self, id: ChannelId, link: LinkId, now: Instant) {
        self.place_at(id, Placement::Live { link });
        let unverified = self.needs_verification(&self.registry[id]);
        let on_fallback = unverified && self.is_replica(link, &self.registry[id]);
        let channel = &mut self.registry[id];
        (channel.retry_at, channel.redirections, channel.refusals) = (None, 0, 0);
        if !on_fallback {
            std::mem::take(&mut channel.waiters).into_iter().for_each(|waiter| waiter.done());
        }
        match &mut channel.gap {
            Some(gap) if unverified => {
                gap.unverified_since = Some(now);
                if self.unverified.is_empty() {
                    self.actions.push(MuxAction::Refresh);
                }
                self.unverified.push(id);
            }
            Some(_) => self.resumed.push(id),
            None => {}
        }
        let kind = channel.kind;
        let previous = channel.previous;
        self.counters.confirmed(kind);
        if let Some(previous) = previous {
            // Its messages are taken until it confirms the unsubscribe.
            self.unsubscribe(previous, kind, &[id], None);
        }
    }

    /// The server ended a subscription: on request, or because its slot moved.
    fn unsubscribed(&mut self, link: LinkId, kind: SubscriptionKind, name: &[u8], now: Instant) {
        let Some(id) = self.find(link, kind, name) else { return self.answered(link, kind) };
        let channel = &mut self.registry[id];
        if channel.previous == Some(link) {
            channel.previous = None;
        }
        if channel.placement == (Placement::Live { link }) {
            self.begin_gap(&[id], &GapReason::Migrated, now);
            return self.actions.push(MuxAction::Refresh);
        }
        self.answered(link, kind);
    }

    /// One more name of the operation in front has ended.
    fn answered(&mut self, link: LinkId, ended: SubscriptionKind) {
        if let Some(PendingOp::Unsubscribe { kind, left, .. }) = self.links[link].ops.front_mut()
            && *kind == ended
        {
            *left = left.saturating_sub(1);
        }
    }

    /// A PING was answered: everything before it was dealt with.
    fn barrier(&mut self, link: LinkId, barrier: u64) {
        match self.links[link].ops.front() {
            Some(PendingOp::Unsubscribe { id, .. }) if *id == barrier => self.unsubscribe_ended(link),
            Some(PendingOp::Ping { .. }) if barrier == wire::IDLE => drop(self.links[link].ops.pop_front()),
            _ => self.protocol_violation(link),
        }
    }

    fn unsubscribe_ended(&mut self, link: LinkId) {
        let Some(PendingOp::Unsubscribe { id: op, channels, waiter, .. }) = self.links[link].ops.pop_front()
        else {
            return;
        };
        for id in channels {
            let Some(channel) = self.registry.get_mut(id) else { continue };
            if channel.previous == Some(link) {
                channel.previous = None;
            }
            if channel.placement == (Placement::Leaving { link, op }) {
                self.forget(id);
            }
        }
        if let Some(waiter) = waiter {
            waiter.done();
        }
    }

    /// The first operation failed as a whole: a subscribe, an unsubscribe, or a PING. A server that
    /// loads or is busy refuses a PING, also to a user without permission; the refusal counts as
    /// its answer.
    fn refused(&mut self, link: LinkId, error: &ServerError, now: Instant) {
        match self.links[link].ops.front_mut() {
            Some(PendingOp::Subscribe { confirmed: 0, .. }) => {}
            // A node that has lost the slot refuses the unsubscribe. Most have ended the
            // subscription by then. But a replica that was given another master keeps it as long as
            // the connection lasts.
            Some(PendingOp::Unsubscribe { left, .. }) if *left > 0 || is_of_slots(&error.code) => {
                *left = 0;
                return self.links[link].has_stale_subscriptions = true;
            }
            Some(PendingOp::Unsubscribe { .. }) => return self.unsubscribe_ended(link),
            Some(PendingOp::Ping { .. }) => return drop(self.links[link].ops.pop_front()),
            Some(PendingOp::Subscribe { .. }) | None => return self.protocol_violation(link),
        }
        let Some(PendingOp::Subscribe { id: op, kind, channels, .. }) = self.links[link].ops.pop_front()
        else {
            return;
        };
        self.counters.refused(kind, channels.len());
        let several = channels.len() > 1;
        let mut asked: Vec<ChannelId> = channels
            .into_iter()
            .filter(|&id| {
                self.registry.get(id).is_some_and(|c| c.placement == (Placement::Requested { link, op }))
            })
            .collect();
        for &id in &asked {
            self.place_at(id, Placement::None);
        }
        match &*error.code {
            "MOVED" => self.redirected(link, &asked, error, now),
            "CLUSTERDOWN" | "TRYAGAIN" | "LOADING" | "MASTERDOWN" | "READONLY" | "ASK" | "BUSY" => {
                self.links[link].refused_service(error, now);
                self.actions.push(MuxAction::Refresh);
                asked.iter().for_each(|&id| self.queue_for_placement(id));
            }
            // One name is enough for the server to refuse all of them: halve the list to find it.
            _ if several => {
                for half in asked.chunks(asked.len().div_ceil(2).max(1)) {
                    self.subscribe_now(link, kind, half);
                }
                self.node_serves(link, now);
            }
            _ => {
                asked.iter().for_each(|&id| self.registry[id].pause_after_refusal(now));
                self.rejected(&asked, &CallError::Server(error.clone()), now);
                asked.retain(|&id| self.registry[id].gap.is_some());
                asked.iter().for_each(|&id| self.queue_for_placement(id));
                self.node_serves(link, now);
            }
        }
    }

    /// The node redirected the channels to the slot's owner.
    fn redirected(&mut self, link: LinkId, ids: &[ChannelId], error: &ServerError, now: Instant) {
        if let RetryDecision::Moved { slot, to } = RetryDecision::of_error(&error.code, &error.message) {
            let owner = self.reachable(Address::new(to.host, to.port), link);
            self.hints.insert(slot, owner.clone());
            self.actions.push(MuxAction::Moved(slot, owner));
        }
        self.actions.push(MuxAction::Refresh);
        for &id in ids {
            let channel = &mut self.registry[id];
            channel.redirections = channel.redirections.saturating_add(1);
            if channel.redirections > REDIRECTIONS {
                channel.retry_at = Some(now + REDIRECTION_PAUSE);
            }
            self.queue_for_placement(id);
        }
        self.node_serves(link, now);
    }

    /// The server refuses these channels: new subscribers get the error; those in a gap keep
    /// waiting.
    pub(super) fn rejected(&mut self, ids: &[ChannelId], error: &CallError, now: Instant) {
        let mut waiting = Vec::new();
        let reason = GapReason::Refused(ErrorChain(error).to_string());
        for &id in ids {
            let channel = &mut self.registry[id];
            for waiter in channel.waiters.drain(..) {
                waiter.fail(error.clone());
            }
            if let Some(gap) = &mut channel.gap
                && gap.reason != reason
            {
                gap.reason = reason.clone();
                waiting.push(id);
            }
        }
        let since = now.into_std();
        self.tell(&waiting, |channels| Signal::Gap { reason: reason.clone(), since, channels });
    }

    /// The server speaks only RESP2, so no channel can be served there.
    fn resp2_only(&mut self, link: LinkId, now: Instant) {
        self.links[link].state = LinkState::Resp2Only;
        self.links[link].cause = None;
        self.recheck_all = true;
        self.reconcile(now);
    }

    /// The address in a redirection, as this client can reach it.
    fn reachable(&self, mut owner: Address, link: LinkId) -> Address {
        if owner.host.is_empty() {
            owner.host.clone_from(&self.links[link].address.host);
        }
        match &self.deployment {
            MuxDeployment::Cluster(Some(map)) => map.apply(&owner),
            MuxDeployment::Cluster(None) | MuxDeployment::Single => owner,
        }
    }

    /// An answer fits no operation: the connection is reset, which is a gap like any other.
    fn protocol_violation(&mut self, link: LinkId) {
        self.actions.push(MuxAction::Reset(link));
    }
}
