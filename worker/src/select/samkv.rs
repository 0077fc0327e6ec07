//! SAM-KV: of every document the first rows, the last rows and the blocks between them that the query attends to most; a block's score is the
//! sum of its rows'. All other rows are dropped. Exact where nothing is dropped and θ is 1.

use tributary_protocol::SamKv as Parameters;

use super::selector::{Candidates, Need, Selector};
use crate::error::Result;

/// One probe over sinks and tails, which reads every document.
pub struct SamKv {
    /// What is kept.
    pub parameters: Parameters,
}

impl Selector for SamKv {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Result<Need> {
        if evidence.is_empty() {
            return Ok(Need::Probe);
        }
        let mut rows: Vec<u32> =
            candidates.chunks.iter().flat_map(|&chunk| self.kept(chunk, candidates.first_row, evidence)).collect();
        rows.sort_unstable();
        Ok(Need::Chosen { rows, scores: evidence.to_vec() })
    }
}

impl SamKv {
    /// The rows that are kept of a document, given by its first row and length.
    fn kept(&self, (first, length): (u32, usize), first_row: u32, scores: &[f32]) -> Vec<u32> {
        let from = (first - first_row) as usize;
        let blocks = self.parameters.blocks_of(length);
        let score = |block: usize| -> f32 { scores[from..][blocks[block].clone()].iter().sum() };
        let mut best: Vec<usize> = (0..blocks.len()).collect();
        best.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
        best.truncate(self.parameters.blocks);
        let always = self.parameters.always_of(length).into_iter();
        always
            .chain(best.into_iter().map(|block| blocks[block].clone()))
            .flatten()
            .map(|row| first + row as u32)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::SamKvVariant;

    use super::*;
    use crate::kit;

    #[test]
    fn a_document_keeps_its_ends_and_its_best_blocks() {
        let parameters = Parameters { variant: SamKvVariant::Small, blocks: 1, theta: 0.9 };
        let plan = tributary_protocol::Plan { budget: 9, ..kit::plan(2, &[20, 45], 3, 1) };
        let mut candidates = Candidates::new(&plan, &[0, 1]);
        candidates.chunks = vec![(2, 20), (22, 45)];
        // Blocks of the second document: rows 8 to 15, 16 to 23 and 24 to 28 of it.
        let mut scores = vec![0.0; 65];
        scores[20 + 17] = 0.5;
        scores[20 + 26] = 0.4;
        scores[20 + 28] = 0.2;
        let mut selector = SamKv { parameters };
        assert_eq!(selector.next(&candidates, &[]).expect("a need"), Need::Probe);
        let Need::Chosen { rows, .. } = selector.next(&candidates, &scores).expect("an answer") else {
            panic!("it chooses rows");
        };
        let expected: Vec<u32> = (2..22).chain(22..30).chain(22 + 24..22 + 45).collect();
        assert_eq!(rows, expected, "all of the short document; ends and last block of the long one");
        scores[20 + 9] = 0.7;
        let Need::Chosen { rows, .. } = selector.next(&candidates, &scores).expect("an answer") else {
            panic!("it chooses rows");
        };
        assert_eq!(rows, (2..22).chain(22..38).chain(22 + 29..22 + 45).collect::<Vec<u32>>());
    }
}
