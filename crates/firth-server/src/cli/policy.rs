//! `firth group policy`: how failed records of a group are tried again.

use super::output::{json, line, table};
use super::units;
use crate::client::{Client, group_path};
use crate::wire::{GroupPolicy, KeyOrder};
use axum::http::Method;
use clap::{Args, ValueEnum};
use firth::Result;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct PolicyArgs {
    /// The topic
    topic: String,
    /// The group
    group: String,
    /// Attempts in all before a record is a dead letter
    #[arg(
        long = "max-attempts",
        alias = "attempts",
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    attempts: Option<u64>,
    /// How long to wait before the second attempt
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    backoff: Option<Duration>,
    /// No wait is longer than this
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    max_backoff: Option<Duration>,
    /// Each wait is this many times the one before
    #[arg(long, value_name = "X")]
    factor: Option<f64>,
    /// Each wait is changed by up to this share, up or down
    #[arg(long, value_name = "SHARE")]
    jitter: Option<f64>,
    /// How many servers may vanish with a record in hand before it is given up
    #[arg(
        long = "max-crashes",
        alias = "crashes",
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    crashes: Option<u64>,
    /// Whether later records of a key wait for one that is tried again
    #[arg(long, value_enum)]
    ordering: Option<OrderingArg>,
    /// Go back to the defaults
    #[arg(long, conflicts_with_all = ["attempts", "backoff", "max_backoff", "factor", "jitter", "crashes", "ordering"])]
    reset: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum OrderingArg {
    /// They wait until it is done or given up
    Strict,
    /// They go on, and it comes later
    Relaxed,
}

/// What is named changes, the rest stays as it is.
pub(crate) async fn run(client: &Client, args: PolicyArgs, as_json: bool) -> Result<()> {
    let path = format!("{}/policy", group_path(&args.topic, &args.group));
    if args.reset {
        client.delete(&path).await?;
        return if as_json {
            Ok(())
        } else {
            line(&format!("{} of {} has the defaults", args.group, args.topic))
        };
    }
    let there: GroupPolicy = client.get(&path).await?;
    let ordering = args.ordering.map(|ordering| match ordering {
        OrderingArg::Strict => KeyOrder::Strict,
        OrderingArg::Relaxed => KeyOrder::Relaxed,
    });
    let wanted = GroupPolicy {
        max_attempts: args.attempts.or(there.max_attempts),
        backoff_ms: args.backoff.map(units::millis).or(there.backoff_ms),
        max_backoff_ms: args.max_backoff.map(units::millis).or(there.max_backoff_ms),
        factor: args.factor.or(there.factor),
        jitter: args.jitter.or(there.jitter),
        max_crashes: args.crashes.or(there.max_crashes),
        ordering: ordering.or(there.ordering),
    };
    let policy = if wanted == there { there } else { client.send(Method::PUT, &path, &wanted).await? };
    if as_json {
        return json(&policy);
    }
    let time = |ms: Option<u64>| ms.map_or("-".to_owned(), units::age);
    let count = |count: Option<u64>| count.map_or("-".to_owned(), units::count);
    let share = |share: Option<f64>| share.map_or("-".to_owned(), |share| share.to_string());
    let ordering = if policy.ordering == Some(KeyOrder::Relaxed) { "relaxed" } else { "strict" };
    let row = [
        count(policy.max_attempts),
        time(policy.backoff_ms),
        time(policy.max_backoff_ms),
        share(policy.factor),
        share(policy.jitter),
        count(policy.max_crashes),
        ordering.to_owned(),
    ];
    table(["ATTEMPTS", "BACKOFF", "MAX", "FACTOR", "JITTER", "CRASHES", "ORDERING"], vec![row])
}
