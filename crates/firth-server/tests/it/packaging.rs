//! What is shipped beside the program: as far as a machine without containers can check it.

use crate::gateway::Events;
use crate::receiver::Receiver;
use crate::talk::call;
use crate::world::{PATIENCE, Server, Value, firth, json, run, stdout};
use firth_testkit::ports::Port;
use firth_testkit::wait::until;
use firth_testkit::{Flavor, RedisServer, cannot_run};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(packaging(file)).unwrap()
}

#[test]
fn the_systemd_unit_is_valid_and_hardened() {
    let unit = read("systemd/firth.service");
    for setting in
        ["DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=\n"]
    {
        assert!(unit.contains(setting), "{setting}");
    }
    // The unit must name a program that exists, so the copy names the one under test.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("firth.service");
    let program = format!("ExecStart={} serve", env!("CARGO_BIN_EXE_firth"));
    std::fs::write(&copy, unit.replace("ExecStart=/usr/local/bin/firth serve", &program)).unwrap();
    let Ok(checked) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output() else {
        cannot_run("systemd", "systemd-analyze is not installed");
        return;
    };
    let told = String::from_utf8_lossy(&checked.stderr);
    let about_us: Vec<_> = told.lines().filter(|line| line.contains("firth.service")).collect();
    assert!(about_us.is_empty(), "{told}");
}

#[test]
fn the_container_is_built_in_stages_and_runs_without_rights() {
    let file = read("Dockerfile");
    let last = file.rsplit("\nFROM ").next().unwrap();
    assert_eq!(file.matches("\nFROM ").count(), 2, "one stage builds, one runs");
    assert!(last.contains("COPY --from=build") && !last.contains("cargo"), "{last}");
    let user = last.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
    assert!(!user.starts_with("0") && !user.starts_with("root"), "{user}");
    assert!(file.contains("--locked") && !file.contains(":latest"));
}

/// Names of metrics in a text.
pub(crate) fn metrics(text: &str) -> BTreeSet<String> {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    parts.filter(|part| part.starts_with("firth_")).map(str::to_owned).collect()
}

/// Waits until a server exports everything that these files ask for.
pub(crate) async fn exports(address: SocketAddr, files: &[&str]) {
    let asked: BTreeSet<String> = files.iter().flat_map(|file| metrics(&read(file))).collect();
    assert!(asked.len() > 2, "{asked:?}");
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let there = metrics(&call(address, "GET", "/metrics", &[], b"").expect(200).body);
        let missing: Vec<_> = asked.difference(&there).collect();
        if missing.is_empty() {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "nobody exports {missing:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

const BOARDS: [&str; 3] =
    ["grafana/firth-queue.json", "grafana/firth-router.json", "grafana/firth-claims.json"];
const EVENT: &str = r#"{"op":"insert","tenant":"acme","collection":"orders","key":"1","after":{"n":7}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn dashboards_and_alerts_ask_for_metrics_that_there_are() {
    let receiver = Receiver::start().await;
    let server = Server::start(firth().args(["route", "run", "--engine", "memory:"]), None);
    server.topic("orders", &["one", "two"]);
    for verdict in ["ack", "reject"] {
        let delivery =
            server.fetch("orders", "bar", &json!({ "wait_ms": 20_000 })).remove(0)["delivery"].clone();
        let given = if verdict == "ack" { json!([delivery]) } else { json!([{ "delivery": delivery }]) };
        assert_eq!(server.settle("orders", "bar", &json!({ verdict: given }))["settled"], 1);
    }
    server.post("/v1/claims/calls/offers", &json!({ "name": "call-1" })).expect(200);
    server.put("/v1/claims/calls/workers/w", &json!({ "ttl_ms": 3_600_000 })).expect(200);
    server.put("/v1/routing/gateways/edge", &json!({ "endpoint": receiver.endpoint() })).expect(200);
    let request = json!({ "collection": "orders", "gateway": "edge" });
    server.put("/v1/routing/subscriptions/acme/all", &request).expect(200);
    server.post("/v1/topics/changes/records", &json!({ "payload": EVENT })).expect(200);
    exports(server.address, &[&BOARDS[..], &["prometheus/alerts.yaml"]].concat()).await;
    // A scrape alone brings the lag up to date, too.
    server.post("/v1/topics/orders/records", &json!([{ "payload": "x" }, { "payload": "y" }])).expect(200);
    until(PATIENCE, "the lag is fresh", async || {
        let text = server.get("/metrics").expect(200).body;
        let mut lines =
            text.lines().filter(|line| line.starts_with("firth_group_lag{") && line.contains("\"orders\""));
        lines.any(|line| line.ends_with(" 2"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_board_of_the_edge_asks_for_metrics_that_there_are() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let internal = Port::reserve();
    let engine = redis.url();
    let at = internal.addr();
    stdout(&run(&["topic", "create", "changes", "--engine", &engine]));
    let operators = at.to_string();
    let args =
        ["gateway", "--engine", &engine, "--topic", "changes", "--tenant", "acme", "--internal", &operators];
    let gateway = Server::start(firth().args(args), None);
    let mut events = Events::open(gateway.address);
    assert_eq!(events.next()["type"], "hello");
    stdout(&run(&["produce", "changes", EVENT, "--engine", &engine]));
    exports(at, &["grafana/firth-edge.json"]).await;
}

#[test]
fn every_panel_of_a_board_has_a_number_a_title_and_a_question() {
    for file in [&BOARDS[..], &["grafana/firth-edge.json"]].concat() {
        let board: Value = serde_json::from_str(&read(file)).unwrap();
        let panels = board["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "{file}");
        for panel in panels {
            assert!(panel["title"].is_string() && panel["targets"][0]["expr"].is_string(), "{file}: {panel}");
        }
    }
}
