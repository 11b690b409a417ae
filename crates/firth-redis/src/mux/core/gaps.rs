//! Gaps of subscriptions, and the signals about them. Signals are gathered per subscriber: one
//! signal names all of its channels that the event touched.

use super::MuxCore;
use super::keyspace::is_node_local;
use crate::config::Address;
use crate::mux::event::{GapReason, Names, Signal, SubscriptionKind};
use crate::mux::mailbox::EventMailbox;
use crate::mux::registry::{ChannelGap, ChannelId, LinkId, Placement};
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// If no refresh succeeds for this long, a node that serves counts as the master.
const LONGEST_UNVERIFIED: Duration = Duration::from_secs(2);

impl MuxCore {
    /// These channels are no longer served: tells their subscribers and queues the channels.
    pub(super) fn begin_gap(&mut self, ids: &[ChannelId], reason: &GapReason, now: Instant) {
        let mut news = Vec::new();
        let mut begun = 0;
        for &id in ids {
            let Some(link) = self.registry[id].placement.link() else { continue };
            let from = self.links[link].address.clone();
            let channel = &mut self.registry[id];
            let listeners = u32::try_from(channel.listeners.len()).unwrap_or(u32::MAX);
            match &mut channel.gap {
                Some(gap) => gap.unverified_since = None,
                none => {
                    *none = Some(Box::new(ChannelGap::new(reason.clone(), from, now)));
                    self.gapped.push(id);
                    (begun, channel.informed) = (begun + 1, 0);
                }
            }
            // An open gap goes on; subscribers that came since were not told of it.
            news.push((id, channel.informed..listeners));
            channel.informed = listeners;
            self.place_at(id, Placement::None);
            self.queue_for_placement(id);
        }
        self.counters.gaps_begun(reason, begun);
        let since = now.into_std();
        self.tell_some(&news, |channels| Signal::Gap { reason: reason.clone(), since, channels });
    }

    pub(super) fn tell_node_lost(&mut self, link: LinkId, ids: &[ChannelId]) {
        let node = self.links[link].address.clone();
        for &id in ids {
            let channel = &mut self.registry[id];
            if channel.gap.is_none() {
                channel.informed = u32::try_from(channel.listeners.len()).unwrap_or(u32::MAX);
            }
        }
        self.tell(ids, |channels| Signal::NodeLost { node: node.clone(), channels });
    }

    /// Tells of channels that were confirmed again. Called before the next message, so that the
    /// order is right.
    pub(super) fn tell_resumed(&mut self, now: Instant) {
        if self.resumed.is_empty() {
            return;
        }
        let mut moves: HashMap<(u16, Address, Address), Vec<ChannelId>> = HashMap::new();
        let mut ended: HashMap<Duration, Vec<ChannelId>> = HashMap::new();
        for id in std::mem::take(&mut self.resumed) {
            let Some(channel) = self.registry.get_mut(id) else { continue };
            let Placement::Live { link } = channel.placement else { continue };
            let Some(gap) = channel.gap.take() else { continue };
            let to = self.links[link].address.clone();
            if channel.kind == SubscriptionKind::Sharded && gap.from != to {
                moves.entry((channel.slot, gap.from, to)).or_default().push(id);
                self.counters.moved();
            }
            let after = now - gap.since;
            self.counters.gap_ended(after);
            if self.continue_gap(id, gap.since) {
                continue;
            }
            ended.entry(after).or_default().push(id);
        }
        for ((slot, from, to), ids) in moves {
            self.tell(&ids, |channels| Signal::Moved { slot, from: from.clone(), to: to.clone(), channels });
        }
        for (after, ids) in ended {
            self.tell(&ids, |channels| Signal::Resumed { after, channels });
        }
    }

    /// A refresh that began at this time has ended, and the core has its topology. A node that
    /// confirmed a channel before and still is its master is verified.
    pub(crate) fn topology_refreshed(&mut self, begun: Instant, now: Instant) {
        self.verify(now, |since| since <= begun);
    }

    /// Handles a tick: retries placement, and tells of gaps that last.
    pub(crate) fn tick(&mut self, now: Instant) {
        let stalled_after = self.config.stalled_after;
        let timed_out_after = self.config.timed_out_after;
        let mut stalled = Vec::new();
        let mut timed_out = Vec::new();
        let registry = &mut self.registry;
        self.gapped.retain(|&id| {
            let Some(gap) = registry.get_mut(id).and_then(|c| c.gap.as_mut()) else { return false };
            let age = now - gap.since;
            if age >= stalled_after && !std::mem::replace(&mut gap.stalled, true) {
                stalled.push(id);
            }
            if age >= timed_out_after && !std::mem::replace(&mut gap.timed_out, true) {
                timed_out.push(id);
            }
            !gap.timed_out
        });
        self.counters.stalled(stalled.len());
        self.counters.timed_out(timed_out.len());
        self.tell(&stalled, |channels| Signal::Stalled { after: stalled_after, channels });
        self.tell(&timed_out, |channels| Signal::TimedOut { after: timed_out_after, channels });
        self.recheck_all |= self.is_check_due(now);
        self.reconcile(now);
        self.verify(now, |since| now - since > LONGEST_UNVERIFIED);
        if !self.unverified.is_empty() || (self.searching && !self.unplaced.is_empty()) {
            self.actions.push(super::MuxAction::Refresh);
        }
    }

    /// Gives each subscriber of these channels one signal that names its own. Subscribers that came
    /// after the gap began get none.
    pub(super) fn tell(&mut self, ids: &[ChannelId], signal: impl Fn(Names) -> Signal) {
        let known = ids.iter().filter_map(|&id| Some((id, 0..self.registry.get(id)?.informed)));
        let known: Vec<_> = known.collect();
        self.tell_some(&known, signal);
    }

    /// Tells some of the subscribers of each channel, by their place in its list.
    pub(super) fn tell_some(&mut self, whom: &[(ChannelId, Range<u32>)], signal: impl Fn(Names) -> Signal) {
        let mut per_mailbox: HashMap<*const EventMailbox, (Arc<EventMailbox>, Vec<Bytes>)> = HashMap::new();
        for (id, some) in whom {
            let channel = &self.registry[*id];
            for mailbox in &channel.listeners[some.start as usize..some.end as usize] {
                let entry =
                    per_mailbox.entry(Arc::as_ptr(mailbox)).or_insert_with(|| (mailbox.clone(), Vec::new()));
                // Parts of one name are one name.
                if !is_node_local(channel.kind, &channel.name) || !entry.1.contains(&channel.name) {
                    entry.1.push(channel.name.clone());
                }
            }
        }
        for (mailbox, names) in per_mailbox.into_values() {
            let (dropped, waker) = mailbox.signal(signal(names.into()));
            self.counters.dropped(dropped);
            self.wakers.extend(waker);
        }
    }
}
