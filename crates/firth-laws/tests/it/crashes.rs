//! Crash laws of the engine on files: a child process dies at every step, or at any moment, and its
//! data is opened again.

use firth_engine::facet::Append;
use firth_engine::{
    Durability, Engine, Epoch, FileOptions, GroupName, Partition, RecordId, TopicName, Verdict,
};
use firth_laws::marks::{crash_mark, crash_source, once};
use firth_laws::world::{Owner, bulky, group, number, numbered, read_all, status};
use firth_testkit::cannot_run;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What the child said, over all its lives.
#[derive(Clone, Default)]
pub(super) struct Words {
    epoch: u64,
    appended: u64,
    done: BTreeSet<u64>,
    buried: BTreeSet<u64>,
    /// It appends with the mark of a source, not as a numbered producer.
    pub(super) is_marked: bool,
    /// What it was about to settle when it died, or when the engine failed.
    maybe: BTreeSet<u64>,
}

impl Words {
    /// Listens to one life.
    pub(super) fn hear(&mut self, output: &str) {
        self.maybe.clear();
        for line in output.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "epoch" => {
                    let epoch = rest.parse().unwrap();
                    assert!(epoch > self.epoch, "an epoch came back");
                    self.epoch = epoch;
                }
                "appended" => self.appended = rest.parse().unwrap(),
                "try" => self.maybe.extend(numbers(&rest.replace('/', " "))),
                "settled" => {
                    let (done, buried) = rest.split_once('/').unwrap();
                    self.done.extend(numbers(done));
                    self.buried.extend(numbers(buried));
                    self.maybe.retain(|n| !self.done.contains(n) && !self.buried.contains(n));
                }
                _ => panic!("unexpected word {line:?}"),
            }
        }
    }
}

fn numbers(text: &str) -> BTreeSet<u64> {
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// Runs the child until it dies: by itself at a crash point, or killed after a while. Answers what
/// it said.
fn one_life(dir: &Path, args: &[&str], kill_after: Option<Duration>) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_crash_child"))
        .arg(dir)
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(wait) = kill_after {
        std::thread::sleep(wait);
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "the child must die");
    assert!(!errors.contains("panicked"), "it died of something else: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Opens the directory again and holds the engine to the child's words.
pub(super) async fn check(dir: &Path, words: &mut Words) {
    let options = FileOptions { durability: Durability::Fast, ..FileOptions::default() };
    let engine = Engine::file(dir, options).await.unwrap();
    let at = Partition::new(TopicName::new("crash").unwrap(), 0);
    let name = group("g");
    if engine.create_partition(&at).await.unwrap() {
        assert_eq!(words.appended, 0, "the partition is lost");
    }
    check_log(&engine, &at, words).await;
    if words.epoch > 0 && engine.groups(&at).await.unwrap().contains(&name) {
        check_group(&engine, &at, &name, words).await;
    } else {
        assert!(words.done.is_empty(), "the group is lost");
    }
    engine.close().await.unwrap();
}

/// Every acknowledged batch is there; the one in flight is there whole or not at all; sending it
/// again settles which.
async fn check_log(engine: &Engine, at: &Partition, words: &mut Words) {
    let last = engine.bounds(at).await.unwrap().last.seq;
    assert!(last == words.appended || last == words.appended + 3, "{last} after {}", words.appended);
    let log = read_all(engine, at).await;
    for record in &log {
        assert_eq!(number(record) + 1, record.id.seq, "a record holds another's content");
        let is_whole = [numbered(number(record)), bulky(number(record))].contains(&record.content);
        assert!(is_whole, "half a record");
    }
    assert!(log.windows(2).all(|pair| pair[0].id.seq + 1 == pair[1].id.seq), "a hole in the log");
    if words.is_marked {
        let mark = engine.mark(at, &crash_source()).await.unwrap().map(|mark| mark.upto);
        assert_eq!(mark, (last > 0).then(|| crash_mark(last)), "the mark says what the log holds");
    }
    let first = words.appended;
    let batch = (first..first + 3).map(numbered).collect::<Vec<_>>();
    let again = once(Append::new(batch), first, words.is_marked);
    assert_eq!(engine.append(at, again).await.unwrap().duplicate, last > first);
    words.appended += 3;
    assert_eq!(engine.bounds(at).await.unwrap().last.seq, words.appended, "exactly once");
}

/// Law 2 over a crash: every record is waiting, due, dead or done; what was acknowledged as settled
/// stays so.
async fn check_group(engine: &Engine, at: &Partition, name: &GroupName, words: &mut Words) {
    let letters = engine.dead(at, name, RecordId::ZERO, 10_000).await.unwrap();
    let dead: BTreeSet<u64> = letters.iter().map(|letter| letter.id.seq - 1).collect();
    let before = status(engine, at, name).await;
    assert_eq!(before.dead, dead.len() as u64);
    let mut owner = Owner::new(engine, at, name).await;
    assert!(owner.hold.epoch > Epoch(words.epoch), "the epoch grows over a crash");
    words.epoch = owner.hold.epoch.0;
    let mut open: BTreeSet<u64> = BTreeSet::new();
    let due = owner.due(10_000).await;
    let mut hand = due;
    while let Some(record) = owner.next().await {
        hand.push(record);
    }
    for record in &hand {
        assert!(open.insert(number(record)), "{} is in two places", number(record));
    }
    assert_eq!(before.lag(), open.len() as u64, "the lag is exact");
    assert!(open.is_disjoint(&words.done) && open.is_disjoint(&words.buried), "settled records came back");
    assert!(words.buried.is_subset(&dead), "a dead letter is lost");
    assert!(open.is_disjoint(&dead), "dead and alive");
    let done: BTreeSet<u64> = words.done.iter().chain(&words.maybe).copied().collect();
    for n in 0..words.appended {
        assert!(open.contains(&n) || dead.contains(&n) || done.contains(&n), "record {n} is nowhere");
    }
    // The unknown is known now, and half of the open ones are settled here.
    words.buried.extend(&dead);
    let settled: Vec<u64> =
        words.maybe.iter().copied().filter(|n| !open.contains(n) && !dead.contains(n)).collect();
    words.done.extend(settled);
    for record in hand.iter().take(hand.len() / 2) {
        words.done.insert(number(record));
        owner.settle(record, Verdict::Ack);
    }
    owner.commit().await;
    owner.leave().await;
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

fn dies_at_every_pass(durability: &str, point: &str, is_marked: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut words = Words { is_marked, ..Words::default() };
    let how = if is_marked { "marked" } else { "numbered" };
    // Early passes cover creating, acquiring, opening; later ones appends, commits and trims. One
    // directory lives through all.
    for nth in 1..=22 {
        words.hear(&one_life(dir.path(), &[durability, point, &nth.to_string(), how], None));
        runtime().block_on(check(dir.path(), &mut words));
    }
    assert!(words.done.len() > 40, "the test must have done something");
}

#[test]
fn a_death_before_any_write_loses_nothing() {
    dies_at_every_pass("synced", "before-write", false);
}

#[test]
fn a_death_between_write_and_sync_loses_nothing() {
    dies_at_every_pass("synced", "after-write", false);
}

#[test]
fn a_death_between_sync_and_answer_loses_nothing() {
    dies_at_every_pass("synced", "after-sync", false);
}

#[test]
fn a_death_of_the_process_loses_nothing_with_fast_either() {
    dies_at_every_pass("fast", "after-write", false);
    dies_at_every_pass("fast", "after-sync", false);
}

#[test]
fn a_death_at_any_step_parts_no_mark_from_its_records() {
    for point in ["before-write", "after-write", "after-sync"] {
        dies_at_every_pass("synced", point, true);
    }
    dies_at_every_pass("fast", "after-write", true);
}

#[test]
fn an_engine_that_lies_about_durability_is_caught() {
    let is_caught = |nth: u32| {
        let dir = tempfile::tempdir().unwrap();
        let mut words = Words::default();
        let args = ["synced", "after-sync", &nth.to_string(), "liar"];
        words.hear(&one_life(dir.path(), &args, None));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime().block_on(check(dir.path(), &mut words));
        }))
        .is_err()
    };
    std::panic::set_hook(Box::new(|_| {}));
    let caught = (5..10).filter(|nth| is_caught(*nth)).count();
    drop(std::panic::take_hook());
    assert_eq!(caught, 5);
}

