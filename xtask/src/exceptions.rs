//! Flaky tests of `.config/exceptions.txt`, as a configuration for nextest.
//!
//! Needs that a machine may lack stand in the same file; `firth_testkit::cannot_run` reads those.

use crate::shell::{self, Outcome};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// Writes the configuration under `target/` and returns its path.
pub(crate) fn nextest_config() -> Outcome<PathBuf> {
    let listed = fs::read_to_string(shell::root().join(".config/exceptions.txt"))?;
    let file = shell::target().join("nextest-flaky.toml");
    fs::create_dir_all(shell::target())?;
    fs::write(&file, overrides(&listed)?)?;
    Ok(file)
}

/// One override per flaky test. A line without a reason is an error.
fn overrides(listed: &str) -> Outcome<String> {
    let mut config = String::new();
    for line in listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (what, reason) = line.split_once(": ").unwrap_or((line, ""));
        match what.split_once(' ') {
            _ if reason.trim().is_empty() => {
                return Err(format!(".config/exceptions.txt: `{line}` has no reason").into());
            }
            Some(("need", _)) => {}
            Some(("flaky", test)) => {
                write!(config, "[[profile.default.overrides]]\nfilter = 'test(={test})'\nretries = 2\n\n")?;
            }
            _ => return Err(format!(".config/exceptions.txt: `{line}` is neither need nor flaky").into()),
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flaky_test_is_tried_again_by_its_full_name() {
        let config = overrides("# flaky a: no\nneed mount: none here\nflaky it::b: starved\n").unwrap();
        assert_eq!(config, "[[profile.default.overrides]]\nfilter = 'test(=it::b)'\nretries = 2\n\n");
    }

    #[test]
    fn an_exception_without_a_reason_is_refused() {
        for line in ["flaky it::b", "flaky it::b: ", "need mount", "slow it::b: why"] {
            assert!(overrides(line).is_err(), "{line}");
        }
    }
}
