//! The rules themselves (pure): a file's path and text in, violations out.

use super::{code, lua, words};

const MAX_FILE_LINES: usize = 600;
pub(super) const MAX_FUNCTION_LINES: usize = 100;

/// Widest line of a comment, of Markdown and of Lua, in characters.
pub(super) const MAX_TEXT_COLUMNS: usize = 100;

/// Macros for work in progress.
const UNFINISHED: [&str; 3] = ["todo!(", "dbg!(", "unimplemented!("];

/// Folders of particular machines, written so that this file does not break its own rule.
const MACHINE_PATHS: [&str; 3] = [concat!("/", "root"), concat!("/", "work/"), concat!("/", "home/")];

/// Every rule that a file breaks, as `path:line: what`.
pub(super) fn violations(path: &str, text: &str) -> Vec<String> {
    let mut found = machine_paths(text);
    found.extend(merge_markers(text));
    found.extend(wide_text(path, text));
    found.extend(words::nameless_words(path, text));
    if path.ends_with(".rs") {
        found.extend(rust_violations(path, text));
    }
    if path.ends_with(".lua") {
        found.extend(lua::violations(text));
    }
    found.into_iter().map(|(line, what)| format!("{path}:{line}: {what}")).collect()
}

/// What a merge writes around lines that it could not join.
fn merge_markers(text: &str) -> Vec<(usize, String)> {
    let is_marker = |line: &str| ["<<<<<<< ", ">>>>>>> "].iter().any(|marker| line.starts_with(marker));
    let marked = text.lines().enumerate().filter(|(_, line)| is_marker(line));
    marked.map(|(index, _)| (index + 1, "a merge left its marker here".to_owned())).collect()
}

fn rust_violations(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    if !text.starts_with("//!") {
        found.push((1, "a file opens with `//!` and says what it is".into()));
    }
    found.extend(long_file(text));
    let bare = code::without_text(text);
    for function in code::functions(&bare).into_iter().filter(|f| f.lines > MAX_FUNCTION_LINES) {
        let what = format!("fn {} has {} lines; at most {MAX_FUNCTION_LINES}", function.name, function.lines);
        found.push((function.line, what));
    }
    found.extend(parted_imports(&bare));
    found.extend(nested_imports(&bare));
    found.extend(late_modules(&bare));
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

/// A file that holds too much.
pub(super) fn long_file(text: &str) -> Option<(usize, String)> {
    let lines = text.lines().count();
    (lines > MAX_FILE_LINES)
        .then(|| (MAX_FILE_LINES, format!("{lines} lines; a file has at most {MAX_FILE_LINES}")))
}

/// Imports after a blank line behind others: imports are one block, which rustfmt keeps sorted.
fn parted_imports(bare: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // Whether the last statement is an import, whether it goes on, and whether a gap follows.
    let mut after_import = false;
    let mut in_import = false;
    let mut gap = false;
    for (index, line) in bare.lines().enumerate() {
        let begins = !in_import && line.starts_with("use ");
        if begins && after_import && gap {
            found.push((index + 1, "a blank line parts these imports from those above".into()));
        }
        gap = line.trim().is_empty();
        after_import = begins || in_import || (after_import && gap);
        in_import = (begins || in_import) && !line.trim_end().ends_with(';');
    }
    found
}

/// Imports that name several modules: each module has a statement of its own, with names in braces.
fn nested_imports(bare: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, _) in bare.match_indices("use ") {
        let line_start = bare[..at].rfind('\n').map_or(0, |end| end + 1);
        if !["", "pub ", "pub(crate) ", "pub(super) "].contains(&&bare[line_start..at]) {
            continue;
        }
        let statement = bare[at..].split(';').next().unwrap_or_default();
        let is_nested = statement.split_once('{').is_some_and(|(_, names)| names.contains(['{', ':']));
        if is_nested {
            let line = bare[..at].matches('\n').count() + 1;
            found.push((line, "this import names several modules: write one `use` for each".into()));
        }
    }
    found
}

/// Files of modules that are declared after an import. Tests stand last, so theirs may.
fn late_modules(bare: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut after_import = false;
    let mut is_test = false;
    for (index, line) in bare.lines().enumerate() {
        after_import |= line.starts_with("use ");
        let declared = line.split_once("mod ").filter(|(before, name)| {
            name.ends_with(';') && (before.is_empty() || (before.starts_with("pub") && before.ends_with(' ')))
        });
        if declared.is_some() && after_import && !is_test {
            found
                .push((index + 1, "a module is declared behind an import: move it above all imports".into()));
        }
        is_test = line.starts_with("#[cfg(test)]") || (is_test && line.starts_with("#["));
    }
    found
}

/// Modules with files of their own beside `name.rs`: such a module lies in `name/mod.rs`.
pub(super) fn split_modules(files: &[String]) -> Vec<String> {
    let stems = files.iter().filter_map(|file| Some((file, file.strip_suffix(".rs")?)));
    let split = stems.filter(|(_, stem)| {
        let inside = format!("{stem}/");
        files.iter().any(|file| file.starts_with(&inside) && file.ends_with(".rs"))
    });
    split.map(|(file, stem)| format!("{file}:1: lies beside its folder; move it to {stem}/mod.rs")).collect()
}

/// Tests may block a thread on purpose, and benchmarks keep time apart from the runtime they
/// measure.
fn may_sleep(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.starts_with("bench/")
}

/// A thread that is ours alone may sleep, if the line above says why.
fn is_explained(text: &str, index: usize) -> bool {
    index > 0 && text.lines().nth(index - 1).is_some_and(|above| above.contains("// own thread: "))
}

