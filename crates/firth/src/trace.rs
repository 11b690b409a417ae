//! Trace context: the W3C `traceparent` header travels with messages.
//!
//! While a handler runs, its record's `traceparent` is current; whatever it sends without one of its own inherits it. So a chain of
//! topics stays one trace without any code in between. Starting a trace is the application's business: set the header on the first message.

use crate::message::Message;
use crate::record::Record;
use bytes::Bytes;

/// The header's name.
pub const TRACEPARENT: &str = "traceparent";

tokio::task_local! {
    static CURRENT: Option<Bytes>;
}

/// Gives `message` the current trace context, unless it has one.
pub(crate) fn inject(message: &mut Message) {
    if let Ok(Some(parent)) = CURRENT.try_with(Clone::clone)
        && !message.has_header(TRACEPARENT)
    {
        *message = std::mem::take(message).header(TRACEPARENT, parent);
    }
}

/// The trace context of `record`.
pub(crate) fn context_of(record: &Record) -> Option<Bytes> {
    record.headers().get(TRACEPARENT)
}

/// Runs `work` in a trace context.
pub(crate) fn enter<T>(context: Bytes, work: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(Some(context), work)
}
