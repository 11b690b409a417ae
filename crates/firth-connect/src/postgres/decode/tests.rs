//! Messages as a server writes them are read back; damaged ones are errors.

use super::*;
use proptest::prelude::*;

/// Writes messages as a server does.
fn encode(message: &Message) -> Bytes {
    let mut out = Vec::new();
    match message {
        Message::Begin { commit, committed_us, xid } => {
            out.push(b'B');
            out.extend(commit.0.to_be_bytes());
            out.extend((committed_us - EPOCH_US).to_be_bytes());
            out.extend(xid.to_be_bytes());
        }
        Message::Commit { commit, end } => {
            out.extend([b'C', 0]);
            out.extend(commit.0.to_be_bytes());
            out.extend(end.0.to_be_bytes());
            out.extend(0_i64.to_be_bytes());
        }
        Message::Relation(relation) => {
            out.push(b'R');
            out.extend(relation.id.to_be_bytes());
            for name in [&relation.schema, &relation.name] {
                out.extend(name.as_bytes());
                out.push(0);
            }
            out.push(match relation.identity {
                Identity::Default => b'd',
                Identity::Nothing => b'n',
                Identity::Full => b'f',
                Identity::Index => b'i',
            });
            out.extend((relation.columns.len() as u16).to_be_bytes());
            for column in &relation.columns {
                out.push(u8::from(column.is_key));
                out.extend(column.name.as_bytes());
                out.push(0);
                out.extend(column.type_oid.to_be_bytes());
                out.extend((-1_i32).to_be_bytes());
            }
        }
        Message::Insert { relation, new } => {
            out.push(b'I');
            out.extend(relation.to_be_bytes());
            tuple(&mut out, b'N', new);
        }
        Message::Update { relation, old: before, new } => {
            out.push(b'U');
            out.extend(relation.to_be_bytes());
            old(&mut out, before);
            tuple(&mut out, b'N', new);
        }
        Message::Delete { relation, old: before } => {
            out.push(b'D');
            out.extend(relation.to_be_bytes());
            old(&mut out, before);
        }
        Message::Truncate { relations, cascade, restart_identity } => {
            out.push(b'T');
            out.extend((relations.len() as u32).to_be_bytes());
            out.push(u8::from(*cascade) | u8::from(*restart_identity) << 1);
            relations.iter().for_each(|id| out.extend(id.to_be_bytes()));
        }
        Message::Emitted { transactional, lsn, prefix, content } => {
            out.extend([b'M', u8::from(*transactional)]);
            out.extend(lsn.0.to_be_bytes());
            out.extend(prefix.as_bytes());
            out.push(0);
            out.extend((content.0.len() as u32).to_be_bytes());
            out.extend(&content.0);
        }
        Message::Origin => out.extend(b"Oanything"),
        Message::Ignored => out.extend(b"Yanything"),
    }
    out.into()
}

fn old(out: &mut Vec<u8>, before: &Old) {
    match before {
        Old::Untold => {}
        Old::Key(key) => tuple(out, b'K', key),
        Old::Full(row) => tuple(out, b'O', row),
    }
}

fn tuple(out: &mut Vec<u8>, tag: u8, row: &Tuple) {
    out.push(tag);
    out.extend((row.0.len() as u16).to_be_bytes());
    for value in &row.0 {
        match value {
            Value::Null => out.push(b'n'),
            Value::Unchanged => out.push(b'u'),
            Value::Text(text) => {
                out.push(b't');
                out.extend((text.len() as u32).to_be_bytes());
                out.extend(text);
            }
        }
    }
}

fn row() -> impl Strategy<Value = Tuple> {
    let value = prop_oneof![
        Just(Value::Null),
        Just(Value::Unchanged),
        "[a-z{}\"]{0,9}".prop_map(|text| Value::Text(text.into())),
    ];
    proptest::collection::vec(value, 0..6).prop_map(Tuple)
}

fn message() -> impl Strategy<Value = Message> {
    let before = || prop_oneof![row().prop_map(Old::Key), row().prop_map(Old::Full)];
    let identity =
        prop::sample::select(vec![Identity::Default, Identity::Nothing, Identity::Full, Identity::Index]);
    let column = ("[a-z]{1,5}", any::<bool>(), any::<u32>()).prop_map(|(name, is_key, type_oid)| Column {
        is_key,
        name,
        type_oid,
    });
    prop_oneof![
        (any::<u64>(), 0_i64..1 << 50, any::<u32>()).prop_map(|(lsn, committed_us, xid)| Message::Begin {
            commit: Lsn(lsn),
            committed_us,
            xid
        }),
        (any::<u64>(), any::<u64>())
            .prop_map(|(one, two)| Message::Commit { commit: Lsn(one), end: Lsn(two) }),
        (any::<u32>(), "[a-z]{1,5}", "[a-zäö]{1,5}", identity, proptest::collection::vec(column, 0..5))
            .prop_map(|(id, schema, name, identity, columns)| {
                Message::Relation(Relation { id, schema, name, identity, columns })
            }),
        (any::<u32>(), row()).prop_map(|(relation, new)| Message::Insert { relation, new }),
        (any::<u32>(), prop_oneof![Just(Old::Untold), before()], row())
            .prop_map(|(relation, old, new)| Message::Update { relation, old, new }),
        (any::<u32>(), before()).prop_map(|(relation, old)| Message::Delete { relation, old }),
        (proptest::collection::vec(any::<u32>(), 0..4), any::<bool>(), any::<bool>()).prop_map(
            |(relations, cascade, restart_identity)| Message::Truncate {
                relations,
                cascade,
                restart_identity
            }
        ),
        (any::<bool>(), any::<u64>(), "[a-z.]{0,9}", ".{0,20}").prop_map(
            |(transactional, lsn, prefix, content)| Message::Emitted {
                transactional,
                lsn: Lsn(lsn),
                prefix,
                content: Content(content.into())
            }
        ),
    ]
}

proptest! {
    #[test]
    fn a_message_reads_as_a_server_writes_it(message in message()) {
        prop_assert_eq!(Message::read(&encode(&message)).unwrap(), message);
    }

    #[test]
    fn a_cut_or_damaged_message_is_an_error_or_another_message_and_never_a_panic(
        message in message(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>(), bits in 1_u8..
    ) {
        let whole = encode(&message);
        let cut = cut.index(whole.len());
        prop_assert!(Message::read(&whole.slice(..cut)).is_err());
        let mut flipped = whole.to_vec();
        let at = flip.index(flipped.len());
        flipped[at] ^= bits;
        let _ = Message::read(&flipped.into());
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(tag in prop::sample::select(b"BCRIUDTMOYX".to_vec()), data: Vec<u8>) {
        let mut bytes = vec![tag];
        bytes.extend(data);
        let _ = Message::read(&bytes.into());
    }
}

#[test]
fn a_count_that_the_bytes_cannot_hold_allocates_nothing() {
    let hostile = [&b"T"[..], &u32::MAX.to_be_bytes(), &[0]].concat();
    assert!(Message::read(&hostile.into()).unwrap_err().to_string().contains("cut off"));
    let wide = [&b"I"[..], &1_u32.to_be_bytes(), b"N", &u16::MAX.to_be_bytes()].concat();
    assert!(Message::read(&wide.into()).unwrap_err().to_string().contains("columns"));
}

#[test]
fn values_are_never_shown() {
    let message =
        Message::Insert { relation: 1, new: Tuple(vec![Value::Text(Bytes::from_static(b"secret"))]) };
    assert!(!format!("{message:?}").contains("secret"));
}
