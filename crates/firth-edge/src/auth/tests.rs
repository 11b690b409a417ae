//! Tokens: published examples, and everything that must not get in.

use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use ring::{hmac, signature};
use serde_json::{Value, json};
use std::time::UNIX_EPOCH;

const SECRET: &[u8] = b"a secret of more than thirty-two bytes";

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000)
}

fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn hs256(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let signed = format!("{}.{}", encode(header), encode(claims));
    let mark = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mark))
}

fn claims() -> Value {
    json!({"tenant": "acme", "exp": 1_000_600, "sub": "ann", "collections": ["orders", "items-*"]})
}

fn keys() -> Keys {
    Keys::default().with_secret("k1", SECRET).unwrap()
}

#[test]
fn a_signed_token_grants_what_it_claims() {
    let token = hs256(&json!({"alg": "HS256", "kid": "k1"}), &claims(), SECRET);
    let grant = keys().check(Some(&token), now()).unwrap();
    assert_eq!((grant.tenant.as_str(), grant.user.as_deref()), ("acme", Some("ann")));
    assert!(grant.collections.allow("orders") && grant.collections.allow("items-7"));
    assert!(!grant.collections.allow("order") && !grant.collections.allow("orders2"));
    assert_eq!(grant.remaining(now()), Some(Duration::from_secs(630)), "thirty seconds of leeway");
    assert!(keys().still_hold(&grant));
    assert!(!Keys::default().with_secret("k1", &[7; 32]).unwrap().still_hold(&grant), "its key is gone");
}

/// RFC 7515, appendix A.1: our verification agrees with everybody else's.
#[test]
fn the_published_example_verifies() {
    let key = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
    let token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let keys = Keys::parse(&format!("hs256 joe {key}")).unwrap();
    let error = keys.check(Some(token), now()).unwrap_err();
    assert!(error.message.contains("claims `tenant`"), "verified, but it names no tenant: {error}");
    let changed = token.replace("dBjf", "dBjg");
    let error = keys.check(Some(&changed), now()).unwrap_err();
    assert!(error.message.contains("can verify"), "{error}");
}

#[test]
fn a_token_signed_with_ed25519_is_accepted_by_the_public_half() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap();
    let signed = format!("{}.{}", encode(&json!({"alg": "EdDSA"})), encode(&claims()));
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes())));
    let public = URL_SAFE_NO_PAD.encode(pair.public_key());
    let keys = Keys::parse(&format!("# ours\ned25519 k2 {public}\n")).unwrap();
    assert_eq!(keys.check(Some(&token), now()).unwrap().tenant.as_str(), "acme");
    // The well-known confusion: the public key used as a secret.
    let forged = hs256(&json!({"alg": "HS256"}), &claims(), pair.public_key().as_ref());
    assert_eq!(keys.check(Some(&forged), now()).unwrap_err().code, Code::Unauthorized);
    assert!(
        signature::UnparsedPublicKey::new(&signature::ED25519, pair.public_key()).verify(b"x", b"y").is_err()
    );
}

#[test]
fn what_is_forged_or_over_or_badly_typed_stays_outside() {
    let header = json!({"alg": "HS256"});
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        hs256(&header, &claims, SECRET)
    };
    let mut without = claims();
    without.as_object_mut().unwrap().remove("exp");
    let good = hs256(&header, &claims(), SECRET);
    let (signed, _) = good.rsplit_once('.').unwrap();
    let bad = [
        hs256(&header, &claims(), b"another secret of the right length"),
        hs256(&json!({"alg": "none"}), &claims(), SECRET),
        format!("{}.{}.", encode(&json!({"alg": "none"})), encode(&claims())),
        format!("{signed}."),
        format!("{signed}.AAAA"),
        hs256(&json!({"alg": "HS256", "kid": "k9"}), &claims(), SECRET),
        hs256(&json!({"alg": "HS256", "crit": ["b64"]}), &claims(), SECRET),
        hs256(&header, &without, SECRET),
        with("exp", json!(999_900)),
        with("exp", json!("1000600")),
        with("exp", json!(-1)),
        with("exp", json!(1e300)),
        with("nbf", json!(1_000_500)),
        with("nbf", json!("0")),
        with("tenant", json!("a b")),
        with("tenant", json!(7)),
        with("collections", json!("orders")),
        with("tenant", json!("x".repeat(9000))),
        String::new(),
        "..".to_owned(),
        "a.b.c".to_owned(),
        "firth_0".to_owned(),
    ];
    for token in bad {
        let error = keys().check(Some(&token), now()).unwrap_err();
        assert_eq!(error.code, Code::Unauthorized, "{error}");
        let shown = format!("{error:?} {:?}", keys());
        assert!(!shown.contains("secret of") && (token.len() < 8 || !shown.contains(&token)), "{shown}");
    }
    assert!(keys().check(Some(&good), now()).is_ok());
    assert_eq!(keys().check(None, now()).unwrap_err().code, Code::Unauthorized);
}

