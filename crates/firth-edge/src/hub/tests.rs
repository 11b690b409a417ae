//! Laws of the hub, over random clients, tenants, filters, windows and disconnections.

use super::*;
use crate::Limits;
use crate::auth::Collections;
use crate::journal::Window;
use crate::protocol::SubscriptionRequest as Request;
use firth_router::Tenant;
use firth_router::event::{Document, Operation};
use futures_util::FutureExt as _;
use proptest::prelude::*;
use serde_json::{Value, json};

const TENANTS: [&str; 3] = ["t0", "t1", "t2"];

pub(super) fn grant(tenant: &str) -> Grant {
    let tenant = Tenant::new(tenant).unwrap();
    Grant { tenant, user: None, collections: Collections::ALL, expires: None, root: [0; 32] }
}

pub(super) fn event(tenant: &str, collection: &str, key: &str, n: i64) -> Event {
    let document = Document::from_value(&json!({"n": n, "tenant": tenant})).unwrap();
    Event::new(Operation::Update, Tenant::new(tenant).unwrap(), collection, key).with_after(document)
}

pub(super) fn hub(config: Config) -> Hub {
    Hub::start(config).unwrap()
}

/// Everything that waits, as JSON, written.
pub(super) fn drain(session: &mut Session) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let step = session.take();
        let is_over = step.messages.is_empty() && session.is_idle() || step.close.is_some();
        all.extend(
            step.messages.iter().map(|message| serde_json::from_str::<Value>(message.text()).unwrap()),
        );
        session.written();
        if is_over {
            return all;
        }
    }
}

pub(super) fn of_type(messages: &[Value], kind: &str) -> Vec<Value> {
    messages.iter().filter(|message| message["type"] == kind).cloned().collect()
}

