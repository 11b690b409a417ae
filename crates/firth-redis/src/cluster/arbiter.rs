//! Chooses which node's topology to trust. Pure.
//!
//! A node that was cut off from its cluster still answers, with an old topology. Following it would
//! send requests back to a master that lost its slots. The refresh asks the arbiter about each
//! answer.

use super::parse::NodeView;
use super::topology::Topology;

/// After this many refreshes in a row with an older configuration it is accepted: the cluster was
/// created anew.
const OLDER_REFRESHES: u32 = 3;

/// Answer of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopologyAnswer {
    pub(crate) topology: Topology,
    /// `None` if CLUSTER INFO is not allowed: then the topology is trusted as it is.
    pub(crate) view: Option<NodeView>,
}

/// Remembers the newest configuration so far.
#[derive(Debug, Default)]
pub(crate) struct Arbiter {
    newest: u64,
    older_refreshes: u32,
}

impl Arbiter {
    /// Whether an answer is good enough that no other node need be asked.
    pub(crate) fn is_conclusive(&self, answer: &TopologyAnswer) -> bool {
        !answer.topology.is_empty() && answer.view.is_none_or(|s| s.ok && s.epoch >= self.newest)
    }

    /// Answer to use, if any. Called once per refresh with all answers.
    pub(crate) fn choose(&mut self, answers: Vec<TopologyAnswer>) -> Option<TopologyAnswer> {
        let usable = answers.into_iter().filter(|answer| !answer.topology.is_empty());
        let best = usable.max_by_key(|answer| (self.is_conclusive(answer), rank(answer)))?;
        let Some(view) = best.view else { return Some(best) };
        if view.epoch < self.newest {
            self.older_refreshes += 1;
            if self.older_refreshes < OLDER_REFRESHES {
                return None;
            }
        }
        self.newest = view.epoch;
        self.older_refreshes = 0;
        Some(best)
    }
}

/// Newer before older; among equals, those that see a whole cluster first.
fn rank(answer: &TopologyAnswer) -> (u64, bool, bool) {
    let view = answer.view.unwrap_or(NodeView { ok: false, epoch: 0 });
    (view.epoch, view.ok, answer.topology.is_complete())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::topology::tests::node;

    fn says(port: u16, ok: bool, epoch: u64) -> TopologyAnswer {
        TopologyAnswer { topology: Topology::single(node(port)), view: Some(NodeView { ok, epoch }) }
    }

    #[test]
    fn a_cut_off_node_does_not_turn_the_clock_back() {
        let mut arbiter = Arbiter::default();
        assert_eq!(arbiter.choose(vec![says(1, true, 7)]), Some(says(1, true, 7)));
        assert!(!arbiter.is_conclusive(&says(2, true, 6)), "ask somebody else first");
        assert_eq!(arbiter.choose(vec![says(2, true, 6), says(1, true, 7)]), Some(says(1, true, 7)));
        assert_eq!(arbiter.choose(vec![says(2, true, 6)]), None);
        assert!(arbiter.is_conclusive(&says(1, true, 8)));
    }

    #[test]
    fn a_cluster_made_anew_is_believed_after_a_few_looks() {
        let mut arbiter = Arbiter::default();
        arbiter.choose(vec![says(1, true, 90)]);
        assert_eq!(arbiter.choose(vec![says(2, true, 3)]), None);
        assert_eq!(arbiter.choose(vec![says(2, true, 3)]), None);
        assert_eq!(arbiter.choose(vec![says(2, true, 3)]), Some(says(2, true, 3)));
        assert!(arbiter.is_conclusive(&says(2, true, 3)));
    }

    #[test]
    fn doubts_do_not_add_up_over_good_looks() {
        let mut arbiter = Arbiter::default();
        arbiter.choose(vec![says(1, true, 90)]);
        for _ in 0..5 {
            assert_eq!(arbiter.choose(vec![says(2, true, 3)]), None);
            assert!(arbiter.choose(vec![says(1, true, 90)]).is_some());
        }
    }

    #[test]
    fn a_node_that_sees_a_failure_is_believed_when_nobody_knows_better() {
        let mut arbiter = Arbiter::default();
        assert!(!arbiter.is_conclusive(&says(1, false, 7)));
        assert_eq!(arbiter.choose(vec![says(1, false, 7), says(2, true, 7)]), Some(says(2, true, 7)));
        assert_eq!(arbiter.choose(vec![says(1, false, 7)]), Some(says(1, false, 7)));
    }

    #[test]
    fn without_cluster_info_a_node_is_simply_believed() {
        let mut arbiter = Arbiter::default();
        arbiter.choose(vec![says(1, true, 90)]);
        let mute = TopologyAnswer { topology: Topology::single(node(2)), view: None };
        assert!(arbiter.is_conclusive(&mute));
        assert_eq!(arbiter.choose(vec![mute.clone()]), Some(mute));
    }

    #[test]
    fn a_node_without_slots_knows_nothing() {
        let mut arbiter = Arbiter::default();
        let lone =
            TopologyAnswer { topology: Topology::empty(), view: Some(NodeView { ok: true, epoch: 1 }) };
        assert!(!arbiter.is_conclusive(&lone));
        assert_eq!(arbiter.choose(vec![lone]), None);
    }
}
