//! Holes in what subscribers receive, and the signals about them. Signals are gathered per subscriber: one signal
//! names all of its channels that the event touched.

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{Core, local::is_node_local};
use crate::{
    config::Address,
    mux::{
        event::{GapReason, Kind, Names, Signal},
        mailbox::Mailbox,
        registry::{ChannelId, Gap, Home, LinkId},
    },
};

/// If nobody can tell the topology for so long, a node that serves is believed.
const LONGEST_DOUBT: Duration = Duration::from_secs(2);

impl Core {
    /// These channels are served no longer: tells their subscribers and puts them on the list of the homeless.
    pub(super) fn begin_gap(&mut self, ids: &[ChannelId], reason: &GapReason, now: Instant) {
        let (mut news, mut begun) = (Vec::new(), 0);
        for &id in ids {
            let Some(link) = self.registry[id].home.link() else { continue };
            let from = self.links[link].address.clone();
            let channel = &mut self.registry[id];
            let listeners = u32::try_from(channel.listeners.len()).unwrap_or(u32::MAX);
            match &mut channel.gap {
                Some(gap) => gap.doubt = None,
                none => {
                    *none = Some(Box::new(Gap::new(reason.clone(), from, now)));
                    self.gapped.push(id);
                    (begun, channel.aware) = (begun + 1, 0);
                }
            }
            // A gap that was not over goes on; those who came meanwhile have not heard of it.
            news.push((id, channel.aware..listeners));
            channel.aware = listeners;
            self.settle_at(id, Home::Homeless);
            self.look_for_home(id);
        }
        self.tally.gaps_begun(reason, begun);
        let since = now.into_std();
        self.tell_some(&news, |channels| Signal::Gap { reason: reason.clone(), since, channels });
    }

    pub(super) fn tell_node_lost(&mut self, link: LinkId, ids: &[ChannelId]) {
        let node = self.links[link].address.clone();
        for &id in ids {
            let channel = &mut self.registry[id];
            if channel.gap.is_none() {
                channel.aware = u32::try_from(channel.listeners.len()).unwrap_or(u32::MAX);
            }
        }
        self.tell(ids, |channels| Signal::NodeLost { node: node.clone(), channels });
    }

    /// Tells of channels that were confirmed again. Called before the next message, so that the order is right.
    pub(super) fn tell_resumed(&mut self, now: Instant) {
        if self.resumed.is_empty() {
            return;
        }
        let mut moves: HashMap<(u16, Address, Address), Vec<ChannelId>> = HashMap::new();
        let mut ended: HashMap<Duration, Vec<ChannelId>> = HashMap::new();
        for id in std::mem::take(&mut self.resumed) {
            let Some(channel) = self.registry.get_mut(id) else { continue };
            let Home::Live { link } = channel.home else { continue };
            let Some(gap) = channel.gap.take() else { continue };
            let to = self.links[link].address.clone();
            if channel.kind == Kind::Sharded && gap.from != to {
                moves.entry((channel.slot, gap.from, to)).or_default().push(id);
                self.tally.moved();
            }
            let after = now - gap.since;
            self.tally.gap_ended(after);
            if self.gap_goes_on(id, gap.since) {
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

    /// The topology was asked for at this time, and the core has learned the answer: whoever confirmed a channel
    /// before, and still is its master, has it for good.
    pub(crate) fn looked(&mut self, begun: Instant, now: Instant) {
        self.settle_doubts(now, |since| since <= begun);
    }

    /// Time passes: looks again for homes, and tells of gaps that last.
    pub(crate) fn tick(&mut self, now: Instant) {
        let (stalled_after, timed_out_after) = (self.config.stalled_after, self.config.timed_out_after);
        let (mut stalled, mut timed_out) = (Vec::new(), Vec::new());
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
        self.tally.stalled(stalled.len());
        self.tally.timed_out(timed_out.len());
        self.tell(&stalled, |channels| Signal::Stalled { after: stalled_after, channels });
        self.tell(&timed_out, |channels| Signal::TimedOut { after: timed_out_after, channels });
        self.stirred |= self.is_time_to_look(now);
        self.reconcile(now);
        self.settle_doubts(now, |since| now - since > LONGEST_DOUBT);
        if !self.doubtful.is_empty() || (self.searching && !self.homeless.is_empty()) {
            self.orders.push(super::Order::Refresh);
        }
    }

    /// Gives each subscriber of these channels one signal that names its own. Those who came after the gap began hear
    /// nothing of it.
    pub(super) fn tell(&mut self, ids: &[ChannelId], signal: impl Fn(Names) -> Signal) {
        let known = ids.iter().filter_map(|&id| Some((id, 0..self.registry.get(id)?.aware)));
        let known: Vec<_> = known.collect();
        self.tell_some(&known, signal);
    }

    /// Tells some of the subscribers of each channel, by their place in its list.
    pub(super) fn tell_some(&mut self, whom: &[(ChannelId, Range<u32>)], signal: impl Fn(Names) -> Signal) {
        let mut per_mailbox: HashMap<*const Mailbox, (Arc<Mailbox>, Vec<Bytes>)> = HashMap::new();
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
            self.tally.dropped(dropped);
            self.wakers.extend(waker);
        }
    }
}
