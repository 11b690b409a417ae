//! The fields that a collection's filters look at, and how they are taken out of a document: in one
//! pass over its JSON, without a tree.

use crate::error::{Error, ErrorKind, Result};
use crate::event::{Document, Event, Text};
use crate::filter::{Field, Num, Path};
use foldhash::fast::RandomState;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use slab::Slab;
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

/// The number of a field in its collection.
pub(super) type FieldId = u32;

/// What was found, as [`Seen`].
pub(super) type Values<'a> = SmallVec<[Option<Field<'a>>; 4]>;

/// What was found, by field; nothing where the document has no such field.
pub(super) type Seen<'a> = [Option<Field<'a>>];

#[derive(Default)]
pub(super) struct Fields {
    ids: HashMap<Path, FieldId, RandomState>,
    uses: Slab<Used>,
    root: Node,
    variables: Vec<(Box<str>, FieldId)>,
}

struct Used {
    path: Path,
    times: usize,
}

#[derive(Default)]
struct Node {
    id: Option<FieldId>,
    children: HashMap<Box<str>, Self, RandomState>,
}

impl Fields {
    /// The number of a field, which stays until it was released as often as it was taken.
    pub(super) fn take(&mut self, path: &Path) -> FieldId {
        if let Some(&id) = self.ids.get(path) {
            self.uses[id as usize].times += 1;
            return id;
        }
        let id = u32::try_from(self.uses.insert(Used { path: path.clone(), times: 1 }))
            .expect("fewer fields than subscriptions");
        self.ids.insert(path.clone(), id);
        match &path[..] {
            [variable] => self.variables.push((variable.clone(), id)),
            [_, steps @ ..] => {
                let node = steps
                    .iter()
                    .fold(&mut self.root, |node, step| node.children.entry(step.clone()).or_default());
                node.id = Some(id);
            }
            [] => unreachable!("a path begins with its variable"),
        }
        id
    }

    pub(super) fn release(&mut self, id: FieldId) {
        self.uses[id as usize].times -= 1;
        if self.uses[id as usize].times > 0 {
            return;
        }
        let Used { path, .. } = self.uses.remove(id as usize);
        self.ids.remove(&path);
        match path.len() {
            1 => self.variables.retain(|(_, other)| *other != id),
            _ => self.root.forget(&path[1..]),
        }
    }

    /// Takes the fields out of an event with this image of its document.
    pub(super) fn extract<'a>(&self, event: &'a Event, document: Option<&'a Document>) -> Result<Values<'a>> {
        let span = self.uses.iter().map(|(id, _)| id + 1).next_back().unwrap_or(0);
        let mut values: Values<'_> = smallvec![None; span];
        for (variable, id) in &self.variables {
            let text = match &**variable {
                "op" => event.operation.as_str(),
                "key" => &event.key,
                _ => &event.collection,
            };
            values[*id as usize] = Some(Field::Str(Cow::Borrowed(text)));
        }
        if let Some(document) = document
            && !self.root.children.is_empty()
        {
            let mut json = serde_json::Deserializer::from_slice(document.text());
            let walk = Walk { node: &self.root, values: &mut values };
            walk.deserialize(&mut json).map_err(|error| {
                Error::new(ErrorKind::Corrupt, "a stored document is not valid JSON").with_source(format!(
                    "line {} column {}",
                    error.line(),
                    error.column()
                ))
            })?;
        }
        self.hide_missing(&event.missing, &mut values);
        Ok(values)
    }

    /// Columns that the source does not know, and all that is in them, are unknown.
    fn hide_missing(&self, missing: &[Text], values: &mut Values<'_>) {
        let asked = missing.iter().filter_map(|column| self.root.children.get(&**column));
        asked.for_each(|node| node.set(values, &Some(Field::Unknown)));
    }

    /// Whether some filter asks for a column that the source does not know.
    pub(super) fn asks_for_any(&self, missing: &[Text]) -> bool {
        missing.iter().any(|column| self.root.children.contains_key(&**column))
    }
}

impl Node {
    fn forget(&mut self, steps: &[Box<str>]) {
        let [step, rest @ ..] = steps else {
            self.id = None;
            return;
        };
        if let Some(child) = self.children.get_mut(step) {
            child.forget(rest);
            if child.id.is_none() && child.children.is_empty() {
                self.children.remove(step);
            }
        }
    }

    /// An object that repeats a name counts as its last value only, with all that is in it.
    fn clear(&self, values: &mut Values<'_>) {
        self.set(values, &None);
    }

    fn set<'a>(&self, values: &mut Values<'a>, value: &Option<Field<'a>>) {
        if let Some(id) = self.id {
            values[id as usize].clone_from(value);
        }
        self.children.values().for_each(|child| child.set(values, value));
    }
}

struct Walk<'n, 'v, 'de> {
    node: &'n Node,
    values: &'v mut Values<'de>,
}

impl<'de> Walk<'_, '_, 'de> {
    fn found(self, field: Field<'de>) {
        if let Some(id) = self.node.id {
            self.values[id as usize] = Some(field);
        }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        self.node.clear(self.values);
        if self.node.children.is_empty() {
            let field = Field::deserialize(deserializer)?;
            self.found(field);
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Walk<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let mut names = Vec::new();
        while let Some(Name(name)) = map.next_key()? {
            match self.node.children.get(&*name) {
                Some(node) => map.next_value_seed(Walk { node, values: &mut *self.values })?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
            if self.node.id.is_some() {
                names.push(name);
            }
        }
        self.found(Field::Map(names));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> std::result::Result<(), A::Error> {
        let field = FieldVisitor.visit_seq(seq)?;
        self.found(field);
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> std::result::Result<(), E> {
        self.found(Field::Bool(value));
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> std::result::Result<(), E> {
        self.found(Field::Num(value.into()));
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> std::result::Result<(), E> {
        self.found(Field::Num(value.into()));
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<(), E> {
        let field = FieldVisitor.visit_f64(value)?;
        self.found(field);
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> std::result::Result<(), E> {
        self.found(Field::Str(Cow::Owned(value.to_owned())));
        Ok(())
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, value: &'de str) -> std::result::Result<(), E> {
        self.found(Field::Str(Cow::Borrowed(value)));
        Ok(())
    }

    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<(), E> {
        self.found(Field::Null);
        Ok(())
    }
}

/// A field with nothing below it that anybody asks for.
impl<'de> Deserialize<'de> for Field<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Field<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Field<'de>, A::Error> {
        let mut names = Vec::new();
        while let Some((Name(name), IgnoredAny)) = map.next_entry()? {
            names.push(name);
        }
        Ok(Field::Map(names))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Field<'de>, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            elements.push(element);
        }
        Ok(Field::List(elements))
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> std::result::Result<Field<'de>, E> {
        Ok(Field::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> std::result::Result<Field<'de>, E> {
        Ok(Field::Num(value.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> std::result::Result<Field<'de>, E> {
        Ok(Field::Num(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<Field<'de>, E> {
        // JSON has no NaN.
        Ok(Num::float(value).map_or(Field::Null, Field::Num))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> std::result::Result<Field<'de>, E> {
        Ok(Field::Str(Cow::Owned(value.to_owned())))
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, value: &'de str) -> std::result::Result<Field<'de>, E> {
        Ok(Field::Str(Cow::Borrowed(value)))
    }

    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<Field<'de>, E> {
        Ok(Field::Null)
    }
}
