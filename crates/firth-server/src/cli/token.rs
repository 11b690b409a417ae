//! `firth token`: a new token, and the line for the server's token file.

use super::output::line;
use crate::auth::{Limits, TokenGrant, new_token};
use clap::Args;
use firth::Result;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth token --name shop --scopes produce --topics 'orders.*' > token
  firth token --name edge --scopes route --gateways 'edge-*' --tenants acme
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
    /// Which gateways it may register, `*` for any part: edge-*; all unless set
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    gateways: Vec<String>,
    /// For which tenants it may subscribe, `*` for any part; needs --gateways; all unless set
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    tenants: Vec<String>,
}

pub(crate) fn run(args: &TokenArgs) -> Result<()> {
    let token = new_token()?;
    let TokenArgs { name, scopes, topics, gateways, tenants } = args;
    let entry = TokenGrant::line(&token, name.as_deref(), &Limits { scopes, topics, gateways, tenants })?;
    line(&format!("# for clients, shown only now: FIRTH_TOKEN={token}\n{entry}"))
}
