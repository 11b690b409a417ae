//! Sources that are no databases, in the program: each is read by configuration alone, and obeys
//! every command of `firth connect`.

use crate::connecting::serve;
use crate::hooking::{self, hook};
use crate::world::{PATIENCE, Server, Value, firth, json, stdout};
use firth_testkit::wait::until;
use firth_testkit::{NatsServer, PostgresServer, RedisServer};
use std::process::{Command, Output};

/// One of its sources, and the command line that operates it.
struct Source<'a> {
    server: &'a Server,
    name: &'static str,
}

impl Source<'_> {
    fn connect(&self, args: &[&str]) -> Output {
        let mut command = firth();
        command.arg("connect").args(args).args(["--server", &self.server.url()]);
        if let Some(token) = &self.server.token {
            command.env("FIRTH_TOKEN", token);
        }
        command.output().unwrap()
    }

    /// Gives a command for this source, which it obeys.
    fn order(&self, command: &str) -> String {
        stdout(&self.connect(&[command, self.name]))
    }

    fn shown(&self) -> Value {
        self.server.get(&format!("/v1/sources/{}", self.name)).expect(200).json()
    }

    async fn becomes(&self, state: &str) {
        until(PATIENCE, format!("{} is {state}", self.name), async || self.shown()["state"] == state).await;
    }

    /// Waits until the source has told one more change than before.
    async fn tells(&self, before: u64, what: &str) -> u64 {
        let appended = || self.shown()["appended"].as_u64().unwrap();
        until(PATIENCE, what, async || appended() > before).await;
        appended()
    }
}

