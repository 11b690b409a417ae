//! The command line, against a server and on an engine of its own: the same commands, the same
//! answers.

use crate::world::{Server, engine, firth, json, run, stdout};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Output, Stdio};

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(parse).collect()
}

/// Runs commands on one target.
struct Target<'a>(&'a [&'a str]);

impl Target<'_> {
    fn ask(&self, args: &[&str]) -> Output {
        run(&[args, self.0].concat())
    }

    fn say(&self, args: &[&str]) -> String {
        stdout(&self.ask(args))
    }

    fn json(&self, args: &[&str]) -> Value {
        parse(&self.say(&[args, &["--json"]].concat()))
    }

    #[track_caller]
    fn fails(&self, code: i32, args: &[&str]) {
        let output = self.ask(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.contains("hint: "), "{errors}");
    }
}

/// The same commands, wherever they go.
fn tour(target: &Target<'_>) {
    let long =
        ["topic", "create", "orders", "--partitions", "2", "--retention", "7d", "--max-payload", "1KiB"];
    assert!(target.say(&long).contains("orders"));
    target.fails(4, &["topic", "create", "orders", "--partitions", "3"]);
    let send =
        ["produce", "orders", "one", "two", "--key", "k", "--durability", "fast", "--compress-above", "1KiB"];
    assert_eq!(target.say(&send), "sent 2 to orders\n");
    target.fails(2, &["produce", "orders", "x", "--durability", "quick"]);
    target.fails(10, &["produce", "orders", "x", "--durability", "replicated:2"]);
    target.fails(10, &["topic", "adopt", "other"]);
    let changed =
        target.json(&["topic", "change", "orders", "--retention-size", "1GiB", "--retention-records", "9"]);
    assert_eq!(
        (&changed["retention_bytes"], &changed["retention_records"], &changed["retention_ms"]),
        (&json!(1_073_741_824_u64), &json!(9), &json!(604_800_000_u64))
    );
    assert_eq!(target.json(&["topic", "trim", "orders", "--keep", "9"])["removed"], 0);
    let list = target.json(&["topic", "list"]);
    assert_eq!((&list["topics"][0]["records"], &list["topics"][0]["appended"]), (&json!(2), &json!(2)));
    assert_eq!(target.say(&["consume", "orders", "--group", "g", "--max", "2"]), "one\ntwo\n");
    assert_eq!(target.json(&["group", "show", "orders", "g"])["lag"], 0);
    assert!(target.say(&["group", "list", "orders"]).contains("LAG"));
    assert!(target.say(&["group", "members", "orders", "g"]).contains("BEATS"));
    target.say(&["group", "release", "orders", "g", "0"]);
    target.fails(3, &["group", "release", "orders", "g", "77"]);
    groups(target);
    failures(target);
    assert_eq!(target.say(&["topic", "delete", "orders"]), "deleted orders\n");
    target.fails(3, &["topic", "show", "orders"]);
    target.fails(3, &["produce", "orders", "x"]);
    target.fails(2, &["topic", "create", "b d"]);
}

fn groups(target: &Target<'_>) {
    let reset = target.json(&["group", "reset", "orders", "g", "--to", "oldest"]);
    assert_eq!(reset["lag"], 2);
    target.fails(3, &["group", "reset", "orders", "none", "--to", "oldest"]);
    target.fails(2, &["group", "reset", "orders", "g", "--to", "yesterday"]);
    assert_eq!(target.json(&["group", "reset", "orders", "g", "--to", "1h"])["lag"], 2);
    assert_eq!(target.json(&["group", "reset", "orders", "g", "--to", "newest"])["lag"], 0);
    assert_eq!(target.json(&["group", "create", "orders", "late", "--from", "newest"])["lag"], 0);
    assert_eq!(target.json(&["group", "create", "orders", "early"])["lag"], 2);
    assert_eq!(target.say(&["group", "delete", "orders", "early"]), "deleted early of orders\n");
    target.fails(3, &["group", "delete", "orders", "early"]);
}

