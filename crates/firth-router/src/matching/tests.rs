//! The index against a naive reference: every subscription asked in turn, by the interpreter alone.

use super::*;
use crate::event::{Document, Operation};
use crate::filter::{Scope, tree};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
struct RandomInterest {
    tenant: &'static str,
    collection: &'static str,
    document: Option<&'static str>,
    filter: Option<String>,
}

impl RandomInterest {
    fn tenant(&self) -> Tenant {
        Tenant::new(self.tenant).unwrap()
    }

    fn interest(&self) -> Interest {
        Interest {
            tenant: Tenant::new(self.tenant).unwrap(),
            collection: self.collection.into(),
            document: self.document.map(Into::into),
            filter: self.filter.as_ref().map(|source| Filter::parse(source).unwrap()),
        }
    }

    /// What the documentation promises, said in the simplest way.
    fn wants(&self, event: &Event) -> Option<bool> {
        let is_theirs = self.tenant == event.tenant.as_str()
            && *self.collection == *event.collection
            && self.document.is_none_or(|key| *key == *event.key);
        let passes = |document: Option<&Document>| match (&self.filter, document) {
            (None, _) => true,
            (Some(source), document) => Scope::new(event, document).unwrap().is_true(&tree(source).unwrap()),
        };
        if !is_theirs {
            return None;
        }
        if passes(event.document()) {
            return Some(false);
        }
        let both = event.before.is_some() && event.after.is_some();
        (both && passes(event.before.as_ref())).then_some(true)
    }
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => (-3_i64..4).prop_map(|n| json!(n)),
        1 => (-6_i32..7).prop_map(|n| json!(f64::from(n) / 2.0)),
        1 => Just(json!(u64::MAX)),
        3 => "[ab]{0,3}".prop_map(|s| json!(s)),
        1 => any::<bool>().prop_map(|b| json!(b)),
        1 => Just(Value::Null),
    ]
}

fn field_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        5 => scalar(),
        1 => proptest::collection::vec(scalar(), 0..3).prop_map(Value::Array),
        1 => proptest::collection::btree_map("[ab]", scalar(), 0..3).prop_map(|map| json!(map)),
    ]
}

const FIELDS: [&str; 4] = ["a", "b", "c", "d"];

fn document() -> impl Strategy<Value = Document> {
    proptest::collection::btree_map(prop::sample::select(&FIELDS[..]), field_value(), 0..5)
        .prop_map(|fields| Document::from_value(&json!(fields)).unwrap())
}

fn literal() -> impl Strategy<Value = String> {
    scalar().prop_map(|value| match value {
        Value::Number(number) if number.as_u64() == Some(u64::MAX) => format!("{number}u"),
        other => other.to_string(),
    })
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(&FIELDS[..]).prop_map(|field| format!("doc.{field}")),
        1 => (prop::sample::select(&FIELDS[..]), "[ab]").prop_map(|(field, key)| format!("doc.{field}.{key}")),
        1 => Just("key".to_owned()),
        1 => Just("op".to_owned()),
    ]
}

fn test() -> impl Strategy<Value = String> {
    let comparison = prop::sample::select(&["==", "!=", "<", "<=", ">", ">="][..]);
    let method = prop::sample::select(&["startsWith", "endsWith", "contains"][..]);
    prop_oneof![
        6 => (path(), comparison.clone(), literal()).prop_map(|(p, op, l)| format!("{p} {op} {l}")),
        2 => (path(), comparison, literal()).prop_map(|(p, op, l)| format!("{l} {op} {p}")),
        2 => (path(), -3_i64..3, 0_i64..3).prop_map(|(p, low, width)| format!("({p} > {low} && {p} <= {})", low + width)),
        2 => (path(), proptest::collection::vec(literal(), 0..4)).prop_map(|(p, l)| format!("{p} in [{}]", l.join(", "))),
        2 => (literal(), path()).prop_map(|(l, p)| format!("{l} in {p}")),
        2 => (path(), method, "[ab]{0,2}").prop_map(|(p, m, part)| format!("{p}.{m}('{part}')")),
        1 => prop::sample::select(&FIELDS[..]).prop_map(|field| format!("has(doc.{field})")),
        1 => prop::sample::select(&FIELDS[..]).prop_map(|field| format!("has(doc.{field}.a)")),
        1 => (path(), literal()).prop_map(|(p, l)| format!("{p} + 1 == {l}")),
        1 => path().prop_map(|p| format!("size({p}) > 1")),
        1 => (path(), path()).prop_map(|(p, q)| format!("{p} == {q}")),
        1 => path(),
        1 => any::<bool>().prop_map(|b| b.to_string()),
    ]
}

