//! One record handled by a command: payload on its input, fields in its environment, verdict by its
//! exit code.

use super::shell::{self, RunningCommand};
use crate::wire::{Shown, Values};
use std::process::ExitStatus;
use std::time::Duration;

/// The exit code that gives a record up at once: `EX_DATAERR`, the input is wrong.
const REJECT: i32 = 65;
/// What a shell answers for a command that it may not run, and for one that it does not find.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Outcome of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Exit code 0.
    Ack,
    /// Any other end: try again.
    Nack(String),
    /// Exit code 65.
    Reject(String),
    /// The command never ran: no record can be handled, and no attempt may be counted.
    Broken(String),
}

/// Runs the command to its end, or until the record's lease is nearly over: then it is killed and
/// has failed.
pub(crate) async fn run(command: &str, group: &str, record: &Shown, lease: Duration) -> Verdict {
    let limit = lease.mul_f32(0.9);
    tokio::time::timeout(limit, run_for_long(command, group, record)).await.unwrap_or_else(|_| {
        Verdict::Nack(format!("the command took longer than {limit:?} and was killed: see --lease"))
    })
}

/// Runs the command to its end, however long it takes. Dropping the future kills the command.
pub(crate) async fn run_for_long(command: &str, group: &str, record: &Shown) -> Verdict {
    let mut shell = shell::command(command);
    shell.env("FIRTH_GROUP", group).envs(fields(record));
    let ended = async {
        let mut running = RunningCommand::start(shell, record.bytes().to_vec())?;
        let status = running.wait().await?;
        let verdict = judge(&running, status);
        running.let_go();
        Ok(verdict)
    };
    let unable = |error: std::io::Error| Verdict::Broken(format!("the command could not run: {error}"));
    ended.await.unwrap_or_else(unable)
}

fn judge(running: &RunningCommand, status: ExitStatus) -> Verdict {
    match status.code() {
        Some(0) => Verdict::Ack,
        Some(REJECT) => Verdict::Reject(running.reason(&format!("the command ended with {REJECT}"))),
        Some(code @ (NOT_EXECUTABLE | NOT_FOUND)) => {
            Verdict::Broken(running.reason(&format!("the command could not run (exit code {code})")))
        }
        Some(code) => Verdict::Nack(running.reason(&format!("the command ended with {code}"))),
        None => Verdict::Nack(running.reason("the command was killed")),
    }
}

/// The environment of a record; values that no environment can hold are left out.
fn fields(record: &Shown) -> Vec<(String, String)> {
    let mut all = vec![
        ("FIRTH_TOPIC".to_owned(), record.topic.clone()),
        ("FIRTH_PARTITION".to_owned(), record.partition.to_string()),
        ("FIRTH_ID".to_owned(), record.id.clone()),
        ("FIRTH_ATTEMPT".to_owned(), record.attempt.to_string()),
        ("FIRTH_SENT_MS".to_owned(), record.sent_ms.to_string()),
    ];
    all.extend(record.key.clone().map(|key| ("FIRTH_KEY".to_owned(), key)));
    all.extend(record.key_base64.clone().map(|key| ("FIRTH_KEY_BASE64".to_owned(), key)));
    for (name, values) in &record.headers {
        let value = match values {
            Values::One(value) => value.clone(),
            Values::Many(values) => values.join(","),
        };
        all.push((format!("FIRTH_HEADER_{}", variable(name)), value));
    }
    all.retain(|(_, value)| !value.contains('\0'));
    all
}

/// `content-type` as `CONTENT_TYPE`.
fn variable(name: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(upper).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(payload: &str) -> Shown {
        serde_json::from_value(serde_json::json!({
            "topic": "t", "partition": 1, "id": "5-1", "attempt": 2, "sent_ms": 7, "key": "ada",
            "payload": payload, "headers": { "x-color": ["red", "blue"] },
        }))
        .unwrap()
    }

    async fn judged(command: &str) -> Verdict {
        run(command, "g", &record("hello"), Duration::from_secs(60)).await
    }

    #[tokio::test]
    async fn the_exit_code_is_the_verdict() {
        assert_eq!(judged("exit 0").await, Verdict::Ack);
        assert_eq!(judged("exit 65").await, Verdict::Reject("the command ended with 65".to_owned()));
        assert_eq!(judged("exit 3").await, Verdict::Nack("the command ended with 3".to_owned()));
        assert_eq!(judged("kill -9 $$").await, Verdict::Nack("the command was killed".to_owned()));
    }

    #[tokio::test]
    async fn u14_the_reason_holds_the_last_lines_of_the_errors() {
        let told = judged("echo first >&2; echo 'no such customer' >&2; exit 3").await;
        assert_eq!(told, Verdict::Nack("the command ended with 3: first\nno such customer".to_owned()));
        let long = judged("seq 1 100000 >&2; exit 65").await;
        assert!(
            matches!(&long, Verdict::Reject(why) if why.len() < 1024 && why.ends_with("\n100000")),
            "{long:?}"
        );
    }

    #[tokio::test]
    async fn u13_a_command_that_cannot_run_is_no_verdict_on_the_record() {
        for command in ["/no/such/command", "exec /dev/null"] {
            assert!(matches!(judged(command).await, Verdict::Broken(_)), "{command}");
        }
    }

    #[tokio::test]
    async fn payload_and_fields_reach_the_command() {
        let test = "test \"$(cat)\" = hello && test \"$FIRTH_KEY $FIRTH_GROUP $FIRTH_PARTITION $FIRTH_ID $FIRTH_ATTEMPT\" = 'ada g 1 5-1 2' && test \"$FIRTH_HEADER_X_COLOR\" = red,blue";
        assert_eq!(judged(test).await, Verdict::Ack);
    }

    #[tokio::test]
    async fn a_command_that_outlives_its_lease_is_killed_and_has_failed() {
        let verdict = run("exec sleep 600", "g", &record(""), Duration::from_millis(200)).await;
        assert!(matches!(&verdict, Verdict::Nack(why) if why.contains("--lease")), "{verdict:?}");
    }
}
