//! Tokens: what a line of the token file says, and what it allows. Pure.
//!
//! `sha256:HEX name=billing scopes=produce,consume topics=orders.*,mail`: the digest of the token, and optionally a name for the audit log, what it
//! may do and with which topics. Without `scopes` it may do everything, without `topics` with all of them.

use crate::wire::invalid;
use firth::Result;
use sha2::{Digest, Sha256};

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
pub(crate) struct Grant {
    pub(super) sum: Sum,
    pub(crate) name: String,
    scopes: Vec<Scope>,
    topics: Vec<String>,
}

impl Grant {
    /// One that may do everything.
    pub(super) fn everything(token: &str, name: &str) -> Self {
        Self { sum: digest(token), name: name.to_owned(), scopes: vec![Scope::Admin], topics: Vec::new() }
    }

    /// Reads a line, or says what is wrong with it without showing it: somebody may have put a plain token there.
    pub(super) fn read(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let sum = words.next().and_then(|word| word.strip_prefix("sha256:")).and_then(from_hex);
        let sum = sum.ok_or_else(|| invalid("write `sha256:` and 64 hex digits, as `firth token` does"))?;
        let mut grant = Self { sum, name: short(&sum), scopes: vec![Scope::Admin], topics: Vec::new() };
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "name" if !value.is_empty() => grant.name = value.to_owned(),
                "scopes" => grant.scopes = value.split(',').map(scope).collect::<Result<_>>()?,
                "topics" => grant.topics = value.split(',').map(pattern).collect::<Result<_>>()?,
                _ => return Err(invalid("after the digest come name=…, scopes=… and topics=… only")),
            }
        }
        Ok(grant)
    }

    /// The line that [`read`](Self::read) understands.
    pub(crate) fn line(
        token: &str,
        name: Option<&str>,
        scopes: &[String],
        topics: &[String],
    ) -> Result<String> {
        let mut line = format!("sha256:{}", hex(&digest(token)));
        if let Some(name) = name {
            if name.is_empty() || name.contains(char::is_whitespace) {
                return Err(invalid("name: give one word"));
            }
            line = format!("{line} name={name}");
        }
        if !scopes.is_empty() {
            line = format!("{line} scopes={}", scopes.join(","));
        }
        if !topics.is_empty() {
            line = format!("{line} topics={}", topics.join(","));
        }
        Self::read(&line).map(|_| line)
    }

    /// Whether it allows this with this topic; without a topic, whether it allows it with any.
    pub(crate) fn allows(&self, scope: Scope, topic: Option<&str>) -> bool {
        self.has(scope) && topic.is_none_or(|topic| self.covers(topic))
    }

    /// Whether it allows anything at all with this topic.
    pub(crate) fn covers(&self, topic: &str) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|pattern| matches(pattern, topic))
    }

    /// Whether it is good for every topic there is or may be.
    pub(crate) fn covers_all(&self) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|pattern| pattern == "*")
    }

    fn has(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|have| *have == scope || *have == Scope::Admin)
    }
}

fn scope(word: &str) -> Result<Scope> {
    let known = SCOPES.iter().find(|(name, _)| *name == word).map(|(_, scope)| *scope);
    known.ok_or_else(|| invalid("scopes: give some of produce, consume, observe, route, admin"))
}

fn pattern(word: &str) -> Result<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-*".contains(c);
    if word.is_empty() || word.len() > 128 || !word.chars().all(fits) {
        return Err(invalid("topics: give names of topics, with `*` for any part"));
    }
    Ok(word.to_owned())
}

/// Whether `text` is as `pattern` says; `*` stands for any run of characters. Linear in both: backs up to the last star only.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            (p, t) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Looks at every bit, whatever differs.
pub(super) fn same(left: &Sum, right: &Sum) -> bool {
    std::hint::black_box(
        left.iter().zip(right).fold(0, |difference, (left, right)| difference | (left ^ right)),
    ) == 0
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
        let grant = Grant::read(&Grant::line("t", Some("shop"), &scopes, &topics).unwrap()).unwrap();
        assert_eq!(grant.name, "shop");
        assert!(
            grant.allows(Scope::Produce, Some("orders.eu")) && grant.allows(Scope::Observe, Some("mail"))
        );
        assert!(!grant.allows(Scope::Consume, Some("mail")) && !grant.allows(Scope::Admin, None));
        assert!(!grant.allows(Scope::Produce, Some("order")) && !grant.allows(Scope::Produce, Some("email")));
        assert!(!grant.covers_all());
        let all = Grant::read(&Grant::line("t", None, &[], &[]).unwrap()).unwrap();
        assert!(
            all.allows(Scope::Admin, Some("any")) && all.allows(Scope::Consume, None) && all.covers_all()
        );
    }

    #[test]
    fn a_wrong_line_is_refused_and_not_shown() {
        let good = format!("sha256:{}", "0".repeat(64));
        for rest in ["scopes=root", "scopes=", "topics=a/b", "colour=red", "name=", "produce"] {
            let error = Grant::read(&format!("{good} {rest}")).unwrap_err();
            assert!(!error.context().contains("000"), "{error}");
        }
        for line in ["firth_planted", "sha256:planted", ""] {
            assert!(!Grant::read(line).unwrap_err().context().contains("planted"));
        }
    }

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, text) in
            [("*", ""), ("*", "a"), ("a*c", "abc"), ("a*c", "ac"), ("*b*", "abc"), ("a*b*c", "a-b-b-c")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("a", "b"), ("a*", "ba"), ("*a", "ab"), ("a*c", "abcd"), ("", "a"), ("ab", "a")]
        {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
