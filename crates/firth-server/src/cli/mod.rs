//! The command line: what can be asked, and how failures end.

mod backup;
mod bench;
mod calendar;
mod check;
mod claims;
mod connect;
mod consume;
mod dead;
mod delayed;
mod doctor;
mod exec;
mod executor;
mod failure;
mod gateway;
mod group;
mod guard;
mod input;
mod live;
mod man;
mod output;
mod policy;
mod produce;
mod progress;
mod restore;
mod route;
mod shell;
mod signals;
mod stats;
mod target;
mod token;
mod top;
mod topic;
mod unit_data;
mod units;
mod work;

use crate::config;
use crate::demo::{self, DemoArgs};
use crate::serve::{self, ServeArgs};
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use firth::Result;
pub(crate) use output::line;
use std::process::ExitCode;
use target::ApiTarget;

/// Durable topics, consumer groups, retries and dead letters: a server and its command line.
#[derive(Parser)]
#[command(name = "firth", version, propagate_version = true, max_term_width = 100, after_long_help = failure::EXIT_CODES)]
#[command(
    after_help = "Example:\n  firth serve &\n  firth produce orders 'one coffee'\n  firth consume orders --group bar"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the HTTP API
    #[command(
        after_help = "Examples:\n  firth serve\n  firth serve --engine redis+cluster://10.0.0.1 --listen 0.0.0.0:7171 --token-file tokens"
    )]
    Serve(ServeArgs),
    /// Serve a topic of change events to browsers: WebSocket, server-sent events, long poll
    #[command(after_help = gateway::EXAMPLES)]
    Gateway(gateway::GatewayArgs),
    /// Show what it does, on an engine of its own and in under a minute
    #[command(after_help = demo::EXAMPLES)]
    Demo(DemoArgs),
    /// Send messages
    #[command(after_help = produce::EXAMPLES)]
    Produce {
        #[command(flatten)]
        args: produce::ProduceArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Print records of a group and ack them, or let a command decide
    #[command(after_help = consume::EXAMPLES)]
    Consume {
        #[command(flatten)]
        args: consume::ConsumeArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Create, list, show and delete topics
    #[command(after_help = topic::EXAMPLES)]
    Topic {
        #[command(subcommand)]
        command: topic::TopicCommand,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Look at groups with their exact lag; make, move and delete them
    #[command(after_help = group::EXAMPLES)]
    Group {
        #[command(subcommand)]
        command: group::GroupCommand,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Show the records of a group that wait for another attempt
    #[command(after_help = group::PENDING_EXAMPLES)]
    Pending {
        #[command(flatten)]
        args: group::PendingArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Look at dead letters; replay them as they are or edited, delete them
    #[command(after_help = dead::EXAMPLES)]
    Dead {
        #[command(subcommand)]
        command: dead::DeadCommand,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Route change events to gateways: run a node, see how it fares, and who gets what
    #[command(after_help = route::EXAMPLES)]
    Route {
        #[command(subcommand)]
        command: route::RouteCommand,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Look at the databases whose changes become events, and say what their readers shall do
    #[command(after_help = connect::EXAMPLES)]
    Connect {
        #[command(subcommand)]
        command: connect::ConnectCommand,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Offer units of work, see who has them, take them back; work, with a command per claim
    #[command(after_help = claims::EXAMPLES)]
    Claims {
        #[command(subcommand)]
        command: claims::ClaimsCommand,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Listen to live channels
    #[command(after_help = live::SUB_EXAMPLES)]
    Sub {
        #[command(flatten)]
        args: live::SubArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Publish on a live channel
    #[command(after_help = live::PUB_EXAMPLES)]
    Pub {
        #[command(flatten)]
        args: live::PubArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Watch throughput, lag, owners and dead letters
    #[command(after_help = top::EXAMPLES)]
    Top {
        #[command(flatten)]
        args: top::TopArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Print what a server sampled: rates, lag, dead letters, memory and disk
    #[command(after_help = stats::EXAMPLES)]
    Stats {
        #[command(flatten)]
        args: stats::StatsArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Measure produce and consume with a quick load
    #[command(after_help = bench::EXAMPLES)]
    Bench {
        #[command(flatten)]
        args: bench::BenchArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Back up a running server, or a directory, into one verified file
    #[command(after_help = backup::EXAMPLES)]
    Backup {
        #[command(flatten)]
        args: backup::BackupArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Make a new data directory of a backup
    #[command(after_help = restore::EXAMPLES)]
    Restore(restore::RestoreArgs),
    /// Read everything, name what is damaged, and set damaged partitions aside
    #[command(after_help = check::EXAMPLES)]
    Check {
        #[command(flatten)]
        args: check::CheckArgs,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Check configuration, server or engine, clock, version and permissions, and say what to do
    #[command(after_help = doctor::EXAMPLES)]
    Doctor {
        /// Only ask whether the server is ready, as health checks do
        #[arg(long)]
        ready: bool,
        #[command(flatten)]
        target: ApiTarget,
    },
    /// Make a token, and the line for the server's token file
    #[command(after_help = token::EXAMPLES)]
    Token(token::TokenArgs),
    /// Print the effective configuration of `firth serve` as a file with comments
    #[command(after_help = "Example:\n  firth config > firth.yaml\n  firth config --set limits.rate=100")]
    Config(ServeArgs),
    /// Write completions for a shell
    #[command(after_help = man::COMPLETION_EXAMPLES)]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Kill the commands of a firth that was killed
    #[command(hide = true, after_help = guard::EXAMPLES)]
    Guard,
    /// Write manual pages
    #[command(after_help = man::MAN_EXAMPLES)]
    Man(man::ManArgs),
}

/// Runs what the arguments say.
pub(crate) async fn run() -> ExitCode {
    match dispatch(Cli::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if failure::is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            failure::explain(&error);
            ExitCode::from(failure::exit_code(error.kind()))
        }
    }
}

async fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Serve(args) => serve::run(args).await,
        Command::Gateway(args) => gateway::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::Produce { args, target } => {
            target.with(async |client| produce::run(client, args, target.json).await).await
        }
        Command::Consume { args, target } => {
            target.with_existing(async |client| consume::run(client, args, target.json).await).await
        }
        Command::Topic { command, target } if command.makes_a_store() => {
            target.with(async |client| topic::run(client, command, target.json).await).await
        }
        Command::Topic { command, target } => {
            target.with_existing(async |client| topic::run(client, command, target.json).await).await
        }
        Command::Group { command, target } => {
            target.with_existing(async |client| group::run(client, command, target.json).await).await
        }
        Command::Pending { args, target } => {
            target.with_existing(async |client| group::pending(client, args, target.json).await).await
        }
        Command::Dead { command, target } => {
            target.with_existing(async |client| dead::run(client, command, target.json).await).await
        }
        Command::Route { command, target } => route::run(command, target).await,
        Command::Connect { command, target } => {
            target.with(async |client| connect::run(client, command, target.json).await).await
        }
        Command::Claims { command, target } => {
            target.with(async |client| claims::run(client, command, target.json).await).await
        }
        Command::Sub { args, target } => match target.engine().filter(|engine| live::is_redis(engine)) {
            Some(engine) => live::sub_redis(engine, args, target.json).await,
            None => target.with(async |client| live::sub(client, args, target.json).await).await,
        },
        Command::Pub { args, target } => match target.engine().filter(|engine| live::is_redis(engine)) {
            Some(engine) => live::publish_redis(engine, args, target.json).await,
            None => target.with(async |client| live::publish(client, args, target.json).await).await,
        },
        Command::Top { args, target } => {
            target.with_existing(async |client| top::run(client, args, target.json).await).await
        }
        Command::Stats { args, target } => {
            target.with_existing(async |client| stats::run(client, args, target.json).await).await
        }
        Command::Bench { args, target } => {
            target.with(async |client| bench::run(client, args, target.json).await).await
        }
        Command::Backup { args, target } => backup::of(&target, args).await,
        Command::Restore(args) => restore::run(args).await,
        Command::Check { args, target } => check::run(args, &target).await,
        Command::Doctor { ready: true, target } => target.with(async |client| client.ready().await).await,
        Command::Doctor { ready: false, target } => doctor::run(&target, target.json).await,
        Command::Token(args) => token::run(&args),
        Command::Config(args) => {
            let values = config::SettingValues::load(&args.given()?)?;
            config::Config::read(&values)?;
            output::line(config::effective_file(&values).trim_end())
        }
        Command::Completions { shell } => man::completions::<Cli>(shell),
        Command::Guard => {
            // Nothing else runs in this process.
            tokio::task::block_in_place(|| guard::run(std::io::stdin().lock()));
            Ok(())
        }
        Command::Man(args) => man::man::<Cli>(&args),
    }
}

#[cfg(test)]
mod names;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn all<'a>(command: &'a clap::Command, to: &mut Vec<&'a clap::Command>) {
        to.push(command);
        command.get_subcommands().for_each(|command| all(command, to));
    }

    #[test]
    fn the_description_of_the_command_line_holds_together() {
        Cli::command().debug_assert();
        for name in ["FIRTH_SERVER", "FIRTH_ENGINE", "FIRTH_TOKEN"] {
            assert!(config::variables().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn every_command_has_help_with_an_example() {
        let root = Cli::command();
        let mut commands = Vec::new();
        all(&root, &mut commands);
        for command in commands {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example") && help.contains("firth "), "{}: {help}", command.get_name());
            assert!(command.get_about().is_some(), "{}", command.get_name());
            let silent = command.get_arguments().find(|argument| argument.get_help().is_none());
            assert!(silent.is_none(), "{}: {silent:?}", command.get_name());
        }
    }
}
