//! A batch in parts that a server's limit allows. Pure.
//!
//! When an event is refused, later ones of its document are left out of the parts that follow, and
//! count as refused: they must come after it.

use crate::error::Result;
use crate::lane::{Answer, Batch, Item, name_of};
use crate::registry::Gateway;
use crate::wire::BatchOut;
use std::collections::HashSet;
use std::ops::Range;

pub(super) struct Parts<'a> {
    to: &'a Gateway,
    node: &'a str,
    batch: &'a Batch,
    limit: usize,
    /// What is left, the next one last.
    left: Vec<Range<usize>>,
    /// Places in the batch of the part that is on its way.
    sent: Vec<usize>,
    answers: Vec<Option<Answer>>,
    stopped: HashSet<(String, String, String)>,
}

/// The next part.
pub(super) struct Next {
    pub(super) body: Vec<u8>,
    /// Message id: the same events get the same id, regardless of the batch that carries them.
    pub(super) id: String,
    pub(super) events: usize,
}

impl<'a> Parts<'a> {
    pub(super) fn new(to: &'a Gateway, node: &'a str, batch: &'a Batch, limit: usize) -> Self {
        let all = 0..batch.items.len();
        let answers = vec![None; batch.items.len()];
        Self { to, node, batch, limit, left: vec![all], sent: Vec::new(), answers, stopped: HashSet::new() }
    }

    /// The next part to send; its answers must be given before the one after it is asked for.
    pub(super) fn next(&mut self) -> Result<Option<Next>> {
        while let Some(range) = self.left.pop() {
            let is_first = range.start == 0;
            let mut places: Vec<usize> = Vec::with_capacity(range.len());
            for place in range.clone() {
                match self.stopped.contains(&document(&self.batch.items[place])) {
                    true => self.refuse(place, "an earlier event of the document was refused".to_owned()),
                    false => places.push(place),
                }
            }
            let gap = self.batch.gap.as_ref().filter(|_| is_first);
            if places.is_empty() && gap.is_none() {
                continue;
            }
            let items: Vec<Item> = places.iter().map(|place| self.batch.items[*place].clone()).collect();
            let out = BatchOut { gap, events: &items, ..BatchOut::new(&self.to.id, self.node, self.batch) };
            let body = out.to_json()?;
            if body.len() > self.limit && items.len() > 1 {
                let middle = range.start + range.len() / 2;
                self.left.extend([middle..range.end, range.start..middle]);
                continue;
            }
            if body.len() > self.limit && !items.is_empty() {
                let reason = format!(
                    "the event has {} bytes as JSON; the NATS server takes {} (its max_payload)",
                    body.len(),
                    self.limit
                );
                self.stopped.insert(document(&items[0]));
                places.into_iter().for_each(|place| self.refuse(place, reason.clone()));
                continue;
            }
            self.sent = places;
            return Ok(Some(Next { body, id: self.id(&items, is_first), events: items.len() }));
        }
        Ok(None)
    }

    /// Takes note of the answers to the part that was sent. Missing ones count as refused.
    pub(super) fn answered(&mut self, answers: Vec<Answer>) {
        let mut answers = answers.into_iter();
        for place in std::mem::take(&mut self.sent) {
            match answers.next() {
                Some(Answer::Accepted) => self.answers[place] = Some(Answer::Accepted),
                Some(Answer::Refused(reason)) => self.refuse(place, reason),
                None => self.refuse(place, "the gateway gave no answer to this event".to_owned()),
            }
        }
    }

    /// One answer per event of the batch.
    pub(super) fn into_answers(self) -> Vec<Answer> {
        let missing = || Answer::Refused("the gateway gave no answer to this event".to_owned());
        self.answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
    }

    fn refuse(&mut self, place: usize, reason: String) {
        self.stopped.insert(document(&self.batch.items[place]));
        self.answers[place] = Some(Answer::Refused(reason));
    }

    fn id(&self, items: &[Item], is_first: bool) -> String {
        let gap = self.batch.gap.as_ref().filter(|_| is_first);
        format!("{}:{}", self.to.id, name_of(&self.batch.topic, items, gap))
    }
}

