//! What the core makes of a node's frames: messages to mailboxes, confirmations and refusals to the operations that
//! they answer, and subscriptions that the server ends by itself.

use std::{collections::VecDeque, sync::Arc};

use tokio::time::Instant;

use super::{Core, Order};
use crate::{
    config::Address,
    connection::feed::FeedItem,
    error::CallError,
    mux::{
        event::{GapReason, Kind, Message, Signal},
        link::Op,
        mailbox::Mailbox,
        registry::{ChannelId, Home, LinkId},
        wire,
    },
    resp::{ServerError, pubsub::Said},
};

/// A refused channel that has subscribers is asked for again after this long.
const REFUSAL_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

impl Core {
    /// Deals with what a node sent. Stops early, leaving the rest in `items`, when a subscriber with policy `Block`
    /// has no room; that subscriber's mailbox is returned.
    pub(crate) fn hear(
        &mut self,
        link: LinkId,
        items: &mut VecDeque<FeedItem>,
        now: Instant,
    ) -> Option<Arc<Mailbox>> {
        if !self.links.contains(link) {
            items.clear();
            return None;
        }
        if let Some(full) = self.unstick(link) {
            return Some(full);
        }
        while let Some(item) = items.pop_front() {
            match item {
                FeedItem::Said(said) => self.said(link, said, now),
                FeedItem::Opened { greeting, .. } if greeting.protocol < 3 => self.too_old(),
                FeedItem::Opened { generation, .. } => self.opened(link, generation, now),
                FeedItem::Lost | FeedItem::Closed => {
                    self.deliver_run(link);
                    self.lost(link, now);
                }
            }
            if !self.links[link].stuck.is_empty() {
                break;
            }
        }
        self.deliver_run(link);
        self.tell_resumed(now);
        self.reconcile(now);
        self.links[link].stuck.front().map(|(mailbox, _)| mailbox.clone())
    }

    fn said(&mut self, link: LinkId, said: Said, now: Instant) {
        match said {
            Said::Message { kind, name, channel, payload } => {
                if !self.resumed.is_empty() {
                    self.deliver_run(link);
                    self.tell_resumed(now);
                }
                let Some(id) = self.registry.find(kind, &name) else { return };
                if !self.registry[id].accepts(link) {
                    return;
                }
                let message = match channel {
                    Some(channel) => Message { channel, pattern: Some(name), payload },
                    None => Message { channel: name, pattern: None, payload },
                };
                self.tally.received(kind);
                self.route(link, id, message);
            }
            other => {
                self.deliver_run(link);
                self.answer(link, other, now);
            }
        }
    }

    fn answer(&mut self, link: LinkId, said: Said, now: Instant) {
        match said {
            Said::Subscribed { kind, name } => self.subscribed(link, kind, &name, now),
            Said::Unsubscribed { kind, name } => self.unsubscribed(link, kind, &name, now),
            Said::Barrier(id) => self.barrier(link, id),
            Said::Error(error) => self.refused(link, &error, now),
            Said::Message { .. } | Said::Other => {}
        }
    }

    // ---- messages ------------------------------------------------------------------------------------------------

    /// Hands a message to the channel's mailboxes; runs for the same single mailbox are handed over together.
    fn route(&mut self, link: LinkId, id: ChannelId, message: Message) {
        let listeners = &self.registry[id].listeners;
        if let [only] = &listeners[..] {
            if self.run_for.as_ref().is_none_or(|run| !Arc::ptr_eq(run, only)) {
                let only = only.clone();
                self.deliver_run(link);
                self.run_for = Some(only);
            }
            self.run.push_back(message);
            return;
        }
        let all = listeners.clone();
        self.deliver_run(link);
        for mailbox in all {
            self.deliver(link, &mailbox, &mut VecDeque::from([message.clone()]));
        }
    }

    fn deliver_run(&mut self, link: LinkId) {
        if let Some(mailbox) = self.run_for.take() {
            let mut run = std::mem::take(&mut self.run);
            self.deliver(link, &mailbox, &mut run);
            run.clear();
            self.run = run;
        }
    }

    fn deliver(&mut self, link: LinkId, mailbox: &Arc<Mailbox>, messages: &mut VecDeque<Message>) {
        let (dropped, waker) = mailbox.deliver(messages);
        self.tally.dropped(dropped);
        self.wakers.extend(waker);
        if !messages.is_empty() {
            self.links[link].stuck.push_back((mailbox.clone(), std::mem::take(messages)));
        }
    }

    /// Tries again what full mailboxes had not taken.
    fn unstick(&mut self, link: LinkId) -> Option<Arc<Mailbox>> {
        while let Some((mailbox, mut messages)) = self.links[link].stuck.pop_front() {
            let (_, waker) = mailbox.deliver(&mut messages);
            self.wakers.extend(waker);
            if !messages.is_empty() {
                self.links[link].stuck.push_front((mailbox.clone(), messages));
                return Some(mailbox);
            }
        }
        None
    }

    // ---- answers -------------------------------------------------------------------------------------------------

    /// A name was subscribed: the next one of the operation in front.
    fn subscribed(&mut self, link: LinkId, kind: Kind, name: &[u8], now: Instant) {
        let id = self.registry.find(kind, name);
        let Some(Op::Subscribe { id: op, channels, confirmed, .. }) = self.links[link].ops.front_mut() else {
            return self.confused(link);
        };
        let expected = channels.get(*confirmed).copied();
        *confirmed += 1;
        let (op, complete) = (*op, *confirmed >= channels.len());
        if complete {
            self.links[link].ops.pop_front();
        }
        if self.links[link].well() {
            // What was held back while the node was in trouble is looked at again.
            self.reconcile(now);
        }
        match id {
            Some(id) if self.registry[id].home == (Home::Asked { link, op }) && expected == Some(id) => {
                self.confirmed(id, link);
            }
            // Its subscribers have left meanwhile; the operation that ends it is on its way.
            _ => {}
        }
    }

