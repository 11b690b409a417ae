//! What a web page can do to a server without tokens through the browser of a person on its
//! machine: nothing. Shown in a real browser, Chromium, which `cargo xtask setup` installs where it
//! can.

use crate::talk::call;
use crate::world::{PATIENCE, Server, json};
use firth_testkit::cannot_run;
use firth_testkit::wait::until;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
];

/// Asks for deliveries in every way that a page has, each for a group of its own, from another site
/// (`127.0.0.1` is one for `localhost`) and from the same site at another port.
const PAGE: &str = r#"<!doctype html><body><script>
const way = (host, kind) => `http://${host}:PORT/v1/topics/orders/groups/${kind}-${host}/stream?max=500&lease_ms=1000`;
const add = (name, set) => document.body.append(Object.assign(document.createElement(name), set));
for (const host of ["127.0.0.1", "localhost"]) {
    add("iframe", { src: way(host, "frame") });
    add("img", { src: way(host, "image") });
    add("script", { src: way(host, "script") });
    add("iframe", { name: `form-${host}` });
    add("form", { action: way(host, "form"), target: `form-${host}` });
    document.forms[document.forms.length - 1].submit();
    fetch(way(host, "fetch"), { mode: "no-cors", headers: { Accept: "application/x-ndjson" } }).catch(() => {});
    fetch(way(host, "fetch").replace("/stream?max=500&lease_ms=1000", "/fetch"), { method: "POST", mode: "no-cors" }).catch(() => {});
    const records = `http://${host}:PORT/v1/topics/orders/records`;
    const typed = { "Content-Type": "application/json" };
    for (const set of [{ mode: "no-cors" }, { headers: typed }, { headers: { "Firth-Client": "console" } }]) {
        fetch(records, { method: "POST", body: '{"payload": "planted"}', ...set }).catch(() => {});
    }
    add("iframe", { src: `http://${host}:PORT/` });
    const events = new EventSource(way(host, "events"));
    events.onerror = () => events.close();
}
addEventListener("load", () => setTimeout(() => { location = way("127.0.0.1", "top"); }, 500));
</script>"#;
/// Every way above but the POST, which goes elsewhere.
const WAYS: usize = 13;

struct Browser(Child, tempfile::TempDir);

impl Browser {
    /// Opens a page; nothing if there is no browser, or none that starts here.
    fn open(url: &str) -> Option<Self> {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromium");
        command.args(FLAGS).arg(format!("--user-data-dir={}", profile.path().display()));
        // Keeps it running until it is ended.
        command.args(["--remote-debugging-port=0", url]);
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Some(Self(silent.spawn().ok()?, profile))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = &self.1;
    }
}

/// Serves the page to every request, for as long as the test runs.
fn serve(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let page = PAGE.replace("PORT", &target.port().to_string());
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]).and_then(|_| stream.write_all(answer.as_bytes()));
        }
    });
    address
}

/// How many requests for a stream were answered, by status.
fn streams(server: &Server) -> (usize, usize) {
    let metrics = server.get("/metrics").expect(200).body;
    let lines = metrics.lines().filter(|line| {
        line.starts_with("firth_http_requests_total") && line.contains("groups/{group}/stream\"")
    });
    lines.fold((0, 0), |(all, refused), line| {
        let count: usize = line.rsplit(' ').next().unwrap().parse().unwrap();
        (all + count, refused + if line.contains("status=\"403\"") { count } else { 0 })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn u02_no_web_page_takes_records_through_a_browser() {
    let server = Server::memory();
    server.topic("orders", &["one", "two", "three"]);
    let Some(browser) = Browser::open(&format!("http://localhost:{}/", serve(server.address).port())) else {
        return cannot_run("browser", "there is no chromium here that starts");
    };
    until(PATIENCE, "the page tried every way", async || streams(&server).0 >= WAYS).await;
    drop(browser);
    let (all, refused) = streams(&server);
    assert_eq!(all, refused, "some requests of the page were let in");
    let groups = server.get("/v1/topics/orders/groups").expect(200).json();
    assert_eq!(groups["groups"], json!([]), "the page joined a group");
    let topic = server.get("/v1/topics/orders").expect(200).json();
    assert_eq!(topic["records"], 3, "the page sent a record");
}

#[test]
fn u02_every_answer_keeps_out_of_frames_and_other_sites() {
    let server = Server::memory();
    for path in
        ["/", "/console/main.js", "/v1", "/health/live", "/openapi.json", "/nowhere", "/v1/topics/none"]
    {
        let head = server.get(path).head;
        for line in [
            "x-frame-options: deny",
            "frame-ancestors 'none'",
            "cross-origin-resource-policy: same-origin",
            "x-content-type-options: nosniff",
        ] {
            assert!(head.contains(line), "{path} lacks {line}: {head}");
        }
    }
}

#[test]
fn u02_a_stream_is_for_programs_however_a_browser_is_made_to_ask() {
    let server = Server::memory();
    server.topic("orders", &[]);
    let stream = "/v1/topics/orders/groups/g/stream?for_ms=0";
    let ask = |headers: &[&str]| call(server.address, "GET", stream, headers, b"").status;
    let browser = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Firefox/80.0";
    assert_eq!(ask(&["Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate", browser]), 403);
    assert_eq!(ask(&["Sec-Fetch-Site: cross-site"]), 403);
    assert_eq!(ask(&[browser]), 403);
    for program in [vec![], vec!["User-Agent: curl/8.5.0"], vec![browser, "Firth-Client: shop"]] {
        assert_eq!(ask(&program), 200, "{program:?}");
    }
}
