//! [`Access`]: the gateways and tenants that a caller may register, and the registry as such a
//! caller has it.

use super::Registry;
use super::subscription::{Gateway, Subscription};
use super::view::Select;
use crate::error::{Error, ErrorKind, Result};
use crate::name::{GatewayId, SubscriptionId, Tenant};
use crate::pattern;
use crate::routing::Target;

/// The longest pattern.
const MAX_PATTERN: usize = 128;

/// Patterns of the gateways and tenants that a caller may register; an empty list limits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    gateways: Vec<String>,
    tenants: Vec<String>,
}

impl Access {
    /// Access to gateways and tenants whose names fit one of the patterns; `*` stands for any run
    /// of characters. A limit to tenants needs one to gateways: a caller that may take the place of
    /// any gateway gets the events of every tenant.
    pub fn new(gateways: Vec<String>, tenants: Vec<String>) -> Result<Self> {
        for (field, patterns) in [("gateways", &gateways), ("tenants", &tenants)] {
            let fits = |c: char| c.is_ascii_alphanumeric() || "_-:@*".contains(c);
            let is_one =
                |word: &String| !word.is_empty() && word.len() <= MAX_PATTERN && word.chars().all(fits);
            if !patterns.iter().all(is_one) {
                return Err(Error::invalid(format!("{field}: give names, with `*` for any part")));
            }
        }
        if gateways.is_empty() && !tenants.is_empty() {
            let context = "gateways: a limit to tenants needs one to gateways, because any gateway gets events of all tenants: add gateways=NAME, with `*` for any part";
            return Err(Error::invalid(context).with_field("gateways"));
        }
        Ok(Self { gateways, tenants })
    }

    fn is_unlimited(&self) -> bool {
        self.gateways.is_empty() && self.tenants.is_empty()
    }

    fn check_gateway(&self, id: &GatewayId) -> Result<()> {
        match covers(&self.gateways, id.as_str()) {
            true => Ok(()),
            false => Err(forbidden(format!("gateway {id} is not this token's: see gateways= on its line"))),
        }
    }

    /// Fails unless the caller may see and change what this tenant has.
    pub fn check_tenant(&self, tenant: &Tenant) -> Result<()> {
        match covers(&self.tenants, tenant.as_str()) {
            true => Ok(()),
            false => Err(forbidden(format!("tenant {tenant} is not this token's: see tenants= on its line"))),
        }
    }

    /// Fails unless the caller may see every subscription that is selected.
    pub fn check_select(&self, select: &Select) -> Result<()> {
        match &select.tenant {
            Some(tenant) => self.check_tenant(tenant),
            None if self.tenants.is_empty() => Ok(()),
            None => Err(forbidden("this token is for some tenants only: name one of them by tenant=")),
        }
    }

    /// A caller with a limit on gateways subscribes for those: events that are spread over all
    /// gateways, or sent to each, would reach the others.
    fn check_subscription(&self, subscription: &Subscription) -> Result<()> {
        self.check_tenant(&subscription.tenant)?;
        match &subscription.target {
            Target::Direct(gateway) => self.check_gateway(gateway),
            Target::Hash | Target::Broadcast if self.gateways.is_empty() => Ok(()),
            Target::Hash | Target::Broadcast => {
                Err(forbidden("this token is for some gateways only: a subscription must name one of them"))
            }
        }
    }
}

fn covers(patterns: &[String], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|one| pattern::matches(one, name))
}

fn forbidden(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Forbidden, context)
}

/// The registry for one caller: each call fails with [`ErrorKind::Forbidden`] unless the gateway
/// and the tenant that it names are the caller's.
#[derive(Debug)]
pub struct LimitedRegistry<'a> {
    registry: &'a Registry,
    access: &'a Access,
}

impl Registry {
    /// The registry for a caller with this access.
    pub fn limited<'a>(&'a self, access: &'a Access) -> LimitedRegistry<'a> {
        LimitedRegistry { registry: self, access }
    }
}

