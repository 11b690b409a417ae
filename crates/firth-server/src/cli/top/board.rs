//! From looks to figures (pure): rates are differences of running totals, so retention never disturbs them.

use crate::cli::progress::per_second;
use crate::cli::units;
use crate::wire::{Group, Topic};
use serde::Serialize;
use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

/// How many looks the history keeps.
const HISTORY: usize = 120;

pub(super) const TOPIC_HEAD: [&str; 6] = ["TOPIC", "PARTITIONS", "RECORDS", "DELAYED", "IN/S", "TOTAL"];
pub(super) const GROUP_HEAD: [&str; 9] =
    ["TOPIC", "GROUP", "LAG", "OLDEST", "DUE", "DEAD", "OUT/S", "MEMBERS", "OWNERS"];

/// All figures at one moment.
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) topics: Vec<Topic>,
    pub(super) groups: Vec<Group>,
}

/// The last two looks, and the rates before them.
#[derive(Default)]
pub(super) struct Board {
    last: Option<Look>,
    rates: Option<(Vec<u64>, Vec<u64>)>,
    history: VecDeque<(u64, u64)>,
}

/// What is shown.
#[derive(Debug, Default, Serialize)]
pub(super) struct Rows {
    pub(super) topics: Vec<TopicRow>,
    pub(super) groups: Vec<GroupRow>,
    /// Records in and out per second, over all topics and groups.
    pub(super) in_per_s: u64,
    pub(super) out_per_s: u64,
    pub(super) lag: u64,
    pub(super) dead: u64,
    #[serde(skip)]
    pub(super) history: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize)]
pub(super) struct TopicRow {
    pub(super) topic: String,
    pub(super) partitions: u32,
    pub(super) records: u64,
    pub(super) delayed: u64,
    pub(super) in_per_s: u64,
    pub(super) total: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct GroupRow {
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) lag: u64,
    pub(super) oldest_ms: Option<u64>,
    pub(super) due: u64,
    pub(super) dead: u64,
    pub(super) out_per_s: u64,
    pub(super) members: usize,
    /// Who owns partitions, and how many have no owner.
    pub(super) owners: Vec<String>,
    pub(super) unowned: usize,
}

impl Board {
    /// Takes in a look; rates need two.
    pub(super) fn add(&mut self, look: Look) {
        if let Some(last) = &self.last {
            let took = look.at.saturating_duration_since(last.at);
            let topics = look.topics.iter().map(|topic| {
                let before = last.topics.iter().find(|other| other.name == topic.name);
                per_second(grown(topic.appended, before.map(|topic| topic.appended)), took)
            });
            let groups = look.groups.iter().map(|group| {
                let same = |other: &&Group| (&other.topic, &other.group) == (&group.topic, &group.group);
                let before = last.groups.iter().find(same).map(|group| settled(last, group));
                per_second(grown(settled(&look, group), before), took)
            });
            let rates: (Vec<u64>, Vec<u64>) = (topics.collect(), groups.collect());
            self.history.push_back((rates.0.iter().sum(), rates.1.iter().sum()));
            if self.history.len() > HISTORY {
                self.history.pop_front();
            }
            self.rates = Some(rates);
        }
        self.last = Some(look);
    }

    pub(super) fn rows(&self) -> Rows {
        let Some(look) = &self.last else { return Rows::default() };
        let none = (Vec::new(), Vec::new());
        let (topics, groups) = self.rates.as_ref().unwrap_or(&none);
        let rate = |rates: &[u64], at: usize| rates.get(at).copied().unwrap_or_default();
        let topics: Vec<_> = look
            .topics
            .iter()
            .enumerate()
            .map(|(at, topic)| TopicRow::new(topic, rate(topics, at)))
            .collect();
        let groups: Vec<_> = look
            .groups
            .iter()
            .enumerate()
            .map(|(at, group)| GroupRow::new(group, rate(groups, at)))
            .collect();
        Rows {
            in_per_s: topics.iter().map(|topic| topic.in_per_s).sum(),
            out_per_s: groups.iter().map(|group| group.out_per_s).sum(),
            lag: groups.iter().map(|group| group.lag).sum(),
            dead: groups.iter().map(|group| group.dead).sum(),
            history: self.history.iter().copied().collect(),
            topics,
            groups,
        }
    }
}

