//! The interpreter's view of one event: variables made once, and only for filters that need them.

use super::check::mentions;
use crate::error::Result;
use crate::event::{Document, Event, Text};
use cel::objects::{Key, Map};
use cel::{Context, Env, IdedExpr, Value};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

static STANDARD: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

pub(crate) struct Scope {
    variables: Context<'static, 'static>,
    /// Columns that the source does not know.
    missing: Vec<Text>,
}

impl Scope {
    /// The variables of an event, with this image of its document; without one, filters see an
    /// empty document.
    pub(crate) fn new(event: &Event, document: Option<&Document>) -> Result<Self> {
        let document = document.map_or_else(|| Ok(serde_json::json!({})), Document::to_value)?;
        let mut context = Context::with_env(Arc::clone(&STANDARD));
        context.add_variable_from_value("doc", value(document));
        context.add_variable_from_value("op", event.operation.as_str());
        context.add_variable_from_value("key", &*event.key);
        context.add_variable_from_value("collection", &*event.collection);
        Ok(Self { variables: context, missing: event.missing.clone() })
    }

    /// What it comes to, in words: `true`, `false`, or why it is neither.
    pub(crate) fn say(&self, expr: &IdedExpr) -> (bool, &'static str) {
        if self.needs_missing(expr) {
            return (false, "not to be answered: the source does not know a column that it needs");
        }
        match self.variables.resolve(expr) {
            Ok(Value::Bool(true)) => (true, "true"),
            Ok(Value::Bool(false)) => (false, "false"),
            Ok(_) => (false, "neither true nor false"),
            // The text of an error may hold values of the document.
            Err(_) => (false, "not to be answered: a field is missing or of another type"),
        }
    }

    /// True, and neither false nor an error.
    pub(crate) fn is_true(&self, expr: &IdedExpr) -> bool {
        !self.needs_missing(expr) && matches!(self.variables.resolve(expr), Ok(Value::Bool(true)))
    }

    fn needs_missing(&self, expr: &IdedExpr) -> bool {
        !self.missing.is_empty() && mentions(expr, &self.missing)
    }
}

/// Whole numbers become `int` where they fit, as a writer of CEL expects of JSON.
fn value(json: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), ..) => Value::Int(value),
            (_, Some(value), _) => Value::UInt(value),
            (_, _, value) => Value::Float(value.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::String(Arc::new(text)),
        Json::Array(elements) => Value::List(Arc::new(elements.into_iter().map(value).collect())),
        Json::Object(fields) => {
            let fields: HashMap<Key, Value> =
                fields.into_iter().map(|(name, field)| (Key::from(name), value(field))).collect();
            Value::Map(Map::from(fields))
        }
    }
}