/// Reads, shows, pauses, resumes, restarts and removes a source. `change` makes one change, with a
/// number of its own; `waits` says whether a change is kept while the source is paused.
async fn obeys(source: &Source<'_>, kind: &str, waits: bool, change: impl AsyncFn(u32)) {
    source.becomes("streaming").await;
    change(1).await;
    let first = source.tells(0, "the first change").await;
    let listed = stdout(&source.connect(&["list"]));
    assert!(listed.contains(source.name) && listed.contains(kind), "{listed}");
    let told = source.order("status");
    assert!(told.contains(&format!("{} is streaming", source.name)), "{told}");
    let told: Value =
        serde_json::from_str(&stdout(&source.connect(&["status", source.name, "--json"]))).unwrap();
    assert_eq!((&told["kind"], &told["configured"]), (&json!(kind), &json!(true)));
    let found = source.order("doctor");
    assert!(found.contains("checked by its reader only"), "{found}");
    let refused = source.connect(&["snapshot", source.name]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains(&format!("is of kind {kind}")), "{why}");
    let refused = source.connect(&["remove", source.name, "--yes"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("pause it first"), "{why}");

    assert!(source.order("pause").contains("paused"));
    source.becomes("paused").await;
    until(PATIENCE, "no node has it", async || source.shown()["reader"].is_null()).await;
    if waits {
        change(2).await;
    }
    source.order("resume");
    source.becomes("streaming").await;
    if !waits {
        change(2).await;
    }
    let second = source.tells(first, "the second change").await;
    source.order("restart");
    source.becomes("streaming").await;
    change(3).await;
    source.tells(second, "the third change").await;

    source.order("pause");
    let removed = async || source.connect(&["remove", source.name, "--yes"]).status.success();
    until(PATIENCE, "it is removed", removed).await;
    source.becomes("removed").await;
    source.order("resume");
    source.becomes("streaming").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_redis_fill_their_topic_and_obey_every_command() {
    let redis = RedisServer::builder().config("notify-keyspace-events KA".to_owned()).start().await;
    let dir = tempfile::tempdir().unwrap();
    let section = json!({ "carts": {
        "kind": "redis-keys", "url": redis.url(), "pattern": "cart:*", "read": "string", "topic": "changes",
        "tenant": { "name": 2 }, "collection": "carts", "key": { "name": 3 },
    } });
    let server = serve(dir.path(), "memory:", &section);
    let source = Source { server: &server, name: "carts" };
    let change = async |number: u32| {
        let key = format!("cart:acme:{number}");
        redis.command(&["SET", &key, &format!("{{\"n\":{number}}}")]).await;
    };
    obeys(&source, "redis-keys", false, change).await;
    assert_eq!(source.shown()["lossy"], true);
    assert!(source.order("status").contains("lossy"), "the status says so");
    let browsed = firth().args(["topic", "browse", "changes", "--json", "--server", &server.url()]).output();
    let browsed = stdout(&browsed.unwrap());
    assert!(browsed.contains("carts/1") && browsed.contains("carts/3"), "{browsed}");
    assert!(server.terminate());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_nats_obeys_every_command() {
    let nats = NatsServer::start().await;
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let subjects = vec!["orders.>".to_owned()];
    let stream =
        async_nats::jetstream::stream::Config { name: "ORDERS".into(), subjects, ..Default::default() };
    context.create_stream(stream).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let section = json!({ "orders": {
        "kind": "nats", "url": nats.url(), "stream": "ORDERS", "topic": "changes", "tenant": { "name": 2 },
        "collection": "orders", "key": { "name": 3 },
    } });
    let server = serve(dir.path(), "memory:", &section);
    let change = async |number: u32| {
        let subject = format!("orders.acme.{number}");
        context.publish(subject, format!("{{\"n\":{number}}}").into()).await.unwrap().await.unwrap();
    };
    obeys(&Source { server: &server, name: "orders" }, "nats", true, change).await;
    assert!(server.terminate());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_obeys_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let server = hooking::configured(dir.path(), "memory:");
    let change = async |number: u32| {
        let is_taken = async || {
            let reply = hook(&server, &format!("d-{number}"), hooking::OPENED, hooking::OPENED_CODE);
            // Until it hears that it is wanted again, the source asks the sender to come again.
            assert!(reply.status == 200 || reply.status == 503, "{reply:?}");
            reply.status == 200
        };
        until(PATIENCE, "the request is taken", is_taken).await;
    };
    obeys(&Source { server: &server, name: "hub" }, "webhook", false, change).await;
    assert!(server.terminate());
}

/// Bars are for people: they need a terminal, which `script` gives.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_awaited_is_drawn_as_a_bar() {
    let database = PostgresServer::start().await;
    let rows = "CREATE TABLE orders (id int PRIMARY KEY, total int);
        INSERT INTO orders SELECT n, n FROM generate_series(1, 5000) n; ANALYZE orders;";
    database.sql_as_owner(rows).await;
    let dir = tempfile::tempdir().unwrap();
    let section = json!({ "shop": {
        "kind": "postgres", "url": database.url(), "topic": "changes", "tables": ["orders"],
        "tenant": { "constant": "acme" }, "snapshot": "never", "password_file": dir.path().join("password"),
    } });
    std::fs::write(dir.path().join("password"), database.password()).unwrap();
    let server = serve(dir.path(), "memory:", &section);
    let source = Source { server: &server, name: "shop" };
    source.becomes("streaming").await;
    let refused = source.connect(&["snapshot", "shop", "--table", "items"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("table items is none of source shop"), "{why}");
    let program = env!("CARGO_BIN_EXE_firth");
    let asked =
        format!("{program} connect snapshot shop --table orders --until-done --server {}", server.url());
    let mut command = Command::new("script");
    let drawn =
        command.args(["--quiet", "--return", "--command", &asked, "/dev/null"]).env("TERM", "xterm").output();
    let drawn = stdout(&drawn.unwrap());
    assert!(drawn.contains("public.orders") && drawn.contains("5,000") && drawn.contains("==="), "{drawn}");
    assert!(drawn.contains("shop: the copy is in the topic"), "{drawn}");
    assert_eq!(source.shown()["by_operation"]["snapshot"], 5_000);
    assert!(server.terminate());
}
