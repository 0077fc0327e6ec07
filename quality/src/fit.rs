//! Largest size of something that fits into a length.

use crate::error::Result;

/// Steps after which the rest is halved: tokens grow nearly as sizes do, and a few steps along a
/// line find the end.
const STEPS: usize = 12;

/// A size and its tokens.
#[derive(Clone, Copy)]
struct Found {
    size: usize,
    tokens: usize,
}

/// Result for the sizes from `least` to `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The largest that fits, or one near to it where tokens do not grow with every size.
    Largest(usize),
    /// The least one does not fit: its tokens.
    TooShort(usize),
}

/// The largest size between two whose tokens are `limit` at most.
///
/// # Errors
/// Fails as `tokens` does.
pub fn largest(
    (least, most): (usize, usize),
    limit: usize,
    mut tokens: impl FnMut(usize) -> Result<usize>,
) -> Result<Fit> {
    let mut at = |size| tokens(size).map(|tokens| Found { size, tokens });
    let mut low = at(least)?;
    if low.tokens > limit {
        return Ok(Fit::TooShort(low.tokens));
    }
    let mut high: Option<Found> = None;
    for step in 0.. {
        let next = match high {
            Some(high) if high.size - low.size <= 1 => break,
            Some(high) if step > STEPS => low.size.midpoint(high.size),
            Some(high) => {
                let (room, all) = (limit - low.tokens, high.tokens - low.tokens);
                let along = (high.size - low.size) as u128 * room as u128 / all as u128;
                (low.size + along as usize).clamp(low.size + 1, high.size - 1)
            }
            None if low.size >= most => break,
            None => (low.size * 2 + 8).min(most),
        };
        let found = at(next)?;
        if found.tokens <= limit {
            low = found;
        } else {
            high = Some(found);
        }
    }
    Ok(Fit::Largest(low.size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_fits_is_found_in_a_few_steps() {
        let mut steps = 0;
        let mut at = |slope: usize, limit| {
            largest((1, 1_000_000), limit, |size| {
                steps += 1;
                Ok(100 + slope * size + size % 3)
            })
            .unwrap()
        };
        assert_eq!(at(7, 128 << 10), Fit::Largest(18_710));
        assert_eq!(at(7, 100), Fit::TooShort(108));
        assert_eq!(at(7, 108), Fit::Largest(1));
        assert_eq!(at(1, usize::MAX), Fit::Largest(1_000_000));
        assert!(steps < 70, "{steps}");
    }

    #[test]
    fn a_crooked_line_ends_too() {
        let found = largest((1, 1 << 30), 1 << 30, |size| Ok(size * size)).unwrap();
        assert_eq!(found, Fit::Largest(1 << 15));
    }
}
