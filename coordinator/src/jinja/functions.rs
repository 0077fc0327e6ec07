//! Functions that templates may call, and those that `expression` substitutes for operators.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Object, ObjectRepr, Rest, Value, from_args};
use minijinja::{Environment, Error, ErrorKind, State};
use std::sync::Arc;

use super::budget::wrong;
use super::python::{Tuple, text};
use super::{arithmetic, methods};
use crate::date;

/// A template's own message when it refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

/// Adds them to an environment, at a moment in seconds after the beginning of 1970; now where
/// absent.
pub(super) fn add(environment: &mut Environment<'_>, unix_s: Option<u64>) {
    environment.add_function("raise_exception", |message: &Value| {
        let refusal = Refusal(text(message));
        Err::<Value, _>(Error::new(ErrorKind::InvalidOperation, refusal.0.clone()).with_source(refusal))
    });
    environment.add_function("strftime_now", move |pattern: &str| {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let unix_s = unix_s.unwrap_or_else(now);
        date::local(pattern, unix_s).map_err(|error| wrong(error.to_string()))
    });
    environment.add_function("cycler", |values: Rest<Value>| Value::from_object(Cycler::of(values.0)));
    environment.add_function("joiner", |separator: Option<String>| {
        Value::from_object(Joiner { separator: separator.unwrap_or_else(|| ", ".into()), used: AtomicUsize::new(0) })
    });
    environment.add_function("__assigned", |_namespace: Value, value: Value| value);
    environment.add_function("__math", arithmetic::math);
    environment.add_function("__cat", arithmetic::cat);
    environment.add_function("__slice", arithmetic::slice);
    environment.add_function("__tuple", |values: Vec<Value>| Value::from_object(Tuple(values)));
    for (function, name) in [("__items", "items"), ("__keys", "keys"), ("__values", "values"), ("__get", "get")] {
        environment.add_function(function, move |state: &State<'_, '_>, value: &Value, args: Rest<Value>| {
            methods::of_a_dict(state, name, value, &args.0)
        });
    }
}

/// A cycle of values.
#[derive(Debug)]
struct Cycler {
    values: Vec<Value>,
    place: AtomicUsize,
}

impl Cycler {
    fn of(values: Vec<Value>) -> Self {
        Self { values, place: AtomicUsize::new(0) }
    }

    fn current(&self) -> Value {
        let place = self.place.load(Ordering::Relaxed) % self.values.len().max(1);
        self.values.get(place).cloned().unwrap_or_default()
    }
}

impl Object for Cycler {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(self: &Arc<Self>, _state: &State<'_, '_>, method: &str, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        let current = self.current();
        match method {
            "next" => _ = self.place.fetch_add(1, Ordering::Relaxed),
            "reset" => self.place.store(0, Ordering::Relaxed),
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        }
        Ok(current)
    }
}

/// An empty text the first time, then its separator.
#[derive(Debug)]
struct Joiner {
    separator: String,
    used: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        let first = self.used.fetch_add(1, Ordering::Relaxed) == 0;
        Ok(Value::from(if first { "" } else { &self.separator }))
    }
}
