//! The texts of arrays and composites, taken apart. Pure and bounded: nested lists stop at the six
//! dimensions that an array can have.

use crate::error::{Error, Result};

const MAX_DIMENSIONS: u32 = 6;

/// An element of an array.
#[derive(Debug, PartialEq)]
pub(crate) enum Item {
    Null,
    Text(String),
    List(Vec<Self>),
}

/// The elements of an array.
pub(crate) fn array(text: &str, separator: u8) -> Result<Vec<Item>> {
    // Bounds that do not start at 1 stand in front: `[0:1]={7,8}`.
    let body = match text.strip_prefix('[') {
        Some(_) => text.split_once('=').ok_or_else(|| wrong("an array"))?.1,
        None => text,
    };
    let mut reader = Reader { text: body, at: 0, separator };
    let items = reader.list(1)?;
    if reader.at == body.len() { Ok(items) } else { Err(wrong("an array")) }
}

/// The fields of a composite.
pub(crate) fn composite(text: &str) -> Result<Vec<Option<String>>> {
    let inner = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let inner = inner.ok_or_else(|| wrong("a composite"))?;
    let mut fields = Vec::new();
    let mut field = String::new();
    let mut is_null = true;
    let mut quoted = false;
    let mut rest = inner.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '"' if quoted && rest.peek() == Some(&'"') => {
                rest.next();
                field.push('"');
            }
            '"' => (quoted, is_null) = (!quoted, false),
            '\\' => {
                field.push(rest.next().ok_or_else(|| wrong("a composite"))?);
                is_null = false;
            }
            ',' if !quoted => {
                let done = std::mem::take(&mut field);
                fields.push((!is_null).then_some(done));
                is_null = true;
            }
            other => {
                field.push(other);
                is_null = false;
            }
        }
    }
    if quoted {
        return Err(wrong("a composite"));
    }
    fields.push((!is_null).then_some(field));
    Ok(fields)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    separator: u8,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn list(&mut self, dimension: u32) -> Result<Vec<Item>> {
        if self.peek() != Some(b'{') || dimension > MAX_DIMENSIONS {
            return Err(wrong("an array"));
        }
        self.at += 1;
        let mut items = Vec::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(items);
        }
        loop {
            items.push(match self.peek() {
                Some(b'{') => Item::List(self.list(dimension + 1)?),
                Some(b'"') => Item::Text(self.quoted()?),
                _ => self.bare()?,
            });
            match self.peek() {
                Some(b'}') => {
                    self.at += 1;
                    return Ok(items);
                }
                Some(byte) if byte == self.separator => self.at += 1,
                _ => return Err(wrong("an array")),
            }
        }
    }

    fn quoted(&mut self) -> Result<String> {
        let mut value = String::new();
        let mut chars = self.text[self.at + 1..].char_indices();
        while let Some((offset, char)) = chars.next() {
            match char {
                '"' => {
                    self.at += offset + 2;
                    return Ok(value);
                }
                '\\' => value.push(chars.next().ok_or_else(|| wrong("an array"))?.1),
                other => value.push(other),
            }
        }
        Err(wrong("an array"))
    }

    fn bare(&mut self) -> Result<Item> {
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(|byte| byte == b'}' || byte == self.separator);
        let value = &rest[..length.ok_or_else(|| wrong("an array"))?];
        self.at += value.len();
        match value {
            "" => Err(wrong("an array")),
            "NULL" => Ok(Item::Null),
            // A backslash quotes one character, also outside of quotes.
            text => Ok(Item::Text(text.replace('\\', ""))),
        }
    }
}

fn wrong(what: &str) -> Error {
    Error::corrupt(format!("the server writes {what} in a form that this version cannot read"))
}
