//! Who should have how many claims. Pure: everyone computes the same from what everyone can see.

use firth_engine::Epoch;

/// How many of `total` claims the member `me` should have: an even share, never more than its
/// capacity; what others cannot take is shared by the rest. `memberships` is sorted by number; what
/// does not divide goes to the oldest members, one each.
pub(crate) fn quota(total: u64, memberships: &[(Epoch, u64)], me: Epoch) -> u64 {
    let mut open: Vec<(Epoch, u64)> =
        memberships.iter().copied().filter(|(_, capacity)| *capacity > 0).collect();
    let mut rest = total;
    loop {
        let Some(count) = u64::try_from(open.len()).ok().filter(|count| *count > 0) else { return 0 };
        let level = rest / count;
        let (full, more): (Vec<_>, Vec<_>) = open.iter().partition(|(_, capacity)| *capacity <= level);
        if let Some((_, capacity)) = full.iter().find(|(number, _)| *number == me) {
            return *capacity;
        }
        if full.is_empty() {
            let Some(place) = open.iter().position(|(number, _)| *number == me) else { return 0 };
            return level + u64::from((place as u64) < rest % count);
        }
        rest -= full.iter().map(|(_, capacity)| *capacity).sum::<u64>();
        open = more;
    }
}

/// How far above its quota a member may be before it gives something back: moving work costs more
/// than a small unevenness.
pub(crate) fn slack(quota: u64) -> u64 {
    match quota {
        0..8 => 0,
        _ => (quota / 50).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memberships(capacities: &[u64]) -> Vec<(Epoch, u64)> {
        (1..).map(Epoch).zip(capacities.iter().copied()).collect()
    }

    fn quotas(total: u64, capacities: &[u64]) -> Vec<u64> {
        let memberships = memberships(capacities);
        memberships.iter().map(|(number, _)| quota(total, &memberships, *number)).collect()
    }

    #[test]
    fn shares_are_even_and_full_members_leave_the_rest_to_others() {
        assert_eq!(quotas(5000, &[10_000; 10]), [500; 10]);
        assert_eq!(quotas(11, &[100; 10]), [2, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(quotas(10, &[1, 100, 100]), [1, 5, 4]);
        assert_eq!(quotas(10, &[2, 3]), [2, 3]);
        assert_eq!(quotas(3, &[0, 5]), [0, 3]);
        assert_eq!(quotas(0, &[5, 5]), [0, 0]);
        assert_eq!(quota(5, &[], Epoch(1)), 0);
        assert_eq!(quota(5, &memberships(&[5]), Epoch(9)), 0);
    }

    proptest! {
        #[test]
        fn quotas_add_up_and_stay_within_capacities(total in 0u64..100_000, capacities in prop::collection::vec(0u64..20_000, 1..40)) {
            let quotas = quotas(total, &capacities);
            let all: u64 = capacities.iter().sum();
            prop_assert_eq!(quotas.iter().sum::<u64>(), total.min(all));
            prop_assert!(quotas.iter().zip(&capacities).all(|(quota, capacity)| quota <= capacity));
            let open = quotas.iter().zip(&capacities).filter(|(quota, capacity)| quota < capacity).map(|(quota, _)| *quota);
            let least = open.clone().min().unwrap_or(0);
            let most = quotas.iter().max().copied().unwrap_or(0);
            prop_assert!(open.clone().count() == 0 || most <= least + 1, "{:?} of {:?}", quotas, capacities);
        }
    }
}
