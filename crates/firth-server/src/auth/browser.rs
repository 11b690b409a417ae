//! What a web page must not reach on a server without tokens. Pure.
//!
//! A token is a header that no page can send on its own, so a server with tokens needs none of
//! this. Without tokens the browser itself is on this machine, and every page that it shows could
//! act for it. So three rules hold:
//!
//! 1. The `Host` is this machine, so that no foreign name can be pointed here (DNS rebinding).
//! 2. There is no `Origin` but the server's own (`http://` or `https://` and the `Host`), and
//!    `Sec-Fetch-Site` is not that of another site. Browsers set both, pages cannot change them,
//!    and programs send neither. The console is the one page of the server's own origin.
//! 3. A GET that takes something (deliveries, say) is also refused if a person or another program
//!    made the browser ask: an address, a link in a mail. Old browsers send no `Sec-Fetch-Site`;
//!    they are known by their `User-Agent`. A request with [`CLIENT`] passes: a page cannot send
//!    that header to another site without being asked for permission, which is never given.

use axum::http::{HeaderMap, header};
use std::net::IpAddr;

/// The header in which a client names itself; no page can send it to another site.
pub(crate) const CLIENT: &str = "firth-client";
const SITE: &str = "sec-fetch-site";

/// Whether a request can come from a page of another site; `takes` tells of a GET with effects.
pub(super) fn may_be_a_page(headers: &HeaderMap, takes: bool) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let site = text(SITE);
    let host = text(header::HOST.as_str()).unwrap_or_default();
    let origin = text(header::ORIGIN.as_str());
    let is_foreign = !is_this_machine(host)
        || headers.get_all(header::ORIGIN).iter().count() > 1
        || match origin {
            Some(origin) => !is_own(origin, host) || site.is_some_and(|site| site != "same-origin"),
            None => site.is_some_and(|site| !matches!(site, "same-origin" | "none")),
        };
    if is_foreign || !takes || headers.contains_key(CLIENT) {
        return is_foreign;
    }
    match site {
        Some(site) => site != "same-origin",
        None => text(header::USER_AGENT.as_str()).is_some_and(|agent| agent.starts_with("Mozilla/")),
    }
}

/// Whether the `Host` names this machine.
pub(super) fn is_for_this_machine(headers: &HeaderMap) -> bool {
    headers.get(header::HOST).is_some_and(|host| host.to_str().is_ok_and(is_this_machine))
}

/// Whether an origin is the one that this request was sent to.
fn is_own(origin: &str, host: &str) -> bool {
    let at = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    at.is_some_and(|at| at.eq_ignore_ascii_case(host))
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn with(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn only_this_machine_is_meant_by_a_host_that_names_it() {
        for host in ["localhost:7171", "127.0.0.1:7171", "[::1]:7171", "127.0.0.1"] {
            assert!(!may_be_a_page(&with(&[("host", host)]), true), "{host}");
            assert!(is_for_this_machine(&with(&[("host", host)])), "{host}");
        }
        for host in ["evil.example:7171", "", "127.0.0.1.evil.example"] {
            assert!(may_be_a_page(&with(&[("host", host)]), false), "{host}");
            assert!(!is_for_this_machine(&with(&[("host", host)])), "{host}");
        }
    }

    #[test]
    fn u02_no_page_of_another_site_gets_through() {
        let local = ("host", "localhost:7171");
        assert!(may_be_a_page(&with(&[local, ("origin", "http://evil.example")]), false));
        assert!(may_be_a_page(&with(&[local, ("origin", "null")]), false));
        for site in ["cross-site", "same-site", "none of these"] {
            assert!(may_be_a_page(&with(&[local, (SITE, site)]), false), "{site}");
            assert!(may_be_a_page(&with(&[local, (SITE, site), (CLIENT, "x")]), true), "{site}");
        }
        assert!(!may_be_a_page(&with(&[local, (SITE, "none")]), false), "an address that was typed");
    }

    #[test]
    fn u02_the_servers_own_page_gets_through_and_no_other_origin() {
        let local = ("host", "localhost:7171");
        let own = ("origin", "http://localhost:7171");
        let same = (SITE, "same-origin");
        for asked in
            [vec![local, own], vec![local, own, same], vec![local, ("origin", "https://LOCALHOST:7171")]]
        {
            assert!(!may_be_a_page(&with(&asked), false), "{asked:?}");
        }
        for site in ["cross-site", "same-site", "none"] {
            assert!(may_be_a_page(&with(&[local, own, (SITE, site)]), false), "{site}");
        }
        for origin in [
            "http://localhost:8080",
            "http://localhost",
            "http://127.0.0.1:7171",
            "http://localhost:7171.evil.example",
            "http://evil.example/localhost:7171",
            "file://localhost:7171",
            "localhost:7171",
            "",
        ] {
            assert!(may_be_a_page(&with(&[local, ("origin", origin), same]), false), "{origin}");
        }
        let rebound = ("host", "evil.example:7171");
        let both = [rebound, ("origin", "http://evil.example:7171"), same];
        assert!(may_be_a_page(&with(&both), false), "a foreign name that points here");
        let mut twice = with(&[local, own, same]);
        twice.append("origin", HeaderValue::from_static("http://evil.example"));
        assert!(may_be_a_page(&twice, false), "two origins");
    }

    #[test]
    fn u02_a_get_that_takes_something_is_for_programs() {
        let local = ("host", "localhost:7171");
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64)");
        for asked in [vec![local, (SITE, "none")], vec![local, (SITE, "none"), browser], vec![local, browser]]
        {
            assert!(may_be_a_page(&with(&asked), true), "{asked:?}");
            assert!(!may_be_a_page(&with(&asked), false), "{asked:?}");
        }
        for program in
            [vec![local], vec![local, ("user-agent", "curl/8.5.0")], vec![local, browser, (CLIENT, "x")]]
        {
            assert!(!may_be_a_page(&with(&program), true), "{program:?}");
        }
        let own_page = [local, browser, (SITE, "same-origin")];
        assert!(!may_be_a_page(&with(&own_page), true), "only this server's own pages are that");
    }
}
