//! Replicas as a fallback for a master out of reach.
//!
//! Only masters are sure to have every message, so the gap lasts while a replica serves. But if the
//! cluster promotes the replica, no later message is missed.
//!
//! Servers after Redis 7.0 drop the subscriptions of a replica that they promote, and the mux must
//! subscribe again. So with very many unplaced channels there is no fallback: each channel is then
//! subscribed only once.

use super::MuxCore;
use crate::config::Address;
use crate::mux::config::NodePreference;
use crate::mux::event::SubscriptionKind;
use crate::mux::placement::{self, NodeLoad};
use crate::mux::registry::{Channel, ChannelId, LinkId, Placement};
use tokio::time::Instant;

/// No fallback while more channels than this are unplaced.
pub(super) const FALLBACK_LIMIT: usize = 1_000;

impl MuxCore {
    /// Replica for a channel whose master was lost and could not be reached again. New subscribers
    /// wait for the master, because they were promised nothing yet.
    pub(super) fn fallback_replica(
        &self,
        channel: &Channel,
        master: &Address,
        load: impl Fn(&Address) -> NodeLoad,
    ) -> Option<&Address> {
        let wanted = self.config.nodes == NodePreference::Masters && channel.gap.is_some();
        let link = self.by_address.get(master).and_then(|&link| self.links.get(link))?;
        if !wanted || self.many_unplaced || !link.is_out_of_reach() {
            return None;
        }
        placement::fallback_replica(&self.topology, channel.slot, load)
    }

    /// Whether a replica serves the channel as a fallback.
    pub(super) fn is_on_fallback(&self, channel: &Channel) -> bool {
        let Placement::Live { link } = channel.placement else { return false };
        let in_doubt = channel.gap.as_ref().is_some_and(|gap| gap.unverified_since.is_some());
        in_doubt && self.is_replica(link, channel)
    }

    /// Whether the topology calls this node a replica of the channel's shard, and masters are
    /// wanted.
    pub(super) fn is_replica(&self, link: LinkId, channel: &Channel) -> bool {
        let shard =
            self.topology.shard_of(channel.slot).filter(|_| channel.kind == SubscriptionKind::Sharded);
        let replica = shard.is_some_and(|shard| shard.replicas.contains(&self.links[link].address));
        replica && self.config.nodes == NodePreference::Masters
    }

    /// Moves channels back to a master that can be reached again. Their replicas are unsubscribed
    /// when the master is asked.
    pub(super) fn return_to_master(&mut self, master: LinkId) {
        let address = &self.links[master].address;
        let is_its = |id: &ChannelId| {
            let Some(channel) = self.registry.get(*id) else { return false };
            let owner = self.topology.shard_of(channel.slot).map(|shard| &shard.master);
            owner == Some(address) && self.is_on_fallback(channel)
        };
        let ids: Vec<ChannelId> = self.unverified.iter().copied().filter(is_its).collect();
        for id in ids {
            let channel = &mut self.registry[id];
            channel.previous = channel.placement.link();
            if let Some(gap) = &mut channel.gap {
                gap.unverified_since = None;
            }
            self.place_at(id, Placement::None);
            self.queue_for_placement(id);
        }
    }

    /// Marks channels as verified that their masters serve.
    pub(super) fn verify(&mut self, now: Instant, settled: impl Fn(Instant) -> bool) {
        for id in std::mem::take(&mut self.unverified) {
            let Some(channel) = self.registry.get(id) else { continue };
            let (Placement::Live { link }, Some(gap)) = (channel.placement, &channel.gap) else { continue };
            match gap.unverified_since {
                Some(since) if settled(since) && !self.is_replica(link, channel) => {
                    let waiters = std::mem::take(&mut self.registry[id].waiters);
                    waiters.into_iter().for_each(|waiter| waiter.done());
                    self.resumed.push(id);
                }
                Some(_) => self.unverified.push(id),
                None => {}
            }
        }
        self.tell_resumed(now);
    }
}
