//! The laws of the assembler on messages written by hand.

use super::*;
use crate::mapping::{KeyRule, TenantRule};
use crate::postgres::decode::{Column, Content, Value};

fn assembler() -> Assembler {
    let tenant = TenantRule::Constant("acme".into());
    let mapping = Mapping::new(&tenant, "{table}", KeyRule::Primary, &BTreeMap::new(), None).unwrap();
    Assembler::new(9, 1, mapping, Types::default())
}

fn relation(id: u32, name: &str) -> Relation {
    let columns = vec![Column { is_key: true, name: "id".into(), type_oid: 23 }];
    Relation { id, schema: "public".into(), name: name.into(), identity: Identity::Default, columns }
}

fn row(id: u32) -> Tuple {
    Tuple(vec![Value::Text(id.to_string().into())])
}

fn read(assembler: &mut Assembler, messages: &[Message]) -> Vec<String> {
    let mut out = Vec::new();
    for message in messages {
        assembler.read(message, 5, &mut out).unwrap();
    }
    let shown = out.iter().map(|output| match output {
        Output::Begin { .. } => "begin".to_owned(),
        Output::Commit(end) => format!("commit {end}"),
        Output::Heartbeat(sent) => format!("heartbeat {sent}"),
        Output::Record(record) => {
            let last = if record.is_last { " last" } else { "" };
            let what = match &record.told {
                Told::Event(event) => format!("{} {}", event.operation.as_str(), &*event.key),
                Told::Emitted(emitted) => format!("to {}", emitted.topic),
                Told::Dead(letter) => format!("dead {} {:?}", letter.table, letter.key),
            };
            format!("{} {what}{last}", record.position)
        }
    });
    shown.collect()
}

#[test]
fn changes_are_numbered_the_same_whichever_tables_are_followed() {
    let txn = [
        Message::Begin { commit: Lsn(16), committed_us: 3_000, xid: 1 },
        Message::Insert { relation: 2, new: row(1) },
        Message::Insert { relation: 1, new: row(2) },
        Message::Update { relation: 1, old: Old::Key(row(2)), new: row(3) },
        Message::Insert { relation: 1, new: row(4) },
        Message::Commit { commit: Lsn(16), end: Lsn(32) },
    ];
    let mut all = assembler();
    all.relation(&relation(1, "orders"), None).unwrap();
    all.relation(&relation(2, "other"), None).unwrap();
    let seen = read(&mut all, &txn);
    let orders =
        ["9.1.0/10.2 insert 2", "9.1.0/10.4 delete 2", "9.1.0/10.5 insert 3", "9.1.0/10.6 insert 4 last"];
    assert_eq!(seen[0..2], ["begin", "9.1.0/10.0 insert 1"]);
    assert_eq!(seen[2..6], orders);
    assert_eq!(seen[6..], ["commit 0/20"]);

    let mut some = assembler().only(["public.orders".to_owned()]);
    some.relation(&relation(1, "orders"), None).unwrap();
    some.relation(&relation(2, "other"), None).unwrap();
    assert_eq!(read(&mut some, &txn)[1..5], orders);
}

#[test]
fn truncates_and_messages_stand_in_order_with_rows() {
    let emitted = |transactional, lsn, prefix: &str, text: &'static str| Message::Emitted {
        transactional,
        lsn: Lsn(lsn),
        prefix: prefix.to_owned(),
        content: Content(text.into()),
    };
    let truncate = Message::Truncate { relations: vec![2, 1], cascade: true, restart_identity: false };
    let txn = [
        emitted(false, 16, "firth.topic.mails", "outside"),
        emitted(false, 16, "firth.heartbeat", "77"),
        emitted(false, 16, "of another program", "x"),
        Message::Begin { commit: Lsn(16), committed_us: 3_000, xid: 1 },
        Message::Insert { relation: 1, new: row(1) },
        truncate,
        emitted(true, 14, "firth.topic.mails/7", "within"),
        Message::Commit { commit: Lsn(16), end: Lsn(32) },
    ];
    let mut all = assembler().only(["public.orders".to_owned()]);
    all.relation(&relation(1, "orders"), None).unwrap();
    all.relation(&relation(2, "other"), None).unwrap();
    assert_eq!(
        read(&mut all, &txn),
        [
            "begin",
            "9.1.0/F.0 to mails last",
            "commit 0/10",
            "heartbeat 77",
            "begin",
            "9.1.0/10.0 insert 1",
            "9.1.0/10.4 truncate ",
            "9.1.0/10.6 to mails last",
            "commit 0/20",
        ]
    );
}

