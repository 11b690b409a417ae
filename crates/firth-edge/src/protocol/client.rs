//! What clients say. Unknown fields are refused, so that a typing error is not a request that was
//! never heard.

use super::EdgeError;
use crate::outbox::SlowPolicy;
use crate::position::Position;
use firth_router::Tenant;
use firth_router::event::{MAX_COLLECTION, MAX_KEY};
use firth_router::filter::{Condition, Filter};
use firth_router::matching::Interest;
use serde::Deserialize;
use std::fmt;

/// The longest name of a subscription, in bytes.
pub(crate) const MAX_NAME: usize = 64;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum ClientMessage {
    Auth(Auth),
    Subscribe(Subscribe),
    Unsubscribe(Unsubscribe),
    Heartbeat,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Auth {
    pub(crate) version: u32,
    #[serde(default)]
    pub(crate) token: Option<String>,
    #[serde(default)]
    pub(crate) slow: Option<SlowPolicy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscribe {
    #[serde(default, rename = "ref")]
    pub(crate) reference: Option<u64>,
    pub(crate) subscriptions: Vec<SubscriptionRequest>,
    #[serde(default)]
    pub(crate) after: Option<Position>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unsubscribe {
    #[serde(default, rename = "ref")]
    pub(crate) reference: Option<u64>,
    pub(crate) subscriptions: Vec<String>,
}

/// One subscription that a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubscriptionRequest {
    /// The client's own name for it; comes with every event.
    pub id: String,
    /// The collection.
    pub collection: String,
    /// Only this document.
    #[serde(default)]
    pub document: Option<String>,
    /// Only documents like this, in CEL.
    #[serde(default)]
    pub filter: Option<String>,
    /// Only documents like this, as conditions; instead of `filter`.
    #[serde(default)]
    pub conditions: Option<Vec<Condition>>,
    /// Be seen, and see who else is there.
    #[serde(default)]
    pub presence: bool,
}

impl SubscriptionRequest {
    /// All events of a collection.
    pub fn collection(id: impl Into<String>, collection: impl Into<String>) -> Self {
        Self { id: id.into(), collection: collection.into(), ..Self::default() }
    }

    /// What it asks for, for this tenant and no other.
    pub(crate) fn interest(&self, tenant: &Tenant) -> Result<Interest, EdgeError> {
        length("id", &self.id, MAX_NAME)?;
        length("collection", &self.collection, MAX_COLLECTION)?;
        if let Some(document) = &self.document {
            length("document", document, MAX_KEY)?;
        }
        let filter = match (&self.filter, &self.conditions) {
            (None, None) => None,
            (Some(source), None) => Some(Filter::parse(source).map_err(|error| wrong("filter", &error))?),
            (None, Some(list)) => Some(Filter::all_of(list).map_err(|error| wrong("conditions", &error))?),
            (Some(_), Some(_)) => {
                return Err(EdgeError::invalid(
                    "conditions",
                    "give either `filter` or `conditions`, not both",
                ));
            }
        };
        Ok(Interest {
            tenant: tenant.clone(),
            collection: self.collection.as_str().into(),
            document: self.document.as_deref().map(Into::into),
            filter,
        })
    }
}

impl ClientMessage {
    pub(crate) fn parse(text: &str) -> Result<Self, EdgeError> {
        serde_json::from_str(text).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => EdgeError::invalid("message", strip(&error)),
            _ => EdgeError::invalid("message", "a message is one JSON object with a `type`"),
        })
    }

    /// The number that a message wants in its answer, though it cannot be read as a whole.
    pub(crate) fn reference_in(text: &str) -> Option<u64> {
        serde_json::from_str::<serde_json::Value>(text).ok()?.get("ref")?.as_u64()
    }

    pub(crate) fn reference(&self) -> Option<u64> {
        match self {
            Self::Subscribe(subscribe) => subscribe.reference,
            Self::Unsubscribe(unsubscribe) => unsubscribe.reference,
            Self::Auth(_) | Self::Heartbeat => None,
        }
    }
}

/// What serde says, without the place: the client knows its own message.
fn strip(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

fn wrong(field: &'static str, error: &firth_router::Error) -> EdgeError {
    EdgeError::invalid(field, error.context().to_owned())
}

fn length(field: &'static str, text: &str, limit: usize) -> Result<(), EdgeError> {
    if text.is_empty() || text.len() > limit {
        let message = format!("`{field}` has {} bytes; give 1 to {limit}", text.len());
        return Err(EdgeError { limit: Some(limit as u64), ..EdgeError::invalid(field, message) });
    }
    Ok(())
}

/// Never shows the token.
impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth(version {})", self.version)
    }
}
