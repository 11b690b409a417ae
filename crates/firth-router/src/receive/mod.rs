//! The receiving half, for anyone's gateway: reads batches, drops what it has seen, keeps order,
//! writes the answer.
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
use crate::lane::Answer;
use crate::wire::{BatchIn, EventIn, ResultLine, Results};
use std::collections::{HashMap, HashSet, VecDeque};

/// How many events of a partition are remembered, unless set.
const REMEMBERED: usize = 10_000;

/// Remembers what a gateway has accepted, so that repetitions do no harm.
///
/// Holds the places of the last events of each topic and partition, 10 000 unless set; a router
/// never has more than its queue of them on their way. Use one inbox per gateway id, and keep it
/// while the process lives.
#[derive(Debug)]
pub struct Inbox {
    topics: HashMap<String, Partitions>,
    remembered: usize,
    went_back: bool,
}

type Partitions = HashMap<u32, Seen>;

#[derive(Debug, Default)]
struct Seen {
    epoch: u64,
    /// When the record with this number was appended; 0 if the router does not say.
    places: HashMap<u64, u64>,
    order: VecDeque<u64>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self::remembering(REMEMBERED)
    }
}

impl Inbox {
    /// An inbox that remembers `events` events of each partition.
    pub fn remembering(events: usize) -> Self {
        Self { topics: HashMap::new(), remembered: events.max(1), went_back: false }
    }

    /// Goes through a batch in order. Events that were accepted before are accepted again without
    /// being handed out; those of a router that has lost the partition are refused; after a
    /// refusal, later events of the same document are refused too, so that order holds.
    pub fn receive(
        &mut self,
        batch: &BatchIn,
        mut handle: impl FnMut(&EventIn) -> std::result::Result<(), String>,
    ) -> Vec<Answer> {
        let remembered = self.remembered;
        let mut went_back = false;
        let partitions = self.of_topic(&batch.topic);
        let mut stopped = HashSet::new();
        let mut answer = |event: &EventIn| {
            let document = (event.tenant.clone(), event.collection.clone(), event.document_id.clone());
            let seen = partitions.entry(event.partition_id).or_default();
            if seen.is_stale(event.epoch) {
                return Answer::Refused("another router owns the partition".to_owned());
            }
            if stopped.contains(&document) {
                return Answer::Refused("an earlier event of the document was refused".to_owned());
            }
            let place = seen.has(event.seq, event.appended_ms);
            went_back |= place == Place::GivenAgain;
            if place == Place::Known {
                return Answer::Accepted;
            }
            match handle(event) {
                Ok(()) => {
                    seen.remember(event.seq, event.appended_ms, remembered);
                    Answer::Accepted
                }
                Err(reason) => {
                    stopped.insert(document);
                    Answer::Refused(reason)
                }
            }
        };
        let answers = batch.events.iter().map(&mut answer).collect();
        self.went_back |= went_back;
        answers
    }

    /// Whether, since this was last asked, a partition went back: a crash or a failover of the
    /// topic's server took back events that were accepted here, and gave their numbers to others.
    /// Those are handed out, but what was built from the lost ones must be fetched anew.
    pub fn take_went_back(&mut self) -> bool {
        std::mem::take(&mut self.went_back)
    }

    /// As [`receive`](Self::receive), from the body of a request to the body of the answer. A gap
    /// in the batch is for the caller to read, by [`read_json`](Self::read_json).
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

    /// What is remembered of a topic. A router that is older than the field names none: that is
    /// taken for the only topic there is, so that repetitions are recognised across its upgrade.
    fn of_topic(&mut self, topic: &str) -> &mut Partitions {
        let known = match topic {
            "" if self.topics.len() == 1 => self.topics.keys().next().cloned().unwrap_or_default(),
            topic => topic.to_owned(),
        };
        if !self.topics.contains_key(&known) {
            let unnamed = self.topics.remove("").unwrap_or_default();
            self.topics.insert(known.clone(), unnamed);
        }
        self.topics.entry(known).or_default()
    }
}

/// What is known of an event's place.
#[derive(PartialEq, Eq)]
enum Place {
    New,
    /// The event was accepted before.
    Known,
    /// The log lost the event that was accepted here, and gave its number to another.
    GivenAgain,
}

impl Seen {
    fn is_stale(&mut self, epoch: u64) -> bool {
        self.epoch = self.epoch.max(epoch);
        epoch < self.epoch
    }

    fn has(&mut self, seq: u64, appended_ms: u64) -> Place {
        match self.places.get(&seq) {
            None => Place::New,
            Some(&known) if known == appended_ms || known == 0 || appended_ms == 0 => Place::Known,
            Some(_) => {
                // None of those that are remembered says anything any more.
                (self.places, self.order) = Default::default();
                Place::GivenAgain
            }
        }
    }

    fn remember(&mut self, seq: u64, appended_ms: u64, most: usize) {
        self.places.insert(seq, appended_ms);
        self.order.push_back(seq);
        if self.order.len() > most
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
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
        let mut inbox = Inbox::default();
        let mut got = Vec::new();
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
    fn k04_a_number_that_is_given_again_is_another_event() {
        let mut inbox = Inbox::default();
        let appended = |seq: u64, ms: u64| {
            let mut batch = batch(&[(seq, 1, "a")]);
            batch.events[0].appended_ms = ms;
            batch
        };
        let mut got = Vec::new();
        for (seq, ms) in [(1, 100), (2, 200), (3, 300), (3, 300), (2, 9000), (3, 9001), (3, 9001), (3, 0)] {
            let answers = inbox.receive(&appended(seq, ms), |event| {
                got.push((event.seq, event.appended_ms));
                Ok(())
            });
            assert_eq!(accepted(&answers), [true]);
            assert_eq!(inbox.take_went_back(), (seq, ms) == (2, 9000));
        }
        assert_eq!(got, [(1, 100), (2, 200), (3, 300), (2, 9000), (3, 9001)]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut inbox = Inbox::remembering(3);
        for seq in 1..=10 {
            inbox.receive(&batch(&[(seq, 1, "a")]), |_| Ok(()));
        }
        assert_eq!(inbox.topics[""][&0].places.len(), 3);
        assert!(Inbox::read_json(b"{}").is_err());
    }

    #[test]
    fn r05_places_of_one_topic_are_not_those_of_another() {
        let mut inbox = Inbox::default();
        let mut got = Vec::new();
        for (topic, epoch) in [("a", 5), ("b", 4), ("a", 5), ("b", 4), ("b", 3)] {
            let batch = BatchIn { topic: topic.to_owned(), ..batch(&[(1, epoch, "d")]) };
            let answers = inbox.receive(&batch, |_| {
                got.push(topic);
                Ok(())
            });
            assert_eq!(accepted(&answers), [epoch > 3], "{topic} {epoch}");
        }
        assert_eq!(got, ["a", "b"]);
    }

    #[test]
    fn r05_a_router_that_names_no_topic_is_recognised_when_it_does() {
        let mut inbox = Inbox::default();
        let mut count = 0;
        for topic in ["", "a", ""] {
            let batch = BatchIn { topic: topic.to_owned(), ..batch(&[(1, 1, "d")]) };
            inbox.receive(&batch, |_| {
                count += 1;
                Ok(())
            });
        }
        assert_eq!(count, 1);
    }
}