#[test]
fn a_row_that_cannot_be_an_event_is_an_error_or_a_dead_letter() {
    let long = Tuple(vec![Value::Text("x".repeat(701).into())]);
    let txn = [
        Message::Begin { commit: Lsn(16), committed_us: 3_000, xid: 1 },
        Message::Insert { relation: 1, new: row(1) },
        Message::Insert { relation: 1, new: long.clone() },
        Message::Insert { relation: 1, new: row(2) },
        Message::Commit { commit: Lsn(16), end: Lsn(32) },
    ];
    let mut skipping = assembler().skipping_poison(true);
    skipping.relation(&relation(1, "orders"), None).unwrap();
    let dead = format!("9.1.0/10.2 dead public.orders {:?}", Some("x".repeat(701)));
    assert_eq!(read(&mut skipping, &txn)[1..4], ["9.1.0/10.0 insert 1", &dead, "9.1.0/10.4 insert 2 last"]);

    let mut strict = assembler();
    strict.relation(&relation(1, "orders"), None).unwrap();
    let mut out = Vec::new();
    let read: Result<Vec<()>> = txn.iter().map(|message| strict.read(message, 0, &mut out)).collect();
    let error = read.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poison);
    assert!(
        error.to_string().contains("public.orders") && error.to_string().contains("insert at 0/10.1, key "),
        "{error}"
    );
}

#[test]
fn a_transaction_of_another_origin_is_left_out_whole_and_its_neighbours_are_not() {
    let txn = |commit: u64, origin: Option<Message>| {
        let begin = Message::Begin { commit: Lsn(commit), committed_us: 0, xid: 1 };
        let row = Message::Insert { relation: 1, new: row(1) };
        let end = Message::Commit { commit: Lsn(commit), end: Lsn(commit + 8) };
        [Some(begin), origin, Some(row), Some(end)].into_iter().flatten().collect::<Vec<_>>()
    };
    let stream = [txn(16, Some(Message::Origin)), txn(32, None)].concat();
    let read_by = |mut assembler: Assembler| {
        assembler.relation(&relation(1, "orders"), None).unwrap();
        read(&mut assembler, &stream)
    };
    let second = ["begin", "9.1.0/20.0 insert 1 last", "commit 0/28"];
    let all = read_by(assembler());
    assert_eq!(
        (all.len(), &all[1][..], &all[3..]),
        (6, "9.1.0/10.0 insert 1 last", &second.map(str::to_owned)[..])
    );
    assert_eq!(read_by(assembler().skipping_origins(true))[1..], [&["commit 0/18"][..], &second].concat());
}

#[test]
fn a_record_names_the_shape_under_which_it_was_written() {
    let mut assembler = assembler().naming_shapes(true);
    let mut table = relation(1, "orders");
    let mut out = Vec::new();
    let mut tell = |assembler: &mut Assembler, message| assembler.read(&message, 0, &mut out).unwrap();
    assembler.relation(&table, None).unwrap();
    tell(&mut assembler, Message::Begin { commit: Lsn(16), committed_us: 0, xid: 1 });
    tell(&mut assembler, Message::Insert { relation: 1, new: row(1) });
    table.columns[0].name = "number".into();
    assembler.relation(&table, None).unwrap();
    tell(&mut assembler, Message::Insert { relation: 1, new: row(2) });
    tell(&mut assembler, Message::Commit { commit: Lsn(16), end: Lsn(24) });
    let shapes: Vec<_> = out
        .iter()
        .filter_map(|output| match output {
            Output::Record(record) => {
                record.headers("shop").into_iter().find(|(name, _)| *name == "firth-schema")
            }
            _ => None,
        })
        .map(|(_, shape)| shape)
        .collect();
    assert!(shapes.len() == 2 && shapes[0] != shapes[1] && shapes[0].len() == 16, "{shapes:?}");
}

#[test]
fn a_stream_that_breaks_its_own_rules_is_an_error() {
    let mut out = Vec::new();
    let insert = Message::Insert { relation: 1, new: row(1) };
    let error = assembler().read(&insert, 0, &mut out).unwrap_err().to_string();
    assert!(error.contains("before the description"), "{error}");
    let mut known = assembler();
    known.relation(&relation(1, "orders"), None).unwrap();
    assert!(known.read(&insert, 0, &mut out).unwrap_err().to_string().contains("outside"));
}

#[test]
fn only_what_is_needed_is_asked_of_the_database() {
    let mut full = relation(1, "orders");
    assert_eq!(assembler().needs(&full), Needs::default());
    full.identity = Identity::Full;
    full.columns.push(Column { is_key: true, name: "mood".into(), type_oid: 20_000 });
    assert_eq!(assembler().needs(&full), Needs { primary: true, types: vec![20_000] });
    assert_eq!(assembler().only(["public.other".to_owned()]).needs(&full), Needs::default());
}
