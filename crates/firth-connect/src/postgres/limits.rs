//! [`WalLimit`]: how much of its log a database may keep for a source, and what follows beyond it.

use crate::error::{Error, Result};
use serde::Deserialize;

/// A segment of the log: less is never kept.
const LEAST: u64 = 16 << 20;

/// What follows if the database keeps more of its log than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnWal {
    /// The status warns.
    #[default]
    Keep,
    /// The slot is dropped, so that the database can go on. The source is lost then.
    DropSlot,
}

/// The option `limits`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitOptions {
    /// Bytes, as a number or as a text such as `10GiB`.
    #[serde(default)]
    pub wal: Option<Size>,
    /// What follows beyond that.
    #[serde(default)]
    pub on_wal: OnWal,
}

/// A number of bytes, or a text that names it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A text such as `10GiB`.
    Text(String),
}

/// Checked [`LimitOptions`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalLimit {
    pub(crate) bytes: Option<u64>,
    on_wal: OnWal,
}

impl WalLimit {
    pub(super) fn new(options: &LimitOptions) -> Result<Self> {
        let bytes = match &options.wal {
            None => None,
            Some(Size::Bytes(bytes)) => Some(*bytes),
            Some(Size::Text(text)) => {
                let bytes = firth_router::config::parse_bytes(text);
                let bytes = bytes.ok_or_else(|| {
                    Error::invalid(format!("limits.wal is {text:?}: give bytes, such as 10GiB"))
                })?;
                Some(bytes as u64)
            }
        };
        match (bytes, options.on_wal) {
            (Some(bytes), _) if bytes < LEAST => {
                Err(Error::invalid(format!("limits.wal is {bytes} bytes; give at least {LEAST}")))
            }
            (None, OnWal::DropSlot) => {
                Err(Error::invalid("limits.on_wal is drop_slot: give limits.wal, too"))
            }
            (bytes, on_wal) => Ok(Self { bytes, on_wal }),
        }
    }

    /// What an operator should know of a slot that keeps so much.
    pub(super) fn warning(self, retained: u64) -> Option<String> {
        let limit = self.bytes.filter(|limit| retained > *limit)?;
        Some(format!("the database keeps {retained} bytes of its log, more than limits.wal ({limit})"))
    }

    /// Why a slot that keeps so much is to be dropped, if it is.
    pub(super) fn verdict(self, retained: u64) -> Option<String> {
        self.warning(retained).filter(|_| self.on_wal == OnWal::DropSlot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn limit(options: serde_json::Value) -> Result<WalLimit> {
        WalLimit::new(&serde_json::from_value(options).unwrap())
    }

    #[test]
    fn sizes_are_read_and_wrong_ones_named() {
        assert_eq!(limit(json!({})).unwrap(), WalLimit::default());
        assert_eq!(limit(json!({ "wal": "10GiB" })).unwrap().bytes, Some(10 << 30));
        assert_eq!(limit(json!({ "wal": 33_554_432 })).unwrap().bytes, Some(32 << 20));
        for (options, expected) in [
            (json!({ "wal": "much" }), "limits.wal is \"much\""),
            (json!({ "wal": "1MiB" }), "at least 16777216"),
            (json!({ "on_wal": "drop_slot" }), "give limits.wal"),
        ] {
            let error = limit(options).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn only_a_slot_beyond_the_limit_is_warned_of_and_dropped_only_if_so_written() {
        let keep = limit(json!({ "wal": "16MiB" })).unwrap();
        assert_eq!(keep.warning(16 << 20), None);
        assert!(keep.warning((16 << 20) + 1).is_some_and(|text| text.contains("limits.wal (16777216)")));
        assert_eq!(keep.verdict(u64::MAX), None);
        let drops = limit(json!({ "wal": "16MiB", "on_wal": "drop_slot" })).unwrap();
        assert!(drops.verdict(u64::MAX).is_some() && drops.verdict(1).is_none());
        assert_eq!(WalLimit::default().warning(u64::MAX), None);
    }
}
