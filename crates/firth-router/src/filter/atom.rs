//! Atoms: the tests of one field that an index can answer, or that are at least quick to check.

use super::value::{Field, Literal, Scalar};
use std::cmp::Ordering;

/// The way to a field, beginning with the variable: `["doc", "customer", "city"]`.
pub(crate) type Path = Box<[Box<str>]>;

/// One side of a range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Limit {
    pub(crate) at: Literal,
    /// Whether the limit itself belongs to the range.
    pub(crate) inclusive: bool,
}

/// What is asked of a field. An absent field passes no test but `Absent`, an unknown one none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Test {
    Equal(Literal),
    NotEqual(Literal),
    /// Sorted, without repetition.
    OneOf(Box<[Literal]>),
    /// At least one limit; both of one kind, numbers or texts.
    Range {
        lower: Option<Limit>,
        upper: Option<Limit>,
    },
    Exists,
    Absent,
    Prefix(Box<str>),
    Suffix(Box<str>),
    Substring(Box<str>),
    /// The field is a list or map with this element or key.
    Element(Literal),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Atom {
    pub(crate) path: Path,
    pub(crate) test: Test,
}

impl Test {
    /// Whether the field, if there is one, passes.
    pub(crate) fn passes(&self, field: Option<&Field<'_>>) -> bool {
        let Some(field) = field else { return matches!(self, Self::Absent) };
        if *field == Field::Unknown {
            return false;
        }
        let scalar = field.as_scalar();
        let text = |passes: &dyn Fn(&str) -> bool| matches!(scalar, Some(Scalar::Str(text)) if passes(text));
        match self {
            Self::Equal(literal) => scalar == Some(literal.as_scalar()),
            Self::NotEqual(literal) => scalar != Some(literal.as_scalar()),
            Self::OneOf(literals) => {
                scalar.is_some_and(|scalar| literals.iter().any(|literal| literal.as_scalar() == scalar))
            }
            Self::Range { lower, upper } => scalar.is_some_and(|scalar| {
                above(scalar, lower.as_ref(), Ordering::Greater)
                    && above(scalar, upper.as_ref(), Ordering::Less)
            }),
            Self::Exists => true,
            Self::Absent => false,
            Self::Prefix(part) => text(&|text| text.starts_with(&**part)),
            Self::Suffix(part) => text(&|text| text.ends_with(&**part)),
            Self::Substring(part) => text(&|text| text.contains(&**part)),
            Self::Element(literal) => field.elements().contains(&literal.as_scalar()),
        }
    }
}

fn above(scalar: Scalar<'_>, limit: Option<&Limit>, wanted: Ordering) -> bool {
    let Some(limit) = limit else { return true };
    match scalar.compare(limit.at.as_scalar()) {
        Some(Ordering::Equal) => limit.inclusive,
        Some(order) => order == wanted,
        None => false,
    }
}

/// Adds an atom to a conjunction; two open ends of one range become one range.
pub(crate) fn join(atoms: &mut Vec<Atom>, atom: Atom) {
    if atoms.contains(&atom) {
        return;
    }
    if let Test::Range { lower, upper } = &atom.test {
        for earlier in atoms.iter_mut().filter(|earlier| earlier.path == atom.path) {
            if let Test::Range { lower: low, upper: high } = &mut earlier.test
                && same_kind(low.as_ref().or(high.as_ref()), lower.as_ref().or(upper.as_ref()))
                && (low.is_none() || lower.is_none())
                && (high.is_none() || upper.is_none())
            {
                *low = low.take().or_else(|| lower.clone());
                *high = high.take().or_else(|| upper.clone());
                return;
            }
        }
    }
    atoms.push(atom);
}

fn same_kind(a: Option<&Limit>, b: Option<&Limit>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => std::mem::discriminant(&a.at) == std::mem::discriminant(&b.at),
        _ => false,
    }
}