fn filter() -> impl Strategy<Value = String> {
    test().prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            3 => proptest::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" && "))),
            2 => proptest::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" || "))),
            1 => inner.prop_map(|part| format!("!({part})")),
        ]
    })
}

const TENANTS: [&str; 2] = ["one", "two"];
const COLLECTIONS: [&str; 2] = ["x", "y"];
const KEYS: [&str; 3] = ["a", "b", "ab"];

fn wish() -> impl Strategy<Value = RandomInterest> {
    let place = (prop::sample::select(&TENANTS[..]), prop::sample::select(&COLLECTIONS[..]));
    let document = prop::option::weighted(0.3, prop::sample::select(&KEYS[..]));
    (place, document, prop::option::weighted(0.9, filter())).prop_map(
        |((tenant, collection), document, filter)| RandomInterest { tenant, collection, document, filter },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let operations = [Operation::Insert, Operation::Update, Operation::Delete];
    let place = (
        prop::sample::select(operations.to_vec()),
        prop::sample::select(&TENANTS[..]),
        prop::sample::select(&COLLECTIONS[..]),
        prop::sample::select(&KEYS[..]),
    );
    (place, prop::option::of(document()), prop::option::weighted(0.8, document())).prop_map(
        |((operation, tenant, collection, key), before, after)| {
            let event = Event::new(operation, Tenant::new(tenant).unwrap(), collection, key);
            Event { before, after, ..event }
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, RandomInterest),
    Remove(u8),
    Event(Event),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0_u8..24, wish()).prop_map(|(id, wish)| Step::Insert(id, wish)),
        2 => (0_u8..24).prop_map(Step::Remove),
        4 => event().prop_map(Step::Event),
    ]
}

fn id(number: u8) -> SubscriptionId {
    SubscriptionId::new(format!("s{number}")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Invariant: a subscription gets every event of its tenant that it asks for, and no event of
    /// another tenant.
    #[test]
    fn the_index_answers_what_asking_everyone_would(steps in proptest::collection::vec(step(), 1..60)) {
        let mut index = Index::new(usize::MAX);
        let mut interests: BTreeMap<u8, RandomInterest> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert(number, wish) => {
                    if let Some(old) = interests.remove(&number) {
                        index.remove(&old.tenant(), &id(number));
                    }
                    index.insert(id(number), wish.interest(), wish.tenant).unwrap();
                    interests.insert(number, wish);
                }
                Step::Remove(number) => {
                    let gone = interests.remove(&number);
                    let tenant = gone.as_ref().map_or(Tenant::new("one").unwrap(), RandomInterest::tenant);
                    prop_assert_eq!(index.remove(&tenant, &id(number)).is_some(), gone.is_some());
                }
                Step::Event(event) => {
                    let hits = index.matches(&event).unwrap();
                    let named: BTreeSet<_> = hits
                        .iter()
                        .map(|hit| (index.get(hit.number).unwrap().0.clone(), hit.leaves))
                        .collect();
                    prop_assert_eq!(named.len(), hits.len(), "somebody was found twice");
                    for hit in &hits {
                        prop_assert_eq!(*index.get(hit.number).unwrap().1, event.tenant.as_str());
                    }
                    let expected: BTreeSet<_> = interests
                        .iter()
                        .filter_map(|(number, wish)| Some((id(*number), wish.wants(&event)?)))
                        .collect();
                    prop_assert_eq!(&named, &expected, "{:?}\n{:?}", interests, String::from_utf8(event.to_json()));
                }
            }
            prop_assert_eq!(index.len(), interests.len());
        }
        for (number, wish) in &interests {
            index.remove(&wish.tenant(), &id(*number));
        }
        prop_assert!(index.tenants.is_empty() && index.collections.is_empty(), "something was left behind");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// One test or two per filter, all in one collection: here the limits of ranges and the kinds
    /// of values meet often.
    #[test]
    fn every_kind_of_test_is_answered_as_the_interpreter_would(
        filters in proptest::collection::vec(proptest::collection::vec(test(), 1..3), 1..40),
        documents in proptest::collection::vec(document(), 1..40),
    ) {
        let mut index = Index::new(usize::MAX);
        let sources: Vec<String> = filters.iter().map(|parts| parts.join(" && ")).collect();
        for (number, source) in (0..).zip(&sources) {
            index.insert(id(number), interest("one", source), source).unwrap();
        }
        for document in documents {
            let event = Event::new(Operation::Insert, Tenant::new("one").unwrap(), "x", "a").with_after(document);
            let hits = index.matches(&event).unwrap();
            let mut found: Vec<_> = hits.iter().map(|hit| index.get(hit.number).unwrap().0.clone()).collect();
            found.sort();
            let scope = Scope::new(&event, event.document()).unwrap();
            let wants = |(_, source): &(u8, &String)| scope.is_true(&tree(source).unwrap());
            let mut expected: Vec<_> = (0..).zip(&sources).filter(wants).map(|(number, _)| id(number)).collect();
            expected.sort();
            prop_assert_eq!(found, expected, "{:?}\n{:?}", sources, String::from_utf8(event.to_json()));
        }
    }
}

