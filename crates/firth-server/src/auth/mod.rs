//! Who may call: bearer tokens, kept as SHA-256 digests and compared in constant time, each with
//! what it allows.
//!
//! Without tokens only programs on this machine are served, and web pages are not: see `browser`.

mod access;
mod audit;
mod browser;
mod rate;
mod token;

pub(crate) use access::{Need, is_console, need, takes};
pub(crate) use audit::{Audit, Entry, acting};
pub(crate) use browser::CLIENT;
pub(crate) use rate::{Buckets, Pace};
pub(crate) use token::{Limits, Scope, Sum, TokenGrant, hex};

use crate::problem::Problem;
use crate::wire::invalid;
use axum::http::{HeaderMap, StatusCode, header};
use firth::{ErrorKind, Result};
use firth_router::registry::Access;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, RwLock};

/// The check before every request.
#[derive(Clone)]
pub(crate) enum Guard {
    /// Calls from inside this process.
    Inside,
    /// This machine alone, no web pages.
    ThisMachine,
    /// Callers that present one of these tokens.
    Tokens(Arc<RwLock<Vec<Arc<TokenGrant>>>>),
}

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// This process, or this machine without tokens: everything is allowed.
    Local,
    /// The holder of a token.
    Holder(Arc<TokenGrant>),
}

impl Caller {
    /// For the audit log.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Local => "local",
            Self::Holder(grant) => &grant.name,
        }
    }

    /// Whether it may see that this topic exists.
    pub(crate) fn covers(&self, topic: &str) -> bool {
        match self {
            Self::Local => true,
            Self::Holder(grant) => grant.covers(topic),
        }
    }

    /// Whether it may see every topic.
    pub(crate) fn covers_all(&self) -> bool {
        match self {
            Self::Local => true,
            Self::Holder(grant) => grant.covers_all(),
        }
    }

    /// The gateways and tenants that it may register.
    pub(crate) fn access(&self) -> Access {
        match self {
            Self::Local => Access::default(),
            Self::Holder(grant) => grant.access().clone(),
        }
    }

    /// The names of the scopes that it has.
    pub(crate) fn scopes(&self) -> Vec<String> {
        match self {
            Self::Local => token::all_scopes().map(str::to_owned).collect(),
            Self::Holder(grant) => grant.scope_names(),
        }
    }

    /// The names of topics that it may use, with `*` for any part.
    pub(crate) fn topics(&self) -> Vec<String> {
        match self {
            Self::Holder(grant) if !grant.covers_all() => grant.patterns().to_vec(),
            _ => vec!["*".to_owned()],
        }
    }

    /// Fails with 403 unless this is allowed with this topic.
    pub(crate) fn check(&self, need: Need, topic: Option<&str>) -> Result<(), Problem> {
        let Self::Holder(grant) = self else { return Ok(()) };
        let allowed = match need {
            Need::Nothing | Need::Signature | Need::Token => true,
            Need::Look => topic.is_none_or(|topic| grant.covers(topic)),
            // The handler leaves out what is not theirs.
            Need::Scope(Scope::Observe) if topic.is_none() => grant.allows(Scope::Observe, None),
            Need::Scope(scope) if topic.is_none() => grant.allows(scope, None) && grant.covers_all(),
            Need::Scope(scope) => grant.allows(scope, topic),
        };
        if allowed {
            return Ok(());
        }
        let name = &grant.name;
        let detail = match (need, topic) {
            (Need::Scope(scope), _) if !grant.allows(scope, None) => {
                let scope = format!("{scope:?}").to_ascii_lowercase();
                format!("token {name} lacks the scope {scope}: see its line in the token file")
            }
            (_, Some(topic)) => {
                format!("token {name} is not for {topic}: see topics= on its line in the token file")
            }
            (_, None) => {
                format!("token {name} is for some topics only: see topics= on its line in the token file")
            }
        };
        Err(Problem::http(StatusCode::FORBIDDEN, ErrorKind::Unauthorized, detail))
    }
}

impl Guard {
    /// The guard for a server on `listen`; refuses to serve others without tokens.
    pub(crate) fn choose(listen: SocketAddr, file: Option<&Path>, plain: Option<&str>) -> Result<Self> {
        let grants = read_grants(file, plain)?;
        if !grants.is_empty() {
            return Ok(Self::Tokens(Arc::new(RwLock::new(grants))));
        }
        if listen.ip().is_loopback() {
            return Ok(Self::ThisMachine);
        }
        Err(invalid(format!(
            "{listen} can be reached from other machines, so it needs a token: make one with `firth token`, then give \
             --token-file FILE or FIRTH_TOKEN; or listen on 127.0.0.1"
        )))
    }

    /// Takes other tokens from now on. A server that began without tokens stays so: that needs a
    /// restart.
    pub(crate) fn reload(&self, file: Option<&Path>, plain: Option<&str>) -> Result<()> {
        let Self::Tokens(known) = self else { return Ok(()) };
        let grants = read_grants(file, plain)?;
        if grants.is_empty() {
            return Err(invalid("no tokens are left: the old ones stay; to serve without tokens, restart"));
        }
        *known.write().expect("nothing panics under this lock") = grants;
        Ok(())
    }

    /// Whether callers are told apart by tokens.
    pub(crate) fn has_tokens(&self) -> bool {
        matches!(self, Self::Tokens(_))
    }

    /// Fails with 403 if a file of the console is asked for under a foreign name that was pointed
    /// here. Links of other sites may lead to the console.
    pub(crate) fn check_host(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if !matches!(self, Self::ThisMachine) || browser::is_for_this_machine(headers) {
            return Ok(());
        }
        let detail = "without tokens the console is at http://127.0.0.1 and http://localhost only";
        Err(Problem::http(StatusCode::FORBIDDEN, ErrorKind::Unauthorized, detail))
    }

