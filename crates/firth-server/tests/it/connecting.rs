//! Sources in the server: a database's changes arrive in a topic, by configuration alone.

use crate::packaging::{exports, packaging};
use crate::world::{PATIENCE, Server, Value, firth, json, run, stdout};
use firth_testkit::wait::until;
use firth_testkit::{Flavor, NatsServer, PostgresServer, RedisServer};
use std::collections::BTreeSet;
use std::path::Path;

fn configured(database: &PostgresServer, dir: &Path) -> Server {
    configured_on(database, dir, "memory:")
}

/// With a copy of the rows that are there.
fn copying(database: &PostgresServer, dir: &Path) -> Server {
    configured_with(database, dir, "memory:", "initial")
}

fn configured_on(database: &PostgresServer, dir: &Path, engine: &str) -> Server {
    configured_with(database, dir, engine, "never")
}

fn configured_with(database: &PostgresServer, dir: &Path, engine: &str, snapshot: &str) -> Server {
    std::fs::write(dir.join("password"), database.password()).unwrap();
    let section = json!({ "shop": {
        "kind": "postgres", "url": database.url(), "topic": "changes", "tables": ["orders"],
        "tenant": { "constant": "acme" }, "snapshot": snapshot, "limits": { "wal": "10GiB" },
        "password_file": dir.join("password"),
        "on_lost": if snapshot == "initial" { "resync" } else { "stop" },
    } });
    serve(dir, engine, &section)
}