fn interest(tenant: &str, filter: &str) -> Interest {
    Interest {
        tenant: Tenant::new(tenant).unwrap(),
        collection: "x".into(),
        document: None,
        filter: Some(Filter::parse(filter).unwrap()),
    }
}

#[test]
fn filters_that_no_index_answers_are_limited_per_tenant() {
    let mut index = Index::new(2);
    let slow = |n: u32| format!("doc.a.contains('{n}')");
    index.insert(id(1), interest("one", &slow(1)), ()).unwrap();
    index.insert(id(2), interest("one", &slow(2)), ()).unwrap();
    let refused = index.insert(id(3), interest("one", &slow(3)), ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Quota);
    assert!(index.number(&Tenant::new("one").unwrap(), &id(3)).is_none());
    index.insert(id(4), interest("one", &slow(2)), ()).expect("one that is there already costs nothing");
    index.insert(id(5), interest("two", &slow(3)), ()).expect("another tenant has its own quota");
    index
        .insert(id(6), interest("one", "doc.a == 1 && doc.a.contains('x')"), ())
        .expect("an equality leads to it");
    index.remove(&Tenant::new("one").unwrap(), &id(1));
    index.insert(id(3), interest("one", &slow(3)), ()).expect("there is room again");
    assert_eq!(index.slow(&Tenant::new("one").unwrap()), 2);
}

#[test]
fn two_tenants_may_give_the_same_id() {
    let mut index = Index::new(0);
    index.insert(id(1), interest("one", "doc.a == 1"), "one").unwrap();
    index.insert(id(1), interest("two", "doc.a == 1"), "two").unwrap();
    assert_eq!(index.len(), 2);
    assert_eq!(index.remove(&Tenant::new("two").unwrap(), &id(1)), Some("two"));
    assert!(index.number(&Tenant::new("one").unwrap(), &id(1)).is_some());
}

#[test]
fn those_who_ask_for_the_same_share_a_group() {
    let mut index = Index::new(0);
    for number in 0..100 {
        let filter = if number % 2 == 0 { "doc.a == 1 || doc.b == 2" } else { "doc.b==2 || doc.a==1" };
        index.insert(id(number), interest("one", filter), ()).unwrap();
    }
    assert_eq!((index.len(), index.groups()), (100, 1));
}

#[test]
fn a_group_hangs_under_its_rarest_equality() {
    let mut index = Index::new(0);
    for number in 0..200 {
        let filter = format!("doc.state == 'open' && doc.user == 'u{number}'");
        index.insert(id(number), interest("one", &filter), ()).unwrap();
    }
    let document = Document::from_value(&json!({ "state": "open", "user": "u7" })).unwrap();
    let event = Event::new(Operation::Insert, Tenant::new("one").unwrap(), "x", "k").with_after(document);
    let mut shown = 0;
    let collection = &index.collections[0];
    let values = collection.values(&event);
    collection.lists().candidates("k", &values, |_, list| shown += list.groups.len() + list.direct.len());
    assert!(shown <= 3, "{shown} subscriptions were looked at for one match");
    assert_eq!(index.matches(&event).unwrap().len(), 1);
}

