//! A group: everyone who asks for the same, and where it hangs.

use super::Interest;
use super::conditions::Tests;
use super::fields::{FieldId, Fields, Seen};
use super::lists::{ListId, Lists, Token};
use super::ranges;
use crate::error::{Error, Result};
use crate::event::{Document, Event};
use crate::filter::{Branch, Filter, Literal, Scope, Test};
use cel::IdedExpr;
use smallvec::SmallVec;

pub(super) type GroupId = u32;

/// Where a subscription stands: in its group, or directly in a list; and its position there.
#[derive(Clone, Copy)]
pub(super) enum SubscriptionSlot {
    Group { group: GroupId, position: u32 },
    Direct { list: ListId, position: u32 },
}

impl SubscriptionSlot {
    pub(super) fn position(self) -> u32 {
        match self {
            Self::Group { position, .. } | Self::Direct { position, .. } => position,
        }
    }

    /// Another one left, and this one took its position.
    pub(super) fn moved_to(&mut self, at: u32) {
        match self {
            Self::Group { position, .. } | Self::Direct { position, .. } => *position = at,
        }
    }
}

/// One list that a group hangs in.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) list: ListId,
    pub(super) position: u32,
    /// Which branch of the filter leads here; any, if the list says nothing about the filter.
    pub(super) branch: Option<u16>,
    /// Which atom of the branch the list answers by itself.
    pub(super) answered: Option<u16>,
}

pub(super) struct Group {
    pub(super) document: Option<Box<str>>,
    pub(super) filter: Option<Filter>,
    /// The field of every atom, branch after branch.
    fields: SmallVec<[FieldId; 2]>,
    pub(super) places: SmallVec<[Place; 1]>,
    pub(super) members: Vec<u32>,
    pub(super) is_slow: bool,
}

/// A place to be taken.
pub(super) struct Plan {
    pub(super) token: Token,
    pub(super) branch: Option<u16>,
    pub(super) answered: Option<u16>,
}

impl Group {
    pub(super) fn new(interest: &Interest, fields: &mut Fields) -> Self {
        let branches = interest.filter.as_ref().map_or(&[][..], Filter::branches);
        let ids = branches.iter().flat_map(|branch| &branch.atoms).map(|atom| fields.take(&atom.path));
        Self {
            document: interest.document.clone(),
            filter: interest.filter.clone(),
            fields: ids.collect(),
            places: SmallVec::new(),
            members: Vec::new(),
            is_slow: false,
        }
    }

    /// Gives up its fields.
    pub(super) fn release(&self, fields: &mut Fields) {
        self.fields.iter().for_each(|field| fields.release(*field));
    }

    /// If one list leads to it and plain tests are all that is left to check there: those tests.
    pub(super) fn plain_rest(&self, plans: &[Plan]) -> Option<Tests> {
        let ([plan], false) = (plans, self.has_rest()) else { return None };
        let atoms = match (&self.filter, self.branches()) {
            (None, _) => &[][..],
            (Some(_), [branch]) => &branch.atoms[..],
            (Some(_), _) => return None,
        };
        if plan.token == Token::Slow {
            return None;
        }
        let is_left = |number: usize| plan.answered.is_none_or(|answered| usize::from(answered) != number);
        let tests = atoms.iter().zip(&self.fields).enumerate().filter(|(number, _)| is_left(*number));
        Some(tests.map(|(_, (atom, field))| (*field, atom.test.clone())).collect())
    }

    /// Whether only an interpreter can answer all of it.
    pub(super) fn has_rest(&self) -> bool {
        self.branches().iter().any(|branch| !branch.rest.is_empty())
    }

    fn branches(&self) -> &[Branch] {
        self.filter.as_ref().map_or(&[][..], Filter::branches)
    }

    /// Under what it should hang: what is rarest now.
    pub(super) fn plan(&self, lists: &Lists) -> Vec<Plan> {
        let anywhere = |token| vec![Plan { token, branch: None, answered: None }];
        if let Some(key) = &self.document {
            return anywhere(Token::Document(key.clone()));
        }
        if self.filter.is_none() {
            return anywhere(Token::All);
        }
        let mut plans = Vec::new();
        let mut first = 0;
        for (number, branch) in self.branches().iter().enumerate() {
            let fields = &self.fields[first..first + branch.atoms.len()];
            first += branch.atoms.len();
            let Some(atom) = rarest(branch, fields, lists) else { return anywhere(Token::Slow) };
            let test = &branch.atoms[atom].test;
            let answered = (!matches!(test, Test::Range { .. })).then_some(atom as u16);
            let plan = |token| Plan { token, branch: Some(number as u16), answered };
            plans.extend(tokens(fields[atom], test).into_iter().map(plan));
        }
        plans
    }

