//! Equality of results: the largest error seen, selections that may differ at the cut, and naive
//! reuse implemented once more, directly from its definition.

use candle_core::Tensor;
use tributary_kernels::{Kernels, Keys, Partial, Positions};
use tributary_model::{Attention, Model, Progress, Qkv, Result};
use tributary_protocol::{Outcome, Plan};

use crate::{logits, relative_error};

/// Tolerance of equality in f32.
pub const TOLERANCE: f64 = 1e-4;

/// Remembers the largest error of an invariant and prints it at the end.
pub struct Largest {
    name: &'static str,
    error: f64,
}

impl Largest {
    /// Starts at no error.
    pub fn new(name: &'static str) -> Self {
        Self { name, error: 0.0 }
    }

    /// Fails beyond the tolerance, remembers otherwise.
    ///
    /// # Panics
    /// If the error is not below [`TOLERANCE`].
    pub fn check(&mut self, error: f64, what: &str) {
        assert!(error < TOLERANCE, "{}: {what}: {error:e}", self.name);
        self.error = self.error.max(error);
    }
}

impl Largest {
    /// Compares an answer with that of another world or owner: the same order of chunks, rows kept
    /// and selected, logits and tokens. Rows at the cut of a selection may be others; then the
    /// answers are not compared.
    ///
    /// # Panics
    /// If they differ otherwise.
    pub fn check_answer(&mut self, found: &Outcome, expected: &Outcome, plan: &Plan, what: &str) {
        assert_eq!(found.order, expected.order, "{what}");
        assert_eq!(found.kept_of_chunks, expected.kept_of_chunks, "{what}");
        assert_same_selection(found, expected, plan.prefix.len() as u32, what);
        if found.selected == expected.selected {
            self.check(relative_error(logits(found), logits(expected)), what);
            assert_eq!(found.kept, expected.kept, "{what}");
            assert_eq!(found.tokens, expected.tokens, "{what}");
        }
    }
}

impl Drop for Largest {
    fn drop(&mut self) {
        println!("invariant {}: largest error {:.1e}", self.name, self.error);
    }
}

/// The same answer, bit for bit.
///
/// # Panics
/// If anything differs.
pub fn assert_same_bits(found: &Outcome, expected: &Outcome, what: &str) {
    let bits = |outcome: &Outcome| logits(outcome).iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    assert_eq!(found.selected, expected.selected, "{what}");
    assert_eq!((&found.order, &found.tokens), (&expected.order, &expected.tokens), "{what}");
    assert_eq!((&found.kept_of_chunks, &found.kept), (&expected.kept_of_chunks, &expected.kept), "{what}");
    assert!(bits(found) == bits(expected), "{what}: logits differ");
}

/// Selections are equal but for rows whose score lies within 1e-5, relative, of the cut.
pub fn assert_same_selection(found: &Outcome, expected: &Outcome, prefix: u32, what: &str) {
    if found.selected == expected.selected {
        return;
    }
    let scores = expected.scores.as_ref().expect("a method without scores selects the same rows");
    let score = |row: &u32| scores[(row - prefix) as usize];
    let cut = expected.selected.iter().map(score).fold(f32::INFINITY, f32::min);
    assert_eq!(found.selected.len(), expected.selected.len(), "{what}");
    let differ = |a: &Outcome, b: &Outcome| -> Vec<u32> {
        a.selected.iter().copied().filter(|row| b.selected.binary_search(row).is_err()).collect()
    };
    for row in differ(found, expected).into_iter().chain(differ(expected, found)) {
        let distance = ((score(&row) - cut) / cut).abs();
        assert!(distance < 1e-5, "{what}: row {row} differs, its score is {distance:e} from the cut");
    }
}

/// Keys and values of some rows in every layer.
type LayerPairs = Vec<(Tensor, Tensor)>;

/// Naive reuse: every chunk's keys and values computed alone after the prefix, then concatenated at
/// their places in the full sequence, and read by the query.
pub struct Concatenation<'a> {
    model: &'a dyn Model,
    at: Positions,
    keys: Vec<(Tensor, Tensor, Positions)>,
    layers: Vec<(Tensor, Tensor)>,
    first_layer_keys: usize,
    progress: Progress,
}

