//! What the core makes of a node's frames: messages to mailboxes, confirmations and refusals to the operations that
//! they answer, and subscriptions that the server ends by itself.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Core, Order, Place, local::is_node_local};
use crate::{
    cluster::Step,
    config::Address,
    connection::feed::FeedItem,
    error::{CallError, Chain, LostCause},
    mux::{
        config::NodePreference,
        event::{GapReason, Kind, Message, Signal},
        link::{LinkState, Op, Stuck},
        mailbox::Mailbox,
        registry::{Channel, ChannelId, Home, LinkId},
        wire,
    },
    resp::{ServerError, pubsub::Said},
};

/// So many redirections in a row are followed at once; then nodes contradict each other, and need a moment.
const REDIRECTIONS: u8 = 3;
const REDIRECTION_PAUSE: Duration = Duration::from_millis(25);

/// Whether a command got this error because of its slot, which a PING has not.
fn is_of_slots(code: &str) -> bool {
    matches!(code, "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "CROSSSLOT")
}

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
        let received = now.into_std();
        self.jammed = false;
        self.unstick(link);
        while !self.jammed {
            match items.pop_front() {
                Some(FeedItem::Said(Said::Message { kind, name, channel, payload }))
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
        self.links[link].stuck.front().map(|stuck| stuck.mailbox.clone())
    }

    /// Deals with an item that is more than one message in a row. If what came before it has no room, it goes back:
    /// nothing may overtake that.
    fn take(&mut self, link: LinkId, item: FeedItem, items: &mut VecDeque<FeedItem>, now: Instant) {
        self.flush(link);
        if self.jammed {
            return items.push_front(item);
        }
        if !matches!(item, FeedItem::Said(Said::Subscribed { .. })) {
            self.tell_resumed(now);
        }
        match item {
            // Nothing is to be told any more, so it now takes the short way.
            FeedItem::Said(Said::Message { .. }) => items.push_front(item),
            FeedItem::Said(said) => self.said(link, said, now),
            FeedItem::Opened { greeting, .. } if greeting.protocol < 3 => self.too_old(link, now),
            FeedItem::Opened { generation, .. } => self.opened(link, generation, now),
            FeedItem::Pinged { after } => self.links[link].pinged(after),
            FeedItem::Lost(cause) => self.lost(link, cause, now),
            FeedItem::Closed => self.lost(link, LostCause::Closed, now),
        }
    }

    fn said(&mut self, link: LinkId, said: Said, now: Instant) {
        match said {
            Said::Subscribed { kind, name } => self.subscribed(link, kind, &name, now),
            Said::Unsubscribed { kind, name } => self.unsubscribed(link, kind, &name, now),
            Said::Barrier(id) => self.barrier(link, id),
            Said::Error(error) => self.refused(link, &error, now),
            Said::Message { .. } | Said::Other => {}
        }
    }

    // ---- messages ------------------------------------------------------------------------------------------------

    fn message(&mut self, link: LinkId, message: Message) {
        let kind = message.kind;
        let name = message.subscribed();
        let Some(id) = self.find(link, kind, name) else { return };
        if self.registry[id].accepts(link) {
            self.tally.received(kind);
            self.route(link, id, message);
        }
    }

    /// Hands a message to the channel's mailboxes; runs for the same single mailbox are handed over together.
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

    fn deliver(&mut self, link: LinkId, mailbox: &Arc<Mailbox>, messages: &mut VecDeque<Message>) {
        let (dropped, waker) = mailbox.deliver(messages);
        self.tally.dropped(dropped);
        self.wakers.extend(waker);
        if !messages.is_empty() {
            let messages = std::mem::take(messages);
            self.links[link].stuck.push_back(Stuck { mailbox: mailbox.clone(), messages });
            self.jammed = true;
        }
    }

    /// Tries again what full mailboxes had not taken. What another node delivers by now is not for us to add to: it
    /// would come out of order, and the gap in which it is missing was told.
    fn unstick(&mut self, link: LinkId) {
        while let Some(mut stuck) = self.links[link].stuck.pop_front() {
            stuck.messages.retain(|message| {
                let id = self.find(link, message.kind, message.subscribed());
                id.is_some_and(|id| self.registry[id].accepts(link))
            });
            let (_, waker) = stuck.mailbox.deliver(&mut stuck.messages);
            self.wakers.extend(waker);
            if !stuck.messages.is_empty() {
                self.jammed = true;
                return self.links[link].stuck.push_front(stuck);
            }
        }
    }

    // ---- answers -------------------------------------------------------------------------------------------------

    /// A name was subscribed: the next one of the operation in front.
    fn subscribed(&mut self, link: LinkId, kind: Kind, name: &[u8], now: Instant) {
        let id = self.find(link, kind, name);
        let Some(Op::Subscribe { id: op, channels, confirmed, .. }) = self.links[link].ops.front_mut() else {
            return self.confused(link);
        };
        let expected = channels.get(*confirmed).copied();
        *confirmed += 1;
        let (op, complete) = (*op, *confirmed >= channels.len());
        if complete {
            self.links[link].ops.pop_front();
        }
        self.serves_well(link, now);
        match id {
            Some(id) if self.registry[id].home == (Home::Asked { link, op }) && expected == Some(id) => {
                self.confirmed(id, link, now);
            }
            // Its subscribers have left meanwhile; the operation that ends it is on its way.
            _ => {}
        }
    }

    /// The node shows that it serves: what was held back until it does is asked for at once.
    fn serves_well(&mut self, link: LinkId, now: Instant) {
        if self.links[link].well() {
            self.stirred = true;
            self.reconcile(now);
        }
    }

    /// A demoted master takes subscriptions as its replica does, and then may miss messages. So where masters are
    /// wanted, a node is only believed if another one named it, or the topology names it after this moment.
    fn is_doubtful(&self, channel: &Channel) -> bool {
        let follows_slot = channel.kind == Kind::Sharded
            && self.config.nodes == NodePreference::Masters
            && channel.redirections == 0;
        let in_cluster = matches!(self.place, Place::Cluster(_));
        in_cluster && (follows_slot || is_node_local(channel.kind, &channel.name))
    }

    fn confirmed(&mut self, id: ChannelId, link: LinkId, now: Instant) {
        self.settle_at(id, Home::Live { link });
        let doubtful = self.is_doubtful(&self.registry[id]);
        let stands_in = doubtful && self.is_replica(link, &self.registry[id]);
        let channel = &mut self.registry[id];
        (channel.retry_at, channel.redirections, channel.refusals) = (None, 0, 0);
        if !stands_in {
            std::mem::take(&mut channel.waiters).into_iter().for_each(|waiter| waiter.done());
        }
        match &mut channel.gap {
            Some(gap) if doubtful => {
                gap.doubt = Some(now);
                if self.doubtful.is_empty() {
                    self.orders.push(Order::Refresh);
                }
                self.doubtful.push(id);
            }
            Some(_) => self.resumed.push(id),
            None => {}
        }
        let (kind, former) = (channel.kind, channel.former);
        self.tally.confirmed(kind);
        if let Some(former) = former {
            // Until it says that it has ended, what it still sends is ours.
            self.unsubscribe(former, kind, &[id], None);
        }
    }

    /// The server ended a subscription: ours to end, or taken away because its slot moved.
    fn unsubscribed(&mut self, link: LinkId, kind: Kind, name: &[u8], now: Instant) {
        let Some(id) = self.find(link, kind, name) else { return self.answered(link, kind) };
        let channel = &mut self.registry[id];
        if channel.former == Some(link) {
            channel.former = None;
        }
        if channel.home == (Home::Live { link }) {
            self.begin_gap(&[id], &GapReason::Migrated, now);
            return self.orders.push(Order::Refresh);
        }
        self.answered(link, kind);
    }

    /// One more name of the operation in front has ended.
    fn answered(&mut self, link: LinkId, ended: Kind) {
        if let Some(Op::Unsubscribe { kind, left, .. }) = self.links[link].ops.front_mut()
            && *kind == ended
        {
            *left = left.saturating_sub(1);
        }
    }

    /// A PING was answered: everything before it was dealt with.
    fn barrier(&mut self, link: LinkId, barrier: u64) {
        match self.links[link].ops.front() {
            Some(Op::Unsubscribe { id, .. }) if *id == barrier => self.unsubscribe_ended(link),
            Some(Op::Ping { .. }) if barrier == wire::IDLE => drop(self.links[link].ops.pop_front()),
            _ => self.confused(link),
        }
    }

    fn unsubscribe_ended(&mut self, link: LinkId) {
        let Some(Op::Unsubscribe { id: op, channels, waiter, .. }) = self.links[link].ops.pop_front() else {
            return;
        };
        for id in channels {
            let Some(channel) = self.registry.get_mut(id) else { continue };
            if channel.former == Some(link) {
                channel.former = None;
            }
            if channel.home == (Home::Leaving { link, op }) {
                self.forget(id);
            }
        }
        if let Some(waiter) = waiter {
            waiter.done();
        }
    }

    /// What stands in front failed as a whole: a subscription, the end of one, or a PING. A PING is
    /// refused by a server that loads or is busy, and to a user without permission; the refusal
    /// ends its wait like any answer.
    fn refused(&mut self, link: LinkId, error: &ServerError, now: Instant) {
        match self.links[link].ops.front_mut() {
            Some(Op::Subscribe { confirmed: 0, .. }) => {}
            // The end of a subscription is refused by a node that has lost the slot. Most have ended it by then, but a
            // replica that was given another master keeps it as long as the connection lasts.
            Some(Op::Unsubscribe { left, .. }) if *left > 0 || is_of_slots(&error.code) => {
                *left = 0;
                return self.links[link].keeps_ghosts = true;
            }
            Some(Op::Unsubscribe { .. }) => return self.unsubscribe_ended(link),
            Some(Op::Ping { .. }) => return drop(self.links[link].ops.pop_front()),
            Some(Op::Subscribe { .. }) | None => return self.confused(link),
        }
        let Some(Op::Subscribe { id: op, kind, channels, .. }) = self.links[link].ops.pop_front() else {
            return;
        };
        self.tally.refused(kind, channels.len());
        let several = channels.len() > 1;
        let mut asked: Vec<ChannelId> = channels
            .into_iter()
            .filter(|&id| self.registry.get(id).is_some_and(|c| c.home == (Home::Asked { link, op })))
            .collect();
        for &id in &asked {
            self.settle_at(id, Home::Homeless);
        }
        match &*error.code {
            "MOVED" => self.redirected(link, &asked, error, now),
            "CLUSTERDOWN" | "TRYAGAIN" | "LOADING" | "MASTERDOWN" | "READONLY" | "ASK" | "BUSY" => {
                self.links[link].in_trouble(error, now);
                self.orders.push(Order::Refresh);
                asked.iter().for_each(|&id| self.look_for_home(id));
            }
            // One name is enough for the server to refuse all of them: which one was it?
            _ if several => {
                for half in asked.chunks(asked.len().div_ceil(2).max(1)) {
                    self.subscribe_now(link, kind, half);
                }
                self.serves_well(link, now);
            }
            _ => {
                asked.iter().for_each(|&id| self.registry[id].pause_after_refusal(now));
                self.rejected(&asked, &CallError::Server(error.clone()), now);
                asked.retain(|&id| self.registry[id].gap.is_some());
                asked.iter().for_each(|&id| self.look_for_home(id));
                self.serves_well(link, now);
            }
        }
    }

    /// The node knows who owns the slot.
    fn redirected(&mut self, link: LinkId, ids: &[ChannelId], error: &ServerError, now: Instant) {
        if let Step::Moved { slot, to } = Step::of_error(&error.code, &error.message) {
            let owner = self.reachable(Address::new(to.host, to.port), link);
            self.hints.insert(slot, owner.clone());
            self.orders.push(Order::Moved(slot, owner));
        }
        self.orders.push(Order::Refresh);
        for &id in ids {
            let channel = &mut self.registry[id];
            channel.redirections = channel.redirections.saturating_add(1);
            if channel.redirections > REDIRECTIONS {
                channel.retry_at = Some(now + REDIRECTION_PAUSE);
            }
            self.look_for_home(id);
        }
        self.serves_well(link, now);
    }

    /// The server will not have these channels: new subscribers are told; those who had them before
    /// keep hoping.
    pub(super) fn rejected(&mut self, ids: &[ChannelId], error: &CallError, now: Instant) {
        let mut hopeful = Vec::new();
        let reason = GapReason::Refused(Chain(error).to_string());
        for &id in ids {
            let channel = &mut self.registry[id];
            for waiter in channel.waiters.drain(..) {
                waiter.fail(error.clone());
            }
            if let Some(gap) = &mut channel.gap
                && gap.reason != reason
            {
                gap.reason = reason.clone();
                hopeful.push(id);
            }
        }
        let since = now.into_std();
        self.tell(&hopeful, |channels| Signal::Gap { reason: reason.clone(), since, channels });
    }

    /// A connection stands at a server that speaks only RESP2. No channel can be served there.
    fn too_old(&mut self, link: LinkId, now: Instant) {
        self.links[link].state = LinkState::TooOld;
        self.links[link].cause = None;
        self.stirred = true;
        self.reconcile(now);
    }

    /// The address in a redirection, as this client can reach it.
    fn reachable(&self, mut owner: Address, link: LinkId) -> Address {
        if owner.host.is_empty() {
            owner.host.clone_from(&self.links[link].address.host);
        }
        match &self.place {
            Place::Cluster(Some(map)) => map.apply(&owner),
            Place::Cluster(None) | Place::Single => owner,
        }
    }

    /// An answer that fits no question: the connection starts afresh, which is a gap like any other.
    fn confused(&mut self, link: LinkId) {
        self.orders.push(Order::Reset(link));
    }
}