/// A record that fails waits for its next attempt; one that is rejected is a dead letter.
fn failures(target: &Target<'_>) {
    target.say(&[
        "produce",
        "orders",
        "--input",
        "json",
        "{\"n\":1}",
        "--key",
        "ada",
        "--header",
        "color=red",
    ]);
    let consume = ["consume", "orders", "--group", "late", "--max", "1", "--wait", "20s"];
    let nacked = target.json(&[&consume[..], &["--exec", "exit 7"]].concat());
    assert_eq!((&nacked["verdict"], &nacked["attempt"]), (&json!("nack"), &json!(1)));
    let pending = target.json(&["pending", "orders", "late", "--sort", "attempt", "--descending"]);
    assert_eq!((&pending["total"], &pending["records"][0]["attempt"]), (&json!(1), &json!(2)));
    assert_eq!(pending["records"][0]["reason"], "the command ended with 7");
    let old = ["pending", "orders", "late", "--sort", "age", "--min-age", "1h"];
    assert_eq!(target.json(&old)["total"], 0, "nothing is an hour old");
    let shell = "test \"$(cat)\" = '{\"n\":1}' && test \"$FIRTH_KEY$FIRTH_HEADER_COLOR\" = adared && exit 65";
    let rejected = target.json(&[&consume[..], &["--exec", shell]].concat());
    assert_eq!((&rejected["verdict"], &rejected["attempt"]), (&json!("reject"), &json!(2)));

    assert_eq!(target.say(&["dead", "count", "orders", "--group", "late"]), "1\n");
    assert_eq!(target.json(&["dead", "count", "orders", "--reason", "nothing"])["count"], 0);
    let letter = target.json(&["dead", "list", "orders", "--max", "1"]);
    let id = letter["id"].as_str().unwrap();
    assert!(target.say(&["dead", "list", "orders"]).contains(id));
    let shown = target.say(&["dead", "show", "orders", id]);
    assert!(shown.contains("color: red") && shown.contains("{\"n\":1}"), "{shown}");
    assert_eq!(target.say(&["dead", "replay", "orders", id]), "replayed 1 dead letter\n");
    target.fails(3, &["dead", "show", "orders", id]);
    target.json(&[&consume[..], &["--exec", "exit 65"]].concat());
    target.fails(2, &["dead", "edit", "orders", id, "--payload", "no JSON"]);
    assert_eq!(
        target.say(&["dead", "edit", "orders", id, "--payload", "{\"n\":2}"]),
        "edited and replayed 1 dead letter\n"
    );
    let edited = target.json(&consume);
    assert_eq!((&edited["json"], &edited["key"]), (&json!({ "n": 2 }), &json!("ada")));
    assert_eq!(target.say(&["dead", "delete", "orders", "--all"]), "deleted 0 dead letters\n");
}

/// Offering, working and looking.
fn work(target: &Target<'_>) {
    target.fails(3, &["claims", "status", "calls"]);
    assert_eq!(
        target.say(&["claims", "offer", "calls", "one", "two", "--payload", "alice"]),
        "offered 2 to calls, 2 of them new\n"
    );
    assert_eq!(target.json(&["claims", "offer", "calls", "one"])["new"], 0);
    let shell = "test \"$(cat) $FIRTH_SERVICE $FIRTH_WORKER\" = 'alice calls w1'";
    let told =
        target.say(&["claims", "work", "calls", "--worker", "w1", "--exec", shell, "--max", "1", "--json"]);
    assert_eq!((&lines(&told)[0]["outcome"], lines(&told).len()), (&json!("done"), 1));
    let left = target.json(&["claims", "list", "calls"]);
    let name = left["offers"][0]["name"].as_str().unwrap().to_owned();
    assert_eq!((left["offers"].as_array().unwrap().len(), &left["offers"][0]["owner"]), (1, &json!(null)));
    // A failure gives the unit back, to rest.
    let failing =
        ["claims", "work", "calls", "--exec", "exit 3", "--rest", "1h", "--idle", "200ms", "--json"];
    let told = lines(&target.say(&failing));
    assert_eq!(
        (&told[0]["outcome"], &told[0]["why"]),
        (&json!("failed"), &json!("the command ended with 3"))
    );
    assert!(target.say(&["claims", "list", "calls"]).contains(&name));
    target.fails(3, &["claims", "release", "calls", &name]);
    assert!(target.say(&["claims", "workers", "calls"]).contains("WORKER"));
    assert_eq!(target.say(&["claims", "status"]), "calls\n");
    let status = target.json(&["claims", "status", "calls"]);
    assert_eq!((&status["offers"], &status["owned"]), (&json!(1), &json!(0)));
    assert_eq!(target.say(&["claims", "withdraw", "calls", &name]), format!("withdrew {name} from calls\n"));
    target.fails(3, &["claims", "withdraw", "calls", &name]);
    target.fails(4, &["claims", "create", "calls", "--shards", "2"]);
    assert!(target.say(&["claims", "create", "wide", "--shards", "3"]).contains("wide"));
    target.fails(2, &["claims", "offer", "calls", "b d"]);
}

