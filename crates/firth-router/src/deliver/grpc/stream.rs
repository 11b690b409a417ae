//! One lasting call per gateway: batches out, answers in by their numbers, in any order.
//!
//! A task per gateway drives the call. When it breaks after it has brought answers, a new one is
//! made at once and what is unanswered goes out again; when it brought none, everything is given
//! back to the lane, whose breaker decides.

use super::frames::{self, broken};
use super::line::{Line, Told};
use super::{GrpcOptions, STREAM, is_content, request, status};
use crate::deliver::connect::{Connections, Outgoing};
use crate::error::Result;
use crate::name::GatewayId;
use crate::registry::Gateway;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The streams of a node, by gateway; they end with this value.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<HashMap<GatewayId, Arc<Stream>>>);

impl Streams {
    /// The stream of a gateway, begun anew if the gateway has moved.
    pub(super) fn line(
        &self,
        to: &Gateway,
        options: &GrpcOptions,
        connections: &Arc<Connections>,
    ) -> Arc<Stream> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = all.get(&to.id)
            && stream.endpoint == to.endpoint
        {
            return Arc::clone(stream);
        }
        let stream = Arc::new(Stream::start(to, options, connections));
        all.insert(to.id.clone(), Arc::clone(&stream));
        stream
    }

    /// Whether the gateway has answered on its stream not long ago.
    pub(super) fn is_alive(&self, to: &Gateway, within: Duration) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = all.get(&to.id).and_then(|stream| stream.shared.line().answered_at());
        answered.is_some_and(|when| when.elapsed() < within)
    }

    /// Gives up the stream: the next batch begins another.
    pub(super) fn forget(&self, gateway: &GatewayId) {
        let gone = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(gateway);
        if let Some(gone) = gone {
            gone.shared.line().end(|| Told::Lost);
        }
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    endpoint: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Stream {
    fn start(to: &Gateway, options: &GrpcOptions, connections: &Arc<Connections>) -> Self {
        let shared = Arc::new(Shared::default());
        let driver = Driver {
            to: to.clone(),
            options: options.clone(),
            connections: Arc::clone(connections),
            shared: Arc::clone(&shared),
        };
        Self { endpoint: to.endpoint.clone(), shared, task: tokio::spawn(driver.run()) }
    }

    /// Puts a batch on its way.
    pub(super) fn put(&self, write: impl FnOnce(u64) -> Bytes) -> Unanswered {
        let (number, told) = self.shared.line().put(write);
        self.shared.work.notify_one();
        Unanswered { number, told, shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A batch on its way; dropping it takes it back.
pub(super) struct Unanswered {
    number: u64,
    told: oneshot::Receiver<Told>,
    shared: Arc<Shared>,
}

impl Unanswered {
    pub(super) async fn told(mut self) -> Told {
        (&mut self.told).await.unwrap_or(Told::Lost)
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.shared.line().take_back(self.number);
        self.shared.work.notify_one();
    }
}

#[derive(Debug, Default)]
struct Shared {
    line: Mutex<Line>,
    /// Something to send, or room for it.
    work: Notify,
}

impl Shared {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a call ended.
enum End {
    /// It broke; whether it had brought answers.
    Broken { answered: bool },
    /// The gateway does not know the method.
    Unimplemented,
    /// The gateway did not like a batch, and does not say which.
    Content,
    /// The gateway wants a pause.
    Busy,
}

struct Driver {
    to: Gateway,
    options: GrpcOptions,
    connections: Arc<Connections>,
    shared: Arc<Shared>,
}

impl Driver {
    async fn run(self) {
        let mut without_stream = false;
        loop {
            while self.shared.line().is_empty() {
                self.shared.work.notified().await;
            }
            let end = if without_stream { End::Unimplemented } else { self.call().await };
            let mut line = self.shared.line();
            match end {
                End::Broken { answered: true } => line.rewind(),
                End::Broken { answered: false } => line.end(|| Told::Lost),
                End::Busy => line.end(|| Told::Busy),
                End::Content => line.end(|| Told::CallInstead),
                End::Unimplemented => {
                    without_stream = true;
                    line.end(|| Told::CallInstead);
                }
            }
        }
    }

    /// One call, until it ends.
    async fn call(&self) -> End {
        let mut answered = false;
        match self.drive(&mut answered).await {
            Ok(end) => end,
            Err(error) => {
                tracing::debug!(gateway = %self.to.id, ?error, "a stream broke");
                End::Broken { answered }
            }
        }
    }

    async fn drive(&self, answered: &mut bool) -> Result<End> {
        let (batches, outgoing) = mpsc::channel(1);
        let request = request(&self.to, &self.options, STREAM, None, body(outgoing))?;
        // The head of the answer may come with the first answer only, so that batches go out before
        // it.
        let mut opening = pin!(self.connections.send(&self.to, request, self.options.timeout));
        let response = loop {
            tokio::select! {
                response = &mut opening => break response?,
                () = self.send(&batches) => {}
            }
        };
        if !response.status().is_success() {
            return Err(broken(format!("the gateway answered {}", response.status())));
        }
        let (head, mut incoming) = response.into_parts();
        if let Some(code) = status(&head.headers) {
            return ended(code, *answered);
        }
        let mut arrived = BytesMut::new();
        loop {
            tokio::select! {
                frame = incoming.frame() => match self.hear(frame, &mut arrived, answered)? {
                    Some(code) => return ended(code, *answered),
                    None => self.shared.work.notify_one(),
                },
                () = self.send(&batches) => {}
            }
        }
    }

    /// Sends one batch, as soon as there is one and the connection takes it. A call that has ended
    /// takes none; then it waits.
    async fn send(&self, batches: &mpsc::Sender<Bytes>) {
        loop {
            let Ok(room) = batches.reserve().await else { return std::future::pending().await };
            let next = self.shared.line().next();
            match next {
                Some(frame) => return room.send(frame),
                None => drop(room),
            }
            self.shared.work.notified().await;
        }
    }

    /// Takes in what has arrived; answers the status if it was the end.
    fn hear(
        &self,
        frame: Option<std::result::Result<Frame<Bytes>, hyper::Error>>,
        arrived: &mut BytesMut,
        answered: &mut bool,
    ) -> Result<Option<u32>> {
        let frame = frame.ok_or_else(|| broken("the answers ended without a gRPC status"))?;
        let frame = frame.map_err(|error| broken("the answers broke off").with_source(error))?;
        if let Some(trailers) = frame.trailers_ref() {
            return Ok(Some(status(trailers).unwrap_or(2)));
        }
        arrived.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..]));
        while let Some(answer) = frames::next(arrived)? {
            *answered = true;
            self.shared.line().answered(answer, Instant::now());
        }
        Ok(None)
    }
}

fn body(mut batches: mpsc::Receiver<Bytes>) -> Outgoing {
    let batches = stream::poll_fn(move |context| batches.poll_recv(context));
    StreamBody::new(batches.map(|batch| Ok::<_, Infallible>(Frame::data(batch)))).boxed_unsync()
}

fn ended(code: u32, answered: bool) -> Result<End> {
    match code {
        // The gateway closed the call in good order.
        0 => Ok(End::Broken { answered }),
        8 => Ok(End::Busy),
        12 => Ok(End::Unimplemented),
        code if is_content(code) => Ok(End::Content),
        code => Err(broken(format!("the gateway ended the stream with gRPC status {code}"))),
    }
}
