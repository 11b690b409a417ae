//! How often a record failed before, as engines store it: in one text with its last reason, so that
//! records which fail together share it.
//!
//! The newest failure comes first: `reason 0x1F attempt second member`, and the next one behind
//! 0x1E. An older build stored the reason alone. On Redis, `lua/lib/failures.lua` writes this text.

use crate::commit::cut_reason;
use crate::limits::{MAX_FAILURES, MAX_PAST_REASON};
use std::borrow::Cow;
use std::time::Duration;

/// Ends a reason.
const UNIT: char = '\x1F';
/// Ends a failure.
const RECORD: char = '\x1E';

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Which one; 1 was the first delivery. A replay starts again at 1.
    pub attempt: u32,
    /// Why it failed. Only the last failure has its whole reason.
    pub reason: String,
    /// How long ago, to the second; `None` if an older build stored it.
    pub age: Option<Duration>,
    /// The owner of the partition; `None` if an older build stored it.
    pub member: Option<String>,
}

/// What is known of a record's failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    /// The last reason.
    pub(crate) reason: String,
    /// The last ones, the newest first; none if an older build stored the reason alone.
    pub(crate) attempts: Vec<FailedAttempt>,
}

impl Failures {
    /// Reads a stored text; `now` in milliseconds.
    pub(crate) fn read(text: &str, now_ms: u64) -> Self {
        let mut attempts: Vec<FailedAttempt> = Vec::new();
        for part in text.split(RECORD) {
            let newer = attempts.last().map(|newer| newer.attempt);
            // Only an older build's reason, which may hold any characters, is not understood.
            let Some(failure) = read_one(part, newer, now_ms) else { break };
            attempts.push(failure);
        }
        let reason = attempts.first().map_or(text, |last| &last.reason).to_owned();
        Self { reason, attempts }
    }
}

/// One failure. Only an older one may lack what stands behind its reason.
fn read_one(part: &str, newer: Option<u32>, now_ms: u64) -> Option<FailedAttempt> {
    let Some((reason, rest)) = part.split_once(UNIT) else {
        let attempt = newer?.saturating_sub(1);
        return Some(FailedAttempt { attempt, reason: part.to_owned(), age: None, member: None });
    };
    let mut words = rest.splitn(3, ' ');
    let attempt = words.next()?.parse().ok()?;
    let at: u64 = words.next()?.parse().ok()?;
    let member = Some(words.next()?.to_owned());
    let age = Some(Duration::from_secs((now_ms / 1000).saturating_sub(at)));
    Some(FailedAttempt { attempt, reason: reason.to_owned(), age, member })
}

/// A reason as it may be stored: cut, and without the characters that end it.
pub(crate) fn stored_reason(reason: &str) -> Cow<'_, str> {
    let reason = cut_reason(reason);
    match reason.contains([UNIT, RECORD]) {
        true => Cow::Owned(reason.replace([UNIT, RECORD], " ")),
        false => Cow::Borrowed(reason),
    }
}

/// The text after one more failure. `former` is the text before it.
pub(crate) fn failed(former: Option<&str>, reason: &str, attempt: u32, now_ms: u64, member: &str) -> String {
    let reason = stored_reason(reason);
    let now = now_ms / 1000;
    let mut text = format!("{reason}{UNIT}{attempt} {now} {member}");
    if let Some(former) = former {
        let (reason, rest) = former.split_at(former.find(UNIT).unwrap_or(former.len()));
        text.push(RECORD);
        text.push_str(&reason[..reason.floor_char_boundary(MAX_PAST_REASON)]);
        let mut ends = rest.match_indices(RECORD).map(|(at, _)| at);
        text.push_str(&rest[..ends.nth(MAX_FAILURES - 2).unwrap_or(rest.len())]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(text: &str) -> Vec<(u32, String, Option<u64>, Option<String>)> {
        let view =
            |one: FailedAttempt| (one.attempt, one.reason, one.age.map(|age| age.as_secs()), one.member);
        Failures::read(text, 100_000).attempts.into_iter().map(view).collect()
    }

    #[test]
    fn what_failed_is_read_back_the_newest_first() {
        let first = failed(None, "slow\x1f", 1, 91_999, "a");
        let second = failed(Some(&first), "broken", 2, 95_000, "b");
        let expected = [
            (2, "broken".to_owned(), Some(5), Some("b".to_owned())),
            (1, "slow ".to_owned(), Some(9), Some("a".to_owned())),
        ];
        assert_eq!(told(&second), expected);
        assert_eq!(Failures::read(&second, 0).reason, "broken");
    }

    #[test]
    fn the_reason_that_an_older_build_stored_is_read() {
        let plain = Failures::read("slow", 9);
        assert_eq!((plain.reason.as_str(), plain.attempts.len()), ("slow", 0));
        let odd = "slow\x1fand\x1eodd";
        assert_eq!(Failures::read(odd, 9).reason, odd);
        assert_eq!(told(&failed(Some(odd), "broken", 3, 0, "b")).len(), 1);
        let again = failed(Some("slow"), "broken", 3, 100_000, "b");
        assert_eq!(told(&again)[1], (2, "slow".to_owned(), None, None));
    }

    #[test]
    fn the_last_eight_failures_are_kept_and_past_reasons_are_cut_at_a_character() {
        let reason = format!("x{}", "ä".repeat(1000));
        let text = (2..=20).fold(failed(None, &reason, 1, 0, "m"), |text, attempt| {
            failed(Some(&text), &reason, attempt, 0, "m")
        });
        let found = told(&text);
        assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), (13..=20).rev().collect::<Vec<_>>());
        assert_eq!((found[0].1.len(), found[1].1.len()), (1023, 255));
        assert!(text.len() < 1024 + MAX_FAILURES * 300, "{}", text.len());
    }

    proptest! {
        #[test]
        fn any_text_is_read_and_can_fail_again(text: String, reason: String) {
            let again = failed(Some(&text), &reason, 2, 7, "m");
            prop_assert_eq!(Failures::read(&again, 7).reason, stored_reason(&reason));
            Failures::read(&text, 7);
        }
    }
}