/// The disk refuses a sync: that step is not acknowledged, nothing after it is, and what was
/// acknowledged before stays.
#[test]
fn a_failed_sync_is_never_acknowledged() {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        cannot_run("strace", "there is no strace here");
        return;
    }
    for nth in [12, 17, 23] {
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new("strace")
            .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"])
            .args(["-e", &format!("inject=fdatasync:error=EIO:when={nth}+")])
            .arg(env!("CARGO_BIN_EXE_crash_child"))
            .arg(dir.path())
            .args(["synced", "none", "0"])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("Unavailable") && errors.contains("may_have_happened"), "{errors}");
        let mut words = Words::default();
        words.hear(&String::from_utf8(output.stdout).unwrap());
        assert!(words.appended > 0, "the sync fails in the middle of the work");
        runtime().block_on(check(dir.path(), &mut words));
    }
}

#[test]
fn kill_9_at_any_moment_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut words = Words { is_marked: true, ..Words::default() };
    let mut random = fastrand::Rng::new();
    for life in 0..25 {
        let durability = if life % 2 == 0 { "synced" } else { "fast" };
        let wait = Duration::from_millis(random.u64(1..250));
        words.hear(&one_life(dir.path(), &[durability, "none", "0", "marked"], Some(wait)));
        runtime().block_on(check(dir.path(), &mut words));
    }
}

#[test]
fn kill_9_while_a_store_is_made_leaves_one_that_opens() {
    let mut random = fastrand::Rng::new();
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let mut words = Words::default();
        let wait = Duration::from_micros(random.u64(1000..20_000));
        words.hear(&one_life(dir.path(), &["synced", "none", "0"], Some(wait)));
        runtime().block_on(check(dir.path(), &mut words));
    }
}

#[test]
fn a_store_whose_making_was_cut_short_is_made_again() {
    for leftovers in [&["store/keyspaces/"][..], &["store/keyspaces/", "store/0.jnl"], &["store.new/0.jnl"]] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("FORMAT"), "2\n").unwrap();
        for name in leftovers {
            let path = dir.path().join(name);
            if name.ends_with('/') {
                std::fs::create_dir_all(path).unwrap();
            } else {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "").unwrap();
            }
        }
        runtime().block_on(check(dir.path(), &mut Words::default()));
        assert!(!dir.path().join("store.new").exists(), "nothing is left aside");
    }
}
