//! Why a subscription gets an event, or why not: asked of the interpreter, part by part, so it also
//! tells on the index.

use super::subscription::Subscription;
use crate::error::Result;
use crate::event::{Document, Event};
use crate::filter::{Scope, parts, show};

/// What a subscription makes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// It gets the event.
    pub wants: bool,
    /// Because the document matched before the change and does not any more.
    pub leaves: bool,
    /// Everything that was asked, with its answer, up to the first that decided. Holds values of
    /// the filter, none of the document.
    pub because: Vec<String>,
}

impl Subscription {
    /// Asks everything that decides whether the event is for this subscription.
    pub fn explain(&self, event: &Event) -> Result<Verdict> {
        let mut because = Vec::new();
        let document = self.document.as_deref();
        let plain = [
            ("tenant", self.tenant == event.tenant || event.is_for_all_tenants()),
            ("collection", *self.collection == *event.collection),
            ("document", event.is_control() || document.is_none_or(|key| *key == *event.key)),
        ];
        for (what, is_same) in plain {
            if what == "document" && document.is_none() {
                continue;
            }
            because.push(format!("{what}: {}", if is_same { "the same" } else { "another" }));
            if !is_same {
                return Ok(Verdict { wants: false, leaves: false, because });
            }
        }
        if event.is_control() {
            because.push(format!("{}: for every subscription of the collection", event.operation.as_str()));
            return Ok(Verdict { wants: true, leaves: false, because });
        }
        let passes = self.ask("", event, event.document(), &mut because)?;
        let mut leaves = false;
        if !passes && let (Some(before), Some(_)) = (&event.before, &event.after) {
            leaves = self.ask("before the change, ", event, Some(before), &mut because)?;
        }
        Ok(Verdict { wants: passes || leaves, leaves, because })
    }

    fn ask(
        &self,
        when: &str,
        event: &Event,
        document: Option<&Document>,
        because: &mut Vec<String>,
    ) -> Result<bool> {
        let parts = parts(self.filter.as_deref(), &self.conditions)?;
        if parts.is_empty() {
            because.push(format!("{when}filter: none, so every change matches"));
            return Ok(true);
        }
        let scope = Scope::new(event, document)?;
        let mut passes = true;
        for part in &parts {
            let (is_true, answer) = scope.say(part);
            because.push(format!("{when}{}: {answer}", show(part)));
            passes &= is_true;
        }
        Ok(passes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Operation;
    use crate::name::{GatewayId, SubscriptionId, Tenant};
    use crate::routing::Target;
    use serde_json::json;

    fn wish(filter: Option<&str>) -> Subscription {
        let target = Target::Direct(GatewayId::new("gw").unwrap());
        let wish =
            Subscription::new(SubscriptionId::new("s").unwrap(), Tenant::new("t").unwrap(), "orders", target);
        Subscription { filter: filter.map(str::to_owned), ..wish }
    }

    fn order(document: serde_json::Value) -> Event {
        Event::new(Operation::Update, Tenant::new("t").unwrap(), "orders", "1")
            .with_after(Document::from_value(&document).unwrap())
    }

    #[test]
    fn every_part_is_told_with_its_answer() {
        let wish = wish(Some(r#"doc.state == "paid" && doc.total > 100"#));
        let verdict = wish.explain(&order(json!({ "state": "paid", "total": 7 }))).unwrap();
        assert!(!verdict.wants);
        assert_eq!(
            verdict.because,
            [
                "tenant: the same",
                "collection: the same",
                r#"doc.state == "paid": true"#,
                "doc.total > 100: false"
            ]
        );
        let missing = wish.explain(&order(json!({ "state": "secret" }))).unwrap();
        assert!(
            missing.because[3].contains("a field is missing") && !format!("{missing:?}").contains("secret")
        );
    }

    #[test]
    fn a_document_that_leaves_is_told_by_its_old_image() {
        let wish = wish(Some("doc.n == 1"));
        let event = order(json!({ "n": 2 })).with_before(Document::from_value(&json!({ "n": 1 })).unwrap());
        let verdict = wish.explain(&event).unwrap();
        assert!(verdict.wants && verdict.leaves);
        assert_eq!(verdict.because.last().unwrap(), "before the change, doc.n == 1: true");
    }

    #[test]
    fn a_control_is_for_all_and_a_missing_column_is_told() {
        let all = Event::control(Operation::Truncate, None, "orders");
        let wish = Subscription { document: Some("7".into()), ..wish(Some("doc.n == 1")) };
        assert!(wish.explain(&all).unwrap().wants);
        assert!(!wish.explain(&Event::control(Operation::Truncate, None, "items")).unwrap().wants);
        let wish = Subscription { document: None, ..wish };
        let verdict = wish.explain(&order(json!({ "m": 1 })).with_missing(["n"])).unwrap();
        assert!(!verdict.wants && verdict.because[2].contains("does not know a column"), "{verdict:?}");
    }

    #[test]
    fn what_differs_first_decides() {
        let mut wish = wish(None);
        assert!(wish.explain(&order(json!({}))).unwrap().wants);
        wish.document = Some("2".into());
        assert_eq!(wish.explain(&order(json!({}))).unwrap().because.last().unwrap(), "document: another");
        wish.tenant = Tenant::new("other").unwrap();
        assert_eq!(wish.explain(&order(json!({}))).unwrap().because, ["tenant: another"]);
    }
}
