//! Trace context: the W3C `traceparent` header travels with messages.
//!
//! While a handler runs, its record's `traceparent` is current. A message that the handler sends
//! without a `traceparent` of its own inherits it. So a chain of topics stays one trace without any
//! code in between. Starting a trace is the application's business: set the header on the first
//! message.
//!
//! A batch belongs to as many traces as its records do: their contexts are the `links` of its span.
//! What its handler sends inherits a context only if all records have the same one.

use crate::message::Message;
use crate::record::Record;
use bytes::Bytes;
use std::fmt;

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

/// How many contexts of a batch are told.
const MAX_LINKS: usize = 32;

/// The different trace contexts of a batch, as many as are told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    contexts: Vec<Bytes>,
    /// Some record has no context.
    some_have_none: bool,
}

impl Links {
    pub(crate) fn of(records: &[Record]) -> Self {
        Self::from_contexts(records.iter().map(context_of))
    }

    fn from_contexts(contexts: impl Iterator<Item = Option<Bytes>>) -> Self {
        let mut links = Self::default();
        for context in contexts {
            match context {
                None => links.some_have_none = true,
                Some(context) if links.contexts.contains(&context) => {}
                Some(context) if links.contexts.len() < MAX_LINKS => links.contexts.push(context),
                Some(_) => {}
            }
        }
        links
    }

    /// The one context of all records.
    pub(crate) fn shared(&self) -> Option<Bytes> {
        match &self.contexts[..] {
            [one] if !self.some_have_none => Some(one.clone()),
            _ => None,
        }
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, context) in self.contexts.iter().enumerate() {
            let separator = if at == 0 { "" } else { " " };
            write!(f, "{separator}{}", context.escape_ascii())?;
        }
        Ok(())
    }
}

/// Runs `work` in a trace context.
pub(crate) fn enter<T>(context: Bytes, work: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(Some(context), work)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(contexts: &[&'static str]) -> Links {
        let context = |text: &&'static str| (!text.is_empty()).then(|| Bytes::from_static(text.as_bytes()));
        Links::from_contexts(contexts.iter().map(context))
    }

    #[test]
    fn a_batch_inherits_the_one_context_of_all_its_records_and_is_linked_to_each() {
        assert_eq!(links(&["a", "a"]).shared(), Some(Bytes::from_static(b"a")));
        assert_eq!(links(&["a", "b"]).shared(), None);
        assert_eq!(links(&["a", ""]).shared(), None);
        assert_eq!(links(&["", ""]).shared(), None);
        assert_eq!(links(&["b", "a", "", "b"]).to_string(), "b a");
    }

    #[test]
    fn the_links_of_a_batch_are_bounded() {
        let many = (0..1000).map(|n: u32| Some(Bytes::from(n.to_string())));
        let links = Links::from_contexts(many);
        assert_eq!((links.contexts.len(), links.shared()), (MAX_LINKS, None));
    }
}
