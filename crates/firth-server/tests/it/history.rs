//! The history checker for the program itself: `firth serve` with a section `connect:` is killed at
//! random moments, and so are its database and its engine. Each committed change is in the topic
//! once, in order with all others of its document.
//!
//! A few seeds run each time, and a hundred by `cargo nextest run --profile long -p firth-server
//! history::`; see [`workload::seeds`].

#[path = "../../../firth-connect/tests/it/history/judge.rs"]
mod judge;
#[path = "../../../firth-connect/tests/it/history/workload.rs"]
mod workload;

use crate::world::{PATIENCE, Server, firth, json};
use fastrand::Rng;
use firth::Broker;
use firth_testkit::{Flavor, Persist, PostgresServer, RedisServer, wait};
use judge::{Held, Truth};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const ROUNDS: usize = 4;
const DOCUMENTS: u32 = 12;
const PARTITIONS: u32 = 3;

/// Where the topics are.
enum Engine {
    Redis(Box<RedisServer>),
    Files(TempDir),
}

/// One seed: a source with tables, slot and topic of its own.
struct Run {
    seed: u64,
    rng: Rng,
    database: Arc<PostgresServer>,
    engine: Arc<Engine>,
    config: PathBuf,
    /// Places in the log, and how many changes were committed before each.
    barriers: Vec<(u64, usize)>,
}

impl Engine {
    fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Files(dir) => format!("file:{}", dir.path().display()),
        }
    }

    /// Opens what no server holds open.
    async fn open(&self) -> Broker {
        let open = async || Broker::connect(&self.url()).await.ok();
        wait::until_some(PATIENCE, open).await.expect("the engine opens")
    }
}

impl Run {
    fn name(&self) -> String {
        format!("s{}", self.seed)
    }

    fn serve(&self) -> Server {
        let mut command = firth();
        command.args(["serve", "--engine", &self.engine.url(), "--config"]).arg(&self.config);
        let password = format!("FIRTH_CONNECT_{}_PASSWORD", self.name().to_uppercase());
        Server::start(command.env(password, self.database.password()), None)
    }

    async fn begin(&self) {
        let name = self.name();
        self.database.sql_as_owner(workload::schema(&name)).await;
        let tables = workload::TABLES.map(|table| format!("{name}.{table}"));
        let section = json!({ &name: {
            "kind": "postgres", "url": self.database.url(), "topic": name, "tables": tables,
            "tenant": { "constant": "acme" }, "snapshot": "never",
        } });
        std::fs::write(&self.config, format!("connect: {section}\n")).unwrap();
        let broker = self.engine.open().await;
        broker.create_topic(&name).partitions(PARTITIONS).await.unwrap();
        broker.close().await.unwrap();
        let server = self.serve();
        let path = format!("/v1/sources/{name}");
        let streams = async || server.get(&path).expect(200).json()["state"] == "streaming";
        wait::until(PATIENCE, format!("seed {} streams", self.seed), streams).await;
        server.kill();
    }

    /// Writers write, the server reads and dies at a random moment, perhaps with its database or
    /// its engine.
    async fn round(&mut self) {
        let server = self.serve();
        let name = self.name();
        let writers = (0..self.rng.usize(1..4)).map(|_| {
            let script = workload::script(&mut self.rng, &name, DOCUMENTS);
            let database = self.database.clone();
            // A death of the database, a deadlock or a lost race ends the script.
            tokio::spawn(async move { database.try_sql(&script).await.is_ok() })
        });
        let writers: Vec<_> = writers.collect();
        // no synchronisation: random moments
        tokio::time::sleep(Duration::from_millis(self.rng.u64(0..800))).await;
        match (self.rng.u8(0..6), &*self.engine) {
            (0, _) => {
                self.database.kill().await;
                self.database.restart().await;
            }
            (1, _) => {
                self.database.shutdown().await;
                self.database.restart().await;
            }
            (2 | 3, Engine::Redis(redis)) => {
                redis.kill().await;
                redis.restart().await;
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(self.rng.u64(0..800))).await;
        server.kill();
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
        let confirmed: u64 = self.database.sql(slot).await.parse().unwrap();
        let held = self.held().await.changes();
        for (place, changes) in self.barriers.iter().filter(|(place, _)| *place <= confirmed) {
            let seed = self.seed;
            assert!(
                held >= *changes,
                "seed {seed}: {place} is confirmed, but of {changes} only {held} are held"
            );
        }
        let place: u64 = self.database.sql("SELECT pg_current_wal_lsn() - '0/0'").await.parse().unwrap();
        self.barriers.push((place, Truth::of(&self.database, &self.name()).await.changes));
    }

    async fn held(&self) -> Held {
        let broker = self.engine.open().await;
        let held = Held::of(&broker, &self.name()).await.unwrap();
        broker.close().await.unwrap();
        held
    }

    /// The last server brings everything.
    async fn judge(&self) -> usize {
        let name = self.name();
        self.database.sql(format!("INSERT INTO {name}.brief VALUES (9000, 1, 1, 'v1:')")).await;
        let truth = Truth::of(&self.database, &name).await;
        let records = truth.records(PARTITIONS as usize);
        let server = self.serve();
        let path = format!("/v1/topics/{name}");
        let is_there = async || {
            let topic = server.get(&path).expect(200).json();
            (topic["records"].as_u64().unwrap() >= records as u64).then_some(())
        };
        let _ = wait::until_some(PATIENCE, is_there).await;
        let told = server.get(&format!("/v1/sources/{name}")).body;
        assert!(server.terminate());
        let held = self.held().await;
        assert!(held.is_complete(&truth), "seed {}: of {records} records not all came: {told}", self.seed);
        held.check(&truth, &format!("seed {}", self.seed));
        let gone = format!("SELECT pg_drop_replication_slot('firth_{name}')");
        let gone = async || self.database.try_sql(&gone).await.is_ok();
        wait::until(PATIENCE, "the slot is dropped", gone).await;
        self.database
            .sql(format!("DROP SCHEMA {name} CASCADE; DROP PUBLICATION IF EXISTS firth_{name}"))
            .await;
        truth.changes
    }
}

/// Runs the seeds of one engine; each second one is for the other.
async fn run(engine: Engine, share: u64) {
    let database = Arc::new(PostgresServer::start().await);
    let engine = Arc::new(engine);
    let dir = tempfile::tempdir().unwrap();
    for seed in workload::seeds(4).filter(|seed| seed % 2 == share) {
        let config = dir.path().join(format!("{seed}.yaml"));
        let (rng, database, engine) = (Rng::with_seed(seed), database.clone(), engine.clone());
        let mut run = Run { seed, rng, database, engine, config, barriers: Vec::new() };
        run.begin().await;
        for _ in 0..ROUNDS {
            run.round().await;
        }
        eprintln!("seed {seed}: {} changes", run.judge().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_there_once_whatever_dies_when_the_program_is_killed_beside_redis() {
    let redis = RedisServer::builder().flavor(Flavor::Redis).persist(Persist::AofAlways).start().await;
    run(Engine::Redis(Box::new(redis)), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_there_once_whatever_dies_when_the_program_is_killed_on_files() {
    run(Engine::Files(tempfile::tempdir().unwrap()), 1).await;
}
