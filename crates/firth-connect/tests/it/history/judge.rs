//! Compares what the database noted with what the topic holds.

use super::workload::TABLES;
use firth::{Broker, RecordId};
use firth_router::event::{Event, Operation};
use firth_testkit::PostgresServer;
use std::collections::BTreeMap;

/// The history of one document: its changes, and the truncates of its table.
type Story = Vec<String>;

/// What the database committed.
#[derive(Debug)]
pub(super) struct Truth {
    stories: BTreeMap<(String, String), Story>,
    truncates: BTreeMap<String, usize>,
    pub(super) changes: usize,
}

impl Truth {
    /// How many records tell it: a truncate is told in each partition.
    pub(super) fn records(&self, partitions: usize) -> usize {
        self.changes + self.truncates.values().sum::<usize>() * partitions
    }

    pub(super) async fn of(server: &PostgresServer, schema: &str) -> Self {
        let sql = format!("SELECT tbl, op, id, version FROM {schema}.truth ORDER BY seq");
        let rows = server.sql(sql).await;
        let rows: Vec<Vec<&str>> = rows.lines().map(|line| line.split('|').collect()).collect();
        let is_truncate = |row: &[&str], table: &str| row[0] == table && row[1] == "truncate";
        let mut truth = Self { stories: BTreeMap::new(), truncates: BTreeMap::new(), changes: 0 };
        for row in &rows {
            match row[1] {
                "truncate" => *truth.truncates.entry(row[0].to_owned()).or_default() += 1,
                _ => {
                    truth.changes += 1;
                    truth.stories.entry((row[0].to_owned(), row[2].to_owned())).or_default();
                }
            }
        }
        for ((table, id), story) in &mut truth.stories {
            let own = rows.iter().filter(|row| is_truncate(row, table) || (row[0] == table && row[2] == id));
            story.extend(own.map(|row| match row[1] {
                "truncate" | "delete" => row[1].to_owned(),
                op => format!("{op} {}", row[3]),
            }));
        }
        truth
    }
}

/// The events of each partition of a topic.
pub(crate) async fn partitions(broker: &Broker, topic: &str) -> firth::Result<Vec<Vec<Event>>> {
    let mut partitions = Vec::new();
    for partition in 0..broker.topic(topic).await?.config.partitions {
        let mut events = Vec::new();
        let mut after = RecordId::ZERO;
        loop {
            let page = broker.admin().browse(topic, partition, after, 1_000).await?;
            let Some(last) = page.last() else { break };
            after = last.id();
            events.extend(page.iter().map(|record| Event::from_payload(record.payload()).unwrap()));
        }
        partitions.push(events);
    }
    Ok(partitions)
}

/// What the topic holds, partition by partition.
#[derive(Debug)]
pub(super) struct Held {
    partitions: Vec<Vec<Event>>,
}

impl Held {
    pub(super) async fn of(broker: &Broker, topic: &str) -> firth::Result<Self> {
        Ok(Self { partitions: partitions(broker, topic).await? })
    }

    fn all(&self) -> impl Iterator<Item = &Event> {
        self.partitions.iter().flatten()
    }

    /// Changes of documents.
    pub(super) fn changes(&self) -> usize {
        self.all().filter(|event| !event.is_control()).count()
    }

    /// Whether as much is here as was committed, or more.
    pub(super) fn is_complete(&self, truth: &Truth) -> bool {
        self.changes() >= truth.changes && self.all().count() >= truth.records(self.partitions.len())
    }

    /// Each committed change is here once, and in order with all of its document.
    pub(super) fn check(&self, truth: &Truth, label: &str) {
        let mut seen: BTreeMap<(String, String), Story> = BTreeMap::new();
        for events in &self.partitions {
            for table in TABLES {
                let of_table: Vec<_> = events.iter().filter(|event| *event.collection == *table).collect();
                let truncates = of_table.iter().filter(|event| event.is_control()).count();
                let expected = truth.truncates.get(table).copied().unwrap_or_default();
                assert_eq!(truncates, expected, "{label}: truncates of {table}");
                for event in of_table.iter().filter(|event| !event.is_control()) {
                    check_body(event, label);
                    let name = (table.to_owned(), event.key.to_string());
                    seen.entry(name).or_insert_with(|| {
                        let own = of_table.iter().filter(|one| one.is_control() || one.key == event.key);
                        own.map(|one| told(one)).collect()
                    });
                }
            }
        }
        for (name, story) in &truth.stories {
            assert_eq!(seen.get(name), Some(story), "{label}: the story of {name:?}");
        }
        assert_eq!(seen.len(), truth.stories.len(), "{label}: documents");
        assert_eq!(self.changes(), truth.changes, "{label}: changes");
    }
}

fn told(event: &Event) -> String {
    let version = || event.after.as_ref().unwrap().to_value().unwrap()["version"].clone();
    match event.operation {
        Operation::Insert => format!("insert {}", version()),
        Operation::Update => format!("update {}", version()),
        other => other.as_str().to_owned(),
    }
}

/// A large value is the one that its row says, or is named as missing.
fn check_body(event: &Event, label: &str) {
    let Some(after) = &event.after else { return };
    let after = after.to_value().unwrap();
    match after.get("body") {
        Some(body) => {
            let start = format!("v{}:", after["body_version"]);
            assert!(body.as_str().unwrap().starts_with(&start), "{label}: a body that is not the row's");
        }
        None => {
            assert_eq!(event.missing.iter().map(|name| &**name).collect::<Vec<_>>(), ["body"], "{label}");
            assert_eq!(&*event.collection, "brief", "{label}: a row that is told in full lacks nothing");
        }
    }
}
