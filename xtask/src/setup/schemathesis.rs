//! The API tester `schemathesis`, in a Python environment of its own under `.tools/schemathesis/`.
//!
//! Its version and those of what it needs are pinned in `schemathesis.txt`. Nothing of it enters the product.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::apt;
use crate::shell::{self, Outcome, program};

const PINNED: &str = include_str!("schemathesis.txt");

/// Makes sure that the tests find `.tools/schemathesis/bin/st`.
pub(super) fn ensure() -> Outcome {
    let home = home();
    if env::var_os("FIRTH_SCHEMATHESIS").is_some() || is_current(&home) {
        return Ok(());
    }
    make_environment(&home)?;
    let wanted = home.join("wanted.txt");
    fs::write(&wanted, PINNED)?;
    let mut install = program(home.join("bin/python"), &["-m", "pip", "install", "--quiet", "--requirement"]);
    shell::run(install.arg(&wanted)).map_err(|error| {
        format!(
            "{error}\n\
             Could not fetch schemathesis from the Python package index. Either make the index reachable for pip,\n\
             or name the program `st` of schemathesis 4 in the variable FIRTH_SCHEMATHESIS."
        )
    })?;
    // Goes last and marks the environment as whole.
    fs::rename(wanted, home.join("PINNED"))?;
    Ok(())
}

fn home() -> PathBuf {
    shell::root().join(".tools/schemathesis")
}

fn is_current(home: &Path) -> bool {
    home.join("bin/st").is_file()
        && fs::read_to_string(home.join("PINNED")).is_ok_and(|known| known == PINNED)
}

fn make_environment(home: &Path) -> Outcome {
    let _ = fs::remove_dir_all(home); // a half-made one is of no use
    fs::create_dir_all(home)?;
    let mut make = program("python3", &["-m", "venv"]);
    make.arg(home);
    if shell::succeeds(&mut make) {
        return Ok(());
    }
    apt::install(&["python3", "python3-venv"])?;
    shell::run(&mut make)
}
