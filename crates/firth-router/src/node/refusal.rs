//! Which gateway refused an event for good, as its dead letter says it.
//!
//! The header [`REFUSED_BY`] names the gateway, for programs. The reason says it to people. Letters
//! of older builds have no such header; their reason is read ([`was_alone`]).

use crate::name::GatewayId;
use firth::DeadLetter;

/// Header of a dead letter: the gateway that alone refused the event; empty if the event has
/// another cause, or several.
pub(super) const REFUSED_BY: &str = "firth-refused-by";
/// Reasons of this length may have been cut.
const MAX_READABLE: usize = 1024;

/// Why a gateway does not get an event, for people.
pub(super) fn reason_of(gateway: &str, reason: &str) -> String {
    format!("gateway {gateway}: {reason}")
}

/// Whether a dead letter is there because of this gateway alone. In doubt it is not.
pub(super) fn is_alone(gateway: &GatewayId, letter: &DeadLetter) -> bool {
    match letter.record.headers().get(REFUSED_BY) {
        Some(by) => by == gateway.as_str(),
        None => was_alone(gateway.as_str(), &letter.reason),
    }
}

/// As [`is_alone`], of a letter of a build that wrote no header. In doubt it is not: a reason may
/// have been cut, or quote another.
fn was_alone(gateway: &str, reasons: &str) -> bool {
    let own = reasons.strip_prefix(&reason_of(gateway, ""));
    own.is_some_and(|own| !own.contains("; gateway ")) && reasons.len() < MAX_READABLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth::{Broker, Message, Nack};

    async fn letter(message: Message, reason: &str, by: Option<&str>) -> DeadLetter {
        let broker = Broker::memory();
        broker.create_topic("changes").await.unwrap();
        broker.producer("changes").await.unwrap().send(message).await.unwrap();
        let mut consumer = broker.consumer("changes", "router").await.unwrap();
        let delivery = consumer.next().await.unwrap().unwrap();
        let nack = Nack::reject(reason);
        let nack = match by {
            Some(by) => nack.with_header(REFUSED_BY, by.to_owned()),
            None => nack,
        };
        delivery.nack(nack).await.unwrap();
        consumer.close().await.unwrap();
        let mut page = broker.dead_letters("changes").list(None, 1).await.unwrap();
        page.letters.remove(0)
    }

    #[tokio::test]
    async fn the_header_decides_and_the_reason_does_not() {
        let a = GatewayId::new("a").unwrap();
        let b = GatewayId::new("b").unwrap();
        let theirs = letter(Message::new("x"), "gateway b: never", Some("a")).await;
        assert!(is_alone(&a, &theirs) && !is_alone(&b, &theirs));
        let several = letter(Message::new("x"), "gateway a: never", Some("")).await;
        assert!(!is_alone(&a, &several));
        let forged = Message::new("x").header(REFUSED_BY, "a");
        assert!(!is_alone(&a, &letter(forged, "not an event", Some("")).await), "the router's word counts");
    }

    #[tokio::test]
    async fn letters_of_older_builds_are_one_gateways_alone_only_beyond_doubt() {
        let a = GatewayId::new("a").unwrap();
        let of = async |reason: String| is_alone(&a, &letter(Message::new("x"), &reason, None).await);
        assert!(of(reason_of("a", "never; not this one")).await);
        assert!(!of(reason_of("ab", "never")).await);
        assert!(!of([reason_of("a", "never"), reason_of("b", "never")].join("; ")).await);
        assert!(!of("max_fanout is 2; gateway a: never".to_owned()).await);
        assert!(!of(reason_of("a", &"x".repeat(2000))).await, "it was cut");
    }
}
