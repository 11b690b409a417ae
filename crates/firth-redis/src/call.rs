//! Futures of [`Client`]: one command, a pipeline, a transaction. They convert
//! frames into the caller's types in the caller's task.

use crate::client::Client;
use crate::cluster::ClusterRequest;
use crate::command::Pipe;
use crate::connection::{PendingRequest, Replies, Request};
use crate::error::CallError;
use crate::error_origin::ErrorOrigin;
use crate::resp::{ConvertError, ConvertProblem, Execution, Frame, FromValue, ServerError, Value};
use crate::script::ScriptCall;
use std::borrow::Cow;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// A request: over one connection, through a cluster, or refused before it was sent.
#[allow(
    clippy::large_enum_variant,
    reason = "the large one is the usual one, and a box would be an allocation per call"
)]
pub(crate) enum RequestFuture<'c> {
    Single(PendingRequest<'c>),
    Cluster(ClusterRequest<'c>),
    Refused(Option<CallError>),
}

/// Replies of a request.
#[derive(Debug)]
pub(crate) enum ReplySet {
    /// The replies of one connection.
    Whole(Replies),
    /// The replies of several nodes, of which some may have failed.
    PerCommand(Vec<Result<Frame, CallError>>),
}

impl RequestFuture<'_> {
    fn set_timeout(&mut self, timeout: Option<Duration>) {
        match self {
            Self::Single(request) => request.set_timeout(timeout),
            Self::Cluster(request) => request.set_timeout(timeout),
            Self::Refused(_) => {}
        }
    }

    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ReplySet, CallError>> {
        match self {
            Self::Single(request) => Pin::new(request).poll(cx).map_ok(ReplySet::Whole),
            Self::Cluster(request) => Pin::new(request).poll(cx),
            Self::Refused(error) => {
                Poll::Ready(Err(error.take().expect("a finished call is not polled again")))
            }
        }
    }
}

/// A command in flight. It is sent when the future is first polled. Dropping the future is safe at
/// any time, but a command that was sent may still run.
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<'c, T> {
    request: RequestFuture<'c>,
    /// Who may make an error of it.
    origin: ErrorOrigin,
    answer: PhantomData<fn() -> T>,
}

impl<'c, T> Call<'c, T> {
    #[inline(always)]
    pub(crate) fn new(request: RequestFuture<'c>, origin: ErrorOrigin) -> Self {
        Self { request, origin, answer: PhantomData }
    }

    /// Gives up waiting after this time instead of the configured one.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.request.set_timeout(Some(limit));
        self
    }

    /// Waits without a limit. While the call waits, a silent server counts as dead only if other
    /// clients get an answer from it; see [`Liveness`](crate::config::Liveness).
    pub fn no_timeout(mut self) -> Self {
        self.request.set_timeout(None);
        self
    }
}

impl<T: FromValue> Future for Call<'_, T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match ready!(self.request.poll(cx))? {
            ReplySet::Whole(Replies::One(frame)) => Poll::Ready(convert_of(frame, self.origin)),
            _ => unreachable!("one command has one reply"),
        }
    }
}

/// A script in flight: by its digest, and in full if the server does not know it. Both attempts
/// share one time limit. See [`Call`].
#[must_use = "a call does nothing until it is awaited"]
pub struct EvalCall<'c, T> {
    client: &'c Client,
    script: &'c ScriptCall,
    call: Call<'c, T>,
    timeout: Option<Duration>,
    /// When it was first polled.
    started: Option<Instant>,
    in_full: bool,
}

impl<'c, T: FromValue> EvalCall<'c, T> {
    pub(crate) fn new(client: &'c Client, script: &'c ScriptCall, timeout: Option<Duration>) -> Self {
        let call = client.eval_known(script);
        Self { client, script, call, timeout, started: None, in_full: false }
    }

    /// Gives up waiting after this time instead of the configured one.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self.call = self.call.timeout(limit);
        self
    }

    /// Waits as long as it takes; see [`Call::no_timeout`].
    pub fn no_timeout(mut self) -> Self {
        self.timeout = None;
        self.call = self.call.no_timeout();
        self
    }

    /// Sends the whole script within what is left of the time.
    fn send_in_full(&mut self) {
        self.in_full = true;
        let call = self.client.call(self.script.in_full());
        let spent = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        self.call = match self.timeout {
            Some(limit) => call.timeout(limit.saturating_sub(spent)),
            None => call.no_timeout(),
        };
    }
}

