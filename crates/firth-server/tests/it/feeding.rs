//! A unit's own data over HTTP and on the command line: read in order, settled under the claim,
//! taken over with it.

use crate::claiming::{LONG, Worker, offer};
use crate::talk::Entries;
use crate::world::{Server, Value, firth, json, run, stdout};

crate::on_engines!(
    a_units_data_comes_in_order_and_goes_on_with_its_next_owner,
    a_stream_brings_new_data_and_ends_when_the_claim_is_wanted_back,
    the_command_line_reads_a_units_data,
);

/// A topic whose partition holds these readings.
fn readings(server: &Server, partition: usize, payloads: &[&str]) {
    server.put("/v1/topics/telemetry", &json!({ "partitions": 2 })).success();
    for payload in payloads {
        let message = json!({ "payload": payload, "partition": partition });
        server.post("/v1/topics/telemetry/records", &message).expect(200);
    }
}

fn owner<'s>(server: &'s Server, name: &str, how: &str) -> (Worker<'s>, Value) {
    let worker = Worker::join(server, name, json!({ "ttl_ms": LONG, "by_name_only": true }));
    let taken = worker.ask(how, json!({ "name": "device-1" })).expect(200).json();
    (worker, taken["claim"]["claim"].clone())
}

fn texts(page: &Value) -> Vec<&str> {
    let records = page["records"].as_array().unwrap();
    records.iter().map(|entry| entry["record"]["payload"].as_str().unwrap()).collect()
}

fn a_units_data_comes_in_order_and_goes_on_with_its_next_owner(server: &Server) {
    readings(server, 1, &["a", "b", "c", "d"]);
    offer(server, "device-1");
    let (one, claim) = owner(server, "one", "claim");
    let read = |worker: &Worker<'_>, claim: &Value, how: Value| {
        let mut request = json!({ "claim": claim, "partition": 1, "wait_ms": 20_000 });
        request.as_object_mut().unwrap().extend(how.as_object().unwrap().clone());
        worker.ask("data/telemetry/read", request)
    };
    let page = read(&one, &claim, json!({ "max": 3 })).expect(200).json();
    assert_eq!((texts(&page), &page["recalled"]), (vec!["a", "b", "c"], &json!(false)));
    assert_eq!(
        texts(&read(&one, &claim, json!({ "max": 3 })).json()),
        ["a", "b", "c"],
        "a lost answer costs nothing"
    );
    let on = read(&one, &claim, json!({ "after": page["records"][1]["place"] })).expect(200).json();
    assert_eq!(texts(&on), ["c", "d"]);
    let done =
        json!({ "claim": claim, "partition": 1, "ack_to": page["records"][0]["place"], "ack": ["9-9"] });
    let settled = one.ask("data/telemetry/settle", done).expect(200).json();
    assert_eq!((&settled["settled"], &settled["failed"][0]["kind"]), (&json!(1), &json!("not found")));
    assert_eq!(server.lag("telemetry", "claims.calls"), 3);
    // The next owner of the unit goes on there, and the former owner changes nothing.
    let (two, newer) = owner(server, "two", "seize");
    let page = read(&two, &newer, json!({})).expect(200).json();
    assert_eq!(texts(&page), ["b", "c", "d"]);
    let late = json!({ "claim": claim, "partition": 1, "ack_to": 100 });
    one.ask("data/telemetry/settle", late).problem(409, "fenced");
    let id = |at: usize| page["records"][at]["record"]["id"].clone();
    let verdicts = json!({ "claim": newer, "partition": 1, "ack": [id(0), id(2)],
        "reject": [{ "id": id(1), "reason": "not a number" }] });
    assert_eq!(two.ask("data/telemetry/settle", verdicts).expect(200).json()["settled"], 3);
    assert_eq!(server.lag("telemetry", "claims.calls"), 0);
    // A dead letter that is replayed comes again.
    let replay = json!({ "all": true, "group": "claims.calls" });
    assert_eq!(server.post("/v1/topics/telemetry/dead/replay", &replay).expect(200).json()["count"], 1);
    let again = read(&two, &newer, json!({})).expect(200).json();
    assert_eq!((texts(&again), &again["records"][0]["record"]["id"]), (vec!["c"], &id(1)));
    let all = server.get("/v1/topics/telemetry/groups").expect(200).json();
    assert_eq!((&all["groups"][0]["group"], &all["groups"][0]["due"]), (&json!("claims.calls"), &json!(1)));
}

