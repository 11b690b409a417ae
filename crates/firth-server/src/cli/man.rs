//! `firth man` and `firth completions`: made from the same description as the command line itself.

use super::output;
use crate::wire::invalid;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use firth::{Error, ErrorKind, Result};
use std::path::PathBuf;

pub(crate) const MAN_EXAMPLES: &str = "\
Examples:
  firth man | man -l -
  firth man dead replay | man -l -
  firth man --dir ~/.local/share/man/man1";

pub(crate) const COMPLETION_EXAMPLES: &str = "\
Examples:
  firth completions bash > ~/.local/share/bash-completion/completions/firth
  firth completions fish > ~/.config/fish/completions/firth.fish";

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Which command; the program itself unless given
    command: Vec<String>,
    /// Write the pages of all commands into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn man<C: CommandFactory>(args: &ManArgs) -> Result<()> {
    let broken = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "the pages cannot be written").with_source(error)
    };
    let mut root = C::command();
    root.build();
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir).map_err(broken)?;
        return clap_mangen::generate_to(C::command(), dir).map_err(broken);
    }
    let mut wanted = &root;
    for name in &args.command {
        wanted =
            wanted.find_subcommand(name).ok_or_else(|| invalid(format!("there is no command {name}")))?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(wanted.clone()).render(&mut page).map_err(broken)?;
    output::line(String::from_utf8_lossy(&page).trim_end())
}

pub(crate) fn completions<C: CommandFactory>(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut C::command(), "firth", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())
}
