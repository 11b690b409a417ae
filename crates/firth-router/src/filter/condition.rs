//! Plain conditions, for clients that do not write CEL. They become the same tree, built node by
//! node and never as text, so no value can change what a filter means.

use crate::error::{Error, Result};
use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, ListExpr, LiteralValue, SelectExpr, operators};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One comparison of one field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The field, with dots between its steps: `customer.city`.
    pub field: String,
    /// The operator.
    pub op: Operator,
    /// What to compare with; not needed for `exists`.
    #[serde(default)]
    pub value: Value,
}

/// The operators of a [`Condition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Equal.
    #[serde(rename = "==")]
    Equal,
    /// Not equal; the field must be there.
    #[serde(rename = "!=")]
    NotEqual,
    /// Greater.
    #[serde(rename = ">")]
    Greater,
    /// Greater or equal.
    #[serde(rename = ">=")]
    GreaterOrEqual,
    /// Less.
    #[serde(rename = "<")]
    Less,
    /// Less or equal.
    #[serde(rename = "<=")]
    LessOrEqual,
    /// The field is one of the listed values.
    #[serde(rename = "in")]
    In,
    /// The field is a list with this element, a map with this key, or a text with this part.
    #[serde(rename = "contains")]
    Contains,
    /// The field is a text that begins like this.
    #[serde(rename = "startsWith")]
    StartsWith,
    /// The field is a text that ends like this.
    #[serde(rename = "endsWith")]
    EndsWith,
    /// The field is there.
    #[serde(rename = "exists")]
    Exists,
}

/// The tree that says that all conditions hold.
pub(super) fn tree(conditions: &[Condition]) -> Result<IdedExpr> {
    let mut parts = conditions.iter().map(Condition::tree);
    let first =
        parts.next().unwrap_or_else(|| Ok(node(Expr::Literal(LiteralValue::Boolean(true.into())))))?;
    parts.try_fold(first, |left, right| Ok(operator(operators::LOGICAL_AND, [left, right?])))
}

impl Condition {
    fn tree(&self) -> Result<IdedExpr> {
        let field = field(&self.field)?;
        let simple = match self.op {
            Operator::Equal => operators::EQUALS,
            Operator::NotEqual => operators::NOT_EQUALS,
            Operator::Greater => operators::GREATER,
            Operator::GreaterOrEqual => operators::GREATER_EQUALS,
            Operator::Less => operators::LESS,
            Operator::LessOrEqual => operators::LESS_EQUALS,
            Operator::In => return self.one_of(field),
            Operator::Contains => return self.contains(field),
            Operator::StartsWith => return self.method("startsWith", field),
            Operator::EndsWith => return self.method("endsWith", field),
            Operator::Exists => return Ok(exists(field)),
        };
        Ok(operator(simple, [field, self.scalar(&self.value)?]))
    }

    fn one_of(&self, field: IdedExpr) -> Result<IdedExpr> {
        let Value::Array(values) = &self.value else { return Err(self.wrong("a list of values")) };
        let elements: Result<Vec<_>> = values.iter().map(|value| self.scalar(value)).collect();
        Ok(operator(operators::IN, [field, node(Expr::List(ListExpr::new(elements?)))]))
    }

    fn contains(&self, field: IdedExpr) -> Result<IdedExpr> {
        let element = operator(operators::IN, [self.scalar(&self.value)?, field.clone()]);
        if !self.value.is_string() {
            return Ok(element);
        }
        Ok(operator(operators::LOGICAL_OR, [element, self.method("contains", field)?]))
    }

    fn method(&self, name: &str, field: IdedExpr) -> Result<IdedExpr> {
        if !self.value.is_string() {
            return Err(self.wrong("a text"));
        }
        let args = vec![self.scalar(&self.value)?];
        let target = Some(Box::new(field));
        Ok(node(Expr::Call(CallExpr { func_name: name.to_owned(), target, args })))
    }

    fn scalar(&self, value: &Value) -> Result<IdedExpr> {
        let literal = match value {
            Value::Null => LiteralValue::Null,
            Value::Bool(value) => LiteralValue::Boolean((*value).into()),
            Value::String(text) => LiteralValue::String(text.clone().into()),
            Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(value), ..) => LiteralValue::Int(value.into()),
                (_, Some(value), _) => LiteralValue::UInt(value.into()),
                (_, _, value) => LiteralValue::Double(value.unwrap_or(f64::NAN).into()),
            },
            Value::Array(_) | Value::Object(_) => {
                return Err(self.wrong("a text, a number, true, false or null"));
            }
        };
        Ok(node(Expr::Literal(literal)))
    }

    fn wrong(&self, wanted: &str) -> Error {
        Error::invalid(format!("the value of the condition on {:?} must be {wanted}", self.field))
    }
}

fn field(dotted: &str) -> Result<IdedExpr> {
    let start = node(Expr::Ident("doc".to_owned()));
    dotted.split('.').try_fold(start, |operand, step| match step {
        "" => Err(Error::invalid(format!("the field {dotted:?} of a condition has an empty step"))),
        _ => Ok(select(operand, step, false)),
    })
}

fn exists(field: IdedExpr) -> IdedExpr {
    match field.expr {
        Expr::Select(select) => node(Expr::Select(SelectExpr { test: true, ..select })),
        other => node(other),
    }
}

fn select(operand: IdedExpr, field: &str, test: bool) -> IdedExpr {
    node(Expr::Select(SelectExpr { operand: Box::new(operand), field: field.to_owned(), test }))
}

fn operator(name: &str, args: [IdedExpr; 2]) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args: args.into() }))
}

fn node(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}