#[test]
fn commands_work_against_a_server() {
    let server = Server::memory();
    tour(&Target(&["--server", &server.url()]));
    work(&Target(&["--server", &server.url()]));
}

#[test]
fn commands_work_on_an_engine_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    tour(&Target(&["--engine", &engine(dir.path())]));
    work(&Target(&["--engine", &engine(dir.path())]));
}

/// Runs `firth produce` with this input.
fn produce(url: &str, input: &[u8], args: &[&str]) -> Output {
    let mut command = firth();
    command.args(["produce", "lines", "--server", url]).args(args);
    let mut produce = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    produce.stdin.take().unwrap().write_all(input).unwrap();
    produce.wait_with_output().unwrap()
}

#[test]
fn every_form_of_input_becomes_messages() {
    let server = Server::memory();
    server.topic("lines", &[]);
    let url = server.url();
    let next = |max: &str| {
        let args =
            ["consume", "lines", "--group", "g", "--json", "--wait", "20s", "--max", max, "--server", &url];
        lines(&stdout(&run(&args)))
    };
    let receipts = produce(&url, b"{\"n\":1}\n\n{\"n\":\n2}", &["--key", "k", "--input", "json", "--json"]);
    assert_eq!(lines(&stdout(&receipts)).len(), 2);
    let seen = next("2");
    assert_eq!((&seen[0]["json"]["n"], &seen[1]["json"]["n"]), (&json!(1), &json!(2)));

    assert!(!produce(&url, b"no key\n", &["--key-by", ":"]).status.success());
    stdout(&produce(&url, b"ada:first\n", &["--key-by", ":"]));
    let seen = next("1");
    assert_eq!((&seen[0]["key"], &seen[0]["payload"]), (&json!("ada"), &json!("first")));

    let messages = b"{\"payload\":\"x\",\"headers\":{\"a\":\"b\"}} {\"payload_base64\":\"/wA=\"}";
    stdout(&produce(&url, messages, &["--input", "messages", "--key", "same"]));
    let seen = next("2");
    assert_eq!((&seen[0]["headers"]["a"], &seen[1]["payload_base64"]), (&json!("b"), &json!("/wA=")));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("many");
    std::fs::write(&file, "line\n".repeat(2000)).unwrap();
    let told = stdout(&run(&["produce", "lines", "--file", file.to_str().unwrap(), "--server", &url]));
    assert!(told.starts_with("sent 2000 to lines, "), "{told}");
    assert!(!produce(&url, b"{\"n\":", &["--input", "json"]).status.success());
}

#[test]
fn an_input_that_never_ends_is_sent_as_it_comes() {
    let server = Server::memory();
    server.topic("lines", &[]);
    let url = server.url();
    let command = firth().args(["produce", "lines", "--server", &url]).stdin(Stdio::piped()).spawn();
    let mut producing = command.unwrap();
    let mut input = producing.stdin.take().unwrap();
    input.write_all(b"now\n").unwrap();
    let seen = run(&["consume", "lines", "--group", "g", "--max", "1", "--wait", "50s", "--server", &url]);
    assert_eq!(stdout(&seen), "now\n");
    drop(input);
    assert!(producing.wait().unwrap().success());
}

