//! A large transaction passes through the program in bounded memory, with the engine on files in
//! the same process. `cargo xtask bench connect` measures a million rows.

use crate::connecting::serve;
use crate::world::{PATIENCE, engine, json};
use firth_testkit::PostgresServer;
use firth_testkit::wait::until;

/// Several times as many as fit into all buffers.
const ROWS: u64 = 80_000;
/// The program's own code is not counted: in a build for tests it is several times as large.
const LIMIT_KIB: u64 = 128 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_large_transaction_stays_within_128_mib() {
    let database = PostgresServer::start().await;
    let table = "CREATE TABLE orders (id int PRIMARY KEY, mark bigint, state text, total numeric, note text)";
    database.sql_as_owner(table).await;
    let dir = tempfile::tempdir().unwrap();
    let section = json!({ "shop": {
        "kind": "postgres", "url": database.url(), "topic": "changes", "tables": ["orders"],
        "tenant": { "constant": "acme" }, "snapshot": "never", "password_file": dir.path().join("password"),
    } });
    std::fs::write(dir.path().join("password"), database.password()).unwrap();
    let server = serve(dir.path(), &engine(dir.path()), &section);
    let source = || server.get("/v1/sources/shop").expect(200).json();
    until(PATIENCE, "it streams", async || source()["state"] == "streaming").await;
    let rows = format!(
        "INSERT INTO orders SELECT n, 0, 'paid', n * 1.25, repeat('x', 100) FROM generate_series(1, {ROWS}) n"
    );
    database.sql(rows).await;
    let mut appended = 0;
    while appended < ROWS {
        let before = appended;
        let grows = async || {
            appended = source()["appended"].as_u64().unwrap();
            appended > before
        };
        until(PATIENCE, format!("more than {before} of {ROWS} rows are stored"), grows).await;
    }
    let peak = server.peak_data_kib();
    assert!(peak < LIMIT_KIB, "{peak} KiB for a transaction of {ROWS} rows; the limit is {LIMIT_KIB}");
    assert_eq!(source()["appended"], ROWS);
    assert!(server.terminate());
}
