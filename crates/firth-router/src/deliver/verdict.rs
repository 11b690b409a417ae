//! What a gateway's answer means, the same on every wire that tells it by numbers of HTTP; and the wait for it.

use crate::error::{Error, ErrorKind, Result};
use crate::lane::{Answer, Outcome};
use crate::registry::Gateway;
use std::time::Duration;

/// The longest pause that a gateway can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Waits for what becomes of a delivery, no longer than `timeout`. Whatever is no answer leaves the gateway unreached; `silent` hears that
/// the time was up.
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

/// What a status that is no success says of a batch of so many events. `retry_after` is the header of that name.
pub(super) fn of_status(status: u16, retry_after: Option<&str>, events: usize) -> Result<Outcome> {
    let pause = retry_after.and_then(|text| text.trim().parse().ok());
    let pause = pause.map(|seconds| Duration::from_secs(seconds).min(MAX_PAUSE));
    match status {
        429 => Ok(Outcome::Busy(pause)),
        503 if retry_after.is_some() => Ok(Outcome::Busy(pause)),
        // What the batch's content caused, rather than who sent it or where: another attempt later cannot help there.
        400 | 406 | 409 | 413 | 415 | 422 => {
            let reason = format!("the gateway answered {status}");
            Ok(Outcome::Answered(vec![Answer::Refused(reason); events]))
        }
        _ => Err(Error::new(ErrorKind::Unavailable, format!("the gateway answered {status}"))),
    }
}

pub(super) fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, "the gateway cannot be reached").with_source(error)
}
