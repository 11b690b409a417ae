//! What a worker's client must know: each of its claims once, in the order of what happened last.
//! Pure.
//!
//! A claim has one row, and each change moves the row to a new place at the end. A client that asks
//! for everything after the last place it saw misses nothing. It gets nothing twice unless it asks
//! again. The row of a claim that is over stays until the client has seen it. The client confirms
//! that when it asks on from there. Bounded: there are no more rows than the worker has claims, and
//! the session takes no more news while [`ended`](ClaimTable::ended) is too large.

use std::collections::{BTreeMap, HashMap};

/// What happened last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClaimNews {
    Granted,
    Recalled,
    Lost,
    Released,
    /// A unit of another worker that vanished.
    Orphaned {
        last_owner: String,
    },
}

impl ClaimNews {
    fn is_end(&self) -> bool {
        matches!(self, Self::Lost | Self::Released | Self::Orphaned { .. })
    }
}

/// One claim, and what happened to it.
#[derive(Clone, Debug)]
pub(crate) struct ClaimRow<C> {
    /// For its handle; 0 for a unit of another worker.
    pub(crate) number: u64,
    pub(crate) name: String,
    /// The grant; 0 for a unit of another worker.
    pub(crate) epoch: u64,
    pub(crate) news: ClaimNews,
    /// As long as it is ours.
    pub(crate) claim: Option<C>,
}

pub(crate) struct ClaimTable<C> {
    last_place: u64,
    last_number: u64,
    rows: BTreeMap<u64, ClaimRow<C>>,
    /// Places of claims.
    by_name: HashMap<(String, u64), u64>,
    by_number: HashMap<u64, u64>,
    ended: usize,
}

impl<C> Default for ClaimTable<C> {
    fn default() -> Self {
        let rows = BTreeMap::new();
        let by_name = HashMap::new();
        let by_number = HashMap::new();
        Self { last_place: 0, last_number: 0, rows, by_name, by_number, ended: 0 }
    }
}

impl<C: Clone> ClaimTable<C> {
    /// A claim is ours; the same one again changes nothing. Its place.
    pub(crate) fn grant(&mut self, name: &str, epoch: u64, claim: C) -> u64 {
        if let Some(place) = self.by_name.get(&(name.to_owned(), epoch)) {
            return *place;
        }
        self.last_number += 1;
        let row = ClaimRow {
            number: self.last_number,
            name: name.to_owned(),
            epoch,
            news: ClaimNews::Granted,
            claim: Some(claim),
        };
        self.push(row)
    }

    /// Records what happened to a claim; does nothing if the table has no such claim.
    pub(crate) fn change(&mut self, name: &str, epoch: u64, news: ClaimNews) {
        let Some(mut row) = self.remove(name, epoch) else { return };
        if news.is_end() {
            row.claim = None;
        }
        row.news = news;
        self.push(row);
    }

    /// Records that another worker vanished while it had this unit.
    pub(crate) fn orphan(&mut self, name: String, last_owner: String) {
        let news = ClaimNews::Orphaned { last_owner };
        self.push(ClaimRow { number: 0, name, epoch: 0, news, claim: None });
    }

    /// Forgets a claim.
    pub(crate) fn remove(&mut self, name: &str, epoch: u64) -> Option<ClaimRow<C>> {
        let place = self.by_name.remove(&(name.to_owned(), epoch))?;
        self.take(place)
    }

    /// The client has seen everything up to there: what is over is forgotten.
    pub(crate) fn confirm(&mut self, place: u64) {
        if self.ended == 0 {
            return;
        }
        let over: Vec<u64> =
            self.rows.range(..=place).filter(|(_, row)| row.news.is_end()).map(|(place, _)| *place).collect();
        for place in over {
            if let Some(row) = self.take(place) {
                self.by_name.remove(&(row.name, row.epoch));
            }
        }
    }

    /// What comes after a place, oldest first.
    pub(crate) fn after(&self, place: u64) -> impl Iterator<Item = (u64, &ClaimRow<C>)> {
        self.rows.range(place.saturating_add(1)..).map(|(place, row)| (*place, row))
    }

    /// The row at a place.
    pub(crate) fn at(&self, place: u64) -> Option<&ClaimRow<C>> {
        self.rows.get(&place)
    }

    /// The claim of a handle, if it is still ours.
    pub(crate) fn claim(&self, number: u64) -> Option<C> {
        self.rows.get(self.by_number.get(&number)?)?.claim.clone()
    }

    /// How many rows wait only to be seen.
    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    /// Lets every claim go.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.by_name.clear();
        self.by_number.clear();
        self.ended = 0;
    }

    fn push(&mut self, row: ClaimRow<C>) -> u64 {
        self.last_place += 1;
        self.ended += usize::from(row.news.is_end());
        if row.number > 0 {
            self.by_name.insert((row.name.clone(), row.epoch), self.last_place);
            self.by_number.insert(row.number, self.last_place);
        }
        self.rows.insert(self.last_place, row);
        self.last_place
    }

    fn take(&mut self, place: u64) -> Option<ClaimRow<C>> {
        let row = self.rows.remove(&place)?;
        self.ended -= usize::from(row.news.is_end());
        self.by_number.remove(&row.number);
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(table: &ClaimTable<&'static str>, after: u64) -> Vec<(u64, String, ClaimNews)> {
        table.after(after).map(|(place, row)| (place, row.name.clone(), row.news.clone())).collect()
    }

    #[test]
    fn a_claim_has_one_row_with_what_happened_last() {
        let mut table = ClaimTable::default();
        let first = table.grant("a", 1, "A");
        assert_eq!(table.grant("a", 1, "A"), first, "the same grant is the same row");
        table.grant("b", 2, "B");
        table.change("a", 1, ClaimNews::Recalled);
        assert_eq!(
            seen(&table, 0),
            [(2, "b".into(), ClaimNews::Granted), (3, "a".into(), ClaimNews::Recalled)]
        );
        assert_eq!(seen(&table, 2), [(3, "a".into(), ClaimNews::Recalled)]);
        assert_eq!((table.claim(1), table.claim(2)), (Some("A"), Some("B")));
        table.change("a", 1, ClaimNews::Lost);
        assert_eq!((table.claim(1), table.ended()), (None, 1));
        table.change("nobody", 9, ClaimNews::Lost);
        assert_eq!(seen(&table, 3), [(4, "a".into(), ClaimNews::Lost)]);
    }

    #[test]
    fn what_is_over_stays_until_it_was_seen_and_what_is_ours_stays_anyway() {
        let mut table = ClaimTable::default();
        table.grant("a", 1, "A");
        table.grant("b", 2, "B");
        table.change("b", 2, ClaimNews::Released);
        table.orphan("c".to_owned(), "w".to_owned());
        assert_eq!((seen(&table, 0).len(), table.ended()), (3, 2));
        table.confirm(3);
        assert_eq!((seen(&table, 0).len(), table.ended()), (2, 1), "the orphan is news");
        table.confirm(4);
        assert_eq!(seen(&table, 0), [(1, "a".into(), ClaimNews::Granted)]);
        // The same name under a new grant is another claim.
        table.grant("b", 5, "B again");
        assert_eq!(table.claim(3), Some("B again"));
        assert!(table.remove("b", 5).is_some() && table.claim(3).is_none() && table.remove("b", 5).is_none());
    }
}
