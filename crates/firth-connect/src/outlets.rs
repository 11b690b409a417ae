//! [`Outlets`]: the topic of a source and its further topics as one [`Sink`]: messages of an outbox
//! and dead letters are stored exactly once as events are.
//!
//! The partitions of all topics have numbers of their own here. They keep them while topics grow.

use crate::error::{Error, Result};
use crate::sink::{Appended, Sink};
use bytes::Bytes;
use firth::{Broker, Epoch, Message, SourceWriter};
use std::collections::{BTreeSet, HashMap};
use std::sync::{PoisonError, RwLock};

/// The topic of a source and its further topics as one sink. Messages of an outbox and dead letters
/// are stored exactly once, as events are.
#[derive(Debug)]
pub struct Outlets {
    /// The topic of the events first.
    writers: Vec<(String, SourceWriter)>,
    places: RwLock<Places>,
}

/// Which partition of which topic has which number.
#[derive(Debug, Default)]
struct Places {
    by_number: Vec<(usize, u32)>,
    numbers: HashMap<(usize, u32), u32>,
}

impl Places {
    /// Gives numbers to partitions that have none.
    fn complete(&mut self, writers: &[(String, SourceWriter)]) {
        for (topic, (_, writer)) in writers.iter().enumerate() {
            for partition in 0..writer.partitions() {
                let next = u32::try_from(self.by_number.len()).expect("partitions are counted in u32");
                let number = *self.numbers.entry((topic, partition)).or_insert(next);
                if number == next {
                    self.by_number.push((topic, partition));
                }
            }
        }
    }
}

impl Outlets {
    /// Those of a source under an epoch: the topic of its events, and others.
    pub async fn open(
        broker: &Broker,
        source: &str,
        epoch: Epoch,
        topic: &str,
        others: &BTreeSet<String>,
    ) -> Result<Self> {
        let mut writers = Vec::with_capacity(others.len() + 1);
        for name in std::iter::once(topic).chain(others.iter().map(String::as_str)) {
            let writer = broker.source_writer(name, source, epoch).await.map_err(|error| {
                let error = Error::from(error);
                Error::new(error.kind(), format!("topic {name}: {error}")).with_source(error)
            })?;
            writers.push((name.to_owned(), writer));
        }
        let mut places = Places::default();
        places.complete(&writers);
        Ok(Self { writers, places: RwLock::new(places) })
    }

    fn number(&self, topic: usize, partition: u32) -> u32 {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        *places.numbers.get(&(topic, partition)).expect("a writer tells of its own partitions")
    }

    fn place(&self, number: u32) -> (usize, u32) {
        self.places.read().unwrap_or_else(PoisonError::into_inner).by_number[number as usize]
    }
}

impl Sink for Outlets {
    fn partitions(&self) -> u32 {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        u32::try_from(places.by_number.len()).expect("partitions are counted in u32")
    }

    fn partition_for(&self, key: &[u8]) -> u32 {
        self.number(0, self.writers[0].1.partition_for(key))
    }

    fn takes_events(&self, partition: u32) -> bool {
        self.place(partition).0 == 0
    }

    fn outlet(&self, topic: &str, key: Option<&[u8]>) -> Option<u32> {
        let others = self.writers.iter().enumerate().skip(1);
        let (number, writer) = others
            .into_iter()
            .find_map(|(number, (name, writer))| (name == topic).then_some((number, writer)))?;
        // Without keys, one partition keeps the order.
        Some(self.number(number, key.map_or(0, |key| writer.partition_for(key))))
    }

    async fn marks(&self) -> Result<Vec<Option<Bytes>>> {
        let mut of_topics = Vec::with_capacity(self.writers.len());
        for (_, writer) in &self.writers {
            of_topics.push(writer.marks().await?);
        }
        let numbers = 0..self.partitions();
        let mark = |number| {
            let (topic, partition) = self.place(number);
            of_topics[topic].get(partition as usize).cloned().flatten()
        };
        Ok(numbers.map(mark).collect())
    }

    async fn append(&self, partition: u32, messages: Vec<Message>, upto: Bytes) -> Result<Appended> {
        let (topic, partition) = self.place(partition);
        Sink::append(&self.writers[topic].1, partition, messages, upto).await
    }

    fn max_payload(&self) -> usize {
        self.writers[0].1.max_payload()
    }

    fn max_payload_of(&self, partition: u32) -> usize {
        self.writers[self.place(partition).0].1.max_payload()
    }

    fn has_grown(&self) -> bool {
        self.writers.iter().any(|(_, writer)| writer.grown().is_some())
    }

    async fn grow(&self, upto: Bytes) -> Result<u32> {
        for (_, writer) in &self.writers {
            writer.grow(upto.clone()).await?;
        }
        self.places.write().unwrap_or_else(PoisonError::into_inner).complete(&self.writers);
        Ok(self.partitions())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn partitions_keep_their_numbers_while_topics_grow() {
        let broker = Broker::memory();
        broker.create_topic("changes").partitions(2).await.unwrap();
        broker.create_topic("mails").partitions(1).await.unwrap();
        let others = BTreeSet::from(["mails".to_owned()]);
        let outlets = Outlets::open(&broker, "shop", Epoch(1), "changes", &others).await.unwrap();
        assert_eq!(outlets.partitions(), 3);
        assert_eq!(outlets.outlet("mails", None), Some(2));
        assert_eq!(outlets.outlet("changes", None), None, "events alone go there");
        let message = || vec![Message::new("x")];
        outlets.append(2, message(), Bytes::from_static(b"1")).await.unwrap();
        let known = |mark: &Option<Bytes>| mark.as_ref().is_some_and(|mark| *mark == "1");
        let marks: Vec<bool> = outlets.marks().await.unwrap().iter().map(known).collect();
        assert_eq!(marks, [false, false, true]);
        broker.grow_topic("changes", 4).await.unwrap();
        while !outlets.has_grown() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(outlets.grow(Bytes::from_static(b"2")).await.unwrap(), 5);
        let takes: Vec<bool> = (0..5).map(|number| outlets.takes_events(number)).collect();
        assert_eq!(takes, [true, true, false, true, true]);
        outlets.append(4, message(), Bytes::from_static(b"3")).await.unwrap();
        assert_eq!(broker.admin().browse("changes", 3, firth::RecordId::ZERO, 9).await.unwrap().len(), 1);
        let missing = BTreeSet::from(["none".to_owned()]);
        let error = Outlets::open(&broker, "shop", Epoch(2), "changes", &missing).await.unwrap_err();
        assert!(error.to_string().contains("topic none"), "{error}");
    }
}
