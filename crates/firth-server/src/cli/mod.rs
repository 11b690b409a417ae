//! The command line: what can be asked, and how failures end.

use crate::auth;
use crate::serve::{self, ServeArgs};
use clap::{Parser, Subcommand};
use firth::{Error, ErrorKind, Result};
use std::process::ExitCode;

/// Durable topics, consumer groups, retries and dead letters: a server and its command line.
#[derive(Parser)]
#[command(name = "firth", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the HTTP API
    Serve(ServeArgs),
    /// Make a token, and the line for the server's token file
    Token,
}

/// Runs what the arguments say.
pub(crate) async fn run() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            explain(&error);
            ExitCode::from(exit_code(error.kind()))
        }
    }
}

async fn dispatch(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Serve(args) => serve::run(args).await,
        Command::Token => {
            let (token, line) = auth::make_token()?;
            println!("# for clients, shown only now: FIRTH_TOKEN={token}\n{line}");
            Ok(())
        }
    }
}

fn explain(error: &Error) {
    eprintln!("error: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        eprintln!("  because: {cause}");
        source = cause.source();
    }
    if error.may_have_happened() {
        eprintln!("  it may have happened all the same");
    }
}

/// 2 is what wrong arguments end with, too.
fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::AlreadyExists => 4,
        ErrorKind::Unauthorized => 5,
        ErrorKind::Unavailable | ErrorKind::Closed => 6,
        ErrorKind::Timeout => 7,
        ErrorKind::Overloaded => 8,
        ErrorKind::Fenced => 9,
        ErrorKind::Unsupported => 10,
        _ => 1,
    }
}
