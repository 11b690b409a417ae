//! Expels members whose beats stand still although the engine's clock says that they are in time
//! (`failure_detector.rs`).

use super::shard::Shard;
use super::unit::ShardSession;
use crate::error::Result;
use crate::failure_detector::FailureDetector;
use firth_engine::Epoch;
use firth_engine::facet::MembershipInfo;
use std::collections::HashSet;
use tokio::time::Instant;

/// Watch over the members of one shard.
#[derive(Default)]
pub(crate) struct StalledMembers {
    detector: FailureDetector<Epoch>,
    checked: Option<Instant>,
}

impl StalledMembers {
    /// Reads the members once per TTL and expels the stalled ones.
    pub(crate) async fn expel(&mut self, shard: &Shard, session: &ShardSession) -> Result<()> {
        let now = Instant::now();
        let ttl = shard.common.config.ttl;
        if self.checked.is_some_and(|checked| now.duration_since(checked) < ttl) {
            return Ok(());
        }
        self.checked = Some(now);
        let memberships = shard.common.engine.members(&shard.claim_shard).await?;
        for (number, beats) in self.stalled(&memberships, session.membership.number, now) {
            if shard.common.engine.expel(&shard.claim_shard, number, beats).await? {
                tracing::warn!(claim_shard = %shard.claim_shard, %number, "a member stood still and was declared gone");
            }
        }
        Ok(())
    }

    /// Numbers and beats of the stalled members other than `me`.
    fn stalled(&mut self, memberships: &[MembershipInfo], me: Epoch, now: Instant) -> Vec<(Epoch, u64)> {
        let there =
            memberships.iter().filter(|membership| membership.remaining.is_some() && membership.number != me);
        let numbers: HashSet<Epoch> = there.clone().map(|membership| membership.number).collect();
        self.detector.retain(|number| numbers.contains(number));
        let stalled = there.filter(|membership| {
            self.detector.is_stalled(
                membership.number,
                (membership.number, membership.beats),
                membership.ttl,
                now,
            )
        });
        stalled.map(|membership| (membership.number, membership.beats)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_engine::MemberName;
    use std::time::Duration;

    fn membership(number: u64, beats: u64) -> MembershipInfo {
        MembershipInfo {
            member: MemberName::new("m").unwrap(),
            number: Epoch(number),
            remaining: Some(Duration::from_secs(9999)),
            beats,
            ttl: Duration::from_secs(1),
            held: 0,
            capacity: 1,
            age: Duration::ZERO,
        }
    }

    #[test]
    fn a_stalled_member_is_found_unless_it_is_this_worker_or_gone() {
        let mut members = StalledMembers::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(members.stalled(&[membership(1, 5), membership(2, 5)], Epoch(2), at(0)).is_empty());
        assert_eq!(
            members.stalled(&[membership(1, 5), membership(2, 5)], Epoch(2), at(1600)),
            [(Epoch(1), 5)]
        );
        let gone = MembershipInfo { remaining: None, ..membership(1, 5) };
        assert!(members.stalled(&[gone], Epoch(2), at(9000)).is_empty());
    }
}
