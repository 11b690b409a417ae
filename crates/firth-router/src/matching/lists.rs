//! Lists of groups, each under a token: something that an event must have in common with the groups
//! in it.
//!
//! A token is looked up by what an event brings, without building one. Lists that run empty vanish,
//! so their number follows what is asked for now. [`Uses`] remembers per field which kinds of token
//! exist, so that an event asks no needless questions.

use super::conditions::ConditionId;
use super::fields::{FieldId, Seen};
use super::group::GroupId;
use super::ranges::Ranges;
use crate::filter::{Field, Literal, Num, Scalar};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use smallvec::{Array, SmallVec};
use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasher;

pub(super) type ListId = u32;

/// What leads to a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Every event.
    All,
    /// Every event, for lack of anything better.
    Slow,
    Document(Box<str>),
    Equal(FieldId, Literal),
    Element(FieldId, Literal),
    Prefix(FieldId, Box<str>),
    Exists(FieldId),
    /// Values from this one on, the limit itself perhaps not.
    From(FieldId, Literal),
    /// Values up to this one, the limit itself perhaps not.
    UpTo(FieldId, Literal),
    /// Values between two numbers: their width (see [`Ranges`]) and the lower one.
    Between(FieldId, i16, Num),
}

/// A group in a list, and which of the group's places this is.
#[derive(Clone, Copy)]
pub(super) struct Hung {
    pub(super) group: GroupId,
    pub(super) place: u16,
}

/// A subscription that stands directly in a list, and what it asks for beside the list's token.
#[derive(Clone, Copy)]
pub(super) struct Direct {
    pub(super) number: u32,
    pub(super) condition: ConditionId,
}

/// Mostly one or two stand in it.
pub(super) struct List {
    token: Token,
    pub(super) groups: SmallVec<[Hung; 2]>,
    pub(super) direct: SmallVec<[Direct; 2]>,
}

impl List {
    fn len(&self) -> usize {
        self.groups.len() + self.direct.len()
    }
}

#[derive(Default)]
struct Uses {
    equal: usize,
    element: usize,
    exists: usize,
    /// Lengths of prefixes, and how many lists have each.
    prefixes: BTreeMap<usize, usize>,
    ranges: Ranges,
}

#[derive(Default)]
pub(super) struct Lists {
    lists: Slab<List>,
    exact: HashTable<ListId>,
    uses: Vec<Uses>,
    whole: Whole,
    hasher: RandomState,
}

/// How many lists there are of the tokens that look at no field.
#[derive(Default)]
struct Whole {
    all: usize,
    slow: usize,
    documents: usize,
}

