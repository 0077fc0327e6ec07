//! SAM-KV: of every document the first rows, the last rows and the blocks between them that the
//! query attends to most. A block's score is the sum of its rows'. All other rows are dropped.
//! Kept rows are recomputed and mixed with their cached keys and values. Exact where nothing is
//! dropped and θ is 1.

use std::ops::Bound::Included;

use super::prophetkv;
use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{Kind, MethodOption, Options, Usual};
use crate::prefill::{Evidence, Layers, Prefill, Selection};
use crate::selector::{Candidates, Need, Selector};
use crate::terms::{Layout, SamKv, SamKvVariant};

static VARIANT: MethodOption = MethodOption {
    key: "variant",
    value: "small|large",
    kind: Kind::Word(SamKvVariant::NAMES),
    usual: Usual::Value("large"),
    help: "Rows kept at a document's head, at its tail and in a block: large 64, 128, 64; small 8, 16, 8",
};

static BLOCKS: MethodOption = MethodOption {
    key: "blocks",
    value: "N",
    kind: Kind::Count(1..=usize::MAX),
    usual: Usual::Value("2"),
    help: "Blocks kept of every document besides its head and its tail",
};

static THETA: MethodOption = MethodOption {
    key: "theta",
    value: "SHARE",
    kind: Kind::Number(Included(0.0), Included(1.0)),
    usual: Usual::Value("0.9"),
    help: "Share of recomputed keys and values, 0 to 1; the rest stays as cached",
};

/// The declaration.
pub static SAMKV: Method = Method {
    name: "samkv",
    summary: "head, tail and best blocks of every document, mixed with cached keys and values; the rest is dropped",
    source: "SAM-KV (Cao et al. 2025)",
    claim: Claim::Approximate {
        exact_where: "where nothing is dropped, at theta 1",
        exact_with: Some(":blocks=1000000:theta=1"),
    },
    cost: "chunks, M rows up to the last scored layer, then the kept rows of every document and M rows; the rest is not seen",
    ratio: None,
    options: &[&VARIANT, &BLOCKS, &THETA],
    requires: None,
    default_of: &[],
    samples: &["samkv", "samkv:variant=small", "samkv:variant=small:blocks=1:theta=0.5"],
    prefill,
    selector: Some(selector),
};

/// The layers from depth 28/32 on: 28..32 of 32, 3..4 of 4.
fn prefill(options: &mut Options, model: ModelFacts) -> Result<Prefill, InvalidOption> {
    let parameters =
        SamKv { variant: options.usual(&VARIANT), blocks: options.usual(&BLOCKS), theta: options.usual(&THETA) };
    let layers = Layers::Some(28 * model.layers / 32, model.layers).reaching(model);
    let evidence = Evidence { layers, sparse: Some(parameters), ..prophetkv::evidence(Layout::Global) };
    Ok(Prefill::Chunks(Selection::Evidence(evidence)))
}

fn selector(selection: Selection) -> Box<dyn Selector> {
    let Selection::Evidence(Evidence { sparse: Some(parameters), .. }) = selection else {
        unreachable!("samkv resolves to what is kept of documents, not to {selection:?}");
    };
    Box::new(Blocks { parameters })
}

/// One probe over sinks and tails, which reads every document.
struct Blocks {
    /// Sizes of the kept parts.
    parameters: SamKv,
}

impl Selector for Blocks {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Need {
        if evidence.is_empty() {
            return Need::Probe;
        }
        let mut rows: Vec<u32> =
            candidates.chunks.iter().flat_map(|&chunk| self.kept(chunk, candidates.first_row, evidence)).collect();
        rows.sort_unstable();
        Need::Chosen { rows, scores: evidence.to_vec() }
    }
}

impl Blocks {
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
    use super::*;
    use crate::selector::TextHints;

    #[test]
    fn a_document_keeps_its_ends_and_its_best_blocks() {
        let parameters = SamKv { variant: SamKvVariant::Small, blocks: 1, theta: 0.9 };
        let candidates = Candidates {
            first_row: 2,
            context: 65,
            rows: (2..67).collect(),
            chunks: vec![(2, 20), (22, 45)],
            budget: 9,
            measured: 0,
            query: 3,
            seed: 0,
            auxiliary: Vec::new(),
            text: TextHints::default(),
        };
        // Blocks of the second document: rows 8 to 15, 16 to 23 and 24 to 28 of it.
        let mut scores = vec![0.0; 65];
        scores[20 + 17] = 0.5;
        scores[20 + 26] = 0.4;
        scores[20 + 28] = 0.2;
        let mut selector = Blocks { parameters };
        assert_eq!(selector.next(&candidates, &[]), Need::Probe);
        let Need::Chosen { rows, .. } = selector.next(&candidates, &scores) else {
            panic!("it chooses rows");
        };
        let expected: Vec<u32> = (2..22).chain(22..30).chain(22 + 24..22 + 45).collect();
        assert_eq!(rows, expected, "all of the short document; ends and last block of the long one");
        scores[20 + 9] = 0.7;
        let Need::Chosen { rows, .. } = selector.next(&candidates, &scores) else {
            panic!("it chooses rows");
        };
        assert_eq!(rows, (2..22).chain(22..38).chain(22 + 29..22 + 45).collect::<Vec<u32>>());
    }
}
