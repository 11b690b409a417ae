//! `firth doctor`: checks what a command needs, one after the other, and says what to do about what
//! fails.
//!
//! The last check sends a message through a topic of its own, which it deletes again: it proves
//! permissions end to end.

use super::failure::{hint, with_causes};
use super::live;
use super::output::{json, line};
use super::target::ApiTarget;
use super::units;
use crate::client::{Client, topic_path};
use crate::config::{self, Config};
use crate::serve::ServeArgs;
use crate::wire::{
    About, EngineNodeState, EngineRole, EngineShown, Fetch, Fetched, Outgoing, Receipts, Settle,
    SettledReport, Topic, TopicSpec, Topics, unix_ms,
};
use axum::http::Method;
use firth::{Durability, Engine, Error, ErrorKind, Result};
use serde::Serialize;
use std::time::SystemTime;

/// Clocks that differ by more than this make delayed messages early or late.
const MAX_SKEW_MS: u64 = 2000;
/// Fewer open files than this and a busy server runs out of them.
const OPEN_FILES: u64 = 4096;
/// Less free space than this and an engine on files soon stops.
const FREE_BYTES: u64 = 512 << 20;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth doctor
  firth doctor --ready && echo it serves
  firth doctor --engine redis+cluster://10.0.0.1 --json";

