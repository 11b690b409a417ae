//! The victim of the crash laws: works on a data directory and says what it knows, until it is killed.
//!
//! `crash_child DIR synced|fast POINT N [liar]` — `liar` plants a bug; `POINT` is a crash point (or `none`) and `N` says at which pass of it to die. Before a
//! commit it prints `try …` with the numbers it is about to settle, after each acknowledgement what was acknowledged. The
//! parent holds the engine to these words after opening the directory again.

#![allow(clippy::unwrap_used, reason = "its death is the point")]

use firth_engine::Verdict;
use firth_engine::facet::{Append, LeaseQuery, ProducerSeq, Trim, TrimTo};
use firth_engine::{
    CrashPoint, Durability, Engine, FileOptions, Hooks, LeaseName, Mutation, Partition, ProducerName,
    TopicName,
};
use firth_laws::world::{LONG, Owner, acquire, dead, group, number, numbered, retry};
use std::time::{Duration, Instant};

/// Without being killed it ends by itself.
const LIFETIME: Duration = Duration::from_secs(20);

fn hooks(point: &str, nth: &str, is_liar: bool) -> Hooks {
    let point = match point {
        "before-write" => Some(CrashPoint::BeforeWrite),
        "after-write" => Some(CrashPoint::AfterWrite),
        "after-sync" => Some(CrashPoint::AfterSync),
        _ => None,
    };
    Hooks {
        mutation: is_liar.then_some(Mutation::AckWithoutSync),
        crash: point.map(|point| (point, nth.parse().unwrap())),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let durability = if args[2] == "fast" { Durability::Fast } else { Durability::Synced };
    // Small, so that deaths also meet a log that gets files of its own.
    let options = FileOptions { durability, outgrown: 300, ..FileOptions::default() };
    let hooks = hooks(&args[3], &args[4], args.get(5).is_some_and(|arg| arg == "liar"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let engine = Engine::file_with(&args[1], options, hooks).await.unwrap();
        work(engine).await;
    });
}

/// Prints a line whole and at once.
fn say(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

async fn work(engine: Engine) {
    let at = Partition::new(TopicName::new("crash").unwrap(), 0);
    let name = group("g");
    engine.create_partition(&at).await.unwrap();
    let lease = LeaseName::group(&at, &name);
    let before = engine.leases(&LeaseQuery::Names(vec![lease])).await.unwrap();
    assert!(before.iter().all(|lease| !lease.is_held()), "leases of the former process have ended");
    let hold = acquire(&engine, &at, &name, LONG).await;
    say(&format!("epoch {}", hold.epoch));
    let mut owner = Owner::with(&engine, &at, &name, hold).await;
    let producer = ProducerName::new("p").unwrap();
    let mut appended = engine.bounds(&at).await.unwrap().last.seq;
    let start = Instant::now();
    while start.elapsed() < LIFETIME {
        let batch = (appended..appended + 3).map(numbered).collect::<Vec<_>>();
        let seq = ProducerSeq { name: producer.clone(), first: appended };
        engine.append(&at, Append { producer: Some(seq), ..Append::new(batch) }).await.unwrap();
        appended += 3;
        say(&format!("appended {appended}"));
        settle_some(&mut owner).await;
        if appended.is_multiple_of(9) {
            engine.trim(&at, Trim { to: TrimTo::Keep(2), lossy: false }).await.unwrap();
        }
    }
}

/// Takes what is due and two records of the log, and settles them in different ways.
async fn settle_some(owner: &mut Owner) {
    let mut hand = owner.due(1).await;
    for _ in 0..2 {
        hand.extend(owner.next().await);
    }
    let (mut done, mut buried) = (Vec::new(), Vec::new());
    for record in &hand {
        let verdict = match number(record) % 5 {
            1 if record.attempt < 3 => retry(Duration::ZERO),
            2 => {
                buried.push(number(record).to_string());
                dead("crash test")
            }
            _ => {
                done.push(number(record).to_string());
                Verdict::Ack
            }
        };
        owner.settle(record, verdict);
    }
    let words = format!("{} / {}", done.join(" "), buried.join(" "));
    say(&format!("try {words}"));
    owner.commit().await;
    say(&format!("settled {words}"));
}