/// The kinds of token that are found by hash, as an event asks for them.
#[derive(Clone, Copy, Hash)]
enum Ask<'a> {
    All,
    Slow,
    Document(&'a str),
    Equal(FieldId, Scalar<'a>),
    Element(FieldId, Scalar<'a>),
    Prefix(FieldId, &'a str),
    Exists(FieldId),
}

impl Token {
    fn ask(&self) -> Option<Ask<'_>> {
        Some(match self {
            Self::All => Ask::All,
            Self::Slow => Ask::Slow,
            Self::Document(key) => Ask::Document(key),
            Self::Equal(field, value) => Ask::Equal(*field, value.as_scalar()),
            Self::Element(field, value) => Ask::Element(*field, value.as_scalar()),
            Self::Prefix(field, part) => Ask::Prefix(*field, part),
            Self::Exists(field) => Ask::Exists(*field),
            Self::From(..) | Self::UpTo(..) | Self::Between(..) => return None,
        })
    }

    fn field(&self) -> Option<FieldId> {
        match self {
            Self::All | Self::Slow | Self::Document(_) => None,
            Self::Equal(field, _)
            | Self::Element(field, _)
            | Self::Prefix(field, _)
            | Self::Exists(field)
            | Self::From(field, _)
            | Self::UpTo(field, _)
            | Self::Between(field, _, _) => Some(*field),
        }
    }
}

impl Ask<'_> {
    fn is(self, token: &Token) -> bool {
        match (self, token) {
            (Self::All, Token::All) | (Self::Slow, Token::Slow) => true,
            (Self::Document(key), Token::Document(other)) => *key == **other,
            (Self::Equal(field, value), Token::Equal(other, literal))
            | (Self::Element(field, value), Token::Element(other, literal)) => {
                field == *other && value == literal.as_scalar()
            }
            (Self::Prefix(field, part), Token::Prefix(other, prefix)) => field == *other && *part == **prefix,
            (Self::Exists(field), Token::Exists(other)) => field == *other,
            _ => false,
        }
    }
}

impl Lists {
    /// Hangs a group under a token; answers the list and the position in it.
    pub(super) fn hang(&mut self, token: Token, hung: Hung) -> (ListId, u32) {
        let id = self.find(&token).unwrap_or_else(|| self.create(token));
        let groups = &mut self.lists[id as usize].groups;
        groups.push(hung);
        (id, u32::try_from(groups.len() - 1).expect("fewer groups than subscriptions"))
    }

    /// Takes a group off a list; answers the one that took its position.
    pub(super) fn unhang(&mut self, id: ListId, position: u32) -> Option<Hung> {
        let list = &mut self.lists[id as usize];
        let (_, moved) = take_off(&mut list.groups, position);
        if list.len() == 0 {
            self.destroy(id);
        }
        moved
    }

    /// Puts a subscription directly under a token; answers the list and the position in it.
    pub(super) fn enter(&mut self, token: Token, direct: Direct) -> (ListId, u32) {
        let id = self.find(&token).unwrap_or_else(|| self.create(token));
        let entries = &mut self.lists[id as usize].direct;
        entries.push(direct);
        (id, u32::try_from(entries.len() - 1).expect("fewer than subscriptions"))
    }

    /// Takes a subscription out; answers it, the number of the one that took its position, and the
    /// field that the list alone answered for it.
    pub(super) fn exit(&mut self, id: ListId, position: u32) -> (Direct, Option<u32>, Option<FieldId>) {
        let list = &mut self.lists[id as usize];
        let (gone, moved) = take_off(&mut list.direct, position);
        // What stands in a range has its limits checked, and so its field, by the condition.
        let answered = list.token.ask().and_then(|_| list.token.field());
        if list.len() == 0 {
            self.destroy(id);
        }
        (gone, moved.map(|moved| moved.number), answered)
    }

    /// How many hang under a token.
    pub(super) fn load(&self, token: &Token) -> usize {
        self.find(token).map_or(0, |id| self.lists[id as usize].len())
    }

    /// How many different values of a field lead to a list.
    pub(super) fn variety(&self, field: FieldId) -> usize {
        self.uses.get(field as usize).map_or(0, |uses| uses.equal + uses.element)
    }

    /// Shows every list, once, that the event has something in common with; a group with several
    /// places may be in several of them.
    pub(super) fn candidates(&self, key: &str, values: &Seen<'_>, mut show: impl FnMut(ListId, &List)) {
        let mut ask = |ask: Ask<'_>| {
            if let Some(id) = self.lookup(ask) {
                show(id, &self.lists[id as usize]);
            }
        };
        let whole = [
            (self.whole.all, Ask::All),
            (self.whole.documents, Ask::Document(key)),
            (self.whole.slow, Ask::Slow),
        ];
        whole.into_iter().filter(|(lists, _)| *lists > 0).for_each(|(_, one)| ask(one));
        for (index, (uses, value)) in self.uses.iter().zip(values).enumerate() {
            let Some(value) = value.as_ref().filter(|value| **value != Field::Unknown) else { continue };
            let field = index as FieldId;
            if uses.exists > 0 {
                ask(Ask::Exists(field));
            }
            if uses.element > 0 {
                // A list may hold a value twice; it is asked for once.
                let mut elements = value.elements();
                if elements.len() > 1 {
                    let mut asked = HashSet::with_capacity(elements.len());
                    elements.retain(|element| asked.insert(*element));
                }
                elements.into_iter().for_each(|element| ask(Ask::Element(field, element)));
            }
            let Some(scalar) = value.as_scalar() else { continue };
            if uses.equal > 0 {
                ask(Ask::Equal(field, scalar));
            }
            if let Scalar::Str(text) = scalar {
                let lengths = uses.prefixes.range(..=text.len()).map(|(length, _)| *length);
                lengths
                    .filter_map(|length| text.get(..length))
                    .for_each(|part| ask(Ask::Prefix(field, part)));
            }
        }
        for (uses, value) in self.uses.iter().zip(values) {
            if let Some(scalar) = value.as_ref().and_then(Field::as_scalar) {
                uses.ranges.around(scalar, |id| show(id, &self.lists[id as usize]));
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    fn find(&self, token: &Token) -> Option<ListId> {
        match token.ask() {
            Some(ask) => self.lookup(ask),
            None => self.uses.get(token.field()? as usize)?.ranges.find(token),
        }
    }

    fn lookup(&self, ask: Ask<'_>) -> Option<ListId> {
        let is = |id: &ListId| ask.is(&self.lists[*id as usize].token);
        self.exact.find(self.hasher.hash_one(ask), is).copied()
    }

    fn create(&mut self, token: Token) -> ListId {
        let vacant = self.lists.vacant_entry();
        let id = u32::try_from(vacant.key()).expect("fewer lists than places");
        let list = vacant.insert(List { token, groups: SmallVec::new(), direct: SmallVec::new() });
        if let Some(field) = list.token.field() {
            let needed = field as usize + 1;
            if self.uses.len() < needed {
                self.uses.resize_with(needed, Uses::default);
            }
            self.uses[field as usize].note(&list.token, id, true);
        } else {
            self.whole.note(&list.token, true);
        }
        if let Some(ask) = list.token.ask() {
            let hash = self.hasher.hash_one(ask);
            let lists = &self.lists;
            let hasher = &self.hasher;
            let rehash = |other: &ListId| {
                let ask = lists[*other as usize].token.ask().expect("only these are found by hash");
                hasher.hash_one(ask)
            };
            self.exact.insert_unique(hash, id, rehash);
        }
        id
    }

    fn destroy(&mut self, id: ListId) {
        let list = self.lists.remove(id as usize);
        if let Some(field) = list.token.field() {
            self.uses[field as usize].note(&list.token, id, false);
        } else {
            self.whole.note(&list.token, false);
        }
        if let Some(ask) = list.token.ask() {
            let hash = self.hasher.hash_one(ask);
            if let Ok(found) = self.exact.find_entry(hash, |other| *other == id) {
                found.remove();
            }
        }
    }
}

/// Takes an element out of its position; answers it, and the one that took the position.
fn take_off<A: Array<Item: Copy>>(elements: &mut SmallVec<A>, position: u32) -> (A::Item, Option<A::Item>) {
    let gone = elements.swap_remove(position as usize);
    if elements.len() * 4 < elements.capacity() {
        elements.shrink_to_fit();
    }
    (gone, elements.get(position as usize).copied())
}

/// One more, or one less.
fn count(counter: &mut usize, came: bool) {
    if came { *counter += 1 } else { *counter -= 1 }
}

impl Whole {
    /// A list of this token came or went.
    fn note(&mut self, token: &Token, came: bool) {
        match token {
            Token::All => count(&mut self.all, came),
            Token::Slow => count(&mut self.slow, came),
            Token::Document(_) => count(&mut self.documents, came),
            _ => {}
        }
    }
}

impl Uses {
    /// A list of this token came or went.
    fn note(&mut self, token: &Token, id: ListId, came: bool) {
        match token {
            Token::Equal(..) => count(&mut self.equal, came),
            Token::Element(..) => count(&mut self.element, came),
            Token::Exists(..) => count(&mut self.exists, came),
            Token::Prefix(_, part) => {
                let lists = self.prefixes.entry(part.len()).or_default();
                count(lists, came);
                if *lists == 0 {
                    self.prefixes.remove(&part.len());
                }
            }
            Token::From(..) | Token::UpTo(..) | Token::Between(..) => match came {
                true => self.ranges.insert(token, id),
                false => self.ranges.remove(token),
            },
            Token::All | Token::Slow | Token::Document(_) => {}
        }
    }
}
