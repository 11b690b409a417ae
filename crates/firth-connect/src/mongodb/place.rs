//! [`MongoPlace`]: how far a source of MongoDB is, and the positions of its changes. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Bytes of a token that are part of a position.
const TOKEN: usize = 56;

/// How far a source of MongoDB is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MongoPlace {
    /// The replica set or the cluster: a token of another one may be taken for ours.
    pub cluster: String,
    /// From when on changes are read, until there is a token.
    pub time: (u32, u32),
    /// Collections that are still to be copied, the one under way first.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    pub copy: VecDeque<String>,
    /// Up to which `_id` the first of them is copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The resume token of the last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl MongoPlace {
    /// From when on changes are read.
    pub(super) fn start(&self) -> Timestamp {
        Timestamp { time: self.time.0, increment: self.time.1 }
    }

    /// The `_id` behind which the copy goes on.
    pub(super) fn after(&self) -> Option<Bson> {
        let bytes = STANDARD.decode(self.after.as_ref()?).ok()?;
        let mut fields: Document = mongodb::bson::deserialize_from_slice(&bytes).ok()?;
        fields.remove("v")
    }

    /// A place behind this `_id`.
    pub(super) fn behind(&self, id: Bson) -> Self {
        let bytes = mongodb::bson::serialize_to_vec(&doc! { "v": id }).unwrap_or_default();
        Self { after: Some(STANDARD.encode(bytes)), ..self.clone() }
    }

    /// The first collection is copied.
    pub(super) fn copied(&self) -> Self {
        let mut next = Self { after: None, ..self.clone() };
        next.copy.pop_front();
        next
    }
}

/// Numbers the changes of a stream. Tokens compare byte by byte. Those that are too long for a mark
/// share its beginning with others at most if they have one time and one collection.
#[derive(Debug, Default)]
pub(super) struct Positions {
    last: Vec<u8>,
    among: u32,
}

impl Positions {
    /// The position of a change with this token; none if the token is none.
    pub(super) fn of(&mut self, token: &str) -> Option<Bytes> {
        let digit = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let mut bytes: Vec<u8> = token.as_bytes().chunks(2).map(digit).collect::<Option<_>>()?;
        if bytes.is_empty() {
            return None;
        }
        let is_long = bytes.len() > TOKEN;
        bytes.truncate(TOKEN);
        self.among = if is_long && self.last == bytes { self.among + 1 } else { 0 };
        self.last.clone_from(&bytes);
        if is_long {
            bytes.extend(self.among.to_be_bytes());
        }
        Some(bytes.into())
    }

    /// Whether a reader that begins behind the last token numbers all later ones the same.
    pub(super) fn is_border(&self, next: Option<&str>) -> bool {
        let begins = |next: &str| {
            let hex: String = self.last.iter().map(|byte| format!("{byte:02x}")).collect();
            next.to_ascii_lowercase().starts_with(&hex)
        };
        self.last.len() < TOKEN || next.is_some_and(|next| !begins(next))
    }
}

/// The position of a copied document: before all changes, and greater than those that former
/// readers told.
pub(super) fn copied(epoch: u64, number: u64) -> Bytes {
    [&[1][..], &epoch.to_be_bytes(), &number.to_be_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_grow_with_tokens_and_long_ones_stay_apart() {
        let mut positions = Positions::default();
        let short = positions.of("826500").unwrap();
        assert!(short > copied(u64::MAX, u64::MAX) && positions.is_border(None));
        let long = format!("8266{}", "ab".repeat(60));
        let first = positions.of(&long).unwrap();
        assert!(!positions.is_border(None) && !positions.is_border(Some(&long)));
        let second = positions.of(&format!("{long}01")).unwrap();
        assert!(short < first && first < second && second.len() <= crate::source::MAX_POSITION);
        assert!(positions.is_border(Some("8267")));
        assert_eq!(Positions::default().of("xy"), None);
    }

    #[test]
    fn a_copy_goes_on_behind_an_id_of_any_type() {
        let place = MongoPlace { copy: ["a".to_owned(), "b".to_owned()].into(), ..MongoPlace::default() };
        for id in [Bson::Int64(7), Bson::String("x".into()), Bson::Document(doc! { "a": 1 })] {
            let text = serde_json::to_string(&place.behind(id.clone())).unwrap();
            let read: MongoPlace = serde_json::from_str(&text).unwrap();
            assert_eq!(read.after(), Some(id));
        }
        let next = place.behind(Bson::Int32(1)).copied();
        assert_eq!((next.copy.len(), next.after), (1, None));
    }
}
