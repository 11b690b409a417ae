//! Random transactions, and a table that notes what they did, in the transactions themselves.

use fastrand::Rng;
use std::ops::Range;

/// The seeds of a run: 100 in the profile `long`. `FIRTH_HISTORY_SEEDS` says how many instead,
/// `FIRTH_SEED` with which to begin.
pub(crate) fn seeds(usual: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let is_long = std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "long");
    let count = number("FIRTH_HISTORY_SEEDS").unwrap_or(if is_long { 100 } else { usual });
    let first = number("FIRTH_SEED").unwrap_or(1);
    first..first + count
}

/// How far a row moves when it changes its key.
const AWAY: u32 = 100_000;

/// The tables: old rows are told by key in one, in full in the other.
pub(crate) const TABLES: [&str; 2] = ["brief", "whole"];

/// The tables of a seed in a schema of its own. Triggers note each change: a row's changes are
/// noted in the order of their commits, because the lock of the row is held until the commit.
pub(crate) fn schema(schema: &str) -> String {
    let tables = TABLES.map(|table| {
        format!(
            "CREATE TABLE {schema}.{table} (id int PRIMARY KEY, version int NOT NULL, body_version int, body text);
             ALTER TABLE {schema}.{table} ALTER body SET STORAGE EXTERNAL;
             CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {schema}.{table}
               FOR EACH ROW EXECUTE FUNCTION {schema}.note();
             CREATE TRIGGER note_truncate AFTER TRUNCATE ON {schema}.{table}
               FOR EACH STATEMENT EXECUTE FUNCTION {schema}.note();"
        )
    });
    format!(
        "CREATE SCHEMA {schema};
         CREATE TABLE {schema}.truth (seq bigserial PRIMARY KEY, tbl text, op text, id int, version int);
         CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF TG_OP = 'TRUNCATE' THEN
             INSERT INTO {schema}.truth (tbl, op) VALUES (TG_TABLE_NAME, 'truncate');
           ELSIF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND OLD.id <> NEW.id THEN
             INSERT INTO {schema}.truth (tbl, op, id, version) VALUES (TG_TABLE_NAME, 'delete', OLD.id, 0);
           END IF;
           IF TG_OP = 'INSERT' OR TG_OP = 'UPDATE' AND OLD.id <> NEW.id THEN
             INSERT INTO {schema}.truth (tbl, op, id, version) VALUES (TG_TABLE_NAME, 'insert', NEW.id, NEW.version);
           ELSIF TG_OP = 'UPDATE' THEN
             INSERT INTO {schema}.truth (tbl, op, id, version) VALUES (TG_TABLE_NAME, 'update', NEW.id, NEW.version);
           END IF;
           RETURN NULL;
         END $$;
         {} ALTER TABLE {schema}.whole REPLICA IDENTITY FULL;",
        tables.concat()
    )
}

/// What one writer runs in a round; few documents make writers meet.
pub(crate) fn script(rng: &mut Rng, schema: &str, documents: u32) -> String {
    let count = rng.usize(4..20);
    let transactions = (0..count).map(|_| {
        let length = if rng.u8(0..4) == 0 { rng.usize(2..8) } else { 1 };
        let statements: String = (0..length).map(|_| statement(rng, schema, documents)).collect();
        let end = if rng.u8(0..8) == 0 { "ROLLBACK" } else { "COMMIT" };
        format!("BEGIN; {statements} {end};")
    });
    transactions.collect::<Vec<_>>().join("\n")
}

fn statement(rng: &mut Rng, schema: &str, documents: u32) -> String {
    let table = format!("{schema}.{}", TABLES[rng.usize(0..2)]);
    let id = rng.u32(0..documents);
    let version = rng.u32(1..1_000_000);
    let body = format!("'v{version}:' || repeat('x', {})", if rng.bool() { 5_000 } else { 10 });
    match rng.u8(0..20) {
        0 => format!("TRUNCATE {table};"),
        1..=3 => format!("DELETE FROM {table} WHERE id = {id};"),
        4..=5 => format!(
            "UPDATE {table} SET id = id + {AWAY}, version = {version} WHERE id = {id}
               AND NOT EXISTS (SELECT FROM {table} WHERE id = {id} + {AWAY});"
        ),
        6 => format!("UPDATE {table} SET id = id - {AWAY} WHERE id = {AWAY} + {id}
               AND NOT EXISTS (SELECT FROM {table} WHERE id = {id});"),
        7..=8 => format!("UPDATE {table} SET version = version + 1 WHERE id % 3 = {};", id % 3),
        9..=11 => format!("UPDATE {table} SET version = {version} WHERE id = {id};"),
        12 => format!(
            "INSERT INTO {table} SELECT n, {version}, {version}, {body} FROM generate_series({id}, {id} + 200) n
               ON CONFLICT (id) DO UPDATE SET version = {version};
             DELETE FROM {table} WHERE id BETWEEN {documents} AND {AWAY} - 1;"
        ),
        _ => format!(
            "INSERT INTO {table} VALUES ({id}, {version}, {version}, {body}) ON CONFLICT (id)
               DO UPDATE SET version = {version}, body_version = {version}, body = {body};"
        ),
    }
}
