//! Filters and tests that minijinja lacks, or that differ from Jinja's.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::budget::{ELEMENT_BYTES, charge, wrong};
use super::python::{pair, repr, text};
use super::{arithmetic, json, methods, printf, texts};

/// Adds them to an environment.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", |value: &Value| text(value));
    environment.add_filter("pprint", |value: &Value| repr(value));
    environment.add_filter("format", format);
    environment.add_filter("join", join);
    environment.add_filter("sum", sum);
    environment.add_filter("replace", replace);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("round", round);
    environment.add_filter("list", list);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("slice", slice);
    environment.add_filter("batch", batch);
    environment.add_filter("attr", |_: &Value, _: &str| Value::UNDEFINED);
    environment
        .add_filter("min", |state: &State<'_, '_>, value: &Value, named: Kwargs| extreme(state, value, &named, true));
    environment
        .add_filter("max", |state: &State<'_, '_>, value: &Value, named: Kwargs| extreme(state, value, &named, false));
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    texts::add(environment);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("callable", |value: &Value| {
        value.kind() == ValueKind::Plain && value.as_object().is_some_and(|object| object.is_true())
    });
}

fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
}

/// Whether a value has a length and elements: a generator does not, a dict and a string do.
fn is_sequence(value: &Value) -> bool {
    is_iterable(value) && (value.is_undefined() || value.len().is_some())
}

fn format(state: &State<'_, '_>, format: &str, values: Rest<Value>) -> Result<String, Error> {
    let made = |bytes| charge(state, bytes);
    match values.0.as_slice() {
        [named] if named.is_kwargs() => printf::formatted(format, named, &made),
        _ => printf::formatted(format, &Value::from_object(super::python::Tuple(values.0)), &made),
    }
}

/// A value's attribute by a path of names and numbers with dots between them.
fn attribute(value: &Value, path: &Value) -> Result<Value, Error> {
    if path.kind() == ValueKind::Number {
        return Ok(value.get_item(path).unwrap_or_default());
    }
    let mut found = value.clone();
    for name in path.as_str().unwrap_or_default().split('.') {
        found = match name.parse::<i64>() {
            Ok(index) => found.get_item(&Value::from(index))?,
            Err(_) => found.get_attr(name)?,
        };
    }
    Ok(found)
}

fn elements(state: &State<'_, '_>, value: &Value) -> Result<Vec<Value>, Error> {
    if !is_iterable(value) {
        return Err(wrong(format!("{} is not iterable", value.kind())));
    }
    let elements: Vec<Value> = match value.as_str() {
        Some(text) => text.chars().map(Value::from).collect(),
        None => value.try_iter()?.collect(),
    };
    charge(state, elements.len() * ELEMENT_BYTES)?;
    Ok(elements)
}

fn list(state: &State<'_, '_>, value: &Value) -> Result<Vec<Value>, Error> {
    elements(state, value)
}

fn length(value: &Value) -> Result<usize, Error> {
    match value.as_str() {
        Some(text) => Ok(text.chars().count()),
        None if value.is_undefined() => Ok(0),
        None => value.len().ok_or_else(|| wrong(format!("{} has no length", value.kind()))),
    }
}

fn join(
    state: &State<'_, '_>,
    value: &Value,
    separator: Option<Value>,
    path: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let path = path.or(named.get::<Option<Value>>("attribute")?);
    let separator = separator.or(named.get::<Option<Value>>("d")?);
    named.assert_all_used()?;
    let separator = separator.as_ref().map(text).unwrap_or_default();
    let mut joined = String::new();
    for (index, element) in elements(state, value)?.iter().enumerate() {
        let part = match &path {
            Some(path) => text(&attribute(element, path)?),
            None => text(element),
        };
        charge(state, part.len() + separator.len())?;
        joined.push_str(if index > 0 { &separator } else { "" });
        joined.push_str(&part);
    }
    Ok(joined)
}

fn sum(
    state: &State<'_, '_>,
    value: &Value,
    path: Option<Value>,
    start: Option<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let path = path.or(named.get::<Option<Value>>("attribute")?).filter(|path| !path.is_none());
    let mut total = start.or(named.get::<Option<Value>>("start")?).unwrap_or_else(|| Value::from(0));
    named.assert_all_used()?;
    for element in elements(state, value)? {
        let term = path.as_ref().map_or(Ok(element.clone()), |path| attribute(&element, path))?;
        total = arithmetic::math(state, Rest(vec![total, Value::from("+"), term]))?;
    }
    Ok(total)
}

fn replace(
    state: &State<'_, '_>,
    value: &Value,
    from: &Value,
    to: &Value,
    count: Option<Value>,
) -> Result<Value, Error> {
    let mut args = vec![Value::from(text(from)), Value::from(text(to))];
    args.extend(count.filter(|count| !count.is_none()));
    methods::method(state, &text(value).into(), "replace", &args)
}

