//! Schemas that cannot be derived: "exactly one of these", "not both". Said by hand, and held to
//! the truth by the API tester.

use super::openapi::NAME;
use serde_json::{Value, json};

const BASE64: &str = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$";
const DEAD_ID: &str = "^[A-Za-z0-9_-]{1,64}/[0-9]{1,4}/[0-9]{1,18}-[0-9]{1,18}$";
const DELAYED_ID: &str = "^[0-9]{1,4}/[0-9]{1,18}-[0-9]{1,18}$";
/// The largest number that every JSON reader keeps.
const MAX_NUMBER: u64 = 9_007_199_254_740_991;
/// Stands for the latest time of a delay, which is put in when the document is served.
pub(super) const LATEST: u64 = 4_242_424_242_424;
const CENTURY_MS: u64 = 3_155_760_000_000;

/// Replaces what was derived where more can be said.
pub(super) fn refine(schemas: &mut Value) {
    super::routing::refine(schemas);
    schemas["Message"] = message();
    schemas["Published"] = json!({
        "description": "What is published on a channel: exactly one of `payload` and `payload_base64`, at most 64 KiB",
        "oneOf": [
            object(&["payload"], json!({ "payload": { "type": "string" } })),
            object(&["payload_base64"], json!({ "payload_base64": { "type": "string", "pattern": BASE64 } })),
        ],
    });
    schemas["ResetGroup"]["not"] = both("age_ms", "time_ms");
    for never_null in ["age_ms", "time_ms"] {
        let property = &mut schemas["ResetGroup"]["properties"][never_null];
        property["type"] = json!("integer");
        property.as_object_mut().map(|property| property.remove("default"));
    }
    schemas["TrimRequest"] = json!({
        "description": "How far to trim: exactly one of `keep` and `older_than_ms`",
        "oneOf": [
            object(&["keep"], json!({ "keep": number(MAX_NUMBER), "lossy": flag() })),
            object(&["older_than_ms"], json!({ "older_than_ms": number(CENTURY_MS), "lossy": flag() })),
        ],
    });
    let id = json!({ "type": "string", "pattern": DEAD_ID });
    let ids = json!({ "type": "array", "items": id, "minItems": 1, "maxItems": 10_000 });
    let text = json!({ "type": ["string", "null"] });
    schemas["Pick"] = json!({
        "description": "Which dead letters: these `ids`, or `all` that the filter lets through",
        "oneOf": [
            object(&["ids"], json!({ "ids": ids, "everyone": flag() })),
            object(&["all"], json!({
                "all": { "const": true }, "everyone": flag(), "group": text, "reason": text, "key": text,
                "partition": maybe(number(4095)), "older_than_ms": maybe(number(CENTURY_MS)),
            })),
        ],
    });
    schemas["DelayedPick"]["properties"]["ids"]["items"]["pattern"] = json!(DELAYED_ID);
    let mut edited = message();
    for shape in edited["oneOf"].as_array_mut().into_iter().flatten() {
        for fixed in ["partition", "after_ms", "at_ms"] {
            shape["properties"].as_object_mut().map(|properties| properties.remove(fixed));
        }
    }
    claims(schemas);
    schemas["EditedMessage"] = edited;
    schemas["Edit"]["properties"]["id"] = id;
    schemas["Edit"]["properties"]["message"] = json!({ "$ref": "#/components/schemas/EditedMessage" });
}

/// What is offered has at most one kind of payload, a checkpoint exactly one kind of state; names
/// are names.
fn claims(schemas: &mut Value) {
    let name = json!({ "type": "string", "pattern": NAME, "minLength": 1, "maxLength": 128 });
    schemas["NewOffer"]["not"] = both("payload", "payload_base64");
    schemas["NewOffer"]["properties"]["payload_base64"]["pattern"] = json!(BASE64);
    schemas["NewOffer"]["properties"]["name"] = name.clone();
    schemas["Take"]["properties"]["name"] = name.clone();
    for feed in ["ReadUnitData", "SettleUnitData"] {
        schemas[feed]["properties"]["group"] = maybe(name.clone());
    }
    let claim = json!({ "type": "string" });
    schemas["Checkpoint"] = json!({
        "description": "What the next owner needs to go on: exactly one of `state` and `state_base64`, at most 64 KiB",
        "oneOf": [
            object(&["claim", "state"], json!({ "claim": claim, "state": { "type": "string" } })),
            object(&["claim", "state_base64"], json!({ "claim": claim, "state_base64": { "type": "string", "pattern": BASE64 } })),
        ],
    });
}

/// A message has exactly one kind of payload, at most one kind of key, and at most one kind of
/// delay.
fn message() -> Value {
    let header = json!({ "oneOf": [
        { "type": "string" },
        { "type": "array", "items": { "type": "string" }, "maxItems": 32 },
    ] });
    let common = json!({
        "key": { "type": ["string", "null"], "description": "Messages of one key stay in order; at most 1024 bytes" },
        "key_base64": { "type": ["string", "null"], "pattern": BASE64, "description": "Instead of `key`, for bytes that are not text" },
        "headers": {
            "type": "object", "description": "At most 32 values, and 8192 bytes with their names",
            "maxProperties": 32, "propertyNames": { "minLength": 1 }, "additionalProperties": header,
        },
        "after_ms": {
            "type": ["integer", "null"], "minimum": 0, "maximum": 31_622_400_000_u64,
            "description": "How long consumers shall not see it; at most 366 days",
        },
        "at_ms": {
            "type": ["integer", "null"], "minimum": 0, "maximum": LATEST,
            "description": "Instead of `after_ms`: from when on consumers shall see it, as Unix time; at most 366 days ahead",
        },
        "partition": { "type": ["integer", "null"], "minimum": 0, "maximum": 4095, "description": "Below the topic's partitions" },
    });
    let shape = |name: &str, schema: Value| {
        let mut properties = common.clone();
        properties[name] = schema;
        let mut shape = object(&[name], properties);
        shape["not"] = json!({ "anyOf": [both("key", "key_base64"), both("after_ms", "at_ms")] });
        shape
    };
    json!({
        "description": "A message to send: `payload`, `payload_base64` or `json`, and optionally the rest",
        "oneOf": [
            shape("payload", json!({ "type": "string", "description": "Text" })),
            shape("payload_base64", json!({ "type": "string", "pattern": BASE64, "description": "Bytes" })),
            shape("json", json!({ "description": "Any JSON; kept as it is written" })),
        ],
    })
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Both are given: what must not be.
fn both(one: &str, other: &str) -> Value {
    let given = json!({ "not": { "type": "null" } });
    json!({ "required": [one, other], "properties": { one: given, other: given } })
}

fn maybe(mut schema: Value) -> Value {
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

fn number(max: u64) -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": max })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}
