//! What to do about an answer that is none: follow a redirection, wait and try again, or tell the caller. Pure.
//!
//! Nothing is ever sent twice that may have run: only what a node refused before running it, and what never left this
//! process, is sent again. Everything is bounded by a number of tries and by the request's deadline.

use std::time::Duration;

use tokio::time::Instant;

use super::parse::host_and_port;
use crate::{backoff::Backoff, error::CallError};

/// Redirections that are followed without a pause; more of them mean that the nodes do not agree yet.
const PROMPT: u32 = 3;

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
pub(crate) enum Step {
    /// It is the caller's.
    Done,
    /// The slot lives elsewhere: go there, and remember it.
    Moved { slot: u16, to: Announced },
    /// This key is already elsewhere, the slot not yet: go there once.
    Ask { to: Announced },
    /// Look at the cluster anew, wait a little, and try again.
    Again(Why),
}

/// An address as a node announced it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Empty if it is that of the node that said so.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Why to try again; each is a label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
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
    /// A blocking command that was thrown out because its master was demoted.
    Unblocked,
    /// The node could not be reached, and nothing was sent.
    Unreachable,
    /// A redirection to an address that nobody knows.
    Nowhere,
}

impl Why {
    /// In the order of their numbers.
    pub(crate) const ALL: [Self; 8] = [
        Self::TryAgain,
        Self::ClusterDown,
        Self::MasterDown,
        Self::Loading,
        Self::ReadOnly,
        Self::Unblocked,
        Self::Unreachable,
        Self::Nowhere,
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
            Self::Nowhere => "nowhere",
        }
    }
}

impl Step {
    /// By the server's error: code and the rest of the line.
    pub(crate) fn of_error(code: &str, rest: &str) -> Self {
        match code {
            "MOVED" => {
                redirection(rest).map_or(Self::Again(Why::Nowhere), |(slot, to)| Self::Moved { slot, to })
            }
            "ASK" => redirection(rest).map_or(Self::Again(Why::Nowhere), |(_, to)| Self::Ask { to }),
            "TRYAGAIN" => Self::Again(Why::TryAgain),
            "CLUSTERDOWN" => Self::Again(Why::ClusterDown),
            "MASTERDOWN" => Self::Again(Why::MasterDown),
            "LOADING" => Self::Again(Why::Loading),
            "READONLY" => Self::Again(Why::ReadOnly),
            // Not where an operator unblocked it, or its key is gone: that is the caller's to know.
            "UNBLOCKED" if rest.starts_with("force unblock") => Self::Again(Why::Unblocked),
            _ => Self::Done,
        }
    }

    /// By what happened to the connection.
    pub(crate) fn of_failure(error: &CallError) -> Self {
        match error {
            CallError::Down { .. }
            | CallError::Lost { sent: false, .. }
            | CallError::Closed { sent: false } => Self::Again(Why::Unreachable),
            _ => Self::Done,
        }
    }

    /// Whether an error says that the topology may have changed, even if the request is not tried again.
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
fn redirection(rest: &str) -> Option<(u16, Announced)> {
    let mut words = rest.split(' ');
    let slot = words.next()?.parse().ok().filter(|slot| *slot < 16_384)?;
    let (host, port) = host_and_port(words.next()?)?;
    (host != "?").then(|| (slot, Announced { host: host.to_owned(), port }))
}

/// How much more a request may try.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    started: Instant,
    timeout: Option<Duration>,
    tries: u32,
    max: u32,
}

impl Budget {
    pub(crate) fn new(started: Instant, timeout: Option<Duration>, max: u32) -> Self {
        Self { started, timeout, tries: 0, max }
    }

