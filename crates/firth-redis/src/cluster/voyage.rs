//! A request on its way through a cluster: the first attempt in place, without an allocation; whatever follows, boxed.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    redirect::Budget,
    router::{Plan, Router, Target, address_of},
    scatter,
    unit::{Asking, is_answered, judge},
};
use crate::{
    call::Landed,
    command::Bond,
    config::Address,
    connection::{Flight, Replies, Request},
    error::CallError,
};

type Later<'c> = Pin<Box<dyn Future<Output = Result<Landed, CallError>> + Send + 'c>>;

/// See the module's description. Nothing happens before it is first polled.
pub(crate) struct Voyage<'c> {
    router: &'c Router,
    timeout: Option<Duration>,
    /// When it was first polled.
    started: Option<Instant>,
    stage: Stage<'c>,
}

enum Stage<'c> {
    New(Request<'c>),
    First(Flight<'c>),
    Later(Later<'c>),
    Over,
}

impl<'c> Voyage<'c> {
    pub(crate) fn new(router: &'c Router, request: Request<'c>, timeout: Option<Duration>) -> Self {
        Self { router, timeout, started: None, stage: Stage::New(request) }
    }

    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    fn budget(&mut self) -> Budget {
        let started = *self.started.get_or_insert_with(Instant::now);
        Budget::new(started, self.timeout, self.router.config().cluster.max_redirects)
    }

    fn embark(&mut self, request: Request<'c>) -> Result<Stage<'c>, CallError> {
        let (router, budget) = (self.router, self.budget());
        Ok(match router.plan(&request) {
            Ok(Plan::Whole(route)) => Stage::First(Flight::new(route, request, self.timeout)),
            Ok(Plan::Split(batches)) => {
                Stage::Later(Box::pin(scatter::begin(router, request, batches, budget)))
            }
            Ok(Plan::Nowhere) => Stage::Later(Box::pin(wait(router, request, budget))),
            Err(error) => return Err(error),
        })
    }

    /// The first attempt ended: usually with the answer.
    fn arrive(&mut self, result: Result<Replies, CallError>) -> Result<Landed, Later<'c>> {
        let Stage::First(flight) = &mut self.stage else { unreachable!("the first attempt has just ended") };
        if result.as_ref().is_ok_and(|replies| is_answered(flight.request(), replies)) {
            return Ok(Landed::Whole(result.expect("an answer is no failure")));
        }
        let at = address_of(flight.server()).cloned();
        let request = flight.take_request();
        let (router, budget) = (self.router, self.budget());
        Err(if is_loose(&request) {
            Box::pin(scatter::resume(router, request, result, at, budget))
        } else {
            Box::pin(follow(router, request, result, at, budget))
        })
    }
}

impl Future for Voyage<'_> {
    type Output = Result<Landed, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let next = match &mut this.stage {
                Stage::New(_) => {
                    let Stage::New(request) = std::mem::replace(&mut this.stage, Stage::Over) else {
                        unreachable!("the stage was looked at")
                    };
                    match this.embark(request) {
                        Ok(stage) => stage,
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                Stage::First(flight) => {
                    let Poll::Ready(result) = Pin::new(flight).poll(cx) else { return Poll::Pending };
                    match this.arrive(result) {
                        Ok(landed) => return Poll::Ready(Ok(landed)),
                        Err(later) => Stage::Later(later),
                    }
                }
                Stage::Later(later) => return later.as_mut().poll(cx),
                Stage::Over => unreachable!("a finished request is not polled again"),
            };
            this.stage = next;
        }
    }
}

fn is_loose(request: &Request<'_>) -> bool {
    matches!(request, Request::Many(pipe) if pipe.bond() == Bond::Loose)
}

/// No node was known: once there was a look at the cluster, begins.
async fn wait<'c>(router: &'c Router, request: Request<'c>, budget: Budget) -> Result<Landed, CallError> {
    router.looked(&budget).await;
    if is_loose(&request) {
        let nowhere = Err(router.nowhere());
        return scatter::resume(router, request, nowhere, None, budget).await;
    }
    let first = attempt(router, Target::Owner, request, &budget).await;
    follow(router, first.request, first.result, first.at, budget).await
}

/// Sends a unit on until it is answered, or may not try any more.
async fn follow<'c>(
    router: &'c Router,
    mut request: Request<'c>,
    mut result: Result<Replies, CallError>,
    mut at: Option<Address>,
    mut budget: Budget,
) -> Result<Landed, CallError> {
    loop {
        let step = match &result {
            Ok(replies) => judge(&request, replies),
            Err(error) => router.step_of_failure(error, at.as_ref()),
        };
        let Some(pause) = budget.spend(&step, Instant::now()) else { break };
        let mut target = router.learn(&step, at.as_ref());
        if !pause.is_zero() {
            sleep(pause).await;
            target = Target::Owner;
        }
        let next = attempt(router, target, request, &budget).await;
        (request, result, at) = (next.request, next.result, next.at);
    }
    result.map(Landed::Whole).map_err(|error| router.explain(error, &budget))
}

/// What an attempt brought.
struct Attempt<'c> {
    request: Request<'c>,
    result: Result<Replies, CallError>,
    at: Option<Address>,
}

async fn attempt<'c>(router: &Router, target: Target, request: Request<'c>, budget: &Budget) -> Attempt<'c> {
    let left = budget.time_left(Instant::now()).unwrap_or(Some(Duration::ZERO));
    if let Target::Ask(node) = &target {
        let asking = Asking::new(&request);
        let sent = match node.route(&asking.request()) {
            Ok(route) => Flight::new(route, asking.request(), left).await,
            Err(error) => Err(error),
        };
        let at = Some(node.address().clone());
        return Attempt { result: sent.map(|replies| asking.strip(replies)), request, at };
    }
    let route = match &target {
        Target::Node(node) => node.route(&request).map(Some),
        _ => router.route(&request, false),
    };
    match route {
        Ok(Some(route)) => {
            let mut flight = Flight::new(route, request, left);
            let result = (&mut flight).await;
            let at = address_of(flight.server()).cloned();
            Attempt { request: flight.take_request(), result, at }
        }
        Ok(None) => Attempt { request, result: Err(router.nowhere()), at: None },
        Err(error) => Attempt { request, result: Err(error), at: None },
    }
}
