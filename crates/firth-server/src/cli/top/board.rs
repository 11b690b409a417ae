//! From the server's samples to what is shown (pure).

use crate::cli::units;
use crate::wire::{GroupStats, ServerSeries, StatsShown, TopicStats};
use serde::Serialize;
use std::collections::VecDeque;

/// How many steps of the past are shown.
const HISTORY: usize = 900;

pub(super) const TOPIC_HEAD: [&str; 6] = ["TOPIC", "PARTITIONS", "RECORDS", "DELAYED", "IN/S", "TOTAL"];
pub(super) const GROUP_HEAD: [&str; 10] =
    ["TOPIC", "GROUP", "LAG", "OLDEST", "DUE", "DEAD", "OUT/S", "TAKES", "MEMBERS", "OWNERS"];

/// The newest figures, and the rates before them.
#[derive(Default)]
pub(super) struct Board {
    last: Vec<StatsShown>,
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
    /// How many topics there are; the server samples the busiest.
    pub(super) topics_total: usize,
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
    /// How long a delivery takes, of clients of this server.
    pub(super) handling_ms: Option<f64>,
    pub(super) members: usize,
    /// The first of the members that own partitions, how many there are, and partitions without.
    pub(super) owners: Vec<String>,
    pub(super) owner_count: usize,
    pub(super) unowned: usize,
}

impl Board {
    /// After which time the board lacks samples.
    pub(super) fn after_ms(&self) -> u64 {
        self.last.first().map_or(0, |stats| stats.time_ms)
    }

    /// Takes in what the server sampled: of all topics at once, or of some, one by one.
    pub(super) fn add(&mut self, looks: Vec<StatsShown>) {
        let is_new = looks.first().is_some_and(|stats| stats.time_ms > self.after_ms());
        match looks.first().and_then(|stats| stats.total.as_ref()) {
            Some(total) => self.history.extend(rates(total)),
            None if is_new => self.history.push_back(sums(&looks)),
            None => {}
        }
        self.history.drain(..self.history.len().saturating_sub(HISTORY));
        self.last = looks;
    }

    pub(super) fn rows(&self) -> Rows {
        let sum = |column: fn(&StatsShown) -> u64| self.last.iter().map(column).sum();
        let is_of_all = self.last.first().is_some_and(|stats| stats.total.is_some());
        let newest = self.history.back().copied().filter(|_| is_of_all);
        let (in_per_s, out_per_s) = newest.unwrap_or_else(|| sums(&self.last));
        Rows {
            topics: self.last.iter().flat_map(|stats| &stats.topics).map(TopicRow::new).collect(),
            groups: self.last.iter().flat_map(|stats| &stats.groups).map(GroupRow::new).collect(),
            in_per_s,
            out_per_s,
            lag: sum(|stats| stats.lag),
            dead: sum(|stats| stats.dead),
            topics_total: self.last.first().map_or(0, |stats| stats.topics_total),
            history: self.history.iter().copied().collect(),
        }
    }
}

fn whole(rate: f64) -> u64 {
    rate.round().max(0.0) as u64
}

/// Steps that have samples: records in and out per second.
fn rates(total: &ServerSeries) -> impl Iterator<Item = (u64, u64)> {
    let steps = total.produced.iter().zip(&total.settled);
    steps.filter_map(|(produced, settled)| Some((whole((*produced)?), whole((*settled)?))))
}

fn sums(looks: &[StatsShown]) -> (u64, u64) {
    let topics = looks.iter().flat_map(|stats| &stats.topics).map(|topic| topic.produced_per_second);
    let groups = looks.iter().flat_map(|stats| &stats.groups).map(|group| group.settled_per_second);
    (whole(topics.sum()), whole(groups.sum()))
}

