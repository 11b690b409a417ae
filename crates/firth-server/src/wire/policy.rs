//! How a group treats failures, on the wire and as it is stored.

use super::lenient::maybe_whole;
use super::millis;
use firth::{Backoff, KeyOrdering, RetryPolicy};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// How failed records of a group are tried again by consumers over HTTP; what is left out has its
/// default. Consumers of the library bring their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GroupPolicy {
    /// Attempts in all, the first one included, before a record is a dead letter; 5 unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    #[serde(deserialize_with = "maybe_whole", alias = "attempts")]
    pub(crate) max_attempts: Option<u64>,
    /// How long to wait before the second attempt; 1 s unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86_400_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) backoff_ms: Option<u64>,
    /// No wait is longer than this; 60 s unless set, or `backoff_ms` if that is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86_400_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) max_backoff_ms: Option<u64>,
    /// Each wait is this many times the one before, 1 to 100; 2 unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub(crate) factor: Option<f64>,
    /// Each wait is changed by up to this share, up or down; 0.2 unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) jitter: Option<f64>,
    /// How many servers may vanish with a record in hand before it is given up; 5 unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) max_crashes: Option<u64>,
    /// Whether later records of a key wait for one that is tried again; `strict` unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ordering: Option<KeyOrder>,
}

/// What happens to later records of a key while one of it is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeyOrder {
    /// They wait until it is done or given up.
    Strict,
    /// They go on, and it comes later.
    Relaxed,
}

impl GroupPolicy {
    pub(crate) fn retry(&self) -> RetryPolicy {
        let usual = RetryPolicy::default();
        let first = self.backoff_ms.map_or(usual.backoff.first, Duration::from_millis);
        let count =
            |set: Option<u64>, usual: u32| set.map_or(usual, |set| u32::try_from(set).unwrap_or(u32::MAX));
        RetryPolicy {
            max_attempts: count(self.max_attempts, usual.max_attempts),
            backoff: Backoff {
                first,
                max: self.max_backoff_ms.map_or(usual.backoff.max.max(first), Duration::from_millis),
                factor: self.factor.unwrap_or(usual.backoff.factor),
                jitter: self.jitter.unwrap_or(usual.backoff.jitter),
            },
            max_crashes: count(self.max_crashes, usual.max_crashes),
        }
    }

    pub(crate) fn ordering(&self) -> KeyOrdering {
        match self.ordering {
            Some(KeyOrder::Relaxed) => KeyOrdering::Relaxed,
            _ => KeyOrdering::Strict,
        }
    }

    /// With every value as it is in effect.
    pub(crate) fn in_effect(&self) -> Self {
        let retry = self.retry();
        Self {
            max_attempts: Some(retry.max_attempts.into()),
            backoff_ms: Some(millis(retry.backoff.first)),
            max_backoff_ms: Some(millis(retry.backoff.max)),
            factor: Some(retry.backoff.factor),
            jitter: Some(retry.backoff.jitter),
            max_crashes: Some(retry.max_crashes.into()),
            ordering: Some(self.ordering.unwrap_or(KeyOrder::Strict)),
        }
    }
}