impl<T: FromValue> Future for EvalCall<'_, T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.started.get_or_insert_with(Instant::now);
        let answer = match ready!(Pin::new(&mut this.call).poll(cx)) {
            Err(CallError::Server(error))
                if !this.in_full
                    && &*error.code == "NOSCRIPT"
                    && error.execution != Execution::MayHaveRun =>
            {
                this.send_in_full();
                ready!(Pin::new(&mut this.call).poll(cx))
            }
            answer => answer,
        };
        Poll::Ready(answer.map_err(|error| match (error, this.timeout) {
            (CallError::Timeout { sent, .. }, Some(after)) => CallError::Timeout { after, sent },
            (error, _) => error,
        }))
    }
}

/// Several commands in flight that were sent in one request; see [`Call`].
#[must_use = "a pipeline does nothing until it is awaited"]
pub struct PipelineCall<'c, R> {
    request: RequestFuture<'c>,
    commands: usize,
    /// Where errors in answer to each command may come from; empty if only from the server.
    origins: Box<[ErrorOrigin]>,
    transaction: bool,
    answer: PhantomData<fn() -> R>,
}

impl<'c, R> PipelineCall<'c, R> {
    /// Starts a pipeline.
    pub(crate) fn new(pipe: Cow<'c, Pipe>, start: impl FnOnce(Request<'c>) -> RequestFuture<'c>) -> Self {
        let commands = pipe.len();
        let origins = pipe.origins();
        let request = start(Request::Many(pipe));
        Self { request, commands, origins, transaction: false, answer: PhantomData }
    }

    /// Starts a transaction: the pipeline between MULTI and EXEC. Without commands nothing is sent.
    pub(crate) fn transaction(pipe: Pipe, start: impl FnOnce(Request<'c>) -> RequestFuture<'c>) -> Self {
        let commands = pipe.len();
        let origins = pipe.origins();
        let request = match commands {
            0 => RequestFuture::Refused(None),
            _ => start(Request::Many(Cow::Owned(pipe.in_transaction()))),
        };
        Self { request, commands, origins, transaction: true, answer: PhantomData }
    }

    /// Attributes the errors of scripts.
    fn marked(&self, index: usize, frame: Frame) -> Result<Frame, CallError> {
        let origin = self.origins.get(index).copied().unwrap_or_default();
        match ServerError::from_value(frame.value()) {
            Some(error) if origin != ErrorOrigin::Server => Err(attributed(error, origin).into()),
            _ => Ok(frame),
        }
    }

    /// Gives up waiting after this time instead of the configured one.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.request.set_timeout(Some(limit));
        self
    }

    /// Waits as long as it takes.
    pub fn no_timeout(mut self) -> Self {
        self.request.set_timeout(None);
        self
    }
}

impl<R: FromReplies> Future for PipelineCall<'_, R> {
    type Output = Result<R::Output, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if R::COUNT.is_some_and(|count| count != self.commands) {
            let expected = R::COUNT.unwrap_or_default();
            let problem =
                format!("a pipeline of {} commands was asked for {expected} answers", self.commands);
            return Poll::Ready(Err(CallError::Invalid(problem)));
        }
        if self.commands == 0 {
            return Poll::Ready(Ok(R::from_replies(std::iter::empty())));
        }
        let frames = match ready!(self.request.poll(cx))? {
            ReplySet::Whole(Replies::One(frame)) => vec![frame],
            ReplySet::Whole(Replies::Many(frames)) => frames,
            ReplySet::PerCommand(replies) => {
                let replies = replies.into_iter().enumerate();
                let marked = replies.map(|(index, reply)| reply.and_then(|frame| self.marked(index, frame)));
                return Poll::Ready(Ok(R::from_replies(marked)));
            }
        };
        let frames = if self.transaction { executed(frames, self.commands)? } else { frames };
        if self.origins.is_empty() {
            return Poll::Ready(Ok(R::from_replies(frames.into_iter().map(Ok))));
        }
        let marked = frames.into_iter().enumerate().map(|(index, frame)| self.marked(index, frame));
        Poll::Ready(Ok(R::from_replies(marked)))
    }
}

/// The answers inside EXEC's answer.
fn executed(mut frames: Vec<Frame>, commands: usize) -> Result<Vec<Frame>, CallError> {
    let exec = frames.pop().expect("a transaction ends with EXEC");
    if let Some(error) = ServerError::from_value(exec.value()) {
        return Err(not_executed(&frames, error).into());
    }
    if exec.value().is_null() {
        return Err(CallError::Conflict);
    }
    let found = exec.value().iter().len();
    if found != commands {
        return Err(ConvertError::new(ConvertProblem::SizeMismatch { expected: commands, found }).into());
    }
    Ok(exec.value().iter().map(Value::to_frame).collect())
}

