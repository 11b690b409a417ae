//! One text for every way to write a filter: filters with the same text share a group.

use super::lower::sides;
use cel::IdedExpr;
use cel::common::ast::{Expr, LiteralValue, operators};
use std::fmt::Write;

/// The canonical text: blanks, brackets and the order of `&&` and `||` make no difference.
pub(crate) fn canon(expr: &IdedExpr) -> String {
    let mut out = String::new();
    write(expr, &mut out);
    out
}

fn write(expr: &IdedExpr, out: &mut String) {
    for operator in [operators::LOGICAL_AND, operators::LOGICAL_OR] {
        if let Some(sides) = sides(expr, operator) {
            let mut texts: Vec<_> = sides.into_iter().map(canon).collect();
            texts.sort();
            texts.dedup();
            let _ = write!(out, "({})", texts.join(operator));
            return;
        }
    }
    // Writing to a text cannot fail.
    let _ = match &expr.expr {
        Expr::Ident(name) => write!(out, "{name}"),
        Expr::Literal(value) => literal(value, out),
        Expr::Select(select) => {
            write(&select.operand, out);
            write!(out, "{}[{:?}]", if select.test { "?" } else { "" }, select.field)
        }
        Expr::List(list) => {
            out.push('[');
            list.elements.iter().for_each(|element| {
                write(element, out);
                out.push(',');
            });
            write!(out, "]")
        }
        Expr::Call(call) => {
            if let Some(target) = &call.target {
                write(target, out);
                out.push('.');
            }
            let _ = write!(out, "{}(", call.func_name);
            call.args.iter().for_each(|arg| {
                write(arg, out);
                out.push(',');
            });
            write!(out, ")")
        }
        // Refused before anything is compared.
        Expr::Comprehension(_) | Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
            write!(out, "{:?}", expr.expr)
        }
    };
}

fn literal(value: &LiteralValue, out: &mut String) -> std::fmt::Result {
    match value {
        LiteralValue::Boolean(value) => write!(out, "{}", value.inner()),
        LiteralValue::Int(value) => write!(out, "{}", value.inner()),
        LiteralValue::UInt(value) => write!(out, "{}u", value.inner()),
        LiteralValue::Double(value) => write!(out, "{:?}", value.inner()),
        LiteralValue::String(value) => write!(out, "{:?}", value.inner()),
        LiteralValue::Bytes(value) => write!(out, "{:?}", value.inner()),
        LiteralValue::Null => write!(out, "null"),
    }
}
