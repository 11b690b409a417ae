//! Backups of a server that goes on: restored, they have everything answered before they began.

use crate::guarding::token;
use crate::talk::try_call;
use crate::world::{PATIENCE, Server, Value, engine, firth, json, run, stdout};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How many seeds run: 2, or 20 in nextest's profile `long`.
fn seeds() -> u64 {
    if std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "long") { 20 } else { 2 }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Backs a server up into a file.
fn backup(server: &Server, to: &Path) -> Value {
    let output = run(&["backup", path(to), "--server", &server.url(), "--json"]);
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// A server on what was restored from a file.
fn restored(from: &Path, dir: &Path) -> Server {
    stdout(&run(&["restore", path(from), path(&dir.join("data"))]));
    Server::on(dir)
}

/// What was answered to the producers and consumers of keys.
#[derive(Clone, Default)]
struct Answered {
    /// Per producer, how many of its numbered messages.
    sent: Vec<u64>,
    settled: BTreeMap<String, Value>,
}

struct Load {
    server: Server,
    over: AtomicBool,
    answered: Mutex<Answered>,
    deadline: Instant,
}

/// Ends the load also if a thread fails, so that the others do not go on for ever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Load {
    /// Sends numbered messages, each producer with a key of its own.
    fn produce(&self, producer: usize, mut random: fastrand::Rng) {
        let _ending = Ending(&self.over);
        let mut next = 0;
        while !self.over.load(Ordering::Acquire) {
            let key = format!("Idempotency-Key: {producer} from {next}");
            let headers = ["Content-Type: application/json", &key];
            let count = random.u64(1..6);
            let messages: Vec<_> = (next..next + count)
                .map(|n| json!({ "payload": format!("{producer} {n}"), "key": format!("k{producer}") }))
                .collect();
            let body = json!(messages).to_string();
            let path = "/v1/topics/orders/records";
            // A starved machine may cut a connection: the same request is sent again.
            let reply = loop {
                let reply = try_call(self.server.address, "POST", path, &headers, body.as_bytes());
                match reply {
                    Some(reply) => break reply,
                    None => assert!(Instant::now() < self.deadline, "no answer"),
                }
            };
            assert_eq!(reply.status, 200, "{reply:?}");
            next += count;
            self.answered.lock().unwrap().sent[producer] = next;
        }
    }

    /// Acks what comes and rejects some of it.
    fn consume(&self, mut random: fastrand::Rng) {
        let _ending = Ending(&self.over);
        let headers = ["Content-Type: application/json"];
        let group = "/v1/topics/orders/groups/g";
        let ask = |path: &str, body: Value| {
            let path = format!("{group}/{path}");
            try_call(self.server.address, "POST", &path, &headers, body.to_string().as_bytes())
        };
        while !self.over.load(Ordering::Acquire) {
            let Some(fetched) = ask("fetch", json!({ "max": 20, "wait_ms": 200 })) else { continue };
            for delivery in fetched.expect(200).json()["deliveries"].as_array().unwrap() {
                let name = delivery["record"]["payload"].as_str().unwrap().to_owned();
                let handle = &delivery["delivery"];
                let (verdict, verdicts) = match random.u8(..10) {
                    0 => ("reject", json!({ "reject": [{ "delivery": handle }] })),
                    _ => ("ack", json!({ "ack": [handle] })),
                };
                // Without an answer nothing is known of it.
                let Some(report) = ask("settle", verdicts) else { continue };
                if report.expect(200).json()["settled"] == 1 {
                    self.answered.lock().unwrap().settled.insert(name, json!(verdict));
                }
            }
        }
    }
}

