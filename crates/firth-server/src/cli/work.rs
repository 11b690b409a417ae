//! `firth claims work`: a worker that runs a command per claim and holds the claim while it runs.
//!
//! The command ends with the claim: when it is recalled the command is asked to stop (SIGTERM),
//! when it is lost, or when the server was not heard of for so long that others may have it, it is
//! killed with all its children. So no two workers ever run the command for one unit at a time.

use super::claims::path;
use super::guard;
use super::output::{json, note};
use super::shell::{self, RunningCommand};
use super::signals::Signals;
use super::units;
use crate::client::{Client, escape};
use crate::wire::{
    ClaimsSettled, Joined, Poll, Polled, RestClaim, SettleClaims, WorkNews, WorkState, WorkerJoin, invalid,
};
use axum::http::Method;
use clap::Args;
use firth::{Error, ErrorKind, Result};
use rustix::process::Signal;
use std::collections::HashMap;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth claims work calls --exec 'handle-call \"$FIRTH_CLAIM\"'
  firth claims work feeds --exec ./follow-feed --jobs 8 --worker \"$HOSTNAME\"

Exit code 0 of the command finishes the unit; any other gives it back, to rest for --rest.";

/// How long to wait before asking a server again that did not answer.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(crate) struct WorkArgs {
    /// The service
    service: String,
    /// Runs in a shell for each claim: payload on its input, FIRTH_CLAIM and more in its
    /// environment
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// A lasting name of its own for this worker; FIRTH_WORKER, POD_NAME or POD_IP unless given,
    /// else made up
    #[arg(long, alias = "name", value_name = "NAME")]
    worker: Option<String>,
    /// How many claims it takes at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    jobs: u64,
    /// How long after it dies or hangs others take over
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = units::duration)]
    ttl: Duration,
    /// How long a unit rests whose command failed
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = units::duration)]
    rest: Duration,
    /// How long a command may take to stop when its claim is recalled
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = units::duration)]
    handover: Duration,
    /// End after this many units
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// End when nothing was there to do for this long
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    idle: Option<Duration>,
}

pub(crate) async fn run(client: &Client, args: WorkArgs, as_json: bool) -> Result<()> {
    let name = match &args.worker {
        Some(name) => name.clone(),
        None => {
            firth::claims::worker_id_from_env().unwrap_or_else(|_| format!("cli-{:08x}", fastrand::u32(..)))
        }
    };
    let place = format!("{}/workers/{}", path(&args.service), escape(&name));
    let mut run = WorkRun {
        client,
        args: &args,
        name,
        place,
        session: String::new(),
        after: 0,
        as_json,
        valid_until: Instant::now(),
    };
    run.join().await?;
    let mut signals = Signals::listen()?;
    guard::start();
    let worked = run.work(&mut signals).await;
    let left = run.leave().await;
    worked.and(left)
}

/// A worker at work.
struct WorkRun<'a> {
    client: &'a Client,
    args: &'a WorkArgs,
    name: String,
    place: String,
    session: String,
    /// The last place that was acted on.
    after: u64,
    as_json: bool,
    /// Until when the claims are surely ours.
    valid_until: Instant,
}

/// The commands that run, by the handles of their claims.
#[derive(Default)]
struct Jobs {
    running: JoinSet<(WorkNews, Outcome)>,
    brakes: HashMap<String, Brake>,
}

#[derive(Clone)]
struct Brake {
    /// Ask it to stop.
    stop: CancellationToken,
    /// Kill it.
    kill: CancellationToken,
}

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed(String),
    /// It was stopped, because the claim was wanted back.
    Stopped,
    /// It was killed, because the claim was lost.
    Killed,
}

impl Jobs {
    /// The claims are not ours any more, or may not be.
    fn kill_all(&mut self) {
        for (_, brake) in self.brakes.drain() {
            brake.kill.cancel();
        }
    }
}

