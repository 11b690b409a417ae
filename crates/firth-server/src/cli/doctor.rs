//! `firth doctor`: checks what a command needs, one after the other, and says what to do about what fails.
//!
//! The last check sends a message through a topic of its own, which it deletes again: it proves permissions end to end.

use super::output::{json, line};
use crate::client::{Client, topic_path};
use crate::wire::{
    About, Fetch, Fetched, Outgoing, Receipts, Settle, SettledReport, Topic, TopicSpec, Topics, unix_ms,
};
use axum::http::Method;
use firth::{Error, ErrorKind, Result};
use serde::Serialize;
use std::time::SystemTime;

/// Clocks that differ by more than this make delayed messages early or late.
const MAX_SKEW_MS: u64 = 2000;

#[derive(Serialize)]
struct Finding {
    check: &'static str,
    ok: bool,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'static str>,
}

/// Runs every check; fails with the first that failed.
pub(crate) async fn run(opened: Result<Client>, as_json: bool) -> Result<()> {
    let mut failure = None;
    let mut note = |check, outcome: Result<String>| {
        let finding = match outcome {
            Ok(detail) => Finding { check, ok: true, detail, advice: None },
            Err(error) => {
                let advice = Some(advice(error.kind()));
                let detail = with_causes(&error);
                failure.get_or_insert(error);
                Finding { check, ok: false, detail, advice }
            }
        };
        show(&finding, as_json)
    };
    match opened {
        Err(error) => note("engine", Err(error))?,
        Ok(client) => {
            let about = client.get::<About>("/v1").await;
            let is_there = about.is_ok();
            let clock = about.as_ref().map(|about| about.time_ms).unwrap_or_default();
            note("version", about.and_then(|about| same_version(&about.version)))?;
            if is_there {
                note("clock", same_clock(clock))?;
                note("engine", engine(&client).await)?;
                note("permissions", round_trip(&client).await)?;
            }
            client.close().await?;
        }
    }
    failure.map_or(Ok(()), Err)
}

fn show(finding: &Finding, as_json: bool) -> Result<()> {
    if as_json {
        return json(finding);
    }
    let mark = if finding.ok { "ok  " } else { "FAIL" };
    line(&format!("{mark}  {:<12} {}", finding.check, finding.detail))?;
    finding.advice.map_or(Ok(()), |advice| line(&format!("{:19}-> {advice}", "")))
}

fn with_causes(error: &Error) -> String {
    let (mut text, mut source) = (error.to_string(), std::error::Error::source(error));
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// What a person can do about it.
fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unauthorized => {
            "set FIRTH_TOKEN to a token of the server, or give the engine's user the rights it names"
        }
        ErrorKind::Unavailable | ErrorKind::Closed => {
            "start the server or the engine, check the address, the disk, and that no other process has the directory open"
        }
        ErrorKind::Timeout | ErrorKind::Overloaded => "look at the load of the server and of its engine",
        ErrorKind::Unsupported => "use a server and an engine of matching versions",
        ErrorKind::Invalid => "change the argument that it names",
        _ => "look at the server's log",
    }
}

fn same_version(theirs: &str) -> Result<String> {
    let ours = env!("CARGO_PKG_VERSION");
    if theirs == ours {
        return Ok(format!("firth {ours}"));
    }
    let context = format!("this program is firth {ours}, the server is firth {theirs}");
    Err(Error::new(ErrorKind::Unsupported, context))
}

fn same_clock(theirs: u64) -> Result<String> {
    let skew = unix_ms(SystemTime::now()).abs_diff(theirs);
    if skew <= MAX_SKEW_MS {
        return Ok("agrees with the server".to_owned());
    }
    let context = format!("it differs from the server's by {skew} ms: synchronise both");
    Err(Error::new(ErrorKind::Invalid, context))
}

async fn engine(client: &Client) -> Result<String> {
    let all: Topics = client.get("/v1/topics").await?;
    Ok(format!("answers, {} topics", all.topics.len()))
}

async fn round_trip(client: &Client) -> Result<String> {
    let path = topic_path(&format!("firth-doctor-{:016x}", fastrand::u64(..)));
    let spec = TopicSpec { partitions: Some(1), ..TopicSpec::default() };
    client.send::<Topic>(Method::PUT, &path, &spec).await?;
    let carried = carry(client, &path).await;
    let deleted = client.delete(&path).await;
    carried?;
    deleted?;
    Ok("a message was sent, fetched, settled and removed".to_owned())
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
        assert!(same_clock(now - 60_000).unwrap_err().context().contains("60"));
        assert!(same_clock(now + 60_000).is_err());
    }

    #[test]
    fn another_version_is_refused() {
        assert!(same_version(env!("CARGO_PKG_VERSION")).is_ok());
        assert_eq!(same_version("99.0.0").unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
