//! The command line, read by hand: four commands, few options, and errors that say what to write instead.

use anyhow::{Context, Result, bail};
use firth::Ordering;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

/// How the program is called.
pub const HELP: &str = "\
firth-driver setup   --engine URL --topic T --partitions N --group G [--group G2 …]
firth-driver produce --engine URL --topic T [--durability fast|replicated|synced]
firth-driver consume --engine URL --topic T --group G --member M --lease-ms N [--ordering strict|relaxed]
firth-driver final   --engine URL --topic T --group G

Speaks JSON lines on stdin and stdout; logs go to stderr. End of input is a graceful end.
--server http://HOST:PORT instead of --engine drives a running `firth serve` over HTTP; FIRTH_TOKEN is its token.
";

/// What `sent_ok` promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What to do, and on what.
#[derive(Clone, Debug, PartialEq)]
pub enum Args {
    /// Make a topic and its groups.
    Setup {
        /// Where.
        target: Target,
        /// The topic.
        topic: String,
        /// How many partitions it gets.
        partitions: u32,
        /// The groups, which start at the oldest record.
        groups: Vec<String>,
    },
    /// Send what comes.
    Produce {
        /// Where.
        target: Target,
        /// The topic.
        topic: String,
        /// What `sent_ok` promises; `None`: what the URL says, or the engine's own choice.
        durability: Option<Durability>,
    },
    /// Be a member of a group.
    Consume {
        /// Where.
        target: Target,
        /// The rest.
        consume: Consume,
    },
    /// Print how a group stands.
    Final {
        /// Where.
        target: Target,
        /// The topic.
        topic: String,
        /// The group.
        group: String,
    },
}

/// Which member to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Consume {
    /// The topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// The member's name, to which a random part is added.
    pub member: String,
    /// How long it keeps its partitions after a crash.
    pub lease: Duration,
    /// What a failed record does to later ones of its key.
    pub ordering: Ordering,
}

impl Args {
    /// Reads the arguments after the program's name.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut args = args.into_iter();
        let command = args.next().context("say what to do: setup, produce, consume or final")?;
        let mut options = Options::read(args)?;
        let target = options.target()?;
        let topic = options.one("topic")?;
        let parsed = match command.as_str() {
            "setup" => {
                let partitions = options.number("partitions")?;
                Self::Setup { target, topic, partitions, groups: options.many("group")? }
            }
            "produce" => {
                let durability = options.maybe("durability")?.map(|name| name.parse()).transpose()?;
                Self::Produce { target, topic, durability }
            }
            "consume" => {
                let ordering = match options.maybe("ordering")?.as_deref() {
                    None | Some("strict") => Ordering::Strict,
                    Some("relaxed") => Ordering::Relaxed,
                    Some(other) => bail!("--ordering {other}: say strict or relaxed"),
                };
                let (group, member) = (options.one("group")?, options.one("member")?);
                let lease = Duration::from_millis(options.number("lease-ms")?);
                Self::Consume { target, consume: Consume { topic, group, member, lease, ordering } }
            }
            "final" => Self::Final { target, topic, group: options.one("group")? },
            other => bail!("unknown command {other:?}: say setup, produce, consume or final"),
        };
        options.end(&command)?;
        parsed.check()
    }

    fn check(self) -> Result<Self> {
        match self.target() {
            Target::Engine(url) if url.starts_with("memory:") => {
                bail!(
                    "memory: lives in one process, so that no other would see it: use redis://… or file:DIR"
                )
            }
            Target::Server(url) if !url.starts_with("http://") => {
                bail!("--server {url}: it looks like http://127.0.0.1:7171")
            }
            _ => Ok(self),
        }
    }

    /// Where to do it, with the durability asked for.
    pub fn target(&self) -> Target {
        match self {
            Self::Produce { target: Target::Engine(url), durability: Some(durability), .. } => {
                Target::Engine(durability.applied_to(url))
            }
            Self::Setup { target, .. }
            | Self::Produce { target, .. }
            | Self::Consume { target, .. }
            | Self::Final { target, .. } => target.clone(),
        }
    }
}