/// The error of a failed EXEC: usually that of a command that could not be queued.
///
/// If the server refused MULTI, the commands ran one by one, and the error says so. If EXEC was
/// aborted, nothing ran.
fn not_executed(queued: &[Frame], exec: ServerError) -> ServerError {
    let mut errors = queued.iter().map(|f| ServerError::from_value(f.value()));
    match errors.next().flatten() {
        Some(multi) => {
            let message = format!("MULTI was refused, so the commands ran one by one: {multi}");
            ServerError::new("ERR", message).with(Execution::MayHaveRun)
        }
        None => {
            let execution = if &*exec.code == "EXECABORT" { Execution::NotRun } else { Execution::Unknown };
            errors.flatten().next().unwrap_or(exec).with(execution)
        }
    }
}

#[inline]
fn convert<T: FromValue>(frame: Frame) -> Result<T, CallError> {
    convert_of(frame, ErrorOrigin::Server)
}

#[inline]
fn convert_of<T: FromValue>(frame: Frame, origin: ErrorOrigin) -> Result<T, CallError> {
    if frame.kind().is_error()
        && let Some(error) = ServerError::from_value(frame.value())
    {
        return Err(attributed(error, origin).into());
    }
    Ok(T::from_frame(frame)?)
}

/// Attributes an error in answer to a script to the script, unless its text proves that the server
/// refused to run it.
fn attributed(error: ServerError, origin: ErrorOrigin) -> ServerError {
    match origin {
        ErrorOrigin::Server => error,
        _ if origin.was_refused(&error.code, &error.message) => error.with(Execution::NotRun),
        _ => error.with(Execution::MayHaveRun),
    }
}

/// Target type of a pipeline's answers: a tuple for a fixed number of commands, a `Vec` for any
/// number. Each answer is a `Result` of its own, so one failure does not hide the others.
pub trait FromReplies {
    /// What the caller gets.
    type Output;
    /// How many answers there must be, if that is fixed.
    const COUNT: Option<usize>;
    /// Converts the answers, in order. Those of a cluster may each have failed by themselves.
    fn from_replies(replies: impl Iterator<Item = Result<Frame, CallError>>) -> Self::Output;
}

impl<T: FromValue> FromReplies for Vec<T> {
    type Output = Vec<Result<T, CallError>>;
    const COUNT: Option<usize> = None;

    fn from_replies(replies: impl Iterator<Item = Result<Frame, CallError>>) -> Self::Output {
        replies.map(|reply| reply.and_then(convert)).collect()
    }
}

macro_rules! tuples {
    ($($count:literal: $($name:ident)+;)+) => {$(
        impl<$($name: FromValue),+> FromReplies for ($($name,)+) {
            type Output = ($(Result<$name, CallError>,)+);
            const COUNT: Option<usize> = Some($count);

            fn from_replies(mut replies: impl Iterator<Item = Result<Frame, CallError>>) -> Self::Output {
                let mut next = || replies.next().expect("the number of answers was checked");
                ($(next().and_then(convert::<$name>),)+)
            }
        }

        impl<$($name),+> Unpack for ($(Result<$name, CallError>,)+) {
            type Values = ($($name,)+);

            #[allow(non_snake_case)]
            fn unpack(self) -> Result<Self::Values, CallError> {
                let ($($name,)+) = self;
                Ok(($($name?,)+))
            }
        }
    )+};
}

tuples! {
    1: A;
    2: A B;
    3: A B C;
    4: A B C D;
    5: A B C D E;
    6: A B C D E F;
    7: A B C D E F G;
    8: A B C D E F G H;
    9: A B C D E F G H I;
    10: A B C D E F G H I J;
    11: A B C D E F G H I J K;
    12: A B C D E F G H I J K L;
}

/// All answers, or the first error among them.
pub trait Unpack {
    /// The answers without their `Result`s.
    type Values;
    /// Gives the values if none is an error.
    fn unpack(self) -> Result<Self::Values, CallError>;
}

impl<T> Unpack for Vec<Result<T, CallError>> {
    type Values = Vec<T>;

    fn unpack(self) -> Result<Vec<T>, CallError> {
        self.into_iter().collect()
    }
}
