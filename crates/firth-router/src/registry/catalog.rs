//! Where the registry is kept: entries of the catalog, spread over spaces so that no one key grows
//! too large, and one channel of the bus.

use super::subscription::{Gateway, Subscription};
use crate::error::{Error, ErrorKind, Result};
use crate::name::{GatewayId, SubscriptionId, Tenant};
use bytes::Bytes;
use firth::Broker;
use firth::catalog::{
    BusHandle, CatalogHandle, ChannelName, Entry, EntryKey, Expect, Listener, Put, SpaceName,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How many spaces the subscriptions are spread over.
pub(super) const SHARDS: u64 = 64;

#[derive(Clone)]
pub(super) struct Store {
    catalog: CatalogHandle,
    bus: BusHandle,
}

/// Something changed: read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum News {
    Subscription {
        t: Tenant,
        s: SubscriptionId,
        v: u64,
        /// On the first piece of a message: members confirm all of it to this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ask: Option<Ask>,
    },
    Gateway {
        g: GatewayId,
        v: u64,
    },
}

/// To whom a message of news is confirmed, and under which number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) to: String,
    pub(super) number: u64,
}

/// A node that matches events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    /// Its name among the members, made up at random.
    pub(super) id: String,
    /// Its name for people.
    pub(super) node: String,
    /// What it routes, and as which group.
    #[serde(default)]
    pub(super) topic: String,
    #[serde(default)]
    pub(super) group: String,
}

/// A member has what it was told of in a message, but for what it refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Confirmed {
    pub(super) number: u64,
    pub(super) by: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) refused: Vec<(News, String)>,
}

impl Confirmed {
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }
}

/// A subscription as it stands in the catalog.
pub(super) struct Listed {
    pub(super) key: (Tenant, SubscriptionId),
    pub(super) version: u64,
    pub(super) value: Bytes,
}

impl Listed {
    fn new(entry: &Entry) -> Option<Self> {
        let (tenant, id) = entry.name.split_once('/')?;
        let key = (Tenant::new(tenant).ok()?, SubscriptionId::new(id).ok()?);
        Some(Self { key, version: entry.version, value: entry.value.clone() })
    }
}

impl News {
    pub(super) fn subscription(tenant: &Tenant, id: &SubscriptionId, version: u64) -> Self {
        Self::Subscription { t: tenant.clone(), s: id.clone(), v: version, ask: None }
    }

    pub(super) fn gateway(id: &GatewayId, version: u64) -> Self {
        Self::Gateway { g: id.clone(), v: version }
    }

    pub(super) fn read(payload: &[u8]) -> Option<Vec<Self>> {
        serde_json::from_slice(payload).ok()
    }

    /// Whether both tell of the same change.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Subscription { t, s, v, .. }, Self::Subscription { t: t2, s: s2, v: v2, .. }) => {
                (t, s, v) == (t2, s2, v2)
            }
            _ => self == other,
        }
    }
}

impl Store {
    pub(super) fn new(broker: &Broker) -> Self {
        Self { catalog: broker.catalog(), bus: broker.bus() }
    }

    pub(super) async fn listen(&self) -> Result<Listener> {
        Ok(self.bus.subscribe(&channel()).await?)
    }

    /// Tells the other nodes. Not being heard delays them until their next round, so a failure is
    /// only logged.
    pub(super) async fn tell(&self, news: &[News]) {
        for some in news.chunks(100) {
            let payload = serde_json::to_vec(some).expect("names and numbers can always be written");
            if let Err(error) = self.bus.publish(&channel(), payload.into()).await {
                tracing::warn!(%error, "other nodes hear of a registration only in their next round");
            }
        }
    }

    /// As [`tell`](Self::tell); members confirm it to `me` under this number.
    pub(super) async fn ask(&self, news: &[News], me: &str, number: u64) {
        let mut news = news.to_vec();
        if let Some(News::Subscription { ask, .. }) = news.first_mut() {
            *ask = Some(Ask { to: me.to_owned(), number });
        }
        self.tell(&news).await;
    }

    pub(super) async fn listen_to_confirmations(&self, me: &str) -> Result<Listener> {
        Ok(self.bus.subscribe(&confirmations(me)?).await?)
    }

    /// Confirms news to the node that asked. One that does not hear it asks again.
    pub(super) async fn confirm(&self, to: &str, confirmed: &Confirmed) -> Result<()> {
        let payload = serde_json::to_vec(confirmed).expect("names and numbers can always be written");
        Ok(self.bus.publish(&confirmations(to)?, payload.into()).await?)
    }

    /// The nodes that match events, with the versions of their entries.
    pub(super) async fn members(&self) -> Result<Vec<(u64, Member)>> {
        let entries = self.catalog.list_all(&members(), "").await?;
        let read = |entry: Entry| {
            // Of a newer node whose entry has another form, the name is enough.
            let member = serde_json::from_slice(&entry.value).unwrap_or_else(|_| Member {
                id: entry.name.clone(),
                node: entry.name,
                ..Member::default()
            });
            (entry.version, member)
        };
        Ok(entries.into_iter().map(read).collect())
    }

