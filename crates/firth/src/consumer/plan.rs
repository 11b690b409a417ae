//! Who should own which partition. Pure: every member computes the same plan from the same view.
//!
//! Fair: member counts differ by at most one, but for members that want no more. Minimal movement:
//! a partition leaves its owner only if the owner has more than its share. Members that pinned
//! partitions own exactly those and take no part in the sharing.

use std::collections::{BTreeMap, BTreeSet};

/// Everyone who is alive, and who owns what now. Partitions are numbered from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupView {
    /// Members by name.
    pub(crate) members: BTreeMap<String, Member>,
    /// The holder of each partition; `None` if free, also if the holder is no member.
    pub(crate) owners: Vec<Option<String>>,
}

/// What a member asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    /// The partitions that it pinned; empty: it shares.
    pub(crate) pins: BTreeSet<u32>,
    /// The most that it takes of what is shared; `None`: any number.
    pub(crate) most: Option<u32>,
}

/// The member that should own each partition; `None` if no member can.
pub(crate) fn plan(view: &GroupView) -> Vec<Option<&str>> {
    let mut plan = pinned(view);
    let shared: Vec<usize> = (0..plan.len()).filter(|index| plan[*index].is_none()).collect();
    let mut quotas = quotas(view, &shared);
    for index in &shared {
        // The owner keeps the partition while it is within its share.
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
        let Some((name, room)) = current.as_mut() else { break };
        *room -= 1;
        plan[index] = Some(name);
    }
    plan
}

/// Pinned partitions go to the first member that pinned them.
fn pinned(view: &GroupView) -> Vec<Option<&str>> {
    let mut plan = vec![None; view.owners.len()];
    for (name, member) in view.members.iter().rev() {
        for index in &member.pins {
            if let Some(slot) = plan.get_mut(*index as usize) {
                *slot = Some(name.as_str());
            }
        }
    }
    plan
}

/// How many of the `shared` partitions each sharer gets: who wants less than an even share gets
/// that, the others share the rest evenly. The larger shares go to those who own the most now.
fn quotas<'v>(view: &'v GroupView, shared: &[usize]) -> BTreeMap<&'v str, usize> {
    let owned =
        |name: &str| shared.iter().filter(|index| view.owners[**index].as_deref() == Some(name)).count();
    let sharers = view.members.iter().filter(|(_, member)| member.pins.is_empty());
    let most = |member: &Member| member.most.map_or(usize::MAX, |most| most as usize);
    let mut open: Vec<(&str, usize)> = sharers.map(|(name, member)| (name.as_str(), most(member))).collect();
    let mut quotas = BTreeMap::new();
    let mut left = shared.len();
    loop {
        let share = left / open.len().max(1);
        let (modest, others): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, most)| *most <= share);
        left -= modest.iter().map(|(_, most)| most).sum::<usize>();
        open = others;
        if modest.is_empty() {
            break;
        }
        quotas.extend(modest);
    }
    if !open.is_empty() {
        open.sort_by_key(|(name, _)| (std::cmp::Reverse(owned(name)), *name));
        let share = left / open.len();
        let larger = left % open.len();
        let even =
            open.iter().enumerate().map(|(rank, (name, _))| (*name, share + usize::from(rank < larger)));
        quotas.extend(even);
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn view(members: &[&str], owners: &[&str]) -> GroupView {
        GroupView {
            members: members.iter().map(|name| ((*name).to_owned(), Member::default())).collect(),
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
        before.members.insert("p".to_owned(), Member { pins: [1, 9].into(), most: None });
        assert_eq!(plan(&before), [Some("a"), Some("p"), Some("b")]);
        before.members.retain(|name, _| name == "p");
        assert_eq!(plan(&before), [None, Some("p"), None]);
    }

    #[test]
    fn a_modest_member_gets_no_more_than_it_wants_and_the_others_share_the_rest() {
        let mut before = view(&["a", "b", "c"], &[""; 8]);
        before.members.get_mut("b").unwrap().most = Some(1);
        let counts = |view: &GroupView| {
            let plan = plan(view);
            ["a", "b", "c"].map(|name| plan.iter().filter(|owner| **owner == Some(name)).count())
        };
        assert_eq!(counts(&before), [4, 1, 3]);
        before.members.get_mut("a").unwrap().most = Some(2);
        assert_eq!(counts(&before), [2, 1, 5]);
        before.members.get_mut("c").unwrap().most = Some(0);
        assert_eq!(counts(&before), [2, 1, 0], "what nobody has room for waits");
    }

    fn modest_views() -> impl Strategy<Value = GroupView> {
        let member = prop::option::of(0u32..9).prop_map(|most| Member { most, ..Member::default() });
        let members = prop::collection::btree_map("[a-f]", member, 1..6);
        (members, prop::collection::vec(prop::option::of("[a-h]"), 0..40))
            .prop_map(|(members, owners)| GroupView { members, owners })
    }

    fn views() -> impl Strategy<Value = GroupView> {
        let members = prop::collection::btree_map("[a-f]", Just(Member::default()), 1..6);
        (members, prop::collection::vec(prop::option::of("[a-h]"), 0..40))
            .prop_map(|(members, owners)| GroupView { members, owners })
    }

    proptest! {
        #[test]
        fn plans_are_fair_complete_and_move_as_little_as_possible(view in views()) {
            let plan = plan(&view);
            let count = |name: &str| plan.iter().filter(|owner| **owner == Some(name)).count();
            let counts: Vec<_> = view.members.keys().map(|name| count(name)).collect();
            prop_assert_eq!(counts.iter().sum::<usize>(), view.owners.len());
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);

            // No member loses a partition unless it had more than its share, and no member above
            // the smaller share gains one.
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

        #[test]
        fn nobody_gets_more_than_it_wants_and_nothing_waits_while_somebody_has_room(view in modest_views()) {
            let plan = plan(&view);
            let count = |name: &str| plan.iter().filter(|owner| **owner == Some(name)).count();
            let most = |member: &Member| member.most.map_or(view.owners.len(), |most| most as usize);
            let room: usize = view.members.values().map(most).sum();
            prop_assert_eq!(plan.iter().flatten().count(), room.min(view.owners.len()));
            let largest = view.members.keys().map(|name| count(name)).max().unwrap();
            for (name, member) in &view.members {
                prop_assert!(count(name) <= most(member));
                prop_assert!(count(name) == most(member) || count(name) + 1 >= largest, "an even share unless it wants less");
            }
        }

        /// However the members' actions interleave, following the plan ends in a state that plans
        /// nothing.
        #[test]
        fn following_the_plan_settles(mut view in modest_views()) {
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