#[test]
fn a_name_given_twice_counts_as_its_last_value() {
    let mut index = Index::new(0);
    index.insert(id(1), interest("one", "doc.a.b == 1"), ()).unwrap();
    index.insert(id(2), interest("one", "doc.a.c == 1"), ()).unwrap();
    let document = Document::from_json(r#"{"a":{"b":1},"a":{"c":1}}"#).unwrap();
    let event = Event::new(Operation::Insert, Tenant::new("one").unwrap(), "x", "k").with_after(document);
    let hits = index.matches(&event).unwrap();
    assert_eq!(hits.iter().map(|hit| index.get(hit.number).unwrap().0.as_str()).collect::<Vec<_>>(), ["s2"]);
}

#[test]
fn a_list_that_holds_a_value_twice_matches_once() {
    let mut index = Index::new(0);
    index.insert(id(1), interest("one", "-1 in doc.b"), ()).unwrap();
    let document = Document::from_json(r#"{"b":[-1,-1.0,2]}"#).unwrap();
    let event = Event::new(Operation::Insert, Tenant::new("one").unwrap(), "x", "k").with_after(document);
    assert_eq!(index.matches(&event).unwrap().len(), 1);
}

/// The subscriptions that get an event, by name.
fn wanted_by<T>(index: &Index<T>, event: &Event) -> Vec<String> {
    let hits = index.matches(event).unwrap();
    assert!(hits.iter().all(|hit| !hit.leaves));
    let mut names: Vec<_> =
        hits.iter().map(|hit| index.get(hit.number).unwrap().0.as_str().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_control_is_for_every_subscription_of_its_tenant_and_collection() {
    let mut index = Index::new(usize::MAX);
    for (number, (tenant, collection, filter)) in (1..).zip([
        ("one", "x", Some("doc.a == 1")),
        ("one", "x", Some("!has(doc.a) || size(doc.b) > 3")),
        ("one", "x", None),
        ("one", "y", None),
        ("two", "x", Some("doc.a == 1")),
    ]) {
        let filter = filter.map(|source| Filter::parse(source).unwrap());
        let document = (number == 3).then(|| "k".into());
        let tenant = Tenant::new(tenant).unwrap();
        index
            .insert(id(number), Interest { tenant, collection: collection.into(), document, filter }, ())
            .unwrap();
    }
    let control = |tenant: Option<&str>, collection| {
        let tenant = tenant.map(|name| Tenant::new(name).unwrap());
        Event::control(Operation::Truncate, tenant, collection)
    };
    assert_eq!(wanted_by(&index, &control(Some("one"), "x")), ["s1", "s2", "s3"]);
    assert_eq!(wanted_by(&index, &control(None, "x")), ["s1", "s2", "s3", "s5"]);
    assert_eq!(wanted_by(&index, &control(Some("two"), "y")), [""; 0]);
    index.remove(&Tenant::new("one").unwrap(), &id(2));
    assert_eq!(wanted_by(&index, &control(None, "x")), ["s1", "s3", "s5"]);
}

/// A column that the source does not know is neither there nor absent: no filter that needs it
/// matches, by the index or by the interpreter, and no document leaves for it.
#[test]
fn a_filter_that_needs_a_missing_column_does_not_match() {
    let needs_a = [
        "doc.a == 1",
        "doc.a != 1",
        "!has(doc.a)",
        "has(doc.a)",
        "doc.a.b == 1",
        "doc.a > 0 && doc.a < 9",
        "doc.a.startsWith('x')",
        "1 in doc.a",
        "!(doc.a == 1)",
        "size(doc.a) > 0 && doc.b == 2",
        "doc['a'] == 1",
        "doc.b == 2 && !has(doc.a.c)",
    ];
    let others =
        ["doc.b == 2", "doc.a == 1 || doc.b == 2", "op == 'update'", "!has(doc.c)", "size(doc.t) == 1"];
    let mut index = Index::new(usize::MAX);
    for (number, filter) in (0..).zip(needs_a.iter().chain(&others)) {
        index.insert(id(number), interest("one", filter), ()).unwrap();
    }
    let document = |value: Value| Document::from_value(&value).unwrap();
    let event = Event::new(Operation::Update, Tenant::new("one").unwrap(), "x", "k")
        .with_after(document(json!({ "b": 2, "t": "x" })));
    let expected: Vec<_> =
        (needs_a.len()..needs_a.len() + others.len()).map(|number| format!("s{number}")).collect();
    let missing = event.clone().with_missing(["a"]);
    assert_eq!(wanted_by(&index, &missing), expected);
    // The old image matched them: whether the new one does is not known.
    let before = document(json!({ "a": 1, "b": 2, "t": "x" }));
    assert_eq!(wanted_by(&index, &missing.with_before(before)), expected);
    let absent = wanted_by(&index, &event);
    assert!(absent.contains(&"s2".to_owned()), "without the note it is absent: {absent:?}");
}
