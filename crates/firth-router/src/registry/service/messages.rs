//! The messages of `proto/registry.proto`, and what they mean.

use super::super::subscription::{Gateway, Subscription};
use crate::config::Mode;
use crate::error::{Error, Result};
use crate::filter::Condition;
use crate::name::{GatewayId, SubscriptionId, Tenant};
use crate::routing::Target;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

#[derive(Clone, PartialEq, Message)]
pub(super) struct GatewayMessage {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    endpoint: String,
    #[prost(string, tag = "3")]
    protocol: String,
    #[prost(uint32, tag = "4")]
    ttl_seconds: u32,
    #[prost(string, tag = "5")]
    instance: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GatewayName {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    instance: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SubscriptionName {
    #[prost(string, tag = "1")]
    tenant: String,
    #[prost(string, tag = "2")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SubscriptionMessage {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    tenant: String,
    #[prost(string, tag = "3")]
    collection: String,
    #[prost(string, tag = "4")]
    document: String,
    #[prost(string, tag = "5")]
    filter: String,
    #[prost(message, repeated, tag = "6")]
    conditions: Vec<ConditionMessage>,
    #[prost(string, tag = "7")]
    gateway: String,
    #[prost(string, tag = "8")]
    mode: String,
    #[prost(string, tag = "9")]
    priority: String,
    #[prost(string, tag = "10")]
    overflow: String,
    #[prost(uint32, tag = "11")]
    ttl_seconds: u32,
}

#[derive(Clone, PartialEq, Message)]
struct ConditionMessage {
    #[prost(string, tag = "1")]
    field: String,
    #[prost(string, tag = "2")]
    op: String,
    #[prost(string, tag = "3")]
    value_json: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Registered {
    #[prost(uint32, tag = "1")]
    pub(super) ttl_seconds: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Removed {
    #[prost(uint32, tag = "1")]
    pub(super) subscriptions: u32,
}

/// What a subscription has that says nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual {
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
}

impl GatewayMessage {
    pub(super) fn of(gateway: &Gateway) -> Self {
        Self {
            id: gateway.id.to_string(),
            endpoint: gateway.endpoint.clone(),
            protocol: gateway.protocol.as_ref().map(word).unwrap_or_default(),
            ttl_seconds: seconds(gateway.ttl_seconds),
            instance: gateway.instance.clone().unwrap_or_default(),
        }
    }

    pub(super) fn read(self) -> Result<Gateway> {
        let mut gateway = Gateway::new(GatewayId::new(self.id)?, self.endpoint);
        gateway.instance = given(self.instance);
        gateway.protocol = given(self.protocol).map(|word| one_of("protocol", &word)).transpose()?;
        if self.ttl_seconds > 0 {
            gateway.ttl_seconds = u64::from(self.ttl_seconds);
        }
        Ok(gateway)
    }
}

impl GatewayName {
    pub(super) fn of(id: &GatewayId, instance: Option<&str>) -> Self {
        Self { id: id.to_string(), instance: instance.unwrap_or_default().to_owned() }
    }

    pub(super) fn read(self) -> Result<(GatewayId, Option<String>)> {
        Ok((GatewayId::new(self.id)?, given(self.instance)))
    }
}

impl SubscriptionName {
    pub(super) fn of(tenant: &Tenant, id: &SubscriptionId) -> Self {
        Self { tenant: tenant.to_string(), id: id.to_string() }
    }

    pub(super) fn read(self) -> Result<(Tenant, SubscriptionId)> {
        Ok((Tenant::new(self.tenant)?, SubscriptionId::new(self.id)?))
    }
}

impl SubscriptionMessage {
    pub(super) fn of(subscription: &Subscription) -> Self {
        let (mode, gateway) = match &subscription.target {
            Target::Direct(gateway) => ("direct", gateway.to_string()),
            Target::Hash => ("hash", String::new()),
            Target::Broadcast => ("broadcast", String::new()),
        };
        let condition = |condition: &Condition| ConditionMessage {
            field: condition.field.clone(),
            op: word(&condition.op),
            value_json: condition.value.to_string(),
        };
        Self {
            id: subscription.id.to_string(),
            tenant: subscription.tenant.to_string(),
            collection: subscription.collection.to_string(),
            document: subscription.document.as_deref().unwrap_or_default().to_owned(),
            filter: subscription.filter.clone().unwrap_or_default(),
            conditions: subscription.conditions.iter().map(condition).collect(),
            gateway,
            mode: mode.to_owned(),
            priority: word(&subscription.priority),
            overflow: word(&subscription.overflow),
            ttl_seconds: seconds(subscription.ttl_seconds),
        }
    }

    pub(super) fn read(self, usual: &Usual) -> Result<Subscription> {
        let mode = given(self.mode);
        let gateway = given(self.gateway);
        let target = Target::read_or(mode.as_deref(), gateway.as_deref(), usual.mode)?;
        let id = SubscriptionId::new(self.id)?;
        let tenant = Tenant::new(self.tenant)?;
        let mut subscription = Subscription::new(id, tenant, self.collection, target);
        subscription.document = given(self.document).map(Into::into);
        subscription.filter = given(self.filter);
        let conditions: Result<_> = self.conditions.into_iter().map(ConditionMessage::read).collect();
        subscription.conditions = conditions?;
        if let Some(word) = given(self.priority) {
            subscription.priority = one_of("priority", &word)?;
        }
        if let Some(word) = given(self.overflow) {
            subscription.overflow = one_of("overflow", &word)?;
        }
        subscription.ttl_seconds = match self.ttl_seconds {
            0 => usual.ttl.as_secs(),
            seconds => u64::from(seconds),
        };
        Ok(subscription)
    }
}

impl ConditionMessage {
    fn read(self) -> Result<Condition> {
        let value = match given(self.value_json) {
            None => Value::Null,
            Some(text) => serde_json::from_str(&text)
                .map_err(|_| Error::invalid("value_json: the value of a condition is not JSON"))?,
        };
        Ok(Condition { field: self.field, op: one_of("op", &self.op)?, value })
    }
}

fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// The other way round than [`one_of`].
fn word(choice: &impl Serialize) -> String {
    let value = serde_json::to_value(choice).ok();
    value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn seconds(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A word for one of a few choices, as the JSON form has it.
fn one_of<T: DeserializeOwned>(field: &str, word: &str) -> Result<T> {
    serde_json::from_value(Value::from(word)).map_err(|error| Error::invalid(format!("{field}: {error}")))
}
