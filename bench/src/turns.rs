//! Who is measured when: subjects take turns, every turn starting with another one.
//!
//! Called by each bench with a function that measures one subject once; keeps the invariant that
//! all subjects of a workload are measured equally often and within one stretch of time.

use crate::measure::Row;
use anyhow::Result;

/// What came of the turns: one median row per subject that never failed, and why others did.
pub(crate) struct Taken {
    pub(crate) rows: Vec<Row>,
    pub(crate) failures: Vec<Failure>,
}

/// A subject that could not be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) subject: String,
    pub(crate) reason: String,
}

/// Measures each subject `slices` times, rotating the order by one each time, beginning at `first`.
/// A subject that fails is not tried again.
pub(crate) fn take(
    subjects: &[&str],
    slices: usize,
    first: usize,
    mut measure: impl FnMut(&str) -> Result<Row>,
) -> Taken {
    let mut slots: Vec<Result<Vec<Row>, String>> = vec![Ok(vec![]); subjects.len()];
    for slice in 0..slices {
        for turn in 0..subjects.len() {
            let seat = (first + slice + turn) % subjects.len();
            let Ok(rows) = &mut slots[seat] else { continue };
            match measure(subjects[seat]) {
                Ok(row) => rows.push(row),
                Err(error) => slots[seat] = Err(format!("{error:#}")),
            }
        }
    }
    let mut taken = Taken { rows: vec![], failures: vec![] };
    for (subject, slot) in subjects.iter().zip(slots) {
        match slot {
            Ok(rows) => taken.rows.extend(Row::median(&rows)),
            Err(reason) => taken.failures.push(Failure { subject: (*subject).to_owned(), reason }),
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::sample_row;

    #[test]
    fn every_turn_starts_with_another_subject() {
        let mut order = String::new();
        take(&["a", "b", "c"], 3, 1, |subject| {
            order += subject;
            Ok(sample_row("w", subject, 1.0, 1.0))
        });
        assert_eq!(order, "bcacababc");
    }

    #[test]
    fn a_failing_subject_is_named_and_does_not_stop_the_others() {
        let mut tries = 0;
        let taken = take(&["a", "b"], 3, 0, |subject| {
            if subject == "b" {
                tries += 1;
                anyhow::bail!("no luck");
            }
            Ok(sample_row("w", subject, 1.0, 1.0))
        });
        assert_eq!(tries, 1);
        assert_eq!(taken.rows.len(), 1);
        assert_eq!(taken.failures, [Failure { subject: "b".into(), reason: "no luck".into() }]);
    }
}
