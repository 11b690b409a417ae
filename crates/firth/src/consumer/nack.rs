//! [`Nack`]: a handler's "not done". `?` on any error means "try again".

use bytes::Bytes;
use firth_engine::DeadNote;
use smol_str::{SmolStr, ToSmolStr};
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// Why a record is not done, and what to do with it.
///
/// Any error turns into a retry by `?`, its chain of causes included in the reason:
///
/// ```
/// use firth::{Nack, Record};
/// async fn handle(record: Record) -> Result<(), Nack> {
///     let order: u64 = record.text()?.parse()?; // trouble: try again
///     if order == 0 {
///         return Err(Nack::reject("order 0 does not exist")); // hopeless: dead letter
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Nack {
    pub(crate) then: Then,
    /// Short ones, and copies of any, cost no memory: where many fail, these would live among many
    /// pieces that do not.
    pub(crate) reason: SmolStr,
    /// For the dead letter, if it becomes one.
    pub(crate) note: Option<Box<DeadNote>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Try again when the policy says, or after this long.
    Retry(Option<Duration>),
    /// Give it up at once.
    Reject,
}

impl Nack {
    /// Try again when the retry policy says so; give up after its last attempt.
    pub fn retry(why: impl fmt::Display) -> Self {
        Self { then: Then::Retry(None), reason: why.to_smolstr(), note: None }
    }

    /// Try again after `delay` instead of the policy's; its limit of attempts holds.
    pub fn retry_after(delay: Duration, why: impl fmt::Display) -> Self {
        Self { then: Then::Retry(Some(delay)), reason: why.to_smolstr(), note: None }
    }

    /// Never try again: make it a dead letter now.
    pub fn reject(why: impl fmt::Display) -> Self {
        Self { then: Then::Reject, reason: why.to_smolstr(), note: None }
    }

    /// If the record becomes a dead letter by this, the letter gets this header, in place of those
    /// of its name that the record has. So programs need not read the reason. A letter whose
    /// headers would break a limit keeps those of the record.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        self.note = Some(Box::new(DeadNote { name: name.into(), value: value.into() }));
        self
    }
}

impl<E: StdError> From<E> for Nack {
    fn from(error: E) -> Self {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            reason.push_str(": ");
            reason.push_str(&cause.to_string());
            source = cause.source();
        }
        Self { then: Then::Retry(None), reason: reason.into(), note: None }
    }
}

impl fmt::Debug for Nack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nack({:?}, {:?})", self.then, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ErrorKind};

    #[test]
    fn the_reason_tells_the_whole_chain_of_causes() {
        let error = Error::new(ErrorKind::Unavailable, "charge card").with_source("bank is closed");
        let nack = Nack::from(error);
        assert_eq!(
            (nack.then, nack.reason.as_str()),
            (Then::Retry(None), "unavailable: charge card: bank is closed")
        );
    }
}
