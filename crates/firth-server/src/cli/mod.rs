//! The command line: what can be asked, and how failures end.

mod doctor;
mod output;
mod records;
mod token;
mod topics;

use crate::client::Client;
use crate::config;
use crate::demo;
use crate::serve::{self, ServeArgs};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use firth::{Error, ErrorKind, Result};
use records::{ConsumeArgs, ProduceArgs};
use std::process::ExitCode;
use topics::{DeadCommand, GroupCommand, TopicCommand};

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
    /// Show what it does, in memory and in a few seconds
    Demo,
    /// Create, list, show and delete topics
    Topic {
        #[command(subcommand)]
        command: TopicCommand,
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        format: Format,
    },
    /// Send messages
    Produce {
        #[command(flatten)]
        args: ProduceArgs,
        #[command(flatten)]
        target: Target,
    },
    /// Print records of a group, and ack what was printed
    Consume {
        #[command(flatten)]
        args: ConsumeArgs,
        #[command(flatten)]
        target: Target,
    },
    /// Show groups with their exact lag
    Group {
        #[command(subcommand)]
        command: GroupCommand,
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        format: Format,
    },
    /// List, count, replay and delete dead letters
    Dead {
        #[command(subcommand)]
        command: DeadCommand,
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        format: Format,
    },
    /// Check the server or engine, its clock, version and permissions, and say what to do
    Doctor {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        format: Format,
    },
    /// Write completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Make a token, and the line for the server's token file
    Token(token::TokenArgs),
    /// Print the effective configuration of `firth serve` as a file with comments
    Config(ServeArgs),
}

/// Where a command goes.
#[derive(Args)]
struct Target {
    /// The server to speak to; FIRTH_TOKEN is its token
    #[arg(
        long,
        global = true,
        env = "FIRTH_SERVER",
        default_value = "http://127.0.0.1:7171",
        value_name = "URL"
    )]
    server: String,
    /// Open this engine instead of speaking to a server: file:./DIR, redis://HOST, …
    #[arg(long, global = true, value_name = "URL")]
    engine: Option<String>,
}

impl Target {
    async fn open(&self) -> Result<Client> {
        match &self.engine {
            Some(engine) => Client::local(engine).await,
            None => Client::remote(&self.server, std::env::var("FIRTH_TOKEN").ok()),
        }
    }
}

/// How a command answers.
#[derive(Args)]
struct Format {
    /// Answer in JSON
    #[arg(long, global = true)]
    json: bool,
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
        Command::Demo => demo::run().await,
        Command::Topic { command, target, format } => {
            with(&target, async |client| topics::topic(client, command, format.json).await).await
        }
        Command::Produce { args, target } => {
            with(&target, async |client| records::produce(client, args).await).await
        }
        Command::Consume { args, target } => {
            with(&target, async |client| records::consume(client, args).await).await
        }
        Command::Group { command, target, format } => {
            with(&target, async |client| topics::group(client, command, format.json).await).await
        }
        Command::Dead { command, target, format } => {
            with(&target, async |client| topics::dead(client, command, format.json).await).await
        }
        Command::Doctor { target, format } => doctor::run(target.open().await, format.json).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "firth", &mut std::io::stdout());
            Ok(())
        }
        Command::Token(args) => token::run(&args),
        Command::Config(args) => {
            let values = config::Values::load(&args.given()?)?;
            config::Config::read(&values)?;
            output::line(config::effective_file(&values).trim_end())
        }
    }
}

/// Runs a command on its target, which is closed whatever happens.
async fn with(target: &Target, command: impl AsyncFnOnce(&Client) -> Result<()>) -> Result<()> {
    let client = target.open().await?;
    let outcome = command(&client).await;
    let closed = client.close().await;
    outcome.and(closed)
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
