//! A value of PostgreSQL, as its text, to JSON. Pure.
//!
//! The stream and the snapshot read values as text under the same settings (`DateStyle` ISO,
//! `IntervalStyle` ISO 8601, `TimeZone` UTC), so that a row is the same JSON on both ways.

use super::literal;
use crate::error::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::HashMap;

/// Composites and arrays within each other, at most. Deeper ones stay text.
const MAX_DEPTH: u32 = 8;
/// Beyond this, a reader that holds numbers as floats loses digits.
const EXACT: u64 = 1 << 53;

/// How a type's text becomes JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `t` or `f`.
    Bool,
    /// A whole number.
    Integer,
    /// A number with `NaN` and infinities, which become text.
    Float,
    /// JSON, embedded as it is.
    Json,
    /// Bytes, which become Base64.
    Bytes,
    /// A date and time without zone.
    Timestamp,
    /// A date and time in UTC.
    TimestampTz,
    /// Anything else, as text.
    Text,
    /// An array of this type, with the character that stands between elements.
    Array(u32, u8),
    /// Named fields.
    Composite(Vec<(String, u32)>),
    /// Another name of this type.
    Domain(u32),
}

/// The types that a database has beside the built-in ones.
#[derive(Clone, Debug, Default)]
pub struct Types {
    own: HashMap<u32, Kind>,
    exact_numbers: bool,
}

impl Types {
    /// The built-in types. With `exact_numbers`, whole numbers beyond 2^53 become text.
    pub fn new(exact_numbers: bool) -> Self {
        Self { own: HashMap::new(), exact_numbers }
    }

    /// Notes a type of the database.
    pub fn insert(&mut self, oid: u32, kind: Kind) {
        self.own.insert(oid, kind);
    }

    /// Whether the type's kind is known without asking the database.
    pub fn knows(&self, oid: u32) -> bool {
        oid < FIRST_OWN || self.own.contains_key(&oid)
    }

    fn kind(&self, oid: u32) -> Kind {
        self.own.get(&oid).cloned().unwrap_or_else(|| built_in(oid))
    }

    /// Appends the value as JSON.
    pub fn write(&self, out: &mut Vec<u8>, oid: u32, text: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(text).map_err(|_| Error::poison("a value is no UTF-8"))?;
        self.value(out, oid, text, 0)
    }

    fn value(&self, out: &mut Vec<u8>, oid: u32, text: &str, depth: u32) -> Result<()> {
        match self.kind(oid) {
            Kind::Bool => out.extend_from_slice(if text == "t" { b"true" } else { b"false" }),
            Kind::Integer if self.is_inexact(text) => write_text(out, text),
            Kind::Integer | Kind::Float if is_number(text) => out.extend_from_slice(text.as_bytes()),
            Kind::Json => out.extend_from_slice(text.as_bytes()),
            Kind::Bytes => write_text(out, &STANDARD.encode(bytes(text)?)),
            Kind::Timestamp => write_text(out, &text.replacen(' ', "T", 1)),
            Kind::TimestampTz => write_text(out, &in_utc(text)),
            Kind::Integer | Kind::Float | Kind::Text => write_text(out, text),
            Kind::Domain(base) if depth < MAX_DEPTH => self.value(out, base, text, depth + 1)?,
            Kind::Array(element, separator) if depth < MAX_DEPTH => {
                self.array(out, element, &literal::array(text, separator)?, depth)?;
            }
            Kind::Composite(fields) if depth < MAX_DEPTH => self.composite(out, &fields, text, depth)?,
            Kind::Domain(_) | Kind::Array(..) | Kind::Composite(_) => write_text(out, text),
        }
        Ok(())
    }

    fn is_inexact(&self, text: &str) -> bool {
        self.exact_numbers && text.trim_start_matches('-').parse::<u64>().is_ok_and(|n| n > EXACT)
    }

