//! Filters: what they accept, what they refuse, and that taking them apart keeps their meaning.

use super::*;
use crate::event::{Document, Event, Operation};
use crate::name::Tenant;
use serde_json::json;

fn event(document: serde_json::Value) -> Event {
    Event::new(Operation::Update, Tenant::new("t").unwrap(), "orders", "k1")
        .with_after(Document::from_value(&document).unwrap())
}

/// What the interpreter says, and what the index says: always the same.
fn wants(filter: &Filter, tree: &IdedExpr, event: &Event) -> bool {
    let by_tree = Scope::new(event, event.document()).unwrap().is_true(tree);
    let mut index = crate::matching::Index::new(10);
    let interest = crate::matching::Interest {
        tenant: event.tenant.clone(),
        collection: (*event.collection).into(),
        document: None,
        filter: Some(filter.clone()),
    };
    index.insert(crate::SubscriptionId::new("s").unwrap(), interest, ()).unwrap();
    assert_eq!(!index.matches(event).unwrap().is_empty(), by_tree, "{}", filter.canon());
    by_tree
}

fn matches(source: &str, document: serde_json::Value) -> bool {
    wants(&Filter::parse(source).unwrap(), &tree(source).unwrap(), &event(document))
}

#[test]
fn every_operator_of_the_design_works() {
    let document =
        json!({ "n": 5, "f": 2.5, "s": "abc", "b": true, "none": null, "l": [1, "x"], "m": { "k": 1 } });
    let yes = [
        "doc.n == 5",
        "doc.n == 5.0",
        "doc.n != 6",
        "doc.n > 4",
        "doc.n >= 5",
        "doc.n < 5.5",
        "doc.n <= 5",
        "4 < doc.n",
        "doc.n in [1, 5]",
        "'x' in doc.l",
        "1 in doc.l",
        "'k' in doc.m",
        "doc.s.contains('b')",
        "doc.s.startsWith('ab')",
        "doc.s.endsWith('bc')",
        "has(doc.n)",
        "!has(doc.z)",
        "has(doc.none)",
        "doc.none == null",
        "doc.b",
        "doc.b == true",
        "doc.m.k == 1",
        "doc['m']['k'] == 1",
        "doc.n * 2 == 10",
        "size(doc.s) == 3",
        "doc.s.size() == 3",
        "doc.z == 1 || doc.n == 5",
        "doc.n == 5 && (doc.s == 'x' || doc.f > 2.0)",
        "op == 'update' && key == 'k1' && collection == 'orders'",
        "doc.n == 5 ? doc.b : false",
        "doc.n > -1",
        "true",
        "doc.l[0] == 1",
        "doc.s > 'abb'",
        "string(doc.n) == '5'",
    ];
    for source in yes {
        assert!(matches(source, document.clone()), "{source}");
    }
    let no = [
        "doc.n == 6",
        "doc.n == '5'",
        "doc.z == 1",
        "doc.z != 1",
        "doc.s > 5",
        "doc.s.contains(5)",
        "doc.n.contains('x')",
        "has(doc.z)",
        "!has(doc.n)",
        "!has(doc.z.y)",
        "doc.l == 1",
        "2 in doc.l",
        "'x' in doc.s",
        "doc.n",
        "false",
        "doc.z || false",
        "doc.m.k.x == 1",
        "doc.n / 0 == 1",
    ];
    for source in no {
        assert!(!matches(source, document.clone()), "{source}");
    }
}

