//! A hook that sees every request after it ended: for slow logs, spans, tests. It runs in the caller's task, never in
//! the connection's (invariant 3), and sees names and sizes only, never arguments or answers (invariant 10).

use std::{sync::Arc, time::Duration};

/// What is told of one request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RequestTrace {
    /// Counts the requests of this process.
    pub id: u64,
    /// The name of the command, or of the pipeline's kind.
    pub name: String,
    /// How many commands it held.
    pub commands: usize,
    /// Bytes sent, at most.
    pub bytes: usize,
    /// From the call to its end, waiting for room included.
    pub duration: Duration,
    /// Answers that were no errors.
    pub ok: usize,
    /// Answers that were errors; all of them if the connection failed.
    pub errors: usize,
    /// The first error: the server's code (its words may repeat arguments), or what happened to the connection.
    pub first_error: Option<String>,
}

/// The user's function.
#[derive(Clone)]
pub struct TraceHook(Arc<dyn Fn(&RequestTrace) + Send + Sync>);

impl TraceHook {
    /// Wraps a function. A panic in it reaches the caller of the request.
    pub fn new(hook: impl Fn(&RequestTrace) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    pub(crate) fn tell(&self, trace: &RequestTrace) {
        (self.0)(trace);
    }
}

impl std::fmt::Debug for TraceHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TraceHook")
    }
}
