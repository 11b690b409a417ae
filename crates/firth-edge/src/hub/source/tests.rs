//! The law of moving: a client that goes from gateway to gateway, while they lag and restart, sees
//! each event behind where it stands once and in order, or is told to start anew.

use crate::auth::{Collections, Grant};
use crate::hub::tests::leap;
use crate::hub::{Hub, Session};
use crate::journal::Window;
use crate::position::{Offsets, Position};
use crate::protocol::SubscriptionRequest;
use crate::{Config, SlowPolicy};
use firth::RecordId;
use firth_router::Tenant;
use firth_router::event::{Event, Operation};
use proptest::prelude::*;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EPOCH: u64 = 7;

/// What each partition holds: records of the client's tenant (0, 1), of another (2), or no events
/// at all.
type Log = Vec<Vec<u8>>;

#[derive(Clone, Debug)]
enum Act {
    /// A record of some kind, at the end of a partition.
    Append(usize, u8),
    /// A gateway reads some records of a partition.
    Read(usize, usize, usize),
    /// A gateway starts anew, with some records of the past.
    Restart(usize, usize),
    /// The client reads what waits.
    Hear,
    /// The client loses the last messages, and goes to a gateway.
    Move(usize, usize),
    Wait(u64),
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..4_usize, 0..4_u8).prop_map(|(partition, kind)| Act::Append(partition, kind)),
        8 => (0..2_usize, 0..4_usize, 1..6_usize).prop_map(|(at, partition, count)| Act::Read(at, partition, count)),
        1 => (0..2_usize, 0..12_usize).prop_map(|(at, past)| Act::Restart(at, past)),
        5 => Just(Act::Hear),
        4 => (0..2_usize, 0..4_usize).prop_map(|(at, lost)| Act::Move(at, lost)),
        1 => (0..100_u64).prop_map(Act::Wait),
    ]
}

/// Records come some time apart.
fn record_id(seq: u64) -> RecordId {
    RecordId::new(1000 * seq, seq)
}

/// The next record of the client's tenant behind this one.
fn next_in(log: &[u8], known: u64) -> Option<u64> {
    (known + 1..=log.len() as u64).find(|seq| log[*seq as usize - 1] < 2)
}

/// A gateway and how much of each partition it has read.
struct Gateway {
    hub: Hub,
    read: Vec<usize>,
}

impl Gateway {
    fn start(window: Window, log: &Log, past: usize) -> Self {
        let hub = Hub::start(Config { window, slow: SlowPolicy::Gap, ..Config::default() }).unwrap();
        assert!(hub.follow(EPOCH, log.len()));
        let read = log.iter().map(|records| records.len().saturating_sub(past)).collect();
        let mut gateway = Self { hub, read };
        // A gateway admits no client before it has read the window.
        gateway.read_all(log);
        for (partition, records) in (0..).zip(log) {
            gateway.hub.begin(partition, record_id(records.len() as u64));
        }
        gateway
    }

    fn read_all(&mut self, log: &Log) {
        for partition in 0..log.len() {
            self.read(log, partition, usize::MAX);
        }
    }

    fn read(&mut self, log: &Log, partition: usize, count: usize) {
        let mut burst = self.hub.burst();
        let read = &mut self.read[partition];
        for kind in log[partition].iter().skip(*read).take(count) {
            *read += 1;
            let key = format!("{partition}/{read}");
            let event =
                |tenant: &str| Event::new(Operation::Insert, Tenant::new(tenant).unwrap(), "c", key.as_str());
            let event = match kind {
                0 | 1 => Some(event("mine")),
                2 => Some(event("other")),
                _ => None,
            };
            burst.arrive(event, (partition as u32, record_id(*read as u64))).unwrap();
        }
    }
}

struct Client {
    session: Session,
    at: Option<Position>,
    /// The application knows everything of its tenant up to here.
    known: Offsets,
}

impl Client {
    fn connect(gateway: &Gateway, at: Option<Position>) -> Session {
        let tenant = Tenant::new("mine").unwrap();
        let grant = Grant { tenant, user: None, collections: Collections::ALL, expires: None, root: [0; 32] };
        let mut session = gateway.hub.join(grant, None).unwrap();
        session.subscribe(&[SubscriptionRequest::collection("w", "c")], at).unwrap();
        session
    }

