//! Reading the answers of scripts: refusals first, then numbers, ids and runs in order.

use super::error_mapping::odd_answer;
use crate::ahead::Ahead;
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{NewMark, SequenceGap};
use crate::hold::Hold;
use crate::id::RecordId;
use crate::limits::MAX_DUE;
use crate::name::{GroupName, Partition};
use bytes::Bytes;
use firth_redis::resp::{Children, Frame, Value};
use std::time::Duration;

/// The parts of a list, read in order.
pub(super) struct Parts<'a>(Children<'a>);

impl<'a> Parts<'a> {
    pub(super) fn of(value: Value<'a>) -> Self {
        Self(value.iter())
    }

    pub(super) fn value(&mut self) -> Result<Value<'a>> {
        self.0.next().ok_or_else(odd_answer)
    }

    pub(super) fn signed(&mut self) -> Result<i64> {
        self.value()?.as_i64().ok_or_else(odd_answer)
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        u64::try_from(self.signed()?).map_err(|_| odd_answer())
    }

    /// A number of microseconds; negative means none.
    pub(super) fn duration(&mut self) -> Result<Option<Duration>> {
        Ok(u64::try_from(self.signed()?).ok().map(Duration::from_micros))
    }

    /// A number; negative means none.
    pub(super) fn count(&mut self) -> Result<Option<u64>> {
        Ok(u64::try_from(self.signed()?).ok())
    }

    pub(super) fn text(&mut self) -> Result<&'a str> {
        self.value()?.as_str().ok_or_else(odd_answer)
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes> {
        self.value()?.bytes().ok_or_else(odd_answer)
    }

    pub(super) fn id(&mut self) -> Result<RecordId> {
        self.text()?.parse().map_err(|_| odd_answer())
    }

    pub(super) fn ahead(&mut self) -> Result<Ahead> {
        parse_ahead(self.text()?).ok_or_else(odd_answer)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.clone().next().is_none()
    }
}

/// Runs as the scripts write them: `3-4,9-9`.
pub(super) fn print_ahead(ahead: &Ahead) -> String {
    let runs: Vec<String> = ahead.runs().iter().map(|(first, last)| format!("{first}-{last}")).collect();
    runs.join(",")
}

fn parse_ahead(text: &str) -> Option<Ahead> {
    let runs = text.split(',').filter(|run| !run.is_empty()).map(|run| {
        let (first, last) = run.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    });
    Ahead::from_runs(runs.collect::<Option<Vec<_>>>()?)
}

/// What a step was about, for its refusals.
#[derive(Clone, Copy)]
pub(super) struct StepSubject<'a> {
    pub(super) at: &'a Partition,
    pub(super) group: Option<&'a GroupName>,
    pub(super) hold: Option<&'a Hold>,
    /// The newest record that the owner has read.
    pub(super) seen: RecordId,
}

impl<'a> StepSubject<'a> {
    pub(super) fn partition(at: &'a Partition) -> Self {
        Self { at, group: None, hold: None, seen: RecordId::ZERO }
    }

    pub(super) fn group(at: &'a Partition, group: &'a GroupName) -> Self {
        Self { group: Some(group), ..Self::partition(at) }
    }

    pub(super) fn held(at: &'a Partition, group: &'a GroupName, hold: &'a Hold) -> Self {
        Self { hold: Some(hold), ..Self::group(at, group) }
    }

    /// Passes an answer on, unless it is a refusal.
    pub(super) fn accept(self, answer: Frame) -> Result<Frame> {
        if !super::durability::is_refusal(&answer) {
            return Ok(answer);
        }
        Err(self.refusal(answer.value().as_str().unwrap_or_default()))
    }

    /// The partition is not there.
    pub(super) fn missing(self) -> Error {
        self.refusal("nopart")
    }

    fn refusal(self, text: &str) -> Error {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let at = self.at;
        let group = self.group.map_or("?", |group| group.as_str());
        match word {
            "nopart" => Error::not_found(format!("partition {at} does not exist: create the topic first")),
            "nogroup" => Error::not_found(format!("group {group} does not exist on {at}")),
            "fenced" => {
                let epoch = self.hold.map(|hold| hold.epoch).unwrap_or_default();
                let context = format!(
                    "epoch {epoch} of group {group} on {at} is over: a newer owner took it or it was revoked"
                );
                Error::new(ErrorKind::Fenced, context)
            }
            "back" => Error::invalid(format!(
                "the commit would open settled records again (the frontier stands at {rest}): open the group again"
            )),
            "beyond" => {
                Error::invalid(format!("the commit settles records beyond {rest}, which is the last one"))
            }
            "rewound" => Error::went_back(at, self.seen, rest.parse().unwrap_or_default()),
            "notopen" => {
                Error::invalid(format!("record {rest} is not open for a verdict: open the group again"))
            }
            "full" => Error::new(
                ErrorKind::Overloaded,
                format!("group {group} has {MAX_DUE} records due on {at}: let them drain or give some up"),
            ),
            "oldmark" => NewMark::fenced(at),
            "sources" => NewMark::too_many(at),
            "gap" => match rest.parse() {
                Ok(expected) => SequenceGap { expected }.refusal(),
                Err(_) => odd_answer(),
            },
            "borders" => {
                Error::invalid("the producer's batch was sent before with other borders: send it as it was")
                    .with_field("batch")
            }
            _ => odd_answer(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_survive_printing_and_parsing() {
        for set in [vec![], vec![3], vec![3, 4, 9], vec![1, 3, 5, 7]] {
            let ahead: Ahead = set.into_iter().collect();
            assert_eq!(parse_ahead(&print_ahead(&ahead)), Some(ahead));
        }
        assert_eq!(parse_ahead("4-3"), None);
        assert_eq!(parse_ahead("x"), None);
    }
}