    /// Uses up one try. The pause before it, or `None` if there is none left, or no time for it.
    pub(crate) fn spend(&mut self, step: &Step, now: Instant) -> Option<Duration> {
        if self.tries >= self.max || *step == Step::Done {
            return None;
        }
        let pause = match step {
            Step::Moved { .. } | Step::Ask { .. } if self.tries < PROMPT => Duration::ZERO,
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

    /// An attempt's error in terms of the whole request.
    pub(crate) fn whole(&self, error: CallError) -> CallError {
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

    fn announced(host: &str, port: u16) -> Announced {
        Announced { host: host.into(), port }
    }

    #[test]
    fn errors_of_a_server_are_followed_retried_or_told() {
        let again = Step::Again;
        for (line, expected) in [
            ("MOVED 3999 10.0.0.1:6381", Step::Moved { slot: 3999, to: announced("10.0.0.1", 6381) }),
            ("MOVED 3999 :6381", Step::Moved { slot: 3999, to: announced("", 6381) }),
            ("MOVED 3999 ::1:6381", Step::Moved { slot: 3999, to: announced("::1", 6381) }),
            ("MOVED 3999 ?:6381", again(Why::Nowhere)),
            ("MOVED 16384 h:1", again(Why::Nowhere)),
            ("MOVED", again(Why::Nowhere)),
            ("ASK 3999 h:6381", Step::Ask { to: announced("h", 6381) }),
            ("TRYAGAIN Multiple keys request during rehashing of slot", again(Why::TryAgain)),
            ("CLUSTERDOWN Hash slot not served", again(Why::ClusterDown)),
            ("MASTERDOWN Link with MASTER is down", again(Why::MasterDown)),
            ("LOADING Redis is loading the dataset in memory", again(Why::Loading)),
            ("READONLY You can't write against a read only replica.", again(Why::ReadOnly)),
            ("UNBLOCKED force unblock from blocking operation", again(Why::Unblocked)),
            ("UNBLOCKED client unblocked via CLIENT UNBLOCK", Step::Done),
            ("ERR unknown command", Step::Done),
            ("CROSSSLOT Keys in request don't hash to the same slot", Step::Done),
            ("NOSCRIPT No matching script", Step::Done),
            ("WRONGTYPE Operation", Step::Done),
        ] {
            let (code, rest) = line.split_once(' ').unwrap_or((line, ""));
            assert_eq!(Step::of_error(code, rest), expected, "{line}");
        }
    }

    #[test]
    fn every_reason_has_its_own_label() {
        for (number, why) in Why::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, number);
        }
        let names: std::collections::HashSet<_> = Why::ALL.map(Why::name).into_iter().collect();
        assert_eq!(names.len(), Why::ALL.len());
    }

    #[test]
    fn what_was_sent_is_never_sent_again() {
        let cause = LostCause::Eof;
        let again = Step::Again(Why::Unreachable);
        for (error, expected) in [
            (CallError::Down { cause: cause.clone() }, again.clone()),
            (CallError::Lost { sent: false, cause: cause.clone() }, again.clone()),
            (CallError::Lost { sent: true, cause }, Step::Done),
            (CallError::Closed { sent: false }, again),
            (CallError::Closed { sent: true }, Step::Done),
            (CallError::Timeout { after: Duration::ZERO, sent: true }, Step::Done),
            (CallError::Timeout { after: Duration::ZERO, sent: false }, Step::Done),
            (CallError::Full { what: "queue", limit: 1 }, Step::Done),
            (CallError::Conflict, Step::Done),
            (CallError::Invalid(String::new()), Step::Done),
        ] {
            assert_eq!(Step::of_failure(&error), expected, "{error}");
        }
    }

    #[test]
    fn tries_are_bounded_and_redirections_are_prompt_at_first() {
        let now = Instant::now();
        let mut budget = Budget::new(now, None, 5);
        let moved = Step::Moved { slot: 1, to: announced("h", 1) };
        let pauses: Vec<_> = (0..6).map(|_| budget.spend(&moved, now)).collect();
        assert_eq!(&pauses[..3], [Some(Duration::ZERO); 3]);
        assert!(pauses[3].is_some_and(|p| p > Duration::ZERO) && pauses[4].is_some());
        assert_eq!(pauses[5], None);
        assert_eq!(Budget::new(now, None, 5).spend(&Step::Done, now), None);
        assert_eq!(Budget::new(now, None, 0).spend(&moved, now), None);
    }

    #[test]
    fn pauses_grow_and_end_with_the_deadline() {
        let now = Instant::now();
        let step = Step::Again(Why::TryAgain);
        let mut budget = Budget::new(now, Some(Duration::from_secs(60)), 100);
        let first = budget.spend(&step, now).unwrap();
        assert!(first >= Duration::from_millis(7) && first <= Duration::from_millis(13), "{first:?}");
        let later = (0..20).filter_map(|_| budget.spend(&step, now)).last().unwrap();
        assert!(later >= Duration::from_millis(350) && later <= Duration::from_millis(500), "{later:?}");
        assert_eq!(budget.time_left(now + Duration::from_secs(59)), Some(Some(Duration::from_secs(1))));
        assert_eq!(budget.time_left(now + Duration::from_secs(60)), None);
        let mut short = Budget::new(now, Some(Duration::from_millis(5)), 100);
        assert_eq!(short.spend(&step, now), None, "a pause that outlives the deadline is not begun");
    }

    #[test]
    fn a_timeout_names_the_limit_of_the_whole_request() {
        let budget = Budget::new(Instant::now(), Some(Duration::from_secs(9)), 1);
        let error = budget.whole(CallError::Timeout { after: Duration::from_secs(2), sent: true });
        assert!(matches!(error, CallError::Timeout { after, sent: true } if after == Duration::from_secs(9)));
    }
}
