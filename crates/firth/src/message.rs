//! [`Message`]: what users send. Plain data with chained setters; limits are checked when it is
//! sent.

use crate::error::{Result, invalid};
use bytes::Bytes;
use firth_engine::limits::MAX_DELAY;
use firth_engine::{Content, Encoding, Headers};
use serde::Serialize;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Something to send: a payload, and optionally a key, headers, a partition and a delay.
///
/// ```
/// use firth::Message;
/// let plain: Message = "hello".into();
/// let full = Message::new("paid").key("customer-42").header("kind", "invoice");
/// # assert_eq!(plain.payload(), "hello"); assert_eq!(full.payload(), "paid");
/// ```
#[derive(Clone, Default)]
pub struct Message {
    key: Option<Bytes>,
    payload: Bytes,
    headers: Vec<(String, Bytes)>,
    partition: Option<u32>,
    delay: Delay,
}

/// When it shall be seen, as the sender said it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Delay {
    #[default]
    None,
    After(Duration),
    At(SystemTime),
}

impl Message {
    /// A message with just a payload.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    /// A message whose payload is `value` as JSON; it gets the header
    /// `content-type: application/json`.
    pub fn json(value: &impl Serialize) -> Result<Self> {
        let payload = serde_json::to_vec(value)
            .map_err(|error| invalid("the message cannot be written as JSON").with_source(error))?;
        Ok(Self::new(payload).header("content-type", "application/json"))
    }

    /// Messages with one key go to one partition and stay in order.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header. Order is kept and a name may repeat.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sends it to this partition instead of the one that its key maps to.
    #[must_use]
    pub const fn to_partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Consumers see it this long after it was sent. It gets its place in the partition then.
    #[must_use]
    pub const fn deliver_after(mut self, delay: Duration) -> Self {
        self.delay = Delay::After(delay);
        self
    }

    /// Consumers see it at this time on the sender's clock; a time in the past means at once.
    #[must_use]
    pub const fn deliver_at(mut self, time: SystemTime) -> Self {
        self.delay = Delay::At(time);
        self
    }

    /// The payload.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    pub(crate) fn key_bytes(&self) -> Option<&Bytes> {
        self.key.as_ref()
    }

    pub(crate) fn partition(&self) -> Option<u32> {
        self.partition
    }

    /// About how many bytes the log keeps of it, without compression; never fewer than it does,
    /// also if it inherits a trace context.
    pub(crate) fn packed_len(&self) -> usize {
        const OVERHEAD: usize = 128;
        const RUNS: usize = 10;
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + RUNS).sum();
        OVERHEAD + self.key.as_ref().map_or(0, Bytes::len) + headers + self.payload.len()
    }

    pub(crate) fn delay(&self) -> Delay {
        self.delay
    }

    pub(crate) fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|(header, _)| header == name)
    }

    /// The delay from now on, and what the log will hold.
    pub(crate) fn into_content(self) -> Result<(Duration, Content)> {
        let now = SystemTime::now();
        let delay = match self.delay {
            Delay::None => Duration::ZERO,
            Delay::After(delay) => delay,
            Delay::At(time) => time.duration_since(now).unwrap_or_default(),
        };
        let wall = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let headers =
            if self.headers.is_empty() { Headers::new() } else { Headers::from_pairs(self.headers)? };
        let content = Content {
            key: self.key,
            payload: self.payload,
            headers,
            timestamp: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
            origin: None,
            encoding: Encoding::Plain,
        };
        content.check()?;
        if delay > MAX_DELAY {
            let most = u64::try_from(MAX_DELAY.as_millis()).unwrap_or(u64::MAX);
            let error = invalid("a message can be delayed by at most 366 days");
            return Err(error.with_field("after_ms").with_limit(most));
        }
        Ok((delay, content))
    }
}

/// Never shows key or payload.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("key_bytes", &self.key.as_ref().map(Bytes::len))
            .field("payload_bytes", &self.payload.len())
            .field("headers", &self.headers.len())
            .field("partition", &self.partition)
            .finish_non_exhaustive()
    }
}

impl From<Bytes> for Message {
    fn from(payload: Bytes) -> Self {
        Self::new(payload)
    }
}

impl From<Vec<u8>> for Message {
    fn from(payload: Vec<u8>) -> Self {
        Self::new(payload)
    }
}

impl From<String> for Message {
    fn from(payload: String) -> Self {
        Self::new(payload)
    }
}

impl From<&str> for Message {
    fn from(payload: &str) -> Self {
        Self::new(payload.to_owned())
    }
}

impl From<&[u8]> for Message {
    fn from(payload: &[u8]) -> Self {
        Self::new(payload.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn limits_are_named_when_the_message_is_sent() {
        let error = Message::new("x").key(vec![0; 2000]).into_content().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.context().contains("1024"), "{error}");
        let late = Message::new("x").deliver_after(Duration::from_secs(400 * 86_400));
        let error = late.into_content().unwrap_err();
        assert_eq!((error.field(), error.limit()), (Some("after_ms"), Some(366 * 86_400_000)));
    }

    #[test]
    fn a_time_in_the_past_means_at_once() {
        let (delay, _) = Message::new("x").deliver_at(UNIX_EPOCH).into_content().unwrap();
        assert_eq!(delay, Duration::ZERO);
    }

    #[test]
    fn debug_output_never_shows_what_is_sent() {
        let message = Message::new("secret-payload").key("secret-key").header("h", "secret-value");
        assert!(!format!("{message:?}").contains("secret"));
    }
}
