//! Words that hide the actor of a sentence (pure). `docs/glossary.md` has the words to use.

use super::rules::prose_lines;

/// Subjects without a name. A reader must know whether the owner, the server or the client acts.
const NAMELESS: [&str; 4] = ["whoever", "whatever", "nobody", "somebody"];

/// Sentences of comments and Markdown that use a nameless subject, as (line, what).
pub(super) fn nameless_subjects(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, prose) in prose_lines(path, text) {
        let words = prose.split(|c: char| !c.is_alphanumeric() && c != '_');
        for word in words.map(str::to_lowercase).filter(|word| NAMELESS.contains(&word.as_str())) {
            found.push((line, format!("`{word}` names no actor: the owner, the server, the client…")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameless_subjects_are_found_in_prose_only() {
        let comment = format!("//! {} comes first.\n", ["Who", "ever"].concat());
        assert_eq!(nameless_subjects("src/a.rs", &comment).len(), 1);
        assert_eq!(nameless_subjects("a.lua", "-- some words, nobody\n").len(), 1);
        assert_eq!(nameless_subjects("a.md", "Text.\n\n```\nwhatever\n```\n").len(), 0);
        assert_eq!(nameless_subjects("src/a.rs", "fn nobody() {}\nlet s = \"nobody\";\n").len(), 0);
        assert_eq!(nameless_subjects("src/a.rs", "// fn nobody_is_there() is a name\n").len(), 0);
    }
}
