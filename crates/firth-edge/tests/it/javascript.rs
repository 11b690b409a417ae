//! The JavaScript client, run by Node against a real gateway: what a browser does, without the browser.

use crate::world::{Gateway, PATIENCE, order};
use firth_edge::Config;
use firth_edge::auth::Keys;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

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
  subscribed: (info) => say("subscribed", typeof info.at),
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
    input: ChildStdin,
}

impl Page {
    fn open(address: SocketAddr, token: &str) -> Self {
        Self::run(SCRIPT, address, token)
    }

    /// Another script, with the same arguments.
    fn run(script: &str, address: SocketAddr, token: &str) -> Self {
        let client = concat!(env!("CARGO_MANIFEST_DIR"), "/js/firth.js");
        let url = format!("ws://{address}/v1/ws");
        // Node 22 has WebSocket without the flag, and accepts it.
        let mut child = Command::new("node")
            .args(["--no-warnings", "--experimental-websocket", "--input-type=module", "--eval", script])
            .args(["--", client, &url, token])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("node is installed: run `cargo xtask setup`");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let input = child.stdin.take().unwrap();
        Self { lines, _child: child, input }
    }

    /// Gives the script a line.
    async fn tell(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// What the page says next.
    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("a line in time");
        serde_json::from_str(&line.unwrap().expect("the script runs")).unwrap()
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

/// What scripts below have in common.
fn script(body: &str) -> String {
    format!(
        r#"
const [client, url, token] = process.argv.slice(1);
const {{ Firth }} = await import(client);
const say = (what, value) => console.log(JSON.stringify([what, value]));
const told = (await import("node:readline")).createInterface({{ input: process.stdin }});
const shown = {{
  minDelay: 20,
  maxDelay: 100,
  state: (state) => say("state", state),
  error: (error) => say("error", error.code),
}};
{body}"#
    )
}

#[tokio::test]
async fn js_a_page_is_told_once_when_to_load_its_state_and_no_event_behind_it_is_missing() {
    let gateway = Gateway::start(Config::default()).await;
    let proxy = firth_testkit::Proxy::start(gateway.address).await;
    let mut page = Page::open(proxy.addr(), "ann");
    gateway.publish(order("acme", "k", 0));
    page.told("subscribed", json!("string")).await;
    gateway.publish(order("acme", "k", 1));
    page.told("event", json!(1)).await;
    proxy.cut().await;
    gateway.publish(order("acme", "k", 2));
    let mut told = Vec::new();
    while told.last() != Some(&json!(["event", 2])) {
        told.push(page.next().await);
    }
    assert!(told.iter().all(|line| line[0] != "subscribed" && line[0] != "resync"), "{told:?}");
    drop(page);
    gateway.close().await;
}

#[tokio::test]
async fn js_a_token_is_renewed_on_the_open_connection_before_it_runs_out() {
    const SECRETS: [&[u8]; 2] = [&[1; 32], &[2; 32]];
    let keys = |some: &[usize]| {
        let add = |keys: Keys, n: &usize| keys.with_secret(&n.to_string(), SECRETS[*n]).unwrap();
        some.iter().fold(Keys::default(), add)
    };
    let gateway = Gateway::start(Config::default()).await;
    gateway.edge.set_keys(keys(&[0, 1]));
    let mut page = Page::run(
        &script(
            r#"
const { createHmac } = await import("node:crypto");
const text = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
let made = 0;
const make = () => {
  // The first for a second, the second for long.
  const [key, life] = made === 0 ? [1, 1] : [2, 600];
  const signed = `${text({ alg: "HS256" })}.${text({ tenant: "acme", exp: Date.now() / 1000 + life })}`;
  say("token", ++made);
  // Said behind the renewal, so answered behind it.
  if (made === 2) setTimeout(() => edge.subscribe({ collection: "items" }, { subscribed: () => say("renewed", true) }));
  return `${signed}.${createHmac("sha256", Buffer.alloc(32, key)).update(signed).digest("base64url")}`;
};
const edge = new Firth(url, { ...shown, token: make, renewBefore: 600 });
edge.subscribe({ collection: "orders" }, { event: (event) => say("event", event.after.n) });"#,
        ),
        gateway.address,
        "",
    );
    page.told("state", json!("open")).await;
    page.told("token", json!(2)).await;
    page.told("renewed", json!(true)).await;
    // What rests on the first token ends now.
    gateway.edge.set_keys(keys(&[1]));
    gateway.publish(order("acme", "k", 1));
    assert_eq!(page.next().await, json!(["event", 1]), "without a new connection");
    drop(page);
    gateway.close().await;
}

#[tokio::test]
async fn js_a_socket_that_cannot_be_made_or_does_not_open_is_tried_again() {
    let gateway = Gateway::start(Config::default()).await;
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut page = Page::run(
        &script(&format!(
            r#"
let made = 0;
function Socket(url) {{
  made += 1;
  if (made === 1) throw new SyntaxError("no");
  return new WebSocket(made === 2 ? "ws://{}" : url);
}}
new Firth(url, {{ ...shown, token, connectTimeout: 400, WebSocket: Socket }});"#,
            silent.local_addr().unwrap()
        )),
        gateway.address,
        "ann",
    );
    page.told("error", json!("invalid")).await;
    for _ in 0..2 {
        page.told("state", json!("waiting")).await;
        page.told("state", json!("connecting")).await;
    }
    page.told("state", json!("open")).await;
    drop(page);
    gateway.close().await;
}

#[tokio::test]
async fn js_a_page_that_is_online_or_visible_again_reconnects_at_once() {
    let gateway = Gateway::start(Config::default()).await;
    let proxy = firth_testkit::Proxy::start(gateway.address).await;
    proxy.refuse().await;
    let mut page = Page::run(
        &script(
            r#"
const page = new EventTarget();
globalThis.addEventListener = page.addEventListener.bind(page);
globalThis.document = new EventTarget();
document.visibilityState = "visible";
new Firth(url, { ...shown, token, minDelay: 1e6, maxDelay: 1e6, connectTimeout: 3000 });
told.on("line", (line) => (line === "online" ? page : document).dispatchEvent(new Event(line)));"#,
        ),
        proxy.addr(),
        "ann",
    );
    page.told("state", json!("waiting")).await;
    proxy.heal().await;
    page.tell("online").await;
    page.told("state", json!("open")).await;
    // The connection is dead, and nothing says so.
    proxy.half_open(firth_testkit::Direction::ToClient);
    page.tell("visibilitychange").await;
    page.told("state", json!("waiting")).await;
    proxy.heal().await;
    page.tell("visibilitychange").await;
    page.told("state", json!("open")).await;
    drop(page);
    gateway.close().await;
}

#[tokio::test]
async fn js_a_subscription_that_was_closed_is_not_asked_for_again_after_a_refused_list() {
    let gateway = Gateway::start(Config::default()).await;
    let mut page = Page::run(
        &script(
            r#"
const edge = new Firth(url, { ...shown, token, state: (state) => state === "open" && setTimeout(() => closed.close()) });
const closed = edge.subscribe({ collection: "orders" }, { subscribed: () => say("subscribed", "closed") });
edge.subscribe({ collection: "orders", filter: "wrong" }, {
  error: () => edge.subscribe({ collection: "orders" }, { subscribed: () => say("subscribed", "last") }),
});"#,
        ),
        gateway.address,
        "ann",
    );
    assert_eq!(page.next().await, json!(["subscribed", "last"]));
    assert_eq!(gateway.edge.hub().status().subscriptions, 1);
    drop(page);
    gateway.close().await;
}

#[tokio::test]
async fn js_a_rejected_token_is_not_tried_for_ever() {
    let gateway = Gateway::start(Config::default()).await;
    for (given, tries) in [("token", 1), ("() => token, maxRejections: 3", 3)] {
        let body = format!("new Firth(url, {{ ...shown, token: {given} }});");
        let mut page = Page::run(&script(&body), gateway.address, "nobody");
        let mut told = Vec::new();
        while told.last() != Some(&json!(["state", "closed"])) {
            told.push(page.next().await);
        }
        let refused = told.iter().filter(|line| **line == json!(["error", "unauthorized"])).count();
        assert_eq!(refused, tries, "{told:?}");
    }
    gateway.close().await;
}

#[tokio::test]
async fn js_the_client_is_a_package_with_types_and_is_kept_by_browsers() {
    let gateway = Gateway::start(Config::default()).await;
    let js = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("js");
    let package: Value =
        serde_json::from_str(&std::fs::read_to_string(js.join("package.json")).unwrap()).unwrap();
    assert_eq!(package["version"], env!("CARGO_PKG_VERSION"));
    let dir = tempfile::tempdir().unwrap();
    let installed = dir.path().join("node_modules/firth-edge");
    std::fs::create_dir_all(&installed).unwrap();
    std::fs::copy(js.join("package.json"), installed.join("package.json")).unwrap();
    for file in package["files"].as_array().unwrap() {
        let file = file.as_str().unwrap();
        std::fs::copy(js.join(file), installed.join(file)).unwrap();
    }
    let names = r#"import { Firth } from "firth-edge"; console.log(Object.getOwnPropertyNames(Firth.prototype).join());"#;
    let mut command = Command::new("node");
    let output =
        command.current_dir(&dir).args(["--input-type=module", "--eval", names]).output().await.unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    let types = std::fs::read_to_string(js.join("firth.d.ts")).unwrap();
    let public: Vec<&str> = names.trim().split(',').filter(|name| !name.starts_with('_')).collect();
    assert!(public.len() >= 4 && public.iter().all(|name| types.contains(&format!("  {name}"))), "{names}");

    for path in ["/v1/firth.js", "/v1/firth.d.ts", "/v1/example"] {
        let ask = async |headers: &[(&str, &str)]| {
            let mut answer = String::new();
            let mut stream = gateway.request("GET", path, headers, "").await;
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let first = ask(&[]).await;
        let tag = first.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag").to_owned();
        assert!(first.starts_with("HTTP/1.1 200"), "{first}");
        let again = ask(&[("if-none-match", &format!("\"x\", W/{tag}"))]).await;
        assert!(again.starts_with("HTTP/1.1 304") && again.ends_with("\r\n\r\n"), "{again}");
        assert!(ask(&[("if-none-match", "\"x\"")]).await.starts_with("HTTP/1.1 200"));
    }
    gateway.close().await;
}