    /// Takes what waits, but for the last messages, and checks the law.
    fn hear(&mut self, log: &Log, lost: usize) -> Result<(), TestCaseError> {
        let mut messages = Vec::new();
        loop {
            let step = self.session.take();
            self.session.written();
            if step.messages.is_empty() && self.session.is_idle() {
                break;
            }
            messages
                .extend(step.messages.iter().map(|one| serde_json::from_str::<Value>(one.text()).unwrap()));
        }
        messages.truncate(messages.len().saturating_sub(lost));
        for message in messages {
            let at: Option<Position> = message["at"].as_str().map(|at| at.parse().unwrap());
            match message["type"].as_str().unwrap() {
                "event" => {
                    let (partition, seq) = message["event"]["key"].as_str().unwrap().split_once('/').unwrap();
                    let partition: u32 = partition.parse().unwrap();
                    let seq: u64 = seq.parse().unwrap();
                    let next = next_in(&log[partition as usize], self.known.get(partition));
                    prop_assert_eq!(Some(seq), next, "each of a partition once and in order");
                    prop_assert_eq!(at.as_ref().unwrap().offsets.get(partition), seq);
                    self.known.raise(partition, seq);
                }
                "resync-required" => self.known = at.clone().unwrap().offsets,
                "subscribed" if self.at.is_none() => self.known = at.clone().unwrap().offsets,
                _ => {}
            }
            if let Some(at) = at {
                prop_assert_eq!(at.epoch, EPOCH);
                for (partition, records) in (0..).zip(log) {
                    let next = next_in(records, self.known.get(partition));
                    let is_there = next.is_none_or(|next| next > at.offsets.get(partition));
                    prop_assert!(is_there, "nothing up to {at} is missing: {partition}/{next:?}");
                }
                self.at = Some(at);
            }
        }
        Ok(())
    }
}

fn run(acts: Vec<Act>, partitions: usize, window: Window) -> Result<(), TestCaseError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut log: Log = vec![vec![0, 2, 0]; partitions];
        let mut gateways = [Gateway::start(window, &log, 3), Gateway::start(window, &log, 0)];
        let known = Offsets::default();
        let mut client = Client { session: Client::connect(&gateways[0], None), at: None, known };
        let mut home = 0;
        for act in acts {
            match act {
                Act::Append(partition, kind) => log[partition % partitions].push(kind),
                Act::Read(at, partition, count) => gateways[at].read(&log, partition % partitions, count),
                Act::Hear => client.hear(&log, 0)?,
                Act::Wait(seconds) => leap(Duration::from_secs(seconds)).await,
                Act::Restart(at, past) => {
                    gateways[at] = Gateway::start(window, &log, past);
                    if at == home {
                        client.session = Client::connect(&gateways[home], client.at.clone());
                    }
                }
                Act::Move(at, lost) => {
                    client.hear(&log, lost)?;
                    home = at;
                    client.session = Client::connect(&gateways[home], client.at.clone());
                }
            }
        }
        gateways[home].read_all(&log);
        client.hear(&log, 0)?;
        for (partition, records) in (0..).zip(&log) {
            let next = next_in(records, client.known.get(partition));
            prop_assert_eq!(next, None, "all is known at the end");
        }
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn who_moves_sees_each_event_once_and_in_order_or_must_start_anew(
        acts in prop::collection::vec(acts(), 0..80),
        partitions in prop_oneof![Just(1_usize), Just(4)],
        events in 1..12_usize,
    ) {
        run(acts, partitions, Window { events, ..Window::default() })?;
    }
}

