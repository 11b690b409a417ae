//! The files that belong to the project: what git tracks or would add, else a walk of the folders.

use crate::shell::{self, Outcome, program};
use std::fs;
use std::path::Path;

const NOT_OURS: [&str; 4] = [".git", ".tools", "target", "node_modules"];

/// Paths relative to `root`, with forward slashes, sorted.
pub(super) fn of(root: &Path) -> Outcome<Vec<String>> {
    let mut git = program("git", &["ls-files", "--cached", "--others", "--exclude-standard"]);
    let mut files = match shell::read(git.current_dir(root)) {
        Ok(list) => list.lines().map(str::to_owned).collect(),
        Err(_) => {
            let mut found = Vec::new();
            walk(root, "", &mut found)?;
            found
        }
    };
    files.sort();
    files.dedup();
    Ok(files)
}

fn walk(dir: &Path, prefix: &str, found: &mut Vec<String>) -> Outcome {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            if !NOT_OURS.contains(&name.as_str()) {
                walk(&entry.path(), &format!("{path}/"), found)?;
            }
        } else {
            found.push(path);
        }
    }
    Ok(())
}
