//! [`KnownSource`]: what a server knows of a source, and what it makes of it. Pure.

use crate::wire::SourceShown;
use firth_connect::control::DesiredState;
use firth_connect::reports::Report;
use firth_connect::{SourceConfig, Status, WEBHOOK};

/// What is known of one source.
#[derive(Default)]
pub(crate) struct KnownSource<'a> {
    /// What this server's configuration says.
    pub(crate) config: Option<&'a SourceConfig>,
    /// What operators want.
    pub(crate) desired: DesiredState,
    /// What its reader told last.
    pub(crate) report: Option<Report>,
    /// Whether a node could claim it, and the node that has claimed it.
    pub(crate) offer: Option<Option<String>>,
    /// How it is here, if this server reads it.
    pub(crate) here: Option<Status>,
}

impl KnownSource<'_> {
    /// The node that reads it.
    pub(crate) fn reader(&self) -> Option<&String> {
        self.offer.as_ref().and_then(Option::as_ref)
    }

    /// As it is shown.
    pub(crate) fn shown(self, name: &str, now_ms: u64) -> SourceShown {
        let Self { config, desired, report, offer, here } = self;
        let reader = offer.clone().flatten();
        let told = |text: fn(&Report) -> &String| report.as_ref().map(|report| text(report).clone());
        let kind = config.map(|config| config.kind().to_owned()).or_else(|| told(|report| &report.kind));
        let topic = config.map(|config| config.topic().to_owned()).or_else(|| told(|report| &report.topic));
        let (told_ms, status) = match (here, &report) {
            (Some(status), _) => (Some(now_ms), status),
            (None, Some(report)) => (Some(report.at_ms), report.status.clone()),
            (None, None) => (None, Status::default()),
        };
        let shown = SourceShown {
            name: name.to_owned(),
            kind: kind.unwrap_or_default(),
            topic: topic.unwrap_or_default(),
            told_ms,
            configured: config.is_some(),
            wanted_snapshots: desired.snapshots.iter().cloned().map(Into::into).collect(),
            ..SourceShown::default()
        };
        let mut shown = SourceShown { reader: reader.clone(), ..shown.with_status(status) };
        let owner_told = report.as_ref().is_some_and(|report| Some(&report.node) == reader.as_ref());
        let age = told_ms.map_or(0, |told| now_ms.saturating_sub(told) / 1_000);
        let last_reason = shown.reason.clone();
        let mut say = |state: &str, reason: Option<String>| {
            state.clone_into(&mut shown.state);
            shown.reason = reason;
        };
        let is_open = shown.kind == WEBHOOK;
        match (&reader, report) {
            _ if desired.removed && offer.is_some() => {
                let usual = "a node that has the source takes it down";
                say("removing", last_reason.or_else(|| Some(usual.to_owned())));
            }
            _ if desired.removed => say("removed", Some("`firth connect resume` begins anew".to_owned())),
            _ if desired.paused => say("paused", Some("an operator paused it".to_owned())),
            // Every node that has it takes its requests.
            _ if is_open && told_ms == Some(now_ms) => {}
            (_, Some(report)) if is_open && !report.is_stale(now_ms) => {}
            (None, Some(report)) => {
                say("waiting", Some(format!("no node reads it; node {} did {age} s ago", report.node)));
            }
            (None, None) => say("waiting", Some("no node reads it yet".to_owned())),
            (Some(node), _) if told_ms != Some(now_ms) && !owner_told => {
                say("starting", Some(format!("node {node} has it and has not told yet how it is")));
            }
            (Some(node), Some(report)) if told_ms != Some(now_ms) && report.is_stale(now_ms) => {
                let state = shown.state.clone();
                let reason = format!("node {node} has told nothing for {age} s; then it was {state}");
                shown.reason = Some(reason);
            }
            _ => {}
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_connect::Condition;

    fn streaming(changes: u64) -> Status {
        Status { condition: Condition::Streaming, changes, ..Status::default() }
    }

    fn told(node: &str, at_ms: u64) -> Option<Report> {
        let topic = "changes".to_owned();
        Some(Report { node: node.to_owned(), topic, at_ms, status: streaming(7), ..Report::default() })
    }

    fn read_by(node: &str) -> Option<Option<String>> {
        Some(Some(node.to_owned()))
    }

    #[test]
    fn every_server_tells_what_the_reader_told_and_how_old_that_is() {
        let known = KnownSource { report: told("a", 5_000), offer: read_by("a"), ..KnownSource::default() };
        let shown = known.shown("shop", 6_000);
        assert_eq!((&*shown.state, shown.changes, shown.told_ms), ("streaming", 7, Some(5_000)));
        assert_eq!((&*shown.topic, shown.reader.as_deref()), ("changes", Some("a")));
        let known = KnownSource { report: told("a", 5_000), offer: read_by("a"), ..KnownSource::default() };
        let reason = known.shown("shop", 65_000).reason.unwrap();
        assert_eq!(reason, "node a has told nothing for 60 s; then it was streaming");
        let known = KnownSource { report: told("a", 5_000), offer: read_by("b"), ..KnownSource::default() };
        assert_eq!(known.shown("shop", 6_000).state, "starting", "the report is of a former reader");
        let known = KnownSource { report: told("a", 5_000), offer: Some(None), ..KnownSource::default() };
        let shown = known.shown("shop", 9_000);
        assert_eq!(
            (&*shown.state, &*shown.reason.unwrap()),
            ("waiting", "no node reads it; node a did 4 s ago")
        );
    }

    #[test]
    fn the_reader_itself_tells_what_is_now() {
        let here = Some(streaming(9));
        let known =
            KnownSource { report: told("a", 5_000), offer: read_by("a"), here, ..KnownSource::default() };
        let shown = known.shown("shop", 99_000);
        assert_eq!((&*shown.state, shown.changes, shown.reason), ("streaming", 9, None));
    }

    #[test]
    fn what_operators_want_stands_above_what_a_reader_told() {
        let of = |paused, removed, offer| {
            let mut desired = DesiredState::default();
            (desired.paused, desired.removed) = (paused, removed);
            KnownSource { report: told("a", 5_000), offer, desired, ..KnownSource::default() }
                .shown("shop", 6_000)
                .state
        };
        assert_eq!(of(true, false, Some(None)), "paused");
        assert_eq!(of(true, true, read_by("a")), "removing");
        assert_eq!(of(true, true, None), "removed");
    }
}
