//! The law of moving: whoever goes from gateway to gateway, while they lag and restart, sees each event behind where it stands once and in
//! order, or is told to start anew.

use crate::auth::{Collections, Grant};
use crate::hub::{Hub, Session};
use crate::journal::Window;
use crate::position::Position;
use crate::protocol::Wish;
use crate::{Config, SlowPolicy};
use firth_router::Tenant;
use firth_router::event::{Event, Operation};
use proptest::prelude::*;
use serde_json::Value;
use std::time::Duration;

const EPOCH: u64 = 7;

#[derive(Clone, Debug)]
enum Act {
    /// A record of the client's tenant, of another, or no event at all.
    Append(u8),
    /// A gateway reads so many records.
    Read(usize, usize),
    /// A gateway starts anew, with so many records of the past.
    Restart(usize, u64),
    /// The client reads what waits.
    Hear,
    /// The client loses the last messages, and goes to a gateway.
    Move(usize, usize),
    Wait(u64),
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..4_u8).prop_map(Act::Append),
        8 => (0..2_usize, 1..6_usize).prop_map(|(at, count)| Act::Read(at, count)),
        1 => (0..2_usize, 0..12_u64).prop_map(|(at, past)| Act::Restart(at, past)),
        5 => Just(Act::Hear),
        4 => (0..2_usize, 0..4_usize).prop_map(|(at, lost)| Act::Move(at, lost)),
        1 => (0..100_u64).prop_map(Act::Wait),
    ]
}

/// A gateway and how much of the log it has read.
struct Gateway {
    hub: Hub,
    read: usize,
}

impl Gateway {
    fn start(window: Window, log: &[u8], past: u64) -> Self {
        let hub = Hub::start(Config { window, slow: SlowPolicy::Gap, ..Config::default() }).unwrap();
        assert!(hub.follow(EPOCH));
        let read = log.len().saturating_sub(usize::try_from(past).unwrap());
        let mut gateway = Self { hub, read };
        // A gateway lets nobody in before it has read the window.
        gateway.read(log, log.len());
        gateway.hub.begin(log.len() as u64);
        gateway
    }

    fn read(&mut self, log: &[u8], count: usize) {
        let mut burst = self.hub.burst();
        for kind in log.iter().skip(self.read).take(count) {
            self.read += 1;
            let event = |tenant: &str| {
                Event::new(Operation::Insert, Tenant::new(tenant).unwrap(), "c", self.read.to_string())
            };
            let event = match kind {
                0 | 1 => Some(event("mine")),
                2 => Some(event("other")),
                _ => None,
            };
            burst.arrive(event, self.read as u64).unwrap();
        }
    }
}

struct Client {
    session: Session,
    at: Option<Position>,
    /// The application knows everything of its tenant up to here.
    known: u64,
}

impl Client {
    fn connect(gateway: &Gateway, at: Option<Position>) -> Session {
        let tenant = Tenant::new("mine").unwrap();
        let grant = Grant { tenant, user: None, collections: Collections::ALL, expires: None, root: [0; 32] };
        let mut session = gateway.hub.join(grant, None).unwrap();
        session.subscribe(&[Wish::collection("w", "c")], at).unwrap();
        session
    }

    /// Takes what waits, but for the last messages, and checks the law.
    fn hear(&mut self, log: &[u8], lost: usize) -> Result<(), TestCaseError> {
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
            let next = (self.known + 1..).find(|seq| log.get(*seq as usize - 1).is_none_or(|kind| *kind < 2));
            match message["type"].as_str().unwrap() {
                "event" => {
                    let seq: u64 = message["event"]["key"].as_str().unwrap().parse().unwrap();
                    prop_assert_eq!(Some(seq), next, "each once and in order");
                    prop_assert_eq!(at, Some(Position { epoch: EPOCH, offset: seq }));
                    self.known = seq;
                }
                "resync-required" => self.known = at.unwrap().offset,
                "subscribed" if self.at.is_none() => self.known = at.unwrap().offset,
                _ => {}
            }
            if let Some(at) = at {
                let next =
                    (self.known + 1..).find(|seq| log.get(*seq as usize - 1).is_none_or(|kind| *kind < 2));
                prop_assert!(
                    next.is_none_or(|next| next > at.offset),
                    "nothing up to {at} is missing: {next:?}"
                );
                self.at = Some(at);
            }
        }
        Ok(())
    }
}

fn run(acts: Vec<Act>, window: Window) -> Result<(), TestCaseError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut log: Vec<u8> = vec![0, 2, 0];
        let mut gateways = [Gateway::start(window, &log, 3), Gateway::start(window, &log, 0)];
        let mut client = Client { session: Client::connect(&gateways[0], None), at: None, known: 0 };
        let mut home = 0;
        for act in acts {
            match act {
                Act::Append(kind) => log.push(kind),
                Act::Read(at, count) => gateways[at].read(&log, count),
                Act::Hear => client.hear(&log, 0)?,
                Act::Wait(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                Act::Restart(at, past) => {
                    gateways[at] = Gateway::start(window, &log, past);
                    if at == home {
                        client.session = Client::connect(&gateways[home], client.at);
                    }
                }
                Act::Move(at, lost) => {
                    client.hear(&log, lost)?;
                    home = at;
                    client.session = Client::connect(&gateways[home], client.at);
                }
            }
        }
        gateways[home].read(&log, usize::MAX);
        client.hear(&log, 0)?;
        // Another tenant's records and what is no event may follow the last one of the client's.
        let last = log.iter().rposition(|kind| *kind < 2).map_or(0, |at| at as u64 + 1);
        prop_assert!(client.known >= last, "{} of {last} is known at the end", client.known);
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn who_moves_sees_each_event_once_and_in_order_or_must_start_anew(
        acts in prop::collection::vec(acts(), 0..80),
        events in 1..12_usize,
    ) {
        run(acts, Window { events, ..Window::default() })?;
    }
}
