//! `firth consume`: prints records and acks them, or lets a command decide.
//!
//! Fetches are never broken off: a signal lets the running one end, so that nothing stays fetched
//! and unsettled.

use super::executor;
use super::output::{json, line, note, plain};
use super::signals::Signals;
use super::units;
use crate::client::{Client, group_path};
use crate::wire::{Delivered, Failure, Fetch, Fetched, Settle, SettledReport};
use axum::http::Method;
use clap::Args;
use firth::{Backoff, Error, ErrorKind, Result};
use std::cell::Cell;
use std::time::Duration;

/// The most records of one fetch.
const MOST: u64 = 100;
/// How long one fetch waits; a signal waits at most as long.
const WAIT: Duration = Duration::from_secs(1);
/// Between two tries while the server is away, so that work goes on within a second of its return.
pub(super) const AWAY: Backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_millis(500));

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth consume orders --group bar --follow
  firth consume orders --group audit --from newest --json --max 10
  firth consume orders --group mail --follow --exec './send-mail \"$FIRTH_KEY\"' --jobs 4

The command of --exec runs in a shell, with the payload on its input and FIRTH_TOPIC, FIRTH_GROUP,
FIRTH_PARTITION, FIRTH_ID, FIRTH_ATTEMPT, FIRTH_SENT_MS, FIRTH_KEY (or FIRTH_KEY_BASE64) and
FIRTH_HEADER_NAME in its environment. It ends with 0: done. With 65: reject, a dead letter at once.
With 126 or 127, as a shell says of a command that is not there: the record is released, and consume
ends. With anything else, or after --lease: try again, as the retry policy says, with the last lines
of the command's errors as the reason. The first Ctrl-C starts nothing more and waits for what runs;
the second stops it and releases its records.";

#[derive(Args)]
pub(crate) struct ConsumeArgs {
    /// The topic
    topic: String,
    /// The group; each group gets every record once it is settled
    #[arg(long)]
    pub(super) group: String,
    #[command(flatten)]
    pub(super) how: ReadArgs,
    /// With --exec: how many run at a time; never two of one key
    #[arg(long, value_name = "N", default_value_t = 1, requires = "exec", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(super) jobs: u64,
    /// How long a record may take before it is tried again
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = units::duration)]
    pub(super) lease: Duration,
}

// Options for reading records, of a group or of a claimed unit. (A doc comment would become the
// help of every command that has these flags.)
#[derive(Args)]
pub(super) struct ReadArgs {
    /// Where a new group starts: oldest, newest, or an age such as 1h; one that exists goes on
    /// where it was
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
    let reading = GroupReading {
        client,
        path: group_path(&args.topic, &args.group),
        lease: args.lease,
        follow: args.how.follow,
        has_fetched: Cell::new(false),
        failures: Cell::new(0),
    };
    if let Some(from) = &args.how.from {
        super::group::create(client, &args.topic, &args.group, from).await?;
    }
    let mut signals = Signals::listen()?;
    match &args.how.exec {
        None => print(&reading, &args, as_json, &mut signals).await,
        Some(command) => executor::run(&reading, &args, command, as_json, &mut signals).await,
    }
}

/// A group that is read over the API.
pub(super) struct GroupReading<'a> {
    client: &'a Client,
    path: String,
    lease: Duration,
    /// With `--follow` a server or a topic that is away is waited for.
    follow: bool,
    /// Whether a fetch was answered once: from then on the topic's name is no typing error.
    has_fetched: Cell<bool>,
    /// Fetches that failed since the last answer.
    failures: Cell<u32>,
}

impl GroupReading<'_> {
    pub(super) async fn fetch(&self, max: u64, wait: Duration) -> Result<Vec<Delivered>> {
        let how = Fetch {
            max: Some(usize::try_from(max.min(MOST)).unwrap_or(1)),
            wait_ms: Some(units::millis(wait)),
            lease_ms: Some(units::millis(self.lease)),
        };
        let fetched: Result<Fetched> =
            self.client.send(Method::POST, &format!("{}/fetch", self.path), &how).await;
        match fetched {
            Ok(fetched) => {
                self.has_fetched.set(true);
                self.failures.set(0);
                Ok(fetched.deliveries)
            }
            Err(error) if self.waits_for(&error) => {
                note(&format!("waiting: {error}"));
                self.failures.update(|failures| failures + 1);
                tokio::time::sleep(AWAY.delay(self.failures.get())).await;
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the error is of a kind that passes.
    fn waits_for(&self, error: &Error) -> bool {
        let passes = match error.kind() {
            ErrorKind::NotFound => self.has_fetched.get(),
            ErrorKind::Fenced | ErrorKind::Closed => true,
            _ => error.is_retryable(),
        };
        self.follow && passes
    }

    /// Stores verdicts. Those that come too late are told, and no reason to stop: their records
    /// come again.
    pub(super) async fn settle(&self, verdicts: &Settle) -> Result<()> {
        let path = format!("{}/settle", self.path);
        let report: Result<SettledReport> = self.client.send(Method::POST, &path, verdicts).await;
        match report {
            Ok(report) => {
                if let Some(failed) = report.failed.first() {
                    let count = report.failed.len();
                    note(&format!("not settled, so they come again ({count}): {}", failed.detail));
                }
                Ok(())
            }
            Err(error) if self.waits_for(&error) => {
                note(&format!("not settled, so they come again: {error}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// How long nothing may come before it is the end.
pub(super) struct Patience {
    limit: Option<Duration>,
    left: Duration,
}

impl Patience {
    pub(super) fn new(how: &ReadArgs) -> Self {
        let limit = (!how.follow).then_some(how.wait);
        Self { limit, left: how.wait }
    }

    pub(super) fn next_wait(&self) -> Duration {
        if self.limit.is_some() { self.left.min(WAIT) } else { WAIT }
    }

    /// Whether to go on after a fetch that waited this long.
    pub(super) fn goes_on(&mut self, came: usize, waited: Duration) -> bool {
        let Some(limit) = self.limit else { return true };
        self.left = if came > 0 { limit } else { self.left.saturating_sub(waited) };
        !self.left.is_zero()
    }
}

async fn print(
    reading: &GroupReading<'_>,
    args: &ConsumeArgs,
    as_json: bool,
    signals: &mut Signals,
) -> Result<()> {
    let mut left = args.how.max.unwrap_or(u64::MAX);
    let mut patience = Patience::new(&args.how);
    while left > 0 {
        let wait = patience.next_wait();
        let (fetched, is_last) = signals.finish(reading.fetch(left, wait)).await;
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

async fn print_and_ack(reading: &GroupReading<'_>, deliveries: Vec<Delivered>, as_json: bool) -> Result<()> {
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

pub(super) fn failure(delivery: String, reason: String, after_ms: Option<u64>) -> Failure {
    Failure { delivery, reason: Some(reason), after_ms }
}
