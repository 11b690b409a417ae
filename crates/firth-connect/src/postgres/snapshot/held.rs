//! [`Held`]: rows of a table that wait for the stream to pass the place where they were read. Pure.
//!
//! Until then the stream may tell newer changes of these rows. Such a row is dropped: the change
//! follows it. If the change lacks large values, the row completes it.

use super::visibility::Visibility;
use crate::error::{Error, Result};
use firth_router::Tenant;
use firth_router::event::{Document, Event, Text};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;

/// A row that was read.
#[derive(Debug)]
pub struct ReadRow {
    /// Its key, as the database writes it.
    pub key: Vec<String>,
    /// Its event; none if the row is marked as deleted.
    pub event: Option<Event>,
    /// The bytes that it takes.
    pub size: usize,
}

/// Rows that go to the topic in one step per partition.
#[derive(Debug)]
pub struct Group {
    /// Its number.
    pub number: u64,
    /// Its rows, by key.
    pub events: Vec<Event>,
}

/// Whose document, in which collection, under which key.
type DocumentName = (Tenant, Text, Text);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Held {
    /// `schema.table`.
    pub(super) table: String,
    visibility: Visibility,
    /// Behind every transaction that the query saw.
    pub(super) high: u64,
    groups: Vec<Vec<Option<Event>>>,
    places: HashMap<DocumentName, (usize, usize)>,
    /// The last row that was dropped, with the transaction and the change that did it.
    dropped: Option<((u32, u32), Event)>,
}

impl Held {
    pub(super) fn new(table: String, visibility: Visibility, high: u64, groups: Vec<Vec<Event>>) -> Self {
        let groups: Vec<Vec<_>> =
            groups.into_iter().map(|events| events.into_iter().map(Some).collect()).collect();
        let mut places = HashMap::new();
        for (group, events) in groups.iter().enumerate() {
            for (place, event) in events.iter().enumerate() {
                places.extend(event.as_ref().map(|event| (document(event), (group, place))));
            }
        }
        Self { table, visibility, high, groups, places, dropped: None }
    }

    /// The transaction changes this document; `change` numbers the row's change in it.
    pub(super) fn touch(&mut self, xid: u32, change: u32, event: &mut Event) -> Result<()> {
        if self.visibility.sees(xid) {
            return Ok(());
        }
        if let Some((group, place)) = self.places.remove(&document(event)) {
            self.dropped = self.groups[group][place].take().map(|row| ((xid, change), row));
        }
        match &self.dropped {
            Some((by, row)) if *by == (xid, change) && !event.missing.is_empty() => complete(event, row),
            _ => Ok(()),
        }
    }

    /// The transaction removes all rows of the table.
    pub(super) fn truncate(&mut self, xid: u32, table: &str) {
        if self.table == table && !self.visibility.sees(xid) {
            self.places.clear();
            self.groups.iter_mut().for_each(Vec::clear);
        }
    }

    /// The rows that remain; the first group has the number `first`.
    pub(super) fn into_groups(self, first: u64) -> Vec<Group> {
        let numbered = (first..).zip(self.groups);
        numbered
            .map(|(number, rows)| Group { number, events: rows.into_iter().flatten().collect() })
            .collect()
    }
}

fn document(event: &Event) -> DocumentName {
    (event.tenant.clone(), event.collection.clone(), event.key.clone())
}

/// Takes values that a change lacks from the row as it was just before.
fn complete(event: &mut Event, row: &Event) -> Result<()> {
    let (Some(after), Some(before)) = (&event.after, &row.after) else { return Ok(()) };
    let odd = |_| Error::corrupt("a row that was read is not valid JSON");
    let known: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_slice(before.text()).map_err(odd)?;
    let mut text = after.text().to_vec();
    let mut missing = Vec::new();
    for column in &event.missing {
        let Some(value) = known.get(&**column) else {
            missing.push(column.clone());
            continue;
        };
        text.pop();
        if text.last() != Some(&b'{') {
            text.push(b',');
        }
        crate::postgres::value::write_text(&mut text, column);
        text.push(b':');
        text.extend_from_slice(value.get().as_bytes());
        text.push(b'}');
    }
    let whole = Document::from_json(text)
        .map_err(|error| Error::poison(format!("a completed row cannot be an event: {error}")))?;
    (event.after, event.missing) = (Some(whole), missing);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_router::event::Operation;

    fn event(operation: Operation, key: &str, after: &str) -> Event {
        let event = Event::new(operation, Tenant::new("acme").unwrap(), "docs", key);
        event.with_after(Document::from_json(after.to_owned()).unwrap())
    }

    fn held(rows: &[(&str, &str)]) -> Held {
        let rows = rows.iter().map(|(key, after)| event(Operation::Snapshot, key, after)).collect();
        Held::new("public.docs".into(), "10:10:".parse().unwrap(), 50, vec![rows])
    }

    fn keys(held: Held) -> Vec<String> {
        let mut groups = held.into_groups(1);
        groups.remove(0).events.iter().map(|event| event.key.to_string()).collect()
    }

    #[test]
    fn a_row_that_a_later_transaction_changes_is_dropped() {
        let mut rows = held(&[("1", "{}"), ("2", "{}"), ("3", "{}")]);
        rows.touch(9, 0, &mut event(Operation::Update, "1", "{}")).unwrap();
        rows.touch(10, 0, &mut event(Operation::Update, "2", "{}")).unwrap();
        assert_eq!(keys(rows), ["1", "3"]);
    }

    #[test]
    fn a_change_that_lacks_large_values_gets_them_from_the_row() {
        let mut rows = held(&[("1", r#"{"id":1,"n":0,"body":"long"}"#)]);
        let mut update = event(Operation::Update, "1", r#"{"id":1,"n":1}"#).with_missing(["body", "other"]);
        rows.touch(10, 0, &mut update).unwrap();
        assert_eq!(&update.after.unwrap().text()[..], br#"{"id":1,"n":1,"body":"long"}"#);
        assert_eq!(update.missing.iter().map(|column| &**column).collect::<Vec<_>>(), ["other"]);
        // The row is used up: a later change of another row gets nothing of it.
        let mut later = event(Operation::Update, "1", r#"{"id":1}"#).with_missing(["body"]);
        rows.touch(10, 1, &mut later).unwrap();
        assert_eq!(later.missing.len(), 1);
    }

    #[test]
    fn a_row_that_changes_its_key_takes_its_large_values_along() {
        let mut rows = held(&[("1", r#"{"id":1,"body":"long"}"#)]);
        let gone = Event::new(Operation::Delete, Tenant::new("acme").unwrap(), "docs", "1");
        rows.touch(10, 4, &mut gone.clone()).unwrap();
        let mut moved = event(Operation::Insert, "2", r#"{"id":2}"#).with_missing(["body"]);
        rows.touch(10, 4, &mut moved).unwrap();
        assert_eq!(&moved.after.unwrap().text()[..], br#"{"id":2,"body":"long"}"#);
    }

    #[test]
    fn a_truncate_drops_the_rows_of_its_table_alone() {
        let mut rows = held(&[("1", "{}")]);
        rows.truncate(9, "public.docs");
        rows.truncate(10, "public.other");
        assert_eq!(rows.groups[0].len(), 1);
        rows.truncate(10, "public.docs");
        assert!(keys(rows).is_empty());
    }
}