/// Lines of prose over [`MAX_TEXT_COLUMNS`]. Code blocks and tables may be wider.
fn wide_text(path: &str, text: &str) -> Vec<(usize, String)> {
    let lines = prose_lines(path, text).filter(|(_, prose)| {
        let text = prose.trim_start().trim_start_matches(['/', '!', '-']).trim_start();
        prose.chars().count() > MAX_TEXT_COLUMNS && !text.starts_with('|')
    });
    lines
        .map(|(line, prose)| {
            let columns = prose.chars().count();
            (line, format!("{columns} columns; text has at most {MAX_TEXT_COLUMNS}"))
        })
        .collect()
}

/// Numbered lines that hold nothing but a comment, or Markdown; code blocks are left out.
pub(super) fn prose_lines<'a>(path: &str, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let marker = match path.rsplit_once('.') {
        Some((_, "rs")) => Some("//"),
        Some((_, "lua")) => Some("--"),
        Some((_, "md")) => Some(""),
        _ => None,
    };
    let mut in_block = false;
    let lines =
        marker.into_iter().flat_map(|marker| text.lines().enumerate().map(move |(i, l)| (marker, i, l)));
    lines.filter_map(move |(marker, index, line)| {
        let Some(prose) = line.trim_start().strip_prefix(marker) else {
            in_block = false;
            return None;
        };
        if prose.trim_start_matches(['/', '!']).trim_start().starts_with("```") {
            in_block = !in_block;
            return None;
        }
        (!in_block).then_some((index + 1, line))
    })
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
    fn no_marker_of_a_merge_is_left() {
        let half_merged = format!("# A\n{} HEAD\nb\n=======\nc\n{} d\n", "<".repeat(7), ">".repeat(7));
        assert_eq!(rules_broken("docs/a.md", &half_merged), 2);
        assert_eq!(rules_broken("docs/a.md", "# A\n=======\n"), 0);
    }

    #[test]
    fn imports_are_one_block() {
        let tidy = "//! A.\n\nuse a::{\n    b,\n};\nuse c;\n\npub use d;\n\nfn f() {}\n";
        assert_eq!(rules_broken("src/a.rs", tidy), 0);
        let exported = "//! A.\n\npub use a::{\n    b,\n};\n\nuse c;\n";
        assert_eq!(rules_broken("src/a.rs", exported), 0);
        assert_eq!(rules_broken("src/a.rs", "//! A.\n\nuse a;\n\nuse b;\n"), 1);
        assert_eq!(rules_broken("src/a.rs", "//! A.\n\nuse a::{\n    b,\n};\n\nuse c;\n"), 1);
    }

    #[test]
    fn an_import_names_one_module() {
        assert_eq!(rules_broken("src/a.rs", "//! A.\n\nuse a::b::{self, C, D as E};\npub use f::*;\n"), 0);
        assert_eq!(rules_broken("src/a.rs", "//! A.\n\nuse a::{b::C, D};\n"), 1);
        assert_eq!(rules_broken("src/a.rs", "//! A.\n\npub use a::{\n    b,\n    c::{D, E},\n};\n"), 1);
        assert_eq!(rules_broken("src/a.rs", "//! A.\n\nfn f() {\n    use a::{b::C, D};\n}\n"), 0);
    }

    #[test]
    fn modules_are_declared_above_imports() {
        assert_eq!(rules_broken("src/a.rs", "//! A.\n\npub mod a;\nmod b;\n\nuse b::C;\n"), 0);
        assert_eq!(rules_broken("src/a.rs", "//! A.\n\nuse b::C;\n\n#[cfg(test)]\nmod tests;\n"), 0);
        assert_eq!(rules_broken("src/a.rs", "//! A.\n\nuse b::C;\n\npub(crate) mod b;\n"), 1);
    }

    #[test]
    fn a_module_with_files_lies_in_its_folder() {
        let files = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(split_modules(&files(&["src/a/b.rs", "src/a/mod.rs", "src/lib.rs"])).len(), 0);
        assert_eq!(split_modules(&files(&["src/a.rs", "src/a/b.rs"])).len(), 1);
        assert_eq!(split_modules(&files(&["src/a.rs", "src/a/b.lua"])).len(), 0);
    }

    #[test]
    fn long_files_and_long_functions_are_found() {
        let long_file = format!("//! Long.\n{}", "\n".repeat(600));
        assert_eq!(rules_broken("src/a.rs", &long_file), 1);
        let long_function = format!("//! Long.\nfn f() {{\n{}}}\n", "    g();\n".repeat(100));
        assert_eq!(rules_broken("src/a.rs", &long_function), 1);
    }

    #[test]
    fn wide_text_is_found_outside_code_blocks_and_tables() {
        let wide = "word ".repeat(21);
        assert_eq!(rules_broken("src/a.rs", &format!("//! A.\n// {wide}\n")), 1);
        assert_eq!(rules_broken("src/a.lua", &format!("-- {wide}\n")), 1);
        assert_eq!(rules_broken("a.md", &format!("{wide}\n")), 1);
        assert_eq!(rules_broken("a.md", &format!("```\n{wide}\n```\n| {wide} |\n")), 0);
        assert_eq!(rules_broken("src/a.rs", &format!("//! A.\n//! ```text\n//! {wide}\n//! ```\n")), 0);
        assert_eq!(rules_broken("src/a.rs", &format!("//! A.\nconst T: &str = \"{wide}\";\n")), 0);
        assert_eq!(rules_broken("a.txt", &format!("{wide}\n")), 0);
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
