//! `/v1/topics/{topic}/records`: produce one message, many, or raw bytes.
//!
//! Everything is parsed before anything is sent; the answer comes when every message is stored.
//! With an `Idempotency-Key` the same request can be sent again after a lost answer, also to a
//! server that was restarted: the engine recognises it, and nothing is there twice.

use super::body::{Json, Path, Query, Raw, expect_media, parse, within};
use crate::app::{App, Sending};
use crate::auth::hex;
use crate::problem::{Answer, Problem};
use crate::telemetry::RequestSpan;
use crate::wire::{BASE64, Object, Outgoing, Placed, Receipts, latest_ms};
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use firth::limits::MAX_PAYLOAD;
use firth::{ErrorKind, Message, Producer, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use utoipa::IntoParams;

/// The most messages of one request.
const MAX_MESSAGES: usize = 10_000;
/// The longest idempotency key.
const MAX_KEY: usize = 255;
const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const BYTES: &str = "application/octet-stream";
/// Message headers of a binary request.
const HEADER_PREFIX: &str = "firth-header-";

/// Sends one message, an array of them, one per line (`application/x-ndjson`), or raw bytes
///
/// At most 10 000 messages. Raw bytes (`application/octet-stream`) are one message's payload; the
/// HTTP headers `Firth-Key` or `Firth-Key-Base64`, `Firth-Partition`, `Firth-After-Ms`,
/// `Firth-At-Ms` and `Firth-Header-NAME` say the rest. A `traceparent` goes with messages that have
/// none.
#[utoipa::path(post, path = "/v1/topics/{topic}/records", tag = "records",
    params(("topic" = String, Path), HowSent,
        ("Idempotency-Key" = Option<String>, Header, description = "Send the same request again under the same key: it is there once"),
        ("traceparent" = Option<String>, Header, description = "W3C trace context")),
    request_body(content((Outgoing = "application/json"), (String = "application/x-ndjson"), (Vec<u8> = "application/octet-stream"))),
    responses((status = 200, body = Receipts),
        (status = 409, body = Problem, description = "The key came with another request before, the topic changed since, or the engine cannot promise this durability")))]
