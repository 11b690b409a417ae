//! Words that hide the actor of a sentence (pure). `docs/glossary.md` has the words to use.

use super::rules::prose_lines;

/// Subjects without a name. A reader must know whether the owner, the server or the client acts.
const NAMELESS: [&str; 4] = ["whoever", "whatever", "nobody", "somebody"];

/// A number without a name. A reader must know which parameter or constant is meant.
const UNNAMED_NUMBER: [&str; 2] = ["so", "many"];

/// A time without a name. A reader must know which step something happens before or during.
const UNNAMED_TIME: &str = "meanwhile";

/// Sentences of comments and Markdown that do not name what they speak of, as (line, what).
pub(super) fn nameless_words(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, prose) in prose_lines(path, text) {
        let words = prose.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        let words: Vec<String> = words.map(str::to_lowercase).collect();
        for word in words.iter().filter(|word| NAMELESS.contains(&word.as_str())) {
            found.push((line, format!("`{word}` names no actor: the owner, the server, the client…")));
        }
        if words.windows(2).any(|pair| pair == UNNAMED_NUMBER) {
            found.push((line, "`so many` names no number: this many, `count` records…".into()));
        }
        if words.iter().any(|word| word == UNNAMED_TIME) {
            found.push((line, format!("`{UNNAMED_TIME}` names no time: since, until then, by now…")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameless_words_are_found_in_prose_only() {
        let comment = format!("//! {} comes first.\n", ["Who", "ever"].concat());
        assert_eq!(nameless_words("src/a.rs", &comment).len(), 1);
        assert_eq!(nameless_words("a.lua", "-- some words, nobody\n").len(), 1);
        assert_eq!(nameless_words("a.md", "Text.\n\n```\nwhatever\n```\n").len(), 0);
        assert_eq!(nameless_words("src/a.rs", "fn nobody() {}\nlet s = \"nobody\";\n").len(), 0);
        assert_eq!(nameless_words("src/a.rs", "// fn nobody_is_there() is a name\n").len(), 0);
        assert_eq!(nameless_words("a.md", "At most so  many. And meanwhile\n").len(), 2);
        assert_eq!(nameless_words("a.md", "So it is; many know.\nso\nmany\n").len(), 0);
    }
}
