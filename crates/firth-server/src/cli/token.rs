//! `firth token`: a new token, and the line for the server's token file.

use super::output::line;
use crate::auth::{Grant, new_token};
use clap::Args;
use firth::Result;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth token --name shop --scopes produce --topics 'orders.*' > token
  tail -1 token >> tokens     # the server's file; the first line is the client's secret";

#[derive(Args)]
pub(crate) struct TokenArgs {
    /// A name for the audit log
    #[arg(long)]
    name: Option<String>,
    /// What it may do: produce, consume, observe, route, admin; everything unless set
    #[arg(long, value_delimiter = ',', value_name = "SCOPE")]
    scopes: Vec<String>,
    /// With which topics, `*` for any part: orders.*; all unless set
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    topics: Vec<String>,
}

pub(crate) fn run(args: &TokenArgs) -> Result<()> {
    let token = new_token()?;
    let entry = Grant::line(&token, args.name.as_deref(), &args.scopes, &args.topics)?;
    line(&format!("# for clients, shown only now: FIRTH_TOKEN={token}\n{entry}"))
}