#[test]
fn several_commands_run_at_a_time_and_each_verdict_counts() {
    let server = Server::memory();
    server.topic("jobs", &["a", "b", "c", "d", "e", "f"]);
    let dir = tempfile::tempdir().unwrap();
    let shell = format!(
        "read word; test $FIRTH_ATTEMPT -gt 1 || test $word != c || exit 1; echo $word >> {}",
        dir.path().join("done").display()
    );
    let exec =
        ["consume", "jobs", "--group", "g", "--exec", &shell, "--jobs", "4", "--wait", "10s", "--max", "7"];
    stdout(&run(&[&exec[..], &["--server", &server.url()]].concat()));
    assert_eq!(server.lag("jobs", "g"), 0);
    let done = std::fs::read_to_string(dir.path().join("done")).unwrap();
    let mut done: Vec<_> = done.lines().collect();
    done.sort_unstable();
    assert_eq!(done, ["a", "b", "c", "d", "e", "f"]);
}

#[test]
fn a_server_with_a_certificate_is_reached_over_https_by_who_trusts_it() {
    let certs = firth_testkit::Certs::new();
    let mut serve = firth();
    serve.args(["serve", "--engine", "memory:", "--tls-cert"]).arg(certs.server_cert_path());
    serve.arg("--tls-key").arg(certs.server_key_path());
    let server = Server::start(&mut serve, None);
    let url = format!("https://localhost:{}", server.address.port());
    let trusting = firth()
        .args(["topic", "create", "t", "--server", &url])
        .env("FIRTH_CA_FILE", certs.ca_path())
        .output();
    assert!(stdout(&trusting.unwrap()).contains('t'));
    let doubting = run(&["topic", "list", "--server", &url]);
    assert!(!doubting.status.success(), "{doubting:?}");
    assert_eq!(run(&["topic", "list", "--server", "ftp://localhost"]).status.code(), Some(2));
}

#[test]
fn a_follower_waits_for_a_server_that_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("orders", &["before"]);
    let listen = server.address.to_string();
    let mut command = firth();
    command.args(["consume", "orders", "--group", "g", "--follow", "--max", "2", "--server", &server.url()]);
    let mut following = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut seen = BufReader::new(following.stdout.take().unwrap());
    let mut line = String::new();
    seen.read_line(&mut line).unwrap();
    server.kill();
    // The verdict on the first record may have been on its way: that is told too.
    let mut told = BufReader::new(following.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(told.any(|line| line.starts_with("waiting: ")), "it never said that it waits");
    let args = ["serve", "--engine", &engine(dir.path()), "--listen", &listen];
    let again = firth().args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut again = again.unwrap();
    let produced = std::iter::repeat_with(|| {
        run(&["produce", "orders", "after", "--server", &format!("http://{listen}")])
    });
    assert!(produced.take(200).any(|output| output.status.success()), "the server never came back");
    seen.read_line(&mut line).unwrap();
    again.kill().unwrap();
    again.wait().unwrap();
    following.wait().unwrap();
    assert!(line.starts_with("before\n") && line.len() > 7, "{line}");
}

#[test]
fn a_server_that_is_not_there_is_told_with_what_to_do() {
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = run(&["topic", "list", "--server", &format!("http://{free}")]);
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8(output.stderr).unwrap().contains("firth serve"));
}

#[test]
fn the_view_of_the_figures_can_be_printed_once() {
    let server = Server::memory();
    server.topic("orders", &["a", "b", "c"]);
    let url = server.url();
    let target = Target(&["--server", &url]);
    target.say(&["consume", "orders", "--group", "bar", "--max", "1"]);
    let tables = target.say(&["top", "--once", "--every", "100ms"]);
    assert!(tables.contains("IN/S") && tables.contains("OWNERS") && tables.contains("bar"), "{tables}");
    let figures = target.json(&["top", "--every", "100ms", "--topic", "orders"]);
    assert_eq!((&figures["topics"][0]["total"], &figures["groups"][0]["lag"]), (&json!(3), &json!(2)));
    assert!(figures["groups"][0]["owners"][0].as_str().is_some_and(|owner| owner.starts_with("http-")));
    assert_eq!(target.json(&["top", "--every", "100ms", "--topic", "none"])["topics"], json!([]));
}

