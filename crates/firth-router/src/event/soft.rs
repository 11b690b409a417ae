//! Soft deletes: documents that are marked instead of removed, as those see it for whom a marked
//! document is not there.

use super::{Document, Event, Operation};
use crate::error::Result;

impl Event {
    /// The event for those for whom a document is gone when its field `mark` is set: there, and
    /// neither `null` nor `false`. For sources that mark documents instead of removing them; `None`
    /// if nothing happened that anybody can see.
    ///
    /// | before | after | becomes |
    /// |---|---|---|
    /// | visible, or not told | marked | a delete, with the document as it was last seen (or else as it is), so that filters match |
    /// | marked | visible | an insert: it was revived |
    /// | marked, or none (an insert, a scan) | marked | nothing |
    /// | marked | removed for good | nothing: that was told when it was marked |
    /// | anything else | | stays as it is |
    ///
    /// Let the source tell old images: without them a revived document looks updated, and a change
    /// of a marked one looks like another delete.
    ///
    /// ```
    /// # use firth_router::event::{Event, Operation};
    /// let marked = r#"{"op":"update","tenant":"acme","collection":"orders","key":"7","before":{"n":1},"after":{"n":1,"deleted":true}}"#;
    /// let seen = Event::from_json(marked.as_bytes())?.without_marked("deleted")?.expect("somebody could see it");
    /// assert_eq!((seen.operation, seen.after), (Operation::Delete, None));
    /// # Ok::<_, firth_router::Error>(())
    /// ```
    pub fn without_marked(mut self, mark: &str) -> Result<Option<Self>> {
        let is_marked = |image: &Option<Document>| match image {
            Some(document) => document.is_set(mark).map(Some),
            None => Ok(None),
        };
        match (self.operation, is_marked(&self.before)?, is_marked(&self.after)?) {
            (_, Some(true), Some(true))
            | (Operation::Insert | Operation::Snapshot, _, Some(true))
            | (Operation::Delete, Some(true), _) => return Ok(None),
            (Operation::Update | Operation::Replace, _, Some(true)) => {
                let last = self.after.take();
                (self.operation, self.before) = (Operation::Delete, self.before.or(last));
            }
            (Operation::Update | Operation::Replace, Some(true), Some(false)) => {
                (self.operation, self.before) = (Operation::Insert, None);
            }
            _ => {}
        }
        Ok(Some(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Tenant;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// What is written next: nothing (removed), or a document with this mark.
    fn writes() -> impl Strategy<Value = Option<Value>> {
        let marks = prop::sample::select(vec![
            json!(null),
            json!(false),
            json!(true),
            json!("2026-01-01T00:00:00Z"),
            json!(0),
        ]);
        let written = (0..9, prop::option::of(marks))
            .prop_map(|(n, mark)| mark.map_or(json!({ "n": n }), |mark| json!({ "n": n, "gone": mark })));
        prop::option::weighted(0.8, written)
    }

    fn is_visible(document: &Value) -> bool {
        matches!(document.get("gone"), None | Some(Value::Null | Value::Bool(false)))
    }

    /// The event of a write; none if nothing was there and nothing is.
    fn event(before: Option<&Value>, after: Option<&Value>, tells_before: bool) -> Option<Event> {
        let operation = match (before, after) {
            (None, None) => return None,
            (None, Some(_)) => Operation::Insert,
            (Some(_), Some(_)) => Operation::Update,
            (Some(_), None) => Operation::Delete,
        };
        let image = |value: &Value| Document::from_value(value).unwrap();
        let mut event = Event::new(operation, Tenant::new("acme").unwrap(), "orders", "7");
        event.before = before.filter(|_| tells_before).map(image);
        event.after = after.map(image);
        Some(event)
    }

    proptest! {
        /// A receiver that applies the remaining events sees exactly the visible documents. Each
        /// event fits what the receiver saw before it.
        #[test]
        fn a_view_without_marked_documents_is_kept(history in prop::collection::vec(writes(), 1..20), tells_before: bool) {
            let mut stored: Option<Value> = None;
            let mut view: Option<Value> = None;
            for written in history {
                let seen = event(stored.as_ref(), written.as_ref(), tells_before);
                if let Some(seen) = seen.and_then(|event| event.without_marked("gone").unwrap()) {
                    let fits = match seen.operation {
                        Operation::Insert => view.is_none() && seen.before.is_none(),
                        Operation::Delete => view.is_some() && seen.after.is_none() && seen.before.is_some(),
                        _ => view.is_some(),
                    };
                    prop_assert!(fits || !tells_before, "{:?} while {:?} is seen", seen.operation, view);
                    view = seen.after.map(|document| document.to_value().unwrap());
                }
                stored = written;
                prop_assert_eq!(&view, &stored.clone().filter(is_visible));
            }
        }
    }

    #[test]
    fn a_scan_shows_no_marked_document_and_other_fields_do_not_matter() {
        let scanned = |text: &'static str| {
            let event = Event::new(Operation::Snapshot, Tenant::new("acme").unwrap(), "orders", "7");
            event.with_after(Document::from_json(text).unwrap()).without_marked("gone").unwrap()
        };
        assert!(scanned(r#"{"gone":1}"#).is_none() && scanned(r#"{"g\u006fne":true}"#).is_none());
        assert!(scanned(r#"{"n":{"gone":true},"gone":false}"#).is_some());
    }

    #[test]
    fn a_delete_has_the_document_as_it_was_last_seen() {
        let seen = event(Some(&json!({ "n": 1 })), Some(&json!({ "gone": true })), true).unwrap();
        let seen = seen.without_marked("gone").unwrap().unwrap();
        assert_eq!(seen.document().unwrap().to_value().unwrap(), json!({ "n": 1 }));
        let seen = event(Some(&json!({ "n": 1 })), Some(&json!({ "n": 2, "gone": true })), false).unwrap();
        let seen = seen.without_marked("gone").unwrap().unwrap();
        assert_eq!(seen.document().unwrap().to_value().unwrap(), json!({ "n": 2, "gone": true }));
    }
}
