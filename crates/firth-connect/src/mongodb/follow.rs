//! [`Following`]: the task behind an open stream. It copies what is there, then follows the change
//! stream.

use super::config::MongoConfig;
use super::failed;
use super::place::{MongoPlace, Positions, copied};
use super::read::{Found, committed_ms, headers};
use crate::error::{Error, Result};
use crate::progress::{Progress, SnapshotProgress};
use crate::source::Step;
use bytes::Bytes;
use firth_router::event::{Event, Operation};
use futures_util::TryStreamExt;
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ResumeToken;
use mongodb::options::{FullDocumentBeforeChangeType, FullDocumentType};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long the server waits for a change before it answers.
const AWAIT: Duration = Duration::from_secs(1);
/// Events that the server sends at a time.
const BATCH: u32 = 500;
/// The largest event that is put together of parts, in bytes.
const WHOLE: usize = 64 << 20;

pub(super) struct Following {
    config: Arc<MongoConfig>,
    client: Client,
    place: MongoPlace,
    steps: mpsc::Sender<Result<Step<MongoPlace>>>,
    progress: Progress,
    positions: Positions,
    /// The token of the last change, if it is not told as a place yet.
    untold: Option<String>,
    /// The parts of an event that came so far, and their bytes.
    parts: (Document, usize),
}

impl Following {
    pub(super) fn new(
        config: Arc<MongoConfig>,
        client: Client,
        place: MongoPlace,
        steps: mpsc::Sender<Result<Step<MongoPlace>>>,
        progress: Progress,
    ) -> Self {
        let (positions, parts) = (Positions::default(), (Document::new(), 0));
        Self { config, client, place, steps, progress, positions, untold: None, parts }
    }

    /// Reads until something ends it, and tells why.
    pub(super) async fn run(mut self, numbers: (u64, Arc<AtomicU64>), splits: bool) {
        let ended = async {
            self.copy(numbers).await?;
            self.follow(splits).await
        };
        let Err(error) = ended.await;
        let _ = self.steps.send(Err(error)).await;
    }

    /// Copies what is there, in chunks by `_id`. A chunk that was told before a crash comes again.
    async fn copy(&mut self, (epoch, count): (u64, Arc<AtomicU64>)) -> Result<()> {
        let mut rows = 0;
        while let Some(name) = self.place.copy.front().cloned() {
            let documents = self.chunk(&name).await?;
            for fields in &documents {
                let id = fields.get("_id").ok_or_else(|| Error::corrupt("a document has no _id"))?;
                let found = Found {
                    operation: Operation::Snapshot,
                    collection: &name,
                    id,
                    before: None,
                    after: Some(fields),
                    committed_ms: 0,
                };
                let number = count.fetch_add(1, Ordering::Relaxed);
                let step = self.config.step(copied(epoch, number), &found, Vec::new());
                self.tell(step).await?;
            }
            rows += documents.len() as u64;
            let last = documents.last().and_then(|fields| fields.get("_id")).cloned();
            self.place = match &last {
                Some(id) => self.place.behind(id.clone()),
                None => self.place.copied(),
            };
            let told = SnapshotProgress { table: name, rows, estimate: None, is_done: last.is_none() };
            self.progress.copying(vec![told]);
            rows = if last.is_none() { 0 } else { rows };
            self.tell(Step::Place(self.place.clone())).await?;
        }
        Ok(())
    }

    /// The documents behind the place, across all types of `_id`.
    async fn chunk(&self, collection: &str) -> Result<Vec<Document>> {
        let documents = self.client.database(&self.config.database).collection::<Document>(collection);
        let find = documents
            .find(doc! {})
            .sort(doc! { "_id": 1 })
            .hint(mongodb::options::Hint::Keys(doc! { "_id": 1 }));
        let after = self.place.after();
        // A bound of the index is part of what is found.
        let find = match &after {
            Some(id) => find.min(doc! { "_id": id.clone() }).limit(self.config.chunk + 1),
            None => find.limit(self.config.chunk),
        };
        let found: Vec<Document> = async { find.await?.try_collect().await }.await.map_err(|e| failed(&e))?;
        Ok(found
            .into_iter()
            .filter(|fields| after.is_none() || fields.get("_id") != after.as_ref())
            .collect())
    }

    async fn follow(&mut self, splits: bool) -> Result<std::convert::Infallible> {
        loop {
            let mut stream = self.open(splits).await.map_err(|error| failed(&error))?;
            loop {
                match stream.next_if_any().await.map_err(|error| failed(&error))? {
                    Some(event) => {
                        if self.event(event).await? {
                            break;
                        }
                    }
                    // A stream that is over may still hold events.
                    None if stream.is_alive() => self.idle(stream.resume_token()).await?,
                    None => return Err(Error::unavailable("the server ended the change stream")),
                }
            }
        }
    }

    async fn open(&self, splits: bool) -> mongodb::error::Result<ChangeStream<Document>> {
        let config = &self.config;
        let names: Vec<&String> = config.collections.iter().collect();
        let names = mongodb::bson::serialize_to_bson(&names)?;
        let wanted = doc! { "$match": { "$or": [
            { "ns.coll": { "$in": names.clone() } },
            { "to.coll": { "$in": names } },
            { "operationType": { "$in": ["dropDatabase", "invalidate"] } },
        ] } };
        let split = splits.then(|| doc! { "$changeStreamSplitLargeEvent": {} });
        let database = self.client.database(&config.database);
        let watch = database.watch().pipeline([wanted].into_iter().chain(split));
        let watch = watch.max_await_time(AWAIT).batch_size(BATCH);
        let watch = match config.images {
            true => watch
                .full_document(FullDocumentType::Required)
                .full_document_before_change(FullDocumentBeforeChangeType::WhenAvailable),
            false => watch.full_document(FullDocumentType::UpdateLookup),
        };
        let watch = match &self.place.token {
            // It goes on behind an invalidate, too.
            Some(token) => watch.start_after(resume_token(token)?),
            None => watch.start_at_operation_time(self.place.start()),
        };
        Ok(watch.await?.with_type())
    }

