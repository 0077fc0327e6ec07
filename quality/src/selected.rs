//! Which rows of a context a method selected, in few letters.

use serde::{Deserialize, Serialize};
use tributary_protocol::Plan;

/// Rows of a context by their numbers from its first token on, chunks in the request's own order:
/// ranges, ascending, each from its first row to the one after its last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rows(Vec<[u32; 2]>);

impl Rows {
    /// These rows, ascending.
    pub fn of(rows: impl Iterator<Item = u32>) -> Self {
        let mut ranges: Vec<[u32; 2]> = Vec::new();
        for row in rows {
            match ranges.last_mut() {
                Some([_, end]) if *end == row => *end += 1,
                _ => ranges.push([row, row + 1]),
            }
        }
        Self(ranges)
    }

    /// The rows that a request's plan has recomputed, as tokens of its context: rows around the
    /// tokens of a chunk are none.
    pub fn of_context(plan: &Plan, selected: &[u32]) -> Self {
        let (mut row, mut token, mut rest) = (plan.prefix_tokens() as u32, 0, selected);
        let mut found = Vec::new();
        for chunk in &plan.chunks {
            let (first, tokens, end) =
                (row + chunk.head_rows() as u32, chunk.ids.len() as u32, row + chunk.rows() as u32);
            let (own, after) = rest.split_at(rest.partition_point(|&selected| selected < end));
            let inside = own.iter().filter(|&&selected| (first..first + tokens).contains(&selected));
            found.extend(inside.map(|selected| token + selected - first));
            (row, token, rest) = (end, token + tokens, after);
        }
        Self::of(found.into_iter())
    }

    /// The ranges.
    pub fn ranges(&self) -> &[[u32; 2]] {
        &self.0
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.0.iter().map(|[first, end]| (end - first) as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_kept_as_ranges() {
        let rows = Rows::of([0, 1, 2, 5, 7, 8].into_iter());
        assert_eq!((rows.ranges(), rows.len(), rows.is_empty()), (&[[0, 3], [5, 6], [7, 9]][..], 6, false));
        let text = serde_json::to_string(&rows).unwrap();
        assert_eq!(text, "[[0,3],[5,6],[7,9]]");
        assert_eq!(serde_json::from_str::<Rows>(&text).unwrap(), rows);
        assert!(Rows::of(std::iter::empty()).is_empty());
    }
}
