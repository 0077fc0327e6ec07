//! Operators with Python's semantics.

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Error, State};

use super::budget::{ELEMENT_BYTES, charge, wrong};
use super::printf;
use super::python::{Tuple, as_tuple, text};

/// A number.
#[derive(Clone, Copy)]
enum Number {
    Integer(i128),
    Float(f64),
}

/// Operands and signs in turn, from left to right.
pub(super) fn math(state: &State<'_, '_>, terms: Rest<Value>) -> Result<Value, Error> {
    let mut terms = terms.0.into_iter();
    let mut result = terms.next().unwrap_or_default();
    while let (Some(sign), Some(right)) = (terms.next(), terms.next()) {
        result = operated(state, &result, sign.as_str().unwrap_or_default(), &right)?;
    }
    Ok(result)
}

/// Values as text, joined.
pub(super) fn cat(state: &State<'_, '_>, values: Rest<Value>) -> Result<String, Error> {
    let mut joined = String::new();
    for value in &values.0 {
        let text = text(value);
        charge(state, text.len())?;
        joined.push_str(&text);
    }
    Ok(joined)
}

fn operated(state: &State<'_, '_>, left: &Value, sign: &str, right: &Value) -> Result<Value, Error> {
    if left.is_undefined() || right.is_undefined() {
        return Err(wrong("a value that is undefined is computed with"));
    }
    if let (Some(left), Some(right)) = (number(left), number(right)) {
        return computed(left, sign, right);
    }
    match (left.kind(), sign, right.kind()) {
        (ValueKind::String, "%", _) => {
            let (format, made) = (left.as_str().unwrap_or_default(), |bytes| charge(state, bytes));
            Ok(printf::formatted(format, right, &made)?.into())
        }
        (ValueKind::String, "+", ValueKind::String) => {
            let (left, right) = (left.as_str().unwrap_or_default(), right.as_str().unwrap_or_default());
            charge(state, left.len() + right.len())?;
            Ok([left, right].concat().into())
        }
        (ValueKind::Seq, "+", ValueKind::Seq) if as_tuple(left).is_some() == as_tuple(right).is_some() => {
            let elements: Vec<Value> = left.try_iter()?.chain(right.try_iter()?).collect();
            charge(state, elements.len() * ELEMENT_BYTES)?;
            Ok(like(left, elements))
        }
        (_, "*", _) => match (repetitions(left), repetitions(right)) {
            (None, Some(times)) => repeated(state, left, times),
            (Some(times), None) => repeated(state, right, times),
            _ => Err(unlike(left, sign, right)),
        },
        _ => Err(unlike(left, sign, right)),
    }
}

fn unlike(left: &Value, sign: &str, right: &Value) -> Error {
    wrong(format!("`{sign}` does not go with {} and {}", left.kind(), right.kind()))
}

/// Elements as a tuple or a list, the same kind as a value.
pub(super) fn like(value: &Value, elements: Vec<Value>) -> Value {
    if as_tuple(value).is_some() { Value::from_object(Tuple(elements)) } else { elements.into() }
}

fn repetitions(value: &Value) -> Option<usize> {
    match number(value) {
        Some(Number::Integer(times)) => Some(usize::try_from(times.max(0)).unwrap_or(usize::MAX)),
        _ => None,
    }
}

fn repeated(state: &State<'_, '_>, value: &Value, times: usize) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        charge(state, text.len().saturating_mul(times))?;
        return Ok(text.repeat(times).into());
    }
    if value.kind() != ValueKind::Seq {
        return Err(wrong(format!("{} cannot be repeated", value.kind())));
    }
    let elements: Vec<Value> = value.try_iter()?.collect();
    charge(state, elements.len().saturating_mul(times).saturating_mul(ELEMENT_BYTES))?;
    let count = elements.len() * times;
    Ok(like(value, elements.into_iter().cycle().take(count).collect()))
}

/// `value[start:stop:step]`.
pub(super) fn slice(
    state: &State<'_, '_>,
    value: &Value,
    start: Option<i64>,
    stop: Option<i64>,
    step: Option<i64>,
) -> Result<Value, Error> {
    let letters = value.as_str().map(|text| text.chars().map(Value::from).collect::<Vec<_>>());
    let elements = match letters {
        Some(letters) => letters,
        None if value.kind() == ValueKind::Seq => value.try_iter()?.collect(),
        None => return Err(wrong(format!("{} cannot be sliced", value.kind()))),
    };
    charge(state, elements.len() * ELEMENT_BYTES)?;
    let count = i64::try_from(elements.len()).unwrap_or(i64::MAX);
    let step = step.unwrap_or(1);
    let (first, last) = if step > 0 { (0, count) } else { (-1, count - 1) };
    let place = |place: i64| if place < 0 { place.saturating_add(count).max(first) } else { place.min(last) };
    let (start, stop) = match step {
        0 => return Err(wrong("slice step cannot be zero")),
        1.. => (start.map_or(0, place), stop.map_or(count, place)),
        _ => (start.map_or(count - 1, place), stop.map_or(-1, place)),
    };
    let (mut kept, mut at) = (Vec::new(), start);
    while if step > 0 { at < stop } else { at > stop } {
        kept.extend(usize::try_from(at).ok().and_then(|at| elements.get(at)).cloned());
        at = at.saturating_add(step);
    }
    if value.as_str().is_some() {
        return Ok(kept.iter().filter_map(Value::as_str).collect::<String>().into());
    }
    Ok(like(value, kept))
}

/// A value as a number; truth is 1.
fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Integer(value.is_true().into())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Number::Integer),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

fn computed(left: Number, sign: &str, right: Number) -> Result<Value, Error> {
    use Number::{Float, Integer};
    let float = |number| match number {
        Integer(whole) => whole as f64,
        Float(float) => float,
    };
    let (a, b) = (float(left), float(right));
    if b == 0.0 && matches!(sign, "/" | "//" | "%") {
        return Err(wrong("division by zero"));
    }
    let (Integer(x), Integer(y), false) = (left, right, sign == "/") else {
        return Ok(Value::from(match sign {
            "+" => a + b,
            "-" => a - b,
            "*" => a * b,
            "/" => a / b,
            "//" => (a / b).floor(),
            _ => a - b * (a / b).floor(),
        }));
    };
    let whole = match sign {
        "+" => x.checked_add(y),
        "-" => x.checked_sub(y),
        "*" => x.checked_mul(y),
        "//" => x.checked_div_euclid(y).map(|quotient| quotient - i128::from(y < 0 && x.rem_euclid(y) != 0)),
        _ => x.checked_rem(y).map(|rest| if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }),
    };
    let whole = whole.ok_or_else(|| wrong("a number beyond 128 bits"))?;
    Ok(i64::try_from(whole).map_or_else(|_| Value::from(whole), Value::from))
}
