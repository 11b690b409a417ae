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

/// Features only add, so a published crate must build with none, with its own choice, and with all.
fn feature_sets() -> Outcome {
    for name in published_crates()? {
        for features in [&["--no-default-features"][..], &[], &["--all-features"]] {
            let mut command = cargo(&["check", "--locked", "--package", &name]);
            shell::run(command.args(features))?;
        }
    }
    Ok(())
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
