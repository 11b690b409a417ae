//! A request in flight: a future that submits it when first polled and waits in its slot.
//!
//! Dropping the future is safe at any point. The reply is then thrown away, and never given to
//! another request.

use super::RequestRoute;
use super::locked_state::Submitted;
use super::pipeline::{Replies, RequestFailure, RequestOutcome};
use super::request::Request;
use crate::command::Pipe;
use crate::config::Server;
use crate::error::CallError;
use crate::resp::Frame;
use crate::trace::{RequestKind, RequestStart, RequestTrace, TraceHook, next_id};
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

enum PendingState {
    New,
    /// Waits for room in the queue; the slow path, hence the box.
    Room(Pin<Box<dyn Future<Output = ()> + Send>>),
    Waiting(usize),
    Done,
}

pub(crate) struct PendingRequest<'c> {
    route: RequestRoute<'c>,
    request: Request<'c>,
    timeout: Option<Duration>,
    state: PendingState,
    /// Set if a hook traces, or if the request had to wait for room.
    started: Option<Instant>,
    /// Number of the request in traces; 0 before its start was traced.
    id: u64,
}

impl<'c> PendingRequest<'c> {
    #[inline(always)]
    pub(crate) fn new(route: RequestRoute<'c>, request: Request<'c>, timeout: Option<Duration>) -> Self {
        let started = route.shared().config.trace.is_some().then(Instant::now);
        Self { route, request, timeout, state: PendingState::New, started, id: 0 }
    }

    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Takes the request back, to be sent elsewhere. Only after the future has finished.
    pub(crate) fn take_request(&mut self) -> Request<'c> {
        debug_assert!(matches!(self.state, PendingState::Done), "a request under way is the connection's");
        std::mem::replace(&mut self.request, Request::Many(Cow::Owned(Pipe::default())))
    }

    /// What is sent.
    pub(crate) fn request(&self) -> &Request<'c> {
        &self.request
    }

    /// Where it goes.
    pub(crate) fn server(&self) -> &Server {
        &self.route.shared().config.server
    }

    #[inline]
    fn submit(&mut self, cx: &Context<'_>) -> Poll<Result<Replies, CallError>> {
        let Some(left) = self.time_left() else { return Poll::Ready(Err(self.late(false))) };
        match self.route.shared().submit(&self.request, left, cx.waker()) {
            Submitted::Queued(slot) => self.state = PendingState::Waiting(slot),
            Submitted::Refused(error) => return Poll::Ready(Err(error)),
            Submitted::Wait => {
                self.started.get_or_insert_with(Instant::now);
                let room = self.route.shared().clone().wait_for_room(self.request.wire_len());
                self.state = PendingState::Room(match left {
                    None => Box::pin(room),
                    Some(left) => Box::pin(async move {
                        // The next attempt shows whether there is room or the time is up.
                        let _ = tokio::time::timeout(left, room).await;
                    }),
                });
            }
        }
        Poll::Pending
    }

    /// The timeout less what was spent waiting for room; `None` if nothing is left.
    #[inline]
    fn time_left(&self) -> Option<Option<Duration>> {
        let Some(timeout) = self.timeout else { return Some(None) };
        let spent = match self.state {
            PendingState::Room(_) => self.started.map_or(Duration::ZERO, |s| s.elapsed()),
            _ => Duration::ZERO,
        };
        timeout.checked_sub(spent).filter(|left| !left.is_zero()).map(Some)
    }

    fn late(&self, sent: bool) -> CallError {
        CallError::Timeout { after: self.timeout.unwrap_or_default(), sent }
    }

    #[inline]
    fn explain(&self, outcome: RequestOutcome) -> Result<Replies, CallError> {
        outcome.map_err(|failure| match failure {
            RequestFailure::Timeout { sent } => self.late(sent),
            RequestFailure::Lost { sent, cause } => CallError::Lost { sent, cause },
            RequestFailure::Closed { sent } => CallError::Closed { sent },
        })
    }

    #[inline]
    fn finish(&mut self, result: Result<Replies, CallError>) -> Poll<Result<Replies, CallError>> {
        self.state = PendingState::Done;
        self.route.finished_request(&result);
        if let Some(hook) = &self.route.shared().config.trace {
            self.trace(hook, &result);
        }
        Poll::Ready(result)
    }

    /// Tells the hook, if there is one, that the request starts.
    #[inline]
    fn begin(&mut self) {
        if let Some(hook) = &self.route.shared().config.trace {
            let id = next_id();
            hook.begin(|| RequestStart {
                id,
                kind: RequestKind::User,
                name: self.request.name().to_owned(),
                commands: self.request.replies() as usize,
                bytes: self.request.wire_len(),
                node: self.route.shared().node(),
            });
            self.id = id;
        }
    }

    fn trace(&self, hook: &TraceHook, result: &Result<Replies, CallError>) {
        let frames: &[Frame] = match result {
            Ok(Replies::One(frame)) => std::slice::from_ref(frame),
            Ok(Replies::Many(frames)) => frames,
            Err(_) => &[],
        };
        let commands = self.request.replies() as usize;
        let ok = frames.iter().filter(|f| f.value().error().is_none()).count();
        // The server's words may repeat arguments, its code does not.
        let first = frames.iter().find_map(|f| f.value().error()).map(|(code, _)| code.to_owned());
        hook.tell(&RequestTrace {
            id: self.id,
            kind: RequestKind::User,
            name: self.request.name().to_owned(),
            commands,
            bytes: self.request.wire_len(),
            node: self.route.shared().node(),
            duration: self.started.map_or(Duration::ZERO, |s| s.elapsed()),
            ok,
            errors: commands - ok,
            first_error: first.or_else(|| result.as_ref().err().map(ToString::to_string)),
        });
    }
}

impl Future for PendingRequest<'_> {
    type Output = Result<Replies, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                PendingState::Waiting(slot) => {
                    let slot = *slot;
                    let Some(outcome) = this.route.shared().poll_outcome(slot, cx.waker()) else {
                        return Poll::Pending;
                    };
                    let result = this.explain(outcome);
                    return this.finish(result);
                }
                PendingState::Room(room) => {
                    if room.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
                PendingState::New => this.begin(),
                PendingState::Done => unreachable!("a finished request is not polled again"),
            }
            match this.submit(cx) {
                Poll::Ready(result) => return this.finish(result),
                Poll::Pending if matches!(this.state, PendingState::Waiting(_)) => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if let PendingState::Waiting(slot) = self.state {
            self.route.shared().abandon(slot);
        }
    }
}