    fn array(&self, out: &mut Vec<u8>, element: u32, items: &[literal::Item], depth: u32) -> Result<()> {
        out.push(b'[');
        for (number, item) in items.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            match item {
                literal::Item::Null => out.extend_from_slice(b"null"),
                literal::Item::Text(text) => self.value(out, element, text, depth + 1)?,
                literal::Item::List(items) => self.array(out, element, items, depth)?,
            }
        }
        out.push(b']');
        Ok(())
    }

    fn composite(&self, out: &mut Vec<u8>, fields: &[(String, u32)], text: &str, depth: u32) -> Result<()> {
        let values = literal::composite(text)?;
        if values.len() != fields.len() {
            // Its type was changed after this row was written.
            write_text(out, text);
            return Ok(());
        }
        out.push(b'{');
        for (number, ((name, oid), value)) in fields.iter().zip(values).enumerate() {
            if number > 0 {
                out.push(b',');
            }
            write_text(out, name);
            out.push(b':');
            match value {
                None => out.extend_from_slice(b"null"),
                Some(value) => self.value(out, *oid, &value, depth + 1)?,
            }
        }
        out.push(b'}');
        Ok(())
    }
}

/// The first number of a type that is not built in.
const FIRST_OWN: u32 = 16_384;

fn built_in(oid: u32) -> Kind {
    match oid {
        16 => Kind::Bool,
        20 | 21 | 23 | 26 => Kind::Integer,
        700 | 701 => Kind::Float,
        114 | 3802 => Kind::Json,
        17 => Kind::Bytes,
        1114 => Kind::Timestamp,
        1184 => Kind::TimestampTz,
        _ => match element(oid) {
            Some(element) => Kind::Array(element, b','),
            None => Kind::Text,
        },
    }
}

/// The built-in types of arrays, and those of their elements.
fn element(array: u32) -> Option<u32> {
    const ARRAYS: [(u32, u32); 29] = [
        (1000, 16),
        (1001, 17),
        (1002, 18),
        (1003, 19),
        (1016, 20),
        (1005, 21),
        (1007, 23),
        (1009, 25),
        (1028, 26),
        (199, 114),
        (3807, 3802),
        (1021, 700),
        (1022, 701),
        (1014, 1042),
        (1015, 1043),
        (1182, 1082),
        (1183, 1083),
        (1115, 1114),
        (1185, 1184),
        (1187, 1186),
        (1270, 1266),
        (1231, 1700),
        (2951, 2950),
        (1041, 869),
        (651, 650),
        (1040, 829),
        (1561, 1560),
        (1563, 1562),
        (791, 790),
    ];
    ARRAYS.iter().find(|(known, _)| *known == array).map(|(_, element)| *element)
}

/// Whether the text is a number of JSON; `NaN` and infinities are not.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.as_bytes().first().is_some_and(u8::is_ascii_digit)
        && (digits == "0" || !digits.starts_with('0') || digits[1..].starts_with(['.', 'e']))
        && digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'+' | b'-'))
}