fn document(item: &Item) -> (String, String, String) {
    let event = &item.event;
    (event.tenant.to_string(), event.collection.to_string(), event.key.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Document, Event, Operation};
    use crate::lane::{Gap, Position};
    use crate::name::{GatewayId, Tenant};
    use serde_json::json;
    use std::sync::Arc;

    fn batch(events: &[(&str, usize)]) -> Batch {
        let item = |(place, (key, size)): (usize, &(&str, usize))| {
            let text = json!({ "text": "x".repeat(*size) });
            let event = Event::new(Operation::Insert, Tenant::new("t").unwrap(), "c", *key)
                .with_after(Document::from_value(&text).unwrap());
            Item::new(Position { partition: 0, seq: place as u64 }, 1, Arc::new(event), &[])
        };
        let items = Arc::new(events.iter().enumerate().map(item).collect());
        Batch { id: 1, topic: "changes".into(), items, gap: None }
    }

    /// The keys in each part, with the answers that `answer` gives.
    fn run(batch: &Batch, limit: usize, refuses: &str) -> (Vec<Vec<String>>, Vec<bool>, HashSet<String>) {
        let gateway = crate::registry::Gateway::new(GatewayId::new("g").unwrap(), "");
        let (mut parts, mut seen, mut ids) =
            (Parts::new(&gateway, "n", batch, limit), Vec::new(), HashSet::new());
        while let Some(next) = parts.next().unwrap() {
            assert!(next.body.len() <= limit);
            let body: serde_json::Value = serde_json::from_slice(&next.body).unwrap();
            let keys =
                body["events"].as_array().unwrap().iter().map(|event| event["document_id"].as_str().unwrap());
            let keys: Vec<String> = keys.map(ToOwned::to_owned).collect();
            assert_eq!(keys.len(), next.events);
            let answer = |key: &String| match key == refuses {
                true => Answer::Refused("no".to_owned()),
                false => Answer::Accepted,
            };
            parts.answered(keys.iter().map(answer).collect());
            seen.push(keys);
            ids.insert(next.id);
        }
        let answers = parts.into_answers().iter().map(|answer| *answer == Answer::Accepted).collect();
        (seen, answers, ids)
    }

    #[test]
    fn parts_are_small_enough_in_order_and_skip_documents_with_a_refused_event() {
        let events =
            [("a", 300), ("b", 300), ("a", 300), ("c", 300), ("b", 300), ("d", 3000), ("d", 10), ("c", 10)];
        let whole = batch(&events);
        let (seen, answers, ids) = run(&whole, 1 << 20, "");
        assert_eq!((seen.len(), answers), (1, vec![true; 8]));
        let again = run(&whole, 1 << 20, "");
        assert_eq!(again.2, ids, "the same events have the same id");
        let (seen, answers, ids) = run(&whole, 1200, "b");
        assert_eq!(answers, [true, false, true, true, false, false, false, true]);
        let flat: Vec<&str> = seen.iter().flatten().map(String::as_str).collect();
        assert_eq!(flat.iter().filter(|key| **key == "b").count(), 1, "{flat:?}");
        assert!(!flat.contains(&"d"), "what cannot be sent is refused, and holds back what follows");
        assert!(seen.len() > 2 && ids.len() == seen.len(), "{flat:?}");
    }

    #[test]
    fn a_marker_alone_is_a_part_and_missing_answers_are_refusals() {
        let gateway = crate::registry::Gateway::new(GatewayId::new("g").unwrap(), "");
        let mut only_gap = batch(&[]);
        assert!(Parts::new(&gateway, "n", &only_gap, 1000).next().unwrap().is_none());
        only_gap.gap = Some(Gap::default());
        assert!(Parts::new(&gateway, "n", &only_gap, 1000).next().unwrap().is_some());
        let two = batch(&[("a", 1), ("b", 1)]);
        let mut parts = Parts::new(&gateway, "n", &two, 1 << 20);
        parts.next().unwrap().unwrap();
        parts.answered(vec![Answer::Accepted]);
        assert!(parts.next().unwrap().is_none());
        assert!(matches!(&parts.into_answers()[..], [Answer::Accepted, Answer::Refused(_)]));
    }
}
