//! Laws of controls in the hub: truncates and resyncs of one collection.

use super::tests::{drain, event, grant, hub, of_type, position};
use crate::Config;
use crate::protocol::SubscriptionRequest;
use firth_router::Tenant;
use firth_router::event::{Event, Operation};
use serde_json::{Value, json};

fn control(operation: Operation, tenant: Option<&str>) -> Event {
    let tenant = tenant.map(|name| Tenant::new(name).unwrap());
    Event::control(operation, tenant, "orders").with_reason("said by the source")
}

/// R15: a control disturbs the subscriptions of its tenant and collection, and nothing else.
#[tokio::test(start_paused = true)]
async fn a_control_reaches_the_subscriptions_of_its_collection_in_order_and_no_others() {
    let hub = hub(Config::default());
    let mut mine = hub.join(grant("t0"), None).unwrap();
    let requests = [
        SubscriptionRequest {
            filter: Some("doc.n > 5".into()),
            ..SubscriptionRequest::collection("big", "orders")
        },
        SubscriptionRequest {
            document: Some("7".into()),
            ..SubscriptionRequest::collection("seven", "orders")
        },
        SubscriptionRequest::collection("items", "items"),
    ];
    mine.subscribe(&requests, None).unwrap();
    let mut same_tenant = hub.join(grant("t0"), None).unwrap();
    same_tenant.subscribe(&[SubscriptionRequest::collection("items", "items")], None).unwrap();
    let mut other_tenant = hub.join(grant("t1"), None).unwrap();
    other_tenant.subscribe(&[SubscriptionRequest::collection("orders", "orders")], None).unwrap();
    for session in [&mut mine, &mut same_tenant, &mut other_tenant] {
        drain(session);
    }
    hub.publish(event("t0", "orders", "7", 9)).unwrap();
    hub.publish(control(Operation::Truncate, Some("t0"))).unwrap();
    hub.publish(event("t0", "orders", "8", 9)).unwrap();
    hub.publish(event("t0", "items", "1", 1)).unwrap();
    let messages = drain(&mut mine);
    let kinds: Vec<_> = messages.iter().map(|message| message["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["event", "resync-required", "event", "event"]);
    let told = &messages[1];
    let mut subs: Vec<_> = told["subs"].as_array().unwrap().iter().map(|sub| sub.as_str().unwrap()).collect();
    subs.sort_unstable();
    assert_eq!(subs, ["big", "seven"]);
    assert_eq!(
        (&told["reason"], &told["collection"], &told["message"]),
        (&json!("truncated"), &json!("orders"), &json!("said by the source"))
    );
    let places: Vec<_> = messages.iter().map(|message| position(message).unwrap().offsets.order()).collect();
    assert!(places.is_sorted(), "a control has its place among the events");
    assert_eq!(of_type(&drain(&mut same_tenant), "resync-required"), [Value::Null; 0]);
    assert!(drain(&mut other_tenant).is_empty());
    // One for all tenants.
    hub.publish(control(Operation::Resync, None)).unwrap();
    assert!(drain(&mut same_tenant).is_empty());
    for session in [&mut mine, &mut other_tenant] {
        let messages = drain(session);
        assert_eq!((messages.len(), &messages[0]["reason"]), (1, &json!("source")));
    }
    assert!(hub.status().accounting.balance());
}

/// A client that was away gets the control when it resumes, at its place.
#[tokio::test(start_paused = true)]
async fn a_client_that_resumes_behind_a_control_is_told() {
    let hub = hub(Config::default());
    let mut session = hub.join(grant("t0"), None).unwrap();
    let request = || {
        [SubscriptionRequest {
            filter: Some("doc.n > 5".into()),
            ..SubscriptionRequest::collection("big", "orders")
        }]
    };
    session.subscribe(&request(), None).unwrap();
    hub.publish(event("t0", "orders", "7", 9)).unwrap();
    let at = position(drain(&mut session).last().unwrap()).unwrap();
    drop(session);
    hub.publish(control(Operation::Truncate, Some("t0"))).unwrap();
    hub.publish(event("t0", "orders", "8", 10)).unwrap();
    let mut session = hub.join(grant("t0"), None).unwrap();
    session.subscribe(&request(), Some(at)).unwrap();
    let messages = drain(&mut session);
    let kinds: Vec<_> = messages.iter().map(|message| message["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[1..], ["subscribed", "resync-required", "event"]);
    assert_eq!(messages[2]["subs"], json!(["big"]));
}
