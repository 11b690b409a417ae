//! The history checker: random transactions, while readers, databases and engines die at random.
//! Each committed change is in the topic once, in order with all others of its document, and the
//! database is never told to forget what the topic does not hold.
//!
//! A few seeds run each time, and a hundred by `cargo nextest run --profile long -p firth-connect
//! history::`; see [`workload::seeds`]. The program itself dies in firth-server's tests.

pub(crate) mod judge;
pub(crate) mod workload;

use crate::world::PATIENCE;
use fastrand::Rng;
use firth::Broker;
use firth_connect::postgres::{Config, Options};
use firth_connect::sources::Sources;
use firth_testkit::{Flavor, Persist, PostgresServer, RedisServer, wait};
use judge::{Held, Truth};
use serde_json::json;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const CHILD: &str = "FIRTH_HISTORY_CHILD";
const ROUNDS: usize = 4;
const DOCUMENTS: u32 = 12;
const PARTITIONS: u32 = 3;

/// Where the topic is.
pub(crate) enum Engine {
    Redis(Box<RedisServer>),
    Files(TempDir),
}

impl Engine {
    fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Files(dir) => format!("file:{}", dir.path().display()),
        }
    }

    pub(crate) async fn open(&self) -> Broker {
        let mut opened = None;
        let open = async || {
            opened = Broker::connect(&self.url()).await.ok();
            opened.is_some()
        };
        wait::until(PATIENCE, "the engine opens", open).await;
        opened.unwrap()
    }
}

/// One seed: a source with tables, slot and topic of its own.
struct Run {
    seed: u64,
    rng: Rng,
    server: Arc<PostgresServer>,
    engine: Arc<Engine>,
    /// Places in the log, and how many changes were committed before each.
    barriers: Vec<(u64, usize)>,
}

/// A reader of a source.
enum Reader {
    /// In this process; dropped in the middle of its work.
    Here(Option<Sources>),
    /// A process of its own.
    There(Child),
}

