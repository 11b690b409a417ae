//! Hook that sees every request, when it starts and after it ended: for slow logs, spans, tests.
//!
//! For a caller's request the hook runs in the caller's task, for a handshake in a task of its own,
//! never in the connection's task (invariant 3). It sees names and sizes only, never arguments or
//! answers (invariant 10).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whose request it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestKind {
    /// A caller's.
    User,
    /// The client's own, with which a connection begins: HELLO, AUTH, SELECT and what is set up.
    Handshake,
}

/// What is told of one request when it starts: before it waits for room, a connection or an answer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RequestStart {
    /// Counts the requests of this process; the same as in its [`RequestTrace`].
    pub id: u64,
    /// Whose request it is.
    pub kind: RequestKind,
    /// The name of the command, or of the pipeline's kind.
    pub name: String,
    /// How many commands it holds.
    pub commands: usize,
    /// Bytes to send, at most.
    pub bytes: usize,
    /// The server that its connection leads to; `None` while that never stood.
    pub node: Option<Arc<str>>,
}

/// What is told of one request after it ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RequestTrace {
    /// Counts the requests of this process.
    pub id: u64,
    /// Whose request it is.
    pub kind: RequestKind,
    /// The name of the command, or of the pipeline's kind.
    pub name: String,
    /// How many commands it held.
    pub commands: usize,
    /// Bytes sent, at most.
    pub bytes: usize,
    /// The server that its connection leads to, by host and port or path; `None` if that never
    /// stood. In a cluster, the node.
    pub node: Option<Arc<str>>,
    /// From the call to its end, waiting for room included.
    pub duration: Duration,
    /// Answers that were no errors.
    pub ok: usize,
    /// Answers that were errors; all of them if the connection failed.
    pub errors: usize,
    /// The first error: the server's code (its words may repeat arguments), or what happened to the
    /// connection.
    pub first_error: Option<String>,
}

type Hook<T> = Arc<dyn Fn(&T) + Send + Sync>;

/// The user's functions.
#[derive(Clone)]
pub struct TraceHook {
    ended: Hook<RequestTrace>,
    started: Option<Hook<RequestStart>>,
    handshakes: bool,
}

impl TraceHook {
    /// Wraps a function that is called after each request of a caller. A panic in it reaches that
    /// caller.
    pub fn new(hook: impl Fn(&RequestTrace) + Send + Sync + 'static) -> Self {
        Self { ended: Arc::new(hook), started: None, handshakes: false }
    }

    /// Calls this function when a request starts. A request whose future is dropped is never said
    /// to have ended.
    #[must_use]
    pub fn on_start(mut self, hook: impl Fn(&RequestStart) + Send + Sync + 'static) -> Self {
        self.started = Some(Arc::new(hook));
        self
    }

    /// Also tells of the requests with which connections begin. They are told in tasks of their
    /// own, so that their order is not that of the requests, and a panic reaches no caller.
    #[must_use]
    pub fn with_handshakes(mut self) -> Self {
        self.handshakes = true;
        self
    }

    pub(crate) fn sees_handshakes(&self) -> bool {
        self.handshakes
    }

    pub(crate) fn begin(&self, start: impl FnOnce() -> RequestStart) {
        if let Some(hook) = &self.started {
            hook(&start());
        }
    }

    pub(crate) fn tell(&self, trace: &RequestTrace) {
        (self.ended)(trace);
    }
}

/// The number of the next request.
pub(crate) fn next_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(1);
    IDS.fetch_add(1, Ordering::Relaxed)
}

impl std::fmt::Debug for TraceHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TraceHook")
    }
}
