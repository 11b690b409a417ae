//! `firth produce`: arguments, lines, JSON or whole messages, sent in order, batch after batch.

use super::consume::AWAY;
use super::input::{self, BATCH, InputForm, Mould, Template};
use super::output::{json, line, note};
use super::progress;
use super::units;
use crate::client::{Client, escape, topic_path};
use crate::wire::{Outgoing, Placed, Receipts, invalid};
use clap::Args;
use firth::{Error, Result};
use indicatif::ProgressBar;
use serde_json::value::RawValue;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth produce orders 'one coffee' --key ada
  firth produce orders --input json '{\"total\": 3}' --header source=web
  tail -f access.log | firth produce hits
  firth produce orders --input messages --file orders.ndjson
  firth consume orders --group copy --json | firth produce orders-2 --input messages";

#[derive(Args)]
pub(crate) struct ProduceArgs {
    /// The topic
    topic: String,
    /// The payloads; without any they are read from --file, or from the input
    values: Vec<String>,
    /// A key for all of them: they stay in order
    #[arg(long)]
    key: Option<String>,
    /// Each line is a key, this text, and the payload
    #[arg(long, value_name = "TEXT", conflicts_with = "key")]
    key_by: Option<String>,
    /// A header for all of them; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Deliver them this much later: 500ms, 30s, 5m, 2h, 7d
    #[arg(long, alias = "after", value_name = "DURATION", value_parser = units::duration)]
    deliver_after: Option<Duration>,
    /// Send to this partition instead of choosing by key
    #[arg(long, value_name = "P")]
    partition: Option<u32>,
    /// What counts as sent: fast, replicated, replicated:2 or synced; what the engine promises
    /// unless given
    #[arg(long, value_name = "WORD")]
    durability: Option<String>,
    /// Compress payloads of more than this
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    compress_above: Option<u64>,
    /// Read from this file
    #[arg(long, conflicts_with = "values")]
    file: Option<PathBuf>,
    /// Send a batch again for this long while the server is away or overloaded; 0s for never
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = units::duration)]
    retry: Duration,
    /// What each piece of the input is
    #[arg(long, value_enum, default_value_t = InputForm::Text)]
    input: InputForm,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) async fn run(client: &Client, args: ProduceArgs, as_json: bool) -> Result<()> {
    let base = Template {
        key: args.key,
        headers: args.headers,
        after_ms: args.deliver_after.map(units::millis),
        partition: args.partition,
    };
    let mould = Mould { base, key_by: args.key_by.filter(|by| !by.is_empty()) };
    let path = path(&args.topic, args.durability.as_deref(), args.compress_above);
    let mut sending =
        SendingBatch { client, path, as_json, retry_for: args.retry, sent: 0, bar: ProgressBar::hidden() };
    if args.values.is_empty() {
        let (source, length) = open(args.file.as_deref())?;
        sending.bar = progress::bytes(length);
        let mut batches = input::read(source, args.input, mould, sending.bar.clone());
        while let Some(batch) = batches.recv().await {
            let batch = batch.map_err(|error| sending.told(error))?;
            sending.send(&batch).await?;
        }
    } else {
        let mut messages = Vec::new();
        for value in args.values {
            messages.extend(from_argument(&mould, args.input, value)?);
        }
        for batch in messages.chunks(BATCH) {
            sending.send(batch).await?;
        }
    }
    let SendingBatch { sent, bar, .. } = sending;
    let took = bar.elapsed();
    bar.finish_and_clear();
    if as_json {
        return Ok(());
    }
    let rate = if sent > BATCH as u64 { format!(", {}", progress::rate(sent, took)) } else { String::new() };
    line(&format!("sent {sent} to {}{rate}", args.topic))
}

fn path(topic: &str, durability: Option<&str>, compress_above: Option<u64>) -> String {
    let durability = durability.map(|word| format!("durability={}", escape(word)));
    let compress = compress_above.map(|bytes| format!("compress_above={bytes}"));
    let query: Vec<String> = [durability, compress].into_iter().flatten().collect();
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{}/records{mark}{}", topic_path(topic), query.join("&"))
}

fn from_argument(mould: &Mould, form: InputForm, value: String) -> Result<Vec<Outgoing>> {
    if form == InputForm::Text {
        return Ok(vec![mould.text(value.as_bytes())?]);
    }
    let value = RawValue::from_string(value);
    mould.json(form, value.map_err(|error| invalid("an argument is not JSON").with_source(error))?)
}

struct SendingBatch<'a> {
    client: &'a Client,
    path: String,
    as_json: bool,
    retry_for: Duration,
    sent: u64,
    bar: ProgressBar,
}

impl SendingBatch<'_> {
    /// Sends a batch, again and again while the server is away. The key names the batch, so that a
    /// server that stored it before its answer was lost does not store it twice.
    async fn retry(&self, messages: &[Outgoing]) -> Result<Receipts> {
        let key = format!("firth-produce-{:032x}", fastrand::u128(..));
        let deadline = Instant::now() + self.retry_for;
        let mut failures = 0;
        loop {
            failures += 1;
            let pause = AWAY.delay(failures);
            match self.client.send_once(&self.path, &messages, &key).await {
                Err(error) if error.is_retryable() && Instant::now() + pause < deadline => {
                    self.bar.suspend(|| note(&format!("waiting: {error}")));
                    tokio::time::sleep(pause).await;
                }
                answer => return answer,
            }
        }
    }

    /// The error, with what was stored before it.
    fn told(&self, error: Error) -> Error {
        match self.sent {
            0 => error,
            sent => error.during(format!("after {sent} messages were stored")),
        }
    }

    async fn send(&mut self, messages: &[Outgoing]) -> Result<()> {
        let answer = self.retry(messages).await.map_err(|error| self.told(error))?;
        self.sent += answer.receipts.len() as u64;
        self.bar.set_message(format!(
            "{} sent, {}",
            self.sent,
            progress::rate(self.sent, self.bar.elapsed())
        ));
        match self.as_json {
            true => answer.receipts.iter().try_for_each(|placed: &Placed| json(placed)),
            false => Ok(()),
        }
    }
}

/// The input, and its length where it has one.
fn open(file: Option<&Path>) -> Result<(Box<dyn Read + Send>, Option<u64>)> {
    let Some(path) = file else { return Ok((Box::new(std::io::stdin()), None)) };
    let unreadable = |error| invalid(format!("cannot read {}", path.display())).with_source(error);
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|meta| meta.len());
    Ok((Box::new(file), length))
}
