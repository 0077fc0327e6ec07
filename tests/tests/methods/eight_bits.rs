//! Keys and values in 8 bits: every sample of every method, on 1 to 4 ranks, answers as with the
//! same numbers kept whole, and ranks agree. Rounding can turn the last bits of a product, which
//! differ from world to world, into a step of E4M3: then answers agree to that step.
//! What is kept, stored and cut is compared bit for bit in the tests of those.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Kernels, Keys, Partial, Positions, Query, of_e4m3};
use tributary_model::{Attention, Config, LayerAttention, Model, Progress, Qkv, Rows, in_eight_bits};
use tributary_protocol::{Exchange, Plan};
use tributary_tests::equal::{Largest, assert_same_selection};
use tributary_tests::samples::{Case, Sample};
use tributary_tests::{dummy_model, gemma, logits, relative_error, run_all, tiny_config};

const SHAPES: [(usize, &[usize], usize); 2] = [(3, &[150, 5, 70, 9, 64], 4), (0, &[14, 6, 11], 5)];

/// A model and the same with keys and values in 8 bits.
type Both = (Arc<dyn Model>, Arc<dyn Model>);

fn models() -> Vec<Both> {
    let both = |model: Arc<dyn Model>| (Arc::clone(&model), in_eight_bits(model));
    [dummy_model(&tiny_config(&[]), 1), dummy_model(&gemma(), 7)].map(both).into()
}

fn samples(model: &dyn Model, index: usize, world: usize) -> Vec<Sample> {
    let (prefix, chunks, query) = SHAPES[index % SHAPES.len()];
    let exchange = [Exchange::PassQ, Exchange::Replicate, Exchange::Selected][(world + index) % 3];
    let case = Case { prefix, lead: &[], chunks, query, world, exchange, ratio: 0.3 };
    [case.exact(model), case.in_chunks("", model)].concat()
}

fn plans(samples: &[Sample]) -> Vec<Plan> {
    samples.iter().map(|sample| sample.plan.clone()).collect()
}

/// A model whose keys and values are rounded as 8 bits round them, and kept as whole numbers.
struct Rounding(Arc<dyn Model>);

impl Model for Rounding {
    fn config(&self) -> &Config {
        self.0.config()
    }

    fn device(&self) -> &Device {
        self.0.device()
    }

    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn layer_attention(&self, positions: usize) -> tributary_model::Result<Arc<[LayerAttention]>> {
        self.0.layer_attention(positions)
    }

    fn embed(&self, ids: &[u32]) -> tributary_model::Result<Rows> {
        self.0.embed(ids)
    }

    fn qkv_of_last(&self, layer: usize, rows: &Rows, queries: usize) -> tributary_model::Result<Qkv> {
        let Qkv { q, k, v } = self.0.qkv_of_last(layer, rows, queries)?;
        Ok(Qkv { q, k: rounded(&k), v: rounded(&v) })
    }

    fn queries(&self, layer: usize, rows: &Rows) -> tributary_model::Result<Tensor> {
        self.0.queries(layer, rows)
    }

    fn slice_rows(&self) -> usize {
        self.0.slice_rows()
    }

    fn finish(&self, layer: usize, rows: Rows, attended: Partial) -> tributary_model::Result<Rows> {
        self.0.finish(layer, rows, attended)
    }

    fn logits(&self, rows: &Rows) -> tributary_model::Result<Tensor> {
        self.0.logits(rows)
    }
}

#[test]
fn every_method_on_every_world_answers_as_with_rounded_whole_numbers() {
    let (mut largest, mut selecting) = (Largest::new("8 bits = rounded whole numbers"), 0);
    for (index, (whole, packed)) in models().iter().enumerate() {
        let rounding: Arc<dyn Model> = Arc::new(Rounding(Arc::clone(whole)));
        for world in 1..=4 {
            let samples = samples(&**whole, index, world);
            let of = |model| run_all(model, Kernels::Auto, world, &plans(&samples));
            for ((found, expected), sample) in of(packed).iter().zip(of(&rounding)).zip(&samples) {
                let what = format!("{} model {index}, world {world}", sample.what());
                assert_same_selection(&found.0, &expected.0, sample.plan.prefix.len() as u32, &what);
                selecting += usize::from(!found.0.selected.is_empty());
                // What is mixed of cached and fresh numbers is rounded once more.
                let mixes = sample.plan.parts().is_some_and(|parts| parts.theta < 1.0);
                if found.0.selected == expected.0.selected && !mixes {
                    largest.check(relative_error(logits(&found.0), logits(&expected.0)), &what);
                }
            }
        }
    }
    assert!(selecting > 100, "only {selecting} samples select rows");
}

