//! [`Verifier`]: whether a request comes from the program that shares the secret. Pure.
//!
//! Every comparison takes the same time wherever the codes differ. Two secrets are good at a time,
//! so that one can replace the other.

use crate::error::{Error, ErrorKind, Result};
use crate::rules::Headers;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use firth_router::deliver::{ID_HEADER, SIGNATURE_HEADER, SigningKey, TIME_HEADER, verify};
use ring::hmac;
use serde::Deserialize;
use std::fmt;
use std::time::Duration;

/// Secrets that are good at a time.
const MAX_SECRETS: usize = 2;
/// Signatures that a header may hold.
const MAX_SIGNATURES: usize = 16;

/// How the sender signs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Scheme {
    /// The Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`; also with the
    /// prefix `svix-`.
    Standard,
    /// GitHub: `X-Hub-Signature-256`.
    Github,
    /// Stripe: `Stripe-Signature`.
    Stripe,
    /// Shopify: `X-Shopify-Hmac-Sha256`.
    Shopify,
    /// A code over the body in a header.
    Hmac(HmacRule),
}

/// Where a plain code stands, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HmacRule {
    /// The header.
    pub header: String,
    /// How it is written.
    #[serde(default)]
    pub encoding: Encoding,
    /// What stands before it.
    #[serde(default)]
    pub prefix: String,
    /// The hash function.
    #[serde(default)]
    pub algorithm: Algorithm,
}

/// How a code is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Two digits per byte.
    #[default]
    Hex,
    /// Base64.
    Base64,
}

/// The hash function of a code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
}

/// What a good signature covers beside the body.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verified {
    /// The sender's name of the event.
    pub(super) id: Option<String>,
    /// When it was signed, in seconds of Unix time.
    pub(super) signed: Option<u64>,
}

/// Checks requests of one sender. Never shows its secrets.
#[derive(Clone)]
pub(super) struct Verifier {
    scheme: Scheme,
    keys: Vec<hmac::Key>,
    standard: Vec<SigningKey>,
    tolerance: Duration,
}

impl Verifier {
    pub(super) fn new(scheme: &Scheme, secrets: &str, tolerance: Duration) -> Result<Self> {
        let secrets: Vec<&str> = secrets.lines().filter(|line| !line.is_empty()).collect();
        if secrets.is_empty() || secrets.len() > MAX_SECRETS {
            let count = secrets.len();
            return Err(Error::invalid(format!(
                "there are {count} secrets: give one, or two on two lines while one replaces the other"
            )));
        }
        let mut keys = Vec::new();
        let mut standard = Vec::new();
        let algorithm = match scheme {
            Scheme::Hmac(HmacRule { algorithm: Algorithm::Sha512, .. }) => hmac::HMAC_SHA512,
            _ => hmac::HMAC_SHA256,
        };
        for secret in secrets {
            match scheme {
                Scheme::Standard => {
                    let key = SigningKey::parse(secret);
                    standard.push(key.map_err(|error| Error::invalid(format!("secret: {error}")))?);
                }
                _ if secret.len() < 8 => {
                    return Err(Error::invalid("a secret has less than 8 bytes: anyone could guess it"));
                }
                _ => keys.push(hmac::Key::new(algorithm, secret.as_bytes())),
            }
        }
        Ok(Self { scheme: scheme.clone(), keys, standard, tolerance })
    }

    /// Checks a request that arrived at `now`, in seconds of Unix time.
    pub(super) fn check(&self, headers: &Headers<'_>, body: &[u8], now: u64) -> Result<Verified> {
        match &self.scheme {
            Scheme::Standard => self.standard(headers, body, now),
            Scheme::Stripe => self.stripe(headers, body, now),
            Scheme::Github => {
                let given = needed(headers, "x-hub-signature-256")?;
                self.body(decoded(given, "sha256=", Encoding::Hex), body)?;
                let id = headers.get("x-github-delivery").map(str::to_owned);
                Ok(Verified { id, signed: None })
            }
            Scheme::Shopify => {
                let given = needed(headers, "x-shopify-hmac-sha256")?;
                self.body(decoded(given, "", Encoding::Base64), body)?;
                let id = headers.get("x-shopify-webhook-id").map(str::to_owned);
                Ok(Verified { id, signed: None })
            }
            Scheme::Hmac(rule) => {
                let given = needed(headers, &rule.header)?;
                self.body(decoded(given, &rule.prefix, rule.encoding), body)?;
                Ok(Verified::default())
            }
        }
    }