#[test]
fn what_a_filter_may_not_do_is_refused_with_a_reason() {
    let cases = [
        ("state == 'x'", "doc.state"),
        ("doc.l.exists(x, x > 1)", "cannot loop"),
        ("doc.s.matches('(a+)+')", "no function `matches`"),
        ("doc.n ==", "not valid CEL"),
        ("{'a': 1} == doc", "cannot build maps"),
        ("doc.b == b'x'", "bytes"),
        ("now() > 1", "no function `now`"),
    ];
    for (source, expected) in cases {
        let error = Filter::parse(source).unwrap_err();
        assert!(error.to_string().contains(expected), "{source}: {error}");
    }
    let long = vec!["doc.a == 1"; 100].join(" && ");
    assert!(Filter::parse(&long).unwrap_err().to_string().contains("256 parts"));
    assert!(Filter::parse(&"x".repeat(5000)).unwrap_err().to_string().contains("4096"));
    let deep = format!("{}doc.a{}", "!(".repeat(60), ")".repeat(60));
    assert!(Filter::parse(&deep).is_err());
    for (open, close) in [("(", ")"), ("[", "]"), ("!(", ")"), ("doc[", "]"), ("{1:", "}")] {
        let count = 4000 / (open.len() + close.len());
        let very_deep = format!("{}doc.a{}", open.repeat(count), close.repeat(count));
        assert!(Filter::parse(&very_deep).is_err(), "{open}");
    }
    for pairs in ["!", "-"] {
        assert!(Filter::parse(&format!("{}doc.a", pairs.repeat(4000))).is_ok(), "pairs of them are nothing");
    }
    assert!(Filter::parse(&format!("doc{}", ".a".repeat(2000))).is_err());
    assert!(Filter::parse(&vec!["doc.a"; 600].join("||")).is_err());
    assert!(
        Filter::parse(&format!("doc.a == '{}'", "(".repeat(100))).is_ok(),
        "brackets in texts do not count"
    );
}

#[test]
fn filters_that_mean_the_same_are_one_filter() {
    let same = |a: &str, b: &str| Filter::parse(a).unwrap() == Filter::parse(b).unwrap();
    assert!(same("doc.a==1&&doc.b==2", " doc.b == 2  && (doc.a == 1)"));
    assert!(same("doc.a == 1 || doc.b == 2", "doc.b == 2 || doc.a == 1"));
    assert!(same("doc.a == 'x'", "doc.a == \"x\""));
    assert!(!same("doc.a == '1'", "doc.a == 1"));
    assert!(!same("doc.a == 1 && doc.b == 2 || doc.c == 3", "doc.a == 1 && (doc.b == 2 || doc.c == 3)"));
    assert!(!same("has(doc.a)", "doc.a"));
}

#[test]
fn conditions_are_the_same_filters_and_no_value_breaks_out() {
    let condition = |field: &str, op, value| Condition { field: field.to_owned(), op, value };
    let pairs = [
        (condition("a", Operator::Equal, json!("x")), "doc.a == 'x'"),
        (condition("a.b", Operator::GreaterOrEqual, json!(1.5)), "doc.a.b >= 1.5"),
        (condition("a", Operator::In, json!([1, 2])), "doc.a in [1, 2]"),
        (condition("a", Operator::Exists, json!(null)), "has(doc.a)"),
        (condition("a", Operator::StartsWith, json!("x")), "doc.a.startsWith('x')"),
        (condition("a", Operator::Contains, json!("x")), "'x' in doc.a || doc.a.contains('x')"),
    ];
    for (condition, source) in pairs {
        assert_eq!(Filter::all_of(&[condition]).unwrap().canon(), Filter::parse(source).unwrap().canon());
    }
    // The escape that let a value of a client become part of the program in another system.
    let evil = r#"\' || true || \'"#;
    let conditions = [condition("a", Operator::Equal, json!(evil))];
    let filter = Filter::all_of(&conditions).unwrap();
    let tree = condition::tree(&conditions).unwrap();
    assert!(!wants(&filter, &tree, &event(json!({ "a": "x" }))));
    assert!(wants(&filter, &tree, &event(json!({ "a": evil }))));
    assert!(Filter::all_of(&[condition("a..b", Operator::Exists, json!(null))]).is_err());
    assert!(Filter::all_of(&[condition("a", Operator::In, json!(1))]).is_err());
    assert!(Filter::all_of(&[condition("a", Operator::StartsWith, json!(1))]).is_err());
    assert!(serde_json::from_value::<Condition>(json!({ "field": "a", "op": "~", "value": 1 })).is_err());
}

#[test]
fn what_an_index_can_answer_is_known() {
    let indexed = |source: &str| Filter::parse(source).unwrap().is_indexed();
    assert!(indexed("doc.a == 1 && doc.b * 2 > 3"));
    assert!(indexed("doc.a == 1 || doc.b > 3"));
    assert!(indexed("doc.a > 1 && doc.a < 5"));
    assert!(!indexed("doc.a == 1 || doc.b != 3"));
    assert!(!indexed("doc.a.contains('x')"));
    assert!(!indexed("true"));
}