/// Takes a backup of a server under load and kills it; answers what was answered before.
fn under_load(dir: &Path, to: &Path, seed: u64) -> Answered {
    const PRODUCERS: usize = 3;
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::on(dir);
    server.topic("orders", &[]);
    server.put("/v1/topics/orders/groups/g", &json!({})).success();
    let answered = Mutex::new(Answered { sent: vec![0; PRODUCERS], ..Answered::default() });
    let deadline = Instant::now() + PATIENCE;
    let load = Load { server, over: AtomicBool::new(false), answered, deadline };
    let before = std::thread::scope(|scope| {
        let load = &load;
        let _ending = Ending(&load.over);
        for producer in 0..PRODUCERS {
            let random = random.fork();
            scope.spawn(move || load.produce(producer, random));
        }
        let forked = random.fork();
        scope.spawn(move || load.consume(forked));
        let wanted = random.u64(10..60);
        let before = loop {
            assert!(!load.over.load(Ordering::Acquire), "a thread failed");
            let answered = load.answered.lock().unwrap().clone();
            if answered.sent.iter().all(|sent| *sent > wanted) && !answered.settled.is_empty() {
                break answered;
            }
            assert!(Instant::now() < load.deadline, "nothing moves");
            std::thread::sleep(Duration::from_millis(1));
        };
        let written = backup(&load.server, to);
        assert!(written["records"].as_u64().unwrap() >= before.sent.iter().sum(), "{written}");
        before
    });
    load.server.kill();
    before
}

/// All that the group still gets, per key in the order in which it comes.
fn drained(server: &Server) -> BTreeMap<String, Vec<u64>> {
    let mut seen: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let deadline = Instant::now() + PATIENCE;
    while server.lag("orders", "g") > 0 {
        assert!(Instant::now() < deadline, "it never ends: {seen:?}");
        let how = json!({ "max": 50, "wait_ms": 500 });
        let fetched = server.post("/v1/topics/orders/groups/g/fetch", &how).expect(200).json();
        let deliveries = fetched["deliveries"].as_array().unwrap();
        for delivery in deliveries {
            let (producer, n) = delivery["record"]["payload"].as_str().unwrap().split_once(' ').unwrap();
            seen.entry(producer.to_owned()).or_default().push(n.parse().unwrap());
        }
        let acks: Vec<_> = deliveries.iter().map(|delivery| &delivery["delivery"]).collect();
        server.settle("orders", "g", &json!({ "ack": acks }));
    }
    seen
}

#[test]
fn a_backup_under_load_restored_after_a_kill_has_everything_answered_before_it() {
    for seed in 0..seeds() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("firth.backup");
        let before = under_load(&dir.path().join("old"), &file, seed);
        let server = restored(&file, &dir.path().join("new"));
        let seen = drained(&server);
        let letters = server.get("/v1/topics/orders/dead/count?group=g").expect(200).json();
        let rejected = before.settled.values().filter(|verdict| *verdict == "reject").count() as u64;
        assert!(letters["count"].as_u64().unwrap() >= rejected, "seed {seed}: {letters}");
        for (producer, sent) in before.sent.iter().enumerate() {
            let numbers = seen.get(&producer.to_string()).cloned().unwrap_or_default();
            assert!(numbers.is_sorted(), "seed {seed}: out of order: {numbers:?}");
            let again: Vec<_> =
                numbers.iter().filter(|n| before.settled.contains_key(&format!("{producer} {n}"))).collect();
            assert!(again.is_empty(), "seed {seed}: settled ones come again: {again:?}");
            let first = numbers.first().copied().unwrap_or(*sent);
            // What does not come was settled before the moment that the backup shows.
            let holes = (first..*sent).filter(|n| !numbers.contains(n)).count();
            assert!(first <= *sent && holes <= before.settled.len() + 200, "seed {seed}: {holes} holes");
        }
        let records = server.get("/v1/topics/orders").expect(200).json()["records"].as_u64().unwrap();
        assert!(records >= before.sent.iter().sum(), "seed {seed}: {records} of {:?}", before.sent);
        assert!(server.terminate());
        stdout(&run(&["check", path(&dir.path().join("new/data"))]));
    }
}

