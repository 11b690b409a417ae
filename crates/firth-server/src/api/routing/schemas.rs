//! Schemas of routing that cannot be derived: what goes together and what does not.

use serde_json::{Value, json};

const GATEWAY: &str = "^[A-Za-z0-9_-]{1,64}$";
const NAME: &str = "^[A-Za-z0-9_:@-]{1,128}$";
const ENDPOINT: &str = r"^(http|https|nats|tls)://[A-Za-z0-9._-]{1,200}(:[0-9]{1,5})?/?$";
/// CEL has no pattern; these are filters, and what is none of them and is no CEL is refused.
const FILTER: &str = r"^doc\.f[0-9]{1,3} (==|<|<=|>|>=) [0-9]{1,9}$";

/// Patterns of names in paths; true if it knew the name.
pub(in crate::api) fn describe_parameter(parameter: &mut Value) -> bool {
    let pattern = match (parameter["name"].as_str(), parameter["in"].as_str()) {
        (Some("gateway"), Some("path")) => GATEWAY,
        (Some("tenant" | "subscription"), Some("path")) => NAME,
        _ => return false,
    };
    parameter["schema"] = json!({ "type": "string", "pattern": pattern });
    true
}

/// Replaces what was derived where more can be said.
pub(in crate::api) fn refine(schemas: &mut Value) {
    schemas["NewGateway"] = json!({
        "description": "A gateway to register; everything has a default",
        "type": "object", "additionalProperties": false,
        "properties": {
            "endpoint": { "type": ["string", "null"], "pattern": ENDPOINT, "description": "Where it listens; none if it opens the connection itself" },
            "protocol": { "enum": ["http", "grpc", "nats", null], "description": "Its wire; the configured one unless set" },
            "ttl_seconds": { "type": ["integer", "null"], "minimum": 0, "maximum": 3600, "description": "How long it counts as alive without a heartbeat; 90 unless set, 0 for ever" },
        },
    });
    schemas["NewSubscription"] = subscription();
    let document = json!({ "type": ["object", "null"] });
    schemas["ExplainRequest"] = json!({
        "description": "An event to be explained, and perhaps the one subscription to ask about",
        "type": "object", "additionalProperties": false, "required": ["event"],
        "properties": {
            "event": {
                "type": "object", "additionalProperties": false, "required": ["op", "tenant", "collection", "key"],
                "properties": {
                    "op": { "enum": ["insert", "update", "replace", "delete", "snapshot"] },
                    "tenant": { "type": "string", "pattern": NAME },
                    "collection": { "type": "string", "minLength": 1 },
                    "key": { "type": "string", "minLength": 1 },
                    "before": document, "after": document,
                },
            },
            "subscription": { "type": ["string", "null"], "pattern": NAME },
        },
    });
}

/// A gateway or a mode that needs none; a filter or conditions.
fn subscription() -> Value {
    let text = |about: &str| json!({ "type": ["string", "null"], "minLength": 1, "description": about });
    let common = json!({
        "collection": { "type": "string", "minLength": 1, "description": "At most 256 bytes" },
        "document": text("Only this document; at most 700 bytes"),
        "priority": { "enum": ["high", "normal", "low", null] },
        "overflow": { "enum": ["conflate", "shed", "keep", null], "description": "What may be left out at low priority under pressure" },
        "ttl_seconds": { "type": ["integer", "null"], "minimum": 60, "maximum": 3600 },
    });
    let direct = json!({
        "gateway": { "type": "string", "pattern": GATEWAY }, "mode": { "enum": ["direct", null] },
    });
    let other = json!({ "mode": { "enum": ["hash", "broadcast"] }, "gateway": { "type": "null" } });
    let filter = json!({ "filter": { "type": ["string", "null"], "pattern": FILTER, "description": "CEL over doc, op, key and collection" }, "conditions": { "type": "array", "maxItems": 0 } });
    let conditions = json!({ "conditions": { "type": "array", "maxItems": 16, "items": condition() }, "filter": { "type": "null" } });
    let mut shapes = Vec::new();
    for (target, needed) in [(&direct, "gateway"), (&other, "mode")] {
        for what in [&filter, &conditions] {
            let mut properties = common.clone();
            for part in [target, what] {
                for (name, schema) in part.as_object().into_iter().flatten() {
                    properties[name] = schema.clone();
                }
            }
            let required = ["collection", needed];
            shapes.push(json!({
                "type": "object", "additionalProperties": false, "required": required, "properties": properties,
            }));
        }
    }
    json!({ "description": "A subscription: a gateway, or a mode that needs none; a filter, conditions, or neither", "anyOf": shapes })
}

/// Operators with the values that they compare with.
fn condition() -> Value {
    let scalar = json!({ "type": ["string", "number", "boolean", "null"] });
    let shape = |operators: Value, value: Value, is_needed: bool| {
        let mut properties = json!({
            "field": { "type": "string", "pattern": r"^[^.]+(\.[^.]+){0,7}$" }, "op": { "enum": operators },
        });
        let mut required = vec!["field", "op"];
        properties["value"] = value;
        if is_needed {
            required.push("value");
        }
        json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties })
    };
    json!({ "oneOf": [
        shape(json!(["==", "!=", ">", ">=", "<", "<=", "contains"]), scalar.clone(), false),
        shape(json!(["in"]), json!({ "type": "array", "items": scalar }), true),
        shape(json!(["startsWith", "endsWith"]), json!({ "type": "string" }), true),
        shape(json!(["exists"]), json!({}), false),
    ] })
}
