//! A layer in slices of a few rows gives what it gives as a whole: every sample of every method, in
//! every exchange, on 1, 2 and 3 ranks.

use std::slice::from_ref;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Kernels, Partial};
use tributary_model::{Config, LayerAttention, Model, Qkv, Result, Rows};
use tributary_protocol::{Exchange, Plan, Slices};
use tributary_tests::samples::Case;
use tributary_tests::{dummy_model, logits, relative_error, run_all, tiny_config};

/// A model whose layers run in slices of at most `slice_rows` rows.
struct InSlices {
    model: Arc<dyn Model>,
    slice_rows: usize,
}

impl Model for InSlices {
    fn config(&self) -> &Config {
        self.model.config()
    }

    fn device(&self) -> &Device {
        self.model.device()
    }

    fn dtype(&self) -> DType {
        self.model.dtype()
    }

    fn layer_attention(&self, positions: usize) -> Result<Arc<[LayerAttention]>> {
        self.model.layer_attention(positions)
    }

    fn embed(&self, ids: &[u32]) -> Result<Rows> {
        self.model.embed(ids)
    }

    fn qkv_of_last(&self, layer: usize, rows: &Rows, queries: usize) -> Result<Qkv> {
        assert!(rows.len() <= self.slice_rows, "{} rows at once", rows.len());
        self.model.qkv_of_last(layer, rows, queries)
    }

    fn queries(&self, layer: usize, rows: &Rows) -> Result<Tensor> {
        assert!(rows.len() <= self.slice_rows, "{} rows at once", rows.len());
        self.model.queries(layer, rows)
    }

    fn slice_rows(&self) -> usize {
        self.slice_rows
    }

    fn finish(&self, layer: usize, rows: Rows, attended: Partial) -> Result<Rows> {
        assert!(rows.len() <= self.slice_rows, "{} rows at once", rows.len());
        self.model.finish(layer, rows, attended)
    }

    fn logits(&self, rows: &Rows) -> Result<Tensor> {
        self.model.logits(rows)
    }
}

#[test]
fn slices_of_a_layer_are_the_layer() {
    let whole = dummy_model(&tiny_config(&[]), 3);
    // More rows than the query has: those of blocks that pass rows on are needed at once.
    let sliced: Arc<dyn Model> = Arc::new(InSlices { model: Arc::clone(&whole), slice_rows: 10 });
    let mut compared = 0;
    for world in 1..=3 {
        for (turn, exchange) in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected].into_iter().enumerate() {
            let lead: &[u32] = if turn == 1 { &[1] } else { &[] };
            let case = Case { prefix: 3, lead, chunks: &[31, 5, 18, 26], query: 9, world, exchange, ratio: 0.4 };
            for sample in case.samples("", &*whole) {
                let of = |model: &Arc<dyn Model>, plan: &Plan| {
                    run_all(model, Kernels::Auto, world, from_ref(plan)).remove(0).0
                };
                let expected = of(&whole, &sample.plan);
                // Also in parts with control points between them, each of more than one slice.
                let in_parts = Plan { slices: Slices::of(27), ..sample.plan.clone() };
                for (plan, what) in [(&sample.plan, "slices"), (&in_parts, "slices of parts")] {
                    let (found, what) = (of(&sliced, plan), format!("{what}, world {world}, {}", sample.what()));
                    let error = relative_error(logits(&found), logits(&expected));
                    assert!(error < 1e-4, "{what}: {error:e}");
                    assert_eq!(found.tokens, expected.tokens, "{what}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 400, "{compared} samples");
}
