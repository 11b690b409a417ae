//! The console in a real browser, Chromium, driven over its debugging pipe by a script for Node:
//! each page with real data, each action, hostile payloads, both themes, 1280 and 360 px.
//!
//! Screenshots lie in `target/console/ENGINE/`. axe-core (`cargo xtask setup`) checks each page for
//! accessibility.

use crate::gateway::Events;
use crate::talk::call;
use crate::world::{PATIENCE, Server, engine, firth, json, run, stdout};
use firth_testkit::ports::Port;
use firth_testkit::wait::until;
use firth_testkit::{Flavor, PostgresServer, RedisServer, cannot_run};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn can_start(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A script for Node that drives Chromium; nothing if one of them is not here.
pub(crate) fn script(name: &str) -> Option<Command> {
    if !can_start("chromium") || !can_start("node") {
        cannot_run("browser", "there is no chromium or no node here that starts");
        return None;
    }
    let ours = root().join(".tools/axe/node_modules/axe-core/axe.min.js");
    let axe = std::env::var_os("FIRTH_AXE").map_or(ours, PathBuf::from);
    if !axe.is_file() {
        cannot_run("axe-core", "run `cargo xtask setup`");
        return None;
    }
    let mut command = Command::new("node");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/console").join(name));
    command.env("FIRTH_AXE", axe).stdin(Stdio::null());
    Some(command)
}

/// Where screenshots go.
fn shots(name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("console").join(name)
}

#[track_caller]
fn ends_well(mut command: Command) {
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("console ok"), "{told}\n{errors}");
}

/// The configuration of a server with everything that the console has a page for.
fn configuration(dir: &Path, database: &PostgresServer) -> PathBuf {
    let secret = dir.join("secret");
    std::fs::write(&secret, "the secret of the hub\n").unwrap();
    let connect = json!({
        "shop": {
            "kind": "postgres", "url": database.url(), "topic": "shop-changes", "tables": ["orders"],
            "tenant": { "constant": "acme" },
        },
        "hub": {
            "kind": "webhook", "verify": "github", "secret_file": secret, "topic": "changes", "tenant": "acme",
            "collection": { "header": "X-GitHub-Event" }, "key": { "pointer": "/issue/number" },
            "document": "/issue", "op": "insert",
        },
    });
    let routing = json!({ "topic": "changes", "batch": { "max_wait": "5ms" } });
    let file = dir.join("firth.yaml");
    let text = format!("topics:\n  auto_create: true\nrouting: {routing}\nconnect: {connect}\n");
    std::fs::write(&file, text).unwrap();
    file
}

/// Drives every page and every action on an engine, by clicks or by keyboard alone: with a source,
/// a webhook, a gateway that has a client and one that is away.
fn drive(name: &str, engine: &str, how: &str) {
    let Some(mut script) = script("drive.mjs") else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(PostgresServer::start());
    let rows = "CREATE TABLE orders (id int PRIMARY KEY, total int);
        INSERT INTO orders SELECT n, n FROM generate_series(1, 500) n";
    runtime.block_on(database.sql_as_owner(rows));
    let dir = tempfile::tempdir().unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", engine, "--config"]).arg(configuration(dir.path(), &database));
    command.env("FIRTH_CONNECT_SHOP_PASSWORD", database.password()).env("FIRTH_GATEWAY_TOKEN", "shared");
    let server = Server::start(&mut command, None);
    let internal = Port::reserve();
    let at = internal.addr().to_string();
    let mut command = firth();
    command.args([
        "gateway",
        "--router",
        &server.url(),
        "--internal",
        &at,
        "--tenant",
        "acme",
        "--id",
        "edge",
    ]);
    command.env("FIRTH_GATEWAY_TOKEN", "shared").env("FIRTH_ROUTER_TOKEN", "shared");
    let gateway = Server::start(&mut command, None);
    let mut client = Events::open(gateway.address);
    assert_eq!((&client.next()["type"], &client.next()["type"]), (&json!("hello"), &json!("subscribed")));
    let nowhere = Port::reserve();
    let away = json!({ "endpoint": format!("http://{}", nowhere.addr()), "ttl_seconds": 0 });
    server.put("/v1/routing/gateways/away", &away).expect(200);
    let wish = json!({ "collection": "orders", "filter": "doc.total > 100", "gateway": "away" });
    server.put("/v1/routing/subscriptions/acme/big", &wish).expect(200);
    let event = |key: u64| {
        let after = json!({ "total": key * 90 });
        json!({ "json": { "op": "insert", "tenant": "acme", "collection": "orders", "key": key.to_string(), "after": after } })
    };
    let events: Vec<_> = (1..=5).map(event).collect();
    server.post("/v1/topics/changes/records", &json!(events)).expect(200);
    assert_eq!(client.next()["event"]["after"]["total"], 90);
    script.arg(server.url()).arg(shots(name)).arg("all").arg(how);
    ends_well(script);
}

