//! `firth produce` and `firth consume`.

use super::output::{json, line, plain};
use crate::client::{Client, group_path, topic_path};
use crate::wire::{Delivered, Fetch, Fetched, Outgoing, Placed, Receipts, Settle, SettledReport, invalid};
use axum::http::Method;
use clap::Args;
use firth::{Error, ErrorKind, Result};
use serde_json::value::RawValue;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// How many lines are sent at a time.
const BATCH: usize = 500;
/// A batch of lines is sent when it has this many bytes.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// How long to wait for the next record before there seems to be none.
const WAIT_MS: u64 = 2000;

#[derive(Args)]
pub(crate) struct ProduceArgs {
    topic: String,
    /// The payloads; without any, each line of --file or of the input is one
    values: Vec<String>,
    /// A key for all of them: they stay in order
    #[arg(long)]
    key: Option<String>,
    /// Read lines from this file
    #[arg(long, conflicts_with = "values")]
    file: Option<PathBuf>,
    /// Payloads are JSON, and so is the answer
    #[arg(long)]
    json: bool,
}

pub(crate) async fn produce(client: &Client, args: ProduceArgs) -> Result<()> {
    let mut sent = 0;
    if args.values.is_empty() {
        let mut lines = open(args.file.as_deref())?;
        loop {
            let batch = next_batch(&mut lines)?;
            if batch.is_empty() {
                break;
            }
            sent += send(client, &args, &batch).await?;
        }
    } else {
        for batch in args.values.chunks(BATCH) {
            sent += send(client, &args, batch).await?;
        }
    }
    if args.json { Ok(()) } else { line(&format!("sent {sent} to {}", args.topic)) }
}

fn open(file: Option<&Path>) -> Result<Box<dyn BufRead + Send>> {
    match file {
        None => Ok(Box::new(BufReader::new(std::io::stdin()))),
        Some(path) => {
            let file = std::fs::File::open(path);
            let file =
                file.map_err(|error| invalid(format!("cannot read {}", path.display())).with_source(error))?;
            Ok(Box::new(BufReader::new(file)))
        }
    }
}

/// Up to a batch of lines; none at the end. Input is read on this thread: nothing else runs meanwhile.
fn next_batch(lines: &mut dyn BufRead) -> Result<Vec<String>> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while batch.len() < BATCH && bytes < BATCH_BYTES {
        let mut text = String::new();
        let read = lines
            .read_line(&mut text)
            .map_err(|error| invalid("the input cannot be read as text").with_source(error))?;
        if read == 0 {
            break;
        }
        bytes += read;
        let text = text.trim_end_matches(['\n', '\r']);
        if !text.is_empty() {
            batch.push(text.to_owned());
        }
    }
    Ok(batch)
}

async fn send(client: &Client, args: &ProduceArgs, payloads: &[String]) -> Result<usize> {
    let messages: Result<Vec<_>> = payloads.iter().map(|payload| message(args, payload)).collect();
    let path = format!("{}/records", topic_path(&args.topic));
    let answer: Receipts = client.send(Method::POST, &path, &messages?).await?;
    if args.json {
        answer.receipts.iter().try_for_each(|placed: &Placed| json(placed))?;
    }
    Ok(answer.receipts.len())
}

fn message(args: &ProduceArgs, payload: &str) -> Result<Outgoing> {
    let mut message = Outgoing { key: args.key.clone(), ..Outgoing::default() };
    if args.json {
        let value = RawValue::from_string(payload.to_owned());
        message.json = Some(value.map_err(|error| invalid("a payload is not JSON").with_source(error))?);
    } else {
        message.payload = Some(payload.to_owned());
    }
    Ok(message)
}

#[derive(Args)]
pub(crate) struct ConsumeArgs {
    topic: String,
    /// The group; each group gets every record once it is settled
    #[arg(long)]
    group: String,
    /// Wait for more instead of ending when nothing comes
    #[arg(long)]
    follow: bool,
    /// One JSON object per record
    #[arg(long)]
    json: bool,
    /// End after this many records
    #[arg(long)]
    max: Option<u64>,
}

/// Prints records, and acks what it printed.
pub(crate) async fn consume(client: &Client, args: ConsumeArgs) -> Result<()> {
    let path = group_path(&args.topic, &args.group);
    let fetch = format!("{path}/fetch");
    let mut left = args.max.unwrap_or(u64::MAX);
    while left > 0 {
        let max = usize::try_from(left.min(100)).unwrap_or(100);
        let how = Fetch { max: Some(max), wait_ms: Some(WAIT_MS), lease_ms: None };
        let fetched: Fetched = tokio::select! {
            fetched = client.send(Method::POST, &fetch, &how) => fetched?,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        if fetched.deliveries.is_empty() && !args.follow {
            return Ok(());
        }
        left -= fetched.deliveries.len() as u64;
        print_and_ack(client, &path, fetched.deliveries, args.json).await?;
    }
    Ok(())
}

async fn print_and_ack(client: &Client, path: &str, deliveries: Vec<Delivered>, as_json: bool) -> Result<()> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let mut ack = Vec::with_capacity(deliveries.len());
    let mut printed = Ok(());
    for Delivered { delivery, record, .. } in deliveries {
        printed = if as_json { json(&record) } else { line(&plain(record.text())) };
        if printed.is_err() {
            break;
        }
        ack.push(delivery);
    }
    if !ack.is_empty() {
        let verdicts = Settle { ack, ..Settle::default() };
        let report: SettledReport = client.send(Method::POST, &format!("{path}/settle"), &verdicts).await?;
        if let Some(failed) = report.failed.first() {
            let context =
                format!("{} records were printed but not acked: {}", report.failed.len(), failed.detail);
            return Err(Error::new(ErrorKind::Fenced, context));
        }
    }
    printed
}