impl WorkRun<'_> {
    async fn join(&mut self) -> Result<()> {
        let request = WorkerJoin {
            ttl_ms: Some(units::millis(self.args.ttl)),
            max_claims: Some(self.args.jobs),
            by_name_only: false,
            handover_ms: Some(units::millis(self.args.handover)),
        };
        let asked = Instant::now();
        let joined: Joined = self.client.send(Method::PUT, &self.place, &request).await?;
        (self.session, self.after) = (joined.session, 0);
        self.valid_until = asked + Duration::from_millis(joined.valid_ms);
        Ok(())
    }

    async fn leave(&self) -> Result<()> {
        match self.client.delete(&format!("{}?session={}", self.place, escape(&self.session))).await {
            // It is over already.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            left => left,
        }
    }

    async fn work(&mut self, signals: &mut Signals) -> Result<()> {
        let mut jobs = Jobs::default();
        let mut left = self.args.max.unwrap_or(u64::MAX);
        let mut busy = Instant::now();
        let mut is_stopping = false;
        loop {
            if !jobs.brakes.is_empty() {
                busy = Instant::now();
            } else if is_stopping || left == 0 || self.args.idle.is_some_and(|idle| busy.elapsed() >= idle) {
                return Ok(());
            }
            let valid = self.valid_until;
            tokio::select! {
                biased;
                () = signals.next(), if !is_stopping => {
                    is_stopping = true;
                    jobs.brakes.values().for_each(|brake| brake.stop.cancel());
                }
                Some(ended) = jobs.running.join_next() => {
                    let is_done = self.conclude(&mut jobs, ended).await?;
                    left = left.saturating_sub(u64::from(is_done));
                }
                () = tokio::time::sleep_until(valid), if !jobs.brakes.is_empty() => {
                    note("the server was not heard of in time: others may have the claims, commands are killed");
                    jobs.kill_all();
                    // No session of this name is ours: the next poll joins again.
                    self.session.clear();
                }
                news = self.poll() => self.take_in(&mut jobs, news, is_stopping || left == 0).await?,
            }
        }
    }

    /// What is new. Dropping it loses nothing: the next poll tells it again.
    async fn poll(&self) -> Result<(Instant, Option<Polled>)> {
        let wait = (self.args.ttl / 3).min(Duration::from_secs(5));
        let wait = self.args.idle.map_or(wait, |idle| wait.min(idle));
        let poll = Poll {
            session: self.session.clone(),
            after: self.after,
            max: None,
            wait_ms: Some(units::millis(wait)),
        };
        let asked = Instant::now();
        match self.client.send(Method::POST, &format!("{}/poll", self.place), &poll).await {
            Err(error) if error.is_retryable() => {
                note(&format!("waiting: {error}"));
                tokio::time::sleep(PAUSE).await;
                Ok((asked, None))
            }
            polled => Ok((asked, Some(polled?))),
        }
    }

    async fn take_in(
        &mut self,
        jobs: &mut Jobs,
        news: Result<(Instant, Option<Polled>)>,
        is_stopping: bool,
    ) -> Result<()> {
        let (asked, polled) = match news {
            Ok(news) => news,
            // The session is over: so are its claims.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                note(&format!("joining again: {error}"));
                jobs.kill_all();
                return match self.join().await {
                    Err(error) if error.is_retryable() => {
                        note(&format!("waiting: {error}"));
                        Ok(())
                    }
                    joined => joined,
                };
            }
            Err(error) => return Err(error),
        };
        let Some(polled) = polled else { return Ok(()) };
        self.valid_until = asked + Duration::from_millis(polled.valid_ms);
        for news in polled.news {
            self.after = self.after.max(news.place);
            let Some(handle) = news.claim.clone() else { continue };
            let brake = jobs.brakes.get(&handle).cloned();
            match (news.event, brake) {
                (WorkState::Granted, None) if !is_stopping => self.start(jobs, handle, news),
                (WorkState::Granted | WorkState::Recalled, None) => {
                    self.give_back(&handle, Duration::ZERO).await?;
                }
                (WorkState::Recalled, Some(brake)) => brake.stop.cancel(),
                (WorkState::Lost, Some(brake)) => brake.kill.cancel(),
                _ => {}
            }
        }
        Ok(())
    }

    fn start(&self, jobs: &mut Jobs, handle: String, news: WorkNews) {
        let brake = Brake { stop: CancellationToken::new(), kill: CancellationToken::new() };
        jobs.brakes.insert(handle, brake.clone());
        let command = command(&self.args.exec, &self.args.service, &self.name, &news);
        jobs.running.spawn(async move {
            let outcome = execute(command, news.payload(), &brake).await;
            (news, outcome)
        });
    }

    /// Settles what a command has ended; whether its unit is done.
    async fn conclude(
        &self,
        jobs: &mut Jobs,
        ended: Result<(WorkNews, Outcome), tokio::task::JoinError>,
    ) -> Result<bool> {
        let (news, outcome) = ended
            .map_err(|error| Error::new(ErrorKind::Internal, "a command was lost").with_source(error))?;
        let handle = news.claim.clone().unwrap_or_default();
        let was_ours = jobs.brakes.remove(&handle).is_some();
        let why = match &outcome {
            Outcome::Failed(why) => Some(why.clone()),
            _ => None,
        };
        let told = match outcome {
            Outcome::Done if was_ours => {
                self.settle(&SettleClaims {
                    session: self.session.clone(),
                    done: vec![handle],
                    ..SettleClaims::default()
                })
                .await?;
                "done"
            }
            Outcome::Failed(_) if was_ours => {
                self.give_back(&handle, self.args.rest).await?;
                "failed"
            }
            Outcome::Stopped if was_ours => {
                self.give_back(&handle, Duration::ZERO).await?;
                "released"
            }
            _ => "lost",
        };
        if self.as_json {
            json(
                &serde_json::json!({ "name": news.name, "epoch": news.epoch, "outcome": told, "why": why }),
            )?;
        } else if told != "done" {
            note(&format!(
                "{told} {} epoch {}{}",
                news.name,
                news.epoch,
                why.map_or(String::new(), |why| format!(": {why}"))
            ));
        }
        Ok(told == "done")
    }

    async fn give_back(&self, handle: &str, rest: Duration) -> Result<()> {
        let release = vec![RestClaim { claim: handle.to_owned(), rest_ms: Some(units::millis(rest)) }];
        self.settle(&SettleClaims { session: self.session.clone(), release, ..SettleClaims::default() }).await
    }

    /// A verdict that comes too late is told, and no reason to stop.
    async fn settle(&self, verdicts: &SettleClaims) -> Result<()> {
        let place = format!("{}/settle", self.place);
        let settling = self.client.send::<ClaimsSettled>(Method::POST, &place, verdicts);
        // Commands that still run must not outlive their claims because this one takes long.
        let Ok(settled) = tokio::time::timeout_at(self.valid_until, settling).await else {
            note("not settled: the server does not answer");
            return Ok(());
        };
        match settled {
            Ok(settled) => {
                settled.failed.iter().for_each(|failed| note(&format!("not settled: {}", failed.detail)));
                Ok(())
            }
            Err(error) if error.is_retryable() || error.kind() == ErrorKind::NotFound => {
                note(&format!("not settled: {error}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn command(text: &str, service: &str, worker: &str, news: &WorkNews) -> Command {
    let mut command = shell::command(text);
    command.env("FIRTH_SERVICE", service).env("FIRTH_CLAIM", &news.name).env("FIRTH_WORKER", worker);
    command
        .env("FIRTH_EPOCH", news.epoch.to_string())
        .env("FIRTH_TAKEOVER", if news.takeover { "1" } else { "0" });
    let texts = [
        ("FIRTH_LAST_OWNER", &news.last_owner),
        ("FIRTH_CHECKPOINT", &news.checkpoint),
        ("FIRTH_CHECKPOINT_BASE64", &news.checkpoint_base64),
    ];
    for (name, text) in texts {
        // No environment can hold a zero byte.
        if let Some(text) = text.as_ref().filter(|text| !text.contains('\0')) {
            command.env(name, text);
        }
    }
    command
}

async fn execute(command: Command, input: Vec<u8>, brake: &Brake) -> Outcome {
    let mut running = match RunningCommand::start(command, input) {
        Ok(running) => running,
        Err(error) => return Outcome::Failed(format!("the command could not run: {error}")),
    };
    let mut is_stopping = false;
    loop {
        let ended = tokio::select! {
            biased;
            () = brake.kill.cancelled() => return Outcome::Killed,
            () = brake.stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                running.signal(Signal::TERM);
                continue;
            }
            ended = running.wait() => ended,
        };
        // Dropping it kills what the command left behind.
        return judge(&running, ended, is_stopping);
    }
}

fn judge(running: &RunningCommand, ended: std::io::Result<ExitStatus>, is_stopping: bool) -> Outcome {
    match ended {
        Ok(status) if status.success() => Outcome::Done,
        _ if is_stopping => Outcome::Stopped,
        Ok(status) => Outcome::Failed(match status.code() {
            Some(code) => running.reason(&format!("the command ended with {code}")),
            None => running.reason("the command was killed"),
        }),
        Err(error) => Outcome::Failed(invalid("the command was lost").with_source(error).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ran(shell: &str, prepare: impl FnOnce(&Brake)) -> Outcome {
        let mut news = WorkNews::new(1, WorkState::Granted);
        (news.name, news.epoch, news.checkpoint) = ("unit".to_owned(), 7, Some("half".to_owned()));
        let brake = Brake { stop: CancellationToken::new(), kill: CancellationToken::new() };
        prepare(&brake);
        execute(command(shell, "service", "worker", &news), b"payload".to_vec(), &brake).await
    }

    #[tokio::test]
    async fn the_exit_code_says_whether_the_unit_is_done() {
        assert_eq!(ran("exit 0", |_| {}).await, Outcome::Done);
        assert_eq!(ran("exit 3", |_| {}).await, Outcome::Failed("the command ended with 3".to_owned()));
        let test = "test \"$(cat) $FIRTH_SERVICE $FIRTH_CLAIM $FIRTH_EPOCH $FIRTH_WORKER $FIRTH_CHECKPOINT $FIRTH_TAKEOVER\" = 'payload service unit 7 worker half 0'";
        assert_eq!(ran(test, |_| {}).await, Outcome::Done);
    }

    #[tokio::test]
    async fn a_command_stops_when_asked_and_dies_when_it_must_with_its_children() {
        assert_eq!(ran("sleep 600 & wait", |brake| brake.stop.cancel()).await, Outcome::Stopped);
        assert_eq!(ran("trap '' TERM; sleep 600 & wait", |brake| brake.kill.cancel()).await, Outcome::Killed);
        let polite = "trap 'exit 0' TERM; sleep 600 & wait";
        let outcome = ran(polite, |brake| brake.stop.cancel()).await;
        // It may have been asked before it could listen.
        assert!(matches!(outcome, Outcome::Done | Outcome::Stopped), "{outcome:?}");
    }
}
