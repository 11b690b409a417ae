//! Claims over HTTP: workers in any language, whose units go to others when they leave, fall
//! silent, or their server dies.

use crate::talk::{Entries, call};
use crate::world::{PATIENCE, Reply, Server, Value, firth, json};
use std::process::Stdio;
use std::time::{Duration, Instant};

crate::on_engines!(
    a_unit_is_offered_once_granted_once_and_gone_when_it_is_done,
    a_worker_that_falls_silent_loses_its_claims_after_the_ttl_and_not_before,
    claims_are_streamed_recalled_for_others_and_lost_when_they_are_taken_away,
    a_unit_is_taken_by_name_from_nobody_from_the_dead_and_by_seizing_from_the_living,
    what_was_left_is_free_and_what_was_lost_is_an_orphan,
);

/// Longer than any test.
pub(crate) const LONG: u64 = 3_600_000;

/// A worker as a simple client writes it.
pub(crate) struct Worker<'s> {
    server: &'s Server,
    pub(crate) place: String,
    how: Value,
    pub(crate) session: String,
    after: u64,
}

impl<'s> Worker<'s> {
    pub(crate) fn join(server: &'s Server, name: &str, how: Value) -> Self {
        let place = format!("/v1/claims/calls/workers/{name}");
        let mut worker = Self { server, place, how, session: String::new(), after: 0 };
        worker.rejoin();
        worker
    }

    fn lasting(server: &'s Server, name: &str) -> Self {
        Self::join(server, name, json!({ "ttl_ms": LONG }))
    }

    fn rejoin(&mut self) {
        let joined = self.server.put(&self.place, &self.how).expect(200).json();
        self.session = joined["session"].as_str().unwrap().to_owned();
        self.after = 0;
    }

    pub(crate) fn ask(&self, what: &str, mut body: Value) -> Reply {
        body["session"] = json!(self.session);
        self.server.post(&format!("{}/{what}", self.place), &body)
    }

    /// Polls until something of this kind happens; a machine that sleeps through the TTL joins
    /// again.
    pub(crate) fn until(&mut self, wanted: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "never {wanted}");
            let reply = self.ask("poll", json!({ "after": self.after, "max": 1, "wait_ms": 5000 }));
            if reply.status == 404 && self.how["ttl_ms"] != LONG {
                self.rejoin();
                continue;
            }
            for news in reply.expect(200).json()["news"].as_array().unwrap() {
                self.after = news["place"].as_u64().unwrap();
                if news["event"] == wanted {
                    return news.clone();
                }
            }
        }
    }

    pub(crate) fn settle(&self, verdicts: Value) -> Value {
        self.ask("settle", verdicts).expect(200).json()
    }

    fn leave(&self) {
        let path = format!("{}?session={}", self.place, self.session);
        self.server.call("DELETE", &path, None).expect(204);
    }
}

pub(crate) fn offer(server: &Server, name: &str) {
    let offered = server.post("/v1/claims/calls/offers", &json!({ "name": name, "payload": "alice" }));
    assert_eq!(offered.expect(200).json()["offered"], 1);
}