impl FromStr for Durability {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "fast" => Ok(Self::Fast),
            "replicated" => Ok(Self::Replicated),
            "synced" => Ok(Self::Synced),
            other => bail!("--durability {other}: say fast, replicated or synced"),
        }
    }
}

impl Durability {
    /// The URL with this durability instead of whatever it says.
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

/// Options by name, each with its values.
struct Options(BTreeMap<String, Vec<String>>);

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = BTreeMap::<String, Vec<String>>::new();
        while let Some(arg) = args.next() {
            let Some(name) = arg.strip_prefix("--") else {
                bail!("{arg:?} is no option: write --name value")
            };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => (name.to_owned(), args.next().with_context(|| format!("--{name} needs a value"))?),
            };
            options.entry(name).or_default().push(value);
        }
        Ok(Self(options))
    }

    fn target(&mut self) -> Result<Target> {
        match (self.maybe("engine")?, self.maybe("server")?) {
            (Some(url), None) => Ok(Target::Engine(url)),
            (None, Some(url)) => Ok(Target::Server(url.trim_end_matches('/').to_owned())),
            (None, None) => bail!("--engine is missing, or --server"),
            (Some(_), Some(_)) => bail!("give --engine or --server, not both"),
        }
    }

    fn many(&mut self, name: &str) -> Result<Vec<String>> {
        self.0.remove(name).with_context(|| format!("--{name} is missing"))
    }

    fn maybe(&mut self, name: &str) -> Result<Option<String>> {
        let mut values = self.0.remove(name).unwrap_or_default();
        if values.len() > 1 {
            bail!("--{name} is given {} times", values.len());
        }
        Ok(values.pop())
    }

    fn one(&mut self, name: &str) -> Result<String> {
        self.maybe(name)?.with_context(|| format!("--{name} is missing"))
    }

    fn number<N: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
        &mut self,
        name: &str,
    ) -> Result<N> {
        let value = self.one(name)?;
        value.parse().with_context(|| format!("--{name} {value:?} is no number"))
    }

    fn end(&self, command: &str) -> Result<()> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => bail!("{command} has no option --{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn every_command_reads_its_own_options() {
        let setup = parse("setup --engine redis://h --topic t --partitions 4 --group a --group b").unwrap();
        let groups = vec!["a".to_owned(), "b".to_owned()];
        let (target, topic) = (Target::Engine("redis://h".to_owned()), "t".to_owned());
        assert_eq!(setup, Args::Setup { target, topic, partitions: 4, groups });
        let relaxed =
            "consume --engine redis://h --topic t --group g --member m --lease-ms 500 --ordering relaxed";
        let Args::Consume { consume, .. } = parse(relaxed).unwrap() else { panic!("not consume") };
        assert_eq!((consume.lease, consume.ordering), (Duration::from_millis(500), Ordering::Relaxed));
        assert!(parse("final --engine=redis://h --topic=t --group=g").is_ok());
        let served = parse("final --server http://h:7171/ --topic t --group g").unwrap();
        assert_eq!(served.target(), Target::Server("http://h:7171".to_owned()));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, word) in [
            ("consume --engine redis://h --topic t --group g --member m", "lease-ms"),
            ("produce --engine redis://h --topic t --durability best", "synced"),
            ("produce --engine memory: --topic t", "one process"),
            ("produce --server redis://h --topic t", "http://"),
            ("produce --server http://h --engine redis://h --topic t", "not both"),
            ("produce --topic t", "--server"),
            ("final --engine redis://h --topic t --group g --lease-ms 5", "no option"),
            ("begin --engine redis://h --topic t", "unknown command"),
            ("produce --engine", "needs a value"),
        ] {
            let error = format!("{:#}", parse(line).unwrap_err());
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
