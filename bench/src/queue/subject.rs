//! What a queue must offer to be measured. Each subject implements it in a file of its own, in its
//! documented best way.

use super::meter::Meter;
use anyhow::Result;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How messages are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// As fast as they are acknowledged.
    Full,
    /// One every so often, stamped with the time.
    Every(Duration),
}

/// One queue, prepared and empty.
pub(crate) trait Subject: Sized + Sync {
    /// Sends as many messages as the meter's goal and counts each as it is acknowledged, if it
    /// `counts`.
    fn produce(&self, meter: &Arc<Meter>, pace: Pace, counts: bool) -> impl Future<Output = Result<()>>;

    /// Handles and settles as many messages as the meter's goal, counting each; ends when all are
    /// settled. Payloads are sampled if `stamped`.
    fn consume(&self, meter: &Arc<Meter>, stamped: bool) -> impl Future<Output = Result<()>>;
}
