//! BSON as JSON. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Bson, Document};
use serde_json::{Map, Value, json};

/// Up to here whole numbers are exact in all programs that read JSON.
const EXACT: u64 = 1 << 53;

/// A document, less some of its fields.
pub(super) fn document(fields: &Document, exact: bool, is_dropped: impl Fn(&str) -> bool) -> Value {
    let kept = fields.iter().filter(|(name, _)| !is_dropped(name));
    Value::Object(kept.map(|(name, field)| (name.clone(), value(field, exact))).collect())
}

/// A value.
pub(super) fn value(bson: &Bson, exact: bool) -> Value {
    match bson {
        Bson::Double(number) => serde_json::Number::from_f64(*number).map_or_else(
            || Value::String(if number.is_nan() { "NaN".into() } else { signed_infinity(*number) }),
            Value::Number,
        ),
        Bson::String(text) | Bson::Symbol(text) => Value::String(text.clone()),
        Bson::Array(items) => items.iter().map(|item| value(item, exact)).collect(),
        Bson::Document(fields) => document(fields, exact, |_| false),
        Bson::Boolean(truth) => Value::Bool(*truth),
        Bson::Null | Bson::Undefined => Value::Null,
        Bson::RegularExpression(regex) => {
            json!({ "$regularExpression": { "pattern": regex.pattern.to_string(), "options": regex.options.to_string() } })
        }
        Bson::JavaScriptCode(code) => json!({ "$code": code }),
        Bson::JavaScriptCodeWithScope(code) => {
            json!({ "$code": code.code, "$scope": document(&code.scope, exact, |_| false) })
        }
        Bson::Int32(number) => json!(number),
        Bson::Int64(number) if exact && number.unsigned_abs() > EXACT => Value::String(number.to_string()),
        Bson::Int64(number) => json!(number),
        Bson::Timestamp(time) => json!({ "$timestamp": { "t": time.time, "i": time.increment } }),
        Bson::Binary(binary) => Value::String(match (binary.subtype, uuid(&binary.bytes)) {
            (BinarySubtype::Uuid, Some(uuid)) => uuid,
            _ => STANDARD.encode(&binary.bytes),
        }),
        Bson::ObjectId(id) => Value::String(id.to_hex()),
        Bson::DateTime(time) => Value::String(
            time.try_to_rfc3339_string().unwrap_or_else(|_| time.timestamp_millis().to_string()),
        ),
        Bson::Decimal128(number) => Value::String(number.to_string()),
        Bson::MaxKey => json!({ "$maxKey": 1 }),
        Bson::MinKey => json!({ "$minKey": 1 }),
        Bson::DbPointer(_) => Value::Object(Map::new()),
    }
}

fn signed_infinity(number: f64) -> String {
    if number > 0.0 { "Infinity".into() } else { "-Infinity".into() }
}

fn uuid(bytes: &[u8]) -> Option<String> {
    let number = u128::from_be_bytes(bytes.try_into().ok()?);
    let hex = format!("{number:032x}");
    Some(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// The key of a document: its `_id` as text.
pub(super) fn key(id: &Bson, exact: bool) -> String {
    match value(id, exact) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::oid::ObjectId;
    use mongodb::bson::{Binary, DateTime, Timestamp, doc};

    #[test]
    fn every_type_becomes_json() {
        let uuid = Binary { subtype: BinarySubtype::Uuid, bytes: (0..16).collect() };
        let bytes = Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 255] };
        let fields = doc! {
            "id": ObjectId::parse_str("65f1a2b3c4d5e6f708192a3b").unwrap(), "f": 1.5, "nan": f64::NAN,
            "i": 7, "l": 9_007_199_254_740_993_i64, "t": true, "n": Bson::Null, "a": [1, "x"],
            "when": DateTime::from_millis(1_700_000_000_123), "u": uuid, "b": bytes,
            "ts": Timestamp { time: 5, increment: 2 }, "min": Bson::MinKey, "gone": 1,
        };
        let expected = json!({
            "id": "65f1a2b3c4d5e6f708192a3b", "f": 1.5, "nan": "NaN", "i": 7, "l": "9007199254740993",
            "t": true, "n": null, "a": [1, "x"], "when": "2023-11-14T22:13:20.123Z",
            "u": "00010203-0405-0607-0809-0a0b0c0d0e0f", "b": "AQL/",
            "ts": { "$timestamp": { "t": 5, "i": 2 } }, "min": { "$minKey": 1 },
        });
        assert_eq!(document(&fields, true, |name| name == "gone"), expected);
        assert_eq!(document(&fields, false, |_| false)["l"], json!(9_007_199_254_740_993_i64));
        assert_eq!(key(&Bson::Int32(7), false), "7");
        assert_eq!(key(&Bson::String("a".into()), false), "a");
        assert_eq!(key(&Bson::Document(doc! { "a": 1 }), false), r#"{"a":1}"#);
    }
}
