//! The events of a batch by document: what is refused of one holds back what follows. Pure.

use super::Answer;
use super::item::{Item, Key};
use std::collections::{HashMap, HashSet};

/// The places in the batch that were refused, and those behind a refused one of the same document:
/// accepted or not, they must come after it.
pub(super) fn refused(items: &[Item], answers: &[Answer]) -> HashSet<usize> {
    let mut places = HashSet::new();
    let mut documents = HashSet::new();
    for (place, item) in items.iter().enumerate() {
        let is_refused = !matches!(answers.get(place), Some(Answer::Accepted));
        if is_refused || documents.contains(&item.key()) {
            places.insert(place);
            documents.insert(item.key());
        }
    }
    places
}

/// Events by document, each document's in order; documents in the order of their first events.
pub(super) fn by_document<T: HasItem>(items: impl IntoIterator<Item = T>) -> Vec<(Key, Vec<T>)> {
    let mut documents: Vec<(Key, Vec<T>)> = Vec::new();
    let mut places: HashMap<Key, usize> = HashMap::new();
    for item in items {
        let key = item.item().key();
        let place = *places.entry(key.clone()).or_insert_with(|| {
            documents.push((key, Vec::new()));
            documents.len() - 1
        });
        documents[place].1.push(item);
    }
    documents
}

/// An item, perhaps with a mark.
pub(super) trait HasItem {
    fn item(&self) -> &Item;
}

impl HasItem for Item {
    fn item(&self) -> &Item {
        self
    }
}

impl HasItem for (bool, Item) {
    fn item(&self) -> &Item {
        &self.1
    }
}
