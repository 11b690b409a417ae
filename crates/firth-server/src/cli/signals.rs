//! SIGINT and SIGTERM, as something to wait for.

use firth::{Error, ErrorKind, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that ask this process to stop.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Listens from now on: the signals end the process no more.
    pub(super) fn listen() -> Result<Self> {
        let hear = |kind| {
            signal(kind).map_err(|error| {
                Error::new(ErrorKind::Internal, "signals cannot be listened to").with_source(error)
            })
        };
        Ok(Self { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    /// The next signal. Dropping the future loses none.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Runs `work` to its end, and tells whether a signal came before the end.
    pub(super) async fn finish<T>(&mut self, work: impl Future<Output = T>) -> (T, bool) {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            () = self.next() => (work.await, true),
            done = &mut work => (done, false),
        }
    }
}
