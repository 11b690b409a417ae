//! One row at a time, from its commit to a topic, a gateway or a browser.
//!
//! Server and measuring process share the machine's clock: a row holds it.

use super::database::{TOPIC, World, until};
use crate::cell::Cell;
use crate::edge::clients::open;
use crate::edge::path::{received, routed};
use crate::measure::{Clock, Row, Samples, percentiles, precise};
use crate::router::gateway::Taker;
use anyhow::{Context, Result, ensure};
use firth::Broker;
use firth_connect::Condition;
use firth_edge::auth::{Keys, Origins};
use firth_edge::{Config, Edge, Hub};
use firth_router::config::Protocol;
use firth_router::config::RoutingConfig;
use firth_router::deliver::{ByProtocol, HttpDeliverer, HttpOptions};
use firth_router::event::Event;
use firth_router::node::{Router, RouterOptions};
use firth_router::registry::{Registry, Subscription};
use firth_router::routing::Target;
use firth_router::{GatewayId, SubscriptionId, Tenant};
use firth_testkit::PostgresServer;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Between a row's arrival and the next commit: the source is idle again.
const PAUSE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(20);

/// One session that commits a row for each call.
struct Writer {
    child: Child,
    input: ChildStdin,
    /// The Unix time of the measurement's start, in nanoseconds.
    epoch: u128,
}

impl Writer {
    fn start(server: &PostgresServer, epoch: u128) -> Result<Self> {
        let mut command = server.tool("psql");
        command.args(["--no-psqlrc", "--quiet", "--file=-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("start psql")?;
        let input = child.stdin.take().context("its input")?;
        Ok(Self { child, input, epoch })
    }

    fn commit(&mut self, id: u64) -> Result<()> {
        let mark =
            format!("(extract(epoch FROM clock_timestamp()) * 1000000000)::numeric::bigint - {}", self.epoch);
        writeln!(self.input, "INSERT INTO orders VALUES ({id}, {mark}, 'paid', 12.5, 'a note');")?;
        Ok(self.input.flush()?)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where rows arrive: each answers how long it took.
enum Arrival {
    /// A consumer of the topic.
    Topic(mpsc::UnboundedReceiver<u64>),
    Gateway(Taker, Router, Registry),
    Browser(Box<TcpStream>, Router, Registry),
}

impl Arrival {
    async fn open(to: &str, broker: &Broker, base: Instant) -> Result<Self> {
        match to {
            "topic" => {
                let (sender, arrivals) = mpsc::unbounded_channel();
                let mut consumer = broker.consumer(TOPIC, "bench").await?;
                tokio::spawn(async move {
                    while let Some(Ok(delivery)) = consumer.next().await {
                        let came = base.elapsed();
                        let event = Event::from_payload(delivery.payload())?;
                        let mark = event.after.context("a row")?.to_value()?["mark"].as_u64().unwrap_or(0);
                        let took = u64::try_from(came.as_nanos())?.saturating_sub(mark);
                        drop(delivery.ack());
                        sender.send(took)?;
                    }
                    anyhow::Ok(())
                });
                Ok(Self::Topic(arrivals))
            }
            "gateway" => {
                let gateway = Taker::start("http2", "gw", base).await?;
                let registry = Registry::open(broker, RoutingConfig::default().subscriptions).await?;
                registry.register_gateway(gateway.registration.clone()).await?;
                let (id, target) = (SubscriptionId::new("s")?, Target::Direct(GatewayId::new("gw")?));
                registry.register(Subscription::new(id, Tenant::new("bench")?, "orders", target)).await?;
                let http = HttpOptions {
                    node: "bench".to_owned(),
                    timeout: Duration::from_secs(10),
                    bearer: None,
                    signing: None,
                };
                let wires = ByProtocol::new(Protocol::Http).with(Protocol::Http, HttpDeliverer::new(http));
                let options = RouterOptions::new(TOPIC);
                let node = Router::start(broker, registry.clone(), Arc::new(wires), options).await?;
                Ok(Self::Gateway(gateway, node, registry))
            }
            _ => {
                let hub = Hub::start(Config::default())?;
                let (node, registry) = routed(broker, &hub).await?;
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let port = listener.local_addr()?.port();
                let edge = Edge::new(hub, Keys::open(Tenant::new("bench")?), Origins::same_host());
                tokio::spawn(edge.serve(listener, std::future::pending(), Duration::ZERO));
                let (socket, _) = open(port).await?;
                Ok(Self::Browser(Box::new(socket), node, registry))
            }
        }
    }

    /// How long the next row took, in nanoseconds.
    async fn next(&mut self, base: Instant) -> Result<u64> {
        match self {
            Self::Topic(arrivals) => {
                let next = tokio::time::timeout(PATIENCE, arrivals.recv()).await?;
                next.context("the consumer ended")
            }
            Self::Gateway(gateway, ..) => {
                let begun = Instant::now();
                loop {
                    let took = gateway.took.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
                    if let Some(took) = took {
                        return Ok(took);
                    }
                    ensure!(begun.elapsed() < PATIENCE, "no event came");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            Self::Browser(socket, ..) => {
                let mark = received(socket).await?;
                Ok(u64::try_from(base.elapsed().as_nanos())?.saturating_sub(mark))
            }
        }
    }
}

pub(super) async fn measure(cell: &Cell, to: &str) -> Result<Row> {
    let world = World::new("memory").await?;
    let sources = world.start(false).await?;
    until(&sources, |status| status.condition == Condition::Streaming).await?;
    let base = Instant::now();
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let mut writer = Writer::start(&world.server, epoch)?;
    let mut arrival = Arrival::open(to, &world.broker, base).await?;
    // The first ones pay for plans and caches.
    for id in 0..20 {
        writer.commit(id)?;
        arrival.next(base).await?;
    }
    let mut samples = Samples::with_capacity(4096);
    let clock = Clock::start()?;
    let begun = Instant::now();
    let mut sent = 20;
    while begun.elapsed() < cell.rounds.timed {
        writer.commit(sent)?;
        samples.push(Duration::from_nanos(arrival.next(base).await?));
        sent += 1;
        tokio::time::sleep(PAUSE).await;
    }
    let spent = clock.stop()?;
    if let Arrival::Gateway(_, node, registry) | Arrival::Browser(_, node, registry) = arrival {
        node.close().await?;
        registry.close().await;
    }
    sources.close().await;
    let (p50_us, p99_us) = percentiles(&[samples]).context("latencies")?;
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: precise(sent) / spent.wall.as_secs_f64(),
        cpu_us_per_op: spent.cpu.as_secs_f64() * 1e6 / precise(sent),
        p50_us,
        p99_us,
        extra: BTreeMap::new(),
    })
}
