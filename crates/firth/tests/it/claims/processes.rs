//! Workers as processes of their own on a real server: killed, stopped and thawed, among a million
//! other keys that expire.
//!
//! The children are this very test binary, told by the environment to be a worker. Each writes down
//! every effect that succeeded (a checkpoint) with its time; the checker then looks for an effect
//! of an owner that began after a later owner's effect had ended.

use super::{Hand, Log, put_up};
use crate::world::soon;
use firth::Broker;
use firth::claims::{Claims, Event};
use firth_testkit::{Flavor, RedisServer};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const ROLE: &str = "FIRTH_TEST_CLAIMS_WORKER";
/// Long enough for a starved machine; exact times are the benchmark's business.
const PATIENCE: Duration = Duration::from_secs(120);

/// Not a test: the body of the children. As a test it does nothing.
#[test]
fn worker_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [url, id, ttl_ms, log] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("four words") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let ttl = Duration::from_millis(ttl_ms.parse().unwrap());
    runtime.block_on(work(url, id, ttl, Path::new(log)));
}

async fn work(url: &str, id: &str, ttl: Duration, log: &Path) {
    let claims = Broker::connect(url).await.unwrap().claims("devices");
    let mut worker = claims.worker(id).ttl(ttl).buffer(50_000).await.unwrap();
    let handle = worker.handle();
    let reader = tokio::spawn(async move {
        while let Some(Ok(event)) = worker.next().await {
            if let Event::Recalled(claim) = event {
                drop(claim.release().await);
            }
        }
    });
    let mut text = String::new();
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE * 2 && !reader.is_finished() {
        let mut held = handle.claims();
        fastrand::shuffle(&mut held);
        for claim in held.into_iter().take(30).filter(firth::claims::Claim::is_valid) {
            let start = now();
            if claim.checkpoint(id.to_owned()).await.is_ok() {
                writeln!(text, "{} {} {id} {start} {}", claim.name(), claim.epoch(), now()).unwrap();
            }
        }
        std::fs::write(log.with_extension("new"), &text).unwrap();
        std::fs::rename(log.with_extension("new"), log).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

/// A child that ends with the test.
struct Process(Child);

impl Process {
    fn start(url: &str, id: &str, ttl: Duration, dir: &Path) -> Self {
        let log = dir.join(format!("{id}.log"));
        let role = format!("{url} {id} {} {}", ttl.as_millis(), log.display());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["claims::processes::worker_process", "--exact", "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.0.id().to_string()).status();
        assert!(status.unwrap().success(), "kill -{name}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many units each living worker has.
async fn shares(claims: &Claims) -> BTreeMap<String, u64> {
    let workers = claims.workers().await.unwrap();
    workers.into_iter().filter(|worker| worker.is_alive).map(|worker| (worker.id, worker.claims)).collect()
}

async fn until(what: &str, claims: &Claims, check: impl Fn(&BTreeMap<String, u64>) -> bool) -> Duration {
    let begun = Instant::now();
    loop {
        let shares = shares(claims).await;
        if check(&shares) {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}; shares are {shares:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Every effect of a unit under an older epoch ended before, or at least began before the end of,
/// those under newer ones.
fn check_effects(dir: &Path) -> usize {
    let mut effects: BTreeMap<String, Vec<(u64, u128, u128, String)>> = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        for line in std::fs::read_to_string(entry.unwrap().path()).unwrap().lines() {
            let [unit, epoch, worker, start, end] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("a line has five words")
            };
            let effect =
                (epoch.parse().unwrap(), start.parse().unwrap(), end.parse().unwrap(), worker.to_owned());
            effects.entry(unit.to_owned()).or_default().push(effect);
        }
    }
    for (unit, effects) in &mut effects {
        effects.sort();
        let mut owners: BTreeMap<u64, &str> = BTreeMap::new();
        for (epoch, _, _, worker) in effects.iter() {
            assert_eq!(owners.entry(*epoch).or_insert(worker), worker, "two owners of {unit} under {epoch}");
        }
        let mut first_end_after = u128::MAX;
        let mut newer: Option<u64> = None;
        let mut pending = u128::MAX;
        for (epoch, start, end, worker) in effects.iter().rev() {
            if newer != Some(*epoch) {
                first_end_after = first_end_after.min(pending);
                newer = Some(*epoch);
            }
            assert!(
                *start <= first_end_after,
                "{worker} changed {unit} under {epoch} after a newer owner did"
            );
            pending = pending.min(*end);
        }
    }
    effects.values().map(Vec::len).sum()
}

async fn others(server: &RedisServer, count: usize) {
    let fill = "for i = 1, 50000 do redis.call('SET', 'other:' .. (i + ARGV[1]), 'x', 'PX', 600000 + i) end";
    for from in (0..count).step_by(50_000) {
        server.command(&["EVAL", fill, "0", &from.to_string()]).await;
    }
}

async fn a_killed_and_a_stopped_worker_are_replaced(flavor: Flavor, units: usize, other_keys: usize) {
    let server = RedisServer::start(flavor).await;
    others(&server, other_keys).await;
    let dir = tempfile::tempdir().unwrap();
    let claims = Broker::connect(&server.url()).await.unwrap().claims("devices");
    put_up(&claims, units).await;
    let ttl = Duration::from_secs(3);
    let all = units as u64;
    let mut workers: Vec<Process> =
        (0..4).map(|n| Process::start(&server.url(), &format!("w{n}"), ttl, dir.path())).collect();
    let even = |shares: &BTreeMap<String, u64>| shares.values().all(|share| share * 10 >= all / 4 * 9);
    until("an even share of four", &claims, |shares| {
        shares.len() == 4 && shares.values().sum::<u64>() == all && even(shares)
    })
    .await;
    drop(workers.remove(0));
    workers[0].signal("STOP");
    let two = |shares: &BTreeMap<String, u64>| {
        shares.get("w2").copied().unwrap_or(0) + shares.get("w3").copied().unwrap_or(0) == all
    };
    let took = until("the two left have it all", &claims, two).await;
    println!("{units} units beside {other_keys} keys: {took:?} with a TTL of {ttl:?}");
    assert!(took < ttl + Duration::from_secs(20), "the takeover took {took:?}");
    workers[0].signal("CONT");
    until("the one that slept has a share again", &claims, |shares| {
        shares.get("w1").is_some_and(|share| *share > 0) && shares.values().sum::<u64>() == all
    })
    .await;
    drop(workers);
    assert!(check_effects(dir.path()) > 100, "there were effects to judge");
    assert_eq!(claims.status().await.unwrap().offers, all, "nothing is lost");
}

fn on_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
}

#[test]
fn twenty_thousand_units_are_taken_over_from_killed_and_stopped_processes_beside_a_million_other_keys() {
    on_runtime(a_killed_and_a_stopped_worker_are_replaced(Flavor::Redis, 20_000, 1_000_000));
}

#[test]
fn units_are_taken_over_from_killed_and_stopped_processes_on_valkey() {
    on_runtime(a_killed_and_a_stopped_worker_are_replaced(Flavor::Valkey, 2_000, 0));
}

/// A server that is away for a while costs time, but no offer and no second owner.
#[test]
fn a_server_that_restarts_loses_no_offer() {
    on_runtime(async {
        let server =
            RedisServer::builder().config("appendonly yes").config("appendfsync always").start().await;
        let claims = Broker::connect(&server.url()).await.unwrap().claims("devices");
        put_up(&claims, 200).await;
        let log = Log::default();
        let mut hands = Vec::new();
        for n in 0..3 {
            let broker = Broker::connect(&server.url()).await.unwrap();
            let worker =
                broker.claims("devices").worker(format!("w{n}")).ttl(Duration::from_secs(2)).await.unwrap();
            hands.push(Hand::start(worker, log.clone()));
        }
        let owned_by_all =
            |shares: &BTreeMap<String, u64>| shares.len() == 3 && shares.values().sum::<u64>() == 200;
        until("all are owned", &claims, owned_by_all).await;
        server.kill().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        server.relaunch().await;
        soon("all are owned again", async {
            loop {
                let workers = claims.workers().await;
                let owned = workers
                    .map(|workers| workers.iter().filter(|w| w.is_alive).map(|w| w.claims).sum::<u64>());
                if owned.is_ok_and(|owned| owned == 200)
                    && hands.iter().map(|hand| hand.handle.claim_count()).sum::<u64>() == 200
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        log.check();
    });
}
