//! What a filter may contain, and how much of it: checked before anything else is done with its
//! tree.

use crate::error::{Error, Result};
use crate::event::Text;
use cel::IdedExpr;
use cel::common::ast::{Expr, LiteralValue, operators};

/// The longest filter, in bytes.
pub const MAX_SOURCE: usize = 4096;
/// The most nodes of a filter's tree. No filter repeats any of them, so this bounds the cost of one
/// evaluation too.
pub const MAX_NODES: usize = 256;
/// The deepest nesting.
pub const MAX_DEPTH: usize = 32;

/// The variables that a filter can name.
pub(crate) const VARIABLES: [&str; 4] = ["doc", "op", "key", "collection"];

const OPERATORS: [&str; 19] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::IN,
    "size",
];

const METHODS: [&str; 4] = ["contains", "startsWith", "endsWith", "size"];
const CONVERSIONS: [&str; 5] = ["int", "uint", "double", "string", "bool"];

/// How deeply brackets are nested, those inside texts left out.
pub(crate) fn brackets(source: &str) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0_usize;
    let mut quote = None;
    let mut escaped = false;
    for c in source.chars() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Refuses what is too large, unknown or unbounded.
pub(crate) fn check(expr: &IdedExpr) -> Result<()> {
    let mut nodes = 0;
    walk(expr, 1, &mut nodes)
}

fn walk(expr: &IdedExpr, depth: usize, nodes: &mut usize) -> Result<()> {
    *nodes += 1;
    if *nodes > MAX_NODES {
        return Err(Error::invalid(format!("a filter has more than {MAX_NODES} parts; make it shorter")));
    }
    if depth > MAX_DEPTH {
        return Err(Error::invalid(format!("a filter is nested deeper than {MAX_DEPTH} levels")));
    }
    let mut each = |inner: &IdedExpr| walk(inner, depth + 1, nodes);
    match &expr.expr {
        Expr::Ident(name) => variable(name),
        Expr::Literal(LiteralValue::Bytes(_)) => {
            Err(Error::invalid("a filter cannot hold bytes: documents have none"))
        }
        Expr::Literal(_) => Ok(()),
        Expr::Select(select) => each(&select.operand),
        Expr::List(list) if list.optional_indices.is_empty() => list.elements.iter().try_for_each(each),
        Expr::Call(call) => {
            function(&call.func_name, call.target.is_some())?;
            call.target.as_deref().map_or(Ok(()), &mut each)?;
            call.args.iter().try_for_each(each)
        }
        Expr::Comprehension(_) => {
            Err(Error::invalid("a filter cannot loop (all, exists, map, filter); use `value in doc.list`"))
        }
        Expr::Map(_) | Expr::Struct(_) | Expr::List(_) | Expr::Unspecified => {
            Err(Error::invalid("a filter cannot build maps, structures or optional values"))
        }
    }
}

/// Whether it looks at a variable, or is plainly true or false. Anything else is a value that was
/// forgotten there.
pub(crate) fn asks_something(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Ident(_) | Expr::Literal(LiteralValue::Boolean(_)) => true,
        Expr::Select(select) => asks_something(&select.operand),
        Expr::List(list) => list.elements.iter().any(asks_something),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).any(asks_something),
        _ => false,
    }
}

/// Whether it looks at one of these columns of the document, or at the document as a whole.
pub(crate) fn mentions(expr: &IdedExpr, columns: &[Text]) -> bool {
    let is_document = |expr: &IdedExpr| matches!(&expr.expr, Expr::Ident(name) if name == "doc");
    let is_column = |name: &str| columns.iter().any(|column| **column == *name);
    match &expr.expr {
        Expr::Ident(name) => name == "doc",
        Expr::Select(select) if is_document(&select.operand) => is_column(&select.field),
        Expr::Select(select) => mentions(&select.operand, columns),
        Expr::List(list) => list.elements.iter().any(|element| mentions(element, columns)),
        Expr::Call(call) => match &call.args[..] {
            [operand, index] if call.func_name == operators::INDEX && is_document(operand) => {
                match &index.expr {
                    Expr::Literal(LiteralValue::String(name)) => is_column(name),
                    _ => true,
                }
            }
            args => call.target.as_deref().into_iter().chain(args).any(|part| mentions(part, columns)),
        },
        _ => false,
    }
}

fn variable(name: &str) -> Result<()> {
    if VARIABLES.contains(&name) {
        return Ok(());
    }
    let known = VARIABLES.join(", ");
    Err(Error::invalid(format!(
        "a filter knows no variable `{name}`; known are {known}; fields of the document are written `doc.{name}`"
    )))
}

fn function(name: &str, is_method: bool) -> Result<()> {
    let known = match is_method {
        true => METHODS.contains(&name),
        false => OPERATORS.contains(&name) || CONVERSIONS.contains(&name),
    };
    if known {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a filter knows no function `{name}`; known are {}, {}, has, and the operators",
        METHODS.join(", "),
        CONVERSIONS.join(", ")
    )))
}
