//! The lines of the driver, as types. What is written here is what outside programs rely on.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// A message for `produce`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// What the caller calls it; travels in the header `id`.
    pub id: String,
    /// Its key; without one it goes to any partition.
    #[serde(default)]
    pub key: Option<String>,
    /// Its payload.
    pub body: String,
    /// The caller's digest of the payload; travels in the header `sha`.
    pub sha: String,
}

/// An order for `consume`. Tokens are those of [`Event::Delivered`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
pub enum Command {
    /// Done.
    Ack {
        /// The message.
        id: String,
        /// The delivery's epoch; checked if given.
        #[serde(default)]
        epoch: Option<u64>,
        /// The delivery.
        token: u64,
    },
    /// Try again.
    Nack {
        /// The message.
        id: String,
        /// The delivery.
        token: u64,
        /// When; as the retry policy says if not given.
        #[serde(default)]
        after_ms: Option<u64>,
    },
    /// Give it up: a dead letter.
    Reject {
        /// The message.
        id: String,
        /// The delivery.
        token: u64,
        /// Why.
        #[serde(default)]
        reason: String,
    },
}

impl Command {
    /// The message meant.
    pub fn id(&self) -> &str {
        match self {
            Self::Ack { id, .. } | Self::Nack { id, .. } | Self::Reject { id, .. } => id,
        }
    }

    /// The delivery meant.
    pub fn token(&self) -> u64 {
        match self {
            Self::Ack { token, .. } | Self::Nack { token, .. } | Self::Reject { token, .. } => *token,
        }
    }
}

/// What the driver says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ev", rename_all = "snake_case")]
pub enum Event {
    /// A message is stored as durably as promised.
    SentOk {
        /// The message.
        id: String,
    },
    /// A message was not acknowledged.
    SentErr {
        /// The message.
        id: String,
        /// Certainly not stored, now or later; else unknown.
        definite: bool,
    },
    /// A partition is ours.
    Assigned {
        /// Which.
        partition: u32,
        /// Under which ownership.
        epoch: u64,
    },
    /// A partition is not ours any more.
    Revoked {
        /// Which.
        partition: u32,
        /// Under which ownership it was.
        epoch: u64,
    },
    /// A message to settle.
    Delivered {
        /// The message.
        id: String,
        /// Its key.
        key: Option<String>,
        /// Its partition.
        partition: u32,
        /// The ownership under which it is delivered.
        epoch: u64,
        /// The digest of the payload as received.
        sha: String,
        /// 1 at first, one more after each failed attempt.
        attempt: u32,
        /// Names this delivery in [`Command`]s.
        token: u64,
    },
    /// An ack, nack or reject is stored.
    AckOk {
        /// The message.
        id: String,
    },
    /// An ack, nack or reject failed.
    AckErr {
        /// The message.
        id: String,
        /// It certainly changed nothing and never will; else unknown.
        definite: bool,
        /// Why; starts with `fenced` if the partition had another owner.
        reason: String,
    },
    /// How a group stands.
    Final {
        /// Records that are neither settled nor wait for another attempt.
        pending: u64,
        /// Records that wait for another attempt.
        due: u64,
        /// Everything not settled: both of them.
        lag: u64,
        /// The ids of dead letters, sorted.
        dead: Vec<String>,
    },
}

/// The SHA-256 of a payload, in lower-case hex.
pub fn sha_of(payload: &[u8]) -> String {
    Sha256::digest(payload).iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_as_outside_programs_expect_them() {
        let line = |event: &Event| serde_json::to_string(event).unwrap();
        assert_eq!(line(&Event::SentOk { id: "a".into() }), r#"{"ev":"sent_ok","id":"a"}"#);
        assert_eq!(
            line(&Event::Assigned { partition: 1, epoch: 7 }),
            r#"{"ev":"assigned","partition":1,"epoch":7}"#
        );
        let ack: Command = serde_json::from_str(r#"{"cmd":"ack","id":"a","epoch":7,"token":3}"#).unwrap();
        assert_eq!(ack, Command::Ack { id: "a".into(), epoch: Some(7), token: 3 });
        let nack: Command =
            serde_json::from_str(r#"{"cmd":"nack","id":"a","token":3,"after_ms":0}"#).unwrap();
        assert_eq!((nack.id(), nack.token()), ("a", 3));
    }

    #[test]
    fn the_digest_is_sha_256_in_lower_case_hex() {
        assert_eq!(sha_of(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
