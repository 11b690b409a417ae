//! Takes a filter's tree apart: into branches (any may hold), each a conjunction of atoms and a
//! rest that only an interpreter can answer.
//!
//! A filter matches when it is *true*; an error (a missing field, a wrong type) is no match. In
//! CEL, `a && b` is true exactly when both are true. `a || b` is true exactly when at least one of
//! them is, even if the other one is an error. So conjunctions may be split and disjunctions may
//! become branches without changing what matches.

use super::atom::{Atom, Limit, Path, Test, join};
use super::value::{Literal, Num};
use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, operators};

/// The most branches of one filter; a disjunction that would need more stays in the rest.
const MAX_BRANCHES: usize = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct Branch {
    pub(crate) atoms: Vec<Atom>,
    /// All of these must be true too.
    pub(crate) rest: Vec<IdedExpr>,
}

/// The branches of a filter. None at all: it never matches.
pub(crate) fn lower(expr: &IdedExpr) -> Vec<Branch> {
    if let Some(sides) = sides(expr, operators::LOGICAL_AND) {
        return sides.iter().fold(vec![Branch::default()], |so_far, side| product(so_far, side));
    }
    if let Expr::Literal(LiteralValue::Boolean(value)) = &expr.expr {
        return if *value.inner() { vec![Branch::default()] } else { Vec::new() };
    }
    if let Some(atom) = atom(expr) {
        return vec![Branch { atoms: vec![atom], rest: Vec::new() }];
    }
    if let Some(sides) = sides(expr, operators::LOGICAL_OR) {
        let branches: Vec<_> = sides.iter().flat_map(|side| lower(side)).collect();
        if branches.len() <= MAX_BRANCHES {
            return branches;
        }
    }
    vec![Branch { atoms: Vec::new(), rest: vec![expr.clone()] }]
}

/// Both this and that: every pair of branches, unless that would be too many.
fn product(so_far: Vec<Branch>, side: &IdedExpr) -> Vec<Branch> {
    let mut branches = lower(side);
    if branches.len() > 1 && so_far.len() * branches.len() > MAX_BRANCHES {
        branches = vec![Branch { atoms: Vec::new(), rest: vec![side.clone()] }];
    }
    let both = |(left, right): (&Branch, &Branch)| {
        let mut joined = left.clone();
        right.atoms.iter().for_each(|atom| join(&mut joined.atoms, atom.clone()));
        joined.rest.extend(right.rest.iter().cloned());
        joined
    };
    so_far.iter().flat_map(|left| branches.iter().map(move |right| (left, right))).map(both).collect()
}

/// The operands of a chain of one logical operator.
pub(crate) fn sides<'a>(expr: &'a IdedExpr, operator: &str) -> Option<Vec<&'a IdedExpr>> {
    let Expr::Call(call) = &expr.expr else { return None };
    if call.func_name != operator {
        return None;
    }
    Some(call.args.iter().flat_map(|arg| sides(arg, operator).unwrap_or_else(|| vec![arg])).collect())
}

fn atom(expr: &IdedExpr) -> Option<Atom> {
    match &expr.expr {
        Expr::Select(select) if select.test => {
            let mut path = path(&select.operand)?.into_vec();
            path.push(select.field.as_str().into());
            Some(Atom { path: path.into(), test: Test::Exists })
        }
        Expr::Call(call) => call_atom(call),
        _ => None,
    }
}

fn call_atom(call: &CallExpr) -> Option<Atom> {
    if let Some(target) = &call.target {
        let [arg] = &call.args[..] else { return None };
        let Literal::Str(part) = literal(arg)? else { return None };
        let test = match call.func_name.as_str() {
            "startsWith" => Test::Prefix(part),
            "endsWith" => Test::Suffix(part),
            "contains" => Test::Substring(part),
            _ => return None,
        };
        return Some(Atom { path: path(target)?, test });
    }
    match (call.func_name.as_str(), &call.args[..]) {
        (operators::LOGICAL_NOT, [inner]) => absent(inner),
        (operators::LOGICAL_OR, [_, _]) => one_of(call),
        (operators::IN, [left, right]) => membership(left, right),
        (operator, [left, right]) => comparison(operator, left, right)
            .or_else(|| mirrored(operator).and_then(|operator| comparison(operator, right, left))),
        _ => None,
    }
}

/// `!has(doc.field)`. Deeper fields stay in the rest: there a missing parent is an error, not an
/// absence.
fn absent(inner: &IdedExpr) -> Option<Atom> {
    match atom(inner)? {
        Atom { path, test: Test::Exists } if path.len() == 2 => Some(Atom { path, test: Test::Absent }),
        _ => None,
    }
}

