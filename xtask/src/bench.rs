//! `cargo xtask bench`: the benchmarks live in a workspace of their own, so that the peers that
//! they compare with never enter the product's dependency graph.

use crate::setup::peers;
use crate::shell::{self, Outcome};

/// Builds the benchmarks as the product ships (profile `dist`) and runs one with its arguments.
pub(crate) fn run(args: &[String]) -> Outcome {
    if !shell::root().join("bench/Cargo.toml").is_file() {
        return Err("there is no bench/Cargo.toml in this tree, so there is nothing to run".into());
    }
    if args.first().is_some_and(|name| name == "queue") {
        peers::fetch();
    }
    let mut command =
        shell::cargo(&["run", "--profile", "dist", "--manifest-path", "bench/Cargo.toml", "--"]);
    if args.first().is_some_and(|name| name == "server") {
        // The program under load is that of this tree.
        let build = ["build", "--profile", "dist", "--locked", "--package", "firth-server"];
        shell::run(&mut shell::cargo(&build))?;
        command.env("FIRTH_BIN", shell::target().join("dist/firth"));
    }
    shell::run(command.args(args))
}