fn int(value: &Value, default: Option<Value>, base: Option<u32>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get::<Option<Value>>("default")?).unwrap_or_else(|| Value::from(0));
    let base = base.or(named.get::<Option<u32>>("base")?).unwrap_or(10);
    named.assert_all_used()?;
    if !(2..=36).contains(&base) {
        return Err(wrong(format!("a base of {base}")));
    }
    let whole = match value.kind() {
        ValueKind::Bool => Some(value.is_true().into()),
        ValueKind::Number if value.is_integer() => return Ok(value.clone()),
        ValueKind::Number => {
            f64::try_from(value.clone()).ok().filter(|float| float.is_finite()).map(|float| float as i64)
        }
        ValueKind::String => {
            let digits = value.as_str().unwrap_or_default().trim().replace('_', "");
            let prefix = match base {
                16 => "0x",
                8 => "0o",
                2 => "0b",
                _ => "",
            };
            let float = || digits.parse::<f64>().ok().filter(|float| float.is_finite()).map(|float| float as i64);
            i64::from_str_radix(digits.strip_prefix(prefix).unwrap_or(&digits), base).ok().or_else(float)
        }
        _ => None,
    };
    Ok(whole.map_or(default, Value::from))
}

fn float(value: &Value, default: Option<f64>) -> f64 {
    let number = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str().unwrap_or_default().trim().parse().ok(),
        _ => None,
    };
    number.or(default).unwrap_or(0.0)
}

fn round(value: &Value, precision: Option<i32>, method: Option<String>, named: Kwargs) -> Result<Value, Error> {
    let precision = precision.or(named.get::<Option<i32>>("precision")?).unwrap_or(0);
    let method = method.or(named.get::<Option<String>>("method")?).unwrap_or_else(|| "common".into());
    named.assert_all_used()?;
    let number = f64::try_from(value.clone()).map_err(|_| wrong(format!("{} cannot be rounded", value.kind())))?;
    let scale = 10_f64.powi(precision.clamp(-300, 300));
    let rounded = match method.as_str() {
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        "common" if value.is_integer() && precision >= 0 => return Ok(value.clone()),
        // The decimal text rounds the number itself, halves to even, as Python does.
        "common" if precision >= 0 => {
            let digits = usize::try_from(precision).unwrap_or(0).min(300);
            format!("{number:.digits$}").parse().unwrap_or(number)
        }
        "common" => (number * scale).round_ties_even() / scale,
        _ => return Err(wrong("method must be common, ceil or floor")),
    };
    Ok(rounded.into())
}

fn extreme(state: &State<'_, '_>, value: &Value, named: &Kwargs, least: bool) -> Result<Value, Error> {
    let path = named.get::<Option<Value>>("attribute")?;
    let sensitive = named.get::<Option<bool>>("case_sensitive")?.unwrap_or(false);
    named.assert_all_used()?;
    let mut found: Option<(Value, Value)> = None;
    for element in elements(state, value)? {
        let by = path.as_ref().map_or(Ok(element.clone()), |path| attribute(&element, path))?;
        let by = match by.as_str() {
            Some(text) if !sensitive => text.to_lowercase().into(),
            _ => by,
        };
        let better = found.as_ref().is_none_or(|(best, _)| if least { by < *best } else { by > *best });
        if better {
            found = Some((by, element));
        }
    }
    Ok(found.map(|(_, element)| element).unwrap_or_default())
}

fn dictsort(state: &State<'_, '_>, value: &Value, named: Kwargs) -> Result<Vec<Value>, Error> {
    let sensitive = named.get::<Option<bool>>("case_sensitive")?.unwrap_or(false);
    let by_value = named.get::<Option<String>>("by")?.is_some_and(|by| by == "value");
    let reverse = named.get::<Option<bool>>("reverse")?.unwrap_or(false);
    named.assert_all_used()?;
    let mut pairs = Vec::new();
    for key in elements(state, value)? {
        let value = value.get_item(&key)?;
        let sorted_by = if by_value { value.clone() } else { key.clone() };
        let folded = match sorted_by.as_str() {
            Some(text) if !sensitive => text.to_lowercase().into(),
            _ => sorted_by,
        };
        pairs.push((folded, pair(key, value)));
    }
    pairs.sort_by(|a, b| if reverse { b.0.cmp(&a.0) } else { a.0.cmp(&b.0) });
    Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
}

fn slice(state: &State<'_, '_>, value: &Value, slices: usize, fill: Option<Value>) -> Result<Vec<Value>, Error> {
    let elements = elements(state, value)?;
    if slices == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a list is cut in at least 1 slice"));
    }
    charge(state, slices.saturating_mul(ELEMENT_BYTES))?;
    let (each, longer) = (elements.len() / slices, elements.len() % slices);
    let mut from = 0;
    let cut = |index: usize| {
        let end = from + each + usize::from(index < longer);
        let mut slice = elements[from..end].to_vec();
        slice.extend(fill.clone().filter(|_| index >= longer && longer > 0));
        from = end;
        Value::from(slice)
    };
    Ok((0..slices).map(cut).collect())
}

fn batch(state: &State<'_, '_>, value: &Value, count: usize, fill: Option<Value>) -> Result<Vec<Value>, Error> {
    if count == 0 {
        return Err(wrong("a batch has at least 1 element"));
    }
    let elements = elements(state, value)?;
    let fill = fill.filter(|fill| !fill.is_none());
    let batch = |part: &[Value]| {
        let mut batch = part.to_vec();
        if let Some(fill) = &fill {
            charge(state, count.saturating_mul(ELEMENT_BYTES))?;
            batch.resize(count, fill.clone());
        }
        Ok(Value::from(batch))
    };
    elements.chunks(count).map(batch).collect()
}