/// Equalities of one field with several values.
fn one_of(call: &CallExpr) -> Option<Atom> {
    let mut field = None;
    let mut values = Vec::new();
    for arg in &call.args {
        let Atom { path, test } = atom(arg)?;
        match test {
            Test::Equal(literal) => values.push(literal),
            Test::OneOf(literals) => values.extend(literals),
            _ => return None,
        }
        if *field.get_or_insert_with(|| path.clone()) != path {
            return None;
        }
    }
    Some(Atom { path: field?, test: Test::OneOf(sorted(values)) })
}

fn membership(left: &IdedExpr, right: &IdedExpr) -> Option<Atom> {
    if let Expr::List(list) = &right.expr {
        let literals: Option<Vec<_>> = list.elements.iter().map(literal).collect();
        return Some(Atom { path: path(left)?, test: Test::OneOf(sorted(literals?)) });
    }
    Some(Atom { path: path(right)?, test: Test::Element(literal(left)?) })
}

fn comparison(operator: &str, left: &IdedExpr, right: &IdedExpr) -> Option<Atom> {
    let path = path(left)?;
    let at = literal(right)?;
    let has_order = matches!(at, Literal::Num(_) | Literal::Str(_));
    let limit = |inclusive| Some(Limit { at: at.clone(), inclusive });
    let test = match operator {
        operators::EQUALS => Test::Equal(at),
        operators::NOT_EQUALS => Test::NotEqual(at),
        operators::GREATER if has_order => Test::Range { lower: limit(false), upper: None },
        operators::GREATER_EQUALS if has_order => Test::Range { lower: limit(true), upper: None },
        operators::LESS if has_order => Test::Range { lower: None, upper: limit(false) },
        operators::LESS_EQUALS if has_order => Test::Range { lower: None, upper: limit(true) },
        _ => return None,
    };
    Some(Atom { path, test })
}

fn mirrored(operator: &str) -> Option<&'static str> {
    Some(match operator {
        operators::EQUALS => operators::EQUALS,
        operators::NOT_EQUALS => operators::NOT_EQUALS,
        operators::GREATER => operators::LESS,
        operators::GREATER_EQUALS => operators::LESS_EQUALS,
        operators::LESS => operators::GREATER,
        operators::LESS_EQUALS => operators::GREATER_EQUALS,
        _ => return None,
    })
}

fn sorted(mut literals: Vec<Literal>) -> Box<[Literal]> {
    literals.sort();
    literals.dedup();
    literals.into()
}

/// `doc.a.b`, `doc["a"].b`, `op`, `key`, `collection`; not `doc` itself.
pub(crate) fn path(expr: &IdedExpr) -> Option<Path> {
    fn steps(expr: &IdedExpr, into: &mut Vec<Box<str>>) -> Option<()> {
        match &expr.expr {
            Expr::Ident(name) => into.push(name.as_str().into()),
            Expr::Select(select) if !select.test => {
                steps(&select.operand, into)?;
                into.push(select.field.as_str().into());
            }
            Expr::Call(call) if call.func_name == operators::INDEX => {
                let [base, index] = &call.args[..] else { return None };
                let Literal::Str(name) = literal(index)? else { return None };
                steps(base, into)?;
                into.push(name);
            }
            _ => return None,
        }
        Some(())
    }
    let mut path = Vec::new();
    steps(expr, &mut path)?;
    let is_field = if &*path[0] == "doc" { path.len() > 1 } else { path.len() == 1 };
    is_field.then(|| path.into())
}

fn literal(expr: &IdedExpr) -> Option<Literal> {
    let Expr::Literal(value) = &expr.expr else { return negative(expr) };
    Some(match value {
        LiteralValue::Null => Literal::Null,
        LiteralValue::Boolean(value) => Literal::Bool(*value.inner()),
        LiteralValue::Int(value) => Literal::Num((*value.inner()).into()),
        LiteralValue::UInt(value) => Literal::Num((*value.inner()).into()),
        LiteralValue::Double(value) => Literal::Num(Num::float(*value.inner())?),
        LiteralValue::String(value) => Literal::Str(value.inner().into()),
        LiteralValue::Bytes(_) => return None,
    })
}

fn negative(expr: &IdedExpr) -> Option<Literal> {
    let Expr::Call(call) = &expr.expr else { return None };
    let [inner] = &call.args[..] else { return None };
    match &inner.expr {
        _ if call.func_name != operators::NEGATE => None,
        Expr::Literal(LiteralValue::Int(value)) => Some(Literal::Num(value.inner().checked_neg()?.into())),
        Expr::Literal(LiteralValue::Double(value)) => Some(Literal::Num(Num::float(-value.inner())?)),
        _ => None,
    }
}
