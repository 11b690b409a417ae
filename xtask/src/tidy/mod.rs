//! `cargo xtask tidy`: rules of the source tree that no compiler checks.
//!
//! They are hard limits and also run as a unit test, so that `cargo test` alone keeps them.

mod code;
mod documents;
mod files;
mod homonyms;
mod lua;
mod rules;
mod subjects;
mod words;

use crate::shell::{self, Outcome};
use std::path::Path;

/// Names that several types of the product share on purpose, or still share.
const HOMONYMS: &str = ".config/homonyms.txt";

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
    let mut homonyms = homonyms::Homonyms::default();
    let files = files::of(root)?;
    for file in &files {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else {
            continue; // binary, or deleted but not yet committed
        };
        violations.extend(rules::violations(file, &text));
        homonyms.note(file, &text);
    }
    violations.extend(rules::split_modules(&files));
    let architecture = std::fs::read_to_string(root.join(documents::ARCHITECTURE))?;
    violations.extend(documents::missing_files(&architecture, &files));
    let guides = std::fs::read_to_string(root.join(documents::GUIDES))?;
    violations.extend(documents::unlisted_guides(&guides, &files));
    let glossary = std::fs::read_to_string(root.join(documents::GLOSSARY))?;
    violations.extend(documents::glossary_violations(&glossary));
    let listed = std::fs::read_to_string(root.join(HOMONYMS))?;
    violations.extend(homonyms.violations(&listed));
    violations.extend(homonyms.share_violation());
    violations.extend(subjects::violations(root));
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
