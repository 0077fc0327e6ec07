//! The outcome of one check, and the small helpers by which all checks come to it.

/// The outcome of one check: the claim that does not hold, in words.
pub(super) type Check = std::result::Result<(), String>;

/// Rows of all ranks but one.
pub(super) fn others(rows: &[usize], rank: usize) -> usize {
    rows.iter().sum::<usize>() - rows[rank]
}

/// A result whose error is words.
pub(super) fn said<T>(result: crate::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// Holds where as many parts came as should.
pub(super) fn count_of(what: &str, found: usize, wanted: usize) -> Check {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what}: {found} parts, not {wanted}"))
}
