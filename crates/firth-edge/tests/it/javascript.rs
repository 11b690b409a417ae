//! The JavaScript client, run by Node against a real gateway: what a browser does, without the
//! browser.

use crate::world::{Gateway, PATIENCE, order, tenant};
use firth_edge::auth::Keys;
use firth_edge::{Code, Config, EdgeError, Heartbeat, Registrar, SubscriptionRequest, Upstream};
use firth_router::event::{Event, Operation};
use firth_router::{SubscriptionId, Tenant};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
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
  resync: (reason, info) => say("resync", info.collection ? [reason, info.collection, info.message] : reason),
});
edge.subscribe({ collection: "items" }, {
  event: (event) => say("item", event.missing),
  resync: (reason) => say("items", reason),
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

    /// Waits until everything that the page asked for is answered.
    async fn await_members(mut self) -> Self {
        self.told("refused", json!("filter")).await;
        self.told("members", json!(["ann"])).await;
        self
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

/// The source empties one collection: the page loads that one again, and no other.
#[tokio::test]
async fn a_page_is_told_which_collection_to_load_again() {
    let gateway = Gateway::start(Config::default()).await;
    let mut page = Page::open(gateway.address, "ann").await_members().await;
    gateway.publish(order("acme", "k", 1));
    gateway
        .publish(Event::control(Operation::Truncate, Some(tenant("acme")), "orders").with_reason("TRUNCATE"));
    gateway.publish(order("acme", "k", 2));
    gateway.publish(Event::new(Operation::Insert, tenant("acme"), "items", "i").with_missing(["big"]));
    for (what, value) in [
        ("event", json!(1)),
        ("resync", json!(["truncated", "orders", "TRUNCATE"])),
        ("event", json!(2)),
        ("item", json!(["big"])),
    ] {
        assert_eq!(page.next().await, json!([what, value]));
    }
    drop(page);
    gateway.close().await;
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

/// A gateway of several partitions, whose every message the test chooses.
const SCRIPTED: &str = r#"
class Scripted {
  readyState = 1;
  constructor() { setTimeout(() => this.onopen()); }
  close() {}
  send(text) {
    const said = JSON.parse(text);
    if (said.type === "auth") this.say({ type: "hello", version: 1, heartbeat_ms: 1e6 });
    if (said.type === "subscribe") this.play(said.ref);
  }
  say(message) { this.onmessage({ data: JSON.stringify(message) }); }
  play(ref) {
    this.say({ type: "subscribed", ref, at: "a:5.2.05000-0-3000" });
    let n = 0;
    const event = (at) => {
      this.say({ type: "event", at, subs: ["s"], event: { after: { n: ++n } } });
      say("at", edge.at);
    };
    event("a:6.2.05100-0-3100"); // 1: further in the first partition
    event("a:6.2.05100-0-3100"); // 2: repeated
    event("a:5.2.05000-0-3000"); // 3: older
    event("a:6.3.05100-0-100"); // 4: further in the second, which is earlier
    event("a:6.1.05100-0-3200"); // 5: older in the second
    event("a:10.3.05200-0-200"); // 6: ten is more than six
    event("a:4.3.05300-0-300"); // 7: the first partition went back, so its time is later
    event("a:4.3.05300-0-300"); // 8: repeated
    event("b:1.0.0300-0-300"); // 9: another epoch
    this.say({ type: "resync-required", reason: "source-gap", at: "b:0.0.0200" });
    say("at", edge.at);
    event("b:1.0.0300-0-300"); // 10: the gateway said where it goes on
    say("end", true);
  }
}
const edge = new Firth(url, { ...shown, token, state: () => {}, WebSocket: Scripted });
edge.subscribe({ id: "s", collection: "orders" }, {
  event: (event) => say("event", event.after.n),
  resync: (reason) => say("resync", reason),
});"#;

#[tokio::test]
async fn js_an_event_is_new_if_it_is_further_in_any_partition_or_later_than_a_log_that_went_back() {
    let mut page = Page::run(&script(SCRIPTED), "127.0.0.1:1".parse().unwrap(), "ann");
    let mut events = Vec::new();
    let mut places = Vec::new();
    loop {
        let line = page.next().await;
        match line[0].as_str().unwrap() {
            "event" => events.push(line[1].as_i64().unwrap()),
            "at" => places.push(line[1].as_str().unwrap().split('-').next().unwrap().to_owned()),
            "end" => break,
            other => assert_eq!(other, "resync"),
        }
    }
    assert_eq!(events, [1, 4, 6, 7, 9, 10], "each event comes once");
    let first = "a:6.2.05100";
    let second = "a:6.3.05100";
    let back = "a:4.3.05300";
    let expected =
        [first, first, first, second, second, "a:10.3.05200", back, back, "b:1.0.0300", "b:0.0.0200"];
    assert_eq!(places[..10], expected, "it never stands further back than it was");
    assert_eq!(places[10], "b:1.0.0300");
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

/// A router that allows subscriptions to orders alone; counts those that it refused.
struct OrdersAlone(Arc<AtomicUsize>);

impl Upstream for OrdersAlone {
    fn gateway(&self) -> &'static str {
        "edge"
    }

    fn instance(&self) -> &'static str {
        "one"
    }

    fn announce(&self) -> BoxFuture<'_, Result<Duration, EdgeError>> {
        async { Ok(Duration::from_secs(90)) }.boxed()
    }

    fn heartbeat(&self) -> BoxFuture<'_, Result<Heartbeat, EdgeError>> {
        async { Ok(Heartbeat::Alive) }.boxed()
    }

    fn register<'a>(
        &'a self,
        _: &'a Tenant,
        _: &'a SubscriptionId,
        request: &'a SubscriptionRequest,
    ) -> BoxFuture<'a, Result<(), EdgeError>> {
        async move {
            if request.collection == "orders" {
                return Ok(());
            }
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(EdgeError::new(Code::Forbidden, "the router does not allow it"))
        }
        .boxed()
    }

    fn unregister<'a>(
        &'a self,
        _: &'a Tenant,
        _: &'a SubscriptionId,
    ) -> BoxFuture<'a, Result<(), EdgeError>> {
        async { Ok(()) }.boxed()
    }

    fn leave(&self) -> BoxFuture<'_, Result<(), EdgeError>> {
        async { Ok(()) }.boxed()
    }
}

