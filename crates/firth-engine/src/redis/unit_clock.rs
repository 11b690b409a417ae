//! What this client knows of the time of a store unit (a partition, a claim shard, a pool).
//!
//! A timed script gets what the client expects, and answers the unit's time; see `crate::clock` for
//! the rule and `lua/lib/timed.lua` for the other side.

use super::reply_decoding::Parts;
use crate::clock::{LogicalClock, Sample, boot_us};
use crate::error::Result;
use firth_redis::ScriptCall;
use firth_redis::resp::Value;
use std::sync::{Mutex, MutexGuard};

/// The last good sample of a unit's time.
#[derive(Debug, Default)]
pub(super) struct UnitClock(Mutex<Option<Sample>>);

/// When a request was sent, in µs since the machine started.
#[derive(Clone, Copy)]
pub(super) struct SentAt(u64);

impl SentAt {
    pub(super) fn now() -> Self {
        Self(boot_us())
    }
}

/// The clock as a unit keeps it: `offset last`, or nothing. A damaged text counts as nothing, as in
/// `lua/lib/clock.lua`.
pub(super) fn read_clock(value: Value<'_>) -> LogicalClock {
    const EXACT: u64 = (1 << 53) - 1;
    let read = |text: &str| {
        let (offset, last) = text.split_once(' ')?;
        let offset: i64 = offset.parse().ok()?;
        let last: u64 = last.parse().ok()?;
        (offset.unsigned_abs() <= EXACT && last <= EXACT).then_some(LogicalClock { offset, last })
    };
    value.as_str().and_then(read).unwrap_or_default()
}

impl UnitClock {
    /// Adds what a timed script takes: the time that is expected, and its slack.
    pub(super) fn timed(&self, call: ScriptCall) -> (ScriptCall, SentAt) {
        let now = boot_us();
        let expected = self.lock().and_then(|sample| sample.expected(now));
        let call = match expected {
            Some(expected) => call.arg(expected.us).arg(expected.slack),
            None => call.arg("").arg(""),
        };
        (call, SentAt(now))
    }

    /// Reads the answer of a timed script: the time, and what stands behind it.
    pub(super) fn heard<'a>(&self, sent: SentAt, answer: Value<'a>) -> Result<Parts<'a>> {
        self.hear(sent, answer, true).map(|(_, parts)| parts)
    }

    /// As [`heard`](Self::heard), of a script that only looks; with the time.
    pub(super) fn looked<'a>(&self, sent: SentAt, answer: Value<'a>) -> Result<(u64, Parts<'a>)> {
        self.hear(sent, answer, false)
    }

    fn hear<'a>(&self, sent: SentAt, answer: Value<'a>, binding: bool) -> Result<(u64, Parts<'a>)> {
        let mut parts = Parts::of(answer);
        let told = parts.number()?;
        let next = Sample::new(told, sent.0, boot_us());
        let mut sample = self.lock();
        *sample = Some(sample.map_or(next, |sample| sample.then(next, binding)));
        Ok((told, parts))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sample>> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}
