//! Files that ARCHITECTURE.md names must exist, so that a rename cannot leave it behind; the table
//! of guides names each guide; and the glossary stays one page (pure).

/// The document whose paths are checked.
pub(super) const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Endings of names that are paths of source files.
const SOURCES: [&str; 3] = [".rs", ".lua", ".js"];

/// Back-ticked source files that are the end of no path of the tree.
pub(super) fn missing_files(text: &str, files: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let quoted = line.split('`').skip(1).step_by(2);
        for name in quoted.filter(|name| SOURCES.iter().any(|ending| name.ends_with(ending))) {
            let exists = files.iter().any(|file| {
                file.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
            });
            if !exists {
                found.push(format!("{ARCHITECTURE}:{}: there is no file {name}", index + 1));
            }
        }
    }
    found
}

/// The table of all guides.
pub(super) const GUIDES: &str = "docs/README.md";

/// Guides that the table of guides does not name.
pub(super) fn unlisted_guides(table: &str, files: &[String]) -> Vec<String> {
    let linked = |file: &str| match file.strip_prefix("docs/") {
        Some(name) => format!("({name})"),
        None => format!("(../{file})"),
    };
    let guides = files.iter().filter(|file| file.ends_with(".md") && *file != GUIDES).filter(|file| {
        let folder = file.strip_prefix("crates/").and_then(|path| path.split_once('/')).map(|(_, path)| path);
        folder.unwrap_or(file).starts_with("docs/")
    });
    let unlisted = guides.filter(|file| !table.contains(&linked(file)));
    unlisted.map(|file| format!("{file}:1: {GUIDES} does not name this guide: add a row")).collect()
}

/// The list of words with one meaning each.
pub(super) const GLOSSARY: &str = "docs/glossary.md";

const MAX_WORDS: usize = 60;

/// Words of the glossary that stand twice, and the number of words if it is too large.
pub(super) fn glossary_violations(text: &str) -> Vec<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let words: Vec<&str> = rows.map(|(word, _)| word).filter(|word| *word != "word").collect();
    let is_repeated = |index: usize| words[..index].contains(&words[index]);
    let repeated = (0..words.len()).filter(|index| is_repeated(*index));
    let mut found: Vec<String> =
        repeated.map(|index| format!("{GLOSSARY}: {} has one meaning, and one row", words[index])).collect();
    if words.len() > MAX_WORDS {
        found.push(format!("{GLOSSARY}: {} words; at most {MAX_WORDS}", words.len()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glossary_that_grows_or_repeats_itself_is_found() {
        let head = "| word | meaning |\n|---|---|\n";
        let rows = |count: usize| (0..count).map(|n| format!("| w{n} | Meaning. |\n")).collect::<String>();
        assert_eq!(glossary_violations(&format!("{head}{}", rows(60))), Vec::<String>::new());
        assert_eq!(glossary_violations(&format!("{head}{}", rows(61))).len(), 1);
        assert_eq!(glossary_violations(&format!("{head}{}{}", rows(2), rows(1))).len(), 1);
    }

    #[test]
    fn guides_without_a_row_are_found() {
        let files = ["docs/a.md", "docs/README.md", "crates/x/docs/b.md", "crates/x/README.md", "docs/c.png"];
        let files = files.map(str::to_owned);
        let table = "| [a](a.md) |\n| [b](../crates/x/docs/b.md) |\n";
        assert_eq!(unlisted_guides(table, &files), Vec::<String>::new());
        assert_eq!(unlisted_guides("| [a](a.md) |\n", &files).len(), 1);
        assert_eq!(unlisted_guides("", &files).len(), 2);
    }

    #[test]
    fn files_that_do_not_exist_are_found() {
        let files = ["crates/a/src/lane/mod.rs".to_owned(), "crates/a/src/lua/append.lua".to_owned()];
        let text = "see `lane/mod.rs`, `append.lua`, `other/` and mod.rs\n`Lane::run`, `ane/mod.rs`\n";
        let found = missing_files(text, &files);
        assert_eq!(found, ["ARCHITECTURE.md:2: there is no file ane/mod.rs"]);
    }
}
