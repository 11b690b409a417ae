//! What fuzzers check of this crate, as plain functions; see `fuzz/` at the root of the repository.
//!
//! Not part of the API. Each function takes any bytes at all and panics when a law is broken. The
//! test below runs the same laws over random input in every build.

use crate::mapping::{KeyRule, Mapping, TenantRule};
use crate::postgres::assembler::{Assembler, Output};
use crate::postgres::decode::{Beginning, Message};
use crate::postgres::value::{Kind, Types};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A change stream of PostgreSQL, as messages of one byte of length each: it is read or refused,
/// positions grow, and transactions nest properly.
pub fn change_stream(data: &[u8]) {
    let tenant = TenantRule::Constant("acme".into());
    let mapping = Mapping::new(&tenant, "{table}", KeyRule::Primary, &BTreeMap::new(), None);
    let mut types = Types::new(true);
    types.insert(16_400, Kind::Array(16_401, b';'));
    types.insert(16_401, Kind::Composite(vec![("a".into(), 16_400), ("b".into(), 1007)]));
    let assembler = Assembler::new(1, 1, mapping.expect("the mapping is valid"), types);
    let is_every = |step| data.len().is_multiple_of(step);
    let mut assembler = assembler.skipping_poison(is_every(2)).skipping_origins(is_every(3));
    let mut rest = data;
    let mut out = Vec::new();
    while let Some((length, after)) = rest.split_first() {
        let (message, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        let message = Bytes::copy_from_slice(message);
        // As if it were too long to be read.
        if length.is_multiple_of(5)
            && let Ok(beginning) = Beginning::read(&message)
        {
            if assembler.too_long(&beginning, (1 << 30, 1 << 20), 0, &mut out).is_err() {
                break;
            }
            continue;
        }
        let Ok(message) = Message::read(&message) else { continue };
        let read = match &message {
            Message::Relation(relation) => assembler.relation(relation, None),
            other => assembler.read(other, 0, &mut out),
        };
        if read.is_err() {
            break;
        }
    }
    let mut last = None;
    for output in &out {
        match output {
            Output::Begin { .. } => last = None,
            Output::Record(record) => {
                assert!(last < Some(record.position), "positions grow within a transaction");
                last = Some(record.position);
            }
            Output::Commit(_) | Output::Heartbeat(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn change_streams_keep_their_laws(data: Vec<u8>, rows in proptest::collection::vec(any::<Vec<u8>>(), 0..5)) {
            change_stream(&data);
            // A table of four types, then rows whose values are any bytes.
            let columns = [23_u32, 16_400, 1184, 17];
            let mut relation = [b"R\0\0\0\x01p\0t\0d".to_vec(), 4_u16.to_be_bytes().to_vec()].concat();
            for (number, oid) in columns.iter().enumerate() {
                relation.extend([u8::from(number == 0), b'a', 0]);
                relation.extend(oid.to_be_bytes());
                relation.extend([0; 4]);
            }
            let mut messages = vec![relation, [&b"B"[..], &[0; 20]].concat()];
            for row in rows {
                let value = &row[..row.len().min(50)];
                let mut insert = [&b"I\0\0\0\x01N\0\x04"[..]].concat();
                for _ in columns {
                    insert.push(b't');
                    insert.extend((value.len() as u32).to_be_bytes());
                    insert.extend(value);
                }
                messages.push(insert);
            }
            let framed = messages.iter().flat_map(|message| [&[message.len() as u8][..], message].concat());
            change_stream(&framed.collect::<Vec<_>>());
        }
    }
}
