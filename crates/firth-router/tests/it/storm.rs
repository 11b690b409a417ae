//! Storms: under load, nodes in processes of their own are killed, sleep past their leases, end
//! gracefully and come back, gateways crash, hang, answer nonsense and recover, and the server is
//! killed, all at random. A steady gateway must get everything; in the end everyone has
//! every event once, those of a document in order, nothing was given up, no group is left, and the
//! accounting of every node that ever ran balance.
//!
//! The seed names the blows: `FIRTH_CHAOS_SEED` repeats them, `FIRTH_CHAOS_SECONDS` makes a run
//! longer. `cargo xtask chaos --routers` runs them for minutes.

use crate::chaos::nothing_was_given_up;
use crate::gateway::{Mood, TestGateway};
use crate::node::World;
use crate::world::*;
use firth::Broker;
use firth_engine::Engine;
use firth_router::config::RoutingConfig;
use firth_router::deliver::{HttpDeliverer, HttpOptions};
use firth_router::lane::LaneAccounting;
use firth_router::node::{Router, RouterOptions};
use firth_router::registry::Registry;
use firth_testkit::{Flavor, Persist, RedisServer};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Short enough for a quick takeover, long enough for a busy machine.
const LEASE: Duration = Duration::from_secs(2);
/// How long blows fall in the run of every test.
const SECONDS: u64 = 8;
/// The engine and the name of a node in a process of its own.
const URL: &str = "FIRTH_STORM_URL";
const NAME: &str = "FIRTH_STORM_NAME";

fn options(name: &str) -> (RouterOptions, HttpOptions) {
    let mut options = RouterOptions::new("changes");
    (options.node, options.is_sole) = (name.to_owned(), true);
    (options.lease, options.stall_timeout) = (LEASE, Duration::from_millis(300));
    options.routing.batch.max_size = 20;
    options.routing.backpressure.queue_size = 200;
    options.routing.delivery.breaker.open_for = Duration::from_millis(200);
    let timeout = Duration::from_secs(2);
    let http = HttpOptions { node: name.to_owned(), timeout, bearer: None, signing: None };
    (options, http)
}

/// Prints the accounting every 50 ms until the storm closes its stdin. Then the node ends
/// gracefully.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a node in a process of its own, which storms start"]
async fn a_node_in_a_storm() {
    let (Ok(url), Ok(name)) = (std::env::var(URL), std::env::var(NAME)) else { return };
    // The server may just be dead.
    let node = firth_testkit::wait::until_some(PATIENCE * 4, async || start(&url, &name).await.ok());
    let node = node.await.expect("a node can be started");
    let mut end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    loop {
        tell(&node);
        tokio::select! {
            _ = &mut end => break,
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    node.close().await.unwrap();
    tell(&node);
}

async fn start(url: &str, name: &str) -> firth_router::Result<Router> {
    let broker = Broker::connect(url).await?;
    let registry = Registry::open(&broker, RoutingConfig::default().subscriptions).await?;
    let (options, http) = options(name);
    let deliverer = Arc::new(HttpDeliverer::new(http));
    Router::start(&broker, registry, deliverer, options).await
}

fn tell(node: &Router) {
    for (partition, accounting) in node.accounting() {
        let LaneAccounting { taken, delivered, parked, dead, gapped, held } = accounting;
        println!("\nBOOKS {partition} {taken} {delivered} {parked} {dead} {gapped} {held}");
    }
}

/// Killed and reaped when dropped.
struct Node {
    child: Child,
    /// What it told of its accounting and is wrong, and the last line.
    told: Arc<Mutex<(Vec<String>, String)>>,
    reader: Option<JoinHandle<()>>,
}

impl Node {
    fn start(url: &str, name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["storm::a_node_in_a_storm", "--exact", "--ignored", "--nocapture"]);
        command.env(URL, url).env(NAME, name).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = Arc::default();
        let pen: Arc<Mutex<(Vec<String>, String)>> = Arc::clone(&told);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some(figures) = line.strip_prefix("BOOKS ") else { continue };
                let figures: Vec<u64> = figures.split(' ').filter_map(|word| word.parse().ok()).collect();
                // A killed process may leave half a line.
                let &[_, taken, delivered, parked, dead, gapped, held] = &figures[..] else { continue };
                let mut told = pen.lock().unwrap();
                if taken != delivered + parked + dead + gapped + held || dead + gapped > 0 {
                    told.0.push(line.clone());
                }
                told.1 = line;
            }
        });
        Self { child, told, reader: Some(reader) }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Lets it end by itself, and drops it.
    fn finish(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success(), "a graceful end is a good one");
    }
}

/// However a node ended: its accounting balanced as long as it could tell.
impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.reader.take().map(JoinHandle::join);
        let (wrong, last) = &*self.told.lock().unwrap();
        if !std::thread::panicking() {
            assert!(wrong.is_empty(), "books that do not balance: {wrong:?}; at last {last}");
        }
    }
}

