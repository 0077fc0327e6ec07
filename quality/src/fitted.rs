//! Samples that are as long as their cell may be.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::fit::{Fit, largest};
use crate::suite::{Cell, Measure, Sample};

/// A sample of fewer than this share of its length, in twentieths, is made larger: other documents
/// may be shorter than the first sample's.
const FULL: usize = 19;

/// Size of the contexts of each cell: the largest with which its first sample fits.
#[derive(Debug, Default)]
pub struct Sizes(RefCell<HashMap<Cell, usize>>);

/// A task with a sample for every number and size, from the least size to the largest.
pub trait BySize {
    /// The least and the largest size of a number's context.
    fn bounds(&self, number: usize) -> (usize, usize);

    /// The sample of a number, with a context of a size.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails.
    fn made(&self, number: usize, size: usize) -> Result<Sample>;
}

impl Sizes {
    /// The sample of a number in a cell: of the cell's size, or smaller where that does not fit, or
    /// larger where much more would.
    ///
    /// # Errors
    /// Returns an error if the smallest size does not fit, and as [`BySize::made`] does.
    pub fn fitted(&self, cell: &Cell, number: usize, measure: &Measure<'_>, of: &dyn BySize) -> Result<Sample> {
        let length = cell.length.unwrap_or(usize::MAX);
        let (least, most) = of.bounds(number);
        let mut size = self.size(cell, measure, of)?.max(least);
        loop {
            let sample = of.made(number, size)?;
            let tokens = measure.length(&sample)?;
            if tokens <= length && (tokens as u128 * 20 >= length as u128 * FULL as u128 || size >= most) {
                return Ok(sample);
            }
            if tokens <= length {
                let larger = largest((size, most), length, |size| measure.length(&of.made(number, size)?))?;
                return of.made(number, if let Fit::Largest(larger) = larger { larger } else { size });
            }
            if size == least {
                return Err(too_short(cell, tokens, sample.answer_tokens));
            }
            let share = size as u128 * (tokens - length) as u128 / tokens as u128;
            size = size.saturating_sub((share as usize).max(1)).max(least);
        }
    }

    fn size(&self, cell: &Cell, measure: &Measure<'_>, of: &dyn BySize) -> Result<usize> {
        if let Some(&size) = self.0.borrow().get(cell) {
            return Ok(size);
        }
        let mut answer_tokens = 0;
        let at = |size| {
            let sample = of.made(0, size)?;
            answer_tokens = sample.answer_tokens;
            measure.length(&sample)
        };
        let size = match largest(of.bounds(0), cell.length.unwrap_or(usize::MAX), at)? {
            Fit::Largest(size) => size,
            Fit::TooShort(tokens) => return Err(too_short(cell, tokens, answer_tokens)),
        };
        self.0.borrow_mut().insert(cell.clone(), size);
        Ok(size)
    }
}

/// A length into which the least of a task does not fit.
pub fn too_short(cell: &Cell, tokens: usize, answer_tokens: usize) -> Error {
    let (task, length) = (&cell.task, cell.length.unwrap_or_default());
    Error::usage(format!(
        "--lengths {length}: {task} needs {tokens} tokens at least, {answer_tokens} of them for the answer"
    ))
}
