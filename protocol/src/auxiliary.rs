//! Auxiliary models: a plan's entry for a model that reads the context for the main one.

use std::ops::Range;

/// A model beside the main one, which rank 0 alone runs: the attention of its last rows says which rows of the context matter
/// (CacheClip).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Auxiliary {
    /// The name that the ranks know it by.
    pub model: String,
    /// The prompt as its own tokenizer encodes it: context, then query.
    pub ids: Vec<u32>,
    /// Number of ids at the end that are the query's.
    pub query: usize,
    /// For each row before the query's, the main model's context rows that it stands for; none where it stands for none.
    pub stands_for: Vec<Range<u32>>,
    /// Bytes that it takes on rank 0: weights, keys and values, and activations. 0 where they are in another memory than that of
    /// requests.
    pub memory_bytes: u64,
}

impl Auxiliary {
    /// The readings of the main model's rows `first_row..first_row + count`, given a reading of each row before the query's: a
    /// row's reading is shared by the rows that it stands for, and a row that several stand for has the sum of its shares.
    ///
    /// # Panics
    /// If there are other readings than rows, or a row stands for one that is not there: only a bug can do that.
    pub fn mapped(&self, readings: &[f32], first_row: u32, count: usize) -> Vec<f32> {
        assert_eq!(readings.len(), self.stands_for.len(), "readings of an auxiliary model's rows");
        let mut mapped = vec![0.0; count];
        for (reading, rows) in readings.iter().zip(&self.stands_for) {
            for row in rows.clone() {
                assert!(row >= first_row, "row {row} stands before the context, which begins with row {first_row}");
                assert!(((row - first_row) as usize) < count, "row {row} is not among {count} from {first_row} on");
                mapped[(row - first_row) as usize] += reading / rows.len() as f32;
            }
        }
        mapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_shared_and_add_up() {
        let auxiliary = Auxiliary {
            model: "small".to_owned(),
            ids: vec![0; 6],
            query: 1,
            // Before the context; two rows; the second half of one of them; nothing; one row.
            stands_for: vec![0..0, 3..5, 4..5, 5..5, 6..7],
            memory_bytes: 0,
        };
        assert_eq!(auxiliary.mapped(&[8.0, 2.0, 4.0, 16.0, 0.5], 3, 5), [1.0, 5.0, 0.0, 0.5, 0.0]);
    }
}