    /// Who calls, or 401 or 403; `takes` tells of a GET with effects.
    pub(crate) fn check(&self, headers: &HeaderMap, takes: bool) -> Result<Caller, Problem> {
        match self {
            Self::Inside => Ok(Caller::Local),
            Self::ThisMachine => from_this_machine(headers, takes).map(|()| Caller::Local),
            Self::Tokens(grants) => {
                let grants = grants.read().expect("nothing panics under this lock");
                has_token(headers, &grants).map(Caller::Holder)
            }
        }
    }
}

/// The digest of the token that a request presents.
pub(crate) fn presented(headers: &HeaderMap) -> Option<Sum> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token::digest(token.trim()))
}

fn has_token(headers: &HeaderMap, grants: &[Arc<TokenGrant>]) -> Result<Arc<TokenGrant>, Problem> {
    // Compare every digest to its end, also after a match, so that timing reveals nothing.
    let known = presented(headers).and_then(|token| {
        grants.iter().fold(None, |known, grant| match grant.is(&token) {
            true => Some(grant),
            false => known,
        })
    });
    known.cloned().ok_or_else(|| {
        let detail = "send the header `Authorization: Bearer TOKEN` with a token of this server";
        Problem::http(StatusCode::UNAUTHORIZED, ErrorKind::Unauthorized, detail)
    })
}

fn from_this_machine(headers: &HeaderMap, takes: bool) -> Result<(), Problem> {
    if !browser::may_be_a_page(headers, takes) {
        return Ok(());
    }
    let detail = match takes {
        true => {
            "without tokens this call is for programs on this machine, no browsers: send the header \
             `Firth-Client: NAME`, or serve with --token-file"
        }
        false => {
            "without tokens this server answers programs on its own machine only, no web pages: serve \
             with --token-file"
        }
    };
    Err(Problem::http(StatusCode::FORBIDDEN, ErrorKind::Unauthorized, detail))
}

fn read_grants(file: Option<&Path>, plain: Option<&str>) -> Result<Vec<Arc<TokenGrant>>> {
    let mut grants = file.map_or_else(|| Ok(Vec::new()), read_file)?;
    let plain = plain.filter(|token| !token.is_empty());
    grants.extend(plain.map(|token| Arc::new(TokenGrant::everything(token, "FIRTH_TOKEN"))));
    Ok(grants)
}

/// One token per line; empty lines and comments are passed over.
fn read_file(path: &Path) -> Result<Vec<Arc<TokenGrant>>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| invalid(format!("token file {shown} cannot be read")).with_source(error))?;
    let mut grants = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if !line.is_empty() && !line.starts_with('#') {
            let line = TokenGrant::read(line);
            grants.push(Arc::new(
                line.map_err(|error| error.during(format!("token file {shown}, line {}", index + 1)))?,
            ));
        }
    }
    if grants.is_empty() {
        return Err(invalid(format!("token file {shown} has no token: add one with `firth token`")));
    }
    Ok(grants)
}

/// A new token of 256 random bits.
pub(crate) fn new_token() -> Result<String> {
    let mut random = [0; 32];
    std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random)).map_err(
        |error| firth::Error::new(ErrorKind::Unsupported, "no source of randomness").with_source(error),
    )?;
    Ok(format!("firth_{}", hex(&random)))
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
        let token = new_token().unwrap();
        let grants = vec![
            Arc::new(TokenGrant::everything("another", "another")),
            Arc::new(TokenGrant::everything(&token, "mine")),
            Arc::new(TokenGrant::everything("a third", "third")),
        ];
        let guard = Guard::Tokens(Arc::new(RwLock::new(grants)));
        let caller = guard.check(&with(header::AUTHORIZATION, &format!("Bearer {token}")), false).unwrap();
        assert_eq!(caller.name(), "mine");
        for wrong in [format!("Bearer {token}x"), format!("Basic {token}"), token, "Bearer".into()] {
            assert_eq!(guard.check(&with(header::AUTHORIZATION, &wrong), false).unwrap_err().status, 401);
        }
        assert_eq!(guard.check(&HeaderMap::new(), false).unwrap_err().status, 401);
    }

    #[test]
    fn other_machines_are_served_with_tokens_only() {
        let open: SocketAddr = "0.0.0.0:7171".parse().unwrap();
        let refused = Guard::choose(open, None, None).err().unwrap();
        assert!(refused.context().contains("--token-file"));
        assert!(matches!(Guard::choose(open, None, Some("secret")), Ok(Guard::Tokens(_))));
        let local = "[::1]:7171".parse().unwrap();
        assert!(matches!(Guard::choose(local, None, None), Ok(Guard::ThisMachine)));
    }

    #[test]
    fn a_scope_without_the_topic_or_a_topic_without_the_scope_is_refused() {
        let scopes = ["produce".to_owned()];
        let topics = ["orders".to_owned()];
        let limits = Limits { scopes: &scopes, topics: &topics, ..Limits::default() };
        let line = TokenGrant::line("t", None, &limits).unwrap();
        let caller = Caller::Holder(Arc::new(TokenGrant::read(&line).unwrap()));
        let may = |need, topic| caller.check(need, topic).is_ok();
        assert!(may(Need::Scope(Scope::Produce), Some("orders")) && may(Need::Look, Some("orders")));
        assert!(!may(Need::Scope(Scope::Produce), Some("mail")) && !may(Need::Look, Some("mail")));
        assert!(!may(Need::Scope(Scope::Consume), Some("orders")) && !may(Need::Scope(Scope::Admin), None));
        assert!(may(Need::Token, None) && caller.covers("orders") && !caller.covers("mail"));
    }
}
