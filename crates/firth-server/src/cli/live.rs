//! `firth sub` and `firth pub`: live messages, kept nowhere.
//!
//! With `--engine redis://…` they speak on the server's own channels, over the multiplexer: any
//! channel, pattern or sharded channel that any other program uses. Otherwise they speak on firth's
//! channels, over the bus of the engine: with `--server` that of the server, so that callers need
//! no way to Redis, tokens count, and no token opens channels of other programs.

use super::output::{json, line, note, plain};
use crate::client::{Client, escape};
use crate::wire::{Live, Published, invalid};
use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use firth::{Error, ErrorKind, Result};
use firth_redis::mux::{Event, Message, Signal};
use firth_redis::resp::Ignore;
use firth_redis::{CallError, ConnectError, cmd};
use serde::Serialize;
use tokio::sync::mpsc;

pub(crate) const SUB_EXAMPLES: &str = "\
Examples:
  firth sub prices                                          # a channel of the server
  firth sub 'news.*' --pattern --engine redis://127.0.0.1   # any channels of a Redis server
  firth sub eur usd --sharded --engine redis+cluster://10.0.0.1 --json

Messages are delivered at most once and kept nowhere; where some may be missing, that is told.";

pub(crate) const PUB_EXAMPLES: &str = "\
Examples:
  firth pub prices '{\"eur\": 1.08}'
  firth pub eur 1.08 --sharded --engine redis+cluster://10.0.0.1";

#[derive(Args)]
pub(crate) struct SubArgs {
    /// The channels
    #[arg(required = true)]
    channels: Vec<String>,
    /// The names are patterns such as 'news.*'; needs --engine redis://…
    #[arg(long, conflicts_with = "sharded")]
    pattern: bool,
    /// Use sharded channels; needs --engine redis://…
    #[arg(long)]
    sharded: bool,
    /// End after this many messages
    #[arg(long, value_name = "N")]
    max: Option<u64>,
}

#[derive(Args)]
pub(crate) struct PubArgs {
    /// The channel
    channel: String,
    /// What to say
    #[arg(required = true)]
    payloads: Vec<String>,
    /// Use sharded channels; needs --engine redis://…
    #[arg(long)]
    sharded: bool,
}

