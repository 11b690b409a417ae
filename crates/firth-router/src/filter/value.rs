//! Values as filters compare them: literals of a filter, and fields taken out of a document.
//!
//! Numbers compare by value, not by type: 1, 1u and 1.0 are equal. [`Num`] therefore keeps every
//! number in one canonical form, so that equal numbers have equal hashes.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

/// A number in canonical form: an integer where it is one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Num {
    Int(i64),
    /// Above `i64::MAX`.
    Big(u64),
    /// Neither an integer of 64 bits nor NaN.
    Float(f64),
}

const TWO_63: f64 = 9_223_372_036_854_775_808.0;

impl Num {
    /// `None` for NaN, which equals nothing.
    pub(crate) fn float(value: f64) -> Option<Self> {
        if value.is_nan() {
            return None;
        }
        if value.fract() == 0.0 && (-TWO_63..TWO_63).contains(&value) {
            return Some(Self::Int(value as i64));
        }
        if value.fract() == 0.0 && (TWO_63..2.0 * TWO_63).contains(&value) {
            return Some(Self::Big(value as u64));
        }
        Some(Self::Float(value))
    }

    /// The nearest double, for arithmetic on widths only.
    pub(crate) fn approximate(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Big(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    fn whole(self) -> i128 {
        match self {
            Self::Int(value) => value.into(),
            Self::Big(value) => value.into(),
            Self::Float(value) => value as i128,
        }
    }

    fn fraction(self) -> f64 {
        match self {
            Self::Float(value) if value.is_finite() => value.fract(),
            _ => 0.0,
        }
    }
}

impl From<i64> for Num {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<u64> for Num {
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or(Self::Big(value), Self::Int)
    }
}

impl Ord for Num {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => return a.cmp(b),
            (Self::Float(a), Self::Float(b)) => return a.total_cmp(b),
            _ => {}
        }
        let fraction = || self.fraction().total_cmp(&other.fraction());
        self.whole().cmp(&other.whole()).then_with(fraction)
    }
}

impl PartialOrd for Num {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Num {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Num {}

impl Hash for Num {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Int(value) => value.hash(state),
            Self::Big(value) => value.hash(state),
            Self::Float(value) => value.to_bits().hash(state),
        }
    }
}

impl From<&serde_json::Number> for Num {
    fn from(number: &serde_json::Number) -> Self {
        if let Some(value) = number.as_i64() {
            return value.into();
        }
        if let Some(value) = number.as_u64() {
            return value.into();
        }
        // JSON has no NaN.
        number.as_f64().and_then(Self::float).unwrap_or(Self::Int(0))
    }
}

/// A constant in a filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Num(Num),
    Str(Box<str>),
}

impl Literal {
    pub(crate) fn as_scalar(&self) -> Scalar<'_> {
        match self {
            Self::Null => Scalar::Null,
            Self::Bool(value) => Scalar::Bool(*value),
            Self::Num(value) => Scalar::Num(*value),
            Self::Str(value) => Scalar::Str(value),
        }
    }
}

/// A value without parts, borrowed from a literal or a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scalar<'a> {
    Null,
    Bool(bool),
    Num(Num),
    Str(&'a str),
}

impl Scalar<'_> {
    /// Order among numbers and among texts; nothing else has one.
    pub(crate) fn compare(self, other: Scalar<'_>) -> Option<Ordering> {
        match (self, other) {
            (Self::Num(a), Scalar::Num(b)) => Some(a.cmp(&b)),
            (Self::Str(a), Scalar::Str(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}

/// A field of a document, as far as atoms look at it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Field<'a> {
    Null,
    Bool(bool),
    Num(Num),
    Str(Cow<'a, str>),
    /// Its elements that are scalars or not; only scalars can be asked for.
    List(Vec<Self>),
    /// Its keys.
    Map(Vec<Cow<'a, str>>),
    /// The source does not know it: it passes no test at all.
    Unknown,
}

impl Field<'_> {
    pub(crate) fn as_scalar(&self) -> Option<Scalar<'_>> {
        Some(match self {
            Self::Null => Scalar::Null,
            Self::Bool(value) => Scalar::Bool(*value),
            Self::Num(value) => Scalar::Num(*value),
            Self::Str(value) => Scalar::Str(value),
            Self::List(_) | Self::Map(_) | Self::Unknown => return None,
        })
    }

    /// What `x in field` can be true for.
    pub(crate) fn elements(&self) -> Vec<Scalar<'_>> {
        match self {
            Self::List(elements) => elements.iter().filter_map(Field::as_scalar).collect(),
            Self::Map(keys) => keys.iter().map(|key| Scalar::Str(key)).collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hash::BuildHasher;

    fn num() -> impl Strategy<Value = Num> {
        prop_oneof![
            any::<i64>().prop_map(Num::from),
            any::<u64>().prop_map(Num::from),
            any::<f64>().prop_filter_map("NaN", Num::float),
            (-8_i32..8).prop_map(|n| Num::float(f64::from(n) / 2.0).unwrap()),
            (-4_i64..4).prop_map(Num::from),
        ]
    }

    proptest! {
        #[test]
        fn numbers_have_one_order_and_equal_ones_hash_alike(a in num(), b in num(), c in num()) {
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            if a <= b && b <= c {
                prop_assert!(a <= c);
            }
            let hasher = foldhash::fast::FixedState::default();
            if a == b {
                prop_assert_eq!(hasher.hash_one(a), hasher.hash_one(b));
            }
        }
    }

    #[test]
    fn a_number_is_worth_the_same_in_every_type() {
        assert_eq!(Num::float(1.0).unwrap(), Num::from(1_i64));
        assert_eq!(Num::from(1_u64), Num::from(1_i64));
        assert_eq!(Num::float(-0.0).unwrap(), Num::from(0_i64));
        assert!(Num::from(u64::MAX) < Num::float(f64::INFINITY).unwrap());
        assert!(Num::from(i64::MIN) > Num::float(-1e300).unwrap());
        assert!(Num::float(-0.5).unwrap() < Num::from(0_i64));
        assert!(Num::from(2_i64.pow(53) + 1) > Num::float(2_f64.powi(53)).unwrap());
    }
}
