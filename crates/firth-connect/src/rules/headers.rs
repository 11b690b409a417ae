//! [`Headers`]: what comes beside a body: headers, whose names are compared without case, and the
//! name under which it came.

/// The headers of a request or a message, and its name: a subject or a key.
#[derive(Clone, Debug, Default)]
pub struct Headers<'a> {
    headers: Vec<(&'a str, &'a str)>,
    name: Option<(&'a str, char)>,
}

impl<'a> Headers<'a> {
    /// Those that are text, by name and value.
    pub fn new(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self { headers: headers.into_iter().collect(), name: None }
    }

    /// With the name under which it came, whose parts stand between separators.
    #[must_use]
    pub fn named(mut self, name: &'a str, separator: char) -> Self {
        self.name = Some((name, separator));
        self
    }

    /// The name.
    pub(super) fn name(&self) -> Option<&'a str> {
        self.name.map(|(name, _)| name)
    }

    /// A part of the name; the first one is number 1.
    pub(super) fn part(&self, number: usize) -> Option<&'a str> {
        let (name, separator) = self.name?;
        name.split(separator).nth(number.checked_sub(1)?)
    }

    /// The first one of this name.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// Those whose names start with this, without it and in lower case.
    pub(crate) fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (String, &'a str)> {
        self.headers.iter().filter_map(move |(name, value)| {
            let (start, rest) = name.split_at_checked(prefix.len())?;
            start.eq_ignore_ascii_case(prefix).then(|| (rest.to_ascii_lowercase(), *value))
        })
    }
}
