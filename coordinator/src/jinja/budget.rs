//! Limits on a template's memory while it is rendered.

use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::Object;
use minijinja::{Error, ErrorKind, State};

/// Bytes that a rendering makes, of texts and lists, whether they are printed or not.
#[derive(Debug, Default)]
struct Made(AtomicUsize);

impl Object for Made {}

/// Approximate bytes of an element of a list.
pub(super) const ELEMENT_BYTES: usize = 32;

/// Maximum bytes that may be made in total, in addition to those of the values.
const MADE_BYTES: usize = 64 << 20;

/// Maximum bytes that a rendering may make, as a multiple of the bytes of its values.
const MADE_FACTOR: usize = 64;

/// Name of the global with the number of bytes of the values.
pub(super) const GIVEN: &str = "__given_bytes";

/// Counts bytes that are about to be made.
///
/// # Errors
/// Returns an error if a rendering may not make that many.
pub(super) fn charge(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    let made = state.get_or_set_temp_object("tributary-made", Made::default);
    let given = state.lookup(GIVEN).and_then(|given| given.as_usize()).unwrap_or(0);
    let before = made.0.fetch_add(bytes.min(usize::MAX >> 1), Ordering::Relaxed);
    if before.saturating_add(bytes) > given.saturating_mul(MADE_FACTOR).saturating_add(MADE_BYTES) {
        return Err(Error::new(ErrorKind::OutOfFuel, "it makes more text than a template may"));
    }
    Ok(())
}

/// Counts a text, and returns it.
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
