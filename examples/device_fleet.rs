//! A fleet of workers that follow the data streams of devices, while workers are killed.
//!
//! ```text
//! cargo run --release --example device_fleet                                  # all in this process, nothing installed
//! cargo run --release --example device_fleet -- --engine redis://127.0.0.1    # each worker a process of its own, killed with -9
//! ```
//! Every device has its own stream of numbered readings (a partition) and is a unit of work. At any
//! time one worker follows it; when that one dies another goes on where it was. At the end every
//! reading was handled, each device's in order.

use firth::claims::{Claim, Event};
use firth::{Broker, ErrorKind, Message, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

const DEVICES: u32 = 24;
const WORKERS: usize = 4;
const TTL: Duration = Duration::from_secs(1);

/// What the command line says.
struct Args {
    engine: String,
    seconds: u64,
    /// Topic and service: a run of its own, also on a server that is used by others.
    run: String,
    /// Set in the worker processes.
    worker: Option<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = parse();
    let broker = Broker::connect(&args.engine).await?;
    if let Some(id) = &args.worker {
        return follow_devices(&broker, &args.run, id.clone(), Arc::new(|line| println!("{line}"))).await;
    }
    broker.create_topic(&args.run).partitions(DEVICES).await?;
    let devices = broker.claims(&args.run);
    devices.offer_all((0..DEVICES).map(|n| (format!("device-{n}"), n.to_string()))).await?;

    let (out, mut lines) = unbounded_channel();
    let mut fleet = Fleet { broker: broker.clone(), args: &args, out, members: Vec::new(), next: 0 };
    (0..WORKERS).for_each(|_| fleet.grow());
    let sent = tokio::spawn(send_readings(broker.clone(), args.run.clone(), args.seconds));
    let mut book = Book::default();
    for _ in 0..args.seconds / 2 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        fleet.kill_oldest();
        fleet.grow();
        while let Ok(line) = lines.try_recv() {
            book.note(&line);
        }
        let status = devices.status().await?;
        println!("{:>6} readings handled, {} of {} devices owned", book.handled, status.owned, status.offers);
    }
    let sent = sent.await.expect("the sender does not panic")?;
    let patience = tokio::time::Instant::now() + TTL * 30;
    while book.handled - book.repeated < sent {
        let Ok(Some(line)) = tokio::time::timeout_at(patience, lines.recv()).await else { break };
        book.note(&line);
    }
    drop(fleet);
    println!(
        "{sent} readings sent, {} handled ({} again), {} out of order",
        book.handled, book.repeated, book.gaps
    );
    assert_eq!((book.handled - book.repeated, book.gaps), (sent, 0), "every reading, in order");
    broker.delete_topic(&args.run).await?;
    broker.close().await
}

/// Numbered readings for all devices, until the time is over.
async fn send_readings(broker: Broker, topic: String, seconds: u64) -> Result<u64> {
    let producer = broker.producer(&topic).await?;
    let begun = Instant::now();
    let mut number = 0u64;
    while begun.elapsed() < Duration::from_secs(seconds) {
        number += 1;
        for device in 0..DEVICES {
            drop(producer.enqueue(Message::new(number.to_string()).to_partition(device)).await?);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    producer.close().await?;
    Ok(number * u64::from(DEVICES))
}

/// What is done with a reading. It must be finished before the reading is acknowledged.
type Effect = Arc<dyn Fn(String) + Send + Sync>;

/// A worker: one task per device that it owns. The tasks end with it.
async fn follow_devices(broker: &Broker, run: &str, id: String, effect: Effect) -> Result<()> {
    let mut worker = broker.claims(run).worker(id).ttl(TTL).await?;
    let mut tasks = JoinSet::new();
    while let Some(event) = worker.next().await.transpose()? {
        if let Event::Granted(claim) = event {
            let topic = run.to_owned();
            let effect = effect.clone();
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move {
                match follow(&claim, &topic, &effect).await {
                    // Another worker has it: our steps do not count any more.
                    Err(error) if error.kind() == ErrorKind::Fenced => {}
                    Err(error) => eprintln!("{}: {error}", claim.name()),
                    Ok(()) => {}
                }
            });
        }
    }
    Ok(())
}

/// Follows one device until its claim is recalled or lost.
async fn follow(claim: &Claim, topic: &str, effect: &Effect) -> Result<()> {
    let device = std::str::from_utf8(claim.payload()).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut data = claim.follow(topic).partition(device).await?;
    while let Some(reading) = data.next().await? {
        effect(format!("{device} {} {}", claim.epoch(), reading.text()?));
        data.ack(&reading)?;
    }
    data.close().await?;
    claim.release().await
}

/// The workers, as tasks or as processes.
struct Fleet<'a> {
    broker: Broker,
    args: &'a Args,
    out: UnboundedSender<String>,
    members: Vec<Member>,
    next: usize,
}

enum Member {
    Task(tokio::task::JoinHandle<Result<()>>),
    Process(Child),
}

impl Fleet<'_> {
    fn grow(&mut self) {
        let id = format!("worker-{}", self.next);
        self.next += 1;
        let run = self.args.run.clone();
        let out = self.out.clone();
        let is_local = self.args.engine.starts_with("memory:") || self.args.engine.starts_with("file:");
        let member = if is_local {
            let broker = self.broker.clone();
            let effect: Effect = Arc::new(move |line| drop(out.send(line)));
            Member::Task(tokio::spawn(async move { follow_devices(&broker, &run, id, effect).await }))
        } else {
            Member::Process(start_process(self.args, &id, out))
        };
        self.members.push(member);
    }

    fn kill_oldest(&mut self) {
        if !self.members.is_empty() {
            self.members.remove(0).kill();
        }
    }
}

impl Member {
    fn kill(self) {
        match self {
            Self::Task(task) => task.abort(),
            Self::Process(mut child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        self.members.drain(..).for_each(Member::kill);
    }
}

fn start_process(args: &Args, id: &str, out: UnboundedSender<String>) -> Child {
    let own = std::env::current_exe().expect("this program has a path");
    let mut child = Command::new(own)
        .args(["--engine", &args.engine, "--run", &args.run, "--worker", id])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process can be started");
    let stdout = child.stdout.take().expect("its output is a pipe");
    std::thread::spawn(move || {
        for line in std::io::BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
            if out.send(line).is_err() {
                return;
            }
        }
    });
    child
}

/// What was handled. A reading may come again after a crash, but none is ever skipped: an owner
/// sees consecutive ones.
#[derive(Default)]
struct Book {
    seen: BTreeMap<u32, BTreeSet<u64>>,
    /// The last reading of a device under each epoch.
    last: BTreeMap<(u32, u64), u64>,
    handled: u64,
    repeated: u64,
    gaps: u64,
}

impl Book {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [device, epoch, number] = words[..] else { return };
        let (Ok(device), Ok(epoch), Ok(number)) = (device.parse(), epoch.parse(), number.parse()) else {
            return;
        };
        self.handled += 1;
        self.repeated += u64::from(!self.seen.entry(device).or_default().insert(number));
        let before = self.last.insert((device, epoch), number);
        self.gaps += u64::from(before.is_some_and(|before| number != before + 1));
    }
}

fn parse() -> Args {
    let run = format!("fleet-{:x}", std::process::id());
    let mut args = Args { engine: "memory:".into(), seconds: 10, run, worker: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--engine" => args.engine = value(),
            "--seconds" => args.seconds = value().parse().expect("--seconds takes a number"),
            "--run" => args.run = value(),
            "--worker" => args.worker = Some(value()),
            _ => panic!("unknown option {word}: --engine URL, --seconds N"),
        }
    }
    args
}
