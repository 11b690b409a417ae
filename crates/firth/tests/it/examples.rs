//! Every example runs to its end with nothing installed, and says what it promises.

use std::path::PathBuf;
use std::process::Command;

/// Where cargo put the examples that it built together with this test.
fn built(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let profile = here.parent().and_then(|deps| deps.parent()).unwrap();
    let path = profile.join("examples").join(name);
    assert!(path.exists(), "build the examples, too: cargo build --examples");
    path
}

fn says(name: &str, words: &str) {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(built(name)).current_dir(dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(words), "{name} says:\n{text}");
}

macro_rules! run {
    ($($name:ident says $words:literal;)*) => {
        $(#[test]
        fn $name() {
            says(stringify!($name), $words);
        })*
    };
}

run! {
    quickstart says "one coffee, please";
    retries_and_dead_letters says "1 letter is left";
    ordered_per_key says "bob pays";
    delayed says "tea is ready";
    two_groups says "shipping  order 4 at attempt 2";
    graceful_shutdown says "handed over cleanly";
    testing_handlers says "of retries took";
    device_fleet says "0 out of order";
    change_source says "each once, after";
}