fn a_stream_brings_new_data_and_ends_when_the_claim_is_wanted_back(server: &Server) {
    readings(server, 0, &["a", "b"]);
    readings(server, 1, &["a", "b"]);
    offer(server, "device-1");
    offer(server, "device-2");
    let mut first = Worker::join(server, "first", json!({ "ttl_ms": LONG, "handover_ms": LONG }));
    let claims = [first.until("granted")["claim"].clone(), first.until("granted")["claim"].clone()];
    let mut streams = [0, 1].map(|partition| {
        let claim = claims[partition].as_str().unwrap();
        let which = format!("session={}&claim={claim}&partition={partition}&max=2", first.session);
        let place = format!("{}/data/telemetry/stream?{which}", first.place);
        Entries::open(server.address, &place, "text/event-stream")
    });
    for (partition, stream) in streams.iter_mut().enumerate() {
        let seen = [stream.find("record"), stream.find("record")];
        assert_eq!(
            (&seen[0]["record"]["payload"], &seen[1]["record"]["payload"]),
            (&json!("a"), &json!("b"))
        );
        // Two are unsettled, and the next comes when one of them is settled.
        readings(server, partition, &["c"]);
        let ack = json!([seen[0]["record"]["id"]]);
        let verdicts = json!({ "claim": claims[partition], "partition": partition, "ack": ack });
        assert_eq!(first.ask("data/telemetry/settle", verdicts).expect(200).json()["settled"], 1);
        assert_eq!(stream.find("record")["record"]["payload"], "c");
    }
    let mut second = Worker::join(server, "second", json!({ "ttl_ms": LONG }));
    let recalled = first.until("recalled")["claim"].clone();
    let gone = usize::from(recalled == claims[1]);
    assert!(streams[gone].find("end")["why"].as_str().unwrap().contains("wanted back"));
    first.settle(json!({ "release": [{ "claim": recalled }] }));
    let taken = second.until("granted");
    let read = json!({ "claim": taken["claim"], "partition": gone, "wait_ms": 20_000 });
    let page = second.ask("data/telemetry/read", read).expect(200).json();
    assert_eq!(texts(&page), ["b", "c"], "what was not settled comes again");
    // The other unit is withdrawn: its stream says so.
    let offers = server.get("/v1/claims/calls/offers").expect(200).json();
    let mine = offers["offers"].as_array().unwrap().iter().find(|offer| offer["owner"] == "first").unwrap();
    let path = format!("/v1/claims/calls/offers/{}", mine["name"].as_str().unwrap());
    server.call("DELETE", &path, None).expect(204);
    assert_eq!(streams[1 - gone].find("problem")["kind"], "fenced");
}

fn the_command_line_reads_a_units_data(server: &Server) {
    readings(server, 1, &["a", "b", "c", "d"]);
    offer(server, "device-1");
    let at = server.url();
    let follow = ["claims", "follow", "calls", "device-1", "telemetry", "--partition", "1", "--server", &at];
    let two = stdout(&run(&[&follow[..], &["--max", "2", "--wait", "50s"]].concat()));
    assert_eq!(two, "a\nb\n");
    // The first command fails and stops there; the next worker begins with the same record.
    let failed = run(&[&follow[..], &["--max", "1", "--wait", "50s", "--exec", "exit 3"]].concat());
    assert_eq!(failed.status.code(), Some(1), "{}", String::from_utf8_lossy(&failed.stderr));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("ended with 3"));
    let shell = "case $(cat) in c) exit 65;; d) exit 0;; *) exit 1;; esac";
    let verdicts =
        stdout(&run(&[&follow[..], &["--max", "2", "--wait", "50s", "--json", "--exec", shell]].concat()));
    let verdicts: Vec<Value> = verdicts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&verdicts[0]["verdict"], &verdicts[1]["verdict"]), (&json!("reject"), &json!("ack")));
    assert_eq!(server.lag("telemetry", "claims.calls"), 0);
    let missing =
        firth().args(&follow[..2]).args(["calls", "nothing", "telemetry", "--server", &at]).output().unwrap();
    assert_eq!(missing.status.code(), Some(3));
    assert_eq!(
        server.get("/v1/claims/calls/workers").expect(200).json()["workers"],
        json!([]),
        "everyone left"
    );
}

#[test]
fn wrong_reads_are_told_the_field_and_data_of_consumers_is_not_taken() {
    let server = Server::memory();
    readings(&server, 1, &["a"]);
    offer(&server, "device-1");
    let (worker, claim) = owner(&server, "one", "claim");
    let field = |what: &str, body: Value, status: u16| {
        let problem = worker.ask(what, body).expect(status).json();
        problem["field"].as_str().unwrap_or_else(|| panic!("{problem}")).to_owned()
    };
    let read = "data/telemetry/read";
    assert_eq!(field(read, json!({ "claim": claim, "max": 501 }), 400), "max");
    assert_eq!(field(read, json!({ "claim": claim, "partition": 4096 }), 400), "partition");
    assert_eq!(field(read, json!({ "claim": claim, "group": "a b" }), 400), "group");
    assert_eq!(field(read, json!({ "claim": claim, "wait_ms": 30_001 }), 400), "wait_ms");
    assert_eq!(field(read, json!({ "claim": claim, "color": 1 }), 400), "color");
    assert_eq!(field(read, json!({}), 400), "claim");
    let many = vec!["1-1"; 501];
    assert_eq!(field("data/telemetry/settle", json!({ "claim": claim, "ack": many }), 400), "ack");
    worker.ask(read, json!({ "claim": "1.1" })).problem(409, "fenced");
    worker.ask("data/none/read", json!({ "claim": claim })).problem(404, "not found");
    worker.ask(read, json!({ "claim": claim, "partition": 2 })).problem(404, "not found");
    // A group that consumers share stays theirs.
    server.fetch("telemetry", "shared", &json!({ "wait_ms": 20_000 }));
    assert_eq!(field(read, json!({ "claim": claim, "group": "shared" }), 409), "group");
    // As many as may be unsettled, and then no more.
    let one = json!({ "payload": "x", "partition": 0 });
    server.post("/v1/topics/telemetry/records", &json!(vec![one; 501])).expect(200);
    let all = json!({ "claim": claim, "max": 500, "wait_ms": 20_000 });
    let page = worker.ask(read, all).expect(200).json();
    assert_eq!(page["records"].as_array().unwrap().len(), 500);
    let more = json!({ "claim": claim, "after": page["records"][499]["place"] });
    worker.ask(read, more).problem(429, "overloaded");
}
