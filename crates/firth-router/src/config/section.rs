//! One level of the configuration: takes options out by name, and refuses what is left over with
//! the name that was probably meant.

use super::units::{parse_bytes, parse_duration};
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

pub(super) struct Section<'a> {
    path: String,
    options: Option<&'a Map<String, Value>>,
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    pub(super) fn open(path: &str, value: &'a Value) -> Result<Self> {
        let options = match value {
            Value::Null => None,
            Value::Object(options) => Some(options),
            _ => return Err(Error::invalid(format!("{path} must hold options with names"))),
        };
        Ok(Self { path: path.to_owned(), options, known: Vec::new() })
    }

    pub(super) fn section(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let Some(value) = self.take(name) else { return Ok(()) };
        let mut inner = Self::open(&format!("{}.{name}", self.path), value)?;
        read(&mut inner)?;
        inner.close()
    }

    pub(super) fn number<T>(
        &mut self,
        name: &'static str,
        into: &mut T,
        range: RangeInclusive<T>,
    ) -> Result<()>
    where
        T: TryFrom<u64> + PartialOrd + Display,
    {
        let Some(value) = self.take(name) else { return Ok(()) };
        let number = value.as_u64().and_then(|number| T::try_from(number).ok());
        match number.filter(|number| range.contains(number)) {
            Some(number) => *into = number,
            None => {
                let (low, high) = range.into_inner();
                return Err(self.wrong(name, value, &format!("a whole number from {low} to {high}")));
            }
        }
        Ok(())
    }

    pub(super) fn fraction(
        &mut self,
        name: &'static str,
        into: &mut f64,
        range: RangeInclusive<f64>,
    ) -> Result<()> {
        let Some(value) = self.take(name) else { return Ok(()) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => *into = number,
            None => {
                let (low, high) = range.into_inner();
                return Err(self.wrong(name, value, &format!("a number from {low} to {high}")));
            }
        }
        Ok(())
    }

    /// A text, if there is one.
    pub(super) fn words(&mut self, name: &'static str, into: &mut Option<String>) -> Result<()> {
        let Some(value) = self.take(name) else { return Ok(()) };
        let words = value.as_str().filter(|words| !words.is_empty());
        *into = Some(words.ok_or_else(|| self.wrong(name, value, "a text"))?.to_owned());
        Ok(())
    }

    /// The path of a file, if there is one.
    pub(super) fn file(&mut self, name: &'static str, into: &mut Option<PathBuf>) -> Result<()> {
        let mut path = None;
        self.words(name, &mut path)?;
        *into = path.map(PathBuf::from).or_else(|| into.take());
        Ok(())
    }

    /// A text, instead of the usual one.
    pub(super) fn text(&mut self, name: &'static str, into: &mut String) -> Result<()> {
        let mut words = None;
        self.words(name, &mut words)?;
        *into = words.unwrap_or_else(|| std::mem::take(into));
        Ok(())
    }

    /// These are options, too, though not of this section.
    pub(super) fn know(&mut self, others: &[&'static str]) {
        self.known.extend(others);
    }

    /// Passes every option of the section to `show`, known name or not. `close` then refuses none.
    pub(super) fn each(&mut self, mut show: impl FnMut(&str, &Value) -> Result<()>) -> Result<()> {
        let Some(options) = self.options.take() else { return Ok(()) };
        options.iter().try_for_each(|(name, value)| show(name, value))
    }

    pub(super) fn flag(&mut self, name: &'static str, into: &mut bool) -> Result<()> {
        let Some(value) = self.take(name) else { return Ok(()) };
        *into = value.as_bool().ok_or_else(|| self.wrong(name, value, "true or false"))?;
        Ok(())
    }

    pub(super) fn duration(
        &mut self,
        name: &'static str,
        into: &mut Duration,
        range: RangeInclusive<Duration>,
    ) -> Result<()> {
        let Some(value) = self.take(name) else { return Ok(()) };
        let duration = value.as_str().and_then(parse_duration).filter(|duration| range.contains(duration));
        *into = duration.ok_or_else(|| {
            let wanted =
                format!("a duration such as 50ms, 5s, 2m, 7d, from {:?} to {:?}", range.start(), range.end());
            self.wrong(name, value, &wanted)
        })?;
        Ok(())
    }

    pub(super) fn bytes(
        &mut self,
        name: &'static str,
        into: &mut usize,
        range: RangeInclusive<usize>,
    ) -> Result<()> {
        let Some(value) = self.take(name) else { return Ok(()) };
        let size = match value {
            Value::Number(number) => number.as_u64().and_then(|size| usize::try_from(size).ok()),
            _ => value.as_str().and_then(parse_bytes),
        };
        *into = size.filter(|size| range.contains(size)).ok_or_else(|| {
            let wanted = format!("a size such as 64MiB, from {} to {} bytes", range.start(), range.end());
            self.wrong(name, value, &wanted)
        })?;
        Ok(())
    }

    pub(super) fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        into: &mut T,
        choices: &[(&str, T)],
    ) -> Result<()> {
        let Some(value) = self.take(name) else { return Ok(()) };
        let found = choices.iter().find(|(choice, _)| value.as_str() == Some(*choice));
        *into = found.map(|(_, chosen)| *chosen).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            self.wrong(name, value, &format!("one of {}", names.join(", ")))
        })?;
        Ok(())
    }

    /// Refuses an option that the parser neither read nor declared with `know`.
    pub(super) fn close(self) -> Result<()> {
        let unknown =
            self.options.into_iter().flat_map(Map::keys).find(|name| !self.known.contains(&name.as_str()));
        let Some(name) = unknown else { return Ok(()) };
        let nearest = self.known.iter().min_by_key(|known| distance(name, known));
        let hint = match nearest {
            Some(nearest) if distance(name, nearest) <= 3.min(name.len() / 2) => {
                format!("did you mean `{nearest}`?")
            }
            _ => format!("known are {}", self.known.join(", ")),
        };
        Err(Error::invalid(format!("{}.{name} is not an option; {hint}", self.path)))
    }

    fn take(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.options?.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, value: &Value, wanted: &str) -> Error {
        Error::invalid(format!("{}.{name} is {value}; give {wanted}", self.path))
    }
}

/// How many characters must be put, taken or changed to make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
