//! Requests of well-known senders become events.

use super::*;
use crate::ErrorKind;
use crate::config::changed::{changed, each_is_named};
use firth_router::event::Operation;
use ring::hmac;
use serde_json::{Value, json};

const SECRET: &str = "a shared secret";

fn webhook(change: Value) -> Result<WebhookConfig> {
    let usual = json!({
        "verify": "github", "topic": "changes", "tenant": { "constant": "acme" },
        "collection": { "header": "X-GitHub-Event" }, "key": { "pointer": "/issue/number" },
    });
    WebhookConfig::new("hub", &changed(usual, &change)?, Some(SECRET.to_owned()))
}

fn send(webhook: &WebhookConfig, headers: &[(&str, &str)], body: &str) -> Result<Received> {
    let code = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes()), body.as_bytes());
    let code: String = code.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let code = format!("sha256={code}");
    let signed = [("X-Hub-Signature-256", &*code)];
    webhook.receive(&Headers::new(signed.into_iter().chain(headers.iter().copied())), body.as_bytes(), 7_000)
}

const ISSUE: [(&str, &str); 2] = [("X-GitHub-Event", "issues"), ("X-GitHub-Delivery", "d-1")];

#[test]
fn a_request_becomes_the_event_that_the_configuration_describes() {
    let webhook = webhook(json!({
        "op": { "from": { "pointer": "/action" }, "is": { "opened": "insert", "deleted": "delete" }, "otherwise": "update" },
        "document": "/issue",
    }))
    .unwrap();
    let body = r#"{"action":"opened","issue":{"number":42,"n":1.500,"big":12345678901234567890123}}"#;
    let Received { once, event } = send(&webhook, &ISSUE, body).unwrap();
    let event = event.unwrap();
    assert_eq!((event.operation, &*event.collection, &*event.key), (Operation::Insert, "issues", "42"));
    let document = event.after.unwrap();
    assert_eq!(
        document.text(),
        r#"{"number":42,"n":1.500,"big":12345678901234567890123}"#,
        "as it was written"
    );
    assert_eq!(event.observed_ms, 7_000);
    let again = send(&webhook, &ISSUE, body).unwrap().once;
    let other = send(&webhook, &[ISSUE[0], ("X-GitHub-Delivery", "d-2")], body).unwrap().once;
    assert!(once.is_some() && once == again && once != other);
    let deleted = send(&webhook, &ISSUE, r#"{"action":"deleted","issue":{"number":42}}"#).unwrap();
    let deleted = deleted.event.unwrap();
    assert!(deleted.operation == Operation::Delete && deleted.before.is_some() && deleted.after.is_none());
    let edited = send(&webhook, &ISSUE, r#"{"action":"edited","issue":{"number":42}}"#).unwrap();
    assert_eq!(edited.event.unwrap().operation, Operation::Update);
}

#[test]
fn events_that_the_configuration_does_not_want_are_left_out() {
    let rule = json!({ "from": { "pointer": "/action" }, "is": { "opened": "insert" } });
    let by_op = webhook(json!({ "op": rule })).unwrap();
    assert!(send(&by_op, &ISSUE, r#"{"action":"edited","issue":{"number":1}}"#).unwrap().event.is_none());
    let by_filter = webhook(json!({ "when": "doc.issue.number > 5" })).unwrap();
    assert!(send(&by_filter, &ISSUE, r#"{"issue":{"number":5}}"#).unwrap().event.is_none());
    assert!(send(&by_filter, &ISSUE, r#"{"issue":{"number":6}}"#).unwrap().event.is_some());
}

#[test]
fn a_body_that_cannot_be_an_event_is_named_without_its_values() {
    let webhook = webhook(json!({})).unwrap();
    for (body, expected) in [
        ("{", "no JSON: line 1"),
        ("[7]", "key: the request has nothing at pointer /issue/number"),
        (r#"{"issue":{"number":{"planted":1}}}"#, "/issue/number is a list or an object"),
    ] {
        let error = send(&webhook, &ISSUE, body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poison);
        assert!(error.to_string().contains(expected) && !error.to_string().contains("planted"), "{error}");
    }
    let error = send(&webhook, &[], r#"{"issue":{"number":1}}"#).unwrap_err().to_string();
    assert!(error.contains("collection: the request has nothing at header X-GitHub-Event"), "{error}");
}

#[test]
fn a_cloud_event_is_stored_once_by_its_source_and_id() {
    let webhook = webhook(json!({
        "format": "cloudevents", "collection": { "pointer": "/type" }, "key": { "pointer": "/subject" },
        "document": "/data",
    }))
    .unwrap();
    let headers = |source: &'static str| {
        [
            ("ce-specversion", "1.0"),
            ("ce-id", "1"),
            ("ce-source", source),
            ("ce-type", "order.paid"),
            ("ce-subject", "o-7"),
            ("Content-Type", "application/json"),
        ]
    };
    let first = send(&webhook, &headers("/shop"), r#"{"total":5}"#).unwrap();
    let event = first.event.unwrap();
    assert_eq!((&*event.collection, &*event.key), ("order.paid", "o-7"));
    assert_eq!(event.after.unwrap().text(), r#"{"total":5}"#);
    let other = send(&webhook, &headers("/crm"), r#"{"total":5}"#).unwrap();
    assert!(first.once.is_some() && first.once != other.once);
}

#[test]
fn each_wrong_option_is_named() {
    let cases = [
        (json!({ "key": "fixed" }), "key is a constant"),
        (json!({ "key": { "pointer": "x" } }), "no JSON pointer"),
        (json!({ "tenant": "a b" }), "tenant"),
        (json!({ "op": "resync" }), "op cannot be resync"),
        (json!({ "op": "upsert" }), "op: unknown variant `upsert`"),
        (json!({ "when": "1 +" }), "when: "),
        (json!({ "tolerance": 0 }), "tolerance is 0: give 1 to 86400"),
        (json!({ "max_body": 1 << 30 }), "max_body is"),
        (json!({ "verify": "md5" }), "unknown variant `md5`"),
        (json!({ "document": "data" }), "document: "),
        (json!({ "documents": "/data" }), "unknown field `documents`"),
        (json!({ "tenant": { "name": 1 } }), "a request has no name"),
    ];
    each_is_named(&cases, |change| webhook(change.clone()));
}
