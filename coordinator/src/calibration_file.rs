//! Files of a model's calibrations: JSON beside its config, with the name and version of a format.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, PlanError, Result};

/// Maximum bytes of a calibration.
const MOST_BYTES: u64 = 64 << 20;

/// A calibration of the format `schema`, which `schema_of` finds in it; `None` without a file.
///
/// # Errors
/// Returns an error for a file that cannot be read, or of another format.
pub fn read<T: DeserializeOwned>(path: &Path, (schema, schema_of): (&str, fn(&T) -> &str)) -> Result<Option<T>> {
    let text = match tributary_system::file::regular_text(path, MOST_BYTES) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(PlanError::Unreadable { path: path.to_owned(), cause }.into()),
        Ok(text) => text,
    };
    let found: T = serde_json::from_str(&text).map_err(|error| Error::Json {
        path: path.to_owned(),
        line: error.line(),
        column: error.column(),
        cause: error.to_string(),
    })?;
    match schema_of(&found) {
        own if own == schema => Ok(Some(found)),
        own => Err(wrong(path, format!("its schema is `{own}`, not `{schema}`"))),
    }
}

/// The error of a file with an impossible value.
pub fn wrong(path: &Path, cause: String) -> Error {
    Error::Json { path: path.to_owned(), line: 1, column: 1, cause }
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// Returns an error if the system fails to write it.
pub fn write(path: &Path, calibration: &impl Serialize) -> std::io::Result<()> {
    let text = serde_json::to_string_pretty(calibration).map_err(std::io::Error::other)?;
    tributary_system::file::write_whole(path, format!("{text}\n").as_bytes())
}