pub(super) fn position(message: &Value) -> Option<Position> {
    message["at"].as_str().map(|at| at.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_client_gets_what_it_asked_for_in_order_with_its_own_names() {
    let hub = hub(Config::default());
    let mut session = hub.join(grant("t0"), None).unwrap();
    let requests = [
        Request::collection("all \"orders\"", "orders"),
        Request { document: Some("7".into()), ..Request::collection("seven", "orders") },
        Request { filter: Some("doc.n > 5".into()), ..Request::collection("big", "orders") },
    ];
    session.subscribe(&requests, None).unwrap();
    for (key, n) in [("7", 1), ("8", 9), ("7", 7)] {
        hub.publish(event("t0", "orders", key, n)).unwrap();
    }
    hub.publish(event("t0", "items", "7", 9)).unwrap();
    let messages = drain(&mut session);
    assert_eq!(messages[0]["type"], "hello");
    assert_eq!(messages[1]["subscriptions"], json!(["all \"orders\"", "seven", "big"]));
    let events = of_type(&messages, "event");
    let subs: Vec<_> = events
        .iter()
        .map(|event| {
            let mut subs: Vec<_> = event["subs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|sub| sub.as_str().unwrap().to_owned())
                .collect();
            subs.sort();
            subs
        })
        .collect();
    assert_eq!(
        subs,
        [
            vec!["all \"orders\"", "seven"],
            vec!["all \"orders\"", "big"],
            vec!["all \"orders\"", "big", "seven"]
        ]
    );
    assert_eq!(
        events[2]["event"],
        json!({"op": "update", "collection": "orders", "key": "7", "after": {"n": 7, "tenant": "t0"}})
    );
    session.unsubscribe(&["all \"orders\"".into(), "unknown".into()]);
    hub.publish(event("t0", "orders", "9", 0)).unwrap();
    assert_eq!(drain(&mut session).len(), 1, "only the answer");
    assert!(hub.status().accounting.balance());
}

#[tokio::test(start_paused = true)]
async fn a_document_that_leaves_a_filter_is_told_as_leaving() {
    let hub = hub(Config::default());
    let mut session = hub.join(grant("t0"), None).unwrap();
    session
        .subscribe(&[Request { filter: Some("doc.n > 5".into()), ..Request::collection("big", "c") }], None)
        .unwrap();
    let before = Document::from_value(&json!({"n": 9})).unwrap();
    hub.publish(event("t0", "c", "k", 1).with_before(before)).unwrap();
    let events = of_type(&drain(&mut session), "event");
    assert_eq!((&events[0]["leaves"], &events[0]["subs"]), (&json!(["big"]), &Value::Null));
}

#[tokio::test(start_paused = true)]
async fn refusals_name_the_field_and_the_limit_and_change_nothing() {
    let limits = Limits { subscriptions: 3, slow_filters: 1, per_tenant: 2, ..Limits::default() };
    let hub = hub(Config { limits, ..Config::default() });
    let narrow = Grant { collections: Collections::of(["c"]), ..grant("t0") };
    let mut session = hub.join(narrow, None).unwrap();
    let ok = Request::collection("a", "c");
    let slow =
        |id: &str, n: u32| Request { filter: Some(format!("doc.n != {n}")), ..Request::collection(id, "c") };
    let cases = [
        (vec![], "subscriptions", None),
        (vec![ok.clone(), Request::collection("b", "d")], "collection", None),
        (vec![ok.clone(), ok.clone()], "id", None),
        (vec![Request::collection("", "c")], "id", Some(64)),
        (vec![Request { filter: Some("doc.".into()), ..ok.clone() }], "filter", None),
        (
            vec![Request { filter: Some("true".into()), conditions: Some(vec![]), ..ok.clone() }],
            "conditions",
            None,
        ),
        (vec![slow("x", 1), slow("y", 2)], "filter", Some(1)),
        ((0..4).map(|n| Request::collection(n.to_string(), "c")).collect(), "subscriptions", Some(3)),
    ];
    for (requests, field, limit) in cases {
        let error = session.subscribe(&requests, None).unwrap_err();
        assert_eq!((error.field.as_deref(), error.limit), (Some(field), limit), "{error}");
        assert_eq!(hub.status().subscriptions, 0, "all or nothing: {error}");
    }
    session.subscribe(&[ok], None).unwrap();
    let late = session.subscribe(&[Request::collection("b", "c")], Some(session.head())).unwrap_err();
    assert_eq!(late.field.as_deref(), Some("after"));
    let _second = hub.join(grant("t0"), None).unwrap();
    assert_eq!(hub.join(grant("t0"), None).unwrap_err().limit, Some(2));
    assert!(hub.join(grant("t1"), None).is_ok(), "another tenant has room");
}

#[tokio::test(start_paused = true)]
async fn a_position_of_another_tenant_or_process_requires_a_resync() {
    let hub = hub(Config::default());
    let other = hub.join(grant("t1"), None).unwrap();
    hub.publish(event("t1", "c", "k", 1)).unwrap();
    let mut session = hub.join(grant("t0"), None).unwrap();
    session.subscribe(&[Request::collection("a", "c")], Some(other.head())).unwrap();
    let messages = drain(&mut session);
    assert_eq!((&messages[2]["resumed"], &messages[1]["type"]), (&json!(false), &json!("resync-required")));
    assert_eq!(messages[1]["reason"], "unknown-epoch");
    hub.publish(event("t0", "c", "k", 1)).unwrap();
    assert_eq!(of_type(&drain(&mut session), "event").len(), 1, "live all the same");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_without_clients_is_forgotten_after_the_window() {
    let hub = hub(Config::default());
    let session = hub.join(grant("t0"), None).unwrap();
    let at = session.head();
    drop(session);
    assert!(hub.publish(event("t0", "c", "k", 1)).unwrap().at.is_some(), "somebody may come back");
    tokio::time::sleep(hub.config().window.age + Duration::from_secs(1)).await;
    assert_eq!(hub.status().tenants, 0);
    assert_eq!(hub.publish(event("t0", "c", "k", 2)).unwrap().at, None);
    let mut session = hub.join(grant("t0"), None).unwrap();
    session.subscribe(&[Request::collection("a", "c")], Some(at)).unwrap();
    assert_eq!(of_type(&drain(&mut session), "resync-required").len(), 1, "no hole is hidden");
}

#[tokio::test(start_paused = true)]
async fn presence_is_told_as_it_is_and_stays_in_its_tenant() {
    let hub = hub(Config::default());
    let named = |tenant: &str, user: &str| Grant { user: Some(user.into()), ..grant(tenant) };
    let request =
        Request { presence: true, document: Some("42".into()), ..Request::collection("room", "docs") };
    let mut ann = hub.join(named("t0", "ann"), None).unwrap();
    ann.subscribe(std::slice::from_ref(&request), None).unwrap();
    let mut bob = hub.join(named("t0", "bob"), None).unwrap();
    bob.subscribe(std::slice::from_ref(&request), None).unwrap();
    let mut eve = hub.join(named("t1", "eve"), None).unwrap();
    eve.subscribe(std::slice::from_ref(&request), None).unwrap();
    tokio::time::sleep(2 * HOUSEKEEPING).await;
    let seen = |session: &mut Session| {
        of_type(&drain(session), "presence").pop().map(|message| message["members"].clone())
    };
    assert_eq!(seen(&mut ann), Some(json!(["ann", "bob"])));
    assert_eq!(seen(&mut eve), Some(json!(["eve"])));
    drop(bob);
    tokio::time::sleep(2 * HOUSEKEEPING).await;
    assert_eq!((seen(&mut ann), seen(&mut eve)), (Some(json!(["ann"])), None));
}

#[tokio::test(start_paused = true)]
async fn closing_tells_every_client_when_to_come_back() {
    let hub = hub(Config::default());
    let mut session = hub.join(grant("t0"), None).unwrap();
    session.subscribe(&[Request::collection("a", "c")], None).unwrap();
    hub.publish(event("t0", "c", "k", 1)).unwrap();
    hub.drain();
    let step = session.take();
    assert_eq!(step.close.unwrap().0, 1012);
    assert!(step.retry.unwrap() < hub.config().retry_spread);
    let kinds: Vec<Value> = step
        .messages
        .iter()
        .map(|message| serde_json::from_str::<Value>(message.text()).unwrap()["type"].clone())
        .collect();
    assert_eq!(kinds, ["hello", "subscribed", "event", "bye"], "what waited is sent first");
    session.written();
    drop(session);
    assert!(hub.close(Duration::from_secs(60)).await);
    assert_eq!(hub.join(grant("t0"), None).unwrap_err().code, Code::Unavailable);
    assert_eq!(hub.status().accounting, Accounting { taken: 1, sent: 1, ..Accounting::default() });
}

#[derive(Clone, Debug)]
enum Act {
    Publish {
        tenant: usize,
        collection: u8,
        key: u8,
        n: i64,
        /// More sessions come with it.
        goes_on: bool,
    },
    /// The client reads so much of what waits.
    Read(usize),
    /// The connection breaks; what was taken but not read is lost.
    Break {
        client: usize,
        unread: usize,
    },
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        10 => (0..3_usize, 0..2_u8, 0..3_u8, 0..10_i64, any::<bool>()).prop_map(|(tenant, collection, key, n, goes_on)| Act::Publish { tenant, collection, key, n, goes_on }),
        4 => (0..4_usize).prop_map(Act::Read),
        3 => (0..4_usize, 0..6_usize).prop_map(|(client, unread)| Act::Break { client, unread }),
        1 => (0..40_u64).prop_map(Act::Wait),
    ]
}

/// A client that remembers what it saw and comes back behind it.
struct Client {
    tenant: &'static str,
    least: i64,
    session: Option<Session>,
    at: Option<Position>,
    seen: Vec<i64>,
    /// How many of the expected events came before the last resync.
    excused: usize,
    expected: Vec<i64>,
}

impl Client {
    fn connect(&mut self, hub: &Hub) {
        let mut session = hub.join(grant(self.tenant), None).unwrap();
        let filter = Some(format!("doc.n >= {}", self.least));
        session
            .subscribe(&[Request { filter, ..Request::collection("mine", "c0") }], self.at.clone())
            .unwrap();
        self.session = Some(session);
    }

    /// Reads all that waits, but loses the last `unread` messages if the connection breaks.
    fn read(&mut self, unread: Option<usize>) {
        let Some(session) = &mut self.session else { return };
        let messages = drain(session);
        let keep = messages.len().saturating_sub(unread.unwrap_or(0));
        for message in &messages[..keep] {
            match message["type"].as_str().unwrap() {
                "event" => self.seen.push(message["event"]["observed_ms"].as_i64().unwrap()),
                "resync-required" => {
                    // The application fetches its state anew: it knows everything up to this place.
                    self.seen.clone_from(&self.expected);
                    self.seen.truncate(self.excused);
                }
                "gap" => panic!("nobody is slow here"),
                _ => {}
            }
            if let Some(at) = position(message) {
                self.at = Some(at);
            }
        }
        if unread.is_some() {
            self.session = None;
        }
    }
}

fn world(hub: &Hub) -> Vec<Client> {
    let make = |(at, tenant): (usize, &'static str)| Client {
        tenant,
        least: (at as i64) * 3,
        session: None,
        at: None,
        seen: Vec::new(),
        excused: 0,
        expected: Vec::new(),
    };
    let mut clients: Vec<Client> = TENANTS.into_iter().chain(["t0"]).enumerate().map(make).collect();
    for client in &mut clients {
        client.connect(hub);
        client.read(None);
    }
    clients
}

/// Runs the acts; every client must have seen every event that it wants once and in order, or have
/// been told to start anew. The time passes at once: to tick through it would cost more than all
/// the rest. Then hubs keep house.
pub(super) async fn leap(time: Duration) {
    tokio::time::advance(time).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
}

async fn run(acts: Vec<Act>, window: Window) {
    let hub = hub(Config { window, ..Config::default() });
    let mut clients = world(&hub);
    let mut number = 0;
    let mut burst = None;
    for act in acts {
        match act {
            Act::Publish { tenant, collection, key, n, goes_on } => {
                number += 1;
                let mut event = event(TENANTS[tenant], &format!("c{collection}"), &key.to_string(), n);
                event.observed_ms = number;
                burst.get_or_insert_with(|| hub.burst()).publish(event).unwrap();
                if !goes_on {
                    burst = None;
                }
                for client in clients
                    .iter_mut()
                    .filter(|client| client.tenant == TENANTS[tenant] && collection == 0 && n >= client.least)
                {
                    client.expected.push(number as i64);
                }
            }
            Act::Read(client) => clients[client].read(None),
            Act::Break { client, unread } => {
                let client = &mut clients[client];
                if client.session.is_some() {
                    client.read(Some(unread));
                } else {
                    client.excused = client.expected.len();
                    client.connect(&hub);
                }
            }
            Act::Wait(seconds) => leap(Duration::from_secs(seconds)).await,
        }
    }
    drop(burst);
    for client in &mut clients {
        if client.session.is_none() {
            client.excused = client.expected.len();
            client.connect(&hub);
        }
        client.read(None);
        assert_eq!(client.seen, client.expected, "{} from {}", client.tenant, client.least);
    }
    let accounting = hub.status().accounting;
    assert!(accounting.balance() && accounting.queued == 0, "{accounting:?}");
    drop(clients);
    assert_eq!((hub.status().connections, hub.status().subscriptions), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn who_resumes_sees_every_event_once_and_in_order_or_must_start_anew(
        acts in proptest::collection::vec(act(), 1..80),
        events in 1..20_usize,
        age in 1..60_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let window = Window { events, age: Duration::from_secs(age), ..Window::default() };
        runtime.block_on(run(acts, window));
    }

    #[test]
    fn no_tenant_ever_sees_anothers_event(
        requests in proptest::collection::vec((0..3_usize, 0..2_u8, proptest::option::of(0..3_u8), 0..4_u8, any::<bool>()), 1..12),
        events in proptest::collection::vec((0..3_usize, 0..2_u8, 0..3_u8, 0..10_i64), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(isolation(requests, events));
    }
}

type RandomRequest = (usize, u8, Option<u8>, u8, bool);

async fn isolation(requests: Vec<RandomRequest>, events: Vec<(usize, u8, u8, i64)>) {
    let hub = hub(Config::default());
    let starts: Vec<Session> = TENANTS.map(|tenant| hub.join(grant(tenant), None).unwrap()).into();
    let (early, late) = events.split_at(events.len() / 2);
    let publish = |list: &[(usize, u8, u8, i64)]| {
        let mut burst = hub.burst();
        for (tenant, collection, key, n) in list {
            burst.publish(event(TENANTS[*tenant], &format!("c{collection}"), &key.to_string(), *n)).unwrap();
        }
    };
    let before: Vec<Position> = starts.iter().map(Session::head).collect();
    publish(early);
    let mut sessions: Vec<(RandomRequest, Session)> = requests
        .into_iter()
        .enumerate()
        .map(|(at, request)| {
            let (tenant, collection, key, filter, resumes) = request;
            // Filters that would match any tenant's document, if they ever met one.
            let filter = ["true", "doc.n >= 0", "doc.tenant != ''", "doc.tenant == 't0' || doc.n < 5"]
                [usize::from(filter)];
            let mut session = hub.join(grant(TENANTS[tenant]), None).unwrap();
            let asked = Request {
                document: key.map(|key| key.to_string()),
                filter: Some(filter.into()),
                // More names than messages that are shared.
                ..Request::collection(format!("w{}", at % 6), format!("c{collection}"))
            };
            session.subscribe(&[asked], resumes.then(|| before[tenant].clone())).unwrap();
            (request, session)
        })
        .collect();
    publish(late);
    for (request, session) in &mut sessions {
        let (tenant, collection, key, filter, resumes) = *request;
        let wanted = |list: &[(usize, u8, u8, i64)]| {
            list.iter()
                .filter(|event| {
                    let passes = filter != 3 || tenant == 0 || event.3 < 5;
                    event.0 == tenant
                        && event.1 == collection
                        && key.is_none_or(|key| key == event.2)
                        && passes
                })
                .count()
        };
        let expected = wanted(late) + if resumes { wanted(early) } else { 0 };
        let seen = of_type(&drain(session), "event");
        assert!(seen.iter().all(|event| event["event"]["after"]["tenant"] == TENANTS[tenant]), "{seen:?}");
        assert_eq!(seen.len(), expected);
    }
    assert!(hub.status().accounting.balance());
}

#[tokio::test(start_paused = true)]
async fn a_hub_with_little_to_do_writes_at_once_and_a_busy_one_once_in_a_tick() {
    let hub = hub(Config::default());
    let mut sessions: Vec<Session> = (0..300).map(|_| hub.join(grant("t0"), None).unwrap()).collect();
    for session in &mut sessions {
        session.subscribe(&[Request::collection("w", "c")], None).unwrap();
        while session.ready().now_or_never().is_some() {
            drain(session);
        }
    }
    // All have just written.
    let next_tick = tokio::time::Instant::now() + hub.config().tick;
    tokio::time::sleep(hub.config().tick / 2).await;
    hub.publish(event("t0", "c", "k", 1)).unwrap();
    let woken =
        |sessions: &[Session]| sessions.iter().filter(|one| one.ready().now_or_never().is_some()).count();
    assert_eq!(woken(&sessions), 128);
    tokio::time::sleep_until(next_tick + Duration::from_millis(2)).await;
    assert_eq!(woken(&sessions), 300 - 128, "the rest when the tick of their last write is over");
}

/// What a burst brings reaches each session as one batch, and those that want the same share it.
#[tokio::test(start_paused = true)]
async fn sessions_that_want_the_same_of_a_burst_share_its_bytes() {
    let hub = hub(Config::default());
    let requests = ["doc.n >= 0", "doc.n >= 0", "doc.n >= 2", "doc.n == 0", "doc.n >= 0"];
    let mut sessions: Vec<Session> = requests
        .map(|filter| {
            let mut session = hub.join(grant("t0"), None).unwrap();
            session
                .subscribe(&[Request { filter: Some(filter.into()), ..Request::collection("w", "c") }], None)
                .unwrap();
            drain(&mut session);
            session
        })
        .into();
    sessions[4].unsubscribe(&["w".into()]);
    sessions[4].subscribe(&[Request::collection("another name", "c")], None).unwrap();
    drain(&mut sessions[4]);
    let mut burst = hub.burst();
    for n in 0..4 {
        burst.publish(event("t0", "c", "k", n)).unwrap();
    }
    drop(burst);
    let pieces: Vec<WriteOps> = sessions.iter_mut().map(Session::take_writes).collect();
    assert!(pieces.iter().all(|pieces| pieces.list.len() == 1), "one piece each");
    let places: Vec<*const u8> = pieces.iter().map(|pieces| pieces.list[0].as_ref().as_ptr()).collect();
    assert_eq!(places[0], places[1]);
    let different: std::collections::HashSet<_> = places.into_iter().collect();
    assert_eq!(different.len(), 4);
}

/// A number of the index can change hands inside of a burst.
#[tokio::test(start_paused = true)]
async fn who_comes_in_the_middle_of_a_burst_gets_what_comes_behind() {
    let hub = hub(Config::default());
    let join = || {
        let mut session = hub.join(grant("t0"), None).unwrap();
        session.subscribe(&[Request::collection("w", "c")], None).unwrap();
        drain(&mut session);
        session
    };
    let mut stays = join();
    let leaves = join();
    let mut burst = hub.burst();
    let published =
        |n: i64, burst: &mut Burst<'_>| burst.publish(event("t0", "c", "k", n)).unwrap().connections;
    assert_eq!(published(1, &mut burst), 2);
    drop(leaves);
    let mut comes = join();
    assert_eq!((published(2, &mut burst), published(3, &mut burst)), (2, 2));
    comes.unsubscribe(&["w".into()]);
    assert_eq!(published(4, &mut burst), 1);
    drop(burst);
    let numbers = |session: &mut Session| {
        let events = of_type(&drain(session), "event");
        events.iter().map(|event| event["event"]["after"]["n"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((numbers(&mut stays), numbers(&mut comes)), (vec![1, 2, 3, 4], vec![2, 3]));
}

/// A socket that takes this many bytes.
#[derive(Default)]
struct Pipe {
    room: Mutex<usize>,
    bytes: Mutex<Vec<u8>>,
}

impl RawSocket for Pipe {
    fn try_write(&self, pieces: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
        let (all, mut room) =
            (pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>(), self.room.lock().unwrap());
        let written = all.len().min(*room);
        *room -= written;
        self.bytes.lock().unwrap().extend_from_slice(&all[..written]);
        if written == 0 { Err(std::io::ErrorKind::WouldBlock.into()) } else { Ok(written) }
    }
}

#[tokio::test(start_paused = true)]
async fn events_go_along_the_line_and_wake_the_task_only_for_what_does_not_fit() {
    let hub = hub(Config::default());
    let mut session = hub.join(grant("t0"), None).unwrap();
    session.subscribe(&[Request::collection("w", "c")], None).unwrap();
    let pipe = Arc::new(Pipe::default());
    session.attach(pipe.clone());
    while session.ready().now_or_never().is_some() {
        drain(&mut session);
    }
    *pipe.room.lock().unwrap() = usize::MAX;
    hub.publish(event("t0", "c", "k", 1)).unwrap();
    tokio::time::sleep(2 * hub.config().tick).await;
    let first = pipe.bytes.lock().unwrap().len();
    assert!(first > 0, "it was written");
    assert!(session.ready().now_or_never().is_none(), "and nobody woken");
    assert_eq!(hub.status().accounting.sent, 1);
    *pipe.room.lock().unwrap() = 10;
    hub.publish(event("t0", "c", "k", 2)).unwrap();
    session.ready().await;
    let rest: usize = session.take_writes().list.iter().map(|piece| piece.as_ref().len()).sum();
    assert_eq!((pipe.bytes.lock().unwrap().len(), rest), (first + 10, first - 10), "as long as the first");
    *pipe.room.lock().unwrap() = usize::MAX;
    hub.publish(event("t0", "c", "k", 3)).unwrap();
    tokio::time::sleep(2 * hub.config().tick).await;
    assert_eq!(pipe.bytes.lock().unwrap().len(), first + 10, "the task has not written the rest yet");
    session.written();
    assert!(session.ready().now_or_never().is_some(), "so the third is for it as well");
    assert_eq!(of_type(&drain(&mut session), "event").len(), 1);
    assert!(hub.status().accounting.balance() && hub.status().accounting.sent == 3);
}
