//! [`Kept`]: what a reader leaves to the next one. Pure.

use crate::error::{Error, Result};
use crate::state::control_reason;
use bytes::{BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a reader leaves to the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept<P> {
    /// How often the source began anew after a loss.
    #[serde(default)]
    pub history: u32,
    /// Why it did, until every partition was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync: Option<String>,
    /// Where it goes on; none before the first reader.
    #[serde(default = "nowhere", skip_serializing_if = "Option::is_none")]
    pub place: Option<P>,
}

fn nowhere<P>() -> Option<P> {
    None
}

impl<P> Default for Kept<P> {
    fn default() -> Self {
        Self { history: 0, resync: None, place: None }
    }
}

impl<P: Serialize + DeserializeOwned> Kept<P> {
    /// Reads what a claim keeps; nothing reads as a new source.
    pub(crate) fn from_bytes(bytes: Option<&[u8]>) -> Result<Self> {
        bytes.map_or(Ok(Self::default()), |bytes| {
            serde_json::from_slice(bytes).map_err(|error| {
                Error::corrupt("the stored state of the source is damaged").with_source(error)
            })
        })
    }

    /// The source after a loss.
    pub(crate) fn anew(&self, why: &str) -> Self {
        Self { history: self.history.saturating_add(1), resync: Some(control_reason(why)), place: None }
    }

    /// A position of this history as a mark: those of later histories are greater.
    pub(crate) fn mark(&self, position: &[u8]) -> Bytes {
        let mut mark = BytesMut::with_capacity(5 + position.len());
        mark.put_u32(self.history);
        mark.put_slice(position);
        mark.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_and_a_history_comes_after_all_marks_of_the_former_one() {
        let kept = Kept { place: Some(7_u64), ..Kept::default() };
        let bytes = serde_json::to_vec(&kept).unwrap();
        assert_eq!(bytes, br#"{"history":0,"place":7}"#);
        assert_eq!(Kept::from_bytes(Some(&bytes)).unwrap(), kept);
        assert_eq!(Kept::<u64>::from_bytes(None).unwrap(), Kept::default());
        assert!(Kept::<u64>::from_bytes(Some(b"{")).is_err());
        let anew = kept.anew(&"é".repeat(150));
        assert_eq!((anew.history, anew.place, anew.resync.as_ref().unwrap().len()), (1, None, 200));
        assert!(anew.mark(&[0]) > kept.mark(&[0xFF; 60]));
        assert!(kept.mark(&[0]) > Bytes::from_static(&[0]), "a mark lies beyond that of a new source");
    }
}
