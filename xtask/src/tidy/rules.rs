//! The rules themselves (pure): a file's path and text in, violations out.

use super::code;

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 100;

/// Macros for work in progress.
const UNFINISHED: [&str; 3] = ["todo!(", "dbg!(", "unimplemented!("];

/// Folders of particular machines, written so that this file does not break its own rule.
const MACHINE_PATHS: [&str; 3] = [concat!("/", "root"), concat!("/", "work/"), concat!("/", "home/")];

/// Every rule that a file breaks, as `path:line: what`.
pub(super) fn violations(path: &str, text: &str) -> Vec<String> {
    let mut found = machine_paths(text);
    if path.ends_with(".rs") {
        found.extend(rust_violations(path, text));
    }
    found.into_iter().map(|(line, what)| format!("{path}:{line}: {what}")).collect()
}

fn rust_violations(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    if !text.starts_with("//!") {
        found.push((1, "a file opens with `//!` and says what it is".into()));
    }
    let lines = text.lines().count();
    if lines > MAX_FILE_LINES {
        found.push((MAX_FILE_LINES, format!("{lines} lines; a file has at most {MAX_FILE_LINES}")));
    }
    let bare = code::without_text(text);
    for function in code::functions(&bare).into_iter().filter(|f| f.lines > MAX_FUNCTION_LINES) {
        let what = format!("fn {} has {} lines; at most {MAX_FUNCTION_LINES}", function.name, function.lines);
        found.push((function.line, what));
    }
    for (index, line) in bare.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
            found.push((index + 1, format!("`{word}` is unfinished work")));
        }
        if line.contains("thread::sleep") && !may_sleep(path) && !is_explained(text, index) {
            let what =
                "`thread::sleep` blocks a thread; wait for a condition, or say above it `// own thread: why`";
            found.push((index + 1, what.into()));
        }
    }
    found
}

/// Tests may block a thread on purpose, and benchmarks keep time apart from the runtime they measure.
fn may_sleep(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.starts_with("bench/")
}

/// A thread that is ours alone may sleep, if the line above says why.
fn is_explained(text: &str, index: usize) -> bool {
    index > 0 && text.lines().nth(index - 1).is_some_and(|above| above.contains("// own thread: "))
}

fn machine_paths(text: &str) -> Vec<(usize, String)> {
    let lines = text.lines().enumerate();
    let bad = lines.filter(|(_, line)| MACHINE_PATHS.iter().any(|path| names_path(line, path)));
    bad.map(|(index, _)| (index + 1, "names a folder of a particular machine".into())).collect()
}

/// Whether `line` holds `path` as the start of an absolute path, not as a part of a longer one.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + path.len()..].chars().next();
        let starts = before.is_none_or(|c| !c.is_alphanumeric() && !"._-}~>".contains(c));
        let ends = path.ends_with('/') || after.is_none_or(|c| !c.is_alphanumeric() && !"_-.".contains(c));
        starts && ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules_broken(path: &str, text: &str) -> usize {
        violations(path, text).len()
    }

    #[test]
    fn a_tidy_file_breaks_no_rule() {
        assert_eq!(rules_broken("crates/a/src/lib.rs", "//! A crate.\n\npub fn f() {}\n"), 0);
    }

    #[test]
    fn a_rust_file_opens_with_its_story() {
        assert_eq!(rules_broken("crates/a/tests/it/b.rs", "use std::io;\n"), 1);
        assert_eq!(rules_broken("README.md", "use std::io;\n"), 0);
    }

    #[test]
    fn long_files_and_long_functions_are_found() {
        let long_file = format!("//! Long.\n{}", "\n".repeat(600));
        assert_eq!(rules_broken("src/a.rs", &long_file), 1);
        let long_function = format!("//! Long.\nfn f() {{\n{}}}\n", "    g();\n".repeat(100));
        assert_eq!(rules_broken("src/a.rs", &long_function), 1);
    }

    #[test]
    fn unfinished_work_is_found_in_code_but_not_in_text() {
        assert_eq!(rules_broken("src/a.rs", "//! No todo!() here.\nfn f() { todo!() }\n"), 1);
        assert_eq!(rules_broken("src/a.rs", "//! A.\nconst T: &str = \"todo!(\";\n"), 0);
    }

    #[test]
    fn blocking_sleeps_are_only_for_tests_and_benchmarks() {
        let text = "//! A.\nfn f() { std::thread::sleep(d) }\n";
        assert_eq!(rules_broken("crates/a/src/a.rs", text), 1);
        assert_eq!(rules_broken("crates/a/tests/it/a.rs", text), 0);
        assert_eq!(rules_broken("bench/src/a.rs", text), 0);
        let explained = "//! A.\n// own thread: polls a file lock\nfn f() { std::thread::sleep(d) }\n";
        assert_eq!(rules_broken("crates/a/src/a.rs", explained), 0);
    }

    #[test]
    fn machine_paths_are_found_but_not_their_likes() {
        for path in MACHINE_PATHS {
            assert_eq!(rules_broken("a.md", &format!("see {path}")), 1, "{path}");
            assert_eq!(rules_broken("a.md", &format!("see https://a.example{path}x")), 0, "{path}");
        }
        assert_eq!(rules_broken("a.md", "target/roots and /rooted and net/work/x"), 0);
    }
}