fn a_unit_is_offered_once_granted_once_and_gone_when_it_is_done(server: &Server) {
    server.get("/v1/claims/calls").problem(404, "not found");
    let two = json!([{ "name": "a", "payload": "alice" }, { "name": "b", "payload_base64": "/wA=" }]);
    assert_eq!(
        server.post("/v1/claims/calls/offers", &two).expect(200).json(),
        json!({ "offered": 2, "new": 2 })
    );
    assert_eq!(
        server.post("/v1/claims/calls/offers", &two).expect(200).json()["new"],
        0,
        "a name is one offer"
    );
    let mut worker = Worker::lasting(server, "w1");
    let one = worker.until("granted");
    let two = worker.until("granted");
    let mut payloads = [&one, &two]
        .map(|news| (news["name"].clone(), news["payload"].clone(), news["payload_base64"].clone()));
    payloads.sort_by_key(|(name, ..)| name.to_string());
    assert_eq!(
        payloads,
        [(json!("a"), json!("alice"), json!(null)), (json!("b"), json!(null), json!("/wA="))]
    );
    let page = server.get("/v1/claims/calls/offers?max=1").expect(200).json();
    assert_eq!(
        (&page["offers"][0]["name"], &page["offers"][0]["owner"], &page["next"]),
        (&json!("a"), &json!("w1"), &json!("a"))
    );
    let rest = server.get("/v1/claims/calls/offers?after=a").expect(200).json();
    assert_eq!((rest["offers"].as_array().unwrap().len(), &rest["offers"][0]["state"]), (1, &json!("owned")));
    // A client that asks again gets the same news: a lost answer costs nothing.
    let again = worker.ask("poll", json!({ "after": 0 })).expect(200).json();
    assert_eq!(again["news"], json!([one, two]));
    assert!(again["valid_ms"].as_u64().unwrap() > 0);
    let done = worker.settle(
        json!({ "done": [one["claim"]], "checkpoint": [{ "claim": two["claim"], "state": "half" }] }),
    );
    assert_eq!((&done["settled"], &done["failed"]), (&json!(2), &json!([])));
    let late = worker.settle(json!({ "done": [one["claim"]] }));
    assert_eq!((&late["settled"], &late["failed"][0]["kind"]), (&json!(0), &json!("fenced")));
    let status = server.get("/v1/claims/calls").expect(200).json();
    assert_eq!((&status["offers"], &status["owned"], &status["workers"]), (&json!(1), &json!(1), &json!(1)));
    let renewed = worker.ask("renew", json!({})).expect(200).json();
    assert_eq!((&renewed["claims"], &renewed["healthy"]), (&json!(1), &json!(true)));
    worker.leave();
    worker.ask("renew", json!({})).problem(404, "not found");
    let mut next = Worker::lasting(server, "w2");
    let taken = next.until("granted");
    assert_eq!(
        (&taken["checkpoint"], &taken["last_owner"], taken.get("takeover")),
        (&json!("half"), &json!("w1"), None)
    );
    assert_eq!(server.get("/v1/claims").expect(200).json()["services"], json!(["calls"]));
}

fn what_was_left_is_free_and_what_was_lost_is_an_orphan(server: &Server) {
    offer(server, "call-1");
    let seen = || server.get("/v1/claims/calls/offers").expect(200).json()["offers"][0].clone();
    let by_name = json!({ "ttl_ms": LONG, "by_name_only": true });
    let one = Worker::join(server, "one", by_name.clone());
    one.ask("claim", json!({ "name": "call-1" })).expect(200);
    one.leave();
    let offer = seen();
    assert_eq!((&offer["state"], &offer["last_owner"]), (&json!("free"), &json!("one")));
    let status = server.get("/v1/claims/calls").expect(200).json();
    assert_eq!((&status["free"], &status["orphaned"]), (&json!(1), &json!(0)));
    let mut two = Worker::join(server, "two", by_name);
    two.ask("claim", json!({ "name": "call-1" })).expect(200);
    two.rejoin();
    let offer = seen();
    assert_eq!((&offer["state"], &offer["last_owner"]), (&json!("orphaned"), &json!("two")));
}

fn a_worker_that_falls_silent_loses_its_claims_after_the_ttl_and_not_before(server: &Server) {
    offer(server, "call-1");
    let ttl = Duration::from_millis(2500);
    let mut silent = Worker::join(server, "silent", json!({ "ttl_ms": 2500 }));
    let (last_call, mut stream) = loop {
        let granted = silent.until("granted");
        // An open stream is no sign of life.
        let stream = format!("{}/stream?session={}", silent.place, silent.session);
        let stream = Entries::open(server.address, &stream, "text/event-stream");
        let sent = Instant::now();
        let verdicts = json!({ "checkpoint": [{ "claim": granted["claim"], "state": "half" }] });
        let reply = silent.ask("settle", verdicts);
        if reply.status == 200 && reply.json()["settled"] == 1 {
            break (sent, stream);
        }
        // The machine slept through the TTL.
    };
    let mut heir = Worker::lasting(server, "heir");
    let taken = heir.until("granted");
    assert!(last_call.elapsed() >= ttl, "taken over after {:?}", last_call.elapsed());
    assert_eq!(
        (&taken["takeover"], &taken["last_owner"], &taken["checkpoint"]),
        (&json!(true), &json!("silent"), &json!("half"))
    );
    assert!(stream.find("end")["why"].as_str().unwrap().contains("join again"));
    assert!(stream.next().is_none());
    silent.ask("settle", json!({ "done": ["x"] })).problem(404, "not found");
}

