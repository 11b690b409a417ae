//! What to do about an error: follow a redirection, wait and retry, or return it to the caller.
//! Pure.
//!
//! The client never sends a request twice that may have run. It retries only what a node refused
//! before running it, and what never left this process. Attempts and the request's deadline bound
//! all retries.

use super::parse::host_and_port;
use crate::backoff::Backoff;
use crate::error::CallError;
use std::time::Duration;
use tokio::time::Instant;

/// Redirections that are followed without a pause. More of them mean that the nodes do not agree
/// yet.
const IMMEDIATE: u32 = 3;

/// The pauses before a request is tried again.
const PAUSES: Backoff = Backoff {
    immediate: 0,
    first: Duration::from_millis(10),
    max: Duration::from_millis(500),
    factor: 2.0,
    jitter: 0.3,
};

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RetryDecision {
    /// Return the answer to the caller.
    Finish,
    /// The slot has another owner: send there, and remember it.
    Moved { slot: u16, to: AnnouncedAddress },
    /// The key has moved already, the slot has not: send there once.
    Ask { to: AnnouncedAddress },
    /// Refresh the topology, pause, and retry.
    Retry(RetryReason),
}

/// An address as a node announced it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnnouncedAddress {
    /// Empty if it is the host of the node that announced it.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Why to try again; each is a label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryReason {
    /// Some of the keys are here, some elsewhere.
    TryAgain,
    /// The cluster cannot serve the slot now.
    ClusterDown,
    /// A replica without its master.
    MasterDown,
    /// A node that has just started.
    Loading,
    /// A master that was demoted.
    ReadOnly,
    /// A blocking command that was ended because its master was demoted.
    Unblocked,
    /// The node could not be reached, and nothing was sent.
    Unreachable,
    /// A redirection to an unknown address.
    UnknownAddress,
}

impl RetryReason {
    /// In the order of their numbers.
    pub(crate) const ALL: [Self; 8] = [
        Self::TryAgain,
        Self::ClusterDown,
        Self::MasterDown,
        Self::Loading,
        Self::ReadOnly,
        Self::Unblocked,
        Self::Unreachable,
        Self::UnknownAddress,
    ];

    /// The label.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TryAgain => "tryagain",
            Self::ClusterDown => "clusterdown",
            Self::MasterDown => "masterdown",
            Self::Loading => "loading",
            Self::ReadOnly => "readonly",
            Self::Unblocked => "unblocked",
            Self::Unreachable => "unreachable",
            Self::UnknownAddress => "nowhere",
        }
    }
}

impl RetryDecision {
    /// By the server's error: code and the rest of the line.
    pub(crate) fn of_error(code: &str, rest: &str) -> Self {
        match code {
            "MOVED" => redirection(rest)
                .map_or(Self::Retry(RetryReason::UnknownAddress), |(slot, to)| Self::Moved { slot, to }),
            "ASK" => {
                redirection(rest).map_or(Self::Retry(RetryReason::UnknownAddress), |(_, to)| Self::Ask { to })
            }
            "TRYAGAIN" => Self::Retry(RetryReason::TryAgain),
            "CLUSTERDOWN" => Self::Retry(RetryReason::ClusterDown),
            "MASTERDOWN" => Self::Retry(RetryReason::MasterDown),
            "LOADING" => Self::Retry(RetryReason::Loading),
            "READONLY" => Self::Retry(RetryReason::ReadOnly),
            // If an operator unblocked it, or its key is gone, the caller must know.
            "UNBLOCKED" if rest.starts_with("force unblock") => Self::Retry(RetryReason::Unblocked),
            _ => Self::Finish,
        }
    }

    /// By what happened to the connection.
    pub(crate) fn of_failure(error: &CallError) -> Self {
        match error {
            CallError::Down { .. }
            | CallError::Lost { sent: false, .. }
            | CallError::Closed { sent: false } => Self::Retry(RetryReason::Unreachable),
            _ => Self::Finish,
        }
    }

