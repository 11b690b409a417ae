//! Subscribing and unsubscribing: all of a list or nothing, checked against the token, answered in
//! order.

use super::core::{Core, Subscribed, Wanted};
use crate::journal::Missing;
use crate::position::Position;
use crate::protocol::{Code, EdgeError, SubscriptionRequest, server};
use crate::replay::Replay;
use firth_router::SubscriptionId;
use firth_router::matching::{Index, Interest};
use std::sync::Arc;

/// Where a client wants to go on; or why it cannot, which is known already.
pub(super) type Resume = Result<Position, Missing>;

/// What a client asks for at once.
pub(super) struct Asked<'a> {
    pub(super) requests: &'a [SubscriptionRequest],
    /// What the router knows each request by, if there is a router.
    pub(super) registered: &'a [u64],
    /// Comes back in the answer.
    pub(super) reference: Option<u64>,
}

/// A request that was checked.
struct Checked<'a> {
    request: &'a SubscriptionRequest,
    name: Arc<str>,
    interest: Interest,
}

impl Core {
    /// Makes the requests live, and cuts off the history behind `after` in the same step.
    pub(super) fn subscribe(
        &mut self,
        slot: usize,
        asked: &Asked<'_>,
        after: Option<Resume>,
    ) -> Result<(), EdgeError> {
        let Asked { requests, registered, reference } = *asked;
        let mut checked = self.check(slot, requests, after.is_some())?;
        for request in &mut checked {
            request.name = self.share(request.name.clone());
        }
        let own = after.as_ref().map(|_| own_index(&checked)).transpose()?;
        let limits = self.config.limits;
        let mut added = Vec::with_capacity(checked.len());
        for Checked { name, interest, .. } in &checked {
            self.numbered += 1;
            let id = SubscriptionId::new(format!("{}", self.numbered)).map_err(|error| wrong(&error))?;
            let wanted = Wanted { slot, name: name.clone() };
            if let Err(error) = self.index.insert(id.clone(), interest.clone(), wanted) {
                for id in &added {
                    self.index.remove(&interest.tenant, id);
                }
                return Err(EdgeError::limit(
                    "filter",
                    limits.slow_filters as u64,
                    error.context().to_owned(),
                ));
            }
            added.push(id);
        }
        let at = self.head(slot);
        let tenant = &self.sessions[slot].grant.tenant;
        let history = after.as_ref().map(|after| match after {
            Ok(after) => self.history(tenant, after),
            Err(missing) => Err(*missing),
        });
        let here = &mut self.sessions[slot];
        here.is_fresh = false;
        for (number, (id, Checked { request, name, interest })) in added.into_iter().zip(&checked).enumerate()
        {
            let place = || (interest.tenant.clone(), interest.collection.clone(), interest.document.clone());
            let user = here.grant.user.as_ref();
            let room = request.presence.then(|| self.rooms.enter(place(), slot, name.clone(), user));
            let registration = registered.get(number).copied();
            here.subscriptions.push(Subscribed { id, name: name.clone(), room, registration });
        }
        let names = requests.iter().map(|request| request.id.as_str()).collect();
        let mut outbox = here.mailbox.outbox();
        if let Some(Err(missing)) = history {
            // Before the answer: a client that gets only one of them must not take itself for up to
            // date.
            outbox.say_at(server::resync_required(missing, &at), at.clone());
            crate::metrics::resync(missing.as_str());
        }
        let resumed = history.and_then(Result::ok);
        let stands = after.and_then(Result::ok).filter(|_| resumed.is_some()).unwrap_or(at);
        let answer = server::subscribed(reference, names, &stands, resumed.is_some());
        outbox.say_at(answer, stands.clone());
        if let (Some(history), Some(own)) = (resumed.filter(|history| !history.is_empty()), own) {
            outbox.replay(Box::new(Replay::new(stands, history, own)));
        }
        drop(outbox);
        here.mailbox.notify();
        Ok(())
    }

    /// Whether the requests may be granted, as far as that can be said before.
    pub(super) fn may_subscribe(
        &self,
        slot: usize,
        requests: &[SubscriptionRequest],
        resumes: bool,
    ) -> Result<(), EdgeError> {
        self.check(slot, requests, resumes).map(drop)
    }

    fn check<'a>(
        &self,
        slot: usize,
        requests: &'a [SubscriptionRequest],
        resumes: bool,
    ) -> Result<Vec<Checked<'a>>, EdgeError> {
        let here = &self.sessions[slot];
        let limit = self.config.limits.subscriptions;
        if requests.is_empty() {
            return Err(EdgeError::invalid("subscriptions", "`subscriptions` is empty; give at least one"));
        }
        if here.subscriptions.len() + requests.len() > limit {
            let message = format!("a connection has at most {limit} subscriptions: unsubscribe from some");
            return Err(EdgeError::limit("subscriptions", limit as u64, message));
        }
        if resumes && !here.is_fresh {
            let message = "only the first subscribe of a connection can resume: give all subscriptions in it";
            return Err(EdgeError::invalid("after", message));
        }
        let mut checked: Vec<Checked<'a>> = Vec::with_capacity(requests.len());
        for request in requests {
            let interest = request.interest(&here.grant.tenant)?;
            if !here.grant.collections.allow(&request.collection) {
                let message = "the token does not allow this collection";
                return Err(EdgeError { code: Code::Forbidden, ..EdgeError::invalid("collection", message) });
            }
            let name = name(&request.id);
            let is_taken = here
                .subscriptions
                .iter()
                .map(|known| &known.name)
                .chain(checked.iter().map(|known| &known.name))
                .any(|known| *known == name);
            if is_taken {
                let message = "this connection has a subscription with this `id`: unsubscribe from it first";
                return Err(EdgeError::invalid("id", message));
            }
            checked.push(Checked { request, name, interest });
        }
        Ok(checked)
    }

    /// Ends subscriptions; names that are not known are passed over, so that it can be said twice.
    pub(super) fn unsubscribe(&mut self, slot: usize, names: &[String], reference: Option<u64>) {
        let at = self.head(slot);
        let here = &mut self.sessions[slot];
        let mut outbox = here.mailbox.outbox();
        for name in names.iter().map(|id| name(id)) {
            let Some(found) = here.subscriptions.iter().position(|known| known.name == name) else {
                continue;
            };
            let Subscribed { id, name, room, .. } = here.subscriptions.swap_remove(found);
            self.index.remove(&here.grant.tenant, &id);
            if let Some(room) = room {
                self.rooms.leave(room, slot, &name, here.grant.user.as_ref());
                outbox.forget_presence(&name);
            }
        }
        outbox.say_at(server::unsubscribed(reference, names, &at), at);
        drop(outbox);
        here.mailbox.notify();
    }
}

/// The requests alone, to look through history with.
fn own_index(checked: &[Checked<'_>]) -> Result<Index<Arc<str>>, EdgeError> {
    let mut index = Index::new(checked.len());
    for (number, Checked { name, interest, .. }) in checked.iter().enumerate() {
        let id = SubscriptionId::new(format!("{number}")).map_err(|error| wrong(&error))?;
        index.insert(id, interest.clone(), name.clone()).map_err(|error| wrong(&error))?;
    }
    Ok(index)
}

fn name(id: &str) -> Arc<str> {
    serde_json::Value::from(id).to_string().into()
}

fn wrong(error: &firth_router::Error) -> EdgeError {
    EdgeError::invalid("subscriptions", error.context().to_owned())
}
