//! Tokens: what a line of the token file says, and what it allows. Pure.
//!
//! `sha256:HEX name=billing scopes=produce,consume topics=orders.*,mail`: the digest of the token,
//! and optionally a name for the audit log, what it may do and with which topics. Without `scopes`
//! it may do everything, without `topics` with all of them. `gateways=` and `tenants=` limit in the
//! same way what it may register with the router; `tenants=` needs `gateways=`.

use crate::routing::told;
use crate::wire::{invalid, invalid_at};
use firth::Result;
use firth_router::pattern::matches;
use firth_router::registry::Access;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

/// The digest of a token.
pub(crate) type Sum = [u8; 32];

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Send messages.
    Produce,
    /// Fetch, stream, settle and browse records.
    Consume,
    /// Look at figures, metrics and events; never at payloads.
    Observe,
    /// Register gateways and subscriptions.
    Route,
    /// Everything, also creating and deleting.
    Admin,
}

const SCOPES: [(&str, Scope); 5] = [
    ("produce", Scope::Produce),
    ("consume", Scope::Consume),
    ("observe", Scope::Observe),
    ("route", Scope::Route),
    ("admin", Scope::Admin),
];

/// A token of the server, without the token itself.
#[derive(Clone, Debug)]
pub(crate) struct TokenGrant {
    sum: Sum,
    pub(crate) name: String,
    scopes: Vec<Scope>,
    topics: Vec<String>,
    /// The gateways and tenants that it may register.
    access: Access,
}

/// The limits of a token to be made; empty lists limit nothing.
#[derive(Default)]
pub(crate) struct Limits<'a> {
    pub(crate) scopes: &'a [String],
    pub(crate) topics: &'a [String],
    pub(crate) gateways: &'a [String],
    pub(crate) tenants: &'a [String],
}

impl TokenGrant {
    /// One that may do everything.
    pub(crate) fn everything(token: &str, name: &str) -> Self {
        Self::of(digest(token), name.to_owned())
    }

    fn of(sum: Sum, name: String) -> Self {
        Self { sum, name, scopes: vec![Scope::Admin], topics: Vec::new(), access: Access::default() }
    }

    /// Whether it is the token with this digest; compares in constant time.
    pub(crate) fn is(&self, sum: &Sum) -> bool {
        self.sum.ct_eq(sum).into()
    }

    /// Reads a line. The error says what is wrong and never shows the line: an operator may have
    /// put a plain token there.
    pub(super) fn read(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let sum = words.next().and_then(|word| word.strip_prefix("sha256:")).and_then(from_hex);
        let sum = sum.ok_or_else(|| invalid("write `sha256:` and 64 hex digits, as `firth token` does"))?;
        let mut grant = Self::of(sum, short(&sum));
        let mut gateways = Vec::new();
        let mut tenants = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "name" if !value.is_empty() => grant.name = value.to_owned(),
                "scopes" => grant.scopes = value.split(',').map(scope).collect::<Result<_>>()?,
                "topics" => grant.topics = value.split(',').map(pattern).collect::<Result<_>>()?,
                "gateways" => gateways = value.split(',').map(str::to_owned).collect(),
                "tenants" => tenants = value.split(',').map(str::to_owned).collect(),
                _ => {
                    return Err(invalid(
                        "after the digest come name=…, scopes=…, topics=…, gateways=… and tenants=… only",
                    ));
                }
            }
        }
        grant.access = Access::new(gateways, tenants).map_err(told)?;
        Ok(grant)
    }

    /// The line that [`read`](Self::read) understands.
    pub(crate) fn line(token: &str, name: Option<&str>, limits: &Limits<'_>) -> Result<String> {
        let mut line = format!("sha256:{}", hex(&digest(token)));
        if let Some(name) = name {
            if name.is_empty() || name.contains(char::is_whitespace) {
                return Err(invalid_at("name", "name: give one word"));
            }
            line = format!("{line} name={name}");
        }
        let Limits { scopes, topics, gateways, tenants } = limits;
        for (key, words) in
            [("scopes", scopes), ("topics", topics), ("gateways", gateways), ("tenants", tenants)]
        {
            if !words.is_empty() {
                line = format!("{line} {key}={}", words.join(","));
            }
        }
        Self::read(&line).map(|_| line)
    }

    /// Whether it allows this with this topic; without a topic, whether it allows it with any.
    pub(crate) fn allows(&self, scope: Scope, topic: Option<&str>) -> bool {
        self.has(scope) && topic.is_none_or(|topic| self.covers(topic))
    }

    /// The gateways and tenants that it may register.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Whether it allows anything at all with this topic.
    pub(crate) fn covers(&self, topic: &str) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|pattern| matches(pattern, topic))
    }

    /// Whether it is good for every topic there is or may be.
    pub(crate) fn covers_all(&self) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|pattern| pattern == "*")
    }

    /// The names of its scopes; `admin` has all of them.
    pub(crate) fn scope_names(&self) -> Vec<String> {
        let has = SCOPES.iter().filter(|(_, scope)| self.has(*scope));
        has.map(|(name, _)| (*name).to_owned()).collect()
    }

    /// The names of topics that it is for; none: all.
    pub(super) fn patterns(&self) -> &[String] {
        &self.topics
    }

    fn has(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|have| *have == scope || *have == Scope::Admin)
    }
}

