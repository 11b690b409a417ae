//! What a gateway's answer means, the same on every wire that tells it by numbers of HTTP; and the
//! wait for it.

use crate::error::{Error, ErrorKind, Result};
use crate::lane::{Answer, Outcome};
use crate::registry::Gateway;
use std::time::{Duration, SystemTime};

/// The longest pause that a gateway can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Waits at most `timeout` for the outcome of a delivery. If the delivery fails or times out, the
/// gateway counts as unreached. On a timeout, `wait` also calls `silent`.
pub(super) async fn wait(
    to: &Gateway,
    timeout: Duration,
    delivery: impl Future<Output = Result<Outcome>>,
    silent: impl FnOnce(),
) -> Outcome {
    match tokio::time::timeout(timeout, delivery).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => {
            tracing::debug!(gateway = %to.id, ?error, "a batch was not delivered");
            Outcome::Unreached
        }
        Err(_) => {
            silent();
            Outcome::Unreached
        }
    }
}

/// What a status that is no success says of a batch of `events` events. `retry_after` is the header
/// of that name.
pub(super) fn of_status(status: u16, retry_after: Option<&str>, events: usize) -> Result<Outcome> {
    let pause = retry_after.and_then(|text| pause(text.trim(), SystemTime::now()));
    match status {
        429 => Ok(Outcome::Busy(pause)),
        503 if retry_after.is_some() => Ok(Outcome::Busy(pause)),
        // What the batch's content caused, rather than who sent it or where: another attempt later
        // cannot help there.
        400 | 406 | 409 | 413 | 415 | 422 => {
            let reason = format!("the gateway answered {status}");
            Ok(Outcome::Answered(vec![Answer::Refused(reason); events]))
        }
        _ => Err(Error::new(ErrorKind::Unavailable, format!("the gateway answered {status}"))),
    }
}

/// What `Retry-After` asks for: seconds, or a date.
fn pause(text: &str, now: SystemTime) -> Option<Duration> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let until = || Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default());
    Some(seconds.or_else(until)?.min(MAX_PAUSE))
}

pub(super) fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, "the gateway cannot be reached").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r20_a_pause_is_asked_for_in_seconds_or_until_a_date() {
        let now = httpdate::parse_http_date("Tue, 17 Nov 2026 07:00:00 GMT").unwrap();
        let seconds = |text| pause(text, now).map(|pause| pause.as_secs());
        assert_eq!(seconds("7"), Some(7));
        assert_eq!(seconds("Tue, 17 Nov 2026 07:00:09 GMT"), Some(9));
        assert_eq!(seconds("Tue, 17 Nov 2026 09:00:00 GMT"), Some(60), "nobody is paused for hours");
        assert_eq!(seconds("Tue, 17 Nov 2026 06:00:00 GMT"), Some(0), "it is over");
        assert_eq!(seconds("soon"), None);
    }

    #[test]
    fn a_status_says_whether_to_wait_to_give_up_or_to_try_elsewhen() {
        let pause = |seconds| Outcome::Busy(Some(Duration::from_secs(seconds)));
        assert_eq!(of_status(429, None, 1).unwrap(), Outcome::Busy(None));
        assert_eq!(of_status(429, Some(" 7 "), 1).unwrap(), pause(7));
        assert_eq!(of_status(503, Some("9999"), 1).unwrap(), pause(60), "nobody is paused for hours");
        for status in [400, 406, 409, 413, 415, 422] {
            let Ok(Outcome::Answered(answers)) = of_status(status, None, 2) else { panic!("{status}") };
            assert_eq!(answers, vec![Answer::Refused(format!("the gateway answered {status}")); 2]);
        }
        // Not the events' fault: they wait, and the breaker counts.
        for status in [301, 401, 403, 404, 410, 500, 502, 503] {
            assert!(of_status(status, None, 1).is_err(), "{status}");
        }
    }
}
