//! The receiving half, for anyone's gateway: reads batches, drops what it has seen, keeps order, writes the answer.
//!
//! ```
//! use firth_router::receive::Inbox;
//! let mut inbox = Inbox::default();
//! let body = br#"{"gateway_id":"g","events":[{"seq":1,"partition_id":0,"epoch":1,"event_type":"insert","tenant":"t",
//!     "collection":"c","document_id":"d","subscriptions":[{"id":"s"}],"payload":{"n":1}}]}"#;
//! let mut got = Vec::new();
//! let answer = inbox.receive_json(body, |event| {
//!     got.push(event.seq);
//!     Ok(()) // Err("why".into()) refuses it: it comes again
//! })?;
//! assert_eq!((got, answer), (vec![1], br#"{"results":[{"status":"accepted"}]}"#.to_vec()));
//! // A repetition is answered alike and not handed out again.
//! inbox.receive_json(body, |_| unreachable!())?;
//! # Ok::<_, firth_router::Error>(())
//! ```

#[cfg(feature = "nats")]
pub mod nats;

use crate::error::{Error, Result};
use crate::lane::{Answer, Position};
use crate::wire::{BatchIn, EventIn, ResultLine, Results};
use std::collections::{HashMap, HashSet, VecDeque};

/// How many events of a partition are remembered, unless set.
const REMEMBERED: usize = 10_000;

/// Remembers what a gateway has accepted, so that repetitions do no harm.
///
/// Holds the places of the last events of each partition, 10 000 unless set; a router never has more than its queue of them on their way. Use
/// one inbox per gateway id, and keep it while the process lives.
#[derive(Debug)]
pub struct Inbox {
    partitions: HashMap<u32, Seen>,
    remembered: usize,
}

#[derive(Debug, Default)]
struct Seen {
    epoch: u64,
    places: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self::remembering(REMEMBERED)
    }
}

impl Inbox {
    /// An inbox that remembers so many events of each partition.
    pub fn remembering(events: usize) -> Self {
        Self { partitions: HashMap::new(), remembered: events.max(1) }
    }

    /// Goes through a batch in order. Events that were accepted before are accepted again without being handed out; those of a router that
    /// has lost the partition are refused; after a refusal, later events of the same document are refused too, so that order holds.
    pub fn receive(
        &mut self,
        batch: &BatchIn,
        mut handle: impl FnMut(&EventIn) -> std::result::Result<(), String>,
    ) -> Vec<Answer> {
        let mut stopped = HashSet::new();
        let mut answer = |inbox: &mut Self, event: &EventIn| {
            let document = (event.tenant.clone(), event.collection.clone(), event.document_id.clone());
            let position = Position { partition: event.partition_id, seq: event.seq };
            if inbox.is_stale(event) {
                return Answer::Refused("another router owns the partition".to_owned());
            }
            if stopped.contains(&document) {
                return Answer::Refused("an earlier event of the document was refused".to_owned());
            }
            if inbox.has(position) {
                return Answer::Accepted;
            }
            match handle(event) {
                Ok(()) => {
                    inbox.remember(position);
                    Answer::Accepted
                }
                Err(reason) => {
                    stopped.insert(document);
                    Answer::Refused(reason)
                }
            }
        };
        batch.events.iter().map(|event| answer(self, event)).collect()
    }

    /// As [`receive`](Self::receive), from the body of a request to the body of the answer. A gap in the batch is for the caller to read, by
    /// [`read_json`](Self::read_json).
    pub fn receive_json(
        &mut self,
        body: &[u8],
        handle: impl FnMut(&EventIn) -> std::result::Result<(), String>,
    ) -> Result<Vec<u8>> {
        let batch = Self::read_json(body)?;
        Ok(Self::write_json(&self.receive(&batch, handle)))
    }

    /// Reads the body of a request.
    pub fn read_json(body: &[u8]) -> Result<BatchIn> {
        serde_json::from_slice(body)
            .map_err(|error| Error::invalid("this is not a batch of events").with_source(error))
    }

    /// Writes the body of an answer.
    pub fn write_json(answers: &[Answer]) -> Vec<u8> {
        let results = Results { results: answers.iter().map(ResultLine::from).collect() };
        serde_json::to_vec(&results).expect("texts can always be written")
    }

    fn is_stale(&mut self, event: &EventIn) -> bool {
        let seen = self.partitions.entry(event.partition_id).or_default();
        seen.epoch = seen.epoch.max(event.epoch);
        event.epoch < seen.epoch
    }

    fn has(&self, position: Position) -> bool {
        self.partitions.get(&position.partition).is_some_and(|seen| seen.places.contains(&position.seq))
    }

    fn remember(&mut self, position: Position) {
        let seen = self.partitions.entry(position.partition).or_default();
        seen.places.insert(position.seq);
        seen.order.push_back(position.seq);
        if seen.order.len() > self.remembered
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.places.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn batch(events: &[(u64, u64, &str)]) -> BatchIn {
        let events: Vec<_> = events
            .iter()
            .map(|(seq, epoch, document)| {
                json!({ "seq": seq, "partition_id": 0, "epoch": epoch, "event_type": "insert", "tenant": "t", "collection": "c",
                        "document_id": document, "subscriptions": [{ "id": "s" }], "payload": {} })
            })
            .collect();
        let batch = json!({ "gateway_id": "g", "events": events, "gap": { "events": [{ "partition_id": 0, "seq": 9 }], "subscriptions": null } });
        Inbox::read_json(batch.to_string().as_bytes()).unwrap()
    }

    fn accepted(answers: &[Answer]) -> Vec<bool> {
        answers.iter().map(|answer| *answer == Answer::Accepted).collect()
    }

    #[test]
    fn after_a_refusal_the_rest_of_the_document_waits_and_repetitions_do_no_harm() {
        let (mut inbox, mut got) = (Inbox::default(), Vec::new());
        let events = batch(&[(1, 1, "a"), (2, 1, "b"), (3, 1, "a"), (4, 1, "b")]);
        let answers = inbox.receive(&events, |event| match event.seq {
            1 => Err("not now".to_owned()),
            seq => {
                got.push(seq);
                Ok(())
            }
        });
        assert_eq!(accepted(&answers), [false, true, false, true]);
        let answers = inbox.receive(&events, |event| {
            got.push(event.seq);
            Ok(())
        });
        assert_eq!(accepted(&answers), [true; 4]);
        assert_eq!(got, [2, 4, 1, 3]);
        assert_eq!(events.gap.unwrap().events[0].seq, 9);
    }

    #[test]
    fn a_router_that_lost_the_partition_is_refused() {
        let mut inbox = Inbox::default();
        let answers = inbox.receive(&batch(&[(1, 5, "a")]), |_| Ok(()));
        assert_eq!(accepted(&answers), [true]);
        let answers = inbox.receive(&batch(&[(2, 4, "a"), (3, 6, "a")]), |_| Ok(()));
        assert_eq!(accepted(&answers), [false, true]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut inbox = Inbox::remembering(3);
        for seq in 1..=10 {
            inbox.receive(&batch(&[(seq, 1, "a")]), |_| Ok(()));
        }
        assert_eq!(inbox.partitions[&0].places.len(), 3);
        assert!(Inbox::read_json(b"{}").is_err());
    }
}
