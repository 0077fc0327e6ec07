//! Models beside the main one: an auxiliary model reads the context; a draft model writes tokens.

use std::ops::Range;

/// A small model that reads the context for the main one (CacheClip, SpecPrefill). Rank 0 alone
/// runs it, on its host's threads.
/// The attention of its prompts' last rows, or of the rows that write tokens after them, tells
/// which rows of the context matter.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Auxiliary {
    /// Its name on the ranks.
    pub model: String,
    /// Its prompts, each read on its own: one a chunk for CacheClip, the whole one for SpecPrefill.
    pub prompts: Vec<AuxiliaryPrompt>,
    /// Maximum number of tokens that it writes after each prompt. The rows that write them are
    /// read, in all layers; if it writes none, the query's rows in its last layer.
    pub written: u32,
    /// Its cost, for predictions and admission.
    pub cost: AuxiliaryCost,
}

/// A small model of the same vocabulary that drafts tokens (SpecKV). Rank 0 alone runs it, on its
/// host's threads.
/// It reads the prompt and writes the likeliest tokens after it; an eviction then measures their
/// attention in the main model.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DraftModel {
    /// Its name on the ranks.
    pub model: String,
    /// Its cost, for predictions and admission.
    pub cost: AuxiliaryCost,
}

/// A prompt of an auxiliary model.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AuxiliaryPrompt {
    /// Ids from the model's own tokenizer: the text to read, then the query.
    pub ids: Vec<u32>,
    /// Number of ids at the end that are the query's.
    pub query: usize,
    /// For each row before the query's, the context rows of the main model that it stands for; may
    /// be empty.
    pub stands_for: Vec<Range<u32>>,
}

/// Cost of a model beside the main one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AuxiliaryCost {
    /// Memory of rank 0's host in bytes: weights, keys and values, and activations.
    pub memory_bytes: u64,
    /// FLOPs of a row in products with weights. A model that only reads runs up to the attention of
    /// its last layer.
    pub row_flops: u64,
    /// FLOPs of a row and a key that it sees, in one layer.
    pub pair_flops: u64,
    /// Numbers of a row that norms, rotations, activations and sums read and write.
    pub row_elementwise: u64,
    /// Bytes of the matrices that a pass reads.
    pub matrix_bytes: u64,
    /// Number of its layers.
    pub layers: u32,
}

impl Auxiliary {
    /// Readings of the main model's rows `first_row..first_row + count`, given those of each
    /// prompt, one a row before its query's.
    /// A row's reading is divided evenly among the rows that it stands for. Shares of several rows
    /// in one row add up.
    ///
    /// # Panics
    /// If the numbers of readings and rows differ, or if a row stands for a missing one: only a bug
    /// can cause that.
    pub fn mapped(&self, readings: &[Vec<f32>], first_row: u32, count: usize) -> Vec<f32> {
        assert_eq!(readings.len(), self.prompts.len(), "prompts of an auxiliary model");
        let mut mapped = vec![0.0; count];
        for (prompt, readings) in self.prompts.iter().zip(readings) {
            assert_eq!(readings.len(), prompt.stands_for.len(), "readings of an auxiliary model's rows");
            for (reading, rows) in readings.iter().zip(&prompt.stands_for) {
                for row in rows.clone() {
                    assert!(row >= first_row, "row {row} stands before the context, which begins with row {first_row}");
                    assert!(((row - first_row) as usize) < count, "row {row} is not among {count} from {first_row} on");
                    mapped[(row - first_row) as usize] += reading / rows.len() as f32;
                }
            }
        }
        mapped
    }

    /// Rows of its longest prompt.
    pub fn longest_prompt(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0)
    }

    /// Rows that it computes for its longest prompt at most: the last written token has none.
    pub fn most_rows(&self) -> usize {
        self.longest_prompt() + self.written.saturating_sub(1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_shared_and_add_up() {
        let prompt = |rows, stands_for| AuxiliaryPrompt { ids: vec![0; rows], query: 1, stands_for };
        let auxiliary = Auxiliary {
            model: "small".to_owned(),
            prompts: vec![
                // Before the context; two rows; the second half of one of them; nothing.
                prompt(5, vec![0..0, 3..5, 4..5, 5..5]),
                prompt(3, vec![6..7, 0..0]),
            ],
            written: 3,
            cost: AuxiliaryCost::default(),
        };
        assert_eq!((auxiliary.longest_prompt(), auxiliary.most_rows()), (5, 7));
        let readings = [vec![8.0, 2.0, 4.0, 16.0], vec![0.5, 32.0]];
        assert_eq!(auxiliary.mapped(&readings, 3, 5), [1.0, 5.0, 0.0, 0.5, 0.0]);
    }
}
