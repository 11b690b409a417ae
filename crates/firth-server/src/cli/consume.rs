//! `firth consume`: prints records and acks them, or lets a command decide.
//!
//! Fetches are never broken off: a signal lets the running one end, so that nothing stays fetched and unsettled.

use super::exec::{self, Verdict};
use super::output::{json, line, note, plain};
use super::units;
use crate::client::{Client, group_path};
use crate::wire::{Delivered, Failure, Fetch, Fetched, Settle, SettledReport};
use axum::http::Method;
use clap::Args;
use firth::{Error, ErrorKind, Result};
use std::time::Duration;
use tokio::task::JoinSet;

/// The most records of one fetch.
const MOST: u64 = 100;
/// How long one fetch waits; a signal waits at most as long.
const WAIT: Duration = Duration::from_secs(1);

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth consume orders --group bar --follow
  firth consume orders --group audit --from newest --json --max 10
  firth consume orders --group mail --follow --exec './send-mail \"$FIRTH_KEY\"' --jobs 4

The command of --exec runs in a shell, with the payload on its input and FIRTH_TOPIC, FIRTH_GROUP,
FIRTH_PARTITION, FIRTH_ID, FIRTH_ATTEMPT, FIRTH_SENT_MS, FIRTH_KEY (or FIRTH_KEY_BASE64) and
FIRTH_HEADER_NAME in its environment. It ends with 0: done. With 65: reject, a dead letter at once.
With anything else, or after --lease: try again, as the retry policy says.";

#[derive(Args)]
pub(crate) struct ConsumeArgs {
    /// The topic
    topic: String,
    /// The group; each group gets every record once it is settled
    #[arg(long)]
    group: String,
    #[command(flatten)]
    how: ReadArgs,
    /// With --exec: how many run at a time; never two of one key
    #[arg(long, value_name = "N", default_value_t = 1, requires = "exec", value_parser = clap::value_parser!(u64).range(1..=100))]
    jobs: u64,
    /// How long a record may take before it is tried again
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = units::duration)]
    lease: Duration,
}

// How records are read, whoever owns them. (A doc comment would become the help of whatever command has these flags.)
#[derive(Args)]
pub(super) struct ReadArgs {
    /// Where a new group starts: oldest, newest, or an age such as 1h; one that exists goes on where it was
    #[arg(long, value_name = "WHERE")]
    pub(super) from: Option<String>,
    /// Wait for more instead of ending when nothing comes
    #[arg(long)]
    pub(super) follow: bool,
    /// End after this many records
    #[arg(long, value_name = "N")]
    pub(super) max: Option<u64>,
    /// How long to wait for the first or next record without --follow
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = units::duration)]
    pub(super) wait: Duration,
    /// Run this for each record; its exit code is the verdict
    #[arg(long, value_name = "COMMAND")]
    pub(super) exec: Option<String>,
}

pub(crate) async fn run(client: &Client, args: ConsumeArgs, as_json: bool) -> Result<()> {
    let reading = Reading {
        client,
        path: group_path(&args.topic, &args.group),
        lease: args.lease,
        follow: args.how.follow,
    };
    if let Some(from) = &args.how.from {
        super::group::create(client, &args.topic, &args.group, from).await?;
    }
    let mut stop = std::pin::pin!(stopped());
    match &args.how.exec {
        None => print(&reading, &args, as_json, &mut stop).await,
        Some(command) => execute(&reading, &args, command, as_json, &mut stop).await,
    }
}

/// SIGINT or SIGTERM.
pub(super) async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

struct Reading<'a> {
    client: &'a Client,
    path: String,
    lease: Duration,
    /// With `--follow` a server that is away is waited for.
    follow: bool,
}

