//! Looking at the records of a topic without consuming them: page by page, the newest, those with a
//! text, those that a filter accepts.
//!
//! Bounded: a call looks at [`LOOK_AT`] records at most; `next` goes on from there.

use super::body::{Json, Path, Query, within};
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::{Records, Shown};
use axum::extract::State;
use axum::http::StatusCode;
use firth::{ErrorKind, Record, RecordId};
use firth_router::Tenant;
use firth_router::event::{Document, Event, Operation};
use firth_router::filter::{MAX_SOURCE, Predicate};
use serde::Deserialize;
use utoipa::IntoParams;

/// The most records of one page.
const MAX_PAGE: u64 = 500;
/// How many records a call with a text or a filter looks at, and how many at a time.
const LOOK_AT: usize = 5000;
const AT_ONCE: usize = 500;
/// The longest text to look for.
const MAX_TEXT: usize = 256;
const MAX_KEY: usize = 1024;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page {
    /// Which partition; 0 unless set.
    #[param(minimum = 0, maximum = 4095)]
    partition: Option<u32>,
    /// Go on after this record.
    #[param(pattern = "^[0-9]{1,18}-[0-9]{1,18}$")]
    after: Option<String>,
    /// At most this many; 100 unless set.
    #[param(minimum = 1, maximum = 500)]
    max: Option<u64>,
    /// The newest ones instead of those that follow; with `key`, `contains` or `filter`, of the
    /// newest 5000.
    newest: Option<bool>,
    /// Only records with exactly this key.
    #[param(max_length = 1024)]
    key: Option<String>,
    /// Only records with this text in key, payload or a header; upper and lower case are the same.
    #[param(max_length = 256)]
    contains: Option<String>,
    /// Only records that this filter in CEL accepts: over `doc` (a JSON object as payload, or the
    /// document of a change event), `key`, `op` and `collection` (the topic, unless it is an
    /// event).
    // CEL has no pattern; these are filters, and what is none of them and is no CEL is refused.
    #[param(pattern = r"^doc\.f[0-9]{1,3} (==|<|<=|>|>=) [0-9]{1,9}$")]
    filter: Option<String>,
}

/// Looks at the records of one partition without consuming them
///
/// With `key`, `contains` or `filter`, a call looks at up to 5000 records: there may be fewer than
/// `max`, and none, although `next` goes on.
#[utoipa::path(get, path = "/v1/topics/{topic}/records", tag = "records", params(("topic" = String, Path), Page),
    responses((status = 200, body = Records),
        (status = 409, body = Problem, description = "The log went back: it has no record like `after`")))]
pub(crate) async fn browse(
    State(app): State<App>,
    Path(topic): Path<String>,
    Query(page): Query<Page>,
) -> Answer<Json<Records>> {
    let max = usize::try_from(within("max", page.max.unwrap_or(100), 1, MAX_PAGE)?).unwrap_or(100);
    let after = page.after.map_or(Ok(RecordId::ZERO), |id| id.parse())?;
    let partition = page.partition.unwrap_or(0);
    let sieve = Sieve::new(page.key, page.contains, page.filter.as_deref())?;
    let count = app.broker().topic(&topic).await?.config.partitions;
    if partition >= count {
        let detail = format!("there is no partition {partition}: topic {topic} has {count}");
        return Err(Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail).at("partition"));
    }
    if page.newest == Some(true) {
        let look_at = if sieve.is_open() { max } else { LOOK_AT };
        let mut found = app.broker().admin().recent(&topic, partition, look_at).await?;
        let looked_at = found.len();
        found.retain(|record| record.id() > after);
        let mut found = sieve.sift(found).await?;
        found.drain(..found.len().saturating_sub(max));
        let records = found.iter().map(Shown::from).collect();
        return Ok(Json(Records { records, next: None, looked_at }));
    }
    let found = walk(&app, (&topic, partition, after), &sieve, max).await?;
    Ok(Json(found))
}

/// Up to `max` records behind a place that pass the sieve.
async fn walk(
    app: &App,
    (topic, partition, mut after): (&str, u32, RecordId),
    sieve: &Sieve,
    max: usize,
) -> Answer<Records> {
    let mut passed = Vec::new();
    let mut looked_at = 0;
    let admin = app.broker().admin();
    let step = if sieve.is_open() { max } else { AT_ONCE };
    loop {
        let page = admin.browse_page(topic, partition, after, step).await?;
        looked_at += page.records.len();
        passed
            .extend(sieve.sift(page.records).await?.iter().map(|record| (record.id(), Shown::from(record))));
        let mut next = page.next;
        if passed.len() >= max {
            let is_cut = passed.len() > max;
            passed.truncate(max);
            // A page that was cut goes on behind the last record that is shown.
            next = if is_cut { passed.last().map(|(id, _)| *id) } else { next };
        }
        if let Some(place) = next.filter(|_| passed.len() < max && looked_at < LOOK_AT && !sieve.is_open()) {
            after = place;
            continue;
        }
        let records = passed.into_iter().map(|(_, record)| record).collect();
        return Ok(Records { records, next: next.map(|id| id.to_string()), looked_at });
    }
}

