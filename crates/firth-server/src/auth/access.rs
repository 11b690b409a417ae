//! What each route asks of its caller. Pure; a route that is not named here asks for everything.

use super::token::Scope;
use axum::http::Method;

/// The route that gives everything away.
const BACKUP: &str = "/v1/backup";

/// What a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: health, and the description of the API.
    Nothing,
    /// A signature over the request, which the handler checks; no token.
    Signature,
    /// Any token; what it sees is filtered by the handler.
    Token,
    /// Any scope that covers the topic.
    Look,
    /// This scope, for the topic if the route names one.
    Scope(Scope),
}

impl Need {
    /// Whether the call belongs into the audit log.
    pub(crate) fn is_audited(self, method: &Method, route: &str) -> bool {
        let looks = matches!(*method, Method::GET | Method::HEAD);
        match self {
            // A backup holds everything that is stored.
            Self::Scope(Scope::Admin) => !looks || route == BACKUP,
            // Heartbeats and questions change nothing that anybody would look up later.
            Self::Scope(Scope::Route) => matches!(*method, Method::PUT | Method::DELETE),
            _ => false,
        }
    }
}

/// Whether a GET of this route takes something: deliveries, or a place in a worker's news.
pub(crate) fn takes(route: &str) -> bool {
    route.ends_with("/stream") && !route.ends_with("/dead/stream")
}

/// Whether this is a file of the console.
pub(crate) fn is_console(route: &str) -> bool {
    route == "/" || route.starts_with("/console/")
}

/// The table.
pub(crate) fn need(method: &Method, route: &str) -> Need {
    let looks = matches!(*method, Method::GET | Method::HEAD);
    let inside = route.strip_prefix("/v1/topics/{topic}");
    match (inside, looks) {
        (Some("" | "/delayed" | "/groups" | "/groups/{group}"), true) => return Need::Look,
        (Some("/groups/{group}/members" | "/groups/{group}/pending" | "/groups/{group}/policy"), true) => {
            return Need::Look;
        }
        (Some("/groups/{group}/in_flight"), true) => return Need::Look,
        (Some("/groups/{group}/reset/preview"), false) => return Need::Look,
        (Some("/records" | "/delayed/messages" | "/groups/{group}/stream"), true) => {
            return Need::Scope(Scope::Consume);
        }
        (Some("/dead" | "/dead/count" | "/dead/stream"), true) => return Need::Scope(Scope::Consume),
        (Some("/records"), false) => return Need::Scope(Scope::Produce),
        (Some("/groups/{group}/fetch" | "/groups/{group}/settle"), false) => {
            return Need::Scope(Scope::Consume);
        }
        (Some("/groups/{group}"), false) if *method == Method::PUT => return Need::Scope(Scope::Consume),
        _ => {}
    }
    if let Some(inside) = route.strip_prefix("/v1/claims/{service}") {
        return claims(inside, looks);
    }
    match route {
        "/health" | "/health/live" | "/health/ready" | "/openapi.json" => Need::Nothing,
        file if looks && is_console(file) => Need::Nothing,
        "/v1/routing" | "/v1/routing/gateways" | "/v1/routing/gateways/{gateway}" | "/v1/routing/clients"
            if looks =>
        {
            Need::Scope(Scope::Observe)
        }
        _ if route.starts_with("/v1/routing/") => Need::Scope(Scope::Route),
        "/v1" | "/v1/topics" | "/v1/claims" | "/v1/dead" if looks => Need::Token,
        "/v1/channels/{channel}" if looks => Need::Scope(Scope::Consume),
        "/v1/channels/{channel}" => Need::Scope(Scope::Produce),
        "/metrics" | "/v1/events" | "/v1/stats" | "/v1/engine" => Need::Scope(Scope::Observe),
        "/v1/hooks/{source}" if *method == Method::POST => Need::Signature,
        "/v1/sources" | "/v1/sources/{source}" if looks => Need::Scope(Scope::Observe),
        _ => Need::Scope(Scope::Admin),
    }
}