impl Reading<'_> {
    async fn fetch(&self, max: u64, wait: Duration) -> Result<Vec<Delivered>> {
        let how = Fetch {
            max: Some(usize::try_from(max.min(MOST)).unwrap_or(1)),
            wait_ms: Some(units::millis(wait)),
            lease_ms: Some(units::millis(self.lease)),
        };
        let fetched: Result<Fetched> =
            self.client.send(Method::POST, &format!("{}/fetch", self.path), &how).await;
        match fetched {
            Ok(fetched) => Ok(fetched.deliveries),
            Err(error) if self.follow && error.is_retryable() => {
                note(&format!("waiting: {error}"));
                tokio::time::sleep(WAIT).await;
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    async fn settle(&self, verdicts: &Settle) -> Result<()> {
        let path = format!("{}/settle", self.path);
        let report: Result<SettledReport> = self.client.send(Method::POST, &path, verdicts).await;
        let report = match report {
            // What it did not get comes again.
            Err(error) if self.follow && error.is_retryable() => {
                note(&format!("waiting: {error}"));
                return Ok(());
            }
            report => report?,
        };
        let Some(failed) = report.failed.first() else { return Ok(()) };
        let context =
            format!("{} records were handled but not settled: {}", report.failed.len(), failed.detail);
        Err(Error::new(ErrorKind::Fenced, context))
    }
}

/// How long nothing may come before it is the end.
struct Patience {
    limit: Option<Duration>,
    left: Duration,
}

impl Patience {
    fn new(how: &ReadArgs) -> Self {
        let limit = (!how.follow).then_some(how.wait);
        Self { limit, left: how.wait }
    }

    fn next_wait(&self) -> Duration {
        if self.limit.is_some() { self.left.min(WAIT) } else { WAIT }
    }

    /// Whether to go on after a fetch that waited this long.
    fn goes_on(&mut self, came: usize, waited: Duration) -> bool {
        let Some(limit) = self.limit else { return true };
        self.left = if came > 0 { limit } else { self.left.saturating_sub(waited) };
        !self.left.is_zero()
    }
}

async fn print(
    reading: &Reading<'_>,
    args: &ConsumeArgs,
    as_json: bool,
    stop: &mut (impl Future<Output = ()> + Unpin),
) -> Result<()> {
    let (mut left, mut patience) = (args.how.max.unwrap_or(u64::MAX), Patience::new(&args.how));
    while left > 0 {
        let wait = patience.next_wait();
        let fetch = reading.fetch(left, wait);
        let (fetched, is_last) = finish(fetch, stop).await;
        let fetched = fetched?;
        left -= fetched.len() as u64;
        let goes_on = patience.goes_on(fetched.len(), wait);
        print_and_ack(reading, fetched, as_json).await?;
        if is_last || !goes_on {
            break;
        }
    }
    Ok(())
}

/// Runs it to its end, and tells whether it was time to stop.
pub(super) async fn finish<T>(
    work: impl Future<Output = T>,
    stop: &mut (impl Future<Output = ()> + Unpin),
) -> (T, bool) {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => (done, false),
        () = stop => (work.await, true),
    }
}

async fn print_and_ack(reading: &Reading<'_>, deliveries: Vec<Delivered>, as_json: bool) -> Result<()> {
    let mut verdicts = Settle::default();
    let mut printed = Ok(());
    for Delivered { delivery, record, .. } in deliveries {
        if printed.is_ok() {
            printed = if as_json { json(&record) } else { line(&plain(record.text())) };
        }
        match printed {
            Ok(()) => verdicts.ack.push(delivery),
            // Others shall have them at once.
            Err(_) => verdicts.nack.push(failure(delivery, "nobody read the output".to_owned(), Some(0))),
        }
    }
    if !verdicts.ack.is_empty() || !verdicts.nack.is_empty() {
        reading.settle(&verdicts).await?;
    }
    printed
}

async fn execute(
    reading: &Reading<'_>,
    args: &ConsumeArgs,
    command: &str,
    as_json: bool,
    stop: &mut (impl Future<Output = ()> + Unpin),
) -> Result<()> {
    let (mut left, mut patience) = (args.how.max.unwrap_or(u64::MAX), Patience::new(&args.how));
    let (mut running, mut is_stopping) = (JoinSet::new(), false);
    loop {
        let room = (args.jobs - running.len() as u64).min(left);
        if is_stopping || room == 0 {
            match running.join_next().await {
                Some(ended) => conclude(reading, ended, as_json).await?,
                None => return Ok(()),
            }
            continue;
        }
        let wait = if running.is_empty() { patience.next_wait() } else { Duration::from_millis(100) };
        let (fetched, stops) = finish(reading.fetch(room, wait), stop).await;
        let fetched = fetched?;
        is_stopping |= stops || (!patience.goes_on(fetched.len() + running.len(), wait));
        left -= fetched.len() as u64;
        for delivered in fetched {
            let (command, group, lease) = (command.to_owned(), args.group.clone(), args.lease);
            running.spawn(async move {
                let verdict = exec::run(&command, &group, &delivered.record, lease).await;
                (delivered, verdict)
            });
        }
        while let Some(ended) = running.try_join_next() {
            conclude(reading, ended, as_json).await?;
        }
    }
}

type Ended = Result<(Delivered, Verdict), tokio::task::JoinError>;

async fn conclude(reading: &Reading<'_>, ended: Ended, as_json: bool) -> Result<()> {
    let (delivered, verdict) =
        ended.map_err(|error| Error::new(ErrorKind::Internal, "a command was lost").with_source(error))?;
    let Delivered { delivery, record, .. } = delivered;
    let mut verdicts = Settle::default();
    let (name, reason) = match verdict {
        Verdict::Ack => ("ack", None),
        Verdict::Nack(reason) => ("nack", Some(reason)),
        Verdict::Reject(reason) => ("reject", Some(reason)),
    };
    let told = reason.clone();
    match (name, reason) {
        ("nack", Some(reason)) => verdicts.nack.push(failure(delivery, reason, None)),
        (_, Some(reason)) => verdicts.reject.push(failure(delivery, reason, None)),
        (_, None) => verdicts.ack.push(delivery),
    }
    reading.settle(&verdicts).await?;
    if as_json {
        return json(&serde_json::json!({
            "partition": record.partition, "id": record.id, "attempt": record.attempt,
            "verdict": name, "reason": told,
        }));
    }
    match told {
        None => Ok(()),
        Some(reason) => {
            note(&format!("{name} {}/{} attempt {}: {reason}", record.partition, record.id, record.attempt));
            Ok(())
        }
    }
}

fn failure(delivery: String, reason: String, after_ms: Option<u64>) -> Failure {
    Failure { delivery, reason: Some(reason), after_ms }
}
