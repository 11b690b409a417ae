//! Source marks: how far the changes of a source are in a partition.
//!
//! A source is a stream of changes elsewhere, such as the log of a database. Its reader appends the
//! changes with a [`NewMark`], which the partition stores in the same step. So the mark always says
//! what the log holds, whenever a process or a server dies.

use crate::error::{Error, ErrorKind, Result};
use crate::id::Epoch;
use crate::limits::{MAX_MARK, MAX_SOURCES};
use crate::name::{Partition, SourceName};
use bytes::Bytes;
use std::cmp::Ordering;

/// Says up to where in its source a batch reaches, and which reader sends it.
///
/// - An epoch below the highest that the partition has seen of this source is
///   [`Fenced`](ErrorKind::Fenced), and changes nothing. Take the epoch of a
///   [claim](crate::facet::Offers) on the source.
/// - Marks are compared bytewise. If `upto` does not lie beyond the stored mark, nothing is
///   appended, and the answer says `duplicate`. A higher epoch is noted all the same.
/// - Without records the append only moves the mark. An empty `upto` is allowed then: it notes the
///   epoch and leaves the mark where it is.
///
/// **A batch is repeated as it was.** A mark tells one position from another, not the borders of a
/// batch. Before a new reader goes on it must note its epoch, and read the mark after that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMark {
    /// The source.
    pub source: SourceName,
    /// The epoch of the reader.
    pub epoch: Epoch,
    /// The position of the batch's last change, 1 to [`MAX_MARK`] bytes.
    pub upto: Bytes,
}

/// What a partition keeps of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceMark {
    /// The highest epoch that was seen.
    pub epoch: Epoch,
    /// The position of the newest change that the log got; empty if only the epoch was noted.
    pub upto: Bytes,
}

/// What the stored mark says about a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MarkJudgement {
    /// The batch goes into the log, or moves the mark.
    New,
    /// The log has it; the mark to keep, with the epoch that is the highest now.
    Duplicate(SourceMark),
}

impl NewMark {
    /// Checks everything that needs no stored state, for an append of `records` records.
    pub(crate) fn check(&self, records: usize) -> Result<()> {
        let size = self.upto.len();
        if size > MAX_MARK {
            let context = format!("a source mark of {size} bytes; at most {MAX_MARK}");
            return Err(Error::beyond("upto", MAX_MARK, context));
        }
        if size == 0 && records > 0 {
            let context = format!("the mark of an append with records is empty; give 1 to {MAX_MARK} bytes");
            return Err(Error::invalid(context).with_field("upto"));
        }
        Ok(())
    }

    /// Decides about a batch; pure.
    pub(crate) fn judge(&self, at: &Partition, stored: Option<&SourceMark>) -> Result<MarkJudgement> {
        let Some(stored) = stored else { return Ok(MarkJudgement::New) };
        if self.epoch < stored.epoch {
            return Err(Self::fenced(at));
        }
        Ok(match self.upto.cmp(&stored.upto) {
            Ordering::Greater => MarkJudgement::New,
            _ => MarkJudgement::Duplicate(SourceMark { epoch: self.epoch, upto: stored.upto.clone() }),
        })
    }

    pub(crate) fn fenced(at: &Partition) -> Error {
        let context = format!("a reader with a newer epoch writes this source to {at}: stop this one");
        Error::new(ErrorKind::Fenced, context)
    }

    pub(crate) fn too_many(at: &Partition) -> Error {
        let context = format!(
            "partition {at} has marks of {MAX_SOURCES} sources, and takes no more: use another topic, or forget \
             a source that is gone"
        );
        Error::beyond("source", usize::try_from(MAX_SOURCES).unwrap_or(usize::MAX), context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::TopicName;
    use proptest::prelude::*;

    fn mark(epoch: u64, upto: &[u8]) -> NewMark {
        let upto = Bytes::copy_from_slice(upto);
        NewMark { source: SourceName::new("shop").unwrap(), epoch: Epoch(epoch), upto }
    }

    fn stored(epoch: u64, upto: &[u8]) -> SourceMark {
        SourceMark { epoch: Epoch(epoch), upto: Bytes::copy_from_slice(upto) }
    }

    fn at() -> Partition {
        Partition::new(TopicName::new("t").unwrap(), 0)
    }

    #[test]
    fn an_empty_mark_goes_without_records_only() {
        assert!(mark(1, b"").check(0).is_ok());
        assert_eq!(mark(1, b"").check(1).unwrap_err().field(), Some("upto"));
        assert!(mark(1, &[7; MAX_MARK]).check(1).is_ok());
        assert_eq!(mark(1, &[7; MAX_MARK + 1]).check(1).unwrap_err().limit(), Some(MAX_MARK as u64));
    }

    proptest! {
        #[test]
        fn only_a_known_epoch_and_a_later_position_are_new(
            epochs: (u8, u8), new in prop::collection::vec(any::<u8>(), 0..4), old in prop::collection::vec(any::<u8>(), 0..4)
        ) {
            let epoch = u64::from(epochs.0);
            let seen = u64::from(epochs.1);
            match mark(epoch, &new).judge(&at(), Some(&stored(seen, &old))) {
                Err(error) => prop_assert!(error.kind() == ErrorKind::Fenced && epoch < seen),
                Ok(MarkJudgement::New) => prop_assert!(epoch >= seen && new > old),
                Ok(MarkJudgement::Duplicate(kept)) => {
                    prop_assert!(epoch >= seen && new <= old);
                    prop_assert_eq!(kept, stored(epoch, &old));
                }
            }
        }
    }
}