struct Storm {
    server: RedisServer,
    world: World,
    dice: fastrand::Rng,
    nodes: Vec<(String, Node)>,
    born: usize,
    steady: Arc<TestGateway>,
    flapping: Arc<TestGateway>,
    is_up: bool,
    moody: Arc<TestGateway>,
}

impl Storm {
    async fn new(flavor: Flavor, seed: u64) -> Self {
        // An acknowledged write survives the death of the server.
        let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await;
        let world = World::new(Engine::at(&server.url()).await.unwrap()).await;
        let steady = world.gateway("steady", "doc.all").await;
        let flapping = world.gateway("flapping", "doc.all").await;
        let moody = world.gateway("moody", "doc.all").await;
        let dice = fastrand::Rng::with_seed(seed);
        let nodes = Vec::new();
        let is_up = true;
        let mut storm = Self { server, world, dice, nodes, born: 0, steady, flapping, is_up, moody };
        (0..2).for_each(|_| storm.add(None));
        storm
    }

    /// A node, new or with the name of one that is gone.
    fn add(&mut self, name: Option<String>) {
        self.born += 1;
        let name = name.unwrap_or_else(|| format!("n{}", self.born));
        let node = Node::start(&self.server.url(), &name);
        self.nodes.push((name, node));
    }

    fn pick(&mut self) -> (String, Node) {
        self.nodes.swap_remove(self.dice.usize(..self.nodes.len()))
    }

    async fn strike(&mut self) {
        match self.dice.u32(..13) {
            0..4 => {
                let (name, victim) = self.pick();
                drop(victim);
                let comes_back = self.dice.bool();
                self.add(comes_back.then_some(name));
            }
            4..6 => {
                let (name, sleeper) = self.pick();
                sleeper.signal(Signal::SIGSTOP);
                self.world.send(20).await;
                self.world.has_all(&self.steady).await;
                sleeper.signal(Signal::SIGCONT);
                self.nodes.push((name, sleeper));
            }
            6 => {
                let (_, leaver) = self.pick();
                tokio::task::block_in_place(|| leaver.finish());
                self.add(None);
            }
            7..9 if self.is_up => {
                self.flapping.crash();
                self.is_up = false;
            }
            7..9 => self.mend().await,
            9..12 => {
                let slow = Mood::Slow(Duration::from_millis(20));
                let moods = [Mood::Hangs, slow, Mood::Answers(500), Mood::Answers(429), Mood::Fine];
                self.moody.set(moods[self.dice.usize(..moods.len())].clone());
            }
            _ => {
                self.server.kill().await;
                self.server.restart().await;
                let broker = &self.world.broker;
                let answers = async || broker.admin().topic("changes").await.is_ok();
                until(PATIENCE, "the server answers again", answers).await;
            }
        }
    }

    /// One blow under load; the nodes and gateways that it does not hit go on.
    async fn round(&mut self) {
        self.world.send(40).await;
        self.strike().await;
        self.world.send(20).await;
        self.world.has_all(&self.steady).await;
    }

    async fn mend(&mut self) {
        if !self.is_up {
            self.flapping.come_back().await;
            self.is_up = true;
        }
    }

    async fn end(mut self) {
        self.mend().await;
        self.moody.set(Mood::Fine);
        for gateway in [&self.steady, &self.flapping, &self.moody] {
            self.world.has_all(gateway).await;
        }
        nothing_was_given_up(&self.world).await;
        until(PATIENCE * 4, "nobody is parked any more", async || {
            self.world.broker.admin().groups("changes").await.is_ok_and(|groups| groups.len() == 1)
        })
        .await;
        tokio::task::block_in_place(|| self.nodes.into_iter().for_each(|(_, node)| node.finish()));
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seed() -> u64 {
    setting("FIRTH_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..))
}

async fn run(flavor: Flavor, seed: u64, length: Duration) {
    println!("FIRTH_CHAOS_SEED={seed}");
    let mut storm = Storm::new(flavor, seed).await;
    let until = Instant::now() + length;
    let mut blows = 0;
    while Instant::now() < until {
        storm.round().await;
        blows += 1;
    }
    storm.end().await;
    println!("seed {seed}: {blows} blows, nothing lost, the books balance");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a short storm, for those who look for the cause of something"]
async fn nodes_and_gateways_that_die_at_random_lose_nothing_and_their_books_balance() {
    let length = setting("FIRTH_CHAOS_SECONDS").unwrap_or(SECONDS);
    run(Flavor::Redis, seed(), Duration::from_secs(length)).await;
}

/// Minute after minute, on each kind of server in turn, each time with a fresh seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes FIRTH_CHAOS_MINUTES: run it with `cargo xtask chaos --routers`"]
async fn minutes_of_deaths_of_nodes_and_gateways_lose_nothing() {
    let minutes = setting("FIRTH_CHAOS_MINUTES").unwrap_or(3);
    let first = seed();
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    for turn in 0_u64.. {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let flavor = if turn % 2 == 0 { Flavor::Redis } else { Flavor::Valkey };
        run(flavor, first.wrapping_add(turn), left.min(Duration::from_secs(60))).await;
    }
}