impl Drop for Reader {
    fn drop(&mut self) {
        match self {
            Self::Here(sources) => drop(sources.take()),
            Self::There(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn config(name: &str, url: &str, password: &str) -> Config {
    let tables = workload::TABLES.map(|table| format!("{name}.{table}"));
    let options = json!({
        "url": url, "topic": name, "tables": tables, "tenant": { "constant": "acme" }, "snapshot": "never",
    });
    let options: Options = serde_json::from_value(options).unwrap();
    Config::new(name, &options, Some(password.to_owned())).unwrap()
}

/// Not a law: the reader that the laws kill.
#[tokio::test]
async fn child_mode() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let [engine, name, url] = told.split('|').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let broker = Broker::connect(engine).await.unwrap();
    let config = config(name, url, &std::env::var("PGPASSWORD").unwrap());
    let _sources = Sources::start(&broker, "node", vec![config]).await.unwrap();
    std::future::pending::<()>().await;
}

/// The database or the engine dies and comes back, or neither does.
pub(crate) async fn die(death: u8, server: &PostgresServer, engine: &Engine) {
    match (death, engine) {
        (3, _) => server.kill().await,
        (4, _) => server.stop_immediately().await,
        (5, _) => server.shutdown().await,
        (6 | 7, Engine::Redis(redis)) => {
            redis.kill().await;
            redis.restart().await;
        }
        _ => {}
    }
    if matches!(death, 3..=5) {
        server.restart().await;
    }
}

impl Run {
    fn name(&self) -> String {
        format!("s{}", self.seed)
    }

    async fn begin(&self) {
        self.server.sql_as_owner(workload::schema(&self.name())).await;
        let broker = self.engine.open().await;
        broker.create_topic(&self.name()).partitions(PARTITIONS).await.unwrap();
        let sources = self.start(&broker).await;
        self.streams(&sources).await;
        sources.close().await;
        broker.close().await.unwrap();
    }

    async fn start(&self, broker: &Broker) -> Sources {
        let config = config(&self.name(), &self.server.url(), self.server.password());
        Sources::start(broker, "node", vec![config]).await.unwrap()
    }

    async fn streams(&self, sources: &Sources) {
        let name = self.name();
        let label = format!("seed {} streams", self.seed);
        let streams = async || sources.statuses()[&name].condition == firth_connect::Condition::Streaming;
        wait::until(PATIENCE * 2, label, streams).await;
    }

    async fn reader(&mut self, is_process: bool) -> Reader {
        if is_process {
            let told = format!("{}|{}|{}", self.engine.url(), self.name(), self.server.url());
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "history::child_mode", "--nocapture"]).env(CHILD, told);
            command.env("PGPASSWORD", self.server.password()).stdout(std::process::Stdio::null());
            return Reader::There(command.stderr(std::process::Stdio::null()).spawn().unwrap());
        }
        let broker = self.engine.open().await;
        let sources = self.start(&broker).await;
        Reader::Here(Some(sources))
    }

    /// Writers write, a reader reads, and something dies at a random moment.
    async fn round(&mut self) {
        let name = self.name();
        let death = self.rng.u8(0..8);
        let reader = self.reader(matches!(death, 0..=2)).await;
        let writers = (0..self.rng.usize(1..4)).map(|_| {
            let script = workload::script(&mut self.rng, &name, DOCUMENTS);
            let server = self.server.clone();
            // A death of the server, a deadlock or a lost race ends the script.
            tokio::spawn(async move { server.try_sql(&script).await.is_ok() })
        });
        let writers: Vec<_> = writers.collect();
        // no synchronisation: a random moment
        tokio::time::sleep(Duration::from_millis(self.rng.u64(0..500))).await;
        die(death, &self.server, &self.engine).await;
        if self.rng.bool() {
            tokio::time::sleep(Duration::from_millis(self.rng.u64(0..1_000))).await;
        }
        drop(reader);
        for writer in writers {
            writer.await.unwrap();
        }
        self.check_confirmed().await;
    }

    /// The database was allowed to forget only what the topic holds.
    async fn check_confirmed(&mut self) {
        let slot = format!(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = 'firth_{}'",
            self.name()
        );
        let confirmed: u64 = self.server.sql(slot).await.parse().unwrap();
        let held = Held::of(&self.engine.open().await, &self.name()).await.unwrap();
        for (place, changes) in self.barriers.iter().filter(|(place, _)| *place <= confirmed) {
            let seed = self.seed;
            let count = held.changes();
            assert!(
                count >= *changes,
                "seed {seed}: {place} is confirmed, but of {changes} only {count} are held"
            );
        }
        let place: u64 = self.server.sql("SELECT pg_current_wal_lsn() - '0/0'").await.parse().unwrap();
        self.barriers.push((place, Truth::of(&self.server, &self.name()).await.changes));
    }

    /// The last readers bring everything.
    async fn judge(&mut self) -> usize {
        let name = self.name();
        let label = format!("seed {}", self.seed);
        let broker = self.engine.open().await;
        for last in 0..2 {
            self.server.sql(format!("INSERT INTO {name}.brief VALUES ({}, 1, 1, 'v1:')", 9_000 + last)).await;
            let sources = self.start(&broker).await;
            let truth = Truth::of(&self.server, &name).await;
            let complete = async || {
                let held = Held::of(&broker, &name).await.ok();
                held.is_some_and(|held| held.is_complete(&truth))
            };
            let told = || format!("{:?}", sources.statuses());
            let arrived = wait::until_some(PATIENCE * 2, async || complete().await.then_some(())).await;
            let held = Held::of(&broker, &name).await.unwrap();
            held.check(&truth, &label);
            assert!(arrived.is_some(), "{label}: {} of {}, {}", held.changes(), truth.changes, told());
            sources.close().await;
        }
        let gone = format!("SELECT pg_drop_replication_slot('firth_{name}')");
        let gone = async || self.server.try_sql(&gone).await.is_ok();
        wait::until(PATIENCE, "the slot is dropped", gone).await;
        self.server.sql(format!("DROP SCHEMA {name} CASCADE; DROP PUBLICATION IF EXISTS firth_{name}")).await;
        self.barriers.last().map_or(0, |(_, changes)| *changes)
    }
}

/// Runs the seeds of one engine; `share` of all.
async fn run(engine: Engine, share: u64, of: u64) {
    let server = Arc::new(PostgresServer::start().await);
    let engine = Arc::new(engine);
    for seed in workload::seeds(4).filter(|seed| seed % of == share) {
        let (rng, barriers) = (Rng::with_seed(seed), Vec::new());
        let mut run = Run { seed, rng, server: server.clone(), engine: engine.clone(), barriers };
        run.begin().await;
        for _ in 0..ROUNDS {
            run.round().await;
        }
        let changes = run.judge().await;
        eprintln!("seed {seed}: {changes} changes");
    }
}

pub(crate) async fn redis() -> Engine {
    let server = RedisServer::builder().flavor(Flavor::Redis).persist(Persist::AofAlways).start().await;
    Engine::Redis(Box::new(server))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_there_once_whatever_dies_beside_redis() {
    run(redis().await, 0, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_there_once_whatever_dies_beside_another_redis() {
    run(redis().await, 2, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_there_once_whatever_dies_on_files() {
    run(Engine::Files(tempfile::tempdir().unwrap()), 1, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_there_once_whatever_dies_on_other_files() {
    run(Engine::Files(tempfile::tempdir().unwrap()), 3, 4).await;
}
