//! A TCP proxy that breaks connections on purpose.
//!
//! It runs on a thread and runtime of its own, so that neither a busy test nor a paused tokio clock
//! bends its timing. Without faults it forwards whole buffers (well over 100 MB/s). Faults add up
//! until [`Proxy::heal`]; those that count bytes or act on connections say so on their method.
//!
//! `accept loop (front)` → one `link` per connection → two `line`s, one per direction, each shaped
//! by the `plan` that the test sets.

mod front;
mod line;
mod link;
mod plan;

use self::front::{Front, Order};
use self::plan::Plan;
pub use self::plan::{Direction, Fault};
use crate::ports::Port;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// What the proxy's thread and its handle share.
#[derive(Debug)]
struct Shared {
    plan: watch::Sender<Plan>,
    accepted: AtomicU64,
    open: AtomicUsize,
    to_client: AtomicU64,
    to_server: AtomicU64,
}

/// A proxy in front of one address; it ends, with all its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free loopback port and forwards to `target`.
    pub async fn start(target: SocketAddr) -> Self {
        let port = Port::reserve();
        let addr = port.addr();
        let shared = Arc::new(Shared {
            plan: watch::Sender::new(Plan::to(target)),
            accepted: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            to_client: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
        });
        let (orders, inbox) = mpsc::unbounded_channel();
        let front = Front::new(port, shared.clone(), inbox);
        let thread = thread::Builder::new()
            .name("testkit-proxy".into())
            .spawn(move || front::run(front))
            .expect("a thread can be started");
        let proxy = Self { addr, shared, orders: Some(orders), thread: Some(thread) };
        proxy.order(Order::Listen).await;
        proxy
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port of [`Proxy::addr`].
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// `redis://` URL of the proxy, without credentials.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// Adds a fault to those already set; it holds for open and for new connections.
    pub fn set(&self, fault: Fault) {
        self.shared.plan.send_modify(|plan| plan.add(fault));
    }

    /// Takes all faults away and listens again. Connections that lost bytes to [`Fault::HalfOpen`]
    /// cannot go on and are reset; all others live on.
    pub async fn heal(&self) {
        self.shared.plan.send_modify(Plan::clear);
        self.order(Order::Listen).await;
    }

    /// Resets (RST) every connection on both sides; returns when all are gone. New ones are
    /// welcome.
    pub async fn cut(&self) {
        self.order(Order::Cut).await;
    }

    /// Refuses new connections until healed; open ones live on.
    pub async fn refuse(&self) {
        self.order(Order::Refuse).await;
    }

    /// Swallows bytes of one or both directions without closing anything.
    pub fn half_open(&self, direction: Direction) {
        self.set(Fault::HalfOpen(direction));
    }

    /// Holds bytes of one or both directions back until healed.
    pub fn stall(&self, direction: Direction) {
        self.set(Fault::Stall(direction));
    }

    /// Delivers what the server sends this much later (the round trip grows by it, order is kept).
    pub fn delay(&self, by: Duration) {
        self.set(Fault::Delay(by));
    }

    /// Limits each direction of each connection to this many bytes per second.
    pub fn throttle(&self, bytes_per_second: u64) {
        self.set(Fault::Throttle(bytes_per_second));
    }

    /// Forwards in pieces of `size` bytes, each in a packet of its own.
    pub fn split(&self, size: usize) {
        self.set(Fault::Split(size));
    }

    /// Resets each connection once `bytes` have gone to its client, counted from now (from its
    /// start for later connections). With 0 the first byte resets it.
    pub fn truncate_after(&self, bytes: u64) {
        self.set(Fault::TruncateAfter(bytes));
    }

    /// Inverts one byte on its way to the client, at this offset counted as in
    /// [`Proxy::truncate_after`].
    pub fn flip(&self, offset: u64) {
        self.set(Fault::Flip(offset));
    }

    /// Forwards new connections to another address; open ones stay where they are.
    pub fn retarget(&self, target: SocketAddr) {
        self.shared.plan.send_modify(|plan| plan.target = target);
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Bytes handed to clients so far.
    pub fn bytes_to_client(&self) -> u64 {
        self.shared.to_client.load(Ordering::Relaxed)
    }

    /// Bytes handed to the server so far.
    pub fn bytes_to_server(&self) -> u64 {
        self.shared.to_server.load(Ordering::Relaxed)
    }

    async fn order(&self, order: fn(oneshot::Sender<()>) -> Order) {
        let (done, wait) = oneshot::channel();
        let orders = self.orders.as_ref().expect("orders are only taken by drop");
        orders.send(order(done)).expect("the proxy thread lives as long as the proxy");
        wait.await.expect("the proxy thread answers every order");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.orders = None; // the front ends when nobody can order any more
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