#[derive(Serialize)]
struct Finding {
    check: &'static str,
    ok: bool,
    /// The check passes, but an operator should follow the advice.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    warning: bool,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// What a check found out.
enum Outcome {
    Good(String),
    /// What is there, and what to do.
    Doubtful(String, String),
}

type Checked = Result<Outcome>;

/// Collects findings as they come, and the first failure.
struct Report {
    as_json: bool,
    failure: Option<Error>,
}

impl Report {
    fn note(&mut self, check: &'static str, outcome: Checked) -> Result<()> {
        let finding = match outcome {
            Ok(Outcome::Good(detail)) => Finding { check, ok: true, warning: false, detail, advice: None },
            Ok(Outcome::Doubtful(detail, advice)) => {
                Finding { check, ok: true, warning: true, detail, advice: Some(advice) }
            }
            Err(error) => {
                let detail = with_causes(&error);
                let advice = Some(hint(error.kind()).to_owned());
                self.failure.get_or_insert(error);
                Finding { check, ok: false, warning: false, detail, advice }
            }
        };
        show(&finding, self.as_json)
    }
}

/// Runs every check; fails with the first that failed.
pub(crate) async fn run(target: &ApiTarget, as_json: bool) -> Result<()> {
    let mut report = Report { as_json, failure: None };
    report.note("configuration", configuration(target))?;
    report.note("open files", open_files())?;
    if let Some(dir) = target.directory() {
        report.note("disk", disk(dir))?;
    }
    if let Some(engine) = target.engine().filter(|engine| live::is_redis(engine)) {
        report.note("redis", redis(engine).await)?;
    }
    match target.open().await {
        Err(error) => report.note("engine", Err(error))?,
        Ok(client) => {
            let about = client.get::<About>("/v1").await;
            let clock = about.as_ref().ok().map(|about| about.time_ms);
            report.note("version", about.and_then(|about| same_version(&about.version)))?;
            if let Some(clock) = clock {
                report.note("clock", same_clock(clock))?;
                report.note("engine", engine(&client).await)?;
                report.note("servers", servers(&client).await)?;
                report.note("permissions", round_trip(&client).await)?;
            }
            client.close().await?;
        }
    }
    report.failure.map_or(Ok(()), Err)
}

fn show(finding: &Finding, as_json: bool) -> Result<()> {
    if as_json {
        return json(finding);
    }
    let mark = match (finding.ok, finding.warning) {
        (true, false) => "ok  ",
        (true, true) => "WARN",
        _ => "FAIL",
    };
    line(&format!("{mark}  {:<14} {}", finding.check, finding.detail))?;
    finding.advice.as_ref().map_or(Ok(()), |advice| line(&format!("{:21}-> {advice}", "")))
}

fn configuration(target: &ApiTarget) -> Checked {
    let known: Vec<_> = config::variables().collect();
    let strange = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let strange: Vec<_> =
        strange.filter(|name| name.starts_with("FIRTH_") && !known.contains(&name.as_str())).collect();
    // What `firth serve` would run with here: the file, the variables, the defaults.
    Config::load(&ServeArgs::default().given()?)?;
    let detail = target.describe();
    if strange.is_empty() {
        return Ok(Outcome::Good(detail));
    }
    let advice = format!("nothing reads {}: there are {}", strange.join(" "), known.join(" "));
    Ok(Outcome::Doubtful(detail, advice))
}

/// The limit of this process, which a server started from here inherits.
fn open_files() -> Checked {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = soft.and_then(|rest| rest.split_whitespace().next()).map(str::to_owned);
    Ok(match soft.as_deref().map(str::parse::<u64>) {
        None => Outcome::Good("this system does not tell".to_owned()),
        Some(Ok(limit)) if limit < OPEN_FILES => Outcome::Doubtful(
            format!("{limit}"),
            format!(
                "a server takes one per connection: raise it with `ulimit -n {OPEN_FILES}` or LimitNOFILE="
            ),
        ),
        Some(limit) => Outcome::Good(limit.map_or("unlimited".to_owned(), units::count)),
    })
}

fn disk(dir: &std::path::Path) -> Checked {
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(std::path::Path::new("."));
    let there = if there.as_os_str().is_empty() { std::path::Path::new(".") } else { there };
    let figures = rustix::fs::statvfs(there).map_err(|error| {
        let context = format!("{} cannot be looked at", there.display());
        Error::new(ErrorKind::Unavailable, context).with_source(error)
    })?;
    let free = figures.f_bavail.saturating_mul(figures.f_frsize);
    let detail = format!("{} MiB free for {}", units::count(free >> 20), dir.display());
    Ok(if free < FREE_BYTES {
        Outcome::Doubtful(detail, "free some space: without it nothing more is stored".to_owned())
    } else {
        Outcome::Good(detail)
    })
}

/// What the server is, and whether what it acknowledges survives its restart.
async fn redis(engine: &str) -> Checked {
    let client = live::connect(engine).await?;
    let version = client.server().map_or("a server".to_owned(), |it| format!("{} {}", it.server, it.version));
    let nodes = client.nodes().len();
    let info = client.call::<String>(firth_redis::cmd("INFO").arg("persistence")).await;
    client.close().await;
    let detail = format!("{version}, {nodes} nodes known{}", promises(engine).await);
    Ok(match info {
        Err(_) => Outcome::Doubtful(
            detail,
            "the user may not call INFO, so persistence was not checked: permit +info".to_owned(),
        ),
        Ok(info) if info.lines().any(|line| line.trim() == "aof_enabled:1") => {
            Outcome::Good(format!("{detail}, append-only file on"))
        }
        Ok(_) => Outcome::Doubtful(
            format!("{detail}, append-only file off"),
            "a master that restarts before its failover loses everything: set `appendonly yes`".to_owned(),
        ),
    })
}

/// What acknowledgements can mean on this server, and what hinders the others. Empty if the engine
/// does not open: the next check says why.
async fn promises(url: &str) -> String {
    let Ok(engine) = Engine::at(url).await else { return String::new() };
    let mut found = vec![", can promise fast".to_owned()];
    for durability in [Durability::Replicated(1), Durability::Synced] {
        found.push(match engine.can_promise(durability).await {
            Ok(()) => durability.to_string(),
            Err(error) => format!("not {durability} ({})", error.context()),
        });
    }
    // Closing an engine that was only asked leaves nothing undone.
    let _ = engine.close().await;
    found.join(", ")
}

fn same_version(theirs: &str) -> Checked {
    let ours = env!("CARGO_PKG_VERSION");
    if theirs == ours {
        return Ok(Outcome::Good(format!("firth {ours}")));
    }
    let context = format!("this program is firth {ours}, the server is firth {theirs}");
    Err(Error::new(ErrorKind::Unsupported, context))
}

fn same_clock(theirs: u64) -> Checked {
    let skew = unix_ms(SystemTime::now()).abs_diff(theirs);
    if skew <= MAX_SKEW_MS {
        return Ok(Outcome::Good("agrees with the server".to_owned()));
    }
    let context = format!("it differs from the server's by {skew} ms: synchronise both");
    Err(Error::new(ErrorKind::Invalid, context))
}

async fn engine(client: &Client) -> Checked {
    client.ready().await?;
    let all: Topics = client.get("/v1/topics").await?;
    Ok(Outcome::Good(format!("answers, {} topics", all.topics.len())))
}

/// What the engine runs on.
async fn servers(client: &Client) -> Checked {
    let shown = match client.get::<EngineShown>("/v1/engine").await {
        Err(error) if error.kind() == ErrorKind::Unauthorized => {
            let advice = "give a token with the scope observe for all topics".to_owned();
            return Ok(Outcome::Doubtful("this token may not see them".to_owned(), advice));
        }
        shown => shown?,
    };
    let of = |bytes: u64| format!("{} MiB", units::count(bytes >> 20));
    if shown.nodes.is_empty() {
        let free = shown.disk_free.map(|free| format!(", {} free on its disk", of(free)));
        return Ok(Outcome::Good(format!("{}, no other servers{}", shown.place, free.unwrap_or_default())));
    }
    let names = shown.nodes.iter().map(|node| {
        let role = if node.role == EngineRole::Master { "master" } else { "replica" };
        let state = match node.state {
            EngineNodeState::Online => "",
            EngineNodeState::Syncing => " is syncing",
            EngineNodeState::Away => " is away",
        };
        let version = node.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        let memory = node.memory.map(|bytes| format!(" {} in use", of(bytes))).unwrap_or_default();
        format!("{role} {}{version}{memory}{state}", node.address)
    });
    let detail = names.collect::<Vec<_>>().join("; ");
    match shown.nodes.iter().all(|node| node.state == EngineNodeState::Online) {
        true => Ok(Outcome::Good(detail)),
        false => {
            let advice = "look at the server that is away or syncing: without it a failure may lose data";
            Ok(Outcome::Doubtful(detail, advice.to_owned()))
        }
    }
}

async fn round_trip(client: &Client) -> Checked {
    let path = topic_path(&format!("firth-doctor-{:016x}", fastrand::u64(..)));
    let spec = TopicSpec { partitions: Some(1), ..TopicSpec::default() };
    client.send::<Topic>(Method::PUT, &path, &spec).await?;
    let carried = carry(client, &path).await;
    let deleted = client.delete(&path).await;
    carried?;
    deleted?;
    Ok(Outcome::Good("a message was sent, fetched, settled and removed".to_owned()))
}

async fn carry(client: &Client, path: &str) -> Result<()> {
    let message = Outgoing { payload: Some("how are you?".to_owned()), ..Outgoing::default() };
    client.send::<Receipts>(Method::POST, &format!("{path}/records"), &message).await?;
    let how = Fetch { wait_ms: Some(10_000), ..Fetch::default() };
    let fetched: Fetched = client.send(Method::POST, &format!("{path}/groups/doctor/fetch"), &how).await?;
    let ack: Vec<_> = fetched.deliveries.into_iter().map(|delivered| delivered.delivery).collect();
    if ack.is_empty() {
        return Err(Error::new(ErrorKind::Timeout, "a message that was sent did not come within 10 s"));
    }
    let verdicts = Settle { ack, ..Settle::default() };
    let report: SettledReport =
        client.send(Method::POST, &format!("{path}/groups/doctor/settle"), &verdicts).await?;
    match report.failed.into_iter().next() {
        None => Ok(()),
        Some(failed) => Err(Error::new(ErrorKind::Fenced, failed.detail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_differs_is_told_by_how_much() {
        let now = unix_ms(SystemTime::now());
        assert!(same_clock(now).is_ok());
        let error = same_clock(now - 60_000).err().unwrap();
        assert!(error.context().contains("60"));
        assert!(same_clock(now + 60_000).is_err());
    }

    #[test]
    fn another_version_is_refused() {
        assert!(same_version(env!("CARGO_PKG_VERSION")).is_ok());
        assert_eq!(same_version("99.0.0").err().unwrap().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_measured_where_it_would_be() {
        assert!(disk(std::path::Path::new("./not/there/yet")).is_ok());
    }
}
