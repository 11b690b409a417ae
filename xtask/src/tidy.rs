//! `cargo xtask tidy`: rules of the source tree that no compiler checks.
//!
//! They are hard limits and also run as a unit test, so that `cargo test` alone keeps them.

mod code;
mod files;
mod rules;

use std::path::Path;

use crate::shell::{self, Outcome};

/// Checks the whole tree and lists every violation.
pub(crate) fn run() -> Outcome {
    let violations = check(&shell::root())?;
    if violations.is_empty() {
        return Ok(());
    }
    Err(format!("the source tree is not tidy:\n  {}", violations.join("\n  ")).into())
}

fn check(root: &Path) -> Outcome<Vec<String>> {
    let mut violations = Vec::new();
    for file in files::of(root)? {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else {
            continue; // binary, or deleted but not yet committed
        };
        violations.extend(rules::violations(&file, &text));
    }
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_tree_is_tidy() {
        let violations = check(&shell::root()).unwrap();
        assert!(violations.is_empty(), "\n  {}", violations.join("\n  "));
    }
}