impl TopicRow {
    fn new(topic: &TopicStats) -> Self {
        Self {
            topic: topic.topic.clone(),
            partitions: topic.partitions,
            records: topic.records,
            delayed: topic.delayed,
            in_per_s: whole(topic.produced_per_second),
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
    fn new(group: &GroupStats) -> Self {
        Self {
            topic: group.topic.clone(),
            group: group.group.clone(),
            lag: group.lag,
            oldest_ms: group.oldest_ms,
            due: group.due,
            dead: group.dead,
            out_per_s: whole(group.settled_per_second),
            handling_ms: group.handling_ms,
            members: group.members,
            owners: group.owners.clone(),
            owner_count: group.owner_count,
            unowned: group.unowned,
        }
    }

    pub(super) fn cells(&self) -> [String; 10] {
        let [lag, due, dead, rate] = [self.lag, self.due, self.dead, self.out_per_s].map(units::count);
        let oldest = self.oldest_ms.map_or("-".to_owned(), units::age);
        let takes = self.handling_ms.map_or("-".to_owned(), |ms| format!("{ms:.0} ms"));
        let mut owners = self.owners.join(" ");
        let more = self.owner_count.saturating_sub(self.owners.len());
        if more > 0 {
            owners = format!("{owners} and {more} more");
        }
        if self.unowned > 0 {
            owners = format!("{owners} ({} without)", self.unowned).trim_start().to_owned();
        }
        let members = self.members.to_string();
        [self.topic.clone(), self.group.clone(), lag, oldest, due, dead, rate, takes, members, owners]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// What a server sampled of one topic and one group until now; `rates` are its newest steps.
    pub(in super::super) fn sampled(time_ms: u64, total: &Value) -> StatsShown {
        serde_json::from_value(json!({
            "time_ms": time_ms, "step_ms": 1000, "topics_total": 1, "topics_sampled": 1, "groups_sampled": 1,
            "lag": 500, "dead": 3, "total": total,
            "topics": [{ "topic": "orders", "partitions": 2, "records": 1500, "appended": 3000, "delayed": 1,
                "produced_per_second": 1499.6 }],
            "groups": [{ "topic": "orders", "group": "bar", "lag": 500, "due": 2, "dead": 3, "oldest_ms": 61_000,
                "members": 5, "owners": ["till-1", "till-2", "till-3"], "owner_count": 4, "unowned": 1,
                "settled_per_second": 1100.2, "handling_ms": 12.4 }],
        }))
        .unwrap()
    }

    pub(in super::super) fn series(produced: &[Option<f64>]) -> Value {
        let settled: Vec<_> = produced.iter().map(|rate| rate.map(|rate| rate - 400.0)).collect();
        json!({ "from_ms": 0, "produced": produced, "settled": settled, "lag": [], "dead": [], "memory": [],
            "disk": [], "disk_free": [] })
    }

    #[test]
    fn the_past_comes_from_the_server_and_is_bounded() {
        let mut board = Board::default();
        assert!(board.rows().topics.is_empty() && board.after_ms() == 0);
        board.add(vec![sampled(5000, &series(&[None, Some(1000.0), None, Some(1500.0)]))]);
        let rows = board.rows();
        assert_eq!((rows.in_per_s, rows.out_per_s, rows.lag, rows.dead), (1500, 1100, 500, 3));
        assert_eq!((rows.history, board.after_ms()), (vec![(1000, 600), (1500, 1100)], 5000));
        board.add(vec![sampled(5000, &series(&[]))]);
        assert_eq!(board.rows().history.len(), 2, "nothing new");
        board.add(vec![sampled(5000, &series(&[Some(500.0); 2 * HISTORY]))]);
        assert_eq!(board.rows().history.len(), HISTORY);
    }

    #[test]
    fn some_topics_are_added_up_once_for_each_sample() {
        let mut board = Board::default();
        for time_ms in [1000, 1000, 2000] {
            board.add(vec![sampled(time_ms, &Value::Null), sampled(time_ms, &Value::Null)]);
        }
        let rows = board.rows();
        assert_eq!((rows.in_per_s, rows.out_per_s, rows.lag, rows.groups.len()), (2999, 2200, 1000, 2));
        assert_eq!(rows.history, [(2999, 2200), (2999, 2200)]);
    }

    #[test]
    fn owners_are_named_as_far_as_there_is_room() {
        let group = GroupRow::new(&sampled(1, &Value::Null).groups[0]);
        assert_eq!(
            group.cells()[6..],
            ["1 100", "12 ms", "5", "till-1 till-2 till-3 and 1 more (1 without)"]
        );
    }
}