#[test]
fn every_page_and_every_action_of_the_console_works_on_memory() {
    drive("memory", "memory:", "clicks");
}

#[test]
fn every_page_and_every_action_of_the_console_works_by_keyboard_alone_on_files() {
    let dir = tempfile::tempdir().unwrap();
    drive("files", &engine(dir.path()), "keys");
}

#[test]
fn every_page_and_every_action_of_the_console_works_on_redis() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = runtime.block_on(RedisServer::start(Flavor::Redis));
    drive("redis", &format!("redis://127.0.0.1:{}?prefix=ours&durability=fast", redis.port()), "clicks");
}

/// How many topics and dead letters; `FIRTH_CONSOLE_TOPICS` and `FIRTH_CONSOLE_LETTERS` set more.
const MANY: [(&str, &str, &str); 2] =
    [("TOPICS", "FIRTH_CONSOLE_TOPICS", "600"), ("LETTERS", "FIRTH_CONSOLE_LETTERS", "6000")];

#[test]
fn many_topics_and_dead_letters_are_shown_page_by_page() {
    let Some(mut script) = script("scale.mjs") else { return };
    let server = Server::memory();
    for (name, variable, usual) in MANY {
        script.env(name, std::env::var(variable).unwrap_or_else(|_| usual.to_owned()));
    }
    script.arg(server.url()).arg(shots("many"));
    ends_well(script);
}

#[test]
fn the_console_keeps_a_token_in_its_tab_and_shows_what_that_token_may_do() {
    let Some(mut script) = script("tokens.mjs") else { return };
    let dir = tempfile::tempdir().unwrap();
    let made = [("looks", "observe,consume"), ("operates", "admin")]
        .map(|(name, scopes)| stdout(&run(&["token", "--name", name, "--scopes", scopes])));
    let tokens = made.each_ref().map(|made| made.lines().next().unwrap().split('=').nth(1).unwrap());
    let file = dir.path().join("tokens");
    std::fs::write(&file, made.concat()).unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--token-file"]).arg(&file);
    let server = Server::start(&mut command, Some(tokens[1]));
    server.topic("orders", &["one"]);
    server.put("/v1/topics/orders/groups/bar", &json!({})).expect(201);
    script.env("LOOKS", tokens[0]).env("OPERATES", tokens[1]);
    script.arg(server.url()).arg(shots("tokens"));
    ends_well(script);
}

#[test]
fn the_console_is_there_with_its_policy_and_can_be_turned_off() {
    let server = Server::memory();
    let page = server.get("/").expect(200);
    assert!(page.body.contains("/console/main.js"), "{}", page.body);
    for line in ["text/html", "default-src 'self'", "frame-ancestors 'none'", "referrer-policy: no-referrer"]
    {
        assert!(page.head.contains(line), "{line}: {}", page.head);
    }
    let script = server.get("/console/main.js").expect(200);
    assert!(script.head.contains("text/javascript"), "{}", script.head);
    let tag = script.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().trim();
    let again = call(server.address, "GET", "/console/main.js", &[&format!("If-None-Match: {tag}")], b"");
    assert_eq!(again.status, 304);
    server.get("/console/none.js").problem(404, "not found");
    let off = Server::with(&["console.enabled=false"]);
    for path in ["/", "/console/main.js"] {
        off.get(path).problem(404, "not found");
    }
}

#[test]
fn u02_the_api_answers_its_own_page_and_no_other_origin() {
    let server = Server::memory();
    let own = format!("Origin: {}", server.url());
    let ask = |headers: &[&str]| call(server.address, "GET", "/v1", headers, b"").status;
    assert_eq!(ask(&[&own, "Sec-Fetch-Site: same-origin"]), 200);
    assert_eq!(ask(&[&own, "Sec-Fetch-Site: same-site"]), 403);
    assert_eq!(ask(&[&own, "Sec-Fetch-Site: cross-site"]), 403);
    assert_eq!(ask(&["Origin: http://localhost:1"]), 403);
    for (path, foreign, own) in
        [("/", 403, 200), ("/console/main.js", 403, 200), ("/v1", 403, 200), ("/health/live", 200, 200)]
    {
        let under = |host: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            server.raw(&request).status
        };
        assert_eq!((under("evil.example"), under("localhost:7171")), (foreign, own), "{path}");
    }
    assert_eq!(ask(&["Origin: null"]), 403);
}

