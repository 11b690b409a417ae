//! What the documents show is run as it is written: in a network namespace of its own, where port
//! 7171 is free, as far as the machine allows one; otherwise with the address of the server put in.

use crate::world::{Server, firth, json, run};
use std::path::Path;
use std::process::{Command, Output};

const GUIDE: &str = include_str!("../../../../docs/server.md");
const CONCEPTS: &str = include_str!("../../../../docs/concepts.md");
const TLS: &str = include_str!("../../../../docs/tls.md");
const OPERATIONS: &str = include_str!("../../../../docs/operations.md");
const README: &str = include_str!("../../../../README.md");

fn snippets(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The one snippet that has this in it.
fn snippet(text: &str, language: &str, part: &str) -> String {
    let mut found = snippets(text, language).into_iter().filter(|snippet| snippet.contains(part));
    found.next().unwrap_or_else(|| panic!("no {language} with {part}"))
}

fn runs(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{errors}");
    output
}

/// A shell with `firth` in its path and nothing else of ours.
fn shell(script: &str, dir: &Path) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_firth")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(dir).env("PATH", path);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FIRTH_")) {
        command.env_remove(name);
    }
    command
}

/// Whether this machine lets us have a network of our own.
fn has_namespaces() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "ip", "link", "set", "lo", "up"]);
    command.output().is_ok_and(|output| output.status.success())
}

/// Runs a script beside `firth serve`, which keeps its data in `dir`.
fn beside_a_server(script: &str, dir: &Path) -> String {
    let checked = script.replace("curl ", "curl -sS --fail-with-body ");
    let output = if has_namespaces() {
        let wait =
            "for _ in $(seq 600); do curl -s localhost:7171/health/ready > ready && break; sleep 0.1; done";
        let all = format!(
            "ip link set lo up\nfirth serve > log 2>&1 &\ntrap 'kill $!; wait' EXIT\n{wait}\n{checked}"
        );
        let inside = shell(&all, dir);
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--net"])
            .arg(inside.get_program())
            .args(inside.get_args());
        command.current_dir(dir);
        for (name, value) in inside.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        runs(&mut command)
    } else {
        let server = Server::on(dir);
        let script = checked.replace("localhost:7171", &server.address.to_string());
        runs(shell(&script, dir).env("FIRTH_SERVER", server.url()))
    };
    String::from_utf8(output.stdout).unwrap()
}

/// Python as a script's line.
fn python(code: &str) -> String {
    format!("python3 - <<'PYTHON'\n{code}\nPYTHON\n")
}

#[test]
fn the_quickstart_of_the_readme_works_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let calls = snippet(README, "sh", "/fetch");
    let code = snippet(README, "python", "/fetch");
    let told = beside_a_server(&format!("{calls}\n{}", python(&code)), dir.path());
    for part in [
        "sent 1 to orders",
        "one coffee\n",
        "{\"item\": \"tea\"}",
        "\"deliveries\":[{",
        "lag 0",
        "OWNERS",
        "cocoa",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn the_calls_of_the_guide_work_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let calls = snippet(GUIDE, "sh", "/settle");
    // The delivery of the fetch before goes where the guide writes DELIVERY.
    let (before, after) = calls.split_at(calls[..calls.find("/settle").unwrap()].rfind('\n').unwrap() + 1);
    let fetch = before.lines().last().unwrap();
    let others = before.lines().count() - 1;
    let before: Vec<_> = before.lines().take(others).collect();
    let after = after.replacen("DELIVERY", "'\"$id\"'", 1);
    let pick = "id=$(echo \"$answer\" | python3 -c 'import json,sys; print(json.load(sys.stdin)[\"deliveries\"][0][\"delivery\"])')";
    let script = format!("{}\nanswer=$({fetch})\n{pick}\n{after}", before.join("\n"));
    let told = beside_a_server(&script, dir.path());
    assert!(told.contains("\"settled\":1") && told.contains("\"lag\":0"), "{told}");
}

#[test]
fn the_python_client_of_the_guide_works_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let code = snippet(GUIDE, "python", "/fetch");
    let script = format!("{}firth group show orders bar", python(&code));
    let told = beside_a_server(&script, dir.path());
    assert!(told.contains("coffee") && told.contains("lag 0"), "{told}");
}

