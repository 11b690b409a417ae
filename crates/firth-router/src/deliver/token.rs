//! [`Bearer`]: the tokens that go to gateways, and to which hosts they may go. A client that
//! registers a gateway chooses its endpoint; the token must not follow just anywhere.

use crate::error::{Error, Result};
use crate::name::GatewayId;
use crate::pattern;
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Builder;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tokens that are never shown: one for all gateways, and those of single gateways.
#[derive(Clone, Default)]
pub struct Bearer {
    token: Option<String>,
    /// By gateway, each with the host that alone gets it.
    own: Arc<HashMap<GatewayId, (String, String)>>,
    hosts: Option<Arc<TokenHosts>>,
    /// It was told already that the token was withheld.
    is_told: Arc<AtomicBool>,
}

/// The hosts that a token may go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenHosts {
    /// Names with `*` for any letters; `None`: hosts of a private network.
    pub patterns: Option<Vec<String>>,
    /// Hosts that are named in the configuration.
    pub configured: Vec<String>,
}

impl TokenHosts {
    /// Whether the token may go to an endpoint.
    pub fn admits(&self, endpoint: &str) -> bool {
        let Some(host) = host(endpoint) else { return false };
        let fits = |pattern: &String| pattern::matches(&pattern.to_ascii_lowercase(), &host);
        let is_named = |patterns: &Vec<String>| patterns.iter().any(fits);
        self.configured.contains(&host) || self.patterns.as_ref().map_or_else(|| is_private(&host), is_named)
    }
}

/// The host of an endpoint, in small letters and without brackets.
pub fn host(endpoint: &str) -> Option<String> {
    let uri: Uri = endpoint.parse().ok()?;
    uri.scheme()?;
    Some(uri.host()?.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase())
}

/// Names without a dot, and those of zones that no public name server answers for.
fn is_private(host: &str) -> bool {
    const ZONES: [&str; 6] = [".local", ".localhost", ".internal", ".lan", ".home.arpa", ".svc"];
    match host.parse() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        Err(_) => !host.contains('.') || ZONES.iter().any(|zone| host.ends_with(zone)),
    }
}

impl Bearer {
    /// A token for any host.
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..Self::default() }
    }

    /// The same token for these hosts only.
    #[must_use]
    pub fn only_for(self, hosts: TokenHosts) -> Self {
        Self { hosts: Some(Arc::new(hosts)), ..self }
    }

    /// With tokens of single gateways instead of the one for all. Each goes to the host of the
    /// endpoint beside it, and to no other.
    #[must_use]
    pub fn with_own(self, own: impl IntoIterator<Item = (GatewayId, String, String)>) -> Self {
        let by_host = |(gateway, endpoint, token): (_, String, _)| Some((gateway, (host(&endpoint)?, token)));
        Self { own: Arc::new(own.into_iter().filter_map(by_host).collect()), ..self }
    }

    /// Adds the token of a gateway to a request to it, if it may go there.
    pub(crate) fn add_for(&self, gateway: &GatewayId, endpoint: &str, request: Builder) -> Result<Builder> {
        if let Some((only, token)) = self.own.get(gateway) {
            return match host(endpoint).is_some_and(|host| host == *only) {
                true => add(token, request),
                false => Ok(self.withheld(gateway, request)),
            };
        }
        if self.hosts.as_ref().is_none_or(|hosts| hosts.admits(endpoint)) {
            return self.add(request);
        }
        Ok(self.withheld(gateway, request))
    }

    fn withheld(&self, gateway: &GatewayId, request: Builder) -> Builder {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %gateway,
                "batches go to this gateway without a token: its host is none that may have it; see routing.delivery.token_hosts and routing.gateways"
            );
        }
        request
    }

    /// Adds the token for all to a request.
    pub(crate) fn add(&self, request: Builder) -> Result<Builder> {
        match &self.token {
            Some(token) => add(token, request),
            None => Ok(request),
        }
    }
}

fn add(token: &str, request: Builder) -> Result<Builder> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| Error::invalid("the bearer token has characters that no header can carry"))?;
    value.set_sensitive(true);
    Ok(request.header(AUTHORIZATION, value))
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r17_the_token_goes_to_private_hosts_or_to_those_that_are_named() {
        let usual = TokenHosts { configured: vec!["edge.example.com".to_owned()], ..TokenHosts::default() };
        let there = ["http://127.0.0.1:1", "https://10.1.2.3", "http://[fd00::1]:80", "http://edge-1:7272"];
        let there =
            there.into_iter().chain(["http://edge.ns.svc.cluster.local:1", "https://Edge.Example.com"]);
        there.for_each(|endpoint| assert!(usual.admits(endpoint), "{endpoint}"));
        for endpoint in
            ["http://attacker.example.com", "http://8.8.8.8:1", "http://[2001:db8::1]", "", "nonsense:"]
        {
            assert!(!usual.admits(endpoint), "{endpoint}");
        }
        let patterns = Some(vec!["*.edge.example.com".to_owned(), "203.0.113.*".to_owned()]);
        let named = TokenHosts { patterns, ..TokenHosts::default() };
        assert!(named.admits("https://a.edge.example.com:443") && named.admits("http://203.0.113.7"));
        for endpoint in ["https://edge.example.com", "https://a.edge.example.com.evil.org", "http://10.0.0.1"]
        {
            assert!(!named.admits(endpoint), "{endpoint}");
        }
    }

    #[test]
    fn r17_a_request_to_another_host_has_no_token() {
        let bearer = Bearer::new("secret").only_for(TokenHosts::default());
        let gateway = GatewayId::new("g").unwrap();
        let has = |endpoint: &str| {
            let request = bearer.add_for(&gateway, endpoint, Builder::new()).unwrap();
            request.headers_ref().unwrap().contains_key(AUTHORIZATION)
        };
        assert!(has("http://127.0.0.1:1") && !has("http://attacker.example.com"));
    }

    #[test]
    fn r17_a_gateway_with_its_own_token_gets_it_at_its_host_and_never_the_others() {
        let id = |name: &str| GatewayId::new(name).unwrap();
        let own = [(id("a"), "http://10.0.0.1:1".to_owned(), "own".to_owned())];
        let has = |bearer: &Bearer, gateway: &str, endpoint: &str| {
            let request = bearer.add_for(&id(gateway), endpoint, Builder::new()).unwrap();
            request.headers_ref().unwrap().get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned())
        };
        let both = Bearer::new("shared").only_for(TokenHosts::default()).with_own(own.clone());
        assert_eq!(has(&both, "a", "http://10.0.0.1:2").as_deref(), Some("Bearer own"));
        assert_eq!(has(&both, "a", "http://10.0.0.2:1"), None, "not even the shared one");
        assert_eq!(has(&both, "b", "http://10.0.0.1:1").as_deref(), Some("Bearer shared"));
        let alone = Bearer::default().with_own(own);
        assert_eq!(has(&alone, "b", "http://10.0.0.1:1"), None);
        assert_eq!(has(&alone, "a", "http://10.0.0.1:1").as_deref(), Some("Bearer own"));
    }
}
