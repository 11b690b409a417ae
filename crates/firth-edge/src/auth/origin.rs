//! Which web pages may connect. Browsers send `Origin` with a WebSocket, and no CORS rule protects it: the server must look.

use std::collections::BTreeSet;

/// The pages that may connect. Programs, which send no `Origin`, are not concerned: they need a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    allowed: BTreeSet<String>,
    any: bool,
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
        Self { any: allowed.contains("*"), allowed }
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
