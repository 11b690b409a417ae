//! What the tests of MongoDB run against: the server that `FIRTH_TEST_MONGODB` names, or a stand-in
//! that speaks the wire protocol and answers as the documentation of change streams says.
//!
//! The stand-in keeps documents and a log of events in memory. It knows the commands that the
//! driver sends for this source and for the tests' writes, and no others.

use mongodb::bson::{Bson, DateTime, Document, Timestamp, doc};
use mongodb::{Client, Database};
use std::cmp::Ordering as Order;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

const REAL: &str = "FIRTH_TEST_MONGODB";
/// The operation code of all messages.
const OP_MSG: i32 = 2013;
/// Events of one batch of the stand-in.
const BATCH: usize = 3;

/// A server, and a database of this test alone.
pub(crate) struct Mongod {
    url: String,
    pub(crate) name: String,
    stand_in: Option<Arc<StandIn>>,
    _tasks: JoinSet<()>,
}

impl Mongod {
    /// The real server if there is one, else the stand-in.
    pub(crate) async fn start() -> Self {
        match std::env::var(REAL) {
            Ok(url) => Self { url, name: unique(), stand_in: None, _tasks: JoinSet::new() },
            Err(_) => Self::stand_in().await,
        }
    }

    /// The stand-in, for what no test can ask of a real server.
    pub(crate) async fn stand_in() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = Arc::new(StandIn::new(addr));
        let mut tasks = JoinSet::new();
        let serving = server.clone();
        tasks.spawn(async move {
            let mut lines = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                lines.spawn(serve(serving.clone(), socket));
            }
        });
        let url = format!("mongodb://{addr}/?directConnection=true");
        Self { url, name: unique(), stand_in: Some(server), _tasks: tasks }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn database(&self) -> Database {
        Client::with_uri_str(&self.url).await.unwrap().database(&self.name)
    }

    /// What the stand-in holds.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.stand_in.as_ref().expect("the test asked for the stand-in").lock()
    }
}

