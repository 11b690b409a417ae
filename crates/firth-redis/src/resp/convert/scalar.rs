//! Conversions of scalars: text, numbers, booleans.

use super::{ConvertError, ConvertProblem, FromValue};
use crate::resp::frame::Frame;
use crate::resp::kind::ValueKind;
use crate::resp::value::Value;
use bytes::Bytes;
use std::num::IntErrorKind;
use std::sync::Arc;

/// Lends the text of a string, or of a number, which is how RESP2 sends numbers.
#[inline]
fn with_text<R>(
    value: Value<'_>,
    read: impl FnOnce(&[u8]) -> Result<R, ConvertError>,
) -> Result<R, ConvertError> {
    match value.kind() {
        ValueKind::Integer => read(itoa::Buffer::new().format(value.as_i64().unwrap_or_default()).as_bytes()),
        ValueKind::Double => read(value.as_f64().unwrap_or_default().to_string().as_bytes()),
        _ => read(value.as_bytes().ok_or_else(|| ConvertError::mismatch("string", value))?),
    }
}

fn utf8(text: &[u8]) -> Result<&str, ConvertError> {
    std::str::from_utf8(text).map_err(|_| ConvertError::new(ConvertProblem::InvalidUtf8))
}

macro_rules! strings {
    ($($type:ty),* $(,)?) => {$(
        impl FromValue for $type {
            fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
                with_text(value, |text| utf8(text).map(Into::into))
            }
        }
    )*};
}
strings!(String, Box<str>, Arc<str>);

/// Shares the frame's bytes. Keeping it keeps the read buffer that it arrived in: copy what is kept
/// for long.
impl FromValue for Bytes {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        match value.bytes() {
            Some(bytes) => Ok(bytes),
            None => Vec::from_value(value).map(Self::from),
        }
    }

    #[inline]
    fn from_frame(frame: Frame) -> Result<Self, ConvertError> {
        match frame.into_bytes() {
            Ok(bytes) => Ok(bytes),
            Err(frame) => Self::from_value(frame.value()),
        }
    }
}

fn owned_text(value: Value<'_>) -> Result<Vec<u8>, ConvertError> {
    with_text(value, |text| Ok(text.to_vec()))
}

macro_rules! integer {
    ($type:ident $(, $list:item)?) => {
        impl FromValue for $type {
            #[inline]
            fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
                let out_of_range = || ConvertError::new(ConvertProblem::OutOfRange { target: stringify!($type) });
                if let (ValueKind::Integer, Some(number)) = (value.kind(), value.as_i64()) {
                    return Self::try_from(number).map_err(|_| out_of_range());
                }
                let Some(text) = value.as_str() else { return Err(ConvertError::mismatch("integer", value)) };
                text.parse::<Self>().map_err(|error| match error.kind() {
                    IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => out_of_range(),
                    // An unsigned type meets a minus sign as a stray character.
                    _ if text.parse::<i128>().is_ok() => out_of_range(),
                    _ => ConvertError::mismatch("integer", value),
                })
            }

            $($list)?
        }
    };
}

integer!(i8);
integer!(i16);
integer!(i32);
integer!(i64);
integer!(i128);
integer!(isize);
integer!(u16);
integer!(u32);
integer!(u64);
integer!(u128);
integer!(usize);
integer!(
    u8,
    fn list_from_value(value: Value<'_>) -> Result<Vec<u8>, ConvertError> {
        owned_text(value)
    }
);

impl FromValue for f64 {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        value.as_f64().ok_or_else(|| ConvertError::mismatch("number", value))
    }
}

impl FromValue for f32 {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        let wide = f64::from_value(value)?;
        let narrow = wide as Self;
        if narrow.is_infinite() && wide.is_finite() {
            return Err(ConvertError::new(ConvertProblem::OutOfRange { target: "f32" }));
        }
        Ok(narrow)
    }
}

/// A boolean, 0 or 1 as a number or text, or `OK`.
impl FromValue for bool {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        match (value.as_bool(), value.as_bytes()) {
            (Some(known), _) => Ok(known),
            (None, Some(b"1")) => Ok(true),
            (None, Some(b"0")) => Ok(false),
            (None, Some(b"OK")) if value.kind() == ValueKind::SimpleString => Ok(true),
            _ => Err(ConvertError::mismatch("boolean", value)),
        }
    }
}
