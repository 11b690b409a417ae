//! The command line: four commands on an engine, or on a server over HTTP.

use clap::Parser;
use firth::KeyOrdering;
use std::time::Duration;

/// What `sent_ok` promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Durability {
    /// The server has it.
    Fast,
    /// A replica has it too.
    Replicated,
    /// It is on disk.
    Synced,
}

/// What the queue runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An engine, by its URL, used from this process.
    Engine(String),
    /// A running `firth serve`, by its URL, used over HTTP.
    Server(String),
}

/// The options that name a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[group(required = true, multiple = false)]
pub struct TargetArgs {
    /// The engine, used from this process: redis://HOST, file:DIR
    #[arg(long, value_name = "URL", value_parser = engine_url)]
    engine: Option<String>,
    /// A running `firth serve`, used over HTTP: http://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = server_url)]
    server: Option<String>,
}

/// What to do, and on what.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(
    name = "firth-driver",
    about = "Drives firth from outside by JSON lines",
    after_help = "Speaks JSON lines on stdin and stdout; logs go to stderr. End of input is a graceful end.\n\
                  With --server, FIRTH_TOKEN is the server's token."
)]
pub enum Args {
    /// Make a topic and its groups, which start at the oldest record
    Setup {
        /// Where.
        #[command(flatten)]
        target: TargetArgs,
        /// The topic
        #[arg(long)]
        topic: String,
        /// How many partitions it gets
        #[arg(long)]
        partitions: u32,
        /// A group; give it once for each group
        #[arg(long = "group", required = true)]
        groups: Vec<String>,
    },
    /// Send what comes
    Produce {
        /// Where.
        #[command(flatten)]
        target: TargetArgs,
        /// The topic
        #[arg(long)]
        topic: String,
        /// What `sent_ok` promises; as the URL says, or the engine's own choice, unless set
        #[arg(long)]
        durability: Option<Durability>,
    },
    /// Be a member of a group
    Consume {
        /// Where.
        #[command(flatten)]
        target: TargetArgs,
        /// The rest.
        #[command(flatten)]
        consume: Consume,
    },
    /// Print how a group stands
    Final {
        /// Where.
        #[command(flatten)]
        target: TargetArgs,
        /// The topic
        #[arg(long)]
        topic: String,
        /// The group
        #[arg(long)]
        group: String,
    },
}

/// Which member to be.
#[derive(Clone, Debug, PartialEq, clap::Args)]
// Its group of options would be named as that of the command.
#[group(skip)]
pub struct Consume {
    /// The topic
    #[arg(long)]
    pub topic: String,
    /// The group
    #[arg(long)]
    pub group: String,
    /// The member's name, to which a random part is added
    #[arg(long)]
    pub member: String,
    /// How long it keeps its partitions after a crash, in milliseconds
    #[arg(long = "lease-ms", value_name = "MS", value_parser = millis)]
    pub lease: Duration,
    /// What a failed record does to later ones of its key
    #[arg(long, default_value = "strict", value_parser = ordering)]
    pub ordering: KeyOrdering,
}

impl Args {
    /// Where to do it, with the durability asked for.
    pub fn target(&self) -> Target {
        let (target, durability) = match self {
            Self::Produce { target, durability, .. } => (target, *durability),
            Self::Setup { target, .. } | Self::Consume { target, .. } | Self::Final { target, .. } => {
                (target, None)
            }
        };
        match (&target.engine, &target.server) {
            (_, Some(url)) => Target::Server(url.clone()),
            (Some(url), None) => Target::Engine(durability.map_or(url.clone(), |set| set.applied_to(url))),
            (None, None) => unreachable!("the group of options is required"),
        }
    }
}

fn engine_url(url: &str) -> Result<String, String> {
    match url.starts_with("memory:") {
        true => {
            Err("it lives in one process, so that no other would see it: use redis://… or file:DIR".into())
        }
        false => Ok(url.to_owned()),
    }
}

fn server_url(url: &str) -> Result<String, String> {
    match url.starts_with("http://") {
        true => Ok(url.trim_end_matches('/').to_owned()),
        false => Err("it looks like http://127.0.0.1:7171".into()),
    }
}

fn millis(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_millis).map_err(|_| "give a whole number of milliseconds".into())
}

fn ordering(name: &str) -> Result<KeyOrdering, String> {
    match name {
        "strict" => Ok(KeyOrdering::Strict),
        "relaxed" => Ok(KeyOrdering::Relaxed),
        _ => Err("say strict or relaxed".into()),
    }
}

impl Durability {
    /// The URL with this durability in place of its own.
    fn applied_to(self, url: &str) -> String {
        let name = match self {
            Self::Fast => "fast",
            Self::Replicated => "replicated",
            Self::Synced => "synced",
        };
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
        pairs.retain(|pair| !pair.starts_with("durability="));
        let chosen = format!("durability={name}");
        pairs.push(&chosen);
        format!("{base}?{}", pairs.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(std::iter::once("firth-driver").chain(line.split_whitespace()))
    }

    #[test]
    fn every_command_reads_its_own_options() {
        let setup = parse("setup --engine redis://h --topic t --partitions 4 --group a --group b").unwrap();
        let groups = vec!["a".to_owned(), "b".to_owned()];
        let target = TargetArgs { engine: Some("redis://h".to_owned()), server: None };
        assert_eq!(setup, Args::Setup { target, topic: "t".to_owned(), partitions: 4, groups });
        let relaxed =
            "consume --engine redis://h --topic t --group g --member m --lease-ms 500 --ordering relaxed";
        let Args::Consume { consume, .. } = parse(relaxed).unwrap() else { panic!("not consume") };
        assert_eq!((consume.lease, consume.ordering), (Duration::from_millis(500), KeyOrdering::Relaxed));
        assert!(parse("final --engine=redis://h --topic=t --group=g").is_ok());
        let served = parse("final --server http://h:7171/ --topic t --group g").unwrap();
        assert_eq!(served.target(), Target::Server("http://h:7171".to_owned()));
    }

    #[test]
    fn the_command_line_is_sound() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn mistakes_are_named() {
        for (line, word) in [
            ("consume --engine redis://h --topic t --group g --member m", "lease-ms"),
            ("produce --engine redis://h --topic t --durability best", "synced"),
            ("produce --engine memory: --topic t", "one process"),
            ("produce --server redis://h --topic t", "http://"),
            ("produce --server http://h --engine redis://h --topic t", "cannot be used with"),
            ("produce --topic t", "--server"),
            ("final --engine redis://h --topic t --group g --lease-ms 5", "unexpected argument"),
            ("begin --engine redis://h --topic t", "unrecognized subcommand"),
            ("produce --engine", "a value is required"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn the_durability_asked_for_replaces_that_of_the_url() {
        let url = |line: &str| match parse(line).unwrap().target() {
            Target::Engine(url) | Target::Server(url) => url,
        };
        assert_eq!(
            url("produce --engine redis://h?durability=fast&prefix=x --topic t --durability synced"),
            "redis://h?prefix=x&durability=synced"
        );
        assert_eq!(url("produce --engine file:d --topic t --durability fast"), "file:d?durability=fast");
        assert_eq!(url("produce --engine redis://h --topic t"), "redis://h");
    }
}
