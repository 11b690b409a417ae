//! [`ChunkQuery`]: the statement that reads a chunk. Pure.

use crate::copy_state::RowKey;
use crate::postgres::catalog::{quoted, quoted_table};

/// See the [module](self).
pub(super) struct ChunkQuery<'a> {
    /// `schema.table`.
    pub(super) table: &'a str,
    /// Whether its rows lie in partitions.
    pub(super) is_partitioned: bool,
    pub(super) columns: Vec<&'a str>,
    /// The columns by which rows are ordered.
    pub(super) key: Vec<&'a str>,
    /// Whether two rows can have the same.
    pub(super) has_ties: bool,
    pub(super) after: Option<&'a RowKey>,
    pub(super) upto: Option<&'a RowKey>,
    pub(super) filters: Vec<&'a str>,
    pub(super) limit: usize,
}

impl<'a> ChunkQuery<'a> {
    /// The statement and its values.
    pub(super) fn sql(&self) -> (String, Vec<&'a str>) {
        let list = |names: &[&str]| names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
        let key = list(&self.key);
        let mut values = Vec::new();
        let mut conditions: Vec<String> = self.filters.iter().map(|filter| format!("({filter})")).collect();
        for (border, comparison) in [(self.after, ">"), (self.upto, "<=")] {
            let Some(border) = border else { continue };
            let first = values.len() + 1;
            values.extend(border.iter().map(String::as_str));
            let places: Vec<_> = (first..=values.len()).map(|place| format!("${place}")).collect();
            conditions.push(format!("({key}) {comparison} ({})", places.join(", ")));
        }
        let only = if self.is_partitioned { "" } else { "ONLY " };
        let which = if conditions.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", conditions.join(" AND "))
        };
        let ties = if self.has_ties { "WITH TIES" } else { "ONLY" };
        let sql = format!(
            "SELECT {} FROM {only}{}{which} ORDER BY {key} FETCH FIRST {} ROWS {ties}",
            list(&self.columns),
            quoted_table(self.table),
            self.limit,
        );
        (sql, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_lies_between_two_keys() {
        let (after, upto) = (vec!["1".to_owned(), "x".to_owned()], vec!["2".to_owned(), "y".to_owned()]);
        let mut query = ChunkQuery {
            table: "shop.or\"ders",
            is_partitioned: false,
            columns: vec!["id", "name"],
            key: vec!["id", "name"],
            has_ties: false,
            after: Some(&after),
            upto: Some(&upto),
            filters: vec!["id > 0 OR name = 'a'"],
            limit: 10,
        };
        let (sql, values) = query.sql();
        assert_eq!(
            sql,
            "SELECT \"id\", \"name\" FROM ONLY \"shop\".\"or\"\"ders\" WHERE (id > 0 OR name = 'a') \
             AND (\"id\", \"name\") > ($1, $2) AND (\"id\", \"name\") <= ($3, $4) \
             ORDER BY \"id\", \"name\" FETCH FIRST 10 ROWS ONLY"
        );
        assert_eq!(values, ["1", "x", "2", "y"]);
        query = ChunkQuery { after: None, upto: None, filters: Vec::new(), has_ties: true, ..query };
        assert!(query.sql().0.ends_with("\"ders\" ORDER BY \"id\", \"name\" FETCH FIRST 10 ROWS WITH TIES"));
    }
}
