//! Callers of the registry over gRPC: the tokens, rates and audit log that HTTP has.

use crate::api::{refuse, within_rate};
use crate::app::App;
use crate::auth::{Caller, Entry, Need, Scope, TokenGrant, presented};
use crate::problem::Problem;
use axum::http::{HeaderMap, StatusCode};
use firth::ErrorKind;
use firth_router::registry::{Admitted, CallOutcome, Callers, Refused, RegistryCall};
use std::net::IpAddr;
use std::sync::Arc;

/// Statuses of gRPC.
const OK: u32 = 0;
const PERMISSION_DENIED: u32 = 7;
const UNAVAILABLE: u32 = 14;
const UNAUTHENTICATED: u32 = 16;

/// Lets callers in by the server's tokens, or by the router's own.
pub(super) struct Registrants {
    app: App,
    own: Option<Arc<TokenGrant>>,
}

impl Registrants {
    pub(super) fn new(app: &App, own: Option<&str>) -> Self {
        let own = own.map(|token| Arc::new(TokenGrant::everything(token, "FIRTH_ROUTER_TOKEN")));
        Self { app: app.clone(), own }
    }

    /// The server's tokens come first: one that is the router's, too, keeps its limits.
    fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let guard = self.app.guard();
        if guard.has_tokens()
            && let Ok(caller) = guard.check(headers, false)
        {
            return Ok(caller);
        }
        match &self.own {
            Some(own) if presented(headers).is_some_and(|sum| own.is(&sum)) => {
                Ok(Caller::Holder(own.clone()))
            }
            None if !guard.has_tokens() => Ok(Caller::Local),
            _ => {
                let detail =
                    "send `authorization: Bearer TOKEN` with the router's token, or one with scope route";
                Err(Problem::http(StatusCode::UNAUTHORIZED, ErrorKind::Unauthorized, detail))
            }
        }
    }
}

impl Callers for Registrants {
    fn admit(&self, call: &RegistryCall<'_>) -> Result<Admitted, Refused> {
        let caller = self.caller(call.headers).map_err(|problem| {
            let (problem, is_told) = refuse(&self.app, problem, call.headers, call.peer, true);
            if is_told {
                audit(&self.app, "unknown", call.peer, call.path, problem.status);
            }
            Refused { status: UNAUTHENTICATED, text: problem.detail }
        })?;
        let allowed = within_rate(&self.app, &caller, call.peer)
            .and_then(|()| caller.check(Need::Scope(Scope::Route), None));
        if let Err(problem) = allowed {
            audit(&self.app, caller.name(), call.peer, call.path, problem.status);
            let status = if problem.status == 403 { PERMISSION_DENIED } else { UNAVAILABLE };
            return Err(Refused { status, text: problem.detail });
        }
        let access = caller.access();
        let app = self.app.clone();
        let peer = call.peer;
        let path = call.path.to_owned();
        let report = move |answered: &CallOutcome<'_>| {
            // As over HTTP: a sign of life changes nothing that an operator looks up later.
            if answered.status == OK && is_heartbeat(&path) {
                return;
            }
            let path = match answered.about {
                "" => path,
                about => format!("{path}/{about}"),
            };
            audit(&app, caller.name(), peer, &path, http_status(answered.status));
        };
        Ok(Admitted { access, report: Box::new(report) })
    }
}

fn audit(app: &App, who: &str, peer: Option<IpAddr>, path: &str, status: u16) {
    let from = peer.map(|peer| peer.to_string());
    app.audit().write(&Entry { who, from, method: "GRPC", path, status });
}

fn is_heartbeat(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|call| call.starts_with("Heartbeat"))
}

/// The status that the same answer has over HTTP, so that one search finds both.
fn http_status(status: u32) -> u16 {
    match status {
        OK => 200,
        1 => 499,
        3 => 400,
        4 => 504,
        5 => 404,
        PERMISSION_DENIED => 403,
        8 => 429,
        9 => 409,
        12 => 501,
        UNAVAILABLE => 503,
        UNAUTHENTICATED => 401,
        _ => 500,
    }
}
