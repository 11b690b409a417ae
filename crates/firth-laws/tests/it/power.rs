//! Power cuts: the disk loses what was not synced, at any system call, and its data is opened
//! again.

use super::crashes::{Words, check, runtime};
use super::files::Mount;
use firth_testkit::{FailedSync, Recording};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// How many cuts each test makes: 10, or 100 in nextest's profile `long`, or `FIRTH_POWER_CUTS`.
fn cuts() -> usize {
    let is_long = std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "long");
    let usual = if is_long { 100 } else { 10 };
    std::env::var("FIRTH_POWER_CUTS").map_or(usual, |cuts| cuts.parse().unwrap())
}

/// The seed of a run: `FIRTH_SEED` repeats one.
fn seed() -> u64 {
    std::env::var("FIRTH_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap())
}

/// Records one life of the child on the disk under `root`.
fn life(root: &Path, durability: &str, rounds: usize, failing: Option<FailedSync>) -> Recording {
    let dir = root.join("data");
    let rounds = format!("rounds={rounds}");
    let args = [dir.to_str().unwrap(), durability, "none", "0", "bulky", &rounds];
    Recording::of(root, env!("CARGO_BIN_EXE_crash_child"), &args, failing)
}

/// Cuts the power at one moment and holds what is left to what the child had said.
fn cut(recording: &Recording, words: &Words, moment: usize, seed: u64, to: &Path) -> Words {
    recording.cut(moment, seed, to);
    let mut words = words.clone();
    words.hear(&recording.said(moment));
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime().block_on(check(&to.join("data"), &mut words))));
    assert!(outcome.is_ok(), "with seed {seed}, cut after {moment} of {} calls", recording.moments());
    words
}

#[test]
fn a_power_cut_at_any_moment_loses_nothing_acknowledged() {
    let seed = seed();
    eprintln!("FIRTH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut disk = tempfile::tempdir().unwrap();
    let mut words = Words::default();
    let cuts = cuts();
    for life_no in 0..cuts.div_ceil(5) {
        let recording = life(disk.path(), "synced", 12, None);
        assert!(recording.status.success(), "{}", recording.errors);
        for last in [false, false, false, false, true] {
            let image = tempfile::tempdir().unwrap();
            let from = if life_no == 0 { 0 } else { recording.moments() / 10 };
            let moment = random.usize(from..=recording.moments());
            let after = cut(&recording, &words, moment, random.u64(..), image.path());
            if last {
                (disk, words) = (image, after);
                break;
            }
        }
    }
}

#[test]
fn k01_a_failed_sync_and_a_power_cut_later_lose_nothing_acknowledged() {
    let seed = seed();
    eprintln!("FIRTH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..cuts() {
        let disk = tempfile::tempdir().unwrap();
        let failing = match random.u8(..4) {
            0 => FailedSync::All(random.u32(2..9)),
            _ => FailedSync::Data(random.u32(4..16)),
        };
        let recording = life(disk.path(), "synced", 12, Some(failing));
        // A sync that fails while the store is opened is an error of the opening; later ones are
        // survived.
        if let FailedSync::Data(_) = failing {
            assert!(recording.status.success(), "{failing:?}: {}", recording.errors);
        }
        let moment = random.usize(recording.moments() / 2..=recording.moments());
        let image = tempfile::tempdir().unwrap();
        cut(&recording, &Words::default(), moment, random.u64(..), image.path());
    }
}

/// A disk that fills up while records are written, and a power cut after that.
#[test]
fn a_full_disk_and_a_power_cut_later_lose_nothing_acknowledged() {
    let seed = seed();
    eprintln!("FIRTH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let disk = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::new(disk.path(), "size=3m") else { return };
    let dir = disk.path().join("data");
    let args = [dir.to_str().unwrap(), "synced", "none", "0", "bulky", "full"];
    let recording = Recording::of(disk.path(), env!("CARGO_BIN_EXE_crash_child"), &args, None);
    assert!(recording.errors.contains("the disk is full"), "{}", recording.errors);
    for _ in 0..cuts().div_ceil(2) {
        let image = tempfile::tempdir().unwrap();
        let moment = random.usize(recording.moments() * 9 / 10..=recording.moments());
        cut(&recording, &Words::default(), moment, random.u64(..), image.path());
    }
}

/// What a cut leaves of a store that was never used: it opens, or was never there.
#[test]
fn k08_a_power_cut_at_the_first_start_leaves_a_store_that_opens() {
    let seed = seed();
    eprintln!("FIRTH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let disk = tempfile::tempdir().unwrap();
    let recording = life(disk.path(), "synced", 1, None);
    let first_word = (0..recording.moments()).find(|moment| !recording.said(*moment).is_empty()).unwrap();
    for _ in 0..cuts() * 2 {
        let image = tempfile::tempdir().unwrap();
        let moment = random.usize(..=first_word + 20);
        cut(&recording, &Words::default(), moment, random.u64(..), image.path());
    }
}