/// Returns what a call on a service needs. A token with `produce` may offer work and take it back;
/// a token with `consume` may work.
fn claims(inside: &str, looks: bool) -> Need {
    match (inside, looks) {
        ("" | "/offers" | "/workers" | "/takeovers", true) => Need::Look,
        ("/offers" | "/offers/{offer}", false) => Need::Scope(Scope::Produce),
        ("/workers/{worker}/seize", _) => Need::Scope(Scope::Admin),
        (inside, _) if inside.starts_with("/workers/{worker}") => Need::Scope(Scope::Consume),
        _ => Need::Scope(Scope::Admin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_named_needs_everything() {
        let admin = Need::Scope(Scope::Admin);
        assert_eq!(need(&Method::GET, "/v1/new"), admin);
        assert_eq!(need(&Method::DELETE, "/v1/topics/{topic}"), admin);
        assert_eq!(need(&Method::POST, "/v1/topics/{topic}/dead/replay"), admin);
        assert_eq!(need(&Method::POST, "/v1/topics/{topic}/groups/{group}/reset"), admin);
        let route = Need::Scope(Scope::Route);
        assert_eq!(need(&Method::PUT, "/v1/routing/gateways/{gateway}"), route);
        assert_eq!(need(&Method::GET, "/v1/routing/subscriptions"), route, "filters hold values");
        let any = "/v1/topics/{topic}";
        assert!(route.is_audited(&Method::DELETE, any) && !route.is_audited(&Method::POST, any));
        assert!(admin.is_audited(&Method::POST, any) && !admin.is_audited(&Method::GET, any));
        assert_eq!((need(&Method::GET, BACKUP), need(&Method::GET, "/v1/check")), (admin, admin));
        assert!(admin.is_audited(&Method::GET, BACKUP));
        assert_eq!(need(&Method::POST, "/v1/topics/{topic}/records"), Need::Scope(Scope::Produce));
        assert_eq!(need(&Method::GET, "/v1/topics/{topic}/records"), Need::Scope(Scope::Consume));
    }

    #[test]
    fn sources_are_seen_by_observers_and_changed_by_admins() {
        let of = |method: Method, rest: &str| need(&method, &format!("/v1/sources{rest}"));
        let admin = Need::Scope(Scope::Admin);
        for seen in ["", "/{source}"] {
            assert_eq!(of(Method::GET, seen), Need::Scope(Scope::Observe), "{seen}");
        }
        assert_eq!(of(Method::DELETE, "/{source}"), admin);
        assert_eq!(need(&Method::POST, "/v1/hooks/{source}"), Need::Signature);
        assert_eq!(need(&Method::GET, "/v1/hooks/{source}"), admin);
        for change in ["pause", "resume", "restart", "snapshot"] {
            assert_eq!(of(Method::POST, &format!("/{{source}}/{change}")), admin, "{change}");
        }
    }

    #[test]
    fn channels_ask_for_produce_to_publish_and_for_consume_to_listen() {
        let channel = "/v1/channels/{channel}";
        assert_eq!(need(&Method::POST, channel), Need::Scope(Scope::Produce));
        assert_eq!(need(&Method::GET, channel), Need::Scope(Scope::Consume));
        assert_eq!(need(&Method::DELETE, channel), Need::Scope(Scope::Produce));
    }

    #[test]
    fn work_is_offered_by_producers_done_by_consumers_and_taken_away_by_admins() {
        let of = |method: Method, rest: &str| need(&method, &format!("/v1/claims/{{service}}{rest}"));
        let produce = Need::Scope(Scope::Produce);
        let consume = Need::Scope(Scope::Consume);
        let admin = Need::Scope(Scope::Admin);
        assert_eq!(need(&Method::GET, "/v1/claims"), Need::Token);
        for seen in ["", "/offers", "/workers", "/takeovers"] {
            assert_eq!(of(Method::GET, seen), Need::Look, "{seen}");
        }
        assert_eq!((of(Method::POST, "/offers"), of(Method::DELETE, "/offers/{offer}")), (produce, produce));
        assert_eq!((of(Method::PUT, ""), of(Method::POST, "/offers/{offer}/release")), (admin, admin));
        for work in ["", "/poll", "/stream", "/renew", "/claim", "/settle", "/data/{topic}/read"] {
            assert_eq!(of(Method::POST, &format!("/workers/{{worker}}{work}")), consume, "{work}");
        }
        assert_eq!(of(Method::POST, "/workers/{worker}/seize"), admin);
        assert_eq!(of(Method::POST, "/new"), admin);
    }
}