/// The names of all scopes.
pub(super) fn all_scopes() -> impl Iterator<Item = &'static str> {
    SCOPES.iter().map(|(name, _)| *name)
}

fn scope(word: &str) -> Result<Scope> {
    let known = SCOPES.iter().find(|(name, _)| *name == word).map(|(_, scope)| *scope);
    known.ok_or_else(|| invalid_at("scopes", "scopes: give some of produce, consume, observe, route, admin"))
}

fn pattern(word: &str) -> Result<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-*".contains(c);
    if word.is_empty() || word.len() > 128 || !word.chars().all(fits) {
        return Err(invalid_at("topics", "topics: give names of topics, with `*` for any part"));
    }
    Ok(word.to_owned())
}

pub(super) fn digest(token: &str) -> Sum {
    Sha256::digest(token.as_bytes()).into()
}

fn short(sum: &Sum) -> String {
    format!("token-{}", hex(&sum[..4]))
}

fn from_hex(text: &str) -> Option<Sum> {
    let mut sum = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in sum.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(sum)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_allows_what_its_line_says_and_no_more() {
        let scopes = ["produce".to_owned(), "observe".to_owned()];
        let topics = ["orders.*".to_owned(), "mail".to_owned()];
        let limits = Limits { scopes: &scopes, topics: &topics, ..Limits::default() };
        let grant = TokenGrant::read(&TokenGrant::line("t", Some("shop"), &limits).unwrap()).unwrap();
        assert_eq!(grant.name, "shop");
        assert!(
            grant.allows(Scope::Produce, Some("orders.eu")) && grant.allows(Scope::Observe, Some("mail"))
        );
        assert!(!grant.allows(Scope::Consume, Some("mail")) && !grant.allows(Scope::Admin, None));
        assert!(!grant.allows(Scope::Produce, Some("order")) && !grant.allows(Scope::Produce, Some("email")));
        assert!(!grant.covers_all());
        let all = TokenGrant::read(&TokenGrant::line("t", None, &Limits::default()).unwrap()).unwrap();
        assert!(
            all.allows(Scope::Admin, Some("any")) && all.allows(Scope::Consume, None) && all.covers_all()
        );
    }

    #[test]
    fn a_wrong_line_is_refused_and_not_shown() {
        let good = format!("sha256:{}", "0".repeat(64));
        for rest in [
            "scopes=root",
            "scopes=",
            "topics=a/b",
            "gateways=",
            "tenants=a/b",
            "scopes=route tenants=acme",
            "colour=red",
            "name=",
            "produce",
        ] {
            let error = TokenGrant::read(&format!("{good} {rest}")).unwrap_err();
            assert!(!error.context().contains("000"), "{error}");
        }
        for line in ["firth_planted", "sha256:planted", ""] {
            assert!(!TokenGrant::read(line).unwrap_err().context().contains("planted"));
        }
    }
}