/// A server with this section `connect:`.
pub(crate) fn serve(dir: &Path, engine: &str, section: &Value) -> Server {
    let file = dir.join("firth.yaml");
    std::fs::write(&file, format!("topics:\n  auto_create: true\nconnect: {section}\n")).unwrap();
    Server::start(firth().args(["serve", "--engine", engine, "--config"]).arg(file), None)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_source_fills_its_topic_and_shows_how_it_is() {
    let database = PostgresServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    database.sql_as_owner("CREATE TABLE orders (id int PRIMARY KEY, total int)").await;
    let server = configured(&database, dir.path());
    let source = || server.get("/v1/sources").expect(200).json()["sources"][0].clone();
    until(PATIENCE, "it streams", async || source()["state"] == "streaming").await;
    database.sql("INSERT INTO orders VALUES (1, 200)").await;
    until(PATIENCE, "the change is stored", async || source()["appended"] == 1).await;
    let listed = stdout(&run(&["connect", "list", "--server", &server.url()]));
    assert!(listed.contains("shop") && listed.contains("streaming"), "{listed}");
    let listed = stdout(&run(&["connect", "list", "--json", "--server", &server.url()]));
    assert!(listed.contains(r#""state":"streaming""#), "{listed}");
    let metrics = async || server.get("/metrics").expect(200).body;
    let told = async || metrics().await.contains(r#"firth_source_appended_total{source="shop"} 1"#);
    until(PATIENCE, "the metrics tell it", told).await;
    assert!(metrics().await.contains(r#"firth_source_changes_total{source="shop",op="insert"} 1"#));
    let records = stdout(&run(&["topic", "browse", "changes", "--json", "--server", &server.url()]));
    assert!(records.contains("orders/1"), "{records}");
    assert!(server.terminate());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_prints_sql_that_helps_and_then_the_source_streams() {
    let database = PostgresServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    database
        .sql("CREATE TABLE orders (id int PRIMARY KEY, total int); INSERT INTO orders VALUES (1, 2)")
        .await;
    let server = copying(&database, dir.path());
    let doctor = |more: &[&str]| {
        let url = server.url();
        run(&[&["connect", "doctor"], more, &["--server", &url]].concat())
    };
    let unfit = doctor(&["shop"]);
    let sql = String::from_utf8_lossy(&unfit.stdout).into_owned();
    assert_eq!(unfit.status.code(), Some(2), "{sql}");
    assert!(sql.contains("GRANT SELECT ON \"public\".\"orders\" TO \"firth\";"), "{sql}");
    assert!(sql.contains("ALTER SYSTEM SET max_slot_wal_keep_size = '10GB';"), "{sql}");
    database.sql(&sql).await;
    let whole = stdout(&doctor(&["--json"]));
    assert!(!whole.contains(r#""level":"error""#), "{whole}");
    let source = || server.get("/v1/sources/shop").expect(200).json();
    assert!(run(&["connect", "restart", "shop", "--server", &server.url()]).status.success());
    until(PATIENCE, "it streams", async || source()["state"] == "streaming").await;
    until(PATIENCE, "the row is copied", async || source()["appended"] == 1).await;
    assert_eq!(server.get("/v1/sources/other/doctor").status, 404);
    assert!(server.terminate());
}

#[tokio::test(flavor = "multi_thread")]
async fn any_server_tells_how_a_source_is_and_what_its_reader_shall_do() {
    let database = PostgresServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(Flavor::Redis).await;
    database.sql_as_owner("CREATE TABLE orders (id int PRIMARY KEY, total int)").await;
    let reading = configured_on(&database, dir.path(), &redis.url());
    let server = Server::start(firth().args(["serve", "--engine", &redis.url()]), None);
    let source = || server.get("/v1/sources/shop");
    let is = async |state: &str| {
        let told = source();
        told.status == 200 && told.json()["state"] == state
    };
    until(PATIENCE, "the other server tells that it streams", async || is("streaming").await).await;
    let shown = source().json();
    assert_eq!((&shown["configured"], &shown["kind"]), (&json!(false), &json!("postgres")));
    let connect = |args: &[&str]| {
        let url = server.url();
        let args = [&["connect"], args, &["--server", &url]].concat();
        run(&args)
    };
    let refused = connect(&["remove", "shop"]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("firth connect pause shop"), "{told}");
    assert!(stdout(&connect(&["pause", "shop"])).contains("paused"));
    let rests = async || database.sql("SELECT count(*) FROM pg_replication_slots WHERE active").await == "0";
    until(PATIENCE, "the reader rests", rests).await;
    database.sql("INSERT INTO orders VALUES (1, 200)").await;
    stdout(&connect(&["resume", "shop"]));
    let stored = async || source().json()["appended"] == 1;
    until(PATIENCE, "it goes on", stored).await;
    let whole = stdout(&connect(&["status", "shop"]));
    assert!(whole.contains("shop is streaming") && whole.contains("insert 1"), "{whole}");
    stdout(&connect(&["restart", "shop"]));
    let asked = server.post("/v1/sources/shop/snapshot", &json!({ "where": "true" }));
    assert_eq!(asked.expect(400).json()["field"], "table");
    stdout(&connect(&["pause", "shop"]));
    until(PATIENCE, "the reader rests", rests).await;
    let removed = async || connect(&["remove", "shop", "--yes"]).status.success();
    until(PATIENCE, "the source is removed", removed).await;
    assert_eq!(database.sql("SELECT count(*) FROM pg_replication_slots").await, "0");
    assert_eq!(source().status, 404);
    let shown = reading.get("/v1/sources/shop").expect(200).json();
    assert_eq!(shown["state"], "removed");
    assert!(reading.terminate() && server.terminate());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_died_is_told_as_such() {
    let database = PostgresServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(Flavor::Redis).await;
    database.sql_as_owner("CREATE TABLE orders (id int PRIMARY KEY, total int)").await;
    let reading = configured_on(&database, dir.path(), &redis.url());
    let server = Server::start(firth().args(["serve", "--engine", &redis.url()]), None);
    let source = || server.get("/v1/sources").expect(200).json()["sources"][0].clone();
    until(PATIENCE, "it streams", async || source()["state"] == "streaming").await;
    reading.kill();
    until(PATIENCE, "no node reads it", async || source()["state"] == "waiting").await;
    let reason = source()["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("no node reads it; node "), "{reason}");
    assert!(run(&["connect", "pause", "shop", "--server", &server.url()]).status.success());
    stdout(&run(&["connect", "remove", "shop", "--forget", "--yes", "--server", &server.url()]));
    assert_eq!(server.get("/v1/sources").expect(200).json()["sources"], json!([]));
    assert!(server.terminate());
}

/// What a reader of change streams tells of itself, and the metric that does.
const FIGURES: [(&str, &str); 18] = [
    ("ingested", r#"firth_source_changes_total{source="shop",op="insert"}"#),
    ("copied", r#"firth_source_changes_total{source="shop",op="snapshot"}"#),
    ("published", r#"firth_source_appended_total{source="shop"} 3"#),
    ("latency of reading", r#"firth_source_lag_seconds{source="shop"}"#),
    ("latency of publishing", r#"firth_produce_seconds_count{topic="changes"}"#),
    ("checkpoints", r#"firth_source_checkpoints_total{source="shop"}"#),
    ("age of the checkpoint", r#"firth_source_confirmed_age_seconds{source="shop"}"#),
    ("gaps", r#"firth_source_gaps_total{source="shop"} 0"#),
    ("backpressure", r#"firth_source_full_total{source="shop"}"#),
    ("depth of the queue", r#"firth_source_buffer_bytes{source="shop"} 0"#),
    ("unread log", r#"firth_source_position_lag_bytes{source="shop"}"#),
    ("kept log", r#"firth_source_slot_bytes{source="shop"}"#),
    ("limit of the kept log", r#"firth_source_slot_limit_bytes{source="shop"}"#),
    ("rows of a copy", r#"firth_source_snapshot_rows{source="shop",table="public.orders",state="copied"} 2"#),
    ("new starts", r#"firth_source_reconnects_total{source="shop"}"#),
    ("state", r#"firth_source_state{source="shop",state="streaming"} 1"#),
    ("large values", r#"firth_source_missing_columns_total{source="shop"} 0"#),
    ("dead letters", r#"firth_source_dead_total{source="shop"} 0"#),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_figure_of_a_source_is_a_metric_that_the_guide_names_and_alerts_may_ask_for() {
    let database = PostgresServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let rows =
        "CREATE TABLE orders (id int PRIMARY KEY, total int); INSERT INTO orders VALUES (1, 2), (2, 3)";
    database.sql_as_owner(rows).await;
    let server = copying(&database, dir.path());
    let source = || server.get("/v1/sources/shop").expect(200).json();
    until(PATIENCE, "the table is copied", async || source()["snapshots"][0]["done"] == true).await;
    database.sql("INSERT INTO orders VALUES (3, 200)").await;
    let metrics = || server.get("/metrics").expect(200).body;
    for (what, line) in FIGURES {
        until(PATIENCE, format!("{what}: {line}"), async || metrics().contains(line)).await;
    }
    exports(server.address, &["prometheus/sources.yaml"]).await;
    database.kill().await;
    let errors = r#"firth_source_errors_total{source="shop",kind="unavailable"}"#;
    until(PATIENCE, errors, async || metrics().contains(errors)).await;
    // The guide names every metric of a source, and no other.
    let named = crate::packaging::metrics(include_str!("../../../../docs/connect.md"));
    let exported = crate::packaging::metrics(&metrics());
    // Sources of NATS alone know how many changes wait, and have a test of their own.
    let others = ["firth_produce_seconds", "firth_source_behind_changes"];
    let of_sources = |names: &BTreeSet<String>| -> BTreeSet<String> {
        let is_one = |name: &&String| name.starts_with("firth_source_") && !others.contains(&&***name);
        names.iter().filter(is_one).cloned().collect()
    };
    // These belong to the writer of a topic; the guide of the library names them.
    let writers = ["firth_source_duplicates_total", "firth_source_fenced_total"].map(str::to_owned);
    let exported: BTreeSet<String> = of_sources(&exported).difference(&writers.into()).cloned().collect();
    assert_eq!(of_sources(&named), exported);
    assert!(others.iter().all(|name| named.contains(*name)), "{named:?}");
    assert!(server.terminate());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_lost_its_slot_begins_anew_and_every_place_says_so() {
    let database = PostgresServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    database
        .sql_as_owner("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1), (2)")
        .await;
    let server = copying(&database, dir.path());
    let source = || server.get("/v1/sources/shop").expect(200).json();
    until(PATIENCE, "both rows are copied", async || source()["appended"] == 2).await;
    let connect = |command: &str| stdout(&run(&["connect", command, "shop", "--server", &server.url()]));
    connect("pause");
    let gone = async || database.try_sql("SELECT pg_drop_replication_slot('firth_shop')").await.is_ok();
    until(PATIENCE, "the slot is dropped", gone).await;
    database.sql("DELETE FROM orders WHERE id = 1").await;
    connect("resume");
    until(PATIENCE, "a resync and a row are stored", async || source()["appended"] == 4).await;
    let shown = source();
    assert_eq!((&shown["state"], &shown["resyncs"]), (&json!("streaming"), &json!(1)));
    assert_eq!(shown["by_operation"], json!({ "snapshot": 3, "resync": 1 }));
    assert!(shown["resync_reason"].as_str().unwrap().contains("slot firth_shop is gone"), "{shown}");
    let whole = connect("status");
    assert!(whole.contains("last resync") && whole.contains("slot firth_shop is gone"), "{whole}");
    let counted = async || {
        server.get("/metrics").expect(200).body.contains("firth_source_resyncs_total{source=\"shop\"} 1")
    };
    until(PATIENCE, "the metric counts it", counted).await;
    assert!(server.terminate());
}

#[test]
fn alerts_tell_what_an_operator_must_hear() {
    let alerts = std::fs::read_to_string(packaging("prometheus/sources.yaml")).unwrap();
    for expression in [
        r#"firth_source_state{state="lost"}"#,
        r#"firth_source_state{state=~"failed|retrying"}"#,
        "firth_source_confirmed_age_seconds) > 300",
        "firth_source_slot_bytes) > ",
    ] {
        assert!(alerts.contains(expression), "no alert asks for {expression}");
    }
}

#[test]
fn a_wrong_section_is_named_and_shows_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("firth.yaml");
    let section = json!({ "shop": {
        "kind": "postgres", "url": "postgres://firth:planted@db/shop", "topic": "changes",
        "tables": ["orders"], "tenant": { "constant": "acme" },
    } });
    std::fs::write(&file, format!("connect: {section}\n")).unwrap();
    let output = firth().args(["serve", "--engine", "memory:", "--config"]).arg(file).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("connect.shop: url"), "{errors}");
    assert!(!errors.contains("planted"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_nats_fills_its_topic_by_configuration_alone() {
    let nats = NatsServer::start().await;
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let subjects = vec!["orders.>".to_owned()];
    let stream =
        async_nats::jetstream::stream::Config { name: "ORDERS".into(), subjects, ..Default::default() };
    context.create_stream(stream).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let section = json!({ "orders": {
        "kind": "nats", "url": nats.url(), "stream": "ORDERS", "topic": "changes", "tenant": { "name": 2 },
        "collection": "orders", "key": { "name": 3 }, "on_error": "dead", "on_lost": "resync",
    } });
    let server = serve(dir.path(), "memory:", &section);
    let source = || server.get("/v1/sources/orders").expect(200).json();
    until(PATIENCE, "it streams", async || source()["state"] == "streaming").await;
    for body in [r#"{"total":5}"#, "no JSON"] {
        context.publish("orders.acme.7", body.into()).await.unwrap().await.unwrap();
    }
    until(PATIENCE, "one is stored, one is dead", async || source()["dead"] == 1).await;
    assert_eq!((&source()["appended"], &source()["lossy"]), (&json!(1), &json!(false)));
    let whole = stdout(&run(&["connect", "status", "orders", "--server", &server.url()]));
    assert!(whole.contains("nats") && whole.contains("dead letters"), "{whole}");
    let records = stdout(&run(&["topic", "browse", "changes", "--json", "--server", &server.url()]));
    assert!(records.contains("orders/7"), "{records}");
    let letters = stdout(&run(&["topic", "browse", "changes.dead", "--json", "--server", &server.url()]));
    assert!(letters.contains("firth-error"), "{letters}");
    let metrics = async || server.get("/metrics").expect(200).body;
    let told = async || metrics().await.contains(r#"firth_source_dead_total{source="orders"} 1"#);
    until(PATIENCE, "the metrics tell it", told).await;
    let told = async || metrics().await.contains(r#"firth_source_behind_changes{source="orders"} 0"#);
    until(PATIENCE, "none waits", told).await;
    let asked = server.post("/v1/sources/orders/snapshot", &json!({}));
    assert_eq!(asked.expect(400).json()["field"], "source");
    assert!(server.terminate());
}