fn claims_are_streamed_recalled_for_others_and_lost_when_they_are_taken_away(server: &Server) {
    offer(server, "call-1");
    offer(server, "call-2");
    let mut first = Worker::join(server, "first", json!({ "ttl_ms": LONG, "handover_ms": LONG }));
    let stream = format!("{}/stream?session={}", first.place, first.session);
    let mut lines = Entries::open(server.address, &stream, "application/x-ndjson");
    let one = lines.next().unwrap().1;
    let two = lines.next().unwrap().1;
    assert_eq!((&one["event"], &two["event"]), (&json!("granted"), &json!("granted")));
    let mut second = Worker::lasting(server, "second");
    let recalled = lines.next().unwrap().1;
    assert_eq!(recalled["event"], "recalled");
    let release = json!([{ "claim": recalled["claim"] }]);
    assert_eq!(first.settle(json!({ "release": release }))["settled"], 1);
    assert_eq!(lines.next().unwrap().1["event"], "released");
    let other = second.until("granted");
    assert_eq!((&other["name"], &other["last_owner"]), (&recalled["name"], &json!("first")));
    // Taken away by force, its owner is told.
    let path = format!("/v1/claims/calls/offers/{}", other["name"].as_str().unwrap());
    server.call("DELETE", &path, None).expect(204);
    server.call("DELETE", &path, None).problem(404, "not found");
    assert_eq!(second.until("lost")["claim"], other["claim"]);
    // The stream goes on where it broke off.
    let place = recalled["place"].as_u64().unwrap();
    drop(lines);
    let mut again = Entries::open(server.address, &format!("{stream}&after={place}"), "text/event-stream");
    assert_eq!(again.find("released")["claim"], recalled["claim"]);
    first.until("granted");
}

fn a_unit_is_taken_by_name_from_nobody_from_the_dead_and_by_seizing_from_the_living(server: &Server) {
    offer(server, "call-1");
    let by_name = json!({ "ttl_ms": LONG, "by_name_only": true });
    let mut one = Worker::join(server, "one", by_name.clone());
    let two = Worker::join(server, "two", by_name);
    let take = json!({ "name": "call-1" });
    let claim = one.ask("claim", take.clone()).expect(200).json();
    assert_eq!(claim["claim"]["event"], "granted");
    let again = one.ask("claim", take.clone()).expect(200).json();
    assert_eq!(again["claim"]["claim"], claim["claim"]["claim"], "asked again after a lost answer");
    let refused = two.ask("claim", take.clone()).problem(409, "already exists");
    assert!(refused.contains("one"), "{refused}");
    two.ask("claim", json!({ "name": "none" })).problem(404, "not found");
    let seized = two.ask("seize", take.clone()).expect(200).json();
    assert!(seized["claim"]["epoch"].as_u64() > claim["claim"]["epoch"].as_u64());
    assert_eq!(one.until("lost")["claim"], claim["claim"]["claim"]);
    server.post("/v1/claims/calls/offers/call-1/release", &json!({})).expect(204);
    let again = one.ask("claim", take).expect(200).json();
    assert_eq!(again["claim"]["last_owner"], "two");
    // The same name joins again: the former session is over at once.
    let former = one.session.clone();
    one.rejoin();
    let stale = json!({ "session": former });
    server.post(&format!("{}/renew", one.place), &stale).problem(404, "not found");
    let orphan = one.until("orphaned");
    assert_eq!((&orphan["name"], &orphan["last_owner"]), (&json!("call-1"), &json!("one")));
}

#[test]
fn work_survives_a_server_that_is_killed_and_its_worker_keeps_it_until_the_lease_is_over() {
    its_worker_keeps_it_until_the_lease_is_over(Server::kill);
}

/// The worker hears nothing of the end, and works on.
#[test]
fn t06_work_of_a_server_that_stops_is_its_workers_until_the_lease_is_over() {
    its_worker_keeps_it_until_the_lease_is_over(|server| assert!(server.terminate()));
}

