//! Rows of a prompt with pictures: a row of a picture starts from its feature in the place of an
//! embedding.

use tributary_kernels::{cast, contiguous, gather, join};

use super::{Features, Model, Rows};
use crate::error::{Error, Result};
use crate::visual::{PictureRow, Visual};

/// Rows that start from tokens, of which those at the places of `pictures` start from their
/// features instead. A picture's mark stands at each of these places. Places rise.
///
/// # Errors
/// Returns an error if a place or a feature is beyond the last, if places do not rise, or if
/// features are of another width than the model's rows.
pub fn with_pictures(model: &dyn Model, rows: Rows, features: &Features, pictures: &[PictureRow]) -> Result<Rows> {
    if pictures.is_empty() {
        return Ok(rows);
    }
    let (count, hidden) = features.features.dims2()?;
    let wrong = |what: String| Err(Error::Input(what));
    if hidden != model.config().hidden {
        return wrong(format!("features of width {hidden}; the model's rows have {}", model.config().hidden));
    }
    if let Some(row) = pictures.iter().find(|row| row.place as usize >= rows.len() || row.feature as usize >= count) {
        let (PictureRow { place, feature }, rows) = (row, rows.len());
        return wrong(format!("row {place} of {rows} starts from feature {feature} of {count}: there is no such row"));
    }
    if !pictures.is_sorted_by(|one, next| one.place < next.place) {
        return wrong("places of rows of pictures do not rise".to_owned());
    }
    // All rows that may be taken, one below the other: those of the tokens, then the features.
    let wanted: Vec<u32> = pictures.iter().map(|row| row.feature).collect();
    let of_pictures = cast(&gather(&contiguous(&features.features)?, &wanted)?, rows.hidden.dtype())?;
    let mut from: Vec<u32> = (0..rows.len() as u32).collect();
    for (feature, row) in (0..).zip(pictures) {
        from[row.place as usize] = rows.len() as u32 + feature;
    }
    let hidden = gather(&join(&[&contiguous(&rows.hidden)?, &of_pictures], 0)?, &from)?;
    let visual = Visual::new(pictures, features.levels.clone());
    Ok(Rows::fresh(hidden).with_visual(visual))
}

#[cfg(test)]
mod tests;