    /// Whether an error hints at a changed topology, even without a retry.
    pub(crate) fn hints_at_change(error: &CallError) -> bool {
        matches!(
            error,
            CallError::Lost { .. }
                | CallError::Down { .. }
                | CallError::Timeout { .. }
                | CallError::Closed { .. }
        )
    }
}

/// `slot host:port`; the host `?` is one that the node does not know.
fn redirection(rest: &str) -> Option<(u16, AnnouncedAddress)> {
    let mut words = rest.split(' ');
    let slot = words.next()?.parse().ok().filter(|slot| *slot < 16_384)?;
    let (host, port) = host_and_port(words.next()?)?;
    (host != "?").then(|| (slot, AnnouncedAddress { host: host.to_owned(), port }))
}

/// Attempts and time that a request has left.
#[derive(Debug, Clone)]
pub(crate) struct RetryBudget {
    started: Instant,
    timeout: Option<Duration>,
    tries: u32,
    max: u32,
}

impl RetryBudget {
    pub(crate) fn new(started: Instant, timeout: Option<Duration>, max: u32) -> Self {
        Self { started, timeout, tries: 0, max }
    }

    /// Uses one attempt. Returns the pause before it, or `None` without attempts or time.
    pub(crate) fn spend(&mut self, decision: &RetryDecision, now: Instant) -> Option<Duration> {
        if self.tries >= self.max || *decision == RetryDecision::Finish {
            return None;
        }
        let pause = match decision {
            RetryDecision::Moved { .. } | RetryDecision::Ask { .. } if self.tries < IMMEDIATE => {
                Duration::ZERO
            }
            _ => PAUSES.delay(self.tries),
        };
        self.tries += 1;
        self.time_left(now + pause).is_some().then_some(pause)
    }

    /// `Some(None)` without a limit, `None` if the time is up.
    pub(crate) fn time_left(&self, now: Instant) -> Option<Option<Duration>> {
        let Some(timeout) = self.timeout else { return Some(None) };
        timeout.checked_sub(now.duration_since(self.started)).filter(|left| !left.is_zero()).map(Some)
    }