#[tokio::test]
async fn r17_js_a_subscription_that_the_router_does_not_allow_is_refused_alone_and_not_tried_again() {
    let gateway = Gateway::start(Config::default()).await;
    let refused = Arc::default();
    let registrar = Registrar::start(gateway.edge.hub(), OrdersAlone(Arc::clone(&refused))).await.unwrap();
    let proxy = firth_testkit::Proxy::start(gateway.address).await;
    let mut page = Page::run(
        &script(
            r#"
const edge = new Firth(url, { ...shown, token });
edge.subscribe({ collection: "orders" }, {
  subscribed: () => say("subscribed", "orders"),
  event: (event) => say("event", event.after.n),
});
edge.subscribe({ collection: "secret" }, { error: (error) => say("refused", error.code) });"#,
        ),
        proxy.addr(),
        "ann",
    );
    let mut told = Vec::new();
    while !(told.contains(&json!(["subscribed", "orders"]))
        && told.contains(&json!(["refused", "forbidden"])))
    {
        told.push(page.next().await);
    }
    assert!(!told.contains(&json!(["state", "waiting"])), "the connection stays: {told:?}");
    let asked = refused.load(Ordering::Relaxed);
    // A page that comes back asks for what was allowed, and for nothing else.
    proxy.cut().await;
    page.told("state", json!("open")).await;
    gateway.publish(order("acme", "k", 7));
    page.told("event", json!(7)).await;
    assert_eq!(refused.load(Ordering::Relaxed), asked);
    drop(page);
    registrar.close().await.unwrap();
    gateway.close().await;
}
