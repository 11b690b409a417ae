//! Types of the product that share a name (pure).
//!
//! A reader who searches for a type must find one definition. `.config/homonyms.txt` lists the
//! names that have several; the list may only shrink.

use super::code;
use std::collections::BTreeMap;

/// Of a hundred type names of the product, at most this many have several definitions.
const MAX_PERCENT: usize = 8;

/// Crates whose types are counted together.
const PRODUCT: [&str; 6] =
    ["firth-redis", "firth-engine", "firth", "firth-router", "firth-edge", "firth-server"];

/// Collects type definitions file by file.
#[derive(Default)]
pub(super) struct Homonyms {
    places: BTreeMap<String, Vec<String>>,
}

impl Homonyms {
    /// Notes the types that a file of the product defines; tests do not count.
    pub(super) fn note(&mut self, path: &str, text: &str) {
        let is_product = PRODUCT.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")));
        if !is_product || !path.ends_with(".rs") || path.ends_with("/tests.rs") || path.contains("/tests/") {
            return;
        }
        let bare = code::without_text(text);
        let product = bare.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (index, line) in product.lines().enumerate() {
            if let Some(name) = defined_type(line) {
                let place = format!("{path}:{}", index + 1);
                self.places.entry(name.to_owned()).or_default().push(place);
            }
        }
    }

    /// Homonyms that the list lacks, and lines of the list that are no homonyms any more.
    pub(super) fn violations(&self, listed: &str) -> Vec<String> {
        let lines = listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let listed: Vec<&str> = lines.collect();
        let several = self.places.iter().filter(|(_, places)| places.len() > 1);
        let mut found: Vec<String> = several
            .filter(|(name, _)| !listed.contains(&name.as_str()))
            .map(|(name, places)| {
                let new = &places[places.len() - 1];
                let old = &places[0];
                format!("{new}: the type {name} exists at {old} too: choose another name")
            })
            .collect();
        let is_homonym = |name: &str| self.places.get(name).is_some_and(|places| places.len() > 1);
        found.extend(
            listed
                .iter()
                .filter(|name| !is_homonym(name))
                .map(|name| format!(".config/homonyms.txt: {name} is no homonym any more: remove the line")),
        );
        found
    }
}

impl Homonyms {
    /// Too many homonyms in all, whether they are listed or not.
    pub(super) fn share_violation(&self) -> Option<String> {
        let several = self.places.values().filter(|places| places.len() > 1).count();
        let limit = self.places.len() * MAX_PERCENT / 100;
        (several > limit)
            .then(|| format!(".config/homonyms.txt: {several} names have several types; at most {limit} may"))
    }
}

/// Name of the type that a line of code defines.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let rest = ["struct ", "enum ", "trait "].iter().find_map(|keyword| line.strip_prefix(keyword))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(files: &[(&str, &str)]) -> Homonyms {
        let mut homonyms = Homonyms::default();
        files.iter().for_each(|(path, text)| homonyms.note(path, text));
        homonyms
    }

    #[test]
    fn a_name_of_two_types_must_be_listed() {
        let a = ("crates/firth/src/a.rs", "pub(crate) struct Queue<T> {\n}\n");
        let b = ("crates/firth-edge/src/b.rs", "enum Queue {}\n");
        assert_eq!(noted(&[a]).violations(""), Vec::<String>::new());
        assert_eq!(noted(&[a, b]).violations("").len(), 1);
        assert_eq!(noted(&[a, b]).violations("# reason\nQueue\n"), Vec::<String>::new());
        assert_eq!(noted(&[a]).violations("Queue\n").len(), 1, "the list only shrinks");
    }

    #[test]
    fn the_share_of_homonyms_is_bounded() {
        let mut homonyms = Homonyms::default();
        let unique: String = (0..100).map(|n| format!("struct T{n};\n")).collect();
        homonyms.note("crates/firth/src/a.rs", &unique);
        for n in 0..9 {
            assert_eq!(homonyms.share_violation(), None, "{n} of 100");
            homonyms.note("crates/firth/src/b.rs", &format!("enum T{n} {{}}\n"));
        }
        assert!(homonyms.share_violation().is_some(), "9 of 100");
    }

    #[test]
    fn types_of_tests_and_tools_do_not_count() {
        let a = ("crates/firth/src/a.rs", "struct A;\n#[cfg(test)]\nmod tests {\n    struct B;\n}\n");
        let tests = ("crates/firth/src/a/tests.rs", "struct A;\n");
        let tool = ("xtask/src/a.rs", "struct A;\n");
        let b = ("crates/firth/src/b.rs", "struct B;\n// struct A;\n");
        assert_eq!(noted(&[a, tests, tool, b]).violations(""), Vec::<String>::new());
    }
}
