//! How a partition of the router fares. Pure.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A partition whose oldest waiting event is older than this is lagging.
pub const LAG_LIMIT: Duration = Duration::from_secs(30);
/// And older than this, it is stale: what gateways see is not the present any more.
pub const STALE_LIMIT: Duration = Duration::from_secs(300);

/// How a partition, or a whole router, fares; the worst counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// It keeps up.
    #[default]
    Healthy,
    /// Events wait for longer than [`LAG_LIMIT`].
    Lagging,
    /// Events wait for longer than [`STALE_LIMIT`].
    Stale,
    /// No node routes it although events wait, or its owners die over and over.
    Failed,
}

/// What there is to know of a partition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signs {
    /// Some node owns it.
    pub is_owned: bool,
    /// The age of the oldest event that waits.
    pub oldest: Option<Duration>,
    /// Owners in a row that vanished without getting anywhere.
    pub crashes: u32,
}

impl Health {
    /// Judges a partition. One without an owner gets [`LAG_LIMIT`] to find one: nodes come and go.
    pub fn of(signs: Signs) -> Self {
        let waits = signs.oldest.unwrap_or_default();
        match () {
            () if signs.crashes >= 3 => Self::Failed,
            () if !signs.is_owned && waits > LAG_LIMIT => Self::Failed,
            () if waits > STALE_LIMIT => Self::Stale,
            () if waits > LAG_LIMIT => Self::Lagging,
            () => Self::Healthy,
        }
    }

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Lagging => "lagging",
            Self::Stale => "stale",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_follows_how_long_events_wait_and_whether_somebody_routes_them() {
        let of = |is_owned, seconds: Option<u64>, crashes| {
            Health::of(Signs { is_owned, oldest: seconds.map(Duration::from_secs), crashes })
        };
        assert_eq!(of(true, None, 0), Health::Healthy);
        assert_eq!(of(false, None, 0), Health::Healthy, "nothing waits");
        assert_eq!(of(true, Some(29), 0), Health::Healthy);
        assert_eq!(of(true, Some(31), 0), Health::Lagging);
        assert_eq!(of(true, Some(301), 0), Health::Stale);
        assert_eq!(of(false, Some(31), 0), Health::Failed);
        assert_eq!(of(true, None, 3), Health::Failed);
        assert!(Health::Failed > Health::Stale && Health::Lagging > Health::Healthy);
    }
}
