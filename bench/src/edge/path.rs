//! From a topic to a client, one event at a time: read by the gateway itself, or matched and
//! delivered by a router.
//!
//! Everything runs in one process, so that one clock measures: producer, topic in memory, router,
//! HTTP/2, gateway, WebSocket, client.

use super::clients::open;
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, percentiles, precise};
use anyhow::{Context, Result, ensure};
use firth::Broker;
use firth_edge::auth::{Keys, Origins};
use firth_edge::{Config, Edge, Hub, RouterFeed, TopicFeed};
use firth_router::config::{Protocol, RoutingConfig};
use firth_router::deliver::{Bearer, ByProtocol, HttpDeliverer, HttpOptions};
use firth_router::event::{Document, Event, Operation};
use firth_router::node::{Router, RouterOptions, message};
use firth_router::registry::{Gateway, Registry, Subscription};
use firth_router::routing::Target;
use firth_router::{GatewayId, SubscriptionId, Tenant};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

const TOPIC: &str = "changes";
/// Events a second.
const PACE: u64 = 200;
const MARK: &[u8] = b"\"mark\":";
const TOKEN: &str = "bench";

pub(super) async fn measure(cell: &Cell, by_router: bool) -> Result<Row> {
    let broker = Broker::memory();
    broker.create_topic(TOPIC).partitions(1).await?;
    let hub = Hub::start(Config::default())?;
    let (node, _feed) = match by_router {
        true => (Some(routed(&broker, &hub).await?), None),
        false => (None, Some(TopicFeed::start(hub.clone(), &broker, TOPIC, "gateway").await?)),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let edge = Edge::new(hub, Keys::open(tenant()?), Origins::same_host());
    tokio::spawn(edge.serve(listener, std::future::pending(), Duration::ZERO));
    let (mut socket, _) = open(port).await?;
    let base = Instant::now();
    let producer = broker.producer(TOPIC).await?;
    let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / PACE));
    let (clock, begun, mut samples, mut sent) =
        (Clock::start()?, Instant::now(), Samples::with_capacity(4096), 0);
    while begun.elapsed() < cell.rounds.timed {
        ticks.tick().await;
        let mark = u64::try_from(base.elapsed().as_nanos())?;
        producer.send(message(&event(sent, mark)?, 1)?).await?;
        sent += 1;
        let came = received(&mut socket).await?;
        ensure!(came == mark, "another event came than was sent");
        samples.push(base.elapsed().saturating_sub(Duration::from_nanos(came)));
    }
    let spent = clock.stop()?;
    if let Some((node, registry)) = node {
        node.close().await?;
        registry.close().await;
    }
    let (p50_us, p99_us) = percentiles(&[samples]).context("latencies")?;
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: precise(sent) / spent.wall.as_secs_f64(),
        cpu_us_per_op: spent.cpu.as_secs_f64() * 1e6 / precise(sent),
        p50_us,
        p99_us,
        extra: BTreeMap::from([("p99_ms".to_owned(), p99_us / 1000.0)]),
    })
}

/// A router that delivers what the gateway wants, by HTTP/2.
pub(crate) async fn routed(broker: &Broker, hub: &Hub) -> Result<(Router, Registry)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let routes = RouterFeed::new(hub.clone(), TOKEN).routes();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let registry = Registry::open(broker, RoutingConfig::default().subscriptions).await?;
    registry.register_gateway(Gateway::new(GatewayId::new("gw")?, endpoint)).await?;
    let id = SubscriptionId::new("s")?;
    let target = Target::Direct(GatewayId::new("gw")?);
    registry.register(Subscription::new(id, tenant()?, "orders", target)).await?;
    let timeout = Duration::from_secs(10);
    let http =
        HttpOptions { node: "bench".to_owned(), timeout, bearer: Some(Bearer::new(TOKEN)), signing: None };
    let wires = ByProtocol::new(Protocol::Http).with(Protocol::Http, HttpDeliverer::new(http));
    let node = Router::start(broker, registry.clone(), Arc::new(wires), RouterOptions::new(TOPIC)).await?;
    Ok((node, registry))
}

fn tenant() -> Result<Tenant> {
    Ok(Tenant::new("bench")?)
}

fn event(number: u64, mark: u64) -> Result<Event> {
    let document = Document::from_value(&json!({ "mark": mark, "state": "paid" }))?;
    Ok(Event::new(Operation::Update, tenant()?, "orders", number.to_string()).with_after(document))
}

/// The mark of the next event.
pub(crate) async fn received(socket: &mut TcpStream) -> Result<u64> {
    let mut heard = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = tokio::time::timeout(Duration::from_secs(20), socket.read(&mut buffer)).await??;
        ensure!(read > 0, "the gateway closed");
        heard.extend_from_slice(&buffer[..read]);
        let Some(at) = heard.windows(MARK.len()).position(|part| part == MARK) else { continue };
        let digits: Vec<u8> =
            heard[at + MARK.len()..].iter().copied().take_while(u8::is_ascii_digit).collect();
        if at + MARK.len() + digits.len() < heard.len() && heard.ends_with(b"}}") {
            return Ok(std::str::from_utf8(&digits)?.parse()?);
        }
    }
}