impl<'a> Concatenation<'a> {
    /// The first token's logits.
    pub fn logits(model: &'a dyn Model, plan: &Plan) -> Vec<f32> {
        let layers = model.config().layers;
        let (prefix, head) = (plan.prefix.len(), plan.head_tokens());
        let mut blocks: Vec<(usize, Vec<(Tensor, Tensor)>)> = Vec::new(); // first position, per layer
        let alone = |ids: &[u32]| Self::run(model, ids, Positions::run(0, ids.len()), vec![Vec::new(); layers]).1;
        if prefix > 0 {
            blocks.push((0, alone(&plan.prefix)));
        }
        let mut start = prefix;
        for chunk in &plan.chunks {
            blocks.push((start, cut(&alone(&[plan.head(), &chunk.ids].concat()), head, chunk.ids.len())));
            start += chunk.ids.len();
        }
        Self::read(model, plan, &blocks)
    }

    /// The same where prefix and context are cut into blocks of `block_rows` rows (the first has
    /// the lead's besides), each computed after the first one at its place in the sequence (star
    /// attention).
    pub fn of_blocks(model: &'a dyn Model, plan: &Plan, block_rows: usize) -> Vec<f32> {
        let layers = model.config().layers;
        let ids: Vec<u32> =
            plan.prefix.iter().chain(plan.chunks.iter().flat_map(|chunk| &chunk.ids)).copied().collect();
        let mut blocks: Vec<(usize, Vec<(Tensor, Tensor)>)> = Vec::new();
        let first = block_rows + plan.lead_tokens();
        for start in std::iter::once(0).chain((first..ids.len()).step_by(block_rows)) {
            let anchor = if start > 0 { first } else { 0 };
            let rows = if start > 0 { block_rows } else { first };
            let block = &ids[start..ids.len().min(start + rows)];
            let seen = [&ids[..anchor], block].concat();
            let places: Vec<u32> = (0..anchor as u32).chain(start as u32..(start + block.len()) as u32).collect();
            let at = Positions::in_sequence(places.clone(), places);
            let alone = Self::run(model, &seen, at, vec![Vec::new(); layers]).1;
            blocks.push((start, cut(&alone, anchor, block.len())));
        }
        Self::read(model, plan, &blocks)
    }

    /// The first token's logits where the query sees these blocks, given by their first position
    /// and keys and values of each layer.
    pub fn read(model: &'a dyn Model, plan: &Plan, blocks: &[(usize, Vec<(Tensor, Tensor)>)]) -> Vec<f32> {
        let run = |(first, pairs): &(usize, Vec<(Tensor, Tensor)>)| {
            (Positions::run(*first as u32, pairs[0].0.dims()[0]), pairs.clone())
        };
        Self::read_at(model, plan, &blocks.iter().map(run).collect::<Vec<_>>())
    }

    /// The same for blocks of rows at any positions.
    fn read_at(model: &'a dyn Model, plan: &Plan, blocks: &[(Positions, Vec<(Tensor, Tensor)>)]) -> Vec<f32> {
        let (layers, start) = (model.config().layers, plan.total_rows() - plan.query.len());
        let keys_of = |layer: usize| keys_of(blocks, layer);
        let at = Positions::run(start as u32, plan.query.len());
        let rows = Self::run(model, &plan.query, at, (0..layers).map(keys_of).collect()).0;
        let last = rows.narrow(0, plan.query.len() - 1, 1).expect("the last row");
        let logits = model.logits(&tributary_model::Rows::new(last)).expect("logits");
        logits.squeeze(0).and_then(|row| row.to_vec1()).expect("one row")
    }