pub(crate) async fn produce(
    State(app): State<App>,
    (Path(topic), Query(how)): (Path<String>, Query<HowSent>),
    Extension(trace): Extension<RequestSpan>,
    raw: Raw,
) -> Answer<Json<Receipts>> {
    let key = idempotency_key(&raw.headers)?;
    let trace = trace.for_messages().map(|trace| trace.to_string());
    expect_media(&raw.media, &[JSON, LINES, BYTES])?;
    // A producer would try again for half a minute; a client is told at once.
    app.broker().takes_appends()?;
    let producer = app.producer(how.sending(&topic)?).await.map_err(not_promised)?;
    let messages = messages(&raw, trace.as_deref(), producer.partitions())?;
    let sent = match key {
        None => send_all(&producer, messages).await,
        Some(key) => {
            let name = request_name(&app, &topic, &key, &raw)?;
            let sent = producer.send_once(&name, messages).await;
            if sent.as_ref().is_err_and(|error| error.field() == Some("batch")) {
                let detail =
                    "the topic's partitions changed since this key came first: look at what is there";
                return Err(Problem::http(StatusCode::CONFLICT, ErrorKind::Invalid, detail));
            }
            sent.map(|receipts| receipts.into_iter().map(Placed::from).collect())
        }
    };
    match sent {
        Ok(receipts) => Ok(Json(Receipts { receipts })),
        Err(error) => {
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Closed) {
                app.forget_producer(&topic);
            }
            Err(error.into())
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HowSent {
    /// What the answer means: `fast`, `replicated`, `replicated:N` or `synced`; what the engine
    /// promises unless set.
    #[param(pattern = "^(fast|synced|replicated(:[1-9])?)$")]
    durability: Option<String>,
    /// Compress payloads of more than this many bytes, unless they hardly shrink; none unless set.
    #[param(maximum = 16_777_216)]
    compress_above: Option<u64>,
}

impl HowSent {
    fn sending(self, topic: &str) -> Answer<Sending> {
        let durability = self.durability.map(|name| name.parse()).transpose();
        let durability = durability.map_err(|error| Problem::from(error).at("durability"))?;
        let compress =
            self.compress_above.map(|bytes| within("compress_above", bytes, 0, MAX_PAYLOAD as u64));
        let compress_above = compress.transpose()?.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(Sending { topic: topic.to_owned(), durability, compress_above })
    }
}

/// A durability that this engine cannot give is no fault of the server.
fn not_promised(error: firth::Error) -> Problem {
    match error.kind() {
        ErrorKind::Unsupported => {
            let detail = error.context().to_owned();
            Problem::http(StatusCode::CONFLICT, ErrorKind::Unsupported, detail).at("durability")
        }
        _ => error.into(),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Answer<Option<Vec<u8>>> {
    const NAME: &str = "Idempotency-Key";
    let Some(key) = headers.get(NAME) else { return Ok(None) };
    let visible = key.as_bytes().iter().all(|byte| (0x20..0x7f).contains(byte));
    match key.len() {
        1..=MAX_KEY if visible => Ok(Some(key.as_bytes().to_vec())),
        length => {
            let detail = format!("Idempotency-Key has {length} bytes; give 1 to {MAX_KEY} of ASCII");
            Err(Problem::field(NAME, detail).limit(MAX_KEY as u64))
        }
    }
}

/// The name of a request in the engine: made of its key and all that it says, so that another
/// request under the same key is never taken for this one.
fn request_name(app: &App, topic: &str, key: &[u8], raw: &Raw) -> Answer<String> {
    let mut whole = Sha256::new();
    whole.update((key.len() as u64).to_le_bytes());
    whole.update(key);
    whole.update(raw.media.as_bytes());
    for (name, value) in
        raw.headers.iter().filter(|(name, _)| raw.media == BYTES && name.as_str().starts_with("firth-"))
    {
        whole.update(name.as_str());
        whole.update([0]);
        whole.update(value);
        whole.update([0]);
    }
    whole.update(&raw.bytes);
    let whole: [u8; 32] = whole.finalize().into();
    let key: [u8; 32] =
        Sha256::new().chain_update(topic).chain_update([0]).chain_update(key).finalize().into();
    if app.is_reused(key, whole) {
        let detail = "this Idempotency-Key came with another request before: choose a new one";
        let problem = Problem::http(StatusCode::CONFLICT, ErrorKind::Invalid, detail);
        return Err(problem.at("Idempotency-Key"));
    }
    Ok(format!("http-{}", hex(&whole)))
}

fn messages(raw: &Raw, trace: Option<&str>, partitions: u32) -> Answer<Vec<Message>> {
    if raw.media == BYTES {
        return Ok(vec![binary(raw, trace, partitions)?]);
    }
    let all: Vec<Object<Outgoing>> = if raw.media == LINES {
        let lines = raw.bytes.split(|byte| *byte == b'\n').enumerate();
        let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
        lines
            .map(|(index, line)| parse(line).map_err(|problem| at("line", index + 1, problem)))
            .collect::<Answer<_>>()?
    } else if raw.bytes.trim_ascii_start().starts_with(b"[") {
        parse(&raw.bytes)?
    } else {
        vec![parse(&raw.bytes)?]
    };
    within("messages", all.len() as u64, 1, MAX_MESSAGES as u64)?;
    let all = all.into_iter().enumerate();
    all.map(|(index, Object(message))| {
        let checked = check_place(message.partition, message.at_ms, partitions);
        let made = checked.and_then(|()| message.into_message(trace).map_err(Problem::from));
        made.map_err(|problem| at("message", index + 1, problem))
    })
    .collect()
}

/// What depends on the topic and on the clock.
fn check_place(partition: Option<u32>, at_ms: Option<u64>, partitions: u32) -> Answer<()> {
    if let Some(partition) = partition.filter(|partition| *partition >= partitions) {
        let detail = format!("there is no partition {partition}: the topic has {partitions}");
        let problem = Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail);
        return Err(problem.at("partition").limit(u64::from(partitions)));
    }
    within("at_ms", at_ms.unwrap_or(0), 0, latest_ms(SystemTime::now())).map(|_| ())
}

/// One message whose payload is the body and whose rest stands in HTTP headers.
fn binary(raw: &Raw, trace: Option<&str>, partitions: u32) -> Answer<Message> {
    let text = |name: &'static str| match raw.headers.get(name) {
        None => Ok(None),
        Some(value) => match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Problem::field(name, format!("the header {name} is not UTF-8 text"))),
        },
    };
    let number = |name: &'static str| -> Answer<Option<u64>> {
        let read = |text: &str| {
            text.parse().map_err(|_| Problem::field(name, format!("{name} is not a whole number")))
        };
        text(name)?.map(read).transpose()
    };
    let mut message = Message::new(raw.bytes.clone());
    message = match (text("Firth-Key")?, text("Firth-Key-Base64")?) {
        (None, None) => message,
        (Some(key), None) => message.key(key.to_owned()),
        (None, Some(key)) => {
            let key = BASE64
                .decode(key)
                .map_err(|_| Problem::field("Firth-Key-Base64", "Firth-Key-Base64 is not base64"))?;
            message.key(key)
        }
        _ => return Err(Problem::field("Firth-Key", "give Firth-Key or Firth-Key-Base64, not both")),
    };
    message = match (number("Firth-After-Ms")?, number("Firth-At-Ms")?) {
        (None, None) => message,
        (Some(after), None) => message.deliver_after(Duration::from_millis(after)),
        (None, Some(at)) => {
            check_place(None, Some(at), partitions).map_err(|problem| problem.at("Firth-At-Ms"))?;
            let time = UNIX_EPOCH.checked_add(Duration::from_millis(at));
            message.deliver_at(time.ok_or_else(|| Problem::field("Firth-At-Ms", "no clock shows this time"))?)
        }
        _ => return Err(Problem::field("Firth-After-Ms", "give Firth-After-Ms or Firth-At-Ms, not both")),
    };
    if let Some(partition) = number("Firth-Partition")? {
        let partition = u32::try_from(partition);
        let partition =
            partition.map_err(|_| Problem::field("Firth-Partition", "there is no such partition"))?;
        check_place(Some(partition), None, partitions).map_err(|problem| problem.at("Firth-Partition"))?;
        message = message.to_partition(partition);
    }
    let mut has_trace = false;
    for (name, value) in &raw.headers {
        if let Some(name) = name.as_str().strip_prefix(HEADER_PREFIX) {
            has_trace |= name == firth::TRACEPARENT;
            message = message.header(name, value.as_bytes().to_vec());
        }
    }
    Ok(match trace.filter(|_| !has_trace) {
        Some(trace) => message.header(firth::TRACEPARENT, trace.to_owned()),
        None => message,
    })
}

fn at(what: &str, number: usize, mut problem: Problem) -> Problem {
    problem.detail = format!("{what} {number}: {}", problem.detail);
    problem
}

/// Sends all; a failure names the message and says whether earlier ones may be there.
async fn send_all(producer: &Producer, messages: Vec<Message>) -> Result<Vec<Placed>> {
    let mut tickets = Vec::with_capacity(messages.len());
    let mut failure = None;
    for (index, message) in messages.into_iter().enumerate() {
        match producer.enqueue(message).await {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => {
                failure = Some((index, error));
                break;
            }
        }
    }
    let mut placed = Vec::with_capacity(tickets.len());
    for (index, ticket) in tickets.into_iter().enumerate() {
        match ticket.await {
            Ok(receipt) => placed.push(Placed::from(receipt)),
            Err(error) if failure.as_ref().is_none_or(|(first, _)| index < *first) => {
                failure = Some((index, error));
            }
            Err(_) => {}
        }
    }
    match failure {
        None => Ok(placed),
        Some((index, error)) => {
            let error = error.during(format!("message {}", index + 1));
            Err(if placed.is_empty() { error } else { error.with_unknown_outcome() })
        }
    }
}