fn unique() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("firth_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

pub(crate) struct StandIn {
    addr: SocketAddr,
    world: Mutex<World>,
    news: Notify,
}

/// The state of the stand-in.
pub(crate) struct World {
    /// The replica set's name; none makes it a single server.
    pub(crate) set: Option<String>,
    documents: BTreeMap<String, Vec<Document>>,
    log: Vec<Logged>,
    time: u32,
    /// Events up to this time are forgotten.
    pub(crate) forgotten: u32,
    /// Whether events come in two parts where the client can put them together.
    pub(crate) splits: bool,
    /// How many reads are answered before one fails.
    pub(crate) reads: Option<u32>,
    cursors: BTreeMap<i64, Cursor>,
}

struct Logged {
    time: u32,
    event: Document,
    collection: String,
    before: Option<Document>,
    after: Option<Document>,
}

#[derive(Clone)]
struct Cursor {
    after: u32,
    names: BTreeSet<String>,
    looks_up: bool,
    splits: bool,
}

impl World {
    /// The time of the newest event.
    pub(crate) fn now(&self) -> u32 {
        self.time
    }

    fn log(&mut self, event: Document, collection: &str, images: (Option<Document>, Option<Document>)) {
        self.time += 1;
        let (before, after) = images;
        let event = Logged { time: self.time, event, collection: collection.to_owned(), before, after };
        self.log.push(event);
    }

    fn write(&mut self, command: &Document, database: &str) -> Document {
        let name = |field: &str| command.get_str(field).unwrap().to_owned();
        let list =
            |field: &str| command.get_array(field).unwrap().iter().map(|one| one.as_document().unwrap());
        let session = |event: Document| {
            let mut event = event;
            for field in ["lsid", "txnNumber"] {
                event.extend(command.get(field).map(|value| (field.to_owned(), value.clone())));
            }
            event
        };
        let change = |operation: &str, collection: &str, id: &Bson| {
            session(doc! {
                "operationType": operation, "ns": { "db": database, "coll": collection },
                "documentKey": { "_id": id.clone() }, "wallTime": DateTime::now(),
            })
        };
        let mut count = 0;
        if command.contains_key("insert") {
            let collection = name("insert");
            for fields in list("documents") {
                let id = fields.get("_id").unwrap();
                self.documents.entry(collection.clone()).or_default().push(fields.clone());
                self.log(change("insert", &collection, id), &collection, (None, Some(fields.clone())));
                count += 1;
            }
        } else if command.contains_key("update") {
            let collection = name("update");
            for one in list("updates") {
                let id = one.get_document("q").unwrap().get("_id").unwrap();
                let wanted = one.get_document("u").unwrap();
                let all = self.documents.entry(collection.clone()).or_default();
                let Some(fields) = all.iter_mut().find(|fields| fields.get("_id") == Some(id)) else {
                    continue;
                };
                let before = fields.clone();
                let operation = match wanted.get_document("$set") {
                    Ok(set) => {
                        fields.extend(set.clone());
                        "update"
                    }
                    Err(_) => {
                        *fields = doc! { "_id": id.clone() };
                        fields.extend(wanted.clone());
                        "replace"
                    }
                };
                let after = fields.clone();
                self.log(change(operation, &collection, id), &collection, (Some(before), Some(after)));
                count += 1;
            }
        } else if command.contains_key("delete") {
            let collection = name("delete");
            for one in list("deletes") {
                let id = one.get_document("q").unwrap().get("_id").unwrap();
                let all = self.documents.entry(collection.clone()).or_default();
                let Some(place) = all.iter().position(|fields| fields.get("_id") == Some(id)) else {
                    continue;
                };
                let before = all.remove(place);
                self.log(change("delete", &collection, id), &collection, (Some(before), None));
                count += 1;
            }
        }
        doc! { "ok": 1.0, "n": count, "nModified": count }
    }

    fn drop_collection(&mut self, database: &str, name: &str) {
        if self.documents.remove(name).is_some() {
            let event = doc! { "operationType": "drop", "ns": { "db": database, "coll": name } };
            self.log(event, name, (None, None));
        }
    }

    /// Counts reads down to the one that fails.
    fn is_failing(&mut self) -> bool {
        let left = self.reads.take();
        self.reads = left.and_then(|left| left.checked_sub(1));
        left == Some(0)
    }

    fn find(&self, command: &Document) -> Vec<Document> {
        let mut found = self.documents.get(command.get_str("find").unwrap()).cloned().unwrap_or_default();
        found.sort_by(|a, b| compare(a.get("_id").unwrap(), b.get("_id").unwrap()));
        if let Ok(least) = command.get_document("min") {
            let least = least.get("_id").unwrap();
            found.retain(|fields| compare(fields.get("_id").unwrap(), least) != Order::Less);
        }
        if let Some(limit) =
            command.get("limit").and_then(|limit| limit.as_i64().or(limit.as_i32().map(i64::from)))
        {
            found.truncate(usize::try_from(limit).unwrap());
        }
        found
    }

    fn watch(&self, command: &Document) -> Result<Cursor, Document> {
        let stages = command.get_array("pipeline").unwrap();
        let stage = |name: &str| stages.iter().find_map(|stage| stage.as_document()?.get(name));
        let options = stage("$changeStream").and_then(Bson::as_document).unwrap();
        let token = options.get_document("startAfter").or(options.get_document("resumeAfter"));
        let after = match (token, options.get_timestamp("startAtOperationTime")) {
            (Ok(token), _) => time_of(token.get_str("_data").unwrap()),
            (_, Ok(time)) => time.time - u32::from(time.increment <= 1),
            _ => self.time,
        };
        if after < self.forgotten {
            let labels = ["NonResumableChangeStreamError"];
            return Err(failure(286, "ChangeStreamHistoryLost", &labels));
        }
        let wanted = stage("$match").and_then(Bson::as_document).unwrap().get_array("$or").unwrap();
        let names = wanted[0].as_document().unwrap().get_document("ns.coll").unwrap();
        let names = names.get_array("$in").unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
        Ok(Cursor {
            after,
            names: names.collect(),
            looks_up: options.get_str("fullDocument").is_ok_and(|wanted| wanted == "updateLookup"),
            splits: self.splits && stage("$changeStreamSplitLargeEvent").is_some(),
        })
    }

    /// What a cursor gets now; the last part says whether it is over.
    fn batch(&self, cursor: &mut Cursor) -> (Vec<Document>, String, bool) {
        let mut events = Vec::new();
        let mut is_over = false;
        for logged in self.log.iter().filter(|logged| logged.time > cursor.after).collect::<Vec<_>>() {
            if events.len() >= BATCH || is_over {
                return (events, token(cursor.after), is_over);
            }
            cursor.after = logged.time;
            let kind = logged.event.get_str("operationType").unwrap();
            if cursor.names.contains(&logged.collection) || matches!(kind, "dropDatabase" | "invalidate") {
                events.extend(self.shown(cursor, logged));
                is_over = kind == "invalidate";
            }
        }
        cursor.after = cursor.after.max(self.time);
        (events, token(cursor.after), is_over)
    }

    fn shown(&self, cursor: &Cursor, logged: &Logged) -> Vec<Document> {
        let mut event = logged.event.clone();
        event.insert("clusterTime", Timestamp { time: logged.time, increment: 1 });
        let is_update = logged.event.get_str("operationType").is_ok_and(|kind| kind == "update");
        let id = logged.event.get_document("documentKey").ok().and_then(|key| key.get("_id"));
        let now = || {
            let all = self.documents.get(&logged.collection)?;
            all.iter().find(|fields| fields.get("_id") == id).cloned()
        };
        let after = if cursor.looks_up && is_update { now() } else { logged.after.clone() };
        if logged.after.is_some() {
            event.insert("fullDocument", after.map_or(Bson::Null, Bson::Document));
        }
        if let Some(before) = logged.before.clone().filter(|_| !cursor.looks_up) {
            event.insert("fullDocumentBeforeChange", before);
        }
        let whole = token(logged.time);
        if !cursor.splits || logged.after.is_none() {
            event.insert("_id", doc! { "_data": whole });
            return vec![event];
        }
        let document = event.remove("fullDocument").unwrap();
        event.insert("_id", doc! { "_data": format!("{whole}01") });
        event.insert("splitEvent", doc! { "fragment": 1, "of": 2 });
        let second = doc! {
            "_id": { "_data": format!("{whole}02") }, "splitEvent": { "fragment": 2, "of": 2 },
            "fullDocument": document,
        };
        vec![event, second]
    }
}

fn token(time: u32) -> String {
    format!("82{time:08X}000000012B0229296E04")
}

fn time_of(token: &str) -> u32 {
    u32::from_str_radix(&token[2..10], 16).unwrap()
}

fn failure(code: i32, name: &str, labels: &[&str]) -> Document {
    doc! { "ok": 0.0, "errmsg": name, "code": code, "codeName": name, "errorLabels": labels.to_vec() }
}

/// The order of an index: numbers come before texts.
fn compare(a: &Bson, b: &Bson) -> Order {
    match (a, b) {
        (Bson::Int32(a), Bson::Int32(b)) => a.cmp(b),
        (Bson::String(a), Bson::String(b)) => a.cmp(b),
        (Bson::Int32(_), _) => Order::Less,
        _ => Order::Greater,
    }
}

impl StandIn {
    fn new(addr: SocketAddr) -> Self {
        let world = World {
            set: Some("rs0".to_owned()),
            documents: BTreeMap::new(),
            log: Vec::new(),
            time: 100,
            forgotten: 0,
            splits: false,
            reads: None,
            cursors: BTreeMap::new(),
        };
        Self { addr, world: Mutex::new(world), news: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, command: &Document) -> Document {
        let name = command.keys().next().unwrap().as_str();
        let database = command.get_str("$db").unwrap_or_default().to_owned();
        match name {
            "hello" | "isMaster" | "ismaster" => self.hello(),
            "buildInfo" => doc! { "ok": 1.0, "version": "7.0.0", "versionArray": [7, 0, 0, 0] },
            "insert" | "update" | "delete" => {
                let told = self.lock().write(command, &database);
                self.news.notify_waiters();
                told
            }
            "drop" => {
                self.lock().drop_collection(&database, command.get_str("drop").unwrap());
                self.news.notify_waiters();
                doc! { "ok": 1.0 }
            }
            "dropDatabase" => {
                {
                    let mut world = self.lock();
                    let names: Vec<String> = world.documents.keys().cloned().collect();
                    names.iter().for_each(|name| world.drop_collection(&database, name));
                    for kind in ["dropDatabase", "invalidate"] {
                        let event = doc! { "operationType": kind, "ns": { "db": &database } };
                        world.log(event, "", (None, None));
                    }
                }
                self.news.notify_waiters();
                doc! { "ok": 1.0 }
            }
            "find" if self.lock().is_failing() => failure(8000, "AtlasError", &[]),
            "find" => {
                let found = self.lock().find(command);
                let ns = format!("{database}.{}", command.get_str("find").unwrap());
                doc! { "ok": 1.0, "cursor": { "id": 0_i64, "ns": ns, "firstBatch": found } }
            }
            "aggregate" => self.aggregate(command, &database),
            "getMore" => self.more(command, &database).await,
            "ping" | "endSessions" | "killCursors" | "create" | "collMod" => doc! { "ok": 1.0 },
            other => failure(59, &format!("CommandNotFound: {other}"), &[]),
        }
    }

    fn hello(&self) -> Document {
        let world = self.lock();
        let addr = self.addr.to_string();
        let mut told = doc! {
            "ok": 1.0, "helloOk": true, "isWritablePrimary": true, "ismaster": true, "readOnly": false,
            "maxBsonObjectSize": 16_777_216, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000,
            "logicalSessionTimeoutMinutes": 30, "minWireVersion": 0, "maxWireVersion": 21,
            "operationTime": Timestamp { time: world.time, increment: 1 },
        };
        if let Some(set) = &world.set {
            let hosts = vec![addr.clone()];
            told.extend(
                doc! { "setName": set, "setVersion": 1, "hosts": hosts, "me": &addr, "primary": addr },
            );
        }
        told
    }

    fn aggregate(&self, command: &Document, database: &str) -> Document {
        let mut world = self.lock();
        if world.set.is_none() {
            return failure(40573, "Location40573", &[]);
        }
        let mut cursor = match world.watch(command) {
            Ok(cursor) => cursor,
            Err(failure) => return failure,
        };
        let (events, token, is_over) = world.batch(&mut cursor);
        let id = world.cursors.keys().last().map_or(1, |last| last + 1);
        world.cursors.insert(id, cursor);
        cursor_reply(if is_over { 0 } else { id }, database, "firstBatch", events, &token)
    }

    async fn more(&self, command: &Document, database: &str) -> Document {
        let id = command.get_i64("getMore").unwrap();
        let limit = command.get("maxTimeMS").and_then(|ms| ms.as_i64().or(ms.as_i32().map(i64::from)));
        let limit = Duration::from_millis(limit.unwrap_or(1_000).try_into().unwrap());
        let until = tokio::time::Instant::now() + limit;
        loop {
            let news = self.news.notified();
            {
                let mut world = self.lock();
                let Some(mut cursor) = world.cursors.get(&id).cloned() else {
                    return failure(43, "CursorNotFound", &["ResumableChangeStreamError"]);
                };
                let (events, token, is_over) = world.batch(&mut cursor);
                world.cursors.insert(id, cursor);
                if !events.is_empty() || tokio::time::Instant::now() >= until {
                    return cursor_reply(if is_over { 0 } else { id }, database, "nextBatch", events, &token);
                }
            }
            let _ = tokio::time::timeout_at(until, news).await;
        }
    }
}

fn cursor_reply(id: i64, database: &str, batch: &str, events: Vec<Document>, token: &str) -> Document {
    let ns = format!("{database}.$cmd.aggregate");
    let mut cursor = doc! { "id": id, "ns": ns, "postBatchResumeToken": { "_data": token } };
    cursor.insert(batch, events);
    doc! { "ok": 1.0, "cursor": cursor }
}

/// Answers the messages of one connection until it ends.
async fn serve(server: Arc<StandIn>, mut socket: TcpStream) {
    loop {
        let mut head = [0; 16];
        if socket.read_exact(&mut head).await.is_err() {
            return;
        }
        let number = |at: usize| i32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut body = vec![0; usize::try_from(number(0)).unwrap() - 16];
        if socket.read_exact(&mut body).await.is_err() {
            return;
        }
        assert_eq!(number(12), OP_MSG, "the driver speaks OP_MSG only");
        let told = server.answer(&read(&body)).await;
        let told = mongodb::bson::serialize_to_vec(&told).unwrap();
        let length = i32::try_from(16 + 5 + told.len()).unwrap();
        let mut reply = Vec::new();
        for part in [length, 0, number(4), OP_MSG, 0] {
            reply.extend(part.to_le_bytes());
        }
        reply.push(0);
        reply.extend(told);
        if socket.write_all(&reply).await.is_err() {
            return;
        }
    }
}

/// The command of a message: its body, and its sequences of documents as lists.
fn read(body: &[u8]) -> Document {
    let mut rest = &body[4..];
    let mut command = Document::new();
    let length = |bytes: &[u8]| usize::try_from(i32::from_le_bytes(bytes[..4].try_into().unwrap())).unwrap();
    let parse = |bytes: &[u8]| mongodb::bson::deserialize_from_slice::<Document>(bytes).unwrap();
    while let Some((kind, after)) = rest.split_first() {
        let (section, next) = after.split_at(length(after));
        rest = next;
        match kind {
            0 => {
                let mut whole = parse(section);
                whole.extend(std::mem::take(&mut command));
                command = whole;
            }
            _ => {
                let end = section[4..].iter().position(|byte| *byte == 0).unwrap() + 4;
                let name = String::from_utf8(section[4..end].to_vec()).unwrap();
                let mut documents = &section[end + 1..];
                let mut list = Vec::new();
                while !documents.is_empty() {
                    let (one, next) = documents.split_at(length(documents));
                    list.push(Bson::Document(parse(one)));
                    documents = next;
                }
                command.insert(name, list);
            }
        }
    }
    command
}