    /// The first token's logits where `selected` rows are recomputed with chunks in one order, and
    /// the query reads them in the request's own. Chunks are prefilled alone, after a prefix of at
    /// least one row.
    pub fn read_in_own_order(model: &'a dyn Model, plan: &Plan, order: &[u32], selected: &[u32]) -> Vec<f32> {
        let (layers, head) = (model.config().layers, plan.head_tokens());
        let given: Vec<u32> = (0..plan.chunks.len() as u32).collect();
        let (moved, own) = (plan.places(order), plan.places(&given));
        let alone = |ids: &[u32]| Self::run(model, ids, Positions::run(0, ids.len()), vec![Vec::new(); layers]).1;
        let mut kept: Vec<(Vec<u32>, LayerPairs)> =
            vec![((0..plan.prefix.len() as u32).collect(), alone(&plan.prefix))];
        for (chunk, rows) in plan.chunks.iter().zip(plan.chunk_rows()) {
            let alone = alone(&[plan.head(), &chunk.ids].concat());
            for (index, row) in rows.enumerate().filter(|(_, row)| !selected.contains(row)) {
                kept.push((vec![row], cut(&alone, head + index, 1)));
            }
        }
        let standing = |places: &[u32], rows: &[u32]| {
            let at: Vec<u32> = rows.iter().map(|&row| places[row as usize]).collect();
            Positions::in_sequence(at.clone(), at)
        };
        let blocks = |places: &[u32]| -> Vec<_> {
            kept.iter().map(|(rows, pairs)| (standing(places, rows), pairs.clone())).collect()
        };
        let all: Vec<u32> =
            plan.prefix.iter().chain(plan.chunks.iter().flat_map(|chunk| &chunk.ids)).copied().collect();
        let ids: Vec<u32> = selected.iter().map(|&row| all[row as usize]).collect();
        let seen = blocks(&moved);
        let fresh =
            Self::run(model, &ids, standing(&moved, selected), (0..layers).map(|l| keys_of(&seen, l)).collect()).1;
        let mut read = blocks(&own);
        read.push((standing(&own, selected), fresh));
        Self::read_at(model, plan, &read)
    }

    /// Rows at `at` through all layers, seeing the given keys of each layer and themselves.
    fn run(
        model: &'a dyn Model,
        ids: &[u32],
        at: Positions,
        keys: Vec<Vec<(Tensor, Tensor, Positions)>>,
    ) -> (Tensor, Vec<(Tensor, Tensor)>) {
        let first_layer_keys = keys.first().map_or(0, Vec::len);
        let keys = keys.into_iter().flatten().collect();
        let mut this = Self { model, at, keys, layers: Vec::new(), first_layer_keys, progress: Progress::default() };
        let rows = model.embed(ids).expect("ids");
        let rows = model.layers(0..model.config().layers, rows, &mut this).expect("layers");
        (rows.hidden, this.layers)
    }
}

/// The keys and values of one layer of blocks.
fn keys_of(blocks: &[(Positions, Vec<(Tensor, Tensor)>)], layer: usize) -> Vec<(Tensor, Tensor, Positions)> {
    let block = |(at, pairs): &(Positions, Vec<(Tensor, Tensor)>)| {
        let (k, v) = pairs[layer].clone();
        (k, v, at.clone())
    };
    blocks.iter().map(block).collect()
}

fn cut(layers: &[(Tensor, Tensor)], from: usize, count: usize) -> Vec<(Tensor, Tensor)> {
    let narrow = |x: &Tensor| x.narrow(0, from, count).expect("rows are there");
    layers.iter().map(|(k, v)| (narrow(k), narrow(v))).collect()
}

impl Attention for Concatenation<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let seen = self.keys.iter().skip(layer * self.first_layer_keys).take(self.first_layer_keys);
        let mut keys: Vec<Keys> = seen.map(|(k, v, at)| Keys { k: k.clone(), v: v.clone(), at: at.clone() }).collect();
        keys.push(Keys { k: qkv.k.clone(), v: qkv.v.clone(), at: self.at.clone() });
        self.layers.push((qkv.k, qkv.v));
        self.model.layer_attention(4096)?[layer].attend(Kernels::Plain, &qkv.q, &self.at, &keys)
    }
}
