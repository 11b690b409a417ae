//! Who may connect, and what they may see: tokens ([`Keys`]), tickets for those who cannot send a
//! header, web pages ([`Origins`]).
//!
//! A client's tenant always comes from its token, never from what it says.

mod jwt;
pub(crate) mod origin;
pub(crate) mod ticket;

use crate::protocol::{Code, EdgeError};
use firth_router::Tenant;
use jwt::JwtKey;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use subtle::ConstantTimeEq as _;

pub use origin::Origins;

type Sum = [u8; 32];

/// What a token allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose events.
    pub tenant: Tenant,
    /// Who it is, for presence.
    pub user: Option<Arc<str>>,
    /// Which collections.
    pub collections: Collections,
    /// When it runs out.
    pub expires: Option<SystemTime>,
    /// Which key or token it rests on, so that it ends with it.
    pub(crate) root: Sum,
}

/// The collections that a token allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collections(Option<BTreeSet<Box<str>>>);

impl Collections {
    /// All of the tenant's.
    pub const ALL: Self = Self(None);

    /// These; a name that ends with `*` allows all that begin like it.
    pub fn of<T: Into<Box<str>>>(names: impl IntoIterator<Item = T>) -> Self {
        let names: BTreeSet<Box<str>> = names.into_iter().map(Into::into).collect();
        if names.contains("*") { Self::ALL } else { Self(Some(names)) }
    }

    /// Whether it is one of them.
    pub fn allow(&self, collection: &str) -> bool {
        self.0.as_ref().is_none_or(|names| {
            names.contains(collection)
                || names
                    .iter()
                    .filter_map(|name| name.strip_suffix('*'))
                    .any(|start| collection.starts_with(start))
        })
    }
}

/// The tokens that are accepted.
#[derive(Clone, Default)]
pub struct Keys {
    statics: Vec<Grant>,
    jwt: Vec<JwtKey>,
    open: Option<Grant>,
}

impl Keys {
    /// Everybody is this tenant, without a token: for a machine of one's own.
    pub fn open(tenant: Tenant) -> Self {
        let root = digest("open");
        let open = Grant { tenant, user: None, collections: Collections::ALL, expires: None, root };
        Self { open: Some(open), ..Self::default() }
    }

    /// Reads a key file: one key per line, empty lines and `#` comments passed over.
    ///
    /// ```text
    /// token   sha256:HEX tenant=acme user=ann collections=orders,items-*
    /// hs256   KID SECRET-IN-BASE64URL     (at least 32 bytes)
    /// ed25519 KID PUBLIC-KEY-IN-BASE64URL (32 bytes)
    /// ```
    pub fn parse(text: &str) -> Result<Self, EdgeError> {
        let mut keys = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                keys.add(line).map_err(|why| {
                    // Never shows the line: it holds secrets.
                    EdgeError::invalid("keys", format!("key file, line {}: {why}", index + 1))
                })?;
            }
        }
        if keys.statics.is_empty() && keys.jwt.is_empty() {
            return Err(EdgeError::invalid(
                "keys",
                "the key file has no key: add a line `token`, `hs256` or `ed25519`",
            ));
        }
        Ok(keys)
    }

    fn add(&mut self, line: &str) -> Result<(), &'static str> {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("token") => self.statics.push(static_grant(words)?),
            Some(kind @ ("hs256" | "ed25519")) => {
                let (Some(kid), Some(key), None) = (words.next(), words.next(), words.next()) else {
                    return Err("write the kind, a key id and the key in base64url");
                };
                self.jwt.push(JwtKey::new(kind, kid, key)?);
            }
            _ => return Err("begin with `token`, `hs256` or `ed25519`"),
        }
        Ok(())
    }

    /// Accepts a token, known by its digest alone.
    #[must_use]
    pub fn with_token(
        mut self,
        token: &str,
        tenant: Tenant,
        user: Option<&str>,
        collections: Collections,
    ) -> Self {
        let user = user.map(Into::into);
        self.statics.push(Grant { tenant, user, collections, expires: None, root: digest(token) });
        self
    }

    /// Accepts JSON web tokens that are signed with this secret (HS256).
    pub fn with_secret(mut self, kid: &str, secret: &[u8]) -> Result<Self, EdgeError> {
        self.jwt.push(JwtKey::secret(kid, secret).map_err(|why| EdgeError::invalid("secret", why))?);
        Ok(self)
    }

    /// Accepts JSON web tokens that are signed with the private half of this key (EdDSA, Ed25519).
    pub fn with_public_key(mut self, kid: &str, key: &[u8]) -> Result<Self, EdgeError> {
        self.jwt.push(JwtKey::public(kid, key).map_err(|why| EdgeError::invalid("key", why))?);
        Ok(self)
    }

    /// What a token allows; `now` is wall time, as tokens have it.
    pub fn check(&self, token: Option<&str>, now: SystemTime) -> Result<Grant, EdgeError> {
        let Some(token) = token else {
            return self.open.clone().ok_or_else(|| refuse("give a token"));
        };
        let sum = digest(token);
        // Compares with every digest, also behind the one that matches.
        let known = self
            .statics
            .iter()
            .fold(None, |found, grant| if bool::from(grant.root.ct_eq(&sum)) { Some(grant) } else { found });
        if let Some(grant) = known {
            return Ok(grant.clone());
        }
        if token.matches('.').count() == 2 && !self.jwt.is_empty() {
            return jwt::check(&self.jwt, token, now);
        }
        // An open gateway ignores tokens, so that a page works with and without.
        self.open.clone().ok_or_else(|| refuse("this token is not known here"))
    }

    /// Whether clients need no token.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether what a grant rests on is still accepted.
    pub(crate) fn still_hold(&self, grant: &Grant) -> bool {
        let statics = self.statics.iter().chain(&self.open).any(|known| {
            known.root == grant.root && known.tenant == grant.tenant && known.collections == grant.collections
        });
        statics || self.jwt.iter().any(|key| key.root == grant.root)
    }
}

impl Grant {
    /// How long it still holds; `None`: for ever.
    pub(crate) fn remaining(&self, now: SystemTime) -> Option<Duration> {
        self.expires.map(|end| end.duration_since(now).unwrap_or_default())
    }
}

fn static_grant<'a>(words: impl Iterator<Item = &'a str>) -> Result<Grant, &'static str> {
    let mut root = None;
    let mut tenant = None;
    let mut user = None;
    let mut collections = Collections::ALL;
    for word in words {
        match word.split_once(['=', ':']) {
            Some(("sha256", hex)) => root = Some(from_hex(hex).ok_or("sha256: takes 64 hex digits")?),
            Some(("tenant", name)) => {
                tenant = Some(Tenant::new(name).map_err(|_| "the tenant's name is not valid")?);
            }
            Some(("user", name)) => user = Some(name.into()),
            Some(("collections", list)) => collections = Collections::of(list.split(',')),
            _ => return Err("a token takes sha256:HEX, tenant=, user= and collections="),
        }
    }
    match (root, tenant) {
        (Some(root), Some(tenant)) => Ok(Grant { tenant, user, collections, expires: None, root }),
        _ => Err("a token needs sha256:HEX and tenant="),
    }
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

fn digest(token: &str) -> Sum {
    Sha256::digest(token.as_bytes()).into()
}

fn refuse(message: &'static str) -> EdgeError {
    EdgeError { field: Some("token".into()), ..EdgeError::new(Code::Unauthorized, message) }
}

/// Never shows keys.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({} tokens, {} keys)", self.statics.len(), self.jwt.len())
    }
}

#[cfg(test)]
mod tests;
