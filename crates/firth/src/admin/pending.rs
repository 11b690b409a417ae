//! Records that wait for another attempt, merged over partitions, sorted and paged.

use super::groups::where_it_is;
use super::{Admin, names};
use crate::error::Result;
use firth_engine::facet::Pending;
use firth_engine::limits::MAX_READ;
use firth_engine::{GroupName, Partition, RecordId};
use std::cmp::Reverse;
use std::time::Duration;

/// What to show, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingQuery {
    /// By what to sort.
    pub sort: PendingSort,
    /// Largest first.
    pub descending: bool,
    /// Only records with at least this many attempts, the next one included.
    pub min_attempt: u32,
    /// Only records that were sent at least this long ago.
    pub min_age: Duration,
    /// Only records that their owner has had for at least this long; zero: also those that wait.
    pub min_idle: Duration,
    /// How many to leave out at the front.
    pub skip: usize,
    /// How many to show; 0 means 100.
    pub max: usize,
}

/// By what pending records are sorted. Ties are sorted by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PendingSort {
    /// Partition and place.
    #[default]
    Id,
    /// Attempts.
    Attempt,
    /// When it is due; running ones first.
    Due,
    /// How long ago it was sent.
    Age,
    /// For how long its owner has had it; those that wait first.
    Idle,
}

/// A record that waits for another attempt, or runs one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingRecord {
    /// Its partition.
    pub partition: u32,
    /// Its place.
    pub id: RecordId,
    /// The attempt that comes next, or runs.
    pub attempt: u32,
    /// How many consumers vanished while they had it.
    pub crashes: u32,
    /// When it is due; `None` while its owner has it.
    pub due_in: Option<Duration>,
    /// How long ago it entered the log.
    pub age: Duration,
    /// For how long its owner has had it; `None` while it waits. Whether the owner lives is told by
    /// its heartbeat ([`GroupInfo`](super::GroupInfo)).
    pub idle: Option<Duration>,
    /// Why it failed last.
    pub reason: String,
}

/// A page of pending records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingPage {
    /// The records.
    pub records: Vec<PendingRecord>,
    /// How many match in all.
    pub total: usize,
}

impl Admin {
    /// The records of a group that wait for another attempt, or run one. First deliveries in flight
    /// are only known to their owners: see [`in_flight`](Self::in_flight), and
    /// [`GroupPartition::waiting`](super::GroupPartition::waiting) for their number together with
    /// those not yet read.
    pub async fn pending(&self, topic: &str, group: &str, query: PendingQuery) -> Result<PendingPage> {
        let (topic, group) = names(topic, group)?;
        let mut found = Vec::new();
        for at in self.broker.topic(topic.as_str()).await?.partitions() {
            found.push(self.pending_on(&at, &group, &query).await);
        }
        Ok(query.page(where_it_is(found)?.into_iter().flatten().collect()))
    }

    async fn pending_on(
        &self,
        at: &Partition,
        group: &GroupName,
        query: &PendingQuery,
    ) -> Result<Vec<PendingRecord>> {
        let mut found = Vec::new();
        let mut after = RecordId::ZERO;
        loop {
            let page = self.engine().pending(at, group, after, MAX_READ).await?;
            let Some(last) = page.last() else { return Ok(found) };
            after = last.id;
            let records = page.into_iter().map(|record| PendingRecord::new(at.index, record));
            found.extend(records.filter(|record| query.wants(record)));
        }
    }
}

impl PendingRecord {
    fn new(partition: u32, record: Pending) -> Self {
        let Pending { id, attempt, crashes, due_in, age, idle, reason, .. } = record;
        Self { partition, id, attempt, crashes, due_in, age, idle, reason }
    }
}

impl PendingQuery {
    fn wants(&self, record: &PendingRecord) -> bool {
        record.attempt >= self.min_attempt
            && record.age >= self.min_age
            && (self.min_idle.is_zero() || record.idle >= Some(self.min_idle))
    }

    /// Sorts and cuts. `found` comes sorted by partition and place.
    fn page(&self, mut found: Vec<PendingRecord>) -> PendingPage {
        match (self.sort, self.descending) {
            (PendingSort::Id, false) => {}
            (PendingSort::Id, true) => found.reverse(),
            (PendingSort::Attempt, false) => found.sort_by_key(|record| record.attempt),
            (PendingSort::Attempt, true) => found.sort_by_key(|record| Reverse(record.attempt)),
            (PendingSort::Age, false) => found.sort_by_key(|record| record.age),
            (PendingSort::Age, true) => found.sort_by_key(|record| Reverse(record.age)),
            (PendingSort::Idle, false) => found.sort_by_key(|record| record.idle),
            (PendingSort::Idle, true) => found.sort_by_key(|record| Reverse(record.idle)),
            (PendingSort::Due, false) => found.sort_by_key(|record| record.due_in),
            (PendingSort::Due, true) => found.sort_by_key(|record| Reverse(record.due_in)),
        }
        let total = found.len();
        let max = if self.max == 0 { 100 } else { self.max };
        PendingPage { records: found.into_iter().skip(self.skip).take(max).collect(), total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: u64, attempt: u32, due_secs: Option<u64>) -> PendingRecord {
        let due_in = due_secs.map(Duration::from_secs);
        PendingRecord {
            partition: 0,
            id: RecordId::new(1, seq),
            attempt,
            crashes: 0,
            due_in,
            age: Duration::from_secs(100 - seq * 10 + u64::from(attempt)),
            idle: due_in.is_none().then_some(Duration::from_secs(7)),
            reason: String::new(),
        }
    }

    #[test]
    fn pages_are_sorted_and_count_everything() {
        let found = || vec![record(1, 3, Some(9)), record(2, 5, None), record(3, 3, Some(1))];
        let ids = |query: PendingQuery| {
            let page = query.page(found());
            assert_eq!(page.total, 3);
            page.records.iter().map(|record| record.id.seq).collect::<Vec<_>>()
        };
        let by = |sort, descending| PendingQuery { sort, descending, ..PendingQuery::default() };
        assert_eq!(ids(by(PendingSort::Id, true)), [3, 2, 1]);
        assert_eq!(ids(by(PendingSort::Attempt, true)), [2, 1, 3]);
        assert_eq!(ids(by(PendingSort::Due, false)), [2, 3, 1]);
        assert_eq!(ids(by(PendingSort::Age, true)), [1, 2, 3]);
        assert_eq!(ids(by(PendingSort::Idle, true)), [2, 1, 3]);
        assert_eq!(ids(PendingQuery { skip: 1, max: 1, ..PendingQuery::default() }), [2]);
    }

    #[test]
    fn each_filter_leaves_out_what_is_too_small() {
        let wants = |query: PendingQuery| {
            let found = [record(1, 3, Some(9)), record(2, 5, None), record(3, 4, Some(1))];
            found.iter().filter(|record| query.wants(record)).map(|record| record.id.seq).collect::<Vec<_>>()
        };
        assert_eq!(wants(PendingQuery::default()), [1, 2, 3]);
        assert_eq!(wants(PendingQuery { min_attempt: 4, ..PendingQuery::default() }), [2, 3]);
        assert_eq!(
            wants(PendingQuery { min_age: Duration::from_secs(85), ..PendingQuery::default() }),
            [1, 2]
        );
        assert_eq!(wants(PendingQuery { min_idle: Duration::from_secs(7), ..PendingQuery::default() }), [2]);
        assert!(
            wants(PendingQuery { min_idle: Duration::from_secs(8), ..PendingQuery::default() }).is_empty()
        );
    }
}
