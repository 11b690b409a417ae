//! The example page in a real browser, Chromium, driven by its own remote debugging: what people
//! see, not what a test double does.
//!
//! `cargo xtask setup` installs Chromium where it can. Where there is none, the test says that it
//! did not run.

use crate::world::{Client, Gateway, PATIENCE, order};
use firth_edge::Config;
use firth_router::event::Document;
use firth_testkit::{Proxy, cannot_run, wait};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tokio_tungstenite::tungstenite::Message;

const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--remote-debugging-port=0",
];

/// A browser with one page.
struct Browser {
    child: Child,
    socket: Client,
    page: String,
    asked: u64,
    profile: tempfile::TempDir,
}

impl Browser {
    /// Opens the page; `None` if there is no browser, or none that starts here.
    async fn open(url: &str) -> Option<Self> {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromium");
        command.args(FLAGS).arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = silent.spawn().ok()?;
        let address = debugger(profile.path(), &mut child).await?;
        let (socket, _) = tokio_tungstenite::connect_async(address).await.unwrap();
        let mut browser = Self { child, socket: Client(socket), page: String::new(), asked: 0, profile };
        let target = browser.ask("Target.createTarget", json!({ "url": url })).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.ask("Target.attachToTarget", attach).await;
        browser.page = session["sessionId"].as_str().unwrap().to_owned();
        browser
            .until("the page is there", "document.readyState === 'complete' && !!document.forms.length")
            .await;
        Some(browser)
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let mut request = json!({ "id": self.asked, "method": method, "params": params });
        if !self.page.is_empty() {
            request["sessionId"] = json!(self.page);
        }
        self.socket.0.send(Message::Text(request.to_string().into())).await.unwrap();
        loop {
            let next =
                tokio::time::timeout(PATIENCE, self.socket.0.next()).await.expect("the browser answers");
            let Message::Text(text) = next.expect("the browser lives").unwrap() else { continue };
            let answer: Value = serde_json::from_str(&text).unwrap();
            if answer["id"] == self.asked {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// What an expression gives in the page.
    async fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        let answer = self.ask("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    async fn until(&mut self, what: &str, expression: &str) {
        wait::until(PATIENCE, what, async || self.eval(expression).await == true).await;
    }

    /// What the table shows, oldest first.
    async fn rows(&mut self) -> Vec<(String, String)> {
        let rows = self.eval("[...document.querySelectorAll('#events tr')].reverse().map(row => [row.cells[0].textContent, row.cells[2].textContent])").await;
        serde_json::from_value(rows).unwrap()
    }

    async fn shows(&mut self, wanted: &[(&str, Value)]) {
        let wanted: Vec<_> =
            wanted.iter().map(|(what, shown)| ((*what).to_owned(), shown.to_string())).collect();
        let mut rows = Vec::new();
        let seen = wait::until_some(PATIENCE, async || {
            rows = self.rows().await;
            (rows.len() >= wanted.len()).then_some(())
        });
        seen.await;
        assert_eq!(rows, wanted);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = &self.profile;
    }
}

/// Where the browser lets itself be debugged; `None` if it ended before it could.
async fn debugger(profile: &Path, child: &mut Child) -> Option<String> {
    let file = profile.join("DevToolsActivePort");
    let told = wait::until_some(2 * PATIENCE, async || {
        if child.try_wait().unwrap().is_some() {
            return Some(None);
        }
        let text = std::fs::read_to_string(&file).ok()?;
        let (port, path) = text.split_once('\n')?;
        (!path.is_empty()).then(|| Some(format!("ws://127.0.0.1:{}{}", port.trim(), path.trim())))
    });
    told.await.expect("the browser started")
}

#[tokio::test]
async fn the_example_page_shows_events_resumes_after_a_cut_and_hears_of_a_restart() {
    let gateway = Gateway::start(Config::default()).await;
    let proxy = Proxy::start(gateway.address).await;
    let Some(mut page) = Browser::open(&format!("http://{}/v1/example", proxy.addr())).await else {
        cannot_run("browser", "there is no chromium here that starts");
        return gateway.close().await;
    };
    page.eval("document.getElementById('token').value = 'ann'; document.getElementById('form').requestSubmit(); true").await;
    page.until("it is connected", "document.getElementById('state').textContent === 'open'").await;
    page.until("it sees itself", "document.getElementById('members').textContent === '1 (ann)'").await;

    let evil = json!({"n": 1, "text": "<img src=x onerror=document.title='broken'>"});
    let mut first = order("acme", "k", 1);
    first.after = Some(Document::from_value(&evil).unwrap());
    gateway.publish(first);
    gateway.publish(order("other", "k", 666));
    gateway.publish(order("acme", "k", 2));
    page.shows(&[("update", evil.clone()), ("update", json!({"n": 2}))]).await;
    assert_eq!(page.eval("document.images.length").await, 0, "documents are text, never markup");

    proxy.cut().await;
    for n in 3..=5 {
        gateway.publish(order("acme", "k", n));
    }
    let mut shown = vec![("update", evil), ("update", json!({"n": 2}))];
    shown.extend((3..=5).map(|n| ("update", json!({ "n": n }))));
    page.shows(&shown).await;

    let mut bob = gateway.connect("bob").await;
    bob.say(json!({"type": "subscribe", "subscriptions": [{"id": "r", "collection": "orders", "presence": true}]})).await;
    page.until("it sees another", "document.getElementById('members').textContent === '2 (ann, bob)'").await;
    drop(bob);

    // Another process at the same place: it does not know what this page saw.
    gateway.close().await;
    let next = Gateway::start(Config::default()).await;
    proxy.retarget(next.address);
    page.until(
        "it hears of it",
        "document.getElementById('events').rows[0].cells[0].textContent === 'resync'",
    )
    .await;
    next.publish(order("acme", "k", 6));
    page.until(
        "it goes on",
        "document.getElementById('events').rows[0].cells[2].textContent === '{\"n\":6}'",
    )
    .await;
    drop(page);
    next.close().await;
}

/// What the client does in a page that has gone offline or to the back.
#[tokio::test]
async fn js_in_a_browser_a_page_loads_its_state_and_reconnects_at_once_when_it_is_back() {
    let gateway = Gateway::start(Config::default()).await;
    let proxy = Proxy::start(gateway.address).await;
    let Some(mut page) = Browser::open(&format!("http://{}/v1/example", proxy.addr())).await else {
        cannot_run("browser", "there is no chromium here that starts");
        return gateway.close().await;
    };
    page.eval("import('/v1/firth.js').then(({ Firth }) => { window.Firth = Firth; }); true").await;
    page.until("the client is there", "!!window.Firth").await;
    proxy.refuse().await;
    let script = "window.told = [];
        const options = { token: 'ann', minDelay: 1e6, maxDelay: 1e6, connectTimeout: 4000 };
        const edge = new Firth(`ws://${location.host}/v1/ws`, { ...options, state: (state) => told.push(state) });
        edge.subscribe({ collection: 'orders' }, {
            subscribed: () => told.push('load'),
            event: (event) => told.push(event.after.n),
            resync: () => told.push('resync'),
        });
        true";
    page.eval(script).await;
    page.until("it waits", "told.at(-1) === 'waiting'").await;
    proxy.heal().await;
    page.eval("dispatchEvent(new Event('online'))").await;
    page.until("it loads its state", "told.at(-1) === 'load'").await;
    gateway.publish(order("acme", "k", 1));
    page.until("events come", "told.at(-1) === 1").await;
    proxy.half_open(firth_testkit::Direction::Both);
    page.eval("document.dispatchEvent(new Event('visibilitychange'))").await;
    page.until("it notices", "told.at(-1) === 'waiting'").await;
    gateway.publish(order("acme", "k", 2));
    proxy.heal().await;
    page.eval("document.dispatchEvent(new Event('visibilitychange'))").await;
    page.until("nothing is missing", "told.at(-1) === 2").await;
    assert_eq!(page.eval("told.filter((one) => one === 'load' || one === 'resync').join()").await, "load");
    drop(page);
    gateway.close().await;
}
