//! A server process that ends with its handle, a small HTTP client, and ways to wait.

use firth_testkit::{Flavor, RedisServer};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) use serde_json::{Value, json};

/// Longer than any healthy wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The binary under test, without settings of the caller's environment.
pub(crate) fn firth() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firth"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FIRTH_")) {
        command.env_remove(name);
    }
    command
}

/// Runs a command to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    firth().args(args).stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) token: Option<String>,
}

impl Server {
    /// A server on a directory.
    pub(crate) fn on(dir: &Path) -> Self {
        Self::start(firth().args(["serve", "--engine", &engine(dir)]), None)
    }

    /// A server in memory.
    pub(crate) fn memory() -> Self {
        Self::start(firth().args(["serve", "--engine", "memory:"]), None)
    }

    pub(crate) fn start(command: &mut Command, token: Option<&str>) -> Self {
        Self::logging(command, token, Stdio::null())
    }

    /// A server in memory with these settings.
    pub(crate) fn with(settings: &[&str]) -> Self {
        let mut command = firth();
        command.args(["serve", "--engine", "memory:"]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        Self::start(&mut command, None)
    }

    /// As [`start`](Self::start), with its logs going there.
    pub(crate) fn logging(command: &mut Command, token: Option<&str>, logs: Stdio) -> Self {
        let command = command.args(["--listen", "127.0.0.1:0"]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(logs).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit('/').next().unwrap().parse().unwrap_or_else(|_| panic!("{line:?}"));
        Self { child, address, token: token.map(str::to_owned) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Resident memory of the server.
    pub(crate) fn memory_kib(&self) -> u64 {
        self.told_kib("VmRSS:")
    }

    /// The most that it ever was, without the pages of files that it holds now: its own code.
    pub(crate) fn peak_data_kib(&self) -> u64 {
        self.told_kib("VmHWM:").saturating_sub(self.told_kib("RssFile:"))
    }

    fn told_kib(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// The most resident memory that the server ever had.
    pub(crate) fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Waits for its end; answers whether it ended well.
    pub(crate) fn ended(mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(Instant::now() < deadline, "the server never ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn terminate(self) -> bool {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.ended()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.call("GET", path, None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.call("POST", path, Some(("application/json", &body.to_string())))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Reply {
        self.call("PUT", path, Some(("application/json", &body.to_string())))
    }

    pub(crate) fn call(&self, method: &str, path: &str, body: Option<(&str, &str)>) -> Reply {
        let token = self.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n"));
        let (media, body) = body.unwrap_or_default();
        let media = if media.is_empty() { String::new() } else { format!("Content-Type: {media}\r\n") };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{}{media}Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            token.unwrap_or_default(),
            body.len()
        );
        self.raw(&format!("{head}{body}"))
    }

    /// Sends these bytes and reads to the end.
    pub(crate) fn raw(&self, request: &str) -> Reply {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that refuses a request early may close before all of it is sent.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        Reply::parse(&String::from_utf8(answer).unwrap())
    }

    /// Sends a request and leaves its answer unread.
    pub(crate) fn send(&self, method: &str, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let host = self.address;
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n");
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
        stream
    }

    /// Waits until this many fetches run.
    pub(crate) fn fetches_running(&self, count: u64) {
        let gauge = "firth_http_requests_running{route=\"/v1/topics/{topic}/groups/{group}/fetch\"}";
        let wanted = format!("{gauge} {count}\n");
        let deadline = Instant::now() + PATIENCE;
        while !self.get("/metrics").expect(200).body.contains(&wanted) {
            assert!(Instant::now() < deadline, "never {count} fetches");
        }
    }

    /// Fetches until there is something.
    pub(crate) fn fetch(&self, topic: &str, group: &str, how: &Value) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        let path = format!("/v1/topics/{topic}/groups/{group}/fetch");
        loop {
            let mut reply = self.post(&path, how).expect(200).json();
            let deliveries = reply["deliveries"].take();
            match deliveries.as_array() {
                Some(some) if !some.is_empty() => return some.clone(),
                _ => assert!(Instant::now() < deadline, "nothing came"),
            }
        }
    }

    pub(crate) fn settle(&self, topic: &str, group: &str, verdicts: &Value) -> Value {
        self.post(&format!("/v1/topics/{topic}/groups/{group}/settle"), verdicts).expect(200).json()
    }

    pub(crate) fn lag(&self, topic: &str, group: &str) -> u64 {
        let group = self.get(&format!("/v1/topics/{topic}/groups/{group}")).expect(200).json();
        group["lag"].as_u64().unwrap()
    }

    /// A topic with these payloads.
    pub(crate) fn topic(&self, topic: &str, payloads: &[&str]) {
        self.put(&format!("/v1/topics/{topic}"), &json!({ "partitions": 2 })).expect(201);
        for payload in payloads {
            self.post(&format!("/v1/topics/{topic}/records"), &json!({ "payload": payload })).expect(200);
        }
    }
}

/// Runs a law on a server over a Redis of its own.
pub(crate) fn on_redis(law: fn(&Server)) {
    side_by_side(|[server]| law(server));
}

/// Runs a law on servers that share a Redis of their own.
pub(crate) fn side_by_side<const N: usize>(law: impl Fn(&[Server; N])) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = runtime.block_on(RedisServer::start(Flavor::Redis));
    let engine = format!("redis://127.0.0.1:{}?prefix=ours&durability=fast", redis.port());
    law(&std::array::from_fn(|_| Server::start(firth().args(["serve", "--engine", &engine]), None)));
}

/// Makes a test of each law for each engine: memory, files and Redis.
#[macro_export]
macro_rules! on_engines {
    ($($law:ident),+ $(,)?) => {
        mod on_memory {
            $(#[test]
            fn $law() {
                super::$law(&$crate::world::Server::memory());
            })+
        }
        mod on_files {
            $(#[test]
            fn $law() {
                let dir = tempfile::tempdir().unwrap();
                super::$law(&$crate::world::Server::on(dir.path()));
            })+
        }
        mod on_redis {
            $(#[test]
            fn $law() {
                $crate::world::on_redis(super::$law);
            })+
        }
    };
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.to_ascii_lowercase();
        let body = if head.contains("transfer-encoding: chunked") { unchunk(body) } else { body.to_owned() };
        Self { status, head, body }
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    #[track_caller]
    pub(crate) fn success(self) -> Self {
        assert!((200..300).contains(&self.status), "{self:?}");
        self
    }

    /// Asserts that it is a problem of this status and kind, and answers its detail.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, kind: &str) -> String {
        assert!(self.head.contains("application/problem+json"), "{self:?}");
        let reply = self.expect(status);
        let problem = reply.json();
        assert_eq!((&problem["status"], &problem["kind"]), (&json!(status), &json!(kind)), "{problem}");
        assert!(problem["type"].as_str().unwrap().starts_with("urn:firth:problem:"));
        problem["detail"].as_str().unwrap().to_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        whole.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
        if size == 0 {
            break;
        }
    }
    whole
}

pub(crate) fn engine(dir: &Path) -> String {
    format!("file:{}", dir.join("data").display())
}
