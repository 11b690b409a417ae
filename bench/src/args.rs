//! The command line: parsed by hand, since it is a handful of options shared by all benches.

use crate::server;
use anyhow::{Context, Result, bail, ensure};
use firth_testkit::Flavor;
use std::path::PathBuf;

pub(crate) const USAGE: &str = "\
usage: bench <BENCH> [options]

benches:
  client    firth-redis beside the crates redis, fred and rustis, one connection each
  pubsub    delivery to a subscriber of 1, 1 000 and 10 000 channels, and sharded channels through a
            migration and a failover of their cluster, beside the same crates
  mux       the steps of the mux by themselves: slot, subscribe, unsubscribe, callback, pool
  engine    append, read and commit, retry, give up, renew and delay on memory, files and Redis, beside hand-written
            RESP and plain batches of the storage library; opening ten million records
  queue     produce, consume, end to end, latency, failing messages, an idle group and failover on Redis and embedded,
            beside the raw limit, NATS JetStream, apalis and BullMQ
  server    the program `firth` over HTTP: produce in batches and one by one, start and rest, a crowd of
            1 000 producers and as many consumers; beside a bare server as the limit
  edge      one message to 1 000 and 10 000 WebSocket clients, and many coalesced, beside bare writes
  router    matching with 1 000, 100 000 and 1 000 000 subscriptions; events from a topic to a gateway over HTTP/2 and gRPC, beside the
            bare wire; latency
  connect   PostgreSQL's change stream to a topic, a gateway and a browser; a snapshot, a transaction of a million
            rows, a source at rest; beside pg_recvlogical and COPY
  claims    holding 1 000 to 50 000 claims at rest, beside a lock per unit; takeover when 2 of 10 workers die

options:
  --quick            one short slice per cell, a few minutes in all
  --json             one JSON object per line on stdout instead of the table
  --only W[,W..]     these workloads; a prefix such as `get/` names several
  --subject S[,S..]  these subjects
  --server S         redis (default) or valkey
  --runs N           repeat the whole N times (1 to 20), print medians and in how many runs a target was met
  --svg PATH         write the table as a picture
";

/// Options of every bench.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) json: bool,
    pub(crate) only: Vec<String>,
    pub(crate) subjects: Vec<String>,
    pub(crate) server: Flavor,
    pub(crate) runs: usize,
    pub(crate) svg: Option<PathBuf>,
}

impl Options {
    /// Reads what follows the name of the bench.
    pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            quick: false,
            json: false,
            only: vec![],
            subjects: vec![],
            server: Flavor::Redis,
            runs: 1,
            svg: None,
        };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value\n\n{USAGE}"));
            match arg.as_str() {
                "--quick" => options.quick = true,
                "--json" => options.json = true,
                "--only" => options.only = list(&value()?),
                "--subject" => options.subjects = list(&value()?),
                "--server" => options.server = server::named(&value()?)?,
                "--runs" => options.runs = value()?.parse().context("--runs takes a number")?,
                "--svg" => options.svg = Some(value()?.into()),
                _ => bail!("unknown option {arg}\n\n{USAGE}"),
            }
        }
        ensure!((1..=20).contains(&options.runs), "--runs takes 1 to 20");
        Ok(options)
    }

    /// The workloads that `--only` leaves, in their own order; an entry that names none is an
    /// error.
    pub(crate) fn chosen_workloads(&self, all: &[&'static str]) -> Result<Vec<&'static str>> {
        let matches =
            |wanted: &str, name: &str| name == wanted || (wanted.ends_with('/') && name.starts_with(wanted));
        for wanted in &self.only {
            let known = all.iter().any(|name| matches(wanted, name));
            ensure!(known, "no workload {wanted}; there are: {}", all.join(" "));
        }
        let chosen =
            |name: &str| self.only.is_empty() || self.only.iter().any(|wanted| matches(wanted, name));
        Ok(all.iter().copied().filter(|name| chosen(name)).collect())
    }

    /// The subjects that `--subject` leaves; an unknown one is an error.
    pub(crate) fn chosen_subjects(&self, all: &[&'static str]) -> Result<Vec<&'static str>> {
        for wanted in &self.subjects {
            ensure!(all.contains(&wanted.as_str()), "no subject {wanted}; there are: {}", all.join(" "));
        }
        let chosen = |one: &&&'static str| {
            self.subjects.is_empty() || self.subjects.iter().any(|wanted| wanted == **one)
        };
        Ok(all.iter().filter(chosen).copied().collect())
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn every_option_is_read() {
        let options =
            parse("--quick --json --only get/,set/64/st --subject fred --server valkey --runs 3 --svg a.svg")
                .unwrap();
        assert!(options.quick && options.json);
        assert_eq!(options.server, Flavor::Valkey);
        assert_eq!(options.only, ["get/", "set/64/st"]);
        assert_eq!(options.subjects, ["fred"]);
        assert_eq!((options.runs, options.svg), (3, Some("a.svg".into())));
    }

    #[test]
    fn what_is_not_an_option_is_refused_with_the_usage() {
        assert!(parse("--fast").unwrap_err().to_string().contains("usage:"));
        assert!(parse("--only").is_err());
        assert!(parse("--runs 0").is_err());
        assert!(parse("--runs 21").is_err());
        assert!(parse("--server keydb").is_err());
    }

    #[test]
    fn a_choice_keeps_the_order_of_the_table_and_names_what_is_unknown() {
        let all = ["get/1/st", "get/64/st", "set/64/st"];
        assert_eq!(parse("").unwrap().chosen_workloads(&all).unwrap(), all);
        let chosen = parse("--only set/64/st,get/1/st").unwrap().chosen_workloads(&all).unwrap();
        assert_eq!(chosen, ["get/1/st", "set/64/st"]);
        assert_eq!(parse("--only get/").unwrap().chosen_workloads(&all).unwrap().len(), 2);
        assert!(parse("--only get").unwrap().chosen_workloads(&all).is_err());
        assert!(parse("--subject foo").unwrap().chosen_subjects(&["fred"]).is_err());
        assert_eq!(parse("--subject fred").unwrap().chosen_subjects(&["redis", "fred"]).unwrap(), ["fred"]);
    }
}
