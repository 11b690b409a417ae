//! `cargo xtask check`: builds what no test builds, so that it cannot rot.

use crate::shell::{self, Outcome, cargo};
use std::fs;

/// Builds the documentation, every feature set, and the workspaces that stand apart.
pub(crate) fn run() -> Outcome {
    docs()?;
    feature_sets()?;
    for apart in ["bench/Cargo.toml", "fuzz/Cargo.toml"] {
        let mut command = cargo(&["check", "--locked", "--manifest-path", apart]);
        // Both share the main workspace's folder, and so the dependencies that they have in common.
        shell::run(command.env("CARGO_TARGET_DIR", shell::target()))?;
    }
    Ok(())
}

fn docs() -> Outcome {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--all-features", "--locked"]);
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Features only add, so a published crate must build with none, with each one alone, with its own
/// choice, and with all. The usual sets are linted: what only another one uses is an error there.
fn feature_sets() -> Outcome {
    for name in published_crates()? {
        let lint = |features: &[&str]| {
            let mut command = cargo(&["clippy", "--locked", "--package", &name]);
            shell::run(command.args(features).args(["--", "-D", "warnings"]))
        };
        lint(&["--no-default-features"])?;
        let manifest = fs::read_to_string(shell::root().join("crates").join(&name).join("Cargo.toml"))?;
        for feature in features(&manifest) {
            let alone: [&str; 5] = ["check", "--locked", "--package", &name, "--no-default-features"];
            shell::run(cargo(&alone).args(["--features", feature]))?;
        }
        lint(&[])?;
        lint(&["--all-features"])?;
    }
    Ok(())
}

/// Names of the features that users choose from, if there are several.
fn features(manifest: &str) -> Vec<&str> {
    let section = manifest.split("\n[features]\n").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    let names = lines
        .filter(|line| !line.starts_with(['#', ' ', ']', '_']))
        .filter_map(|line| line.split_once(" = "));
    let names: Vec<&str> = names.map(|(name, _)| name).filter(|name| *name != "default").collect();
    if names.len() > 1 { names } else { Vec::new() }
}

/// Crates under `crates/` that are not marked `publish = false`; the folder's name is the crate's.
fn published_crates() -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(shell::root().join("crates"))? {
        let entry = entry?;
        let manifest = entry.path().join("Cargo.toml");
        if manifest.is_file() && !fs::read_to_string(&manifest)?.contains("publish = false") {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_of_a_choice_is_built_alone() {
        let head = "[package]\nname = \"a\"\n";
        let several = "\n[features]\ndefault = [\"b\"]\n# why\nb = []\nc = [\n    \"dep:d\",\n]\n\n[dependencies]\ne = \"1\"\n";
        assert_eq!(features(&format!("{head}{several}")), ["b", "c"]);
        assert_eq!(features(&format!("{head}\n[features]\nb = []\n")), Vec::<&str>::new());
        assert_eq!(features(head), Vec::<&str>::new());
    }
}