    /// Error of an attempt in terms of the whole request.
    pub(crate) fn in_whole_request(&self, error: CallError) -> CallError {
        match (error, self.timeout) {
            (CallError::Timeout { sent, .. }, Some(after)) => CallError::Timeout { after, sent },
            (error, _) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LostCause;

    fn announced(host: &str, port: u16) -> AnnouncedAddress {
        AnnouncedAddress { host: host.into(), port }
    }

    #[test]
    fn errors_of_a_server_are_followed_retried_or_told() {
        let again = RetryDecision::Retry;
        for (line, expected) in [
            (
                "MOVED 3999 10.0.0.1:6381",
                RetryDecision::Moved { slot: 3999, to: announced("10.0.0.1", 6381) },
            ),
            ("MOVED 3999 :6381", RetryDecision::Moved { slot: 3999, to: announced("", 6381) }),
            ("MOVED 3999 ::1:6381", RetryDecision::Moved { slot: 3999, to: announced("::1", 6381) }),
            ("MOVED 3999 ?:6381", again(RetryReason::UnknownAddress)),
            ("MOVED 16384 h:1", again(RetryReason::UnknownAddress)),
            ("MOVED", again(RetryReason::UnknownAddress)),
            ("ASK 3999 h:6381", RetryDecision::Ask { to: announced("h", 6381) }),
            ("TRYAGAIN Multiple keys request during rehashing of slot", again(RetryReason::TryAgain)),
            ("CLUSTERDOWN Hash slot not served", again(RetryReason::ClusterDown)),
            ("MASTERDOWN Link with MASTER is down", again(RetryReason::MasterDown)),
            ("LOADING Redis is loading the dataset in memory", again(RetryReason::Loading)),
            ("READONLY You can't write against a read only replica.", again(RetryReason::ReadOnly)),
            ("UNBLOCKED force unblock from blocking operation", again(RetryReason::Unblocked)),
            ("UNBLOCKED client unblocked via CLIENT UNBLOCK", RetryDecision::Finish),
            ("ERR unknown command", RetryDecision::Finish),
            ("CROSSSLOT Keys in request don't hash to the same slot", RetryDecision::Finish),
            ("NOSCRIPT No matching script", RetryDecision::Finish),
            ("WRONGTYPE Operation", RetryDecision::Finish),
        ] {
            let (code, rest) = line.split_once(' ').unwrap_or((line, ""));
            assert_eq!(RetryDecision::of_error(code, rest), expected, "{line}");
        }
    }

    #[test]
    fn every_reason_has_its_own_label() {
        for (number, reason) in RetryReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
        let names: std::collections::HashSet<_> =
            RetryReason::ALL.map(RetryReason::name).into_iter().collect();
        assert_eq!(names.len(), RetryReason::ALL.len());
    }

    #[test]
    fn what_was_sent_is_never_sent_again() {
        let cause = LostCause::Eof;
        let again = RetryDecision::Retry(RetryReason::Unreachable);
        for (error, expected) in [
            (CallError::Down { cause: cause.clone() }, again.clone()),
            (CallError::Lost { sent: false, cause: cause.clone() }, again.clone()),
            (CallError::Lost { sent: true, cause }, RetryDecision::Finish),
            (CallError::Closed { sent: false }, again),
            (CallError::Closed { sent: true }, RetryDecision::Finish),
            (CallError::Timeout { after: Duration::ZERO, sent: true }, RetryDecision::Finish),
            (CallError::Timeout { after: Duration::ZERO, sent: false }, RetryDecision::Finish),
            (CallError::Full { what: "queue", limit: 1 }, RetryDecision::Finish),
            (CallError::Conflict, RetryDecision::Finish),
            (CallError::Invalid(String::new()), RetryDecision::Finish),
        ] {
            assert_eq!(RetryDecision::of_failure(&error), expected, "{error}");
        }
    }

    #[test]
    fn tries_are_bounded_and_redirections_are_prompt_at_first() {
        let now = Instant::now();
        let mut budget = RetryBudget::new(now, None, 5);
        let moved = RetryDecision::Moved { slot: 1, to: announced("h", 1) };
        let pauses: Vec<_> = (0..6).map(|_| budget.spend(&moved, now)).collect();
        assert_eq!(&pauses[..3], [Some(Duration::ZERO); 3]);
        assert!(pauses[3].is_some_and(|p| p > Duration::ZERO) && pauses[4].is_some());
        assert_eq!(pauses[5], None);
        assert_eq!(RetryBudget::new(now, None, 5).spend(&RetryDecision::Finish, now), None);
        assert_eq!(RetryBudget::new(now, None, 0).spend(&moved, now), None);
    }

    #[test]
    fn pauses_grow_and_end_with_the_deadline() {
        let now = Instant::now();
        let decision = RetryDecision::Retry(RetryReason::TryAgain);
        let mut budget = RetryBudget::new(now, Some(Duration::from_secs(60)), 100);
        let first = budget.spend(&decision, now).unwrap();
        assert!(first >= Duration::from_millis(7) && first <= Duration::from_millis(13), "{first:?}");
        let later = (0..20).filter_map(|_| budget.spend(&decision, now)).last().unwrap();
        assert!(later >= Duration::from_millis(350) && later <= Duration::from_millis(500), "{later:?}");
        assert_eq!(budget.time_left(now + Duration::from_secs(59)), Some(Some(Duration::from_secs(1))));
        assert_eq!(budget.time_left(now + Duration::from_secs(60)), None);
        let mut short = RetryBudget::new(now, Some(Duration::from_millis(5)), 100);
        assert_eq!(short.spend(&decision, now), None, "a pause that outlives the deadline is not begun");
    }

    #[test]
    fn a_timeout_names_the_limit_of_the_whole_request() {
        let budget = RetryBudget::new(Instant::now(), Some(Duration::from_secs(9)), 1);
        let error = budget.in_whole_request(CallError::Timeout { after: Duration::from_secs(2), sent: true });
        assert!(matches!(error, CallError::Timeout { after, sent: true } if after == Duration::from_secs(9)));
    }
}