#[test]
fn plain_tokens_are_known_by_their_digest() {
    let hex: String = digest("let me in").iter().map(|byte| format!("{byte:02x}")).collect();
    let keys = Keys::parse(&format!("token sha256:{hex} tenant=acme collections=a,b user=bob")).unwrap();
    let grant = keys.check(Some("let me in"), now()).unwrap();
    assert_eq!((grant.tenant.as_str(), grant.user.as_deref(), grant.expires), ("acme", Some("bob"), None));
    assert!(grant.collections.allow("a") && !grant.collections.allow("c"));
    assert!(keys.check(Some("let me out"), now()).is_err());
    for line in
        ["token", "token sha256:00 tenant=a", "token tenant=a", "hs256 k c2hvcnQ", "rs256 k x", "hs256 k", ""]
    {
        assert!(Keys::parse(line).is_err(), "{line}");
    }
}

#[test]
fn a_ticket_is_good_once_and_for_a_short_time() {
    let grant = Keys::open(Tenant::new("t").unwrap()).check(None, now()).unwrap();
    let mut tickets = ticket::Tickets::default();
    let start = std::time::Instant::now();
    let ticket = tickets.issue(grant.clone(), start).unwrap();
    assert_eq!(tickets.redeem(&ticket, start), Some(grant.clone()));
    assert_eq!(tickets.redeem(&ticket, start), None);
    let ticket = tickets.issue(grant, start).unwrap();
    assert_eq!(tickets.redeem(&ticket, start + ticket::LIFE), None);
    assert_eq!(tickets.redeem("x", start), None);
}

#[test]
fn r14_a_tenant_that_asks_for_many_tickets_takes_none_of_another_and_is_slowed_down() {
    let grant = |tenant: &str| Keys::open(Tenant::new(tenant).unwrap()).check(None, now()).unwrap();
    let mut tickets = ticket::Tickets::default();
    let start = std::time::Instant::now();
    let quiet = tickets.issue(grant("quiet"), start).unwrap();
    let mut issued = Vec::new();
    let mut refused = 0;
    for n in 0..5_000_u32 {
        match tickets.issue(grant("greedy"), start + ticket::LIFE / 2 / 5_000 * n) {
            Ok(ticket) => issued.push(ticket),
            Err(error) => {
                assert_eq!(error.code, Code::Rate);
                refused += 1;
            }
        }
    }
    let later = start + ticket::LIFE / 2;
    assert!(refused > 3_500 && issued.len() > ticket::MAX_OF_TENANT, "{refused} {}", issued.len());
    assert!(tickets.redeem(&issued[0], later).is_none(), "its own oldest is not good any more");
    assert!(tickets.redeem(issued.last().unwrap(), later).is_some());
    assert!(tickets.redeem(&quiet, later).is_some(), "the other's is");
    for tenant in 0..2 * ticket::MAX / 500 {
        let tenant = grant(&format!("t{tenant}"));
        for _ in 0..500 {
            tickets.issue(tenant.clone(), later).unwrap();
        }
    }
    assert_eq!(tickets.len(), ticket::MAX, "and there are so many in all");
}