    fn body(&self, given: Option<Vec<u8>>, signed: &[u8]) -> Result<()> {
        let given = given.ok_or_else(no_fit)?;
        let fits = self.keys.iter().fold(false, |fits, key| fits | hmac::verify(key, signed, &given).is_ok());
        if fits { Ok(()) } else { Err(no_fit()) }
    }

    fn in_time(&self, signed: u64, now: u64) -> Result<()> {
        if now.abs_diff(signed) <= self.tolerance.as_secs() {
            return Ok(());
        }
        let limit = self.tolerance.as_secs();
        Err(refused(format!("the signature's time is more than {limit} s from now: send the event anew")))
    }

    fn standard(&self, headers: &Headers<'_>, body: &[u8], now: u64) -> Result<Verified> {
        let usual = [ID_HEADER, TIME_HEADER, SIGNATURE_HEADER];
        let svix = ["svix-id", "svix-timestamp", "svix-signature"];
        let names = if headers.get(usual[0]).is_some() { usual } else { svix };
        let id = headers.get(names[0]).ok_or_else(|| missing(usual[0]))?;
        let signed =
            headers.get(names[1]).and_then(|time| time.parse().ok()).ok_or_else(|| missing(usual[1]))?;
        let signatures = headers.get(names[2]).ok_or_else(|| missing(usual[2]))?;
        self.in_time(signed, now)?;
        let given = (id, signed, signatures);
        verify(&self.standard, given, body, now, self.tolerance).map_err(|_| no_fit())?;
        Ok(Verified { id: Some(id.to_owned()), signed: Some(signed) })
    }

    fn stripe(&self, headers: &Headers<'_>, body: &[u8], now: u64) -> Result<Verified> {
        let given = needed(headers, "stripe-signature")?;
        let part = |wanted: &'static str| {
            let parts = given.split(',').filter_map(|part| part.trim().split_once('='));
            parts.filter(move |(name, _)| *name == wanted).map(|(_, value)| value)
        };
        let signed: u64 = part("t").next().and_then(|time| time.parse().ok()).ok_or_else(no_fit)?;
        self.in_time(signed, now)?;
        let text = [format!("{signed}.").as_bytes(), body].concat();
        let codes = part("v1").take(MAX_SIGNATURES).map(|code| decoded(code, "", Encoding::Hex));
        let fits = codes.fold(false, |fits, code| fits | self.body(code, &text).is_ok());
        if fits { Ok(Verified { id: None, signed: Some(signed) }) } else { Err(no_fit()) }
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verifier({:?})", self.scheme)
    }
}

fn decoded(given: &str, prefix: &str, encoding: Encoding) -> Option<Vec<u8>> {
    let code = given.strip_prefix(prefix)?;
    match encoding {
        Encoding::Base64 => STANDARD.decode(code).ok(),
        Encoding::Hex if code.len() % 2 == 0 => {
            let digits = code.as_bytes().chunks_exact(2);
            digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
        }
        Encoding::Hex => None,
    }
}

