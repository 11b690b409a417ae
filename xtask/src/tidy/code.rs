//! Just enough of Rust's grammar to measure functions (pure).
//!
//! [`without_text`] blanks comments and literals, line breaks kept, so that braces and words that
//! remain are code. That is all that counting needs; a real parser would be a heavy dependency.

/// A function and how long it is, from `fn` to its closing brace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) lines: usize,
}

/// The source with comments, strings and character literals replaced by blanks.
pub(super) fn without_text(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let opaque = opaque_prefix(rest, out.chars().next_back());
        let taken = if opaque == 0 { first.len_utf8() } else { opaque };
        let (head, tail) = rest.split_at(taken);
        if opaque == 0 {
            out.push(first);
        } else {
            out.extend(head.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        }
        rest = tail;
    }
    out
}

/// Length of the comment or literal at the start of `rest`; 0 if there is none.
fn opaque_prefix(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if in_word { 0 } else { raw_string(rest) }
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length of a literal that starts with `quote`, up to the next one that is not escaped.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// A character literal, or 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => quoted(rest, '\''),
        (Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ => 0,
    }
}

/// `r"…"`, `r#"…"#`, `br"…"`, `cr"…"`: length, or 0 if there is none.
fn raw_string(rest: &str) -> usize {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|tail| tail.trim_start_matches('#').starts_with('"'))
    });
    let Some(prefix) = prefix else { return 0 };
    let hashes = rest[prefix.len()..].len() - rest[prefix.len()..].trim_start_matches('#').len();
    let body = prefix.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len())
}

/// All functions with a body, in source that [`without_text`] has cleaned.
pub(super) fn functions(bare: &str) -> Vec<Function> {
    let starts = bare
        .match_indices("fn ")
        .filter(|(at, _)| !bare[..*at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_'));
    starts.filter_map(|(at, _)| measure(bare, at)).collect()
}

fn measure(bare: &str, at: usize) -> Option<Function> {
    let name: String =
        bare[at + 3..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if name.is_empty() {
        return None; // the type `fn (…)`
    }
    let end = at + body_end(&bare[at..])?;
    let line = bare[..at].matches('\n').count() + 1;
    Some(Function { name, line, lines: bare[at..end].matches('\n').count() + 1 })
}

/// Where the body of the function at the start of `text` ends; `None` for a mere declaration.
fn body_end(text: &str) -> Option<usize> {
    let mut braces = 0usize;
    let mut brackets = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            ';' if braces == 0 && brackets == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 && brackets == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(source: &str) -> Vec<(String, usize)> {
        functions(&without_text(source)).into_iter().map(|f| (f.name, f.lines)).collect()
    }

    #[test]
    fn functions_are_measured_from_their_name_to_their_brace() {
        let source = "fn a() {\n    if x {\n    }\n}\n\nasync fn b<T>(x: [u8; 3]) -> T\nwhere\n{\n}\n";
        assert_eq!(lengths(source), [("a".into(), 4), ("b".into(), 4)]);
    }

    #[test]
    fn declarations_and_function_types_have_no_length() {
        assert_eq!(lengths("trait T { fn a(&self); }\ntype F = fn (u8) -> u8;\n"), []);
    }

    #[test]
    fn braces_in_text_do_not_count() {
        let source =
            "fn a() {\n  // }\n  let s = \"}\\\"}\"; let c = '}'; let r = r#\"}\"}\"#; /* } /* } */ */\n}\n";
        assert_eq!(lengths(source), [("a".into(), 4)]);
    }

    #[test]
    fn lifetimes_are_not_characters() {
        let source = "fn a<'a>(x: &'a str) -> &'a str {\n    x\n}\n";
        assert_eq!(without_text(source), source);
    }

    #[test]
    fn blanking_keeps_lines() {
        let source = "a \"x\ny\" /* z\nz */ b\n";
        assert_eq!(without_text(source).lines().count(), source.lines().count());
    }
}