/// Bytes in PostgreSQL's hexadecimal form.
fn bytes(text: &str) -> Result<Vec<u8>> {
    let wrong = || Error::corrupt("the server writes bytes in another form than hexadecimal");
    let digits = text.strip_prefix("\\x").ok_or_else(wrong)?.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = digits.chunks(2).map(|pair| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    pairs.collect::<Option<_>>().ok_or_else(wrong)
}

/// `2026-01-02 03:04:05.6+00` as ISO 8601 has it. Infinities and years before 1 keep their words.
fn in_utc(text: &str) -> String {
    match text.strip_suffix("+00") {
        Some(time) => format!("{}Z", time.replacen(' ', "T", 1)),
        None => text.replacen(' ', "T", 1),
    }
}

/// Appends a text as JSON.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a text can be written to memory");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(types: &Types, oid: u32, text: &str) -> String {
        let mut out = Vec::new();
        types.write(&mut out, oid, text.as_bytes()).unwrap();
        let text = String::from_utf8(out).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).expect("it is JSON");
        text
    }

    #[test]
    fn each_type_has_its_json() {
        let cases = [
            (16, "t", "true"),
            (16, "f", "false"),
            (23, "-42", "-42"),
            (20, "9223372036854775807", "9223372036854775807"),
            (701, "1.5e+20", "1.5e+20"),
            (701, "-0", "-0"),
            (701, "NaN", r#""NaN""#),
            (700, "-Infinity", r#""-Infinity""#),
            (1700, "12.340", r#""12.340""#),
            (25, "a\"b\n", r#""a\"b\n""#),
            (2950, "6f9b6f0e-0000-4000-8000-000000000001", r#""6f9b6f0e-0000-4000-8000-000000000001""#),
            (3802, r#"{"a": [1, 2.50]}"#, r#"{"a": [1, 2.50]}"#),
            (17, "\\x00ff10", r#""AP8Q""#),
            (1082, "2026-01-02", r#""2026-01-02""#),
            (1114, "2026-01-02 03:04:05.678", r#""2026-01-02T03:04:05.678""#),
            (1184, "2026-01-02 03:04:05+00", r#""2026-01-02T03:04:05Z""#),
            (1184, "infinity", r#""infinity""#),
            (1186, "P1DT2H", r#""P1DT2H""#),
            (1007, "{1,NULL,3}", "[1,null,3]"),
            (1007, "[0:1]={7,8}", "[7,8]"),
            (1007, "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
            (1007, "{}", "[]"),
            (1009, r#"{"a,b","c\"d",NULL,"NULL"}"#, r#"["a,b","c\"d",null,"NULL"]"#),
            (3807, r#"{"{\"a\": 1}"}"#, r#"[{"a": 1}]"#),
            (600, "(1,2)", r#""(1,2)""#),
        ];
        for (oid, text, expected) in cases {
            assert_eq!(json(&Types::default(), oid, text), expected, "type {oid}");
        }
    }

    #[test]
    fn own_types_are_read_by_their_parts() {
        let mut types = Types::default();
        types.insert(20_000, Kind::Domain(23));
        types.insert(20_001, Kind::Composite(vec![("n".into(), 20_000), ("t".into(), 25), ("z".into(), 25)]));
        types.insert(20_002, Kind::Array(20_001, b','));
        assert_eq!(json(&types, 20_000, "7"), "7");
        assert_eq!(json(&types, 20_001, r#"(7,"a ""b"", \\c",)"#), r#"{"n":7,"t":"a \"b\", \\c","z":null}"#);
        assert_eq!(
            json(&types, 20_002, r#"{"(1,x,)","(2,,y)"}"#),
            r#"[{"n":1,"t":"x","z":null},{"n":2,"t":null,"z":"y"}]"#
        );
        assert_eq!(json(&types, 20_001, "(7)"), r#""(7)""#, "of a former shape");
    }

    #[test]
    fn large_numbers_are_text_where_that_is_asked_for() {
        let types = Types::new(true);
        assert_eq!(json(&types, 20, "-9223372036854775808"), r#""-9223372036854775808""#);
        assert_eq!(json(&types, 20, "9007199254740992"), "9007199254740992");
    }

    #[test]
    fn a_type_that_contains_itself_ends() {
        let mut types = Types::default();
        types.insert(20_000, Kind::Domain(20_000));
        assert_eq!(json(&types, 20_000, "7"), r#""7""#);
    }

    proptest! {
        #[test]
        fn any_text_is_json_or_an_error(text in ".{0,30}", oid in prop::sample::select(vec![16_u32, 23, 701, 17, 25, 1184, 1007, 1009, 20_001])) {
            let mut types = Types::default();
            types.insert(20_001, Kind::Composite(vec![("a".into(), 25), ("b".into(), 1007)]));
            let mut out = Vec::new();
            if types.write(&mut out, oid, text.as_bytes()).is_ok() && !matches!(oid, 23 | 701 | 1007 | 20_001) {
                serde_json::from_slice::<serde_json::Value>(&out).expect("it is JSON");
            }
        }
    }
}
