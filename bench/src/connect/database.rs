//! The database under the bench, and a source that reads it.

use anyhow::{Result, bail};
use firth::Broker;
use firth_connect::postgres::{Config, Options};
use firth_connect::sources::Sources;
use firth_connect::{Condition, Status};
use firth_testkit::PostgresServer;
use serde_json::json;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(super) const TOPIC: &str = "changes";
const TABLE: &str =
    "CREATE TABLE orders (id int PRIMARY KEY, mark bigint, state text, total numeric, note text)";
const PATIENCE: Duration = Duration::from_secs(110);

/// A database with a table, and a topic.
pub(super) struct World {
    pub(super) server: PostgresServer,
    pub(super) broker: Broker,
    _dir: Option<TempDir>,
}

impl World {
    pub(super) async fn new(engine: &str) -> Result<Self> {
        let more = "shared_buffers = 256MB\nmax_wal_size = 4GB\nlogical_decoding_work_mem = 64MB";
        let server = PostgresServer::with_conf(more).await;
        server.sql_as_owner(TABLE).await;
        let (broker, dir) = match engine {
            "file" => {
                let dir = TempDir::new()?;
                (Broker::open(dir.path()).await?, Some(dir))
            }
            _ => (Broker::memory(), None),
        };
        broker.create_topic(TOPIC).partitions(1).await?;
        Ok(Self { server, broker, _dir: dir })
    }

    /// Rows from `first` on, committed a hundred at a time.
    pub(super) async fn fill(&self, count: usize) {
        let sql = format!(
            "DO $$ BEGIN FOR part IN 0..{} LOOP
               INSERT INTO orders SELECT part * 100 + n, 0, 'paid', n * 1.25, repeat('x', 100) FROM generate_series(1, 100) n;
               COMMIT; END LOOP; END $$",
            count / 100 - 1
        );
        self.server.sql(sql).await;
    }

    /// The source `shop`; `snapshot` copies the rows that are there.
    pub(super) async fn start(&self, snapshot: bool) -> Result<Sources> {
        let options = json!({
            "url": self.server.url(), "topic": TOPIC, "tables": ["orders"], "tenant": { "constant": "bench" },
            "snapshot": if snapshot { "initial" } else { "never" },
        });
        let options: Options = serde_json::from_value(options)?;
        let config = Config::new("shop", &options, Some(self.server.password().to_owned()))?;
        Ok(Sources::start(&self.broker, "bench", vec![config]).await?)
    }

    /// A slot that keeps what is committed from now on, and its publication.
    pub(super) async fn make_slot(&self) -> Result<()> {
        let sources = self.start(false).await?;
        until(&sources, |status| status.condition == Condition::Streaming).await?;
        sources.close().await;
        Ok(())
    }
}

/// Waits until the source is so.
pub(super) async fn until(sources: &Sources, is_it: impl Fn(&Status) -> bool) -> Result<()> {
    let begun = Instant::now();
    loop {
        let status = sources.statuses().remove("shop").unwrap_or_default();
        if is_it(&status) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("the source is {status:?}");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
