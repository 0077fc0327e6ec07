//! Models beside the main one: a plan's entry for one that reads the context for it, and for one that writes tokens ahead of it.

use std::ops::Range;

/// A model beside the main one, which rank 0 alone runs, on its host's threads: the attention of the last rows of its prompts says which
/// rows of the context matter (CacheClip).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Auxiliary {
    /// The name that the ranks know it by.
    pub model: String,
    /// Its prompts, each read on its own: a chunk each for CacheClip.
    pub prompts: Vec<AuxiliaryPrompt>,
    /// What it costs, for predictions and admission.
    pub cost: AuxiliaryCost,
}

/// A small model of the same vocabulary, which rank 0 alone runs, on its host's threads: it reads the prompt and writes tokens behind it, each the
/// likeliest, to which the main model then listens (SpecKV).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DraftModel {
    /// The name that the ranks know it by.
    pub model: String,
    /// What it costs, for predictions and admission.
    pub cost: AuxiliaryCost,
}

/// A prompt of an auxiliary model.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AuxiliaryPrompt {
    /// The prompt as the model's own tokenizer encodes it: what is read, then the query.
    pub ids: Vec<u32>,
    /// Number of ids at the end that are the query's.
    pub query: usize,
    /// For each row before the query's, the main model's context rows that it stands for; none where it stands for none.
    pub stands_for: Vec<Range<u32>>,
}

/// What a model beside the main one costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AuxiliaryCost {
    /// Bytes that it takes of the memory of rank 0's host: weights, keys and values, and activations.
    pub memory_bytes: u64,
    /// FLOPs of a row in products with weights, as far as the model runs: one that reads, up to the attention of its last layer.
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
    /// The readings of the main model's rows `first_row..first_row + count`, given those of each prompt, one a row before its query's: a
    /// row's reading is shared by the rows that it stands for, and a row that several stand for has the sum of its shares.
    ///
    /// # Panics
    /// If there are other readings than rows, or a row stands for one that is not there: only a bug can do that.
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
            cost: AuxiliaryCost::default(),
        };
        assert_eq!(auxiliary.longest_prompt(), 5);
        let readings = [vec![8.0, 2.0, 4.0, 16.0], vec![0.5, 32.0]];
        assert_eq!(auxiliary.mapped(&readings, 3, 5), [1.0, 5.0, 0.0, 0.5, 0.0]);
    }
}