#[test]
fn a_directory_keeps_the_newest_backups_and_a_pipe_gets_the_same_stream() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("orders", &["one", "two", "three"]);
    let to = dir.path().join("backups");
    std::fs::create_dir(&to).unwrap();
    for old in ["firth-2020-01-01T00-00-00Z.backup", "firth-2020-01-02T00-00-00Z.backup", "mine"] {
        std::fs::write(to.join(old), "x").unwrap();
    }
    let output = run(&["backup", path(&to), "--keep", "2", "--server", &server.url(), "--json"]);
    let written: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&written["records"], &written["removed"].as_array().unwrap().len()), (&json!(3), &1));
    let left = std::fs::read_dir(&to).unwrap().count();
    assert_eq!(left, 3, "the newest two and what is no backup");
    let file = written["file"].as_str().unwrap();
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);

    let piped = firth().args(["backup", "-", "--server", &server.url()]).output().unwrap();
    assert!(piped.status.success());
    let mut restore = firth();
    restore.args(["restore", "-", path(&dir.path().join("piped/data"))]).stdin(Stdio::piped());
    let mut restore = restore.stdout(Stdio::piped()).spawn().unwrap();
    restore.stdin.take().unwrap().write_all(&piped.stdout).unwrap();
    assert!(restore.wait_with_output().unwrap().status.success());
    let other = Server::on(&dir.path().join("piped"));
    assert_eq!(other.get("/v1/topics/orders").expect(200).json()["records"], 3);
    stdout(&run(&["check", file]));

    let refused = run(&["restore", file, path(&dir.path().join("piped/data"))]);
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("not empty"), "{told}");
    let refused = run(&["backup", path(&dir.path().join("no/where/")), "--server", &server.url()]);
    assert!(!refused.status.success());
    assert!(server.terminate() && other.terminate());
}

#[test]
fn a_damaged_file_is_refused_by_check_and_restore() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("orders", &["one", "two", "three"]);
    let file = dir.path().join("firth.backup");
    backup(&server, &file);
    assert!(!dir.path().join("firth.backup.partial").exists());
    let whole = std::fs::read(&file).unwrap();
    let to = dir.path().join("new/data");
    for damaged in
        [&whole[..whole.len() - 1], &whole[..50], &[], &[&whole[..99], b"!", &whole[100..]].concat()]
    {
        std::fs::write(&file, damaged).unwrap();
        for args in [&["check", path(&file)][..], &["restore", path(&file), path(&to)]] {
            let output = run(args);
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && told.contains("byte"), "{told}");
        }
        assert!(!to.join("store").exists());
    }
    std::fs::write(&file, "no backup").unwrap();
    assert_eq!(run(&["check", path(&file)]).status.code(), Some(2));
    assert!(server.terminate());
}

/// Waits for a child, at most for the patience of tests.
fn ended(mut child: Child) -> Output {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it never ended");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_restore_that_is_killed_leaves_nothing_or_everything() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.put("/v1/topics/orders", &json!({ "partitions": 2 })).expect(201);
    for _ in 0..20 {
        let noise: String = std::iter::repeat_with(fastrand::alphanumeric).take(200_000).collect();
        server.post("/v1/topics/orders/records", &json!({ "payload": noise })).expect(200);
    }
    let file = dir.path().join("firth.backup");
    backup(&server, &file);
    assert!(server.terminate());
    let restore = |to: &Path| {
        let mut command = firth();
        command.args(["restore", path(&file), path(to)]).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let began = Instant::now();
    assert!(ended(restore(&dir.path().join("whole/data"))).status.success());
    let took = began.elapsed();
    for round in 0..8 {
        let home = dir.path().join(format!("cut-{round}"));
        let data = home.join("data");
        let mut child = restore(&data);
        std::thread::sleep(took.mul_f64(fastrand::f64()));
        child.kill().unwrap();
        child.wait().unwrap();
        if data.join("store").exists() {
            stdout(&run(&["check", path(&data)]));
            continue;
        }
        if data.join("store.restoring").exists() {
            let refused = run(&["topic", "list", "--engine", &engine(&home)]);
            assert!(!refused.status.success(), "a store that was cut short is not an empty one");
        }
        stdout(&run(&["restore", path(&file), path(&data)]));
        let server = Server::on(&home);
        assert_eq!(server.get("/v1/topics/orders").expect(200).json()["records"], 20);
        assert!(server.terminate());
    }
}

/// Begins a backup over a socket and reads its first bytes only.
fn begun(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /v1/backup HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).unwrap();
    let mut first = [0; 400];
    stream.read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&first));
    stream
}

/// More than what sockets and servers buffer.
fn fill(server: &Server, mib: usize) {
    server.put("/v1/topics/large", &json!({ "partitions": 1 })).expect(201);
    let noise: String = std::iter::repeat_with(fastrand::alphanumeric).take(1_000_000).collect();
    for n in 0..mib {
        server
            .post("/v1/topics/large/records", &json!({ "payload": format!("{n}{}", &noise[n..]) }))
            .expect(200);
    }
}

