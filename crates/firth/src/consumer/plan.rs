//! Who should own which partition. Pure: every member computes the same plan from the same view.
//!
//! Fair: member counts differ by at most one. Minimal movement: a partition leaves its owner only if the owner has more than its
//! share. Members that pinned partitions own exactly those and take no part in the sharing.

use std::collections::{BTreeMap, BTreeSet};

/// Everyone who is alive, and who owns what now. Partitions are numbered from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Members by name, each with the partitions that it pinned (empty: it shares).
    pub(crate) members: BTreeMap<String, BTreeSet<u32>>,
    /// The holder of each partition; `None` if free, also if the holder is no member.
    pub(crate) owners: Vec<Option<String>>,
}

/// The member that should own each partition; `None` if nobody can.
pub(crate) fn plan(view: &View) -> Vec<Option<&str>> {
    let mut plan = pinned(view);
    let sharers: Vec<&str> =
        view.members.iter().filter(|(_, pins)| pins.is_empty()).map(|(name, _)| name.as_str()).collect();
    if sharers.is_empty() {
        return plan;
    }
    let shared: Vec<usize> = (0..plan.len()).filter(|index| plan[*index].is_none()).collect();
    let mut quotas = quotas(view, &sharers, &shared);
    for index in &shared {
        // Whoever has it keeps it while it is within its share.
        if let Some(owner) = view.owners[*index].as_deref()
            && let Some(room) = quotas.get_mut(owner).filter(|room| **room > 0)
        {
            *room -= 1;
            plan[*index] = Some(owner);
        }
    }
    let mut rooms = quotas.into_iter();
    let mut current = rooms.next();
    for index in shared {
        if plan[index].is_some() {
            continue;
        }
        while let Some((_, 0)) = current {
            current = rooms.next();
        }
        let (name, room) = current.as_mut().expect("the shares add up to all partitions");
        *room -= 1;
        plan[index] = Some(name);
    }
    plan
}

/// Pinned partitions go to the first member that pinned them.
fn pinned(view: &View) -> Vec<Option<&str>> {
    let mut plan = vec![None; view.owners.len()];
    for (name, pins) in view.members.iter().rev() {
        for index in pins {
            if let Some(slot) = plan.get_mut(*index as usize) {
                *slot = Some(name.as_str());
            }
        }
    }
    plan
}

/// How many of the `shared` partitions each sharer gets. The larger shares go to those who own the most now.
fn quotas<'v>(view: &'v View, sharers: &[&'v str], shared: &[usize]) -> BTreeMap<&'v str, usize> {
    let owned =
        |name: &str| shared.iter().filter(|index| view.owners[**index].as_deref() == Some(name)).count();
    let mut by_load: Vec<(&str, usize)> = sharers.iter().map(|name| (*name, owned(name))).collect();
    by_load.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let (share, larger) = (shared.len() / sharers.len(), shared.len() % sharers.len());
    by_load.iter().enumerate().map(|(rank, (name, _))| (*name, share + usize::from(rank < larger))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn view(members: &[&str], owners: &[&str]) -> View {
        View {
            members: members.iter().map(|name| ((*name).to_owned(), BTreeSet::new())).collect(),
            owners: owners.iter().map(|name| (!name.is_empty()).then(|| (*name).to_owned())).collect(),
        }
    }

    #[test]
    fn a_joining_member_gets_its_share_and_nothing_else_moves() {
        let before = view(&["a", "b", "c"], &["a", "a", "a", "b", "b", "b"]);
        let plan = plan(&before);
        assert_eq!(plan, [Some("a"), Some("a"), Some("c"), Some("b"), Some("b"), Some("c")]);
    }

    #[test]
    fn partitions_of_a_vanished_member_are_spread() {
        let before = view(&["a", "b"], &["a", "c", "c", "b"]);
        assert_eq!(plan(&before), [Some("a"), Some("a"), Some("b"), Some("b")]);
    }

    #[test]
    fn surplus_members_own_nothing() {
        let before = view(&["a", "b", "c"], &["", ""]);
        assert_eq!(plan(&before), [Some("a"), Some("b")]);
    }

    #[test]
    fn pinned_partitions_are_not_shared() {
        let mut before = view(&["a", "b"], &["a", "a", "a"]);
        before.members.insert("p".to_owned(), [1, 9].into());
        assert_eq!(plan(&before), [Some("a"), Some("p"), Some("b")]);
        before.members.retain(|name, _| name == "p");
        assert_eq!(plan(&before), [None, Some("p"), None]);
    }

    fn views() -> impl Strategy<Value = View> {
        let members = prop::collection::btree_map("[a-f]", Just(BTreeSet::new()), 1..6);
        (members, prop::collection::vec(prop::option::of("[a-h]"), 0..40))
            .prop_map(|(members, owners)| View { members, owners })
    }

    proptest! {
        #[test]
        fn plans_are_fair_complete_and_move_as_little_as_possible(view in views()) {
            let plan = plan(&view);
            let count = |name: &str| plan.iter().filter(|owner| **owner == Some(name)).count();
            let counts: Vec<_> = view.members.keys().map(|name| count(name)).collect();
            prop_assert_eq!(counts.iter().sum::<usize>(), view.owners.len());
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);

            // Nobody loses a partition unless it had more than its share, and nobody above the smaller share gains one.
            let share = view.owners.len() / view.members.len();
            for (name, count) in view.members.keys().zip(&counts) {
                let had = view.owners.iter().filter(|owner| owner.as_deref() == Some(name)).count();
                let kept = plan.iter().zip(&view.owners).filter(|(now, before)| **now == Some(name) && before.as_deref() == Some(name)).count();
                prop_assert_eq!(kept, had.min(*count));
                prop_assert!(had <= share + 1 || *count >= share);
            }
            let larger = view.owners.len() % view.members.len();
            let mut had: Vec<_> = view.members.keys().map(|name| view.owners.iter().filter(|o| o.as_deref() == Some(name)).count()).collect();
            had.sort_unstable_by(|a, b| b.cmp(a));
            let least: usize = had.iter().enumerate().map(|(rank, had)| had.saturating_sub(share + usize::from(rank < larger))).sum();
            let moved = plan.iter().zip(&view.owners).filter(|(now, before)| {
                before.as_ref().is_some_and(|before| view.members.contains_key(before) && now.as_ref() != Some(&before.as_str()))
            }).count();
            prop_assert_eq!(moved, least);
        }

        /// However the members' actions interleave, following the plan ends in a state that plans nothing.
        #[test]
        fn following_the_plan_settles(mut view in views()) {
            for _ in 0..view.owners.len() * 2 + 2 {
                let wanted: Vec<Option<String>> = plan(&view).into_iter().map(|owner| owner.map(str::to_owned)).collect();
                if wanted == view.owners { return Ok(()); }
                for (owner, wanted) in view.owners.iter_mut().zip(wanted) {
                    // Cooperative: first given up, then taken.
                    *owner = if owner.is_some() && *owner != wanted { None } else { wanted };
                }
            }
            prop_assert!(false, "the plan never settles");
        }
    }
}
