//! [`Predicate`]: a filter that is asked about one event at a time, without an index.

use super::{Scope, check, tree};
use crate::error::{Error, Result};
use crate::event::Event;
use cel::IdedExpr;

/// A checked filter for a reader that looks at events one by one. It accepts what a
/// [`Filter`](super::Filter) of the same text accepts, within the same limits.
///
/// ```
/// # use firth_router::{Tenant, event::{Document, Event, Operation}, filter::Predicate};
/// let paid = Predicate::parse(r#"doc.state == "paid" && key.startsWith("o-")"#)?;
/// let order = Event::new(Operation::Insert, Tenant::new("acme")?, "orders", "o-1");
/// let order = order.with_after(Document::from_json(r#"{ "state": "paid" }"#)?);
/// assert!(paid.accepts(&order)?);
/// # Ok::<_, firth_router::Error>(())
/// ```
pub struct Predicate(IdedExpr);

impl Predicate {
    /// Parses CEL.
    pub fn parse(source: &str) -> Result<Self> {
        let tree = tree(source)?;
        check::check(&tree)?;
        if !check::asks_something(&tree) {
            return Err(Error::invalid(
                "a filter must be true or false of a record, and this one looks at nothing: compare a field with a value",
            ));
        }
        Ok(Self(tree))
    }

    /// Whether it is true of the event: of its document after the change, or before it was deleted.
    pub fn accepts(&self, event: &Event) -> Result<bool> {
        Ok(Scope::new(event, event.document())?.is_true(&self.0))
    }
}
