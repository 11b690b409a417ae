//! Patterns of names: `*` stands for any run of characters.

/// Whether `text` is as `pattern` says. Linear in both: backs up to the last star only.
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern = pattern.as_bytes();
    let text = text.as_bytes();
    let mut p = 0;
    let mut t = 0;
    let mut star = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            (p, t) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, text) in
            [("*", ""), ("*", "a"), ("a*c", "abc"), ("a*c", "ac"), ("*b*", "abc"), ("a*b*c", "a-b-b-c")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("a", "b"), ("a*", "ba"), ("*a", "ab"), ("a*c", "abcd"), ("", "a"), ("ab", "a")]
        {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
