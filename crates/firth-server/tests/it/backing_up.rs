//! Backups of a server that goes on: restored, they have everything answered before they began.

use crate::guarding::token;
use crate::world::{PATIENCE, Server, Value, engine, firth, json, run, stdout};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Backs a server up into a file.
fn backup(server: &Server, to: &Path) -> Value {
    let output = run(&["backup", path(to), "--server", &server.url(), "--json"]);
    serde_json::from_str(&stdout(&output)).unwrap()
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