#[test]
fn the_calls_for_claims_work_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let calls = snippet(GUIDE, "sh", "/v1/claims/calls/offers");
    // The session of the joining before goes where the guide writes SESSION.
    let pick = "session=$(echo \"$answer\" | python3 -c 'import json,sys; print(json.load(sys.stdin)[\"session\"])')";
    let line = |line: &str| match line.contains("curl -X PUT") {
        true => format!("answer=$({line})\n{pick}\n"),
        false => format!("{}\n", line.replace("SESSION", "'\"$session\"'")),
    };
    let told = beside_a_server(&calls.lines().map(line).collect::<String>(), dir.path());
    for part in ["\"offered\":2,\"new\":2", "\"event\":\"granted\"", "\"owner\":\"pod-1\"", "\"workers\":1"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn the_python_worker_of_the_guide_works_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("{}firth claims status calls --json", python(&snippet(GUIDE, "python", "/poll")));
    let told = beside_a_server(&script, dir.path());
    assert!(told.contains("working on call-1 for alice") && told.contains("\"offers\":0"), "{told}");
}

#[test]
fn the_calls_for_live_channels_work_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let calls = snippet(GUIDE, "sh", "/v1/channels/prices");
    let code = snippet(GUIDE, "python", "/v1/channels/prices");
    let told = beside_a_server(&format!("{calls}\n{}", python(&code)), dir.path());
    assert!(told.contains("heard 1.08"), "{told}");
}

#[test]
fn u18_the_commands_of_the_concepts_work_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let told = beside_a_server(&snippet(CONCEPTS, "sh", "kitchen"), dir.path());
    assert!(told.contains("one coffee\n") && told.contains("group kitchen of orders: lag 0"), "{told}");
}

#[test]
fn u18_the_certificates_of_the_tls_page_work_as_written() {
    let dir = tempfile::tempdir().unwrap();
    runs(&mut shell(&snippet(TLS, "sh", "openssl req"), dir.path()));
    let mut serve = crate::world::firth();
    serve.args(["serve", "--engine", "memory:", "--tls-cert", "server.crt", "--tls-key", "server.key"]);
    let server = Server::start(serve.current_dir(dir.path()), None);
    let calls = snippet(TLS, "sh", "curl --cacert");
    let (_, calls) = calls.split_once('\n').expect("the first line starts the server");
    let calls = calls.replace("localhost:7443", &format!("localhost:{}", server.address.port()));
    let told = runs(&mut shell(&calls.replace("curl ", "curl -sS --fail "), dir.path()));
    assert!(String::from_utf8_lossy(&told.stdout).contains("TOPIC"), "{told:?}");
}

/// A backup is taken while the server goes on, and brings it back.
#[test]
fn u18_the_backup_of_the_operations_page_works_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(firth().arg("serve").current_dir(dir.path()), None);
    server.topic("orders", &["one", "two", "three"]);
    let first = server.fetch("orders", "bar", &json!({ "max": 1, "wait_ms": 5000 }));
    server.settle("orders", "bar", &json!({ "reject": [{ "delivery": first[0]["delivery"] }] }));
    let script = |part: &str| {
        let snippet = snippet(OPERATIONS, "sh", part);
        runs(shell(&snippet, dir.path()).env("FIRTH_SERVER", server.url()))
    };
    let told = String::from_utf8(script("firth backup firth.backup").stdout).unwrap();
    assert!(told.contains("3 records") && told.contains("can be read"), "{told}");
    server.call("DELETE", "/v1/topics/orders", None).expect(204);
    server.kill();
    runs(&mut shell(&snippet(OPERATIONS, "sh", "mv firth-data"), dir.path()));
    let server = Server::start(firth().arg("serve").current_dir(dir.path()), None);
    assert_eq!(server.get("/v1/topics/orders").expect(200).json()["records"], 3);
    let group = server.get("/v1/topics/orders/groups/bar").expect(200).json();
    assert_eq!((&group["lag"], &group["dead"]), (&json!(2), &json!(1)));
    assert!(server.terminate());
}

#[test]
fn every_command_that_the_documents_show_exists() {
    let all = [README, GUIDE, CONCEPTS, TLS, OPERATIONS];
    let blocks = all.map(|text| snippets(text, "sh").concat()).concat();
    let lines = blocks.lines().map(str::trim);
    let spans = OPERATIONS.split('`').skip(1).step_by(2);
    let mut count = 0;
    for command in lines.chain(spans).filter_map(|line| line.strip_prefix("firth ")) {
        let words =
            command.split_whitespace().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()));
        let words: Vec<_> = words.take(2).collect();
        let known = |words: &[&str]| run(&[words, &["--help"]].concat()).status.success();
        assert!(known(&words) || known(&words[..1]), "{command}");
        count += 1;
    }
    assert!(count > 8, "{count}");
}