fn needed<'a>(headers: &Headers<'a>, name: &str) -> Result<&'a str> {
    headers.get(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Error {
    refused(format!("the request is not signed as it must be: header {name} is missing or odd"))
}

fn no_fit() -> Error {
    refused("no signature fits the body: is it signed with this webhook's secret?".to_owned())
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::Unauthorized, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    fn check(
        scheme: &Scheme,
        secrets: &str,
        headers: &[(&str, &str)],
        body: &str,
        now: u64,
    ) -> Result<Verified> {
        let verifier = Verifier::new(scheme, secrets, LIMIT).unwrap();
        assert!(!format!("{verifier:?}").contains(secrets.lines().next().unwrap()));
        verifier.check(&Headers::new(headers.iter().copied()), body.as_bytes(), now)
    }

    /// The vector holds, with either of two secrets; another body, secret or header does not.
    fn holds(scheme: &Scheme, secret: &str, headers: &[(&str, &str)], body: &str, now: u64) -> Verified {
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        for secrets in [format!("{secret}\n{other}"), format!("{other}\n{secret}")] {
            check(scheme, &secrets, headers, body, now).unwrap();
        }
        let wrong = [
            check(scheme, other, headers, body, now),
            check(scheme, secret, headers, &format!("{body} "), now),
            check(scheme, secret, &[], body, now),
        ];
        for wrong in wrong {
            assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Unauthorized);
        }
        check(scheme, secret, headers, body, now).unwrap()
    }

    /// The example of GitHub's documentation.
    #[test]
    fn the_published_example_of_github_holds() {
        let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let headers = [("X-Hub-Signature-256", signature), ("X-GitHub-Delivery", "72d3162e")];
        let verified = holds(&Scheme::Github, "It's a Secret to Everybody", &headers, "Hello, World!", 0);
        assert_eq!(verified.id.as_deref(), Some("72d3162e"));
    }

    /// The fixture of Stripe's own libraries.
    #[test]
    fn the_published_example_of_stripe_holds_while_it_is_fresh() {
        let body = include_str!("../../tests/data/stripe.json");
        let signature = "t=1533204620,v1=f0bdba6d4eacbd8ad8a3bbadd7248e633ec1477f7899c124c51b39405fa36613,\
                         v0=63f3a72374a733066c4be69ed7f8e5ac85c22c9f0a6a612ab9a025a9e4ee7eef";
        let headers = [("Stripe-Signature", signature)];
        let verified = holds(&Scheme::Stripe, "webhook_secret", &headers, body, 1_533_204_920);
        assert_eq!(verified.signed, Some(1_533_204_620));
        for late in [1_533_204_921, 1_533_204_319] {
            let error = check(&Scheme::Stripe, "webhook_secret", &headers, body, late).unwrap_err();
            assert!(error.to_string().contains("300 s"), "{error}");
        }
    }

    /// The example of the Standard Webhooks specification.
    #[test]
    fn the_published_example_of_the_standard_webhooks_holds() {
        let headers = [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ];
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let body = r#"{"test": 2432232314}"#;
        let verified = holds(&Scheme::Standard, secret, &headers, body, 1_614_265_330);
        assert_eq!(verified.id.as_deref(), Some("msg_p5jXN8AQM9LWM0D4loKWxJek"));
        let svix = headers.map(|(name, value)| (name.replace("webhook", "svix"), value));
        let svix: Vec<_> = svix.iter().map(|(name, value)| (&**name, *value)).collect();
        holds(&Scheme::Standard, secret, &svix, body, 1_614_265_330);
        assert!(check(&Scheme::Standard, secret, &headers, body, 1_614_265_631).is_err(), "too old");
    }

    #[test]
    fn a_code_as_shopify_writes_it_holds() {
        let body = r#"{"id":1234567890,"email":"customer@example.com","total_price":"123.45"}"#;
        let code = "QNyObTlKbMx2qDlPF/ZOZcBqg5OgPg+2oky3zldc0Gw=";
        let headers = [("X-Shopify-Hmac-SHA256", code), ("X-Shopify-Webhook-Id", "b54557e4")];
        let verified = holds(&Scheme::Shopify, "test-webhook-secret", &headers, body, 0);
        assert_eq!(verified.id.as_deref(), Some("b54557e4"));
        let rule = |encoding, prefix: &str| {
            let header = "X-Code".to_owned();
            let prefix = prefix.to_owned();
            Scheme::Hmac(HmacRule { header, encoding, prefix, algorithm: Algorithm::Sha256 })
        };
        let code = format!("v1:{code}");
        let headers = [("x-code", &*code)];
        holds(&rule(Encoding::Base64, "v1:"), "test-webhook-secret", &headers, body, 0);
        assert!(check(&rule(Encoding::Hex, ""), "test-webhook-secret", &headers, body, 0).is_err());
    }

    #[test]
    fn secrets_are_one_or_two_and_not_short() {
        for (scheme, secrets, expected) in [
            (Scheme::Github, "", "there are 0 secrets"),
            (Scheme::Github, "aaaaaaaa\nbbbbbbbb\ncccccccc", "there are 3 secrets"),
            (Scheme::Github, "short", "less than 8 bytes"),
            (Scheme::Standard, "no base64!", "secret: a signing key is base64"),
        ] {
            let error = Verifier::new(&scheme, secrets, LIMIT).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