/// What was added since; nothing for what is new or was made anew.
fn grown(now: u64, before: Option<u64>) -> u64 {
    before.map_or(0, |before| now.saturating_sub(before))
}

/// How many records a group is through with.
fn settled(look: &Look, group: &Group) -> u64 {
    let topic = look.topics.iter().find(|topic| topic.name == group.topic);
    topic.map_or(0, |topic| topic.appended.saturating_sub(group.lag))
}

impl TopicRow {
    fn new(topic: &Topic, in_per_s: u64) -> Self {
        Self {
            topic: topic.name.clone(),
            partitions: topic.partitions,
            records: topic.records,
            delayed: topic.delayed,
            in_per_s,
            total: topic.appended,
        }
    }

    pub(super) fn cells(&self) -> [String; 6] {
        let [records, delayed, rate, total] =
            [self.records, self.delayed, self.in_per_s, self.total].map(units::count);
        [self.topic.clone(), self.partitions.to_string(), records, delayed, rate, total]
    }
}

impl GroupRow {
    fn new(group: &Group, out_per_s: u64) -> Self {
        let owners: BTreeSet<_> = group.partitions.iter().filter_map(|part| part.owner.clone()).collect();
        Self {
            topic: group.topic.clone(),
            group: group.group.clone(),
            lag: group.lag,
            oldest_ms: group.oldest_ms,
            due: group.due,
            dead: group.dead,
            out_per_s,
            members: group.members,
            owners: owners.into_iter().collect(),
            unowned: group.partitions.iter().filter(|part| part.owner.is_none()).count(),
        }
    }

    pub(super) fn cells(&self) -> [String; 9] {
        let [lag, due, dead, rate] = [self.lag, self.due, self.dead, self.out_per_s].map(units::count);
        let oldest = self.oldest_ms.map_or("-".to_owned(), units::age);
        let mut owners = self.owners.join(" ");
        if self.unowned > 0 {
            owners = format!("{owners} ({} without)", self.unowned).trim_start().to_owned();
        }
        let members = self.members.to_string();
        [self.topic.clone(), self.group.clone(), lag, oldest, due, dead, rate, members, owners]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    /// A look at one topic and one group.
    pub(in super::super) fn look(at: Instant, appended: u64, lag: u64) -> Look {
        let topic = serde_json::json!({
            "name": "orders", "partitions": 2, "records": appended / 2, "appended": appended, "delayed": 1, "max_payload": 1024,
        });
        let part = |partition: u32, owner: Option<&str>| {
            serde_json::json!({
                "partition": partition, "waiting": lag, "due": 0, "dead": 0, "owner": owner,
            })
        };
        let group = serde_json::json!({
            "topic": "orders", "group": "bar", "lag": lag, "due": 2, "dead": 3, "members": 1, "oldest_ms": 61_000,
            "partitions": [part(0, Some("till-1")), part(1, None)],
        });
        let (topic, group) = (serde_json::from_value(topic).unwrap(), serde_json::from_value(group).unwrap());
        Look { at, topics: vec![topic], groups: vec![group] }
    }

    #[test]
    fn rates_are_differences_of_totals_whatever_retention_removes() {
        let (mut board, now) = (Board::default(), Instant::now());
        assert!(board.rows().topics.is_empty());
        board.add(look(now, 1000, 100));
        assert_eq!(board.rows().in_per_s, 0);
        board.add(look(now + Duration::from_secs(2), 3000, 500));
        let rows = board.rows();
        assert_eq!((rows.in_per_s, rows.out_per_s, rows.lag, rows.dead), (1000, 800, 500, 3));
        assert_eq!(rows.history, [(1000, 800)]);
        assert_eq!(rows.groups[0].cells()[8], "till-1 (1 without)");
    }

    #[test]
    fn a_topic_that_was_made_anew_has_no_rate_and_the_history_is_bounded() {
        let (mut board, now) = (Board::default(), Instant::now());
        board.add(look(now, 1000, 0));
        board.add(look(now + Duration::from_secs(1), 10, 0));
        assert_eq!(board.rows().in_per_s, 0);
        for second in 2..400 {
            board.add(look(now + Duration::from_secs(second), 10, 0));
        }
        assert_eq!(board.rows().history.len(), HISTORY);
    }
}
