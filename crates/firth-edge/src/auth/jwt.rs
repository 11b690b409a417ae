//! JSON web tokens: HS256 and EdDSA (Ed25519), verified with `ring`.
//!
//! The key decides the algorithm, never the token: a token whose header names another is refused.
//! `exp` must be there; `nbf` is heeded. Every claim that decides must have the right type. The
//! claims that matter here: `tenant`, `collections` (a list; all if absent), `sub`.

use super::{Collections, Grant, Sum, refuse};
use crate::protocol::EdgeError;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use firth_router::Tenant;
use ring::{hmac, signature};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tokens larger than this are not looked at.
const MAX_TOKEN: usize = 8 << 10;
/// How far clocks may differ.
const LEEWAY: Duration = Duration::from_secs(30);

/// A key that signs tokens.
#[derive(Clone)]
pub(super) struct JwtKey {
    kid: Box<str>,
    kind: Kind,
    pub(super) root: Sum,
}

#[derive(Clone)]
enum Kind {
    Hs256(hmac::Key),
    Ed25519([u8; 32]),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that must be understood; none is.
    #[serde(default)]
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    tenant: String,
    exp: f64,
    #[serde(default)]
    nbf: Option<f64>,
    #[serde(default)]
    sub: Option<String>,
    #[serde(default)]
    collections: Option<Vec<String>>,
}

impl JwtKey {
    /// From a line of a key file.
    pub(super) fn new(kind: &str, kid: &str, key: &str) -> Result<Self, &'static str> {
        let key =
            URL_SAFE_NO_PAD.decode(key.trim_end_matches('=')).map_err(|_| "the key is not base64url")?;
        if kind == "hs256" { Self::secret(kid, &key) } else { Self::public(kid, &key) }
    }

    pub(super) fn secret(kid: &str, secret: &[u8]) -> Result<Self, &'static str> {
        if secret.len() < 32 {
            return Err("a secret for HS256 needs at least 32 bytes");
        }
        Ok(Self::with(kid, Kind::Hs256(hmac::Key::new(hmac::HMAC_SHA256, secret)), secret))
    }

    pub(super) fn public(kid: &str, key: &[u8]) -> Result<Self, &'static str> {
        let bytes = key.try_into().map_err(|_| "a public key for Ed25519 has 32 bytes")?;
        Ok(Self::with(kid, Kind::Ed25519(bytes), key))
    }

    fn with(kid: &str, kind: Kind, key: &[u8]) -> Self {
        Self { kid: kid.into(), kind, root: Sha256::digest(key).into() }
    }

    fn fits(&self, header: &Header) -> bool {
        let alg = match self.kind {
            Kind::Hs256(_) => "HS256",
            Kind::Ed25519(_) => "EdDSA",
        };
        header.alg == alg && header.kid.as_deref().is_none_or(|kid| *kid == *self.kid)
    }

    fn verifies(&self, message: &[u8], mark: &[u8]) -> bool {
        match &self.kind {
            Kind::Hs256(key) => hmac::verify(key, message, mark).is_ok(),
            Kind::Ed25519(key) => {
                signature::UnparsedPublicKey::new(&signature::ED25519, key).verify(message, mark).is_ok()
            }
        }
    }
}

pub(super) fn check(keys: &[JwtKey], token: &str, now: SystemTime) -> Result<Grant, EdgeError> {
    let wrong = || refuse("this is not a token that this gateway can verify");
    if token.len() > MAX_TOKEN {
        return Err(refuse("a token has at most 8 KiB"));
    }
    let (signed, mark) = token.rsplit_once('.').ok_or_else(wrong)?;
    let (header, claims) = signed.split_once('.').ok_or_else(wrong)?;
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong());
    let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| wrong())?;
    let mark = decode(mark)?;
    if header.crit.is_some() {
        return Err(wrong());
    }
    let mut fitting = keys.iter().filter(|key| key.fits(&header));
    let key = fitting.find(|key| key.verifies(signed.as_bytes(), &mark)).ok_or_else(wrong)?;
    let claims: Claims = serde_json::from_slice(&decode(claims)?).map_err(|_| {
        refuse("a token needs the claims `tenant` (a text) and `exp` (a number), and `collections` is a list of texts")
    })?;
    grant(claims, key.root, now)
}

fn grant(claims: Claims, root: Sum, now: SystemTime) -> Result<Grant, EdgeError> {
    let seconds =
        |time: f64| Duration::try_from_secs_f64(time).ok().and_then(|time| UNIX_EPOCH.checked_add(time));
    let expires = seconds(claims.exp).ok_or_else(|| refuse("the token's `exp` is not a time"))?;
    if expires + LEEWAY <= now {
        return Err(refuse("this token has run out: get a new one"));
    }
    if let Some(start) = claims.nbf {
        let start = seconds(start).ok_or_else(|| refuse("the token's `nbf` is not a time"))?;
        if start > now + LEEWAY {
            return Err(refuse("this token is not valid yet"));
        }
    }
    let tenant =
        Tenant::new(&claims.tenant).map_err(|_| refuse("the token's `tenant` is not a valid name"))?;
    let collections = claims.collections.map_or(Collections::ALL, Collections::of);
    let user = claims.sub.filter(|sub| sub.len() <= 128).map(Into::into);
    Ok(Grant { tenant, user, collections, expires: expires.checked_add(LEEWAY), root })
}
