//! [`EventRules`]: how a body that came from another program becomes an event: whose it is, in
//! which collection, under which key, and what happened. Pure.

mod headers;
mod pick;

pub use headers::Headers;
pub use pick::Pick;
pub(crate) use pick::{at, broken};

use crate::error::{Error, Result};
use firth_router::Tenant;
use firth_router::event::{Document, Event, Operation};
use firth_router::filter::Predicate;
use pick::check_pointer;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The rules as a section of the configuration has them.
#[derive(Clone, Debug, Deserialize)]
pub struct RuleOptions {
    /// Whose the events are.
    pub tenant: Pick,
    /// Their collection.
    pub collection: Pick,
    /// The document's key.
    pub key: Pick,
    /// What happened.
    #[serde(default)]
    pub op: OperationRule,
    /// Where the document stands in the body, as a JSON pointer; the whole body unless given.
    #[serde(default)]
    pub document: String,
    /// Which events are kept, in CEL over `doc`, `op`, `key` and `collection`.
    #[serde(default)]
    pub when: Option<String>,
}

/// What happened to the document.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub enum OperationRule {
    /// Always the same.
    Constant(Operation),
    /// By a text of the request. An event whose text is not named is left out, unless there is an
    /// operation for all others.
    ByText {
        /// Where the text is.
        from: Pick,
        /// The operation of each text.
        is: BTreeMap<String, Operation>,
        /// That of all others.
        otherwise: Option<Operation>,
    },
}

impl Default for OperationRule {
    fn default() -> Self {
        Self::Constant(Operation::Replace)
    }
}

impl TryFrom<Value> for OperationRule {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Texts {
            from: Pick,
            is: BTreeMap<String, Operation>,
            #[serde(default)]
            otherwise: Option<Operation>,
        }
        let rule = match value {
            Value::String(_) => Self::Constant(read(value)?),
            value => {
                let Texts { from, is, otherwise } = read(value)?;
                Self::ByText { from, is, otherwise }
            }
        };
        let control = rule.operations().find(|one| matches!(one, Operation::Truncate | Operation::Resync));
        match control {
            Some(control) => {
                Err(format!("op cannot be {}: it is about a whole collection", control.as_str()))
            }
            None => Ok(rule),
        }
    }
}

impl OperationRule {
    fn operations(&self) -> impl Iterator<Item = Operation> {
        let (constant, texts) = match self {
            Self::Constant(operation) => (Some(*operation), None),
            Self::ByText { is, otherwise, .. } => (*otherwise, Some(is.values().copied())),
        };
        constant.into_iter().chain(texts.into_iter().flatten())
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("op: {error}"))
}

/// Checked rules; clones share them.
#[derive(Clone)]
pub struct EventRules(Arc<CheckedRules>);

struct CheckedRules {
    options: RuleOptions,
    when: Option<Predicate>,
}

impl EventRules {
    /// Checks the rules.
    pub fn new(options: &RuleOptions) -> Result<Self> {
        if let Pick::Constant(tenant) = &options.tenant {
            Tenant::new(tenant).map_err(|error| Error::invalid(format!("tenant: {error}")))?;
        }
        if matches!(options.key, Pick::Constant(_)) {
            return Err(Error::invalid(
                "key is a constant: give { pointer: /… }, { header: … } or { name: … }",
            ));
        }
        check_pointer(&options.document).map_err(|error| Error::invalid(format!("document: {error}")))?;
        let when = options.when.as_ref().map(|source| Predicate::parse(source)).transpose();
        let when = when.map_err(|error| Error::invalid(format!("when: {error}")))?;
        Ok(Self(Arc::new(CheckedRules { options: options.clone(), when })))
    }

    /// Where the names of an event come from.
    pub(crate) fn picks(&self) -> impl Iterator<Item = &Pick> {
        let RuleOptions { tenant, collection, key, op, .. } = &self.0.options;
        let from = match op {
            OperationRule::ByText { from, .. } => Some(from),
            OperationRule::Constant(_) => None,
        };
        [tenant, collection, key].into_iter().chain(from)
    }

    /// The collection, if it is the same for all.
    #[cfg(feature = "_shared_reader")]
    pub(crate) fn collection(&self) -> Option<&str> {
        match &self.0.options.collection {
            Pick::Constant(collection) => Some(collection),
            _ => None,
        }
    }

    /// The event that a body makes; none if the rules leave it out.
    /// [`Poison`](crate::ErrorKind::Poison) if it cannot be an event.
    pub fn event(&self, headers: &Headers<'_>, body: &RawValue) -> Result<Option<Event>> {
        let options = &self.0.options;
        let Some(operation) = options.op.of(headers, body)? else { return Ok(None) };
        let event = self.named(operation, headers, body)?;
        let document = at(body, &options.document)?.ok_or_else(|| {
            Error::poison(format!("document: the body has nothing at {}", options.document))
        })?;
        if operation == Operation::Delete && document.get() == "null" {
            return self.kept(event);
        }
        let document = Document::from_json(document.get().to_owned())
            .map_err(|error| Error::poison(format!("document: {error}")))?;
        self.kept(match operation {
            Operation::Delete => event.with_before(document),
            _ => event.with_after(document),
        })
    }

    /// The event without documents.
    pub(crate) fn named(
        &self,
        operation: Operation,
        headers: &Headers<'_>,
        body: &RawValue,
    ) -> Result<Event> {
        let options = &self.0.options;
        let needed = |field: &'static str, pick: &Pick| {
            let text = pick.text(headers, body)?.filter(|text| !text.is_empty());
            text.map(Cow::into_owned).ok_or_else(|| lacks(field, pick))
        };
        let tenant = needed("tenant", &options.tenant)?;
        let tenant = Tenant::new(&tenant).map_err(|error| Error::poison(format!("tenant: {error}")))?;
        let collection = needed("collection", &options.collection)?;
        Ok(Event::new(operation, tenant, collection, needed("key", &options.key)?))
    }

    /// The event, if it can be one and is wanted.
    pub(crate) fn kept(&self, event: Event) -> Result<Option<Event>> {
        event.check().map_err(|error| Error::poison(error.to_string()))?;
        let accepted = self.0.when.as_ref().map_or(Ok(true), |when| when.accepts(&event));
        let accepted = accepted.map_err(|error| Error::poison(format!("when: {error}")))?;
        Ok(accepted.then_some(event))
    }
}

impl fmt::Debug for EventRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventRules({:?})", self.0.options)
    }
}

impl OperationRule {
    fn of(&self, headers: &Headers<'_>, body: &RawValue) -> Result<Option<Operation>> {
        match self {
            Self::Constant(operation) => Ok(Some(*operation)),
            Self::ByText { from, is, otherwise } => {
                let text = from.text(headers, body)?;
                Ok(text.and_then(|text| is.get(&*text).copied()).or(*otherwise))
            }
        }
    }
}

/// The request lacks what the configuration asks for. Its values are not told.
pub(crate) fn lacks(field: &str, pick: &Pick) -> Error {
    Error::poison(format!("{field}: the request has nothing at {pick}"))
}
