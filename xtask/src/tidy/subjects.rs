//! Commit subjects: short enough to be read in a list; the reason stands in the body.

use crate::shell::{self, program};
use std::path::Path;

/// Longest subject, in characters.
const MAX_SUBJECT: usize = 72;

/// Commits that are looked at, the newest ones.
const COMMITS: &str = "-50";

/// Subjects of the newest commits that are too long. A tree without git has none.
pub(super) fn violations(root: &Path) -> Vec<String> {
    let mut git = program("git", &["log", COMMITS, "--no-merges", "--format=%h %s"]);
    let log = shell::read(git.current_dir(root)).unwrap_or_default();
    log.lines().filter_map(too_long).collect()
}

/// Says what is wrong with a line of `HASH SUBJECT`.
fn too_long(line: &str) -> Option<String> {
    let (hash, subject) = line.split_once(' ')?;
    let length = subject.chars().count();
    let what = format!("commit {hash}: the subject has {length} characters; at most {MAX_SUBJECT}");
    (length > MAX_SUBJECT).then_some(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_subjects_are_found() {
        assert_eq!(too_long(&format!("abc {}", "x".repeat(72))), None);
        assert!(too_long(&format!("abc {}", "x".repeat(73))).is_some_and(|what| what.contains("73")));
    }
}
