//! Signatures over batches, as the Standard Webhooks have them: HMAC-SHA256 over
//! `id.timestamp.body`, in the header `webhook-signature`.

use crate::error::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use std::fmt;
use std::time::Duration;
use subtle::ConstantTimeEq as _;

/// The header with the batch's id, made of what is in it: the same over all attempts, and never
/// that of another batch.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the time of the attempt, in seconds of Unix time.
pub const TIME_HEADER: &str = "webhook-timestamp";
/// The header with the signatures, separated by blanks.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

/// A secret shared with a gateway. Never shown.
#[derive(Clone)]
pub struct SigningKey(hmac::Key);

impl SigningKey {
    /// Reads a key: `whsec_` and base64 of 24 to 64 bytes.
    pub fn parse(text: &str) -> Result<Self> {
        let encoded = text.strip_prefix("whsec_").unwrap_or(text);
        let key = STANDARD
            .decode(encoded)
            .map_err(|_| Error::invalid("a signing key is base64, with or without whsec_ before it"))?;
        match key.len() {
            24..=64 => Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key))),
            length => Err(Error::invalid(format!("a signing key has {length} bytes; give 24 to 64"))),
        }
    }

    /// The signature of a body.
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        format!("v1,{}", STANDARD.encode(self.code(id, timestamp, body)))
    }

    fn code(&self, id: &str, timestamp: u64, body: &[u8]) -> hmac::Tag {
        let mut code = hmac::Context::with_key(&self.0);
        code.update(format!("{id}.{timestamp}.").as_bytes());
        code.update(body);
        code.sign()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

/// Checks the signatures of a body against any of the keys (two while one is being replaced), and
/// that it is not older or newer than `tolerance`.
pub fn verify(
    keys: &[SigningKey],
    (id, timestamp, signatures): (&str, u64, &str),
    body: &[u8],
    now: u64,
    tolerance: Duration,
) -> Result<()> {
    if now.abs_diff(timestamp) > tolerance.as_secs() {
        return Err(Error::invalid("the signature's time is too far from now"));
    }
    let mut matches = false;
    for signature in signatures.split(' ').filter_map(|signature| signature.strip_prefix("v1,")) {
        let Ok(given) = STANDARD.decode(signature) else { continue };
        for key in keys {
            matches |= bool::from(given.ct_eq(key.code(id, timestamp, body).as_ref()));
        }
    }
    if matches { Ok(()) } else { Err(Error::invalid("no signature fits the body")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_fits_its_own_body_and_time_and_nothing_else() {
        let key = SigningKey::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        // The example of the Standard Webhooks specification.
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let time = 1_614_265_330;
        let body = br#"{"test": 2432232314}"#;
        let signature = key.sign(id, time, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let minute = Duration::from_secs(60);
        let both = format!("v1,AAAA {signature}");
        let other = SigningKey::parse(&STANDARD.encode([7; 32])).unwrap();
        let keys = [other, key];
        verify(&keys, (id, time, &both), body, time + 60, minute).unwrap();
        assert!(verify(&keys, (id, time, &signature), body, time + 61, minute).is_err(), "too old");
        assert!(verify(&keys, (id, time + 1, &signature), body, time, minute).is_err(), "another time");
        assert!(verify(&keys, ("x", time, &signature), body, time, minute).is_err(), "another id");
        assert!(verify(&keys, (id, time, &signature), b"x", time, minute).is_err(), "another body");
        assert!(verify(&keys[..1], (id, time, &signature), body, time, minute).is_err(), "another key");
        assert!(!format!("{keys:?}").contains("MfKQ") && SigningKey::parse("whsec_AAAA").is_err());
    }
}