#[test]
fn a_client_that_goes_away_ends_its_backup_and_two_at_a_time_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    fill(&server, 24);
    let reading = begun(&server);
    let second = server.get("/v1/backup").problem(429, "overloaded");
    assert!(second.contains("already"), "{second}");
    drop(reading);
    let file = dir.path().join("firth.backup");
    let deadline = Instant::now() + PATIENCE;
    while !run(&["backup", path(&file), "--server", &server.url()]).status.success() {
        assert!(Instant::now() < deadline, "the first backup never ends");
    }
    let reading = begun(&server);
    assert!(server.terminate(), "a server that ends waits for no backup");
    drop(reading);
}

#[test]
fn only_admins_take_backups_and_the_audit_log_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, audit) = (dir.path().join("tokens"), dir.path().join("audit.jsonl"));
    let (root, all) = token(&["--name", "root"]);
    let (eyes, one) = token(&["--name", "eyes", "--scopes", "observe"]);
    std::fs::write(&tokens, [all, one].concat()).unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", &engine(dir.path()), "--token-file", path(&tokens)]);
    let mut server = Server::start(command.args(["--audit-file", path(&audit)]), Some(&eyes));
    server.get("/v1/backup").problem(403, "unauthorized");
    server.get("/v1/check").problem(403, "unauthorized");
    server.token = Some(root);
    let file = dir.path().join("firth.backup");
    let mut backup = firth();
    backup.args(["backup", path(&file), "--server", &server.url()]);
    let output = backup.env("FIRTH_TOKEN", server.token.as_ref().unwrap()).output().unwrap();
    stdout(&output);
    let told = std::fs::read_to_string(&audit).unwrap();
    let lines: Vec<&str> = told.lines().filter(|line| line.contains("/v1/backup")).collect();
    assert!(lines.len() == 2 && lines[1].contains("\"who\":\"root\"") && lines[1].contains("200"), "{told}");
    assert!(server.terminate());
}

#[test]
fn engines_without_files_say_what_to_do_instead() {
    let refused = |server: &Server| {
        server.topic("orders", &["one", "two"]);
        let to = tempfile::tempdir().unwrap();
        let output = run(&["backup", path(&to.path().join("file")), "--server", &server.url()]);
        assert_eq!(output.status.code(), Some(10), "{output:?}");
        assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0);
        let checked = stdout(&run(&["check", "--server", &server.url()]));
        assert!(checked.contains("all 2 records of 2 partitions"), "{checked}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&Server::memory()).contains("use file:DIR"));
    crate::world::on_redis(|server| {
        let output = {
            server.topic("more", &[]);
            run(&["backup", "/nonexistent/file", "--server", &server.url()])
        };
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("append-only files of every master"), "{told}");
        let checked = stdout(&run(&["check", "--server", &server.url()]));
        assert!(checked.contains("all 0 records"), "{checked}");
    });
}

/// The largest resident memory that a process ever had.
fn peak_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Runs a command and answers the most memory that it had.
fn peak_of(args: &[&str]) -> u64 {
    let mut child = firth().args(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut peak = 0;
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(peak_kib(child.id()).unwrap_or(0));
        assert!(Instant::now() < deadline, "it never ended");
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    peak
}

/// A store of 128 MB passes through much less memory.
#[test]
fn memory_stays_bounded_while_a_store_larger_than_it_is_backed_up() {
    const BOUND_KIB: u64 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    fill(&server, 128);
    // A new process knows what is on the disk only.
    assert!(server.terminate());
    let server = Server::on(dir.path());
    let before = server.peak_kib();
    let file = dir.path().join("firth.backup");
    let client = peak_of(&["backup", path(&file), "--server", &server.url()]);
    let grown = server.peak_kib() - before;
    assert!(file.metadata().unwrap().len() > 120_000_000);
    assert!(client < BOUND_KIB, "the client had {client} KiB");
    assert!(grown < BOUND_KIB, "the server grew by {grown} KiB");
    let checked = peak_of(&["check", path(&file)]);
    assert!(checked < BOUND_KIB, "the check had {checked} KiB");
    assert!(server.terminate());
}
