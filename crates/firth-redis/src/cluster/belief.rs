//! Which node to believe. A node that was cut off from its cluster still answers, with yesterday's news; following it
//! would send requests back to a master that lost its slots. Pure; the monitor asks it about each answer.

use super::{parse::Standing, topology::Topology};

/// So many looks in a row must tell of an older configuration before it is believed (the cluster was made anew).
const STUBBORN: u32 = 3;

/// What one node said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) topology: Topology,
    /// `None` where CLUSTER INFO is not allowed: then the node is believed as it is.
    pub(crate) standing: Option<Standing>,
}

/// The newest configuration seen so far.
#[derive(Debug, Default)]
pub(crate) struct Belief {
    newest: u64,
    older_looks: u32,
}

impl Belief {
    /// Whether an answer is good enough that no other node need be asked.
    pub(crate) fn convinces(&self, answer: &Answer) -> bool {
        !answer.topology.is_empty() && answer.standing.is_none_or(|s| s.ok && s.epoch >= self.newest)
    }

    /// The answer of a look to go by, if any; called once per look with all that was answered.
    pub(crate) fn settle(&mut self, answers: Vec<Answer>) -> Option<Answer> {
        let usable = answers.into_iter().filter(|answer| !answer.topology.is_empty());
        let best = usable.max_by_key(|answer| (self.convinces(answer), rank(answer)))?;
        let Some(standing) = best.standing else { return Some(best) };
        if standing.epoch < self.newest {
            self.older_looks += 1;
            if self.older_looks < STUBBORN {
                return None;
            }
        }
        self.newest = standing.epoch;
        self.older_looks = 0;
        Some(best)
    }
}

/// Newer before older, and among equals those that see a whole cluster.
fn rank(answer: &Answer) -> (u64, bool, bool) {
    let standing = answer.standing.unwrap_or(Standing { ok: false, epoch: 0 });
    (standing.epoch, standing.ok, answer.topology.is_complete())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::topology::tests::node;

    fn says(port: u16, ok: bool, epoch: u64) -> Answer {
        Answer { topology: Topology::single(node(port)), standing: Some(Standing { ok, epoch }) }
    }

    #[test]
    fn a_cut_off_node_does_not_turn_the_clock_back() {
        let mut belief = Belief::default();
        assert_eq!(belief.settle(vec![says(1, true, 7)]), Some(says(1, true, 7)));
        assert!(!belief.convinces(&says(2, true, 6)), "ask somebody else first");
        assert_eq!(belief.settle(vec![says(2, true, 6), says(1, true, 7)]), Some(says(1, true, 7)));
        assert_eq!(belief.settle(vec![says(2, true, 6)]), None);
        assert!(belief.convinces(&says(1, true, 8)));
    }

    #[test]
    fn a_cluster_made_anew_is_believed_after_a_few_looks() {
        let mut belief = Belief::default();
        belief.settle(vec![says(1, true, 90)]);
        assert_eq!(belief.settle(vec![says(2, true, 3)]), None);
        assert_eq!(belief.settle(vec![says(2, true, 3)]), None);
        assert_eq!(belief.settle(vec![says(2, true, 3)]), Some(says(2, true, 3)));
        assert!(belief.convinces(&says(2, true, 3)));
    }

    #[test]
    fn doubts_do_not_add_up_over_good_looks() {
        let mut belief = Belief::default();
        belief.settle(vec![says(1, true, 90)]);
        for _ in 0..5 {
            assert_eq!(belief.settle(vec![says(2, true, 3)]), None);
            assert!(belief.settle(vec![says(1, true, 90)]).is_some());
        }
    }

    #[test]
    fn a_node_that_sees_a_failure_is_believed_when_nobody_knows_better() {
        let mut belief = Belief::default();
        assert!(!belief.convinces(&says(1, false, 7)));
        assert_eq!(belief.settle(vec![says(1, false, 7), says(2, true, 7)]), Some(says(2, true, 7)));
        assert_eq!(belief.settle(vec![says(1, false, 7)]), Some(says(1, false, 7)));
    }

    #[test]
    fn without_cluster_info_a_node_is_simply_believed() {
        let mut belief = Belief::default();
        belief.settle(vec![says(1, true, 90)]);
        let mute = Answer { topology: Topology::single(node(2)), standing: None };
        assert!(belief.convinces(&mute));
        assert_eq!(belief.settle(vec![mute.clone()]), Some(mute));
    }

    #[test]
    fn a_node_without_slots_knows_nothing() {
        let mut belief = Belief::default();
        let lone = Answer { topology: Topology::empty(), standing: Some(Standing { ok: true, epoch: 1 }) };
        assert!(!belief.convinces(&lone));
        assert_eq!(belief.settle(vec![lone]), None);
    }
}