    fn confirmed(&mut self, id: ChannelId, link: LinkId) {
        self.settle_at(id, Home::Live { link });
        let channel = &mut self.registry[id];
        channel.retry_at = None;
        for waiter in channel.waiters.drain(..) {
            waiter.done();
        }
        if channel.gap.is_some() {
            self.resumed.push(id);
        }
        let (kind, former) = (channel.kind, channel.former.take().filter(|&f| f != link));
        self.tally.confirmed(kind);
        if let Some(former) = former {
            self.unsubscribe(former, kind, &[id], None);
        }
    }

    /// The server ended a subscription: ours to end, or taken away because its slot moved.
    fn unsubscribed(&mut self, link: LinkId, kind: Kind, name: &[u8], now: Instant) {
        let Some(id) = self.registry.find(kind, name) else { return };
        let channel = &mut self.registry[id];
        if channel.former == Some(link) {
            channel.former = None;
        }
        if channel.home == (Home::Live { link }) {
            self.begin_gap(&[id], &GapReason::Migrated, now);
            self.orders.push(Order::Refresh);
        }
    }

    /// Everything before this barrier was dealt with.
    fn barrier(&mut self, link: LinkId, barrier: u64) {
        match self.links[link].ops.front() {
            Some(Op::Unsubscribe { id, .. }) if *id == barrier => {}
            _ => return self.confused(link),
        }
        let Some(Op::Unsubscribe { id: op, channels, waiter }) = self.links[link].ops.pop_front() else {
            return;
        };
        for id in channels {
            if self.registry.get(id).is_some_and(|c| c.home == (Home::Leaving { link, op })) {
                self.registry.remove(id);
            }
        }
        if let Some(waiter) = waiter {
            waiter.done();
        }
    }

    /// The operation in front failed as a whole.
    fn refused(&mut self, link: LinkId, error: &ServerError, now: Instant) {
        if !matches!(self.links[link].ops.front(), Some(Op::Subscribe { confirmed: 0, .. })) {
            return;
        }
        let Some(Op::Subscribe { id: op, kind, channels, .. }) = self.links[link].ops.pop_front() else {
            return;
        };
        self.tally.refused(kind, channels.len());
        let asked: Vec<ChannelId> = channels
            .into_iter()
            .filter(|&id| self.registry.get(id).is_some_and(|c| c.home == (Home::Asked { link, op })))
            .collect();
        for &id in &asked {
            self.settle_at(id, Home::Homeless);
        }
        match &*error.code {
            "MOVED" => {
                if let Some((slot, owner)) = wire::moved_to(error) {
                    let owner = self.reachable(owner, link);
                    self.hints.insert(slot, owner);
                }
                self.orders.push(Order::Refresh);
            }
            "CLUSTERDOWN" | "TRYAGAIN" | "LOADING" | "MASTERDOWN" | "READONLY" | "ASK" | "BUSY" => {
                self.links[link].in_trouble(now);
                self.orders.push(Order::Refresh);
            }
            _ => return self.rejected(&asked, error, now),
        }
        for id in asked {
            self.look_for_home(id);
        }
    }

    /// The server will not have it: whoever asked is told; those who had it before keep hoping.
    fn rejected(&mut self, ids: &[ChannelId], error: &ServerError, now: Instant) {
        let mut hopeful = Vec::new();
        for &id in ids {
            let channel = &mut self.registry[id];
            for waiter in channel.waiters.drain(..) {
                waiter.fail(CallError::Server(error.clone()));
            }
            channel.retry_at = Some(now + REFUSAL_PAUSE);
            if let Some(gap) = &mut channel.gap {
                let reason = GapReason::Refused(error.to_string());
                if gap.reason != reason {
                    gap.reason = reason;
                    hopeful.push(id);
                }
                self.look_for_home(id);
            }
        }
        let (since, words) = (now.into_std(), error.to_string());
        self.tell(&hopeful, |channels| Signal::Gap {
            reason: GapReason::Refused(words.clone()),
            since,
            channels,
        });
    }

    /// A server without RESP3 mixes its pushes with its replies: nobody can be served there.
    fn too_old(&mut self) {
        let error = CallError::Invalid(
            "the server does not speak RESP3, which subscriptions need: use Redis 6 or newer".into(),
        );
        for id in std::mem::take(&mut self.homeless) {
            let Some(channel) = self.registry.get_mut(id) else { continue };
            channel.queued = false;
            channel.waiters.drain(..).for_each(|waiter| waiter.fail(error.clone()));
        }
    }

    /// The address in a redirection, as this client can reach it.
    fn reachable(&self, mut owner: Address, link: LinkId) -> Address {
        if owner.host.is_empty() {
            owner.host.clone_from(&self.links[link].address.host);
        }
        self.address_map.as_ref().map_or_else(|| owner.clone(), |map| map.apply(&owner))
    }

    /// An answer that fits no question: the connection starts afresh, which is a gap like any other.
    fn confused(&mut self, link: LinkId) {
        self.orders.push(Order::Reset(link));
    }
}
