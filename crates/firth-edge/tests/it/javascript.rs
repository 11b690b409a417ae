//! The JavaScript client, run by Node against a real gateway: what a browser does, without the browser.

use crate::world::{Gateway, PATIENCE, order};
use firth_edge::Config;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// A page's script: subscribes, and prints everything that it is told as JSON lines.
const SCRIPT: &str = r#"
const [client, url, token] = process.argv.slice(1);
const { Firth } = await import(client);
const say = (what, value) => console.log(JSON.stringify([what, value]));
const edge = new Firth(url, {
  token: async () => token,
  minDelay: 50,
  maxDelay: 200,
  state: (state) => say("state", state),
  error: (error) => say("error", error.code),
});
edge.subscribe({ collection: "orders" }, {
  event: (event) => say("event", event.after.n),
  gap: (gap) => say("gap", gap.events),
  resync: (reason) => say("resync", reason),
});
edge.subscribe({ collection: "orders", filter: "doc.n > 100", presence: true }, {
  event: (event) => say("big", event.after.n),
  presence: (members) => say("members", members),
});
edge.subscribe({ collection: "orders", filter: "wrong" }, { error: (error) => say("refused", error.field) });
"#;

struct Page {
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Page {
    fn open(address: SocketAddr, token: &str) -> Self {
        let client = concat!(env!("CARGO_MANIFEST_DIR"), "/js/firth.js");
        let url = format!("ws://{address}/v1/ws");
        // Node 22 has WebSocket without the flag, and accepts it.
        let mut child = Command::new("node")
            .args(["--no-warnings", "--experimental-websocket", "--input-type=module", "--eval", SCRIPT])
            .args(["--", client, &url, token])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("node is installed: run `cargo xtask setup`");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { lines, _child: child }
    }

    /// Waits until the page was told this.
    async fn told(&mut self, what: &str, value: Value) {
        let wanted = json!([what, value]);
        let mut told = Vec::new();
        let find = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                let line: Value = serde_json::from_str(&line).unwrap();
                if line == wanted {
                    return true;
                }
                assert!(line[0] != what || what != "event", "{wanted} expected, not {line}");
                told.push(line);
            }
            false
        };
        let found = tokio::time::timeout(PATIENCE, find).await;
        assert_eq!(found, Ok(true), "{wanted} after {told:?}");
    }
}

#[tokio::test]
async fn a_page_gets_events_resumes_after_a_cut_and_hears_of_a_restart() {
    let gateway = Gateway::start(Config::default()).await;
    let proxy = firth_testkit::Proxy::start(gateway.address).await;
    let mut page = Page::open(proxy.addr(), "ann");
    page.told("refused", json!("filter")).await;
    page.told("members", json!(["ann"])).await;
    for n in [1, 200] {
        gateway.publish(order("acme", "k", n));
    }
    page.told("event", json!(1)).await;
    page.told("event", json!(200)).await;
    page.told("big", json!(200)).await;
    proxy.cut().await;
    for n in 3..=5 {
        gateway.publish(order("acme", "k", n));
    }
    for n in 3..=5 {
        page.told("event", json!(n)).await;
    }
    // Another process at the same place: it does not know what this page saw.
    gateway.close().await;
    let next = Gateway::start(Config::default()).await;
    proxy.retarget(next.address);
    page.told("resync", json!("unknown-epoch")).await;
    next.publish(order("acme", "k", 6));
    page.told("event", json!(6)).await;
    drop(page);
    next.close().await;
}

#[tokio::test]
async fn a_page_without_a_token_is_told_so_and_tries_again() {
    let gateway = Gateway::start(Config::default()).await;
    let mut page = Page::open(gateway.address, "nobody");
    page.told("error", json!("unauthorized")).await;
    page.told("error", json!("unauthorized")).await;
    drop(page);
    gateway.close().await;
}
