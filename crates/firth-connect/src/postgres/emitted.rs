//! [`Emitted`]: messages that programs write into the log by `pg_logical_emit_message`: an outbox
//! without a table. Pure.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// Prefixes that are firth's own begin so.
pub(super) const OWN: &str = "firth.";
/// Prefixes of messages for topics begin so; the topic's name follows.
const TO_TOPIC: &str = "firth.topic.";
/// The prefix of the reader's own signs of life.
pub(crate) const HEARTBEAT: &str = "firth.heartbeat";

/// A message for a topic, in order with the changes of its transaction.
#[derive(Clone, PartialEq, Eq)]
pub struct Emitted {
    /// The topic.
    pub topic: String,
    /// Its key, if one stands behind the topic's name.
    pub key: Option<String>,
    /// Its content; nothing if that is too long to be read.
    pub payload: Bytes,
    /// How long its content is.
    pub length: usize,
}

impl Emitted {
    /// A message with this prefix, without its content; none if it is of another program. `others`
    /// names topics for further prefixes.
    pub(crate) fn named(prefix: &str, length: usize, others: &BTreeMap<String, String>) -> Option<Self> {
        if let Some(topic) = others.get(prefix) {
            return Some(Self { topic: topic.clone(), key: None, payload: Bytes::new(), length });
        }
        let place = prefix.strip_prefix(TO_TOPIC)?;
        let (topic, key) = match place.split_once('/') {
            Some((topic, key)) => (topic, Some(key.to_owned())),
            None => (place, None),
        };
        Some(Self { topic: topic.to_owned(), key, payload: Bytes::new(), length })
    }
}

/// Never shows key and content.
impl fmt::Debug for Emitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Emitted({} bytes to {})", self.length, self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_names_a_topic_and_maybe_a_key() {
        let others = BTreeMap::from([("audit".to_owned(), "log".to_owned())]);
        let read = |prefix: &str| {
            let emitted = Emitted::named(prefix, 1, &others)?;
            Some((emitted.topic, emitted.key))
        };
        assert_eq!(read("firth.topic.mails"), Some(("mails".into(), None)));
        assert_eq!(read("firth.topic.mails/a/b"), Some(("mails".into(), Some("a/b".into()))));
        assert_eq!(read("firth.topics.mails"), None);
        assert_eq!(read("audit"), Some(("log".into(), None)));
        assert_eq!((read("other"), read("audit/x")), (None, None));
    }
}
