//! `firth demo`: a tour of the embedded engine in under a minute. Producers, two groups, failures
//! and retries, a worker that is killed and taken over, dead letters that are replayed.
//!
//! `script` is the story; `staff` are the workers in it. The topics lie in a directory of their
//! own, which is removed at the end unless the caller names one.

mod script;
mod staff;

use clap::Args;
use firth::{Broker, Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth demo
  firth demo --dir ./tour     # keeps the topics: look at them with --engine file:./tour";

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Keep the topics in this directory, which must not exist yet
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Tells the story.
pub(crate) async fn run(args: DemoArgs) -> Result<()> {
    let is_kept = args.dir.is_some();
    let dir = args.dir.unwrap_or_else(|| {
        std::env::temp_dir().join(format!("firth-demo-{}-{:08x}", std::process::id(), fastrand::u32(..)))
    });
    if dir.exists() {
        let context = format!("{} is there already: name a new directory", dir.display());
        return Err(Error::new(ErrorKind::AlreadyExists, context));
    }
    let broker = Broker::open(&dir).await?;
    let told = script::tell(&broker, is_kept.then_some(dir.as_path())).await;
    let closed = broker.close().await;
    if !is_kept {
        remove(&dir);
    }
    told.and(closed)
}

fn remove(dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(dir) {
        eprintln!("{} could not be removed: {error}", dir.display());
    }
}
