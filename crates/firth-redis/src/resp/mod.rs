//! The RESP3 codec: bytes to frames, frames to Rust values, arguments to bytes.
//!
//! The connection feeds its read buffer to a [`Decoder`] and gets whole [`Frame`]s; callers turn a frame into
//! their own type by [`FromValue`], or walk it through [`Value`]; commands are written with [`ToArg`].
//! Everything here is pure: no sockets, no clock, no tasks. RESP2 replies are a subset and decode alike.
//!
//! ```
//! use bytes::BytesMut;
//! use firth_redis::resp::{Decoder, FromValue, Limits};
//!
//! let mut decoder = Decoder::new(Limits::default());
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

pub(crate) use convert::Proof;
pub use convert::{ConvertError, FromValue, Ignore, Path, Problem, Segment, ServerError};
pub use decode::Decoder;
pub use encode::{Sink, ToArg, put_array_header, put_bulk};
pub use frame::Frame;
pub use kind::Kind;
pub use limits::{Limits, ProtocolError};
pub use stream::StreamEntry;
pub use tree::Tree;
pub use value::{Children, Pairs, Value};

#[cfg(test)]
mod tests;
