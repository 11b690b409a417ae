//! An expression as people write it, for explanations.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, operators};

const INFIX: [(&str, &str); 15] = [
    (operators::LOGICAL_AND, "&&"),
    (operators::LOGICAL_OR, "||"),
    (operators::SUBSTRACT, "-"),
    (operators::ADD, "+"),
    (operators::MULTIPLY, "*"),
    (operators::DIVIDE, "/"),
    (operators::MODULO, "%"),
    (operators::EQUALS, "=="),
    (operators::NOT_EQUALS, "!="),
    (operators::GREATER_EQUALS, ">="),
    (operators::LESS_EQUALS, "<="),
    (operators::GREATER, ">"),
    (operators::LESS, "<"),
    (operators::IN, "in"),
    (operators::INDEX, "[]"),
];

/// The text; operands that are not simple stand in brackets.
pub(crate) fn show(expr: &IdedExpr) -> String {
    match &expr.expr {
        Expr::Ident(name) => name.clone(),
        Expr::Literal(value) => literal(value),
        Expr::Select(select) if select.test => format!("has({}.{})", show(&select.operand), select.field),
        Expr::Select(select) => format!("{}.{}", operand(&select.operand), select.field),
        Expr::List(list) => format!("[{}]", all(&list.elements)),
        Expr::Call(call) => shown_call(call),
        // Refused when the filter was parsed.
        Expr::Comprehension(_) | Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => "…".to_owned(),
    }
}

fn shown_call(call: &CallExpr) -> String {
    let infix = INFIX.iter().find(|(name, _)| *name == call.func_name).map(|(_, sign)| *sign);
    match (infix, &call.target, &call.args[..]) {
        (Some("[]"), None, [of, at]) => format!("{}[{}]", operand(of), show(at)),
        (Some(sign), None, [left, right]) => format!("{} {sign} {}", operand(left), operand(right)),
        (_, Some(target), args) => format!("{}.{}({})", operand(target), call.func_name, all(args)),
        (_, None, [only]) if call.func_name == operators::LOGICAL_NOT => format!("!{}", operand(only)),
        (_, None, [only]) if call.func_name == operators::NEGATE => format!("-{}", operand(only)),
        (_, None, [test, yes, no]) if call.func_name == operators::CONDITIONAL => {
            format!("{} ? {} : {}", operand(test), operand(yes), operand(no))
        }
        (_, None, args) => format!("{}({})", call.func_name, all(args)),
    }
}

fn operand(expr: &IdedExpr) -> String {
    match &expr.expr {
        Expr::Call(call) if call.target.is_none() && call.func_name.contains(['_', '@']) => {
            format!("({})", show(expr))
        }
        _ => show(expr),
    }
}

fn all(list: &[IdedExpr]) -> String {
    list.iter().map(show).collect::<Vec<_>>().join(", ")
}

fn literal(value: &LiteralValue) -> String {
    match value {
        LiteralValue::Boolean(value) => value.inner().to_string(),
        LiteralValue::Int(value) => value.inner().to_string(),
        LiteralValue::UInt(value) => format!("{}u", value.inner()),
        LiteralValue::Double(value) => format!("{:?}", value.inner()),
        LiteralValue::String(value) => format!("{:?}", value.inner()),
        LiteralValue::Bytes(_) => "bytes".to_owned(),
        LiteralValue::Null => "null".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    #[test]
    fn an_expression_reads_as_it_was_written() {
        for text in [
            r#"doc.state == "paid""#,
            r#"(doc.total > 100) && ("x" in doc.tags)"#,
            "has(doc.a.b)",
            r#"doc.name.startsWith("A")"#,
            "doc.n in [1, 2.5, null, true]",
            "size(doc.list) > 3",
        ] {
            assert_eq!(show(&tree(text).unwrap()), text);
        }
        assert_eq!(show(&tree("!(doc.a)").unwrap()), "!doc.a");
    }
}
