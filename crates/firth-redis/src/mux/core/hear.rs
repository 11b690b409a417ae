//! What the core makes of a node's frames: messages to mailboxes, confirmations and refusals to the operations that
//! they answer, and subscriptions that the server ends by itself.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Core, Order, Place};
use crate::{
    config::Address,
    connection::feed::FeedItem,
    error::CallError,
    mux::{
        config::NodePreference,
        event::{GapReason, Kind, Message, Signal},
        link::{Op, Stuck},
        mailbox::Mailbox,
        registry::{Channel, ChannelId, Home, LinkId},
        wire,
    },
    resp::{ServerError, pubsub::Said},
};

/// A refused channel that has subscribers is asked for again after this long, and longer each time.
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_REFUSAL_PAUSE: Duration = Duration::from_secs(30);
/// So many redirections in a row are followed at once; then nodes contradict each other, and need a moment.
const REDIRECTIONS: u8 = 3;
const REDIRECTION_PAUSE: Duration = Duration::from_millis(25);

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
        self.jammed = false;
        self.unstick(link);
        while !self.jammed {
            match items.pop_front() {
                Some(FeedItem::Said(Said::Message { kind, name, channel, payload }))
                    if self.resumed.is_empty() =>
                {
                    let message = match channel {
                        Some(channel) => Message { channel, pattern: Some(name), payload },
                        None => Message { channel: name, pattern: None, payload },
                    };
                    self.message(link, kind, message);
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
            FeedItem::Opened { greeting, .. } if greeting.protocol < 3 => self.too_old(),
            FeedItem::Opened { generation, .. } => self.opened(link, generation, now),
            FeedItem::Lost | FeedItem::Closed => self.lost(link, now),
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

    fn message(&mut self, link: LinkId, kind: Kind, message: Message) {
        let name = message.pattern.as_ref().unwrap_or(&message.channel);
        let Some(id) = self.registry.find(kind, name) else { return };
        if self.registry[id].accepts(link) {
            self.tally.received(kind);
            self.route(link, id, message);
        }
    }

    /// Hands a message to the channel's mailboxes; runs for the same single mailbox are handed over together.
    fn route(&mut self, link: LinkId, id: ChannelId, message: Message) {
        let Channel { listeners, kind, .. } = &self.registry[id];
        let kind = *kind;
        if let [only] = &listeners[..] {
            if self.run_for.as_ref().is_none_or(|(run, _)| !Arc::ptr_eq(run, only)) {
                let only = only.clone();
                self.flush(link);
                self.run_for = Some((only, kind));
            }
            self.run.push_back(message);
            return;
        }
        let all = listeners.clone();
        self.flush(link);
        for mailbox in all {
            self.deliver(link, &mailbox, kind, &mut VecDeque::from([message.clone()]));
        }
    }

    /// Delivers the messages that were gathered.
    fn flush(&mut self, link: LinkId) {
        if let Some((mailbox, kind)) = self.run_for.take() {
            let mut run = std::mem::take(&mut self.run);
            self.deliver(link, &mailbox, kind, &mut run);
            run.clear();
            self.run = run;
        }
    }

    fn deliver(
        &mut self,
        link: LinkId,
        mailbox: &Arc<Mailbox>,
        kind: Kind,
        messages: &mut VecDeque<Message>,
    ) {
        let (dropped, waker) = mailbox.deliver(messages);
        self.tally.dropped(dropped);
        self.wakers.extend(waker);
        if !messages.is_empty() {
            let messages = std::mem::take(messages);
            self.links[link].stuck.push_back(Stuck { mailbox: mailbox.clone(), kind, messages });
            self.jammed = true;
        }
    }

    /// Tries again what full mailboxes had not taken. What another node delivers by now is not for us to add to: it
    /// would come out of order, and the gap in which it is missing was told.
    fn unstick(&mut self, link: LinkId) {
        while let Some(mut stuck) = self.links[link].stuck.pop_front() {
            stuck.messages.retain(|message| {
                let name = message.pattern.as_ref().unwrap_or(&message.channel);
                let id = self.registry.find(stuck.kind, name);
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
        let masters = self.config.nodes == NodePreference::Masters && matches!(self.place, Place::Cluster(_));
        masters && channel.kind == Kind::Sharded && channel.redirections == 0
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
            let Some(channel) = self.registry.get_mut(id) else { continue };
            if channel.former == Some(link) {
                channel.former = None;
            }
            if channel.home == (Home::Leaving { link, op }) {
                self.registry.remove(id);
            }
        }
        if let Some(waiter) = waiter {
            waiter.done();
        }
    }

    /// The operation in front failed as a whole.
    fn refused(&mut self, link: LinkId, error: &ServerError, now: Instant) {
        match self.links[link].ops.front() {
            Some(Op::Subscribe { confirmed: 0, .. }) => {}
            // The end of a subscription is refused by a node that has lost the slot. Most have ended it by then, but a
            // replica that was given another master keeps it as long as the connection lasts.
            Some(Op::Unsubscribe { .. }) => return self.links[link].keeps_ghosts = true,
            _ => return,
        }
        let Some(Op::Subscribe { id: op, kind, channels, .. }) = self.links[link].ops.pop_front() else {
            return;
        };
        self.tally.refused(kind, channels.len());
        let several = channels.len() > 1;
        let asked: Vec<ChannelId> = channels
            .into_iter()
            .filter(|&id| self.registry.get(id).is_some_and(|c| c.home == (Home::Asked { link, op })))
            .collect();
        for &id in &asked {
            self.settle_at(id, Home::Homeless);
        }
        match &*error.code {
            "MOVED" => self.redirected(link, &asked, error, now),
            "CLUSTERDOWN" | "TRYAGAIN" | "LOADING" | "MASTERDOWN" | "READONLY" | "ASK" | "BUSY" => {
                self.links[link].in_trouble(now);
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
                self.rejected(&asked, error, now);
                self.serves_well(link, now);
            }
        }
    }

    /// The node knows who owns the slot.
    fn redirected(&mut self, link: LinkId, ids: &[ChannelId], error: &ServerError, now: Instant) {
        if let Some((slot, owner)) = wire::moved_to(error) {
            let owner = self.reachable(owner, link);
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

    /// The server will not have it: whoever asked is told; those who had it before keep hoping.
    fn rejected(&mut self, ids: &[ChannelId], error: &ServerError, now: Instant) {
        let mut hopeful = Vec::new();
        for &id in ids {
            let channel = &mut self.registry[id];
            for waiter in channel.waiters.drain(..) {
                waiter.fail(CallError::Server(error.clone()));
            }
            let pause = REFUSAL_PAUSE.saturating_mul(1 << channel.refusals.min(8)).min(LONGEST_REFUSAL_PAUSE);
            channel.retry_at = Some(now + pause);
            channel.refusals = channel.refusals.saturating_add(1);
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
