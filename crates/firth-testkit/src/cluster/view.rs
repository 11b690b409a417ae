//! What one node believes about the cluster: `CLUSTER NODES`, parsed (pure).
//!
//! Two views are equal when they agree on members, roles and slots. Link states and epochs are left
//! out, since they differ among healthy nodes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// One member as another sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The id of its master; `None` for a master.
    pub(super) master: Option<String>,
    pub(super) slots: Vec<RangeInclusive<u16>>,
}

/// All members by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    members: BTreeMap<String, Member>,
}

impl View {
    /// Reads `CLUSTER NODES`; `None` while members are still shaking hands.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let members: Option<BTreeMap<_, _>> = text.lines().map(parse_line).collect();
        members.map(|members| Self { members })
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn knows(&self, id: &str) -> bool {
        self.members.contains_key(id)
    }

    pub(super) fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    /// Who owns a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&str> {
        let mut members = self.members.iter();
        members
            .find(|(_, member)| member.slots.iter().any(|range| range.contains(&slot)))
            .map(|(id, _)| &**id)
    }

    /// Everyone who owns slots.
    pub(super) fn slot_owners(&self) -> Vec<&str> {
        self.members.iter().filter(|(_, member)| !member.slots.is_empty()).map(|(id, _)| &**id).collect()
    }

    pub(super) fn replicas_of(&self, master: &str) -> Vec<&str> {
        let is_replica = |member: &Member| member.master.as_deref() == Some(master);
        self.members.iter().filter(|(_, member)| is_replica(member)).map(|(id, _)| &**id).collect()
    }
}

fn parse_line(line: &str) -> Option<(String, Member)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [id, _addr, flags, master, _ping, _pong, _epoch, _link, slots @ ..] = &words[..] else { return None };
    if flags.split(',').any(|flag| flag == "handshake" || flag == "noaddr") {
        return None;
    }
    let master = (*master != "-").then(|| (*master).to_owned());
    // "[93->-id]" tells of a migration under way and is no ownership
    let slots = slots.iter().filter(|word| !word.starts_with('[')).map(|word| parse_range(word));
    Some(((*id).to_owned(), Member { master, slots: slots.collect::<Option<_>>()? }))
}

fn parse_range(word: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "\
a1 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-5 7 [9->-b2]
b2 127.0.0.1:7002@17002,host,shard-id=x master - 0 5 2 connected 6 8-16383
c3 127.0.0.1:7003@17003 slave a1 0 6 1 connected
";

    #[test]
    fn owners_and_replicas_are_read() {
        let view = View::parse(NODES).unwrap();
        assert_eq!(view.len(), 3);
        assert_eq!(view.owner(7), Some("a1"));
        assert_eq!(view.owner(9), Some("b2"));
        assert_eq!(view.replicas_of("a1"), ["c3"]);
        assert_eq!(view.slot_owners(), ["a1", "b2"]);
    }

    #[test]
    fn views_are_equal_whoever_looks() {
        let other = NODES.replace("myself,", "").replace("1 connected", "3 disconnected");
        assert_eq!(View::parse(NODES), View::parse(&other));
    }

    #[test]
    fn a_handshake_is_no_view() {
        assert_eq!(View::parse(&NODES.replace("slave", "handshake")), None);
    }
}
