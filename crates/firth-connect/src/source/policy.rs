//! [`Policy`]: what a source does when history is lost, and with a change that cannot be an event.

use crate::error::{Error, Result};
use serde::Deserialize;

/// What follows when the source no longer has changes that the topic lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLost {
    /// It stands still, and says why.
    #[default]
    Stop,
    /// Every partition is told, and the source begins anew with what is there.
    Resync,
}

/// What follows on a change that cannot be an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The source stands before it until an operator has helped.
    #[default]
    Stop,
    /// It goes to the topic of dead letters, and the source goes on.
    Dead,
}

/// The options of a source about what may go wrong.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PolicyOptions {
    /// What follows on a change that cannot be an event.
    #[serde(default)]
    pub on_error: OnError,
    /// The topic that gets such changes; that of the events with `.dead` unless given.
    #[serde(default)]
    pub dead_topic: Option<String>,
    /// What follows on a loss.
    #[serde(default)]
    pub on_lost: OnLost,
}

/// Checked [`PolicyOptions`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What follows on a loss.
    pub on_lost: OnLost,
    /// Where changes go that cannot be events; the source stops before them if there is none.
    pub dead_topic: Option<String>,
}

impl Policy {
    /// Checks the options of a source with this topic. `collection` is the one of all its events,
    /// if there is only one.
    pub(crate) fn new(options: &PolicyOptions, topic: &str, collection: Option<&str>) -> Result<Self> {
        let PolicyOptions { on_error, dead_topic, on_lost } = options;
        if *on_lost == OnLost::Resync && collection.is_none() {
            return Err(Error::invalid(
                "on_lost is resync: give the collection as a text, as the resync must name it",
            ));
        }
        let dead_topic = match (on_error, dead_topic) {
            (OnError::Stop, Some(_)) => {
                return Err(Error::invalid("dead_topic is used with `on_error: dead` only"));
            }
            (OnError::Stop, None) => None,
            (OnError::Dead, given) => Some(given.clone().unwrap_or_else(|| format!("{topic}.dead"))),
        };
        if dead_topic.as_deref() == Some(topic) {
            return Err(Error::invalid("dead_topic is the topic of the events: give another one"));
        }
        Ok(Self { on_lost: *on_lost, dead_topic })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_checked() {
        let policy = |options: serde_json::Value, collection| {
            Policy::new(&serde_json::from_value(options).unwrap(), "changes", collection)
        };
        let usual = policy(serde_json::json!({}), None).unwrap();
        assert_eq!(usual, Policy { on_lost: OnLost::Stop, dead_topic: None });
        let dead = policy(serde_json::json!({ "on_error": "dead", "on_lost": "resync" }), Some("c")).unwrap();
        assert_eq!(dead.dead_topic.as_deref(), Some("changes.dead"));
        for (options, expected) in [
            (serde_json::json!({ "on_lost": "resync" }), "collection as a text"),
            (serde_json::json!({ "dead_topic": "d" }), "on_error: dead"),
            (serde_json::json!({ "on_error": "dead", "dead_topic": "changes" }), "another one"),
        ] {
            let error = policy(options, None).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
