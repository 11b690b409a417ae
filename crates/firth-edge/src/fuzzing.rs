//! What fuzzers check of this crate, as plain functions; see `fuzz/` at the root of the repository.
//!
//! Not part of the API. Each function takes any bytes at all and panics when a law is broken.

use crate::position::Position;
use crate::protocol::client::ClientMessage;

/// A message of a client: it is refused, or it is understood in full.
pub fn message(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = ClientMessage::reference_in(text);
    if let Ok(message) = ClientMessage::parse(text) {
        let _ = message.reference();
    }
    if let Ok(position) = text.parse::<Position>() {
        let again: Position = position.to_string().parse().expect("what was written can be read");
        assert_eq!(again, position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_keep_their_laws(
            kind in "subscribe|unsubscribe|auth|heartbeat|[a-z]{0,5}",
            reference in any::<Option<i64>>(),
            position in "[0-9a-f]{0,6}:([0-9]{0,21}\\.?){0,4}",
            any in ".{0,80}",
        ) {
            let whole = serde_json::json!({
                "type": kind, "ref": reference, "token": any,
                "subscriptions": [{ "id": any, "collection": any, "position": position }],
            });
            message(whole.to_string().as_bytes());
            message(position.as_bytes());
            message(any.as_bytes());
        }
    }
}