    /// Whether the document passes what the place has not answered yet.
    pub(super) fn wants(&self, place: u16, values: &Seen<'_>, interpreter: &mut Interpreter<'_>) -> bool {
        let place = &self.places[place as usize];
        let branches = self.branches();
        if self.filter.is_none() {
            return true;
        }
        let mut first = 0;
        branches.iter().enumerate().any(|(number, branch)| {
            let fields = &self.fields[first..first + branch.atoms.len()];
            first += branch.atoms.len();
            place.branch.is_none_or(|wanted| usize::from(wanted) == number)
                && passes(branch, fields, place.answered, values, interpreter)
        })
    }
}

fn passes(
    branch: &Branch,
    fields: &[FieldId],
    answered: Option<u16>,
    values: &Seen<'_>,
    interpreter: &mut Interpreter<'_>,
) -> bool {
    let atoms = branch.atoms.iter().zip(fields).enumerate().all(|(number, (atom, field))| {
        answered.is_some_and(|answered| usize::from(answered) == number)
            || atom.test.passes(values[*field as usize].as_ref())
    });
    if !atoms || branch.rest.is_empty() {
        return atoms;
    }
    branch.rest.iter().all(|expr| interpreter.is_true(expr))
}

/// Answers what no atom can, with variables that are made when first needed.
pub(super) struct Interpreter<'a> {
    event: &'a Event,
    document: Option<&'a Document>,
    scope: Option<Scope>,
    failed: Option<Error>,
}

impl<'a> Interpreter<'a> {
    pub(super) fn new(event: &'a Event, document: Option<&'a Document>) -> Self {
        Self { event, document, scope: None, failed: None }
    }

    fn is_true(&mut self, expr: &IdedExpr) -> bool {
        if self.scope.is_none() && self.failed.is_none() {
            match Scope::new(self.event, self.document) {
                Ok(scope) => self.scope = Some(scope),
                Err(error) => self.failed = Some(error),
            }
        }
        self.scope.as_ref().is_some_and(|scope| scope.is_true(expr))
    }

    /// An error if the document could not be read.
    pub(super) fn finish(self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
}

/// The atom that the fewest groups hang under, of the most selective kind.
fn rarest(branch: &Branch, fields: &[FieldId], lists: &Lists) -> Option<usize> {
    let weigh = |(number, (atom, field)): (usize, (&crate::filter::Atom, &FieldId))| {
        let kind = match &atom.test {
            Test::Equal(_) | Test::OneOf(_) | Test::Element(_) | Test::Prefix(_) => 0,
            Test::Range { lower: Some(_), upper: Some(_) } => 1,
            Test::Range { .. } => 2,
            Test::Exists => 3,
            _ => return None,
        };
        let load: usize = tokens(*field, &atom.test).iter().map(|token| lists.load(token)).sum();
        Some((kind, load, usize::MAX - lists.variety(*field), number))
    };
    branch.atoms.iter().zip(fields).enumerate().filter_map(weigh).min().map(|(.., number)| number)
}

fn tokens(field: FieldId, test: &Test) -> Vec<Token> {
    match test {
        Test::Equal(value) => vec![Token::Equal(field, value.clone())],
        Test::OneOf(values) => values.iter().map(|value| Token::Equal(field, value.clone())).collect(),
        Test::Element(value) => vec![Token::Element(field, value.clone())],
        Test::Prefix(part) => vec![Token::Prefix(field, part.clone())],
        Test::Exists => vec![Token::Exists(field)],
        Test::Range { lower, upper } => match (lower, upper) {
            (Some(lower), Some(upper)) => vec![match (&lower.at, &upper.at) {
                (Literal::Num(low), Literal::Num(high)) => {
                    Token::Between(field, ranges::width(*low, *high), *low)
                }
                _ => Token::From(field, lower.at.clone()),
            }],
            (Some(lower), None) => vec![Token::From(field, lower.at.clone())],
            (None, Some(upper)) => vec![Token::UpTo(field, upper.at.clone())],
            (None, None) => Vec::new(),
        },
        Test::NotEqual(_) | Test::Absent | Test::Suffix(_) | Test::Substring(_) => Vec::new(),
    }
}
