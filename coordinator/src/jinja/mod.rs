//! Jinja as Hugging Face's tokenizers run it: blocks trimmed, `break` and `continue`, the
//! `generation` tag, and Python's values.
//!
//! The parser and the machine are minijinja's. Its differences from Jinja are corrected in three
//! places: the source before it is parsed (`source`, `expression`), the behaviour of values
//! (`arithmetic`, `methods`, `filters`, `texts`, `json`, `printf`), and their printing (`python`).
//! A template is not trusted: `budget` bounds its memory, fuel its running time, and a stack of its
//! own its depth. Not supported: `varargs` and `kwargs` of macros, `include`, `import`, `lipsum`.

mod arithmetic;
mod budget;
mod expression;
mod filters;
mod functions;
mod json;
mod methods;
mod printf;
mod python;
mod source;
mod texts;
mod token;

use minijinja::{Environment, ErrorKind, State, Value};
use serde_json::{Map, Value as Json};

use self::functions::Refusal;

/// Stack of the thread that renders: parsers and macros recurse.
const STACK_BYTES: usize = 256 << 20;

/// Maximum depth of templates' macro calls.
const CALLS: usize = 200;

/// Steps of any rendering, and additional steps for each byte of its values.
const STEPS: u64 = 20_000_000;
const STEPS_PER_BYTE: u64 = 8;

/// Reason for a missing text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The template itself refuses these values by `raise_exception`, with its own message.
    Refused(String),
    /// The template cannot be parsed, or fails with these values.
    Broken(String),
}

/// The text of a template with these values, now.
///
/// # Errors
/// Returns a [`Failure`] if the template refuses the values or is broken.
#[cfg(test)]
pub(crate) fn render(source: &str, values: &Map<String, Json>) -> Result<String, Failure> {
    render_at(source, values, None)
}

/// The same at a moment, given in seconds after the beginning of 1970; now where absent.
///
/// # Errors
/// As `render`.
pub(crate) fn render_at(source: &str, values: &Map<String, Json>, unix_s: Option<u64>) -> Result<String, Failure> {
    let broken = |cause: String| Failure::Broken(cause);
    let source = source::adapted(source).map_err(broken)?;
    let on_stack = std::thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
    std::thread::scope(|scope| {
        let thread = on_stack.spawn_scoped(scope, || rendered(&source, values, unix_s));
        let thread = thread.map_err(|error| broken(format!("no thread to render it: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(broken("the template engine failed".into())))
    })
}

fn rendered(source: &str, values: &Map<String, Json>, unix_s: Option<u64>) -> Result<String, Failure> {
    let mut environment = environment(unix_s);
    let given: usize = values.values().map(bytes).sum();
    environment.set_fuel(Some(STEPS + STEPS_PER_BYTE * given as u64));
    environment.add_global(budget::GIVEN, given);
    let made =
        environment.template_from_str(source).and_then(|template| template.render(Value::from_serialize(values)));
    made.map_err(|error| failure(&error))
}

fn environment<'source>(unix_s: Option<u64>) -> Environment<'source> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_recursion_limit(CALLS);
    environment.set_unknown_method_callback(methods::method);
    environment.set_formatter(|out, state: &State<'_, '_>, value| {
        let text = python::text(value);
        budget::charge(state, text.len())?;
        out.write_str(&text).map_err(minijinja::Error::from)
    });
    filters::add(&mut environment);
    functions::add(&mut environment, unix_s);
    environment
}

/// Approximate bytes of the texts in a value.
fn bytes(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(values) => values.iter().map(bytes).sum(),
        Json::Object(values) => values.iter().map(|(key, value)| key.len() + bytes(value)).sum(),
        _ => 8,
    }
}

fn failure(error: &minijinja::Error) -> Failure {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = cause {
        if let Some(Refusal(message)) = inner.downcast_ref::<Refusal>() {
            return Failure::Refused(message.clone());
        }
        cause = inner.source();
    }
    let line = error.line().map_or_else(String::new, |line| format!("line {line}: "));
    let detail = error.detail().map_or_else(String::new, |detail| format!(": {detail}"));
    let words = match error.kind() {
        ErrorKind::OutOfFuel => "it takes more steps, or makes more text, than a template may".to_owned(),
        kind => format!("{kind}{detail}"),
    };
    Failure::Broken(format!("{line}{words}"))
}

#[cfg(test)]
mod tests;
