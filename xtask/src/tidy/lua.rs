//! The rules of Rust files, for Lua scripts (pure). Width of comments and words are checked with
//! those of other text.

use super::rules::{MAX_FUNCTION_LINES, MAX_TEXT_COLUMNS, long_file};

/// Every rule that a script breaks, by line.
pub(super) fn violations(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    if !text.starts_with("--") {
        found.push((1, "a file opens with a comment and says what it is".to_owned()));
    }
    found.extend(long_file(text));
    found.extend(long_functions(text));
    let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("--"));
    let wide = code.filter(|(_, line)| line.chars().count() > MAX_TEXT_COLUMNS);
    found.extend(wide.map(|(index, line)| {
        let columns = line.chars().count();
        (index + 1, format!("{columns} columns; Lua has at most {MAX_TEXT_COLUMNS}"))
    }));
    found
}

/// Functions of a script, which lie at its left edge, that are too long.
fn long_functions(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut start = None;
    for (index, line) in text.lines().enumerate() {
        let begins = ["local function ", "function "].iter().any(|word| line.starts_with(word));
        if begins {
            start = Some(index);
        }
        let Some(first) = start.filter(|_| line == "end") else { continue };
        start = None;
        let lines = index - first + 1;
        if lines > MAX_FUNCTION_LINES {
            found.push((first + 1, format!("{lines} lines; a function has at most {MAX_FUNCTION_LINES}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tidy_script_breaks_no_rule() {
        let script = "-- Adds. KEYS: P.\nlocal function add(a)\n  return a + 1\nend\nreturn add(1)\n";
        assert_eq!(violations(script), []);
    }

    #[test]
    fn what_a_script_breaks_is_found() {
        assert_eq!(violations("return 1\n").len(), 1, "no story");
        assert_eq!(violations(&format!("-- A.\n{}", "\n".repeat(600))).len(), 1, "long file");
        assert_eq!(violations(&format!("-- A.\nreturn '{}'\n", "x".repeat(100))).len(), 1, "wide");
        let body = "  call('GET', 'k')\n".repeat(100);
        let function = format!("-- A.\nlocal function f()\n{body}end\nreturn f()\n");
        assert_eq!(violations(&function).len(), 1, "long function");
    }
}
