//! Live channels on the wire.

use super::{BASE64, invalid_at, text_or_base64};
use base64::Engine as _;
use firth::Result;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is published on a channel: `payload` or `payload_base64`, at most 64 KiB.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Published {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
}

impl Published {
    pub(crate) fn into_payload(self) -> Result<bytes::Bytes> {
        match (self.payload, self.payload_base64) {
            (Some(text), None) => Ok(text.into()),
            (None, Some(text)) => {
                let bytes = BASE64.decode(text);
                bytes.map(Into::into).map_err(|error| {
                    invalid_at("payload_base64", "payload_base64 is not base64").with_source(error)
                })
            }
            _ => Err(invalid_at("payload", "give exactly one of payload and payload_base64")),
        }
    }
}

/// One entry of a live channel: a message, or `gap` where some may be missing.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct Live {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) gap: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
}

impl Live {
    pub(crate) fn gap() -> Self {
        Self { gap: true, ..Self::default() }
    }

    pub(crate) fn message(payload: &[u8]) -> Self {
        let (payload, payload_base64) = text_or_base64(payload);
        Self { payload, payload_base64, ..Self::default() }
    }
}