#[test]
fn exact_methods_agree_with_full_prefill_to_a_step_of_rounding() {
    for (index, (_, packed)) in models().iter().enumerate() {
        let mut full = None;
        for world in 1..=4 {
            let (prefix, chunks, query) = SHAPES[index % SHAPES.len()];
            let case = Case { prefix, lead: &[], chunks, query, world, exchange: Exchange::PassQ, ratio: 0.3 };
            let samples: Vec<Sample> =
                case.exact(&**packed).into_iter().filter(|sample| sample.plan.method.is_exact()).collect();
            assert!(samples.len() > 2, "{} exact samples", samples.len());
            for (found, sample) in run_all(packed, Kernels::Auto, world, &plans(&samples)).iter().zip(&samples) {
                let full = full.get_or_insert_with(|| logits(&found.0).to_vec());
                let error = relative_error(logits(&found.0), full);
                println!("{} model {index}, world {world}: {error:.1e}", sample.spec);
                assert!(error < 0.02, "{} model {index}, world {world}: {error:.1e}", sample.what());
            }
        }
    }
}

/// A pass over a whole prompt that rounds keys and values by hand.
struct ByHand<'a> {
    model: &'a dyn Model,
    at: Positions,
    progress: Progress,
}

/// Heads `[.., head_dim]` as 8 bits give them: the nearest code of E4M3, times a power of two.
fn rounded(x: &Tensor) -> Tensor {
    let codes: Vec<f64> = (0..0x7f).map(|code| f64::from(of_e4m3(code))).collect();
    let head_dim = x.dims()[2];
    let mut numbers = x.flatten_all().and_then(|x| x.to_vec1::<f32>()).expect("numbers");
    for head in numbers.chunks_mut(head_dim) {
        let largest = head.iter().fold(0f64, |largest, x| largest.max(f64::from(x.abs())));
        let scale = (largest / 448.0).log2().ceil().exp2();
        for x in head {
            let wanted = f64::from(x.abs()) / scale;
            let place = codes.partition_point(|code| *code < wanted).clamp(1, codes.len() - 1);
            // Between two codes the even one has an even place.
            let (below, above) = (wanted - codes[place - 1], codes[place] - wanted);
            let is_below = below < above || (below == above && place % 2 == 1);
            let nearest = codes[if is_below { place - 1 } else { place }];
            *x = (nearest * scale).copysign(f64::from(*x)) as f32;
        }
    }
    Tensor::from_vec(numbers, x.dims(), &Device::Cpu).expect("as many numbers")
}

impl Attention for ByHand<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> tributary_model::Result<Partial> {
        let LayerAttention { rope, scale, .. } = &self.model.layer_attention(4096)?[layer];
        let (q, k) = (rope.apply(&q, &self.at)?, rope.apply(&rounded(&k), &self.at)?);
        let keys = [Keys { k, v: rounded(&v), at: self.at.clone() }];
        let query = Query { q: &q, at: &self.at, keys: &keys, rope: None, scale: *scale, dtype: DType::F32 };
        Ok(Kernels::Plain.attend(&query)?)
    }
}

#[test]
fn a_full_prefill_in_8_bits_is_one_with_keys_and_values_rounded_by_hand() {
    let (whole, packed) = models().swap_remove(0);
    for (prefix, chunks, query) in SHAPES {
        let case = Case { prefix, lead: &[], chunks, query, world: 1, exchange: Exchange::PassQ, ratio: 0.3 };
        let plan = case.planned("full", &*packed).expect("a plan");
        let found = run_all(&packed, Kernels::Auto, 1, std::slice::from_ref(&plan)).swap_remove(0).0;
        let ids = plan.all_ids();
        let mut pass = ByHand { model: &*whole, at: Positions::run(0, ids.len()), progress: Progress::default() };
        let rows = whole.embed(&ids).expect("ids");
        let rows = whole.layers(0..whole.config().layers, rows, &mut pass).expect("layers");
        let expected = whole.logits(&rows).expect("logits").to_vec2::<f32>().expect("numbers");
        let error = relative_error(logits(&found), expected.last().expect("a row"));
        println!("{chunks:?}: {error:.1e}");
        assert!(error < 1e-4, "{chunks:?}: {error:.1e}");
    }
}