/// What a record must be like.
struct Sieve {
    key: Option<String>,
    /// In lower case.
    text: Option<String>,
    filter: Option<std::sync::Arc<Predicate>>,
}

impl Sieve {
    fn new(key: Option<String>, text: Option<String>, filter: Option<&str>) -> Answer<Self> {
        if key.as_ref().is_some_and(|key| key.chars().count() > MAX_KEY) {
            let detail = format!("key: give at most {MAX_KEY} characters");
            return Err(Problem::field("key", detail).limit(MAX_KEY as u64));
        }
        let text = text.filter(|text| !text.is_empty());
        if text.as_ref().is_some_and(|text| text.chars().count() > MAX_TEXT) {
            let detail = format!("contains: give at most {MAX_TEXT} characters");
            return Err(Problem::field("contains", detail).limit(MAX_TEXT as u64));
        }
        let filter = filter.map(|filter| {
            let wrong = |error: firth_router::Error| {
                Problem::field("filter", format!("filter: {}", error.context())).limit(MAX_SOURCE as u64)
            };
            if matches!(filter.trim(), "true" | "false") {
                let detail = "filter: it is the same for every record: compare a field with a value";
                return Err(Problem::field("filter", detail).limit(MAX_SOURCE as u64));
            }
            Predicate::parse(filter).map(std::sync::Arc::new).map_err(wrong)
        });
        Ok(Self { key, text: text.map(|text| text.to_lowercase()), filter: filter.transpose()? })
    }

    /// Whether it lets everything through.
    fn is_open(&self) -> bool {
        self.key.is_none() && self.text.is_none() && self.filter.is_none()
    }

    /// The records that pass. A filter takes time, so it is asked beside the tasks of other calls.
    async fn sift(&self, mut records: Vec<Record>) -> Answer<Vec<Record>> {
        if let Some(wanted) = &self.key {
            records.retain(|record| record.key().is_some_and(|key| *key == *wanted.as_bytes()));
        }
        if let Some(text) = &self.text {
            records.retain(|record| has_text(record, text));
        }
        let Some(filter) = self.filter.clone().filter(|_| !records.is_empty()) else { return Ok(records) };
        let asking = move || {
            records.retain(|record| {
                event_of(record).is_some_and(|event| filter.accepts(&event).unwrap_or(false))
            });
            records
        };
        tokio::task::spawn_blocking(asking).await.map_err(|error| {
            firth::Error::new(ErrorKind::Internal, "a filter could not be asked").with_source(error).into()
        })
    }
}

fn has_text(record: &Record, text: &str) -> bool {
    let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_lowercase().contains(text);
    record.key().is_some_and(|key| has(key))
        || has(record.payload())
        || record.headers().iter().any(|(name, value)| has(name.as_bytes()) || has(&value))
}

/// A record as filters see it: the change event that it holds, or an event made of it.
fn event_of(record: &Record) -> Option<Event> {
    if let Ok(event) = Event::from_payload(record.payload()) {
        return Some(event);
    }
    let key = record.key().map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default();
    let tenant = Tenant::new("-").ok()?;
    let topic = record.topic().to_string();
    let event = Event::new(Operation::Insert, tenant, topic, key);
    Some(match Document::from_json(record.payload().clone()) {
        Ok(document) => event.with_after(document),
        Err(_) => event,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sieve_is_bounded_and_says_what_is_wrong() {
        assert!(Sieve::new(None, None, None).unwrap().is_open());
        assert!(Sieve::new(None, Some(String::new()), None).unwrap().is_open());
        assert!(!Sieve::new(None, Some("x".into()), None).unwrap().is_open());
        for wrong in ["state == 'paid'", "doc.a ==", "'paid'", "true", " false", "", &"(".repeat(5000)] {
            let problem = Sieve::new(None, None, Some(wrong)).err().unwrap();
            assert!(problem.detail.starts_with("filter: "), "{}", problem.detail);
        }
        assert!(Sieve::new(None, Some("ä".repeat(MAX_TEXT)), None).is_ok());
        assert!(Sieve::new(None, Some("ä".repeat(MAX_TEXT + 1)), None).is_err());
        assert!(!Sieve::new(Some("ä".repeat(MAX_KEY)), None, None).unwrap().is_open());
        assert!(Sieve::new(Some("ä".repeat(MAX_KEY + 1)), None, None).is_err());
    }
}
