//! What fuzzers check of this crate, as plain functions; see `fuzz/` at the root of the repository.
//!
//! Not part of the API. Each function takes any bytes at all and panics when a law is broken. The
//! tests below run the same laws over random input in every build.

use crate::event::Event;
use crate::filter::Filter;
use crate::receive::Inbox;
use crate::wire::Results;
use bytes::Bytes;

/// A filter of a client: it is refused, or it is understood in full.
pub fn filter(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(filter) = Filter::parse(text) {
        let _ = filter.is_indexed();
        assert!(!filter.canon().is_empty(), "a filter has a canonical form");
    }
}

/// The payload of a record: what was read can be written and read again, in both forms.
pub fn event(data: &[u8]) {
    let Ok(event) = Event::from_payload(&Bytes::copy_from_slice(data)) else { return };
    let json = event.to_json();
    let from_json = Event::from_json(&json).expect("what was written as JSON can be read");
    assert_eq!(from_json.to_json(), json);
    let compact = event.to_compact();
    let from_compact = Event::from_compact(&compact).expect("what was written compactly can be read");
    assert_eq!(from_compact.to_compact(), compact);
}

/// What a router sends to a gateway, and what the gateway answers.
pub fn batch(data: &[u8]) {
    let _ = Inbox::read_json(data);
    let _ = Results::read(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn filters_keep_their_laws(
            text in "(doc\\.[a-z]{1,3} (==|<|>|in|\\|\\||&&) ('[a-z]{0,3}'|[0-9]{1,3}|\\[1, 2\\]) ?(&&|\\|\\|)? ?){0,6}",
            any in ".{0,80}",
        ) {
            filter(text.as_bytes());
            filter(any.as_bytes());
        }

        #[test]
        fn events_keep_their_laws(
            key in "[a-z\\u{0}-\\u{20}\"\\\\]{0,8}",
            number in any::<i64>(),
            data in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let whole = serde_json::json!({
                "operation": "update", "tenant": "t", "collection": "c", "key": key,
                "after": { "n": number, "k": key }, "committed_ms": 1, "observed_ms": 2,
            });
            event(whole.to_string().as_bytes());
            event(&data);
            let mut compact = vec![0xF1, 1];
            compact.extend(&data);
            event(&compact);
            batch(&data);
        }
    }
}
