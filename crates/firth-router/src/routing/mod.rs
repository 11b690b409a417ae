//! Where matched events go: the partition of a document, and the gateway of a subscription. Pure.
//!
//! | mode | gateways of a matched event |
//! |---|---|
//! | direct | the one that the subscription names |
//! | hash | the one that owns the slot of the subscription's id, in a table that all nodes compute alike |
//! | broadcast | all of them, and they filter; more than the fan-out limit is an error, never a choice |

mod partition;
mod table;

pub use partition::partition;
pub use table::{SLOTS, SlotTable, slot_of};

use crate::config::Mode;
use crate::error::{Error, ErrorKind, Result};
use crate::name::{GatewayId, SubscriptionId};
use serde::{Deserialize, Serialize};

/// How the gateway of one subscription is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// This gateway holds the subscription.
    Direct(GatewayId),
    /// Whichever gateway owns the slot of the subscription's id.
    Hash,
    /// Every gateway.
    Broadcast,
}

impl Target {
    /// The target that is meant by a mode (`direct` unless set, `hash`, `broadcast`) and perhaps a
    /// gateway.
    pub fn read(mode: Option<&str>, gateway: Option<&str>) -> Result<Self> {
        match (mode.unwrap_or("direct"), gateway) {
            ("direct", Some(gateway)) => Ok(Self::Direct(GatewayId::new(gateway)?)),
            ("direct", None) => Err(Error::invalid(
                "gateway: name the gateway that holds the subscription, or give the mode hash or broadcast",
            )
            .with_field("gateway")),
            ("hash", None) => Ok(Self::Hash),
            ("broadcast", None) => Ok(Self::Broadcast),
            ("hash" | "broadcast", Some(_)) => {
                Err(Error::invalid("gateway: only the mode direct names a gateway; leave it out")
                    .with_field("gateway"))
            }
            (other, _) => {
                let context = format!("mode: {other:?} is none of direct, hash, broadcast");
                Err(Error::invalid(context).with_field("mode"))
            }
        }
    }

    /// As [`read`](Self::read); a subscription that says neither has the configured mode.
    pub fn read_or(mode: Option<&str>, gateway: Option<&str>, usual: Mode) -> Result<Self> {
        let usual = match usual {
            Mode::ConsistentHash if gateway.is_none() => Some("hash"),
            Mode::Broadcast if gateway.is_none() => Some("broadcast"),
            _ => None,
        };
        Self::read(mode.or(usual), gateway)
    }

    /// Its mode, as [`read`](Self::read) takes it.
    pub fn mode(&self) -> &'static str {
        match self {
            Self::Direct(_) => "direct",
            Self::Hash => "hash",
            Self::Broadcast => "broadcast",
        }
    }

    /// The gateways that get an event for the subscription, out of those that there are now.
    ///
    /// A direct gateway is answered whether or not it is there: its events wait for it.
    pub fn gateways<'a>(
        &'a self,
        id: &SubscriptionId,
        table: &'a SlotTable,
        max_fanout: usize,
    ) -> Result<Vec<&'a GatewayId>> {
        match self {
            Self::Direct(gateway) => Ok(vec![gateway]),
            Self::Hash => table.owner(slot_of(id)).map(|owner| vec![owner]).ok_or_else(nobody),
            Self::Broadcast => match table.gateways() {
                [] => Err(nobody()),
                all if all.len() <= max_fanout => Ok(all.iter().collect()),
                all => Err(Error::new(
                    ErrorKind::Quota,
                    format!(
                        "a broadcast would go to {} gateways and routing.broadcast.max_fanout is {max_fanout}; raise it, or let subscriptions name their gateway",
                        all.len()
                    ),
                )),
            },
        }
    }
}

fn nobody() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "no gateway is registered that may get events of this tenant; the event waits until one is",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateways(count: usize) -> Vec<GatewayId> {
        (0..count).map(|n| GatewayId::new(format!("gw-{n}")).unwrap()).collect()
    }

    #[test]
    fn a_broadcast_reaches_everyone_or_says_why_not() {
        let id = SubscriptionId::new("s").unwrap();
        let table = SlotTable::new(gateways(4));
        assert_eq!(Target::Broadcast.gateways(&id, &table, 4).unwrap().len(), 4);
        let refused = Target::Broadcast.gateways(&id, &table, 3).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Quota);
        assert_eq!(
            Target::Broadcast.gateways(&id, &SlotTable::new([]), 3).unwrap_err().kind(),
            ErrorKind::Unavailable
        );
    }

    #[test]
    fn a_direct_gateway_is_the_one_that_was_named_even_while_it_is_away() {
        let id = SubscriptionId::new("s").unwrap();
        let target = Target::Direct(GatewayId::new("away").unwrap());
        let found = target.gateways(&id, &SlotTable::new([]), 3).unwrap()[0].clone();
        assert_eq!(found.as_str(), "away");
    }
}
