//! Who may call: bearer tokens, kept as SHA-256 digests and compared in constant time.
//!
//! Without tokens only this machine is served, and web pages are not: a request with an `Origin`, or for a host that is not
//! this machine, is refused, so that no page can reach the server through somebody's browser.

use crate::problem::Problem;
use crate::wire::invalid;
use axum::http::{HeaderMap, StatusCode, header};
use firth::{ErrorKind, Result};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

type Sum = [u8; 32];

/// The check before every request.
#[derive(Clone, Debug)]
pub(crate) enum Guard {
    /// Calls from inside this process.
    Inside,
    /// This machine alone, no web pages.
    ThisMachine,
    /// Whoever has a token with one of these digests.
    Tokens(Vec<Sum>),
}

impl Guard {
    /// The guard for a server on `listen`; refuses to serve others without tokens.
    pub(crate) fn choose(listen: SocketAddr, file: Option<&Path>, plain: Option<&str>) -> Result<Self> {
        let mut sums = file.map_or_else(|| Ok(Vec::new()), read_file)?;
        sums.extend(plain.filter(|token| !token.is_empty()).map(digest));
        if !sums.is_empty() {
            return Ok(Self::Tokens(sums));
        }
        if listen.ip().is_loopback() {
            return Ok(Self::ThisMachine);
        }
        Err(invalid(format!(
            "{listen} can be reached from other machines, so it needs a token: make one with `firth token`, then give \
             --token-file FILE or FIRTH_TOKEN; or listen on 127.0.0.1"
        )))
    }

    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match self {
            Self::Inside => Ok(()),
            Self::ThisMachine => from_this_machine(headers),
            Self::Tokens(sums) => has_token(headers, sums),
        }
    }
}

fn has_token(headers: &HeaderMap, sums: &[Sum]) -> Result<(), Problem> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(|value| value.split_once(' '));
    let token = token
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| digest(token.trim()));
    // Looks at every digest to its end, whatever matches.
    let known = token.is_some_and(|token| sums.iter().fold(false, |known, sum| known | same(sum, &token)));
    if known {
        return Ok(());
    }
    let detail = "send the header `Authorization: Bearer TOKEN` with a token of this server";
    Err(Problem::http(StatusCode::UNAUTHORIZED, ErrorKind::Unauthorized, detail))
}

fn from_this_machine(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_local = name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if is_local && !headers.contains_key(header::ORIGIN) {
        return Ok(());
    }
    let detail = "without tokens this server answers programs on its own machine only, no web pages: serve with --token-file";
    Err(Problem::http(StatusCode::FORBIDDEN, ErrorKind::Unauthorized, detail))
}

fn same(left: &Sum, right: &Sum) -> bool {
    left.iter().zip(right).fold(0, |difference, (left, right)| difference | (left ^ right)) == 0
}

fn digest(token: &str) -> Sum {
    Sha256::digest(token.as_bytes()).into()
}

/// Lines `sha256:HEX`; empty ones and comments are passed over.
fn read_file(path: &Path) -> Result<Vec<Sum>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| invalid(format!("token file {shown} cannot be read")).with_source(error))?;
    let mut sums = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let sum = line.strip_prefix("sha256:").and_then(from_hex);
        // Never shows the line: somebody may have put a plain token there.
        sums.push(sum.ok_or_else(|| {
            let line = index + 1;
            invalid(format!(
                "token file {shown}, line {line}: write `sha256:` and 64 hex digits, as `firth token` does"
            ))
        })?);
    }
    if sums.is_empty() {
        return Err(invalid(format!("token file {shown} has no token: add one with `firth token`")));
    }
    Ok(sums)
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

/// A new token and its line for the token file.
pub(crate) fn make_token() -> Result<(String, String)> {
    let mut random = [0; 32];
    std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random)).map_err(
        |error| firth::Error::new(ErrorKind::Unsupported, "no source of randomness").with_source(error),
    )?;
    let token = format!("firth_{}", hex(&random));
    let line = format!("sha256:{}", hex(&digest(&token)));
    Ok((token, line))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn with(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_token_opens_only_with_its_own_digest() {
        let (token, line) = make_token().unwrap();
        let guard = Guard::Tokens(vec![from_hex(&line["sha256:".len()..]).unwrap()]);
        assert!(guard.check(&with(header::AUTHORIZATION, &format!("Bearer {token}"))).is_ok());
        for wrong in [format!("Bearer {token}x"), format!("Basic {token}"), token, "Bearer".into()] {
            assert_eq!(guard.check(&with(header::AUTHORIZATION, &wrong)).unwrap_err().status, 401);
        }
        assert_eq!(guard.check(&HeaderMap::new()).unwrap_err().status, 401);
    }

    #[test]
    fn other_machines_are_served_with_tokens_only() {
        let open: SocketAddr = "0.0.0.0:7171".parse().unwrap();
        assert!(Guard::choose(open, None, None).unwrap_err().context().contains("--token-file"));
        assert!(matches!(Guard::choose(open, None, Some("secret")), Ok(Guard::Tokens(_))));
        let local = "[::1]:7171".parse().unwrap();
        assert!(matches!(Guard::choose(local, None, None), Ok(Guard::ThisMachine)));
    }

    #[test]
    fn without_tokens_no_web_page_gets_through() {
        for host in ["localhost:7171", "127.0.0.1:7171", "[::1]:7171", "127.0.0.1"] {
            assert!(from_this_machine(&with(header::HOST, host)).is_ok(), "{host}");
        }
        for host in ["evil.example:7171", "", "127.0.0.1.evil.example"] {
            assert!(from_this_machine(&with(header::HOST, host)).is_err(), "{host}");
        }
        let mut page = with(header::HOST, "localhost:7171");
        page.insert(header::ORIGIN, HeaderValue::from_static("http://evil.example"));
        assert!(from_this_machine(&page).is_err());
    }
}
