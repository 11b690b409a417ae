//! [`SlotTable`]: 4 096 slots spread over the gateways, by rendezvous hashing with a bound on each
//! one's share.
//!
//! A lookup is one array access. Every node that knows the same gateways computes the same table,
//! so nothing needs to be agreed on. When a gateway leaves, its slots move to others and hardly any
//! other slot does; when one joins, it takes its share.

use crate::name::{GatewayId, SubscriptionId};
use std::cmp::Reverse;

/// The number of slots.
pub const SLOTS: usize = 4096;

/// Who owns which slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotTable {
    gateways: Vec<GatewayId>,
    owners: Box<[u16]>,
}

/// The slot of a subscription.
pub fn slot_of(id: &SubscriptionId) -> usize {
    usize::try_from(mix(fnv(id.as_str().as_bytes())) % SLOTS as u64).expect("a slot is small")
}

impl SlotTable {
    /// Spreads the slots over the gateways; the order of the gateways does not matter. Beyond 4 096
    /// gateways, some own no slot.
    pub fn new(gateways: impl IntoIterator<Item = GatewayId>) -> Self {
        let mut gateways: Vec<_> = gateways.into_iter().collect();
        gateways.sort();
        gateways.dedup();
        gateways.truncate(usize::from(u16::MAX));
        let owners = if gateways.is_empty() { Box::default() } else { fill(&gateways) };
        Self { gateways, owners }
    }

    /// The owner of a slot; none if there is no gateway.
    pub fn owner(&self, slot: usize) -> Option<&GatewayId> {
        self.owners.get(slot).map(|&owner| &self.gateways[usize::from(owner)])
    }

    /// All gateways, sorted.
    pub fn gateways(&self) -> &[GatewayId] {
        &self.gateways
    }
}

/// No gateway owns more than its share and an eighth, rounded up.
fn bound(gateways: usize) -> usize {
    (SLOTS * 9).div_ceil(gateways * 8)
}

/// Each slot goes to the gateway that likes it most, as long as that one has room. Who likes a slot
/// most strongly is served first, so that a full gateway turns away those that it likes least: a
/// slot's fate then hardly depends on the others'.
fn fill(gateways: &[GatewayId]) -> Box<[u16]> {
    let seeds: Vec<u64> = gateways.iter().map(|gateway| fnv(gateway.as_str().as_bytes())).collect();
    let likes = |slot: usize, gateway: usize| mix(seeds[gateway] ^ mix(slot as u64 + 1));
    let mut owners = vec![u16::MAX; SLOTS];
    let bound = bound(gateways.len());
    let mut load = vec![0_usize; gateways.len()];
    let mut waiting: Vec<usize> = (0..SLOTS).collect();
    while !waiting.is_empty() {
        let open: Vec<usize> = (0..gateways.len()).filter(|&gateway| load[gateway] < bound).collect();
        let favourite = |slot: usize| {
            let best = open.iter().map(|&gateway| (likes(slot, gateway), Reverse(gateway))).max();
            best.map(|(liking, Reverse(gateway))| (liking, gateway)).expect("the bounds leave room for all")
        };
        let mut interests: Vec<_> = waiting.iter().map(|&slot| (favourite(slot), slot)).collect();
        interests.sort_unstable_by_key(|&((liking, _), slot)| (Reverse(liking), slot));
        waiting.clear();
        for ((_, gateway), slot) in interests {
            if load[gateway] < bound {
                load[gateway] += 1;
                owners[slot] = u16::try_from(gateway).expect("gateways are at most 65 535");
            } else {
                waiting.push(slot);
            }
        }
    }
    owners.into()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn mix(hash: u64) -> u64 {
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gateways(count: usize) -> Vec<GatewayId> {
        (0..count).map(|n| GatewayId::new(format!("gw-{n}")).unwrap()).collect()
    }

    fn moved(a: &SlotTable, b: &SlotTable) -> usize {
        (0..SLOTS).filter(|&slot| a.owner(slot) != b.owner(slot)).count()
    }

    #[test]
    fn no_gateway_owns_much_more_than_its_share() {
        for count in [1, 2, 3, 7, 16, 64, 300] {
            let table = SlotTable::new(gateways(count));
            let mut load = vec![0; count];
            table.owners.iter().for_each(|&owner| load[usize::from(owner)] += 1);
            assert!(load.iter().all(|&slots| slots > 0 && slots <= bound(count)), "{count}: {load:?}");
        }
    }

    #[test]
    fn one_leaving_gateway_moves_about_its_own_share() {
        for count in [2, 4, 16, 64] {
            let all = SlotTable::new(gateways(count));
            for gone in 0..count.min(8) {
                let mut rest = gateways(count);
                let leaver = rest.remove(gone);
                let after = SlotTable::new(rest);
                let own = (0..SLOTS).filter(|&slot| all.owner(slot) == Some(&leaver)).count();
                let moved = moved(&all, &after);
                assert!(
                    moved >= own && moved <= own + SLOTS / count / 2,
                    "{count}: {moved} moved, {own} its own"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn everyone_computes_the_same_table(count in 1_usize..20, rotate in 0_usize..20) {
            let mut shuffled = gateways(count);
            shuffled.rotate_left(rotate % count);
            shuffled.push(shuffled[0].clone());
            prop_assert_eq!(SlotTable::new(gateways(count)), SlotTable::new(shuffled));
        }
    }

    #[test]
    fn the_slots_of_subscriptions_spread() {
        let mut counts = vec![0; SLOTS];
        (0..SLOTS * 16).for_each(|n| counts[slot_of(&SubscriptionId::new(format!("sub-{n}")).unwrap())] += 1);
        assert!(counts.iter().all(|&count| (1..50).contains(&count)));
        assert_eq!(SlotTable::new([]).owner(0), None);
    }
}