/// What a subscriber is shown.
#[derive(Serialize)]
struct ReceivedMessage {
    channel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pattern: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

fn show(heard: &ReceivedMessage, as_json: bool, with_channel: bool) -> Result<()> {
    if as_json {
        return json(heard);
    }
    let text = plain(heard.payload.as_deref().or(heard.payload_base64.as_deref()).unwrap_or_default());
    if with_channel { line(&format!("{}\t{text}", plain(&heard.channel))) } else { line(&text) }
}

/// Never among the messages that people pipe on; in JSON in their place.
fn tell(signal: &str, as_json: bool) -> Result<()> {
    if as_json {
        return json(&serde_json::json!({ "signal": signal }));
    }
    note(&format!("-- {signal}"));
    Ok(())
}

/// Whether an engine is reached over Redis' own channels.
pub(crate) fn is_redis(engine: &str) -> bool {
    engine.starts_with("redis")
}

pub(crate) async fn sub(client: &Client, args: SubArgs, as_json: bool) -> Result<()> {
    if args.pattern || args.sharded {
        return Err(needs_redis());
    }
    let (to, mut heard) = mpsc::channel(1024);
    let mut tasks = tokio::task::JoinSet::new();
    for channel in &args.channels {
        let mut lines = client.lines(&format!("/v1/channels/{}", escape(channel))).await?;
        let to = to.clone();
        let channel = channel.clone();
        tasks.spawn(async move {
            loop {
                let next = lines.next::<Live>().await;
                let is_last = !matches!(next, Ok(Some(_)));
                if to.send((channel.clone(), next)).await.is_err() || is_last {
                    return;
                }
            }
        });
    }
    drop(to);
    tell("subscribed", as_json)?;
    let mut left = args.max.unwrap_or(u64::MAX);
    while left > 0 {
        let next = tokio::select! {
            next = heard.recv() => next,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        let Some((channel, next)) = next else { return Ok(()) };
        let Some(live) = next? else {
            return Err(Error::new(ErrorKind::Closed, "the server ended the subscription"));
        };
        if live.gap {
            tell("gap: messages may be missing here", as_json)?;
            continue;
        }
        let Live { payload, payload_base64, .. } = live;
        show(
            &ReceivedMessage { channel, pattern: None, payload, payload_base64 },
            as_json,
            args.channels.len() > 1,
        )?;
        left -= 1;
    }
    Ok(())
}

pub(crate) async fn publish(client: &Client, args: PubArgs, as_json: bool) -> Result<()> {
    if args.sharded {
        return Err(needs_redis());
    }
    let path = format!("/v1/channels/{}", escape(&args.channel));
    for payload in &args.payloads {
        let message = Published { payload: Some(payload.clone()), payload_base64: None };
        client.send_only(Method::POST, &path, &message).await?;
    }
    if as_json { Ok(()) } else { line(&format!("published {}", args.payloads.len())) }
}

fn needs_redis() -> Error {
    invalid("--pattern and --sharded speak of Redis' own channels: give --engine redis://HOST")
}

pub(crate) async fn sub_redis(engine: &str, args: SubArgs, as_json: bool) -> Result<()> {
    let client = connect(engine).await?;
    let mux = client.mux();
    let names = args.channels.iter().cloned();
    let subscribing = match (args.pattern, args.sharded) {
        (true, _) => mux.subscribe_pattern(names),
        (_, true) => mux.subscribe_sharded(names),
        _ => mux.subscribe(names),
    };
    let mut heard = subscribing.await.map_err(failed)?;
    tell("subscribed", as_json)?;
    let with_channel = args.pattern || args.channels.len() > 1;
    let mut left = args.max.unwrap_or(u64::MAX);
    while left > 0 {
        let event = tokio::select! {
            event = heard.next() => event,
            _ = tokio::signal::ctrl_c() => break,
        };
        match event {
            None => break,
            Some(Event::Signal(signal)) => tell(&describe(&signal), as_json)?,
            Some(Event::Message(message)) => {
                show(&from_redis(&message), as_json, with_channel)?;
                left -= 1;
            }
        }
    }
    client.close().await;
    Ok(())
}

pub(crate) async fn publish_redis(engine: &str, args: PubArgs, as_json: bool) -> Result<()> {
    let client = connect(engine).await?;
    for payload in &args.payloads {
        let command = match args.sharded {
            true => cmd("SPUBLISH").key(args.channel.as_bytes()),
            false => cmd("PUBLISH").arg(args.channel.as_bytes()),
        };
        client.call::<Ignore>(command.arg(payload.as_bytes())).await.map_err(failed)?;
    }
    client.close().await;
    if as_json { Ok(()) } else { line(&format!("published {}", args.payloads.len())) }
}

/// The client, without the options of the engine in the URL.
pub(crate) async fn connect(engine: &str) -> Result<firth_redis::Client> {
    let (base, query) = engine.split_once('?').unwrap_or((engine, ""));
    let ours =
        |pair: &&str| !pair.starts_with("durability=") && !pair.starts_with("prefix=") && !pair.is_empty();
    let query = query.split('&').filter(ours).collect::<Vec<_>>().join("&");
    let url = if query.is_empty() { base.to_owned() } else { format!("{base}?{query}") };
    firth_redis::Client::connect(url.as_str()).await.map_err(|error| {
        let kind = match &error {
            ConnectError::Config { .. } => ErrorKind::Invalid,
            ConnectError::Timeout { .. } => ErrorKind::Timeout,
            error if error.is_retryable() => ErrorKind::Unavailable,
            _ => ErrorKind::Unauthorized,
        };
        Error::new(kind, "the Redis server cannot be used").with_source(error)
    })
}

fn failed(error: CallError) -> Error {
    let kind = match &error {
        CallError::Server(error) if &*error.code == "NOPERM" => ErrorKind::Unauthorized,
        CallError::Server(_) | CallError::Invalid(_) => ErrorKind::Invalid,
        CallError::Timeout { .. } => ErrorKind::Timeout,
        CallError::Full { .. } => ErrorKind::Overloaded,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "the Redis server did not do it").with_source(error)
}

fn from_redis(message: &Message) -> ReceivedMessage {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (payload, payload_base64) = match std::str::from_utf8(&message.payload) {
        Ok(payload) => (Some(payload.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(&message.payload))),
    };
    let pattern = message.pattern.as_deref().map(text);
    ReceivedMessage { channel: text(&message.channel), pattern, payload, payload_base64 }
}

fn describe(signal: &Signal) -> String {
    match signal {
        Signal::Moved { slot, from, to, channels } => {
            format!("moved: slot {slot} with {} channels went from {from} to {to}", channels.len())
        }
        Signal::NodeLost { node, channels } => {
            format!("node lost: {node}, which served {} channels", channels.len())
        }
        Signal::Gap { reason, channels, .. } => {
            format!("gap: messages of {} channels may be missing from here on ({reason:?})", channels.len())
        }
        Signal::Resumed { after, channels } => {
            format!("resumed: {} channels after {after:?}, nothing is missing from here on", channels.len())
        }
        Signal::Lagged { dropped } => {
            format!("lagged: {dropped} messages were dropped here, this reader is too slow")
        }
        Signal::Stalled { after, channels } => {
            format!("stalled: {} channels without a node for {after:?}", channels.len())
        }
        Signal::TimedOut { after, channels } => {
            format!("timed out: {} channels without a node for {after:?}, the search goes on", channels.len())
        }
        other => format!("{other:?}"),
    }
}