/// The order in which gateways read partitions differs; what was seen elsewhere is not seen again,
/// and nothing between is left out.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_further_in_one_partition_and_less_far_in_another_gets_the_rest() {
    let log: Log = vec![vec![0; 3], vec![0; 3]];
    let none: Log = vec![Vec::new(); 2];
    let (mut one, mut two) =
        (Gateway::start(Window::default(), &none, 0), Gateway::start(Window::default(), &none, 0));
    let known = Offsets::default();
    let mut client = Client { session: Client::connect(&one, None), at: None, known };
    one.read(&log, 0, 3);
    two.read_all(&log);
    client.hear(&log, 0).unwrap();
    assert_eq!(client.at.as_ref().unwrap().to_string(), "0000000000000007:3.0.03000");
    client.session = Client::connect(&two, client.at.clone());
    client.hear(&log, 2).unwrap();
    assert_eq!(
        client.at.as_ref().unwrap().to_string(),
        "0000000000000007:3.1.03000-0-2000",
        "one of partition 1 was seen"
    );
    client.session = Client::connect(&two, client.at.clone());
    client.hear(&log, 0).unwrap();
    assert_eq!(client.at.unwrap().to_string(), "0000000000000007:3.3.03000");
}

/// The log loses records 3 to 5 and goes on with others.
#[tokio::test(start_paused = true)]
async fn k04_positions_of_a_log_that_went_back_do_not_hold_anywhere() {
    let log: Log = vec![vec![0; 5], vec![0; 2]];
    let mut one = Gateway::start(Window::default(), &vec![Vec::new(); 2], 0);
    let mut client = Client { session: Client::connect(&one, None), at: None, known: Offsets::default() };
    one.read(&log, 1, 2);
    one.read(&log, 0, 2);
    client.hear(&log, 0).unwrap();
    let survived = client.at.clone();
    one.read(&log, 0, 3);
    client.hear(&log, 0).unwrap();
    let lost = client.at.clone();
    assert_eq!(lost.as_ref().unwrap().to_string(), "0000000000000007:5.2.05000-0-3000");
    // A gateway that was there, and one that comes later and has read only what there is now.
    let two = Gateway::start(Window::default(), &vec![vec![0; 2]; 2], 2);
    let event =
        |seq: u64| Event::new(Operation::Insert, Tenant::new("mine").unwrap(), "c", format!("0/{seq}"));
    let later = |seq: u64| RecordId::new(90_000 + 1000 * seq, seq);
    one.hub.lose(0, later(3));
    for seq in 3..=7 {
        for gateway in [&one, &two] {
            gateway.hub.burst().arrive(Some(event(seq)), (0, later(seq))).unwrap();
        }
    }
    let types = |session: &mut Session| {
        let mut types = Vec::new();
        while let step = session.take()
            && !step.messages.is_empty()
        {
            session.written();
            let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            types.extend(
                step.messages.iter().map(|one| parse(one.text())["type"].as_str().unwrap().to_owned()),
            );
        }
        types
    };
    assert_eq!(types(&mut client.session), ["resync-required", "event", "event", "event", "event", "event"]);
    for gateway in [&one, &two] {
        let resumed = types(&mut Client::connect(gateway, lost.clone()));
        assert!(resumed.contains(&"resync-required".to_owned()), "{resumed:?}");
        let head = gateway.hub.core().head_of(&Tenant::new("mine").unwrap());
        let live = types(&mut Client::connect(gateway, Some(head)));
        assert!(!live.contains(&"resync-required".to_owned()), "{live:?}");
    }
    let resumed = types(&mut Client::connect(&two, survived));
    assert!(!resumed.contains(&"resync-required".to_owned()), "{resumed:?}");
    assert_eq!(resumed.iter().filter(|kind| *kind == "event").count(), 5, "{resumed:?}");
}

