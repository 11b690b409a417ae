//! What a test needs of the machine, and what happens where it is missing.
//!
//! On a developer's machine the test says so and passes. Under CI it fails, unless
//! `.config/exceptions.txt` lists the need with a reason.

use std::env;

/// Exceptions of this tree; `cargo xtask test` reads the same file for flaky tests.
const EXCEPTIONS: &str = include_str!("../../../.config/exceptions.txt");

/// Tells that a test cannot run because `need` is missing. The caller returns at once.
///
/// # Panics
/// Under CI, unless `.config/exceptions.txt` lists the need.
pub fn cannot_run(need: &str, reason: &str) {
    match verdict(EXCEPTIONS, is_ci(env::var("CI").ok().as_deref()), need, reason) {
        Ok(skipped) => eprintln!("{skipped}"),
        Err(failure) => panic!("{failure}"),
    }
}

/// CI systems set `CI` to `true` or `1`.
fn is_ci(value: Option<&str>) -> bool {
    value.is_some_and(|value| !["", "0", "false"].contains(&value))
}

fn verdict(exceptions: &str, is_ci: bool, need: &str, reason: &str) -> Result<String, String> {
    if !is_ci {
        return Ok(format!("SKIPPED: {reason}, so this test shows nothing"));
    }
    match allowed(exceptions, need) {
        Some(why) => Ok(format!("SKIPPED: {reason}; listed in .config/exceptions.txt: {why}")),
        None => Err(format!(
            "this test cannot run: {reason}. Run `cargo xtask setup` as root, \
             or list `need {need}: REASON` in .config/exceptions.txt"
        )),
    }
}

/// The reason for which tests may go without `need`.
fn allowed<'a>(exceptions: &'a str, need: &str) -> Option<&'a str> {
    exceptions.lines().find_map(|line| {
        let (name, why) = line.strip_prefix("need ")?.split_once(": ")?;
        (name == need && !why.trim().is_empty()).then_some(why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "# need mount: a comment\nneed network: no namespaces here\nneed browser:\n";

    #[test]
    fn a_missing_need_fails_under_ci_unless_it_is_listed_with_a_reason() {
        assert!(verdict(LISTED, true, "network", "nft is missing").is_ok());
        for need in ["mount", "browser", "net"] {
            let failure = verdict(LISTED, true, need, "it is missing").unwrap_err();
            assert!(failure.contains(&format!("need {need}: REASON")), "{failure}");
        }
    }

    #[test]
    fn a_missing_need_is_told_elsewhere() {
        let told = verdict("", false, "mount", "mounting is not allowed").unwrap();
        assert!(told.contains("SKIPPED: mounting is not allowed"), "{told}");
    }

    #[test]
    fn ci_is_what_ci_systems_call_it() {
        assert!(is_ci(Some("true")) && is_ci(Some("1")));
        assert!(!is_ci(None) && !is_ci(Some("")) && !is_ci(Some("0")) && !is_ci(Some("false")));
    }
}
