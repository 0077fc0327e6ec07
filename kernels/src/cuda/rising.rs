//! Keys whose rotary positions do not rise with their causal order, such as those of chunks at
//! positions of their own. Of these a query row with a window sees more than two runs, so they are
//! cut into parts in which positions rise.

use std::ops::Range;

use crate::error::Result;
use crate::{Keys, PAD, Positions, Rule};

/// The keys of all blocks in parts, in their order, each of which rises in order and position; of
/// queries that see other segments, each has one segment.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub(super) fn rising_parts(keys: &[Keys], rule: Rule) -> Result<Vec<Keys>> {
    let mut parts = Vec::new();
    for block in keys {
        for run in rising_runs(&block.at, rule) {
            let of = |x: &candle_core::Tensor| x.narrow(0, run.start, run.len());
            let rows: Vec<u32> = (run.start as u32..run.end as u32).collect();
            parts.push(Keys { k: of(&block.k)?, v: of(&block.v)?, at: block.at.select(&rows) });
        }
    }
    Ok(parts)
}

fn rising_runs(at: &Positions, rule: Rule) -> Vec<Range<usize>> {
    let (order, segment, rope) = (at.order(), at.segment(), at.rope());
    let (mut runs, mut start, mut last) = (Vec::new(), 0, None);
    for row in (0..at.len()).filter(|&row| order[row] != PAD) {
        let falls = last.is_some_and(|last: usize| {
            let is_another = rule == Rule::Others && segment[row] != segment[last];
            order[row] < order[last] || rope[row] < rope[last] || is_another
        });
        if falls {
            runs.push(start..row);
            start = row;
        }
        last = Some(row);
    }
    if start < at.len() {
        runs.push(start..at.len());
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SHARED;

    #[test]
    fn runs_end_where_something_falls() {
        let rope = vec![0, 1, 2, 0, 1, 9, 9, 3];
        let at = Positions::new(rope, vec![0, 1, 2, 3, 4, 5, PAD, 6], vec![SHARED, SHARED, 0, 0, 0, 0, 0, 0]);
        assert_eq!(rising_runs(&at, Rule::Causal), [0..3, 3..7, 7..8]);
        assert_eq!(rising_runs(&at, Rule::Others), [0..2, 2..3, 3..7, 7..8]);
        for rows in [0, 3] {
            let runs = rising_runs(&Positions::run(5, rows), Rule::Others);
            assert_eq!((runs.len(), runs.first().map_or(0, Range::len)), (rows.min(1), rows));
        }
    }
}