#[test]
fn the_quick_bench_sends_and_settles_everything_and_leaves_nothing() {
    let server = Server::memory();
    let url = server.url();
    let load = ["bench", "--messages", "1050", "--connections", "3", "--server", &url];
    let told = stdout(&run(&load));
    assert!(told.contains("produce") && told.contains("consume") && told.contains("1 050"), "{told}");
    let figures = lines(&stdout(&run(&[&load[..], &["--json"]].concat())));
    assert_eq!((&figures[1]["phase"], &figures[1]["messages"]), (&json!("consume"), &json!(1050)));
    assert_eq!(server.get("/v1/topics").json()["topics"], json!([]));
}

#[test]
fn the_doctor_finds_health_and_says_what_to_do_without() {
    let server = Server::memory();
    let told = stdout(&run(&["doctor", "--server", &server.url()]));
    for check in ["configuration", "version", "clock", "engine", "permissions"] {
        assert!(told.contains(&format!("ok    {check}")), "{check}: {told}");
    }
    assert_eq!(server.get("/v1/topics").json()["topics"], json!([]));
    assert_eq!(stdout(&run(&["doctor", "--ready", "--server", &server.url()])), "");
    let dir = tempfile::tempdir().unwrap();
    let told = stdout(&run(&["doctor", "--engine", &engine(dir.path())]));
    assert!(told.contains("settled") && told.contains("MiB free"), "{told}");
    let file = dir.path().join("file");
    std::fs::write(&file, "no directory").unwrap();
    let sick = run(&["doctor", "--json", "--engine", &format!("file:{}", file.display())]);
    assert!(!sick.status.success());
    let findings = lines(&String::from_utf8(sick.stdout).unwrap());
    let finding = findings.iter().find(|finding| finding["check"] == "engine").unwrap();
    assert_eq!(finding["ok"], false);
    assert!(finding["advice"].is_string());
    let wrong = firth()
        .args(["doctor", "--json", "--engine", "memory:"])
        .env("FIRTH_LISTEN", "here")
        .output()
        .unwrap();
    let finding = lines(&String::from_utf8(wrong.stdout).unwrap()).remove(0);
    assert_eq!((&finding["check"], &finding["ok"]), (&json!("configuration"), &json!(false)));
    let doctor =
        |variable: &str| firth().args(["doctor", "--engine", "memory:"]).env(variable, "x").output().unwrap();
    assert!(stdout(&doctor("FIRTH_COLOUR")).contains("nothing reads FIRTH_COLOUR"));
    let mistaken = doctor("FIRTH_LISTENN");
    let told = String::from_utf8_lossy(&mistaken.stdout).into_owned();
    assert!(!mistaken.status.success() && told.contains("did you mean FIRTH_LISTEN?"), "{told}");
}

#[test]
fn completions_and_manual_pages_are_written() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&run(&["completions", shell])).contains("consume"));
    }
    assert!(stdout(&run(&["man"])).contains(".TH firth 1"));
    assert!(stdout(&run(&["man", "dead", "replay"])).contains("firth dead replay orders"));
    let dir = tempfile::tempdir().unwrap();
    run(&["man", "--dir", dir.path().to_str().unwrap()]);
    for page in ["firth.1", "firth-serve.1", "firth-topic-create.1"] {
        assert!(dir.path().join(page).exists(), "{page}");
    }
}

#[test]
fn the_demo_shows_retries_a_takeover_dead_letters_and_their_replay() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("tour");
    let told = stdout(&run(&["demo", "--dir", kept.to_str().unwrap()]));
    for step in [
        "2 producers sent 20 orders",
        "the card reader is broken; it is tried again",
        "dead letter billing/",
        "is killed with an order in its hands",
        "took over and lost nothing",
        "4 replayed, 0 dead letters left",
        "firth top --engine file:",
    ] {
        assert!(told.contains(step), "{step}: {told}");
    }
    let seconds = told.split("That was it, in ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(seconds.parse::<f32>().unwrap() < 60.0);
    let engine = format!("file:{}", kept.display());
    assert_eq!(
        parse(&stdout(&run(&["group", "show", "orders", "billing", "--json", "--engine", &engine])))["lag"],
        0
    );
    assert_eq!(run(&["demo", "--dir", kept.to_str().unwrap()]).status.code(), Some(4));
}
