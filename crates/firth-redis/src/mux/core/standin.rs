//! Replicas that stand in for a master out of reach. Only masters are sure to have every message, so a gap goes on while
//! a replica stands in; but if the cluster promotes it, nothing that is published from then on is missed.
//!
//! Servers after Redis 7.0 drop the subscriptions of a replica that they promote, and each has to be made once more. So
//! nobody stands in while very many channels are homeless: in a storm every channel is subscribed anew once.

use tokio::time::Instant;

use super::Core;
use crate::{
    config::Address,
    mux::{
        config::NodePreference,
        event::Kind,
        placement::{self, Load},
        registry::{Channel, ChannelId, Home, LinkId},
    },
};

/// Nobody stands in while more channels than this are homeless.
pub(super) const MOST_STOOD_IN_FOR: usize = 1_000;

impl Core {
    /// A replica for a channel whose master was lost and could not be reached again. New subscribers wait for the
    /// master: to them nothing is promised yet.
    pub(super) fn stand_in(
        &self,
        channel: &Channel,
        master: &Address,
        load: impl Fn(&Address) -> Load,
    ) -> Option<&Address> {
        let wanted = self.config.nodes == NodePreference::Masters && channel.gap.is_some();
        let link = self.by_address.get(master).and_then(|&link| self.links.get(link))?;
        if !wanted || self.storm || !link.is_out_of_reach() {
            return None;
        }
        placement::stand_in(&self.topology, channel.slot, load)
    }

    /// Whether the node that serves a channel only stands in for its master.
    pub(super) fn is_stood_in_for(&self, channel: &Channel) -> bool {
        let Home::Live { link } = channel.home else { return false };
        let in_doubt = channel.gap.as_ref().is_some_and(|gap| gap.doubt.is_some());
        in_doubt && self.is_replica(link, channel)
    }

    /// Whether the topology calls this node a replica of the channel's shard, and masters are wanted.
    pub(super) fn is_replica(&self, link: LinkId, channel: &Channel) -> bool {
        let shard = self.topology.shard_of(channel.slot).filter(|_| channel.kind == Kind::Sharded);
        let replica = shard.is_some_and(|shard| shard.replicas.contains(&self.links[link].address));
        replica && self.config.nodes == NodePreference::Masters
    }

    /// A node can be reached again: what others stand in for comes home. They are left when it is asked.
    pub(super) fn call_home(&mut self, master: LinkId) {
        let address = &self.links[master].address;
        let is_its = |id: &ChannelId| {
            let Some(channel) = self.registry.get(*id) else { return false };
            let owner = self.topology.shard_of(channel.slot).map(|shard| &shard.master);
            owner == Some(address) && self.is_stood_in_for(channel)
        };
        let ids: Vec<ChannelId> = self.doubtful.iter().copied().filter(is_its).collect();
        for id in ids {
            let channel = &mut self.registry[id];
            channel.former = channel.home.link();
            if let Some(gap) = &mut channel.gap {
                gap.doubt = None;
            }
            self.settle_at(id, Home::Homeless);
            self.look_for_home(id);
        }
    }

    /// Ends the doubts about channels that their masters serve.
    pub(super) fn settle_doubts(&mut self, now: Instant, settled: impl Fn(Instant) -> bool) {
        for id in std::mem::take(&mut self.doubtful) {
            let Some(channel) = self.registry.get(id) else { continue };
            let (Home::Live { link }, Some(gap)) = (channel.home, &channel.gap) else { continue };
            match gap.doubt {
                Some(since) if settled(since) && !self.is_replica(link, channel) => {
                    let waiters = std::mem::take(&mut self.registry[id].waiters);
                    waiters.into_iter().for_each(|waiter| waiter.done());
                    self.resumed.push(id);
                }
                Some(_) => self.doubtful.push(id),
                None => {}
            }
        }
        self.tell_resumed(now);
    }
}
