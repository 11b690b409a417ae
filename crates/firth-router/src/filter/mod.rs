//! [`Filter`]: which documents a subscription wants.
//!
//! Written in CEL over the variables `doc` (the document), `op`, `key` and `collection`, or as a
//! list of [`Condition`]s. It is parsed once, checked against limits, and taken apart into atoms
//! that an index answers and a rest for the interpreter (`lower`). A filter matches when it is
//! true; a missing field or a wrong type is no match, never a failure.

mod atom;
mod canon;
mod check;
mod condition;
mod lower;
mod predicate;
mod scope;
mod show;
mod value;

pub(crate) use atom::{Atom, Limit, Path, Test};
pub use check::{MAX_DEPTH, MAX_NODES, MAX_SOURCE};
pub use condition::{Condition, Operator};
pub(crate) use lower::Branch;
pub use predicate::Predicate;
pub(crate) use scope::Scope;
pub(crate) use show::show;
pub(crate) use value::{Field, Literal, Num, Scalar};

use crate::error::{Error, Result};
use cel::IdedExpr;
use cel::common::ast::operators;
use cel::parser::PrattParser;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A checked filter, ready to be indexed. Cloning is cheap; filters that mean the same are equal.
#[derive(Clone)]
pub struct Filter(Arc<Inner>);

struct Inner {
    canon: Box<str>,
    branches: Box<[Branch]>,
}

impl Filter {
    /// Parses CEL.
    ///
    /// ```
    /// # use firth_router::filter::Filter;
    /// let filter = Filter::parse(r#"doc.state == "paid" && doc.total > 100"#)?;
    /// assert!(filter.is_indexed());
    /// assert!(Filter::parse("state == 'paid'").is_err(), "fields are written doc.state");
    /// # Ok::<_, firth_router::Error>(())
    /// ```
    pub fn parse(source: &str) -> Result<Self> {
        Self::from_tree(&tree(source)?)
    }

    /// A filter that asks for all of the conditions.
    pub fn all_of(conditions: &[Condition]) -> Result<Self> {
        Self::from_tree(&condition::tree(conditions)?)
    }

    fn from_tree(tree: &IdedExpr) -> Result<Self> {
        check::check(tree)?;
        if !check::asks_something(tree) {
            return Err(Error::invalid(
                "a filter must be true or false of a change, and this one looks at nothing: compare a field with a value",
            ));
        }
        let branches = lower::lower(tree).into_boxed_slice();
        Ok(Self(Arc::new(Inner { canon: canon::canon(tree).into(), branches })))
    }

    /// Whether an index can answer it; the others count against a quota.
    pub fn is_indexed(&self) -> bool {
        self.0.branches.iter().all(|branch| branch.atoms.iter().any(|atom| atom.test.is_indexable()))
    }

    pub(crate) fn branches(&self) -> &[Branch] {
        &self.0.branches
    }

    pub(crate) fn canon(&self) -> &str {
        &self.0.canon
    }
}

/// Parses CEL within the limits that a parser needs; [`check`] does the rest.
pub(crate) fn tree(source: &str) -> Result<IdedExpr> {
    if source.len() > MAX_SOURCE {
        return Err(Error::invalid(format!(
            "a filter has {} bytes; at most {MAX_SOURCE} are allowed",
            source.len()
        )));
    }
    if check::brackets(source) > MAX_DEPTH {
        return Err(Error::invalid(format!("a filter has brackets nested deeper than {MAX_DEPTH} levels")));
    }
    let depth = u16::try_from(4 * MAX_DEPTH).unwrap_or(u16::MAX);
    PrattParser::new().max_recursion_depth(depth).parse(source).map_err(|errors| {
        let first = errors.errors.first().map_or_else(String::new, |error| error.msg.clone());
        Error::invalid(format!("a filter is not valid CEL: {first}"))
    })
}

/// The parts of a filter that must all be true, as its writer sees them; only for filters that were
/// parsed before.
pub(crate) fn parts(source: Option<&str>, conditions: &[Condition]) -> Result<Vec<IdedExpr>> {
    let whole = match source {
        Some(source) => tree(source)?,
        None if conditions.is_empty() => return Ok(Vec::new()),
        None => condition::tree(conditions)?,
    };
    let sides = lower::sides(&whole, operators::LOGICAL_AND);
    Ok(sides.map_or_else(|| vec![whole.clone()], |sides| sides.into_iter().cloned().collect()))
}

impl Test {
    /// Whether an event leads to it by itself.
    pub(crate) fn is_indexable(&self) -> bool {
        matches!(
            self,
            Self::Equal(_)
                | Self::OneOf(_)
                | Self::Range { .. }
                | Self::Exists
                | Self::Prefix(_)
                | Self::Element(_)
        )
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.0.canon == other.0.canon
    }
}

impl Eq for Filter {}

impl Hash for Filter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.canon.hash(state);
    }
}

/// Never shows the values that are asked for.
impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({} branches)", self.0.branches.len())
    }
}

#[cfg(test)]
mod tests;