    /// Everything that is there is told.
    async fn idle(&mut self, token: Option<ResumeToken>) -> Result<()> {
        let token = token.and_then(|token| mongodb::bson::serialize_to_document(&token).ok());
        let token = token.as_ref().and_then(|token| token.get_str("_data").ok());
        let Some(token) = token.filter(|token| self.place.token.as_deref() != Some(token)) else {
            return Ok(());
        };
        if self.untold.is_some() && !self.positions.is_border(Some(token)) {
            return Ok(());
        }
        self.untold = None;
        self.pass(token.to_owned()).await
    }

    /// A reader may begin behind this token.
    async fn pass(&mut self, token: String) -> Result<()> {
        self.place.token = Some(token);
        self.tell(Step::Place(self.place.clone())).await
    }

    /// Takes an event; true if the stream is over and goes on in another one.
    async fn event(&mut self, event: Document) -> Result<bool> {
        let Some(event) = self.whole(event)? else { return Ok(false) };
        let token = event.get_document("_id").ok().and_then(|token| token.get_str("_data").ok());
        let token = token.ok_or_else(|| Error::corrupt("an event has no resume token"))?.to_owned();
        if let Some(untold) = self.untold.take_if(|_| self.positions.is_border(Some(&token))) {
            self.pass(untold).await?;
        }
        let position =
            self.positions.of(&token).ok_or_else(|| Error::corrupt("a resume token is no number"))?;
        let operation = event.get_str("operationType").unwrap_or_default();
        match operation {
            "insert" => self.change(&event, Operation::Insert, position).await?,
            "update" => self.change(&event, Operation::Update, position).await?,
            "replace" => self.change(&event, Operation::Replace, position).await?,
            "delete" => self.change(&event, Operation::Delete, position).await?,
            _ => self.control(&event, operation, &position).await?,
        }
        match self.positions.is_border(None) {
            true => self.pass(token).await?,
            false => self.untold = Some(token),
        }
        Ok(operation == "invalidate")
    }

    /// Puts the parts of a large event together.
    fn whole(&mut self, event: Document) -> Result<Option<Document>> {
        let Ok(split) = event.get_document("splitEvent") else { return Ok(Some(event)) };
        let is_last = split.get("fragment") == split.get("of");
        let size = mongodb::bson::serialize_to_vec(&event).map_or(0, |bytes| bytes.len());
        let (whole, bytes) = &mut self.parts;
        *bytes += size;
        if *bytes > WHOLE {
            return Err(Error::poison(format!("an event has more than {WHOLE} bytes")));
        }
        whole.extend(event);
        Ok(is_last.then(|| std::mem::take(&mut self.parts).0))
    }

    async fn change(&self, event: &Document, operation: Operation, position: Bytes) -> Result<()> {
        let text = |name: &str, field: &str| event.get_document(name).ok()?.get_str(field).ok();
        let collection = text("ns", "coll").unwrap_or_default();
        let id = event.get_document("documentKey").ok().and_then(|key| key.get("_id"));
        let id = id.ok_or_else(|| Error::corrupt("an event names no document"))?;
        let after = event.get_document("fullDocument").ok();
        if operation != Operation::Delete && after.is_none() {
            // It was looked up and is gone since: its delete follows.
            return Ok(());
        }
        let is_lookup = operation == Operation::Update && !self.config.images;
        let before = event.get_document("fullDocumentBeforeChange").ok();
        let found = Found { operation, collection, id, before, after, committed_ms: committed_ms(event) };
        self.tell(self.config.step(position, &found, headers(event, is_lookup))).await
    }

    /// What is about whole collections.
    async fn control(&self, event: &Document, operation: &str, position: &Bytes) -> Result<()> {
        let named = |field: &str| {
            let name = event.get_document(field).ok()?.get_str("coll").ok()?;
            self.config.collections.get(name)
        };
        let all = || self.config.collections.iter().map(|name| (Operation::Truncate, name));
        let told: Vec<(Operation, &String)> = match operation {
            "drop" => named("ns").into_iter().map(|name| (Operation::Truncate, name)).collect(),
            "dropDatabase" => all().collect(),
            "rename" => {
                let gone = named("ns").map(|name| (Operation::Truncate, name));
                gone.into_iter().chain(named("to").map(|name| (Operation::Resync, name))).collect()
            }
            _ => Vec::new(),
        };
        for (kind, name) in told {
            let event = Event::control(kind, None, self.config.shown(name)).with_reason(operation);
            self.tell(Step::Control { position: position.clone(), event }).await?;
        }
        Ok(())
    }

    async fn tell(&self, step: Step<MongoPlace>) -> Result<()> {
        self.steps.send(Ok(step)).await.map_err(|_| Error::unavailable("the reader ended"))
    }
}

fn resume_token(token: &str) -> mongodb::error::Result<ResumeToken> {
    Ok(mongodb::bson::deserialize_from_bson(Bson::Document(doc! { "_data": token }))?)
}
