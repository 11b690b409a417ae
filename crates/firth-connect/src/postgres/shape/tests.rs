//! Rows of one table under different mappings and replica identities.

use super::*;
use crate::mapping::{ColumnRule, TenantRule};
use std::collections::BTreeMap;

fn mapping(tenant: &TenantRule, soft_delete: Option<&str>) -> Mapping {
    let columns = BTreeMap::from([("shop.orders".to_owned(), ColumnRule { drop: vec!["secret".into()] })]);
    Mapping::new(tenant, "{table}", KeyRule::Primary, &columns, soft_delete.map(str::to_owned)).unwrap()
}

fn constant() -> TenantRule {
    TenantRule::Constant("acme".into())
}

fn column(name: &str, type_oid: u32, is_key: bool) -> Column {
    Column { is_key, name: name.into(), type_oid }
}

fn orders(identity: Identity) -> Relation {
    let is_full = identity == Identity::Full;
    Relation {
        id: 7,
        schema: "shop".into(),
        name: "orders".into(),
        identity,
        columns: vec![
            column("tenant", 25, true),
            column("id", 23, true),
            column("state", 25, is_full),
            column("body", 25, is_full),
            column("secret", 25, is_full),
        ],
    }
}

/// `-` is null, `~` is a large value that did not change.
fn row(values: [&'static str; 5]) -> Tuple {
    Tuple(
        values
            .into_iter()
            .map(|value| match value {
                "-" => Value::Null,
                "~" => Value::Unchanged,
                text => Value::Text(text.into()),
            })
            .collect(),
    )
}

fn shown(events: &[Event]) -> Vec<(&'static str, String, String)> {
    let text = |document: &Option<Document>| {
        document.as_ref().map_or("-".into(), |d| String::from_utf8(d.text().to_vec()).unwrap())
    };
    let show = |event: &Event| {
        let images = format!("{} > {}", text(&event.before), text(&event.after));
        (event.operation.as_str(), format!("{}/{}", event.tenant, event.key), images)
    };
    events.iter().map(show).collect()
}

#[test]
fn rows_become_documents_without_dropped_columns() {
    let shape = Shape::new(&mapping(&constant(), None), &orders(Identity::Default), None).unwrap();
    let made = shape.added(&Types::default(), Operation::Insert, &row(["t,1", "4", "new", "-", "hidden"]));
    let expected = r#"- > {"tenant":"t,1","id":4,"state":"new","body":null}"#;
    assert_eq!(shown(&made.unwrap()), [("insert", "acme/t%2C1,4".into(), expected.into())]);
}

#[test]
fn a_large_value_that_was_not_sent_is_missing_unless_the_old_row_has_it() {
    let types = Types::default();
    let new = row(["t", "4", "paid", "~", "-"]);
    let shape = Shape::new(&mapping(&constant(), None), &orders(Identity::Default), None).unwrap();
    let seen = shape.updated(&types, &Old::Untold, &new).unwrap();
    assert_eq!(seen[0].missing, [Text::from("body")]);
    assert_eq!(shown(&seen)[0].2, r#"- > {"tenant":"t","id":4,"state":"paid"}"#);

    let primary = ["id".to_owned()];
    let shape = Shape::new(&mapping(&constant(), None), &orders(Identity::Full), Some(&primary)).unwrap();
    let old = Old::Full(row(["t", "4", "new", "long", "-"]));
    let seen = shape.updated(&types, &old, &new).unwrap();
    assert!(seen[0].missing.is_empty());
    assert!(shown(&seen)[0].2.ends_with(r#""state":"paid","body":"long"}"#), "{:?}", shown(&seen));
    assert_eq!(&*seen[0].key, "4");
}

#[test]
fn a_row_that_changes_its_key_or_tenant_is_a_delete_and_an_insert() {
    let types = Types::default();
    let shape = Shape::new(&mapping(&constant(), None), &orders(Identity::Default), None).unwrap();
    let old = Old::Key(row(["t", "4", "-", "-", "-"]));
    let seen = shape.updated(&types, &old, &row(["t", "5", "new", "-", "-"])).unwrap();
    let images = [r#"{"tenant":"t","id":4} > -"#, r#"- > {"tenant":"t","id":5,"state":"new","body":null}"#];
    assert_eq!(
        shown(&seen),
        [("delete", "acme/t,4".into(), images[0].into()), ("insert", "acme/t,5".into(), images[1].into())]
    );

    let by_column = mapping(&TenantRule::Column("tenant".into()), None);
    let primary = ["id".to_owned()];
    let shape = Shape::new(&by_column, &orders(Identity::Full), Some(&primary)).unwrap();
    let old = Old::Full(row(["a", "4", "new", "-", "-"]));
    let seen = shown(&shape.updated(&types, &old, &row(["b", "4", "new", "-", "-"])).unwrap());
    assert_eq!((seen[0].0, &*seen[0].1, seen[1].0, &*seen[1].1), ("delete", "a/4", "insert", "b/4"));
}

#[test]
fn a_delete_tells_what_the_replica_identity_holds() {
    let types = Types::default();
    let shape = Shape::new(&mapping(&constant(), None), &orders(Identity::Default), None).unwrap();
    let seen = shape.deleted(&types, &Old::Key(row(["t", "4", "-", "-", "-"]))).unwrap();
    assert_eq!(shown(&seen), [("delete", "acme/t,4".into(), r#"{"tenant":"t","id":4} > -"#.into())]);
}

#[test]
fn a_soft_delete_is_a_delete() {
    let types = Types::default();
    let shape = Shape::new(&mapping(&constant(), Some("state")), &orders(Identity::Default), None).unwrap();
    let seen = shape.updated(&types, &Old::Untold, &row(["t", "4", "gone", "-", "-"])).unwrap();
    assert_eq!(shown(&seen)[0].0, "delete");
    assert!(shape.added(&types, Operation::Insert, &row(["t", "4", "gone", "-", "-"])).unwrap().is_empty());
}

#[test]
fn a_table_that_cannot_tell_its_deletes_is_refused_with_the_statement_that_helps() {
    let by_state = mapping(&TenantRule::Column("state".into()), None);
    let error = Shape::new(&by_state, &orders(Identity::Default), None).unwrap_err().to_string();
    assert!(error.contains("ALTER TABLE shop.orders REPLICA IDENTITY FULL"), "{error}");
    let mut keyless = orders(Identity::Default);
    keyless.columns.iter_mut().for_each(|column| column.is_key = false);
    let error = Shape::new(&mapping(&constant(), None), &keyless, None).unwrap_err().to_string();
    assert!(error.contains("no primary key"), "{error}");
    let error =
        Shape::new(&mapping(&constant(), None), &orders(Identity::Full), None).unwrap_err().to_string();
    assert!(error.contains("no primary key"), "{error}");
    assert!(Shape::new(&mapping(&constant(), None), &orders(Identity::Nothing), None).is_err());
}

#[test]
fn a_row_that_cannot_be_an_event_names_its_table_and_column_and_shows_no_value() {
    let types = Types::default();
    let shape =
        Shape::new(&mapping(&TenantRule::Column("tenant".into()), None), &orders(Identity::Default), None)
            .unwrap();
    let bad = shape.added(&types, Operation::Insert, &row(["bad tenant!", "4", "new", "-", "-"]));
    let error = bad.unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Poison);
    assert!(error.to_string().contains("shop.orders") && !error.to_string().contains("bad tenant"));
    let none = shape.added(&types, Operation::Insert, &row(["-", "4", "new", "-", "-"])).unwrap_err();
    assert!(none.to_string().contains("column tenant"), "{none}");
}
