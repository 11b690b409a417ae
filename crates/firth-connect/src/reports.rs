//! [`Reports`]: how each source is, as the node that reads it told last. Kept in the catalog of the
//! engine, so that every process of it can tell, and can see when a report is from a dead node.

use crate::config::SourceConfig;
use crate::progress::{Condition, Progress, Status};
use firth::catalog::{CatalogHandle, EntryKey, Expect, SpaceName};
use firth::{Broker, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where the reports are.
const SPACE: &str = "sources.reports";
/// How often a reader looks whether it has something new to tell.
const LOOK: Duration = Duration::from_secs(2);
/// How often it tells how it is even if nothing is new.
const AT_LEAST: Duration = Duration::from_secs(10);

/// A source, as its reader told at some time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The word after `kind:`.
    pub kind: String,
    /// The topic that gets the changes.
    pub topic: String,
    /// The node that reads, or did.
    pub node: String,
    /// When it told, in milliseconds of Unix time.
    pub at_ms: u64,
    /// How the source was.
    pub status: Status,
}

impl Report {
    /// One without figures.
    pub(crate) fn of(config: &SourceConfig, node: &str) -> Self {
        Self {
            kind: config.kind().to_owned(),
            topic: config.topic().to_owned(),
            node: node.to_owned(),
            ..Self::default()
        }
    }

    /// After this time a living reader has told anew.
    pub const FRESH: Duration = Duration::from_secs(30);

    /// Whether it is too old to be from a living reader.
    pub fn is_stale(&self, now_ms: u64) -> bool {
        u128::from(now_ms.saturating_sub(self.at_ms)) > Self::FRESH.as_millis()
    }
}

/// The reports of all sources of an engine; clones share it.
#[derive(Clone, Debug)]
pub struct Reports {
    catalog: CatalogHandle,
}

impl Reports {
    /// Those of this broker's engine.
    pub fn new(broker: &Broker) -> Self {
        Self { catalog: broker.catalog() }
    }

    /// The last report of each source. One that this build cannot read counts as none.
    pub async fn all(&self) -> Result<BTreeMap<String, Report>> {
        let entries = self.catalog.list_all(&space(), "").await?;
        let read = |entry: firth::catalog::Entry| {
            let report = serde_json::from_slice(&entry.value).ok()?;
            Some((entry.name, report))
        };
        Ok(entries.into_iter().filter_map(read).collect())
    }

    /// Forgets a source.
    pub async fn forget(&self, source: &str) -> Result<()> {
        self.catalog.remove(&key(source)?, Expect::Any).await?;
        Ok(())
    }

    /// Stores a report in place of the last one.
    pub async fn tell(&self, source: &str, report: &Report) -> Result<()> {
        let value = serde_json::to_vec(report).expect("plain data is JSON");
        self.catalog.put(&key(source)?, value.into(), Expect::Any).await?;
        Ok(())
    }

    /// Tells how the source is: at once when its condition changes, soon when a figure does, and
    /// now and then in any case. Never returns.
    pub(crate) async fn keep_telling(&self, source: &str, like: Report, progress: &Progress) {
        let (mut told, mut age) = (None, Duration::ZERO);
        loop {
            let report = Report { status: progress.status(), at_ms: Progress::now_ms(), ..like.clone() };
            if told.as_ref() != Some(&report.status) || age >= AT_LEAST {
                match self.tell(source, &report).await {
                    Ok(()) => (told, age) = (Some(report.status), Duration::ZERO),
                    Err(error) => tracing::debug!(source, %error, "how the source is cannot be told now"),
                }
            }
            let condition = told.as_ref().map_or(Condition::Waiting, |status| status.condition);
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = progress.left(condition) => {}
            }
            age += LOOK;
        }
    }
}

fn space() -> SpaceName {
    SpaceName::new(SPACE).expect("a valid name")
}

fn key(source: &str) -> Result<EntryKey> {
    EntryKey::new(space(), source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_process_hears_how_a_source_is_and_how_old_that_is() {
        let broker = Broker::memory();
        let reports = Reports::new(&broker);
        let progress = Progress::default();
        let like = Report { node: "one".to_owned(), topic: "changes".to_owned(), ..Report::default() };
        let task = tokio::spawn({
            let reports = reports.clone();
            let progress = progress.clone();
            async move { reports.keep_telling("shop", like, &progress).await }
        });
        let told = async |condition: Condition| loop {
            let all = Reports::new(&broker).all().await.unwrap();
            match all.get("shop").filter(|report| report.status.condition == condition) {
                Some(report) => return report.clone(),
                None => tokio::task::yield_now().await,
            }
        };
        told(Condition::Waiting).await;
        progress.enter(Condition::Failed, Some("why".to_owned()));
        let report = told(Condition::Failed).await;
        assert_eq!((&*report.node, report.status.reason.as_deref()), ("one", Some("why")));
        assert!(!report.is_stale(report.at_ms + 30_000) && report.is_stale(report.at_ms + 30_001));
        assert!(!report.is_stale(0), "clocks differ");
        task.abort();
        reports.forget("shop").await.unwrap();
        assert!(reports.all().await.unwrap().is_empty());
    }
}
