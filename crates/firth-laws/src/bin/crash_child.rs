//! The victim of the crash laws: works on a data directory and says what it knows, until it is
//! killed.
//!
//! `crash_child DIR synced|fast POINT N [liar] [bulky] [full] [marked] [rounds=N]`. `POINT` is a
//! crash point (or `none`), and `N` says at which pass of it to die. `liar` plants a bug, `bulky`
//! makes records that fill pages of the disk, `full` lets it fill the disk, `marked` appends with
//! the mark of a source, and `rounds` lets it end by itself.
//!
//! Before a commit it prints `try …` with the numbers it is about to settle, after each
//! acknowledgement what was acknowledged. The parent holds the engine to these words after opening
//! the directory again. With `rounds` it repeats what the engine could not store, as a client does,
//! until it is stored.

#![allow(clippy::unwrap_used, reason = "its death is the point")]

use firth_engine::Verdict;
use firth_engine::facet::{Acquire, Append, LeaseQuery, Trim, TrimTo};
use firth_engine::{
    Content, CrashPoint, Durability, Engine, ErrorKind, FileOptions, GroupName, Hold, Hooks, LeaseName,
    Mutation, Partition, TopicName,
};
use firth_laws::marks::once;
use firth_laws::world::{LONG, Owner, bulky, dead, group, holder, number, numbered, retry, take_over};
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
    let words = &args[5..];
    let has = |word: &str| words.iter().any(|arg| arg == word);
    let min_free = if has("full") { 0 } else { FileOptions::default().min_free };
    // Small, so that deaths also meet a log that gets files of its own.
    let options = FileOptions { durability, outgrown: 300, min_free, ..FileOptions::default() };
    let rounds = words.iter().find_map(|arg| arg.strip_prefix("rounds=")).map(|n| n.parse().unwrap());
    let hooks = hooks(&args[3], &args[4], has("liar"));
    let content = if has("bulky") { bulky } else { numbered };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let engine = Engine::file_with(&args[1], options, hooks).await.unwrap();
        work(&engine, content, has("marked"), rounds).await;
        engine.close().await.unwrap();
    });
}

/// Prints a line whole and at once.
fn say(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

async fn work(engine: &Engine, content: fn(u64) -> Content, is_marked: bool, rounds: Option<u64>) {
    let insists = rounds.is_some();
    let at = Partition::new(TopicName::new("crash").unwrap(), 0);
    let name = group("g");
    stored(insists, async || engine.create_partition(&at).await).await;
    let lease = LeaseName::group(&at, &name);
    let before = engine.leases(&LeaseQuery::Names(vec![lease])).await.unwrap();
    assert!(before.iter().all(|lease| !lease.is_held()), "leases of the former process have ended");
    let hold = take(engine, &at, &name, insists).await;
    say(&format!("epoch {}", hold.epoch));
    let mut owner = stored(insists, async || Owner::open(engine, &at, &name, hold.clone()).await).await;
    let mut appended = engine.bounds(&at).await.unwrap().last.seq;
    let start = Instant::now();
    for round in 0.. {
        if start.elapsed() > LIFETIME || rounds.is_some_and(|rounds| round == rounds) {
            break;
        }
        let batch = (appended..appended + 3).map(content).collect::<Vec<_>>();
        let append = once(Append::new(batch), appended, is_marked);
        let append = stored(insists, async || engine.append(&at, append.clone()).await);
        // A renewal needs no sync, and shares that of the append: the group as a whole must have
        // one.
        let renew = async {
            if insists {
                let _ = engine.renew(std::slice::from_ref(&owner.hold), LONG).await;
            }
        };
        tokio::join!(append, renew);
        appended += 3;
        say(&format!("appended {appended}"));
        match settle_some(&mut owner).await {
            Err(error) if insists && error.kind() == ErrorKind::Unavailable => {
                owner =
                    stored(insists, async || Owner::open(engine, &at, &name, owner.hold.clone()).await).await;
            }
            settled => settled.unwrap(),
        }
        if appended.is_multiple_of(9) {
            let trim = Trim { to: TrimTo::Keep(2), lossy: false };
            stored(insists, async || engine.trim(&at, trim).await).await;
        }
    }
}

/// Repeats a step that could not be stored. What it answers is what the step answered in the end.
async fn stored<T>(insists: bool, mut step: impl AsyncFnMut() -> firth_engine::Result<T>) -> T {
    let start = Instant::now();
    loop {
        match step().await {
            Err(error) if insists && error.kind() == ErrorKind::Unavailable && start.elapsed() < LIFETIME => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.unwrap(),
        }
    }
}

/// Takes the group's lease. If an answer was lost, the lease is taken over from the life that never
/// was.
async fn take(engine: &Engine, at: &Partition, name: &GroupName, insists: bool) -> Hold {
    let request = Acquire::new(LeaseName::group(at, name), holder(), LONG);
    match stored(insists, async || engine.acquire(request.clone()).await).await.granted() {
        Some(hold) => hold,
        None => take_over(engine, at, name).await,
    }
}

/// Takes what is due and two records of the log, and settles them in different ways.
async fn settle_some(owner: &mut Owner) -> firth_engine::Result<()> {
    let mut hand = owner.try_due(1).await?;
    for _ in 0..2 {
        hand.extend(owner.next().await);
    }
    let mut done = Vec::new();
    let mut buried = Vec::new();
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
    owner.try_commit().await?;
    say(&format!("settled {words}"));
    Ok(())
}
