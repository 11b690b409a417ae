//! Samples on the wire: rates, lag, dead letters, memory and disk over time.

use crate::stats::{GROUP, GroupFigures, Samples, TOTAL, TopicFigures, View};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the server sampled, and where its topics and groups stand.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct StatsShown {
    /// When the newest sample was taken, on the server's clock.
    pub(crate) time_ms: u64,
    /// How far apart samples are.
    pub(crate) step_ms: u64,
    /// How many topics there are; the 256 busiest are sampled.
    pub(crate) topics_total: usize,
    /// Topics and groups that are sampled and that the token covers.
    pub(crate) topics_sampled: usize,
    pub(crate) groups_sampled: usize,
    /// Records that wait, and dead letters, over those groups.
    pub(crate) lag: u64,
    pub(crate) dead: u64,
    /// Records that groups gave up in the last 24 hours, as far as this server saw; null for a
    /// token that is for some topics only.
    #[serde(default)]
    pub(crate) died_24h: Option<u64>,
    /// All topics together; null for a token that is for some topics only.
    pub(crate) total: Option<ServerSeries>,
    /// The busiest first.
    pub(crate) topics: Vec<TopicStats>,
    /// The busiest first, or as `sort` says.
    pub(crate) groups: Vec<GroupStats>,
}

/// The server over time; one number per step, null where there is no sample.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ServerSeries {
    /// When the first step begins.
    pub(crate) from_ms: u64,
    /// Records per second.
    pub(crate) produced: Vec<Option<f64>>,
    pub(crate) settled: Vec<Option<f64>>,
    pub(crate) lag: Vec<Option<f64>>,
    pub(crate) dead: Vec<Option<f64>>,
    /// Bytes.
    pub(crate) memory: Vec<Option<f64>>,
    /// Bytes of the data directory, and bytes free on its disk; null without one.
    pub(crate) disk: Vec<Option<f64>>,
    pub(crate) disk_free: Vec<Option<f64>>,
    /// Milliseconds from a delivery to its verdict, of clients of this server.
    #[serde(default)]
    pub(crate) handling_ms: Vec<Option<f64>>,
}

/// A topic now, and over time if it was asked for and is one of the 96 busiest.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TopicStats {
    pub(crate) topic: String,
    pub(crate) partitions: u32,
    pub(crate) records: u64,
    pub(crate) appended: u64,
    pub(crate) delayed: u64,
    pub(crate) produced_per_second: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) series: Option<TopicSeries>,
}

/// A topic over time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TopicSeries {
    pub(crate) from_ms: u64,
    pub(crate) produced: Vec<Option<f64>>,
    pub(crate) records: Vec<Option<f64>>,
}

/// A group now, and over time if it was asked for and is one of the 96 busiest.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GroupStats {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) lag: u64,
    pub(crate) due: u64,
    pub(crate) dead: u64,
    /// The age of the oldest record that was never settled nor tried.
    pub(crate) oldest_ms: Option<u64>,
    pub(crate) members: usize,
    /// The first of the members that own partitions, how many there are, and how many partitions
    /// have no owner.
    #[serde(default)]
    pub(crate) owners: Vec<String>,
    #[serde(default)]
    pub(crate) owner_count: usize,
    #[serde(default)]
    pub(crate) unowned: usize,
    pub(crate) settled_per_second: f64,
    /// Milliseconds from a delivery to its verdict in the last second, of clients of this server.
    #[serde(default)]
    pub(crate) handling_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) series: Option<GroupSeries>,
}

/// A group over time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GroupSeries {
    pub(crate) from_ms: u64,
    pub(crate) settled: Vec<Option<f64>>,
    pub(crate) lag: Vec<Option<f64>>,
    pub(crate) dead: Vec<Option<f64>>,
    /// As in the group.
    #[serde(default)]
    pub(crate) handling_ms: Vec<Option<f64>>,
}

/// One decimal is enough, and short.
fn shown(value: f32) -> Option<f64> {
    (!value.is_nan()).then(|| (f64::from(value) * 10.0).round() / 10.0)
}

fn column<const N: usize>(samples: &Samples<N>, at: usize) -> Vec<Option<f64>> {
    samples.rows.iter().map(|row| shown(row[at])).collect()
}

impl From<Samples<TOTAL>> for ServerSeries {
    fn from(samples: Samples<TOTAL>) -> Self {
        Self {
            from_ms: samples.from_ms,
            produced: column(&samples, 0),
            settled: column(&samples, 1),
            lag: column(&samples, 2),
            dead: column(&samples, 3),
            memory: column(&samples, 4),
            disk: column(&samples, 5),
            disk_free: column(&samples, 6),
            handling_ms: column(&samples, 7),
        }
    }
}

impl From<View<TopicFigures, 2>> for TopicStats {
    fn from(view: View<TopicFigures, 2>) -> Self {
        let TopicFigures { topic, partitions, appended, records, delayed } = view.figures;
        let series = view.samples.map(|samples| TopicSeries {
            from_ms: samples.from_ms,
            produced: column(&samples, 0),
            records: column(&samples, 1),
        });
        let produced_per_second = shown(view.rate).unwrap_or_default();
        Self { topic, partitions, records, appended, delayed, produced_per_second, series }
    }
}

impl From<View<GroupFigures, GROUP>> for GroupStats {
    fn from(view: View<GroupFigures, GROUP>) -> Self {
        let GroupFigures { topic, group, lag, due, dead, oldest_ms, members, .. } = view.figures;
        let GroupFigures { owners, owner_count, unowned, handling_ms, .. } = view.figures;
        let series = view.samples.map(|samples| GroupSeries {
            from_ms: samples.from_ms,
            settled: column(&samples, 0),
            lag: column(&samples, 1),
            dead: column(&samples, 2),
            handling_ms: column(&samples, 3),
        });
        let settled_per_second = shown(view.rate).unwrap_or_default();
        Self {
            topic,
            group,
            lag,
            due,
            dead,
            oldest_ms,
            members,
            owners,
            owner_count,
            unowned,
            settled_per_second,
            handling_ms: handling_ms.and_then(shown),
            series,
        }
    }
}