#[test]
fn mq46_a_first_delivery_in_flight_is_shown_with_its_client_and_age() {
    let server = Server::memory();
    server.topic("orders", &["one"]);
    server.fetch("orders", "bar", &json!({ "wait_ms": 1000, "lease_ms": 60_000 }));
    let shown = server.get("/v1/topics/orders/groups/bar/in_flight").expect(200).json();
    let one = &shown["deliveries"][0];
    assert_eq!((&shown["total"], &one["attempt"], &one["kind"]), (&json!(1), &json!(1), &json!("fetch")));
    assert!(one["address"] == "127.0.0.1" && one["remaining_ms"].as_u64().unwrap() > 1000, "{one}");
}

#[test]
fn mq76_topics_with_dead_letters_are_listed_with_reasons_counted() {
    let server = Server::memory();
    server.topic("calm", &["one"]);
    server.topic("orders", &["one", "two", "three"]);
    for reason in ["declined", "declined", "timeout"] {
        let delivery = server.fetch("orders", "bar", &json!({ "wait_ms": 1000 }))[0]["delivery"].take();
        server.settle("orders", "bar", &json!({ "reject": [{ "delivery": delivery, "reason": reason }] }));
    }
    let found = server.get("/v1/dead").expect(200).json();
    let wanted = json!([{ "topic": "orders", "count": 3, "counted": 3, "groups": [{ "group": "bar", "count": 3 }],
        "reasons": [{ "reason": "declined", "count": 2 }, { "reason": "timeout", "count": 1 }] }]);
    assert_eq!((&found["topics"], &found["next"]), (&wanted, &json!(null)));
    let paged = server.get("/v1/dead?max=1").expect(200).json();
    assert_eq!((&paged["topics"], &paged["next"]), (&json!([]), &json!("calm")));
}

#[test]
fn a_reset_is_previewed_as_it_happens() {
    let server = Server::memory();
    server.topic("orders", &["one", "two", "three", "four"]);
    let deliveries = server.fetch("orders", "bar", &json!({ "max": 1, "wait_ms": 1000 }));
    server.settle("orders", "bar", &json!({ "ack": [deliveries[0]["delivery"]] }));
    let ask = |request: &serde_json::Value| {
        let found = server.post("/v1/topics/orders/groups/bar/reset/preview", request).expect(200).json();
        (found["repeats"].as_u64().unwrap(), found["skips"].as_u64().unwrap())
    };
    assert_eq!(ask(&json!({ "to": "oldest" })), (1, 0));
    assert_eq!(ask(&json!({ "to": "newest" })), (0, 3));
    assert_eq!(ask(&json!({ "age_ms": 3_600_000 })), (1, 0));
    assert_eq!(server.lag("orders", "bar"), 3, "a preview changes nothing");
    server.post("/v1/topics/orders/groups/bar/reset", &json!({ "to": "oldest" })).expect(200);
    assert_eq!(server.lag("orders", "bar"), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_samples_of_the_server_show_rates_lag_and_memory() {
    let server = Server::memory();
    server.topic("orders", &["one", "two", "three"]);
    server.put("/v1/topics/orders/groups/bar", &json!({})).expect(201);
    until(PATIENCE, "a sample with the group", async || {
        let stats = server.get("/v1/stats?topic=orders&sort=lag").expect(200).json();
        stats["groups"][0]["lag"] == 3 && stats["groups"][0]["series"]["lag"].as_array().is_some()
    })
    .await;
    server.post("/v1/topics/orders/records", &json!({ "payload": "four" })).expect(200);
    until(PATIENCE, "a rate above zero", async || {
        let total = server.get("/v1/stats").expect(200).json()["total"].take();
        let above = |column: &str| {
            total[column]
                .as_array()
                .unwrap()
                .iter()
                .any(|value| value.as_f64().is_some_and(|value| value > 0.0))
        };
        above("produced") && above("lag") && above("memory")
    })
    .await;
    let day = server.get("/v1/stats?window=24h").expect(200).json();
    assert_eq!((&day["step_ms"], day["total"]["lag"].as_array().unwrap().len()), (&json!(60_000), 1440));
    let newest = day["time_ms"].as_u64().unwrap();
    let rest = server.get(&format!("/v1/stats?after_ms={}", newest + 3_600_000)).expect(200).json();
    assert_eq!(rest["total"]["lag"], json!([]), "only what is new is sent");
    let server_url = server.url();
    let told = stdout(&run(&["stats", "--server", &server_url]));
    assert!(told.contains("orders") && told.contains("bar"), "{told}");
    let told = stdout(&run(&[
        "group",
        "reset",
        "orders",
        "bar",
        "--to",
        "newest",
        "--preview",
        "--server",
        &server_url,
    ]));
    assert!(told.contains("skips 4"), "{told}");
    assert!(stdout(&run(&["dead", "topics", "--server", &server_url])).contains("TOPIC"));
    assert!(
        stdout(&run(&["group", "in-flight", "orders", "bar", "--server", &server_url])).contains("PARTITION")
    );
}