impl LimitedRegistry<'_> {
    /// As [`Registry::register_gateway`]. Of events that are spread over gateways, or go to each,
    /// the gateway gets those of the caller's tenants.
    pub async fn register_gateway(&self, mut gateway: Gateway) -> Result<()> {
        self.access.check_gateway(&gateway.id)?;
        gateway.tenants.clone_from(&self.access.tenants);
        self.registry.register_gateway(gateway).await
    }

    /// As [`Registry::heartbeat_instance`].
    pub async fn heartbeat_instance(&self, id: &GatewayId, instance: Option<&str>) -> Result<Gateway> {
        self.access.check_gateway(id)?;
        self.registry.heartbeat_instance(id, instance).await
    }

    /// As [`Registry::unregister_instance`].
    pub async fn unregister_instance(&self, id: &GatewayId, instance: Option<&str>) -> Result<Option<usize>> {
        self.access.check_gateway(id)?;
        self.registry.unregister_instance(id, instance).await
    }

    /// As [`Registry::register`]. The subscription that it replaces must be the caller's, too.
    pub async fn register(&self, subscription: Subscription) -> Result<()> {
        self.access.check_subscription(&subscription)?;
        if self.access.is_unlimited() {
            return self.registry.register(subscription).await;
        }
        let id = subscription.id.clone();
        let done = self.registry.register_over(subscription, |stored| self.access.check_subscription(stored));
        done.await.map_err(|error| self.refusal(error, &id))
    }

    /// As [`Registry::heartbeat`].
    pub async fn heartbeat(&self, tenant: &Tenant, id: &SubscriptionId) -> Result<()> {
        self.access.check_tenant(tenant)?;
        let done = self.registry.heartbeat_if(tenant, id, |stored| self.access.check_subscription(stored));
        done.await.map_err(|error| self.refusal(error, id))
    }

    /// As [`Registry::unregister`].
    pub async fn unregister(&self, tenant: &Tenant, id: &SubscriptionId) -> Result<bool> {
        self.access.check_tenant(tenant)?;
        if self.access.is_unlimited() {
            return self.registry.unregister(tenant, id).await;
        }
        let done = self.registry.unregister_if(tenant, id, |stored| self.access.check_subscription(stored));
        done.await.map_err(|error| self.refusal(error, id))
    }

    /// What cannot be read may be another caller's.
    fn refusal(&self, error: Error, id: &SubscriptionId) -> Error {
        if self.access.is_unlimited() || error.kind() != ErrorKind::Corrupt {
            return error;
        }
        let context = format!(
            "this node cannot read what is stored as subscription {id}, so it may be another token's: choose another id"
        );
        forbidden(context).with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(gateways: &[&str], tenants: &[&str]) -> Access {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Access::new(owned(gateways), owned(tenants)).unwrap()
    }

    #[test]
    fn r17_a_subscription_needs_its_tenant_and_its_gateway() {
        let access = of(&["edge-*"], &["acme"]);
        let wish = |tenant: &str, target: Target| {
            let id = SubscriptionId::new("s").unwrap();
            Subscription::new(id, Tenant::new(tenant).unwrap(), "orders", target)
        };
        let direct = |id: &str| Target::Direct(GatewayId::new(id).unwrap());
        assert!(access.check_subscription(&wish("acme", direct("edge-1"))).is_ok());
        for refused in [
            wish("other", direct("edge-1")),
            wish("acme", direct("core")),
            wish("acme", Target::Hash),
            wish("acme", Target::Broadcast),
        ] {
            let error = access.check_subscription(&refused).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Forbidden, "{error}");
        }
        let error = Access::new(Vec::new(), vec!["acme".to_owned()]).unwrap_err();
        assert!(error.context().contains("gateways="), "{error}");
        assert!(Access::default().check_subscription(&wish("any", Target::Broadcast)).is_ok());
    }

    #[test]
    fn r17_a_pattern_is_made_of_what_names_are_made_of() {
        for wrong in ["", "a b", "a,b", "ä", &"x".repeat(129)] {
            assert!(Access::new(vec![wrong.to_owned()], Vec::new()).is_err(), "{wrong}");
            assert!(Access::new(Vec::new(), vec![wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
