//! What a template may use while it is rendered.

use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::Object;
use minijinja::{Error, ErrorKind, State};

/// Bytes that a rendering makes, of texts and lists, whether they come out or not.
#[derive(Debug, Default)]
struct Made(AtomicUsize);

impl Object for Made {}

/// Bytes of an element of a list, about.
pub(super) const ELEMENT_BYTES: usize = 32;

/// Bytes that may be made in all, beside those that the values have.
const MADE_BYTES: usize = 64 << 20;

/// How many times the bytes of its values a rendering may make.
const MADE_FACTOR: usize = 64;

/// Name of the global that has the bytes of the values.
pub(super) const GIVEN: &str = "__given_bytes";

/// Counts bytes that are about to be made.
///
/// # Errors
/// They are more than a rendering may make.
pub(super) fn charge(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    let made = state.get_or_set_temp_object("tributary-made", Made::default);
    let given = state.lookup(GIVEN).and_then(|given| given.as_usize()).unwrap_or(0);
    let before = made.0.fetch_add(bytes.min(usize::MAX >> 1), Ordering::Relaxed);
    if before.saturating_add(bytes) > given.saturating_mul(MADE_FACTOR).saturating_add(MADE_BYTES) {
        return Err(Error::new(ErrorKind::OutOfFuel, "it makes more text than a template may"));
    }
    Ok(())
}

/// A text that is counted.
///
/// # Errors
/// As [`charge`].
pub(super) fn made(state: &State<'_, '_>, text: String) -> Result<String, Error> {
    charge(state, text.len()).map(|()| text)
}

/// An error of a template's own making.
pub(super) fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
