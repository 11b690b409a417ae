//! [`Bearer`]: the token that goes to gateways, and to which hosts it may go. Who may register a gateway chooses its endpoint; the token
//! must not follow just anywhere.

use crate::error::{Error, Result};
use crate::name::GatewayId;
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Builder;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A token that is never shown.
#[derive(Clone)]
pub struct Bearer {
    token: String,
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
        let is_named = |patterns: &Vec<String>| patterns.iter().any(|pattern| matches(pattern, &host));
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

/// Whether a text is as a pattern says, in which `*` stands for any letters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern.eq_ignore_ascii_case(text) };
    let Some(text) = text.get(head.len()..).filter(|_| text[..head.len()].eq_ignore_ascii_case(head)) else {
        return false;
    };
    (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| matches(rest, &text[at..]))
}

impl Bearer {
    /// A token for any host.
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into(), hosts: None, is_told: Arc::default() }
    }

    /// The same token for these hosts only.
    #[must_use]
    pub fn only_for(self, hosts: TokenHosts) -> Self {
        Self { hosts: Some(Arc::new(hosts)), ..self }
    }

    /// Adds it to a request to a gateway, if it may go there.
    pub(crate) fn add_for(&self, gateway: &GatewayId, endpoint: &str, request: Builder) -> Result<Builder> {
        if self.hosts.as_ref().is_none_or(|hosts| hosts.admits(endpoint)) {
            return self.add(request);
        }
        if !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %gateway,
                "batches go to this gateway without the token: its host is none of a private network; name it in routing.delivery.token_hosts"
            );
        }
        Ok(request)
    }

    pub(crate) fn add(&self, request: Builder) -> Result<Builder> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.token))
            .map_err(|_| Error::invalid("the bearer token has characters that no header can carry"))?;
        value.set_sensitive(true);
        Ok(request.header(AUTHORIZATION, value))
    }
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
}