    pub(super) async fn put_member(&self, member: &Member) -> Result<()> {
        let value = serde_json::to_vec(member).expect("names can always be written");
        let key = EntryKey::new(members(), member.id.as_str())?;
        self.catalog.put(&key, value.into(), Expect::Any).await?;
        Ok(())
    }

    pub(super) async fn remove_member(&self, id: &str, expect: Expect) -> Result<Put> {
        Ok(self.catalog.remove(&EntryKey::new(members(), id)?, expect).await?)
    }

    pub(super) async fn get(
        &self,
        tenant: &Tenant,
        id: &SubscriptionId,
    ) -> Result<Option<(u64, Arc<Subscription>)>> {
        let Some(entry) = self.catalog.get(&key(tenant, id)?).await? else { return Ok(None) };
        Ok(Some((entry.version, Arc::new(Subscription::decode(&entry.value)?))))
    }

    pub(super) async fn put(&self, subscription: &Subscription, expect: Expect) -> Result<Put> {
        let key = key(&subscription.tenant, &subscription.id)?;
        Ok(self.catalog.put(&key, Bytes::from(subscription.encode()), expect).await?)
    }

    pub(super) async fn remove(&self, tenant: &Tenant, id: &SubscriptionId, expect: Expect) -> Result<Put> {
        Ok(self.catalog.remove(&key(tenant, id)?, expect).await?)
    }

    /// One shard of the subscriptions, not decoded yet. Entries whose names this version cannot
    /// read are left out and logged.
    pub(super) async fn shard(&self, shard: u64) -> Result<Vec<Listed>> {
        let entries = self.catalog.list_all(&space(shard), "").await?;
        let read = |entry: Entry| {
            let listed = Listed::new(&entry);
            if listed.is_none() {
                tracing::warn!(entry = %entry.name, "a registered subscription is left out: its name is none");
            }
            listed
        };
        Ok(entries.into_iter().filter_map(read).collect())
    }

    pub(super) async fn gateways(&self) -> Result<Vec<(u64, Gateway)>> {
        let entries = self.catalog.list_all(&gateways(), "").await?;
        let read = |entry: Entry| match Gateway::decode(&entry.value) {
            Ok(gateway) => Some((entry.version, gateway)),
            Err(error) => {
                tracing::warn!(gateway = entry.name, %error, "a registered gateway is left out");
                None
            }
        };
        Ok(entries.into_iter().filter_map(read).collect())
    }

    pub(super) async fn get_gateway(&self, id: &GatewayId) -> Result<Option<(u64, Gateway)>> {
        let Some(entry) = self.catalog.get(&gateway_key(id)?).await? else { return Ok(None) };
        Ok(Some((entry.version, Gateway::decode(&entry.value)?)))
    }

    pub(super) async fn put_gateway(&self, gateway: &Gateway, expect: Expect) -> Result<Put> {
        Ok(self.catalog.put(&gateway_key(&gateway.id)?, gateway.encode().into(), expect).await?)
    }

    pub(super) async fn remove_gateway(&self, id: &GatewayId, expect: Expect) -> Result<Put> {
        Ok(self.catalog.remove(&gateway_key(id)?, expect).await?)
    }
}

/// The shard of a subscription; part of the stored layout, so it never changes.
pub(super) fn shard_of(tenant: &Tenant, id: &SubscriptionId) -> u64 {
    let bytes = tenant.as_str().bytes().chain(std::iter::once(b'/')).chain(id.as_str().bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 32) % SHARDS
}

fn key(tenant: &Tenant, id: &SubscriptionId) -> Result<EntryKey> {
    Ok(EntryKey::new(space(shard_of(tenant, id)), format!("{tenant}/{id}"))?)
}

fn gateway_key(id: &GatewayId) -> Result<EntryKey> {
    Ok(EntryKey::new(gateways(), id.as_str())?)
}

fn space(shard: u64) -> SpaceName {
    SpaceName::new(format!("router.subscriptions.{shard}")).expect("a valid name")
}

fn gateways() -> SpaceName {
    SpaceName::new("router.gateways").expect("a valid name")
}

fn members() -> SpaceName {
    SpaceName::new("router.members").expect("a valid name")
}

fn confirmations(to: &str) -> Result<ChannelName> {
    Ok(ChannelName::new(format!("router.confirmed.{to}"))?)
}

fn channel() -> ChannelName {
    ChannelName::new("router.registry").expect("a valid name")
}

impl From<firth::Error> for Error {
    fn from(error: firth::Error) -> Self {
        let context = format!("the engine failed: {}", error.context());
        Self::new(ErrorKind::Engine, context).with_source(error)
    }
}
