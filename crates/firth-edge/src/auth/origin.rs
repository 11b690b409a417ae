//! Which web pages may connect. Browsers send `Origin` with a WebSocket, and no CORS rule protects
//! it: the server must look.
//!
//! **Why `Host` counts.** A page of another site may have its own name lead to this machine (DNS
//! rebinding). Then its `Origin` is of the same host as its request, and only the name tells that
//! it is not ours.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The pages that may connect. Programs, which send no `Origin`, are not concerned: they need a
/// token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    allowed: BTreeSet<String>,
    any: bool,
    hosts: BTreeSet<String>,
}

impl Origins {
    /// Only pages that this host serves itself.
    pub fn same_host() -> Self {
        Self::default()
    }

    /// These as well, such as `https://app.example.com`; `*` allows every page.
    pub fn of<T: AsRef<str>>(origins: impl IntoIterator<Item = T>) -> Self {
        let allowed: BTreeSet<String> = origins
            .into_iter()
            .map(|origin| origin.as_ref().trim_end_matches('/').to_ascii_lowercase())
            .collect();
        Self { any: allowed.contains("*"), allowed, hosts: BTreeSet::new() }
    }

    /// With names by which clients may call this host. Without any, a gateway that asks for no
    /// tokens answers to `localhost` and to loopback addresses alone, and one that does to every
    /// name.
    #[must_use]
    pub fn with_hosts<T: AsRef<str>>(mut self, hosts: impl IntoIterator<Item = T>) -> Self {
        self.hosts = hosts.into_iter().map(|host| host.as_ref().to_ascii_lowercase()).collect();
        self
    }

    /// Whether a request to this host is meant for this gateway, which asks for no tokens
    /// (`is_open`) or does.
    pub(crate) fn is_host(&self, host: Option<&str>, is_open: bool) -> bool {
        if self.hosts.is_empty() && !is_open {
            return true;
        }
        let host = host.unwrap_or_default().to_ascii_lowercase();
        let name = match host.strip_prefix('[') {
            Some(v6) => v6.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_loopback = || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        name == "localhost" || is_loopback() || self.hosts.contains(name)
    }

    /// Whether a request with these headers may come in.
    pub fn allow(&self, origin: Option<&str>, host: Option<&str>) -> bool {
        let Some(origin) = origin.map(str::to_ascii_lowercase) else { return true };
        if self.any || self.allowed.contains(&origin) {
            return true;
        }
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        host.is_some_and(|host| authority == Some(&host.to_ascii_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r16_a_gateway_without_tokens_answers_to_its_own_names_alone() {
        let any = Origins::same_host();
        let named = Origins::same_host().with_hosts(["Edge.example.com"]);
        for own in ["localhost", "LOCALHOST:7272", "127.0.0.1:7272", "127.9.9.9", "[::1]:7272"] {
            assert!(any.is_host(Some(own), true) && named.is_host(Some(own), false), "{own}");
        }
        for strange in ["evil.com:7272", "", "127.0.0.1.evil.com", "10.0.0.1", "[::1.evil.com"] {
            assert!(!any.is_host(Some(strange), true) && !named.is_host(Some(strange), false), "{strange}");
            assert!(
                any.is_host(Some(strange), false),
                "with tokens, names do not matter unless they are given"
            );
        }
        assert!(!any.is_host(None, true));
        assert!(named.is_host(Some("edge.EXAMPLE.com:443"), true));
    }

    #[test]
    fn a_strange_page_stays_outside() {
        let origins = Origins::of(["https://app.example.com/"]);
        let host = Some("edge.example.com:8080");
        assert!(origins.allow(Some("https://app.example.com"), host));
        assert!(origins.allow(Some("https://APP.example.com"), host));
        assert!(origins.allow(Some("http://edge.example.com:8080"), host));
        assert!(origins.allow(None, host), "a program");
        for strange in [
            "https://app.example.com.evil.org",
            "http://app.example.com",
            "null",
            "",
            "http://edge.example.com",
        ] {
            assert!(!origins.allow(Some(strange), host), "{strange}");
            assert!(Origins::of(["*"]).allow(Some(strange), host));
        }
        assert!(!origins.allow(Some("https://evil.org"), None));
    }
}