/// Partition 1 loses records 2 and 3 and gets others at 10 s. A gateway that has not heard of it
/// reads a record of partition 0 from 20 s: its position is later than what partition 1 got.
#[tokio::test(start_paused = true)]
async fn k04_a_partition_that_went_back_counts_by_its_own_time() {
    let event =
        |name: &str| Event::new(Operation::Insert, Tenant::new("mine").unwrap(), "c", name.to_owned());
    let gateways = [(); 2].map(|()| Gateway::start(Window::default(), &vec![Vec::new(); 2], 0));
    let [one, two] = &gateways;
    let read = |gateway: &Gateway, partition: u32, (seq, ms): (u64, u64)| {
        let name = format!("{partition}/{seq}");
        gateway.hub.burst().arrive(Some(event(&name)), (partition, RecordId::new(ms, seq))).unwrap();
    };
    let head = |gateway: &Gateway| Some(gateway.hub.core().head_of(&Tenant::new("mine").unwrap()));
    gateways.iter().for_each(|gateway| read(gateway, 1, (1, 1000)));
    let survived = head(one);
    [(2, 2000), (3, 3000)].into_iter().for_each(|record| read(one, 1, record));
    [(2, 10_000), (3, 11_000), (4, 12_000)].into_iter().for_each(|record| read(two, 1, record));
    gateways.iter().for_each(|gateway| read(gateway, 0, (1, 20_000)));
    let lost = head(one);
    let resumed = |at: &Option<Position>| {
        let messages = Client::connect(two, at.clone()).take().messages;
        let texts: Vec<_> = messages.iter().map(|message| message.text().to_owned()).collect();
        (texts.iter().any(|text| text.contains("resync-required")), texts)
    };
    let (must_resync, texts) = resumed(&lost);
    assert!(must_resync, "events 2 and 3 of partition 1 would be missed: {texts:?}");
    let (must_resync, texts) = resumed(&survived);
    assert!(!must_resync, "record 1 of partition 1 is the same: {texts:?}");
    let (must_resync, texts) = resumed(&head(two));
    assert!(!must_resync, "{texts:?}");
}

/// A client that comes back after its tenant was forgotten must not be told that it missed nothing.
#[tokio::test(start_paused = true)]
async fn t03_who_comes_back_after_its_tenant_was_forgotten_must_start_anew() {
    let log: Log = vec![vec![0, 0]];
    let mut gateway = Gateway::start(Window::default(), &vec![Vec::new()], 0);
    let known = Offsets::default();
    let mut client = Client { session: Client::connect(&gateway, None), at: None, known };
    gateway.read(&log, 0, 1);
    client.hear(&log, 0).unwrap();
    let seen = client.at.clone();
    drop(client);
    gateway.read(&log, 0, 1);
    leap(Window::default().age + Duration::from_secs(1)).await;
    assert_eq!(gateway.hub.status().tenants, 0, "it is forgotten");
    let mut session = Client::connect(&gateway, seen);
    let messages = session.take().messages;
    assert!(messages.iter().any(|message| message.text().contains("resync-required")), "{messages:?}");
}

/// A client's position and its events advance in one step: a client that subscribes in between gets
/// every event behind its position, and none before it.
#[tokio::test(flavor = "multi_thread")]
async fn t03_who_subscribes_while_events_arrive_gets_every_event_behind_its_position() {
    const RECORDS: u64 = 15_000;
    let gateway = Gateway::start(Window::default(), &vec![Vec::new()], 0);
    let sessions = [(); 3].map(|()| Client::connect(&gateway, None));
    let hub = &gateway.hub;
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 1..=RECORDS {
                let event =
                    Event::new(Operation::Insert, Tenant::new("mine").unwrap(), "c", format!("0/{seq}"));
                hub.burst().arrive(Some(event), (0, record_id(seq))).unwrap();
            }
            is_over.store(true, Ordering::Release);
        });
        for mut session in sessions {
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    session.unsubscribe(&["w".to_owned()]);
                    let _ = session.take();
                    session.written();
                    session.subscribe(&[SubscriptionRequest::collection("w", "c")], None).unwrap();
                    check_events(&mut session);
                }
            });
        }
    });
}

/// Takes what waits: the events of a subscription follow its position, one by one.
fn check_events(session: &mut Session) {
    let mut stands = None;
    for message in session.take().messages {
        let message: Value = serde_json::from_str(message.text()).unwrap();
        let Some(at) = message["at"].as_str() else { continue };
        let at = at.parse::<Position>().unwrap().offsets.get(0);
        match (message["type"].as_str().unwrap(), stands) {
            ("event", Some(before)) => {
                assert_eq!(at, before + 1, "each event behind the position, and none before it");
                stands = Some(at);
            }
            ("subscribed" | "gap", _) => stands = Some(at),
            _ => {}
        }
    }
    session.written();
}
