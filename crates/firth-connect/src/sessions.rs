//! [`Sessions`]: what follows when a session of a reader has ended: the right pause, or the end.

use crate::error::{Error, ErrorKind};
use crate::progress::{Condition, Progress};
use std::time::Duration;

/// Between tries after a passing failure: from the first to the last.
const PASSING: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Between tries while an operator must do something.
const STANDING: Duration = Duration::from_secs(30);

/// The sessions of one reader, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// Passing failures in a row.
    failures: u32,
    /// What was stored when the session began.
    stored: u64,
}

impl Sessions {
    /// A session begins.
    pub(crate) fn begin(&mut self, progress: &Progress) {
        progress.enter(Condition::Starting, None);
        self.stored = progress.status().appended;
    }

    /// A session ended. Answers the failure if a newer reader took over. Else returns when another
    /// session shall begin: never, if the source is lost. It stands still, and its status says why.
    pub(crate) async fn end(&mut self, source: &str, error: Error, progress: &Progress) -> Result<(), Error> {
        progress.ended(&error);
        match error.kind() {
            ErrorKind::Fenced => return Err(error),
            ErrorKind::Lost => {
                tracing::error!(source, %error, "a source lost its history and stands still");
                std::future::pending::<()>().await;
            }
            ErrorKind::Unavailable => {
                let has_moved = progress.status().appended > self.stored;
                self.failures = if has_moved { 1 } else { self.failures.saturating_add(1) };
                tracing::warn!(source, %error, failures = self.failures, "a source is read anew");
                tokio::time::sleep(pause(self.failures)).await;
            }
            _ => {
                tracing::error!(source, %error, "a source needs an operator");
                tokio::time::sleep(STANDING).await;
            }
        }
        Ok(())
    }
}

/// Doubles with each failure in a row, with a fifth of jitter.
fn pause(failures: u32) -> Duration {
    let (first, last) = PASSING;
    let pause = first.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(last);
    pause.mul_f64(0.8 + 0.4 * fastrand::f64())
}
