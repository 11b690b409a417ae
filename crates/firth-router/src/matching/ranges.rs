//! Lists of range filters of one field, sorted by their limits, so that a value meets only ranges
//! near it.
//!
//! An open range stands under its one limit: a value meets exactly the ranges that it is in. A
//! range of numbers with two limits stands under its lower limit among ranges of about the same
//! width (up to a power of two), so a value looks back no further than that width. The limits
//! themselves are checked later, so answers may be a little too many and never too few.

use super::lists::{ListId, Token};
use crate::filter::{Literal, Num, Scalar};
use std::collections::BTreeMap;

#[derive(Default)]
struct Edges {
    numbers: BTreeMap<Num, ListId>,
    texts: BTreeMap<Box<str>, ListId>,
}

#[derive(Default)]
pub(super) struct Ranges {
    from: Edges,
    up_to: Edges,
    between: BTreeMap<i16, BTreeMap<Num, ListId>>,
}

/// The width class of a range: the smallest power of two that is not less than its width.
pub(super) fn width(lower: Num, upper: Num) -> i16 {
    let width = (upper.approximate() - lower.approximate()).abs();
    match width.is_finite() && width > 0.0 {
        // 2^±1100 lies beyond every double.
        true => width.log2().ceil().clamp(-1100.0, 1100.0) as i16,
        false if width == 0.0 => -1100,
        false => 1100,
    }
}

impl Ranges {
    pub(super) fn find(&self, token: &Token) -> Option<ListId> {
        match token {
            Token::From(_, limit) => self.from.find(limit),
            Token::UpTo(_, limit) => self.up_to.find(limit),
            Token::Between(_, width, lower) => self.between.get(width)?.get(lower).copied(),
            _ => None,
        }
    }

    pub(super) fn insert(&mut self, token: &Token, id: ListId) {
        match token {
            Token::From(_, limit) => self.from.insert(limit, id),
            Token::UpTo(_, limit) => self.up_to.insert(limit, id),
            Token::Between(_, width, lower) => {
                self.between.entry(*width).or_default().insert(*lower, id);
            }
            _ => {}
        }
    }

    pub(super) fn remove(&mut self, token: &Token) {
        match token {
            Token::From(_, limit) => self.from.remove(limit),
            Token::UpTo(_, limit) => self.up_to.remove(limit),
            Token::Between(_, width, lower) => {
                if let Some(class) = self.between.get_mut(width) {
                    class.remove(lower);
                    if class.is_empty() {
                        self.between.remove(width);
                    }
                }
            }
            _ => {}
        }
    }

    /// Shows the lists whose ranges a value may be in.
    pub(super) fn around(&self, value: Scalar<'_>, mut show: impl FnMut(ListId)) {
        match value {
            Scalar::Num(number) => {
                self.from.numbers.range(..=number).for_each(|(_, id)| show(*id));
                self.up_to.numbers.range(number..).for_each(|(_, id)| show(*id));
                for (width, class) in &self.between {
                    class.range(farthest(number, *width)..=number).for_each(|(_, id)| show(*id));
                }
            }
            Scalar::Str(text) => {
                let upwards = (std::ops::Bound::Unbounded, std::ops::Bound::Included(text));
                self.from.texts.range::<str, _>(upwards).for_each(|(_, id)| show(*id));
                let downwards = (std::ops::Bound::Included(text), std::ops::Bound::Unbounded);
                self.up_to.texts.range::<str, _>(downwards).for_each(|(_, id)| show(*id));
            }
            Scalar::Null | Scalar::Bool(_) => {}
        }
    }
}

/// The lowest limit that a range of this width around `number` can have, with room for rounding.
fn farthest(number: Num, width: i16) -> Num {
    let at = number.approximate();
    let width = f64::from(width).exp2();
    let lowest = at - width - (at.abs() + width) * 1e-12 - f64::MIN_POSITIVE;
    let lowest = if lowest.is_nan() { f64::NEG_INFINITY } else { lowest };
    Num::float(lowest).map_or(number, |lowest| lowest.min(number))
}

impl Edges {
    fn find(&self, limit: &Literal) -> Option<ListId> {
        match limit {
            Literal::Num(number) => self.numbers.get(number).copied(),
            Literal::Str(text) => self.texts.get(text).copied(),
            Literal::Null | Literal::Bool(_) => None,
        }
    }

    fn insert(&mut self, limit: &Literal, id: ListId) {
        match limit {
            Literal::Num(number) => drop(self.numbers.insert(*number, id)),
            Literal::Str(text) => drop(self.texts.insert(text.clone(), id)),
            Literal::Null | Literal::Bool(_) => unreachable!("only numbers and texts have an order"),
        }
    }

    fn remove(&mut self, limit: &Literal) {
        match limit {
            Literal::Num(number) => drop(self.numbers.remove(number)),
            Literal::Str(text) => drop(self.texts.remove(text)),
            Literal::Null | Literal::Bool(_) => {}
        }
    }
}
