//! The RESP3 codec: bytes to frames, frames to Rust values, arguments to bytes.
//!
//! The connection gives its read buffer to a [`Decoder`] and gets whole [`Frame`]s. Callers convert
//! a frame into their own type by [`FromValue`], or walk it through [`Value`]. Commands are written
//! with [`ToArg`]. Everything here is pure: no sockets, no clock, no tasks. RESP2 replies are a
//! subset and decode alike.
//!
//! ```
//! use bytes::BytesMut;
//! use firth_redis::resp::{Decoder, FromValue, ReplyLimits};
//!
//! let mut decoder = Decoder::new(ReplyLimits::default());
//! let mut buf = BytesMut::from(&b"*2\r\n$5\r\nhello\r\n:42\r\n*1"[..]);
//! let frame = decoder.decode(&mut buf)?.expect("one whole frame is there");
//! assert_eq!(<(String, i64)>::from_frame(frame)?, ("hello".to_owned(), 42));
//! assert!(decoder.decode(&mut buf)?.is_none(), "the second one is not whole yet");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod convert;
mod decode;
mod encode;
mod frame;
mod kind;
mod limits;
mod parse;
mod partial;
pub(crate) mod pubsub;
mod quick;
mod stream;
mod tree;
mod value;

pub(crate) use convert::Execution;
pub use convert::{ConvertError, ConvertProblem, FromValue, Ignore, Segment, ServerError, ValuePath};
pub use decode::Decoder;
pub use encode::{ByteSink, ToArg, put_array_header, put_bulk};
pub use frame::Frame;
pub use kind::ValueKind;
pub use limits::{ProtocolError, ReplyLimits};
pub use stream::StreamEntry;
pub use tree::Tree;
pub use value::{Children, Pairs, Value};

#[cfg(test)]
mod tests;
