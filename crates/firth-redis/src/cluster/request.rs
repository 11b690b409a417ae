//! Future of a request through a cluster. The first attempt is in place, without an allocation;
//! retries are boxed.

use super::one_node::{AskingRequest, decide, is_answered};
use super::redirect::RetryBudget;
use super::router::{ClusterRouter, RetryTarget, RoutePlan, address_of};
use super::scatter;
use crate::call::ReplySet;
use crate::command::Atomicity;
use crate::config::Address;
use crate::connection::{PendingRequest, Replies, Request};
use crate::error::CallError;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep};

type Retries<'c> = Pin<Box<dyn Future<Output = Result<ReplySet, CallError>> + Send + 'c>>;

/// See the module's description. It does nothing before it is first polled.
pub(crate) struct ClusterRequest<'c> {
    router: &'c ClusterRouter,
    timeout: Option<Duration>,
    /// When it was first polled.
    started: Option<Instant>,
    state: RequestState<'c>,
}

enum RequestState<'c> {
    New(Request<'c>),
    FirstAttempt(PendingRequest<'c>),
    Retries(Retries<'c>),
    Done,
}

impl<'c> ClusterRequest<'c> {
    pub(crate) fn new(router: &'c ClusterRouter, request: Request<'c>, timeout: Option<Duration>) -> Self {
        Self { router, timeout, started: None, state: RequestState::New(request) }
    }

    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    fn budget(&mut self) -> RetryBudget {
        let started = *self.started.get_or_insert_with(Instant::now);
        RetryBudget::new(started, self.timeout, self.router.config().cluster.max_redirects)
    }

    fn begin(&mut self, request: Request<'c>) -> Result<RequestState<'c>, CallError> {
        let router = self.router;
        let budget = self.budget();
        Ok(match router.plan(&request) {
            Ok(RoutePlan::Whole(route)) => {
                RequestState::FirstAttempt(PendingRequest::new(route, request, self.timeout))
            }
            Ok(RoutePlan::Split(batches)) => {
                RequestState::Retries(Box::pin(scatter::begin(router, request, batches, budget)))
            }
            Ok(RoutePlan::NoNode) => RequestState::Retries(Box::pin(wait(router, request, budget))),
            Err(error) => return Err(error),
        })
    }

    /// The first attempt ended: usually with the answer.
    fn finish_first(&mut self, result: Result<Replies, CallError>) -> Result<ReplySet, Retries<'c>> {
        let RequestState::FirstAttempt(attempt) = &mut self.state else {
            unreachable!("the first attempt has just ended")
        };
        if result.as_ref().is_ok_and(|replies| is_answered(attempt.request(), replies)) {
            return Ok(ReplySet::Whole(result.expect("an answer is no failure")));
        }
        let at = address_of(attempt.server()).cloned();
        let request = attempt.take_request();
        let router = self.router;
        let budget = self.budget();
        Err(if is_splittable(&request) {
            Box::pin(scatter::resume(router, request, result, at, budget))
        } else {
            Box::pin(follow(router, request, result, at, budget))
        })
    }
}

impl Future for ClusterRequest<'_> {
    type Output = Result<ReplySet, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let next = match &mut this.state {
                RequestState::New(_) => {
                    let RequestState::New(request) = std::mem::replace(&mut this.state, RequestState::Done)
                    else {
                        unreachable!("the stage was looked at")
                    };
                    match this.begin(request) {
                        Ok(state) => state,
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                RequestState::FirstAttempt(attempt) => {
                    let Poll::Ready(result) = Pin::new(attempt).poll(cx) else { return Poll::Pending };
                    match this.finish_first(result) {
                        Ok(replies) => return Poll::Ready(Ok(replies)),
                        Err(retries) => RequestState::Retries(retries),
                    }
                }
                RequestState::Retries(retries) => return retries.as_mut().poll(cx),
                RequestState::Done => unreachable!("a finished request is not polled again"),
            };
            this.state = next;
        }
    }
}

fn is_splittable(request: &Request<'_>) -> bool {
    matches!(request, Request::Many(pipe) if pipe.atomicity() == Atomicity::PerKey)
}

/// Waits for the first refresh, because no node was known, then starts.
async fn wait<'c>(
    router: &'c ClusterRouter,
    request: Request<'c>,
    budget: RetryBudget,
) -> Result<ReplySet, CallError> {
    router.first_refresh(&budget).await;
    if is_splittable(&request) {
        let no_node = Err(router.no_node());
        return scatter::resume(router, request, no_node, None, budget).await;
    }
    let first = attempt(router, RetryTarget::Owner, request, &budget).await;
    follow(router, first.request, first.result, first.at, budget).await
}

/// Retries a request until it is answered, or has no attempts or time left.
async fn follow<'c>(
    router: &'c ClusterRouter,
    mut request: Request<'c>,
    mut result: Result<Replies, CallError>,
    mut at: Option<Address>,
    mut budget: RetryBudget,
) -> Result<ReplySet, CallError> {
    loop {
        let decision = match &result {
            Ok(replies) => decide(&request, replies),
            Err(error) => router.decide_failure(error, at.as_ref()),
        };
        let Some(pause) = budget.spend(&decision, Instant::now()) else { break };
        let mut target = router.learn(&decision, at.as_ref());
        if !pause.is_zero() {
            sleep(pause).await;
            target = RetryTarget::Owner;
        }
        let next = attempt(router, target, request, &budget).await;
        (request, result, at) = (next.request, next.result, next.at);
    }
    result.map(ReplySet::Whole).map_err(|error| router.explain(error, &budget))
}

/// Result of an attempt.
struct Attempt<'c> {
    request: Request<'c>,
    result: Result<Replies, CallError>,
    at: Option<Address>,
}

async fn attempt<'c>(
    router: &ClusterRouter,
    target: RetryTarget,
    request: Request<'c>,
    budget: &RetryBudget,
) -> Attempt<'c> {
    let left = budget.time_left(Instant::now()).unwrap_or(Some(Duration::ZERO));
    if let RetryTarget::Ask(node) = &target {
        let asking = AskingRequest::new(&request);
        let sent = match node.route(&asking.request()) {
            Ok(route) => PendingRequest::new(route, asking.request(), left).await,
            Err(error) => Err(error),
        };
        let at = Some(node.address().clone());
        return Attempt { result: sent.map(|replies| asking.strip(replies)), request, at };
    }
    let route = match &target {
        RetryTarget::Node(node) => node.route(&request).map(Some),
        _ => router.route(&request, false),
    };
    match route {
        Ok(Some(route)) => {
            let mut attempt = PendingRequest::new(route, request, left);
            let result = (&mut attempt).await;
            let at = address_of(attempt.server()).cloned();
            Attempt { request: attempt.take_request(), result, at }
        }
        Ok(None) => Attempt { request, result: Err(router.no_node()), at: None },
        Err(error) => Attempt { request, result: Err(error), at: None },
    }
}