fn its_worker_keeps_it_until_the_lease_is_over(end: impl FnOnce(Server)) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    offer(&server, "call-1");
    let ttl = Duration::from_millis(4000);
    let mut before = Worker::join(&server, "before", json!({ "ttl_ms": 4000 }));
    before.until("granted");
    let renewed = Instant::now();
    let valid = before.ask("renew", json!({})).json()["valid_ms"].as_u64().unwrap_or(0);
    assert!(valid <= 4000);
    let stale = json!({ "session": before.session });
    end(server);
    let server = Server::on(dir.path());
    server.post("/v1/claims/calls/workers/before/renew", &stale).problem(404, "not found");
    let mut heir = Worker::lasting(&server, "heir");
    assert_eq!(heir.until("granted")["last_owner"], "before");
    assert!(
        renewed.elapsed() >= ttl.min(Duration::from_millis(valid)),
        "taken over after {:?}",
        renewed.elapsed()
    );
}

#[test]
fn wrong_calls_are_told_the_field_and_the_limit() {
    let server = Server::memory();
    offer(&server, "call-1");
    let worker = Worker::lasting(&server, "w");
    let field = |reply: Reply, status: u16| {
        let problem = reply.expect(status).json();
        problem["field"].as_str().unwrap_or_else(|| panic!("{problem}")).to_owned()
    };
    let offers = "/v1/claims/calls/offers";
    assert_eq!(field(server.post(offers, &json!({ "name": "b d" })), 400), "name");
    assert_eq!(field(server.post(offers, &json!([])), 400), "offers");
    assert_eq!(field(server.post(offers, &json!({ "payload": "x" })), 400), "name");
    assert_eq!(
        field(server.post(offers, &json!({ "name": "a", "payload": "x", "payload_base64": "eA==" })), 400),
        "payload"
    );
    assert_eq!(
        field(server.post(offers, &json!({ "name": "a", "payload": "x".repeat(65_537) })), 400),
        "payload"
    );
    assert_eq!(field(server.post(offers, &json!({ "name": "a", "colour": 1 })), 400), "colour");
    assert_eq!(field(server.get(&format!("{offers}?max=1001")), 400), "max");
    assert_eq!(field(server.post("/v1/claims/b%20d/offers", &json!({ "name": "a" })), 400), "service");
    assert_eq!(field(server.put("/v1/claims/calls/workers/w%2Fw", &json!({})), 400), "worker");
    assert_eq!(field(server.put("/v1/claims/calls/workers/v", &json!({ "ttl_ms": 1 })), 400), "ttl_ms");
    assert_eq!(field(server.put("/v1/claims/calls", &json!({ "shards": 257 })), 400), "shards");
    assert_eq!(field(server.put("/v1/claims/calls", &json!({ "shards": 2 })), 409), "shards");
    assert_eq!(field(worker.ask("poll", json!({ "max": 501 })), 400), "max");
    assert_eq!(field(worker.ask("claim", json!({ "name": "" })), 400), "name");
    let big = json!({ "checkpoint": [{ "claim": "x", "state": "x".repeat(65_537) }] });
    assert_eq!(field(worker.ask("settle", big), 400), "checkpoint.state");
    assert_eq!(
        field(worker.ask("settle", json!({ "release": [{ "claim": "x", "rest_ms": 86_400_001_u64 }] })), 400),
        "release.rest_ms"
    );
    let image = call(
        server.address,
        "GET",
        &format!("{}/stream?session=x", worker.place),
        &["Accept: image/png"],
        b"",
    );
    image.problem(406, "invalid");
    server.get("/v1/claims/calls/workers/w/stream?session=x").problem(404, "not found");
}

#[test]
fn a_worker_of_the_command_line_that_is_killed_is_taken_over() {
    let server = Server::memory();
    offer(&server, "call-1");
    // The command lives as long as its worker.
    let shell = "while kill -0 $PPID 2>/dev/null; do sleep 0.1; done";
    let mut doomed = firth()
        .args(["claims", "work", "calls", "--worker", "doomed", "--ttl", "2s", "--exec", shell])
        .args(["--server", &server.url()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while server.get("/v1/claims/calls/offers").expect(200).json()["offers"][0]["owner"] != "doomed" {
        assert!(Instant::now() < deadline, "it never got the unit");
    }
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    let mut heir = Worker::lasting(&server, "heir");
    assert_eq!(heir.until("granted")["last_owner"], "doomed");
}
