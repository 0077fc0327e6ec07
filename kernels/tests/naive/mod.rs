//! Attention in f64, one pair of rows after the other, implemented from the definition alone: the
//! reference of every version. The including file brings the crate's names into its root.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;

use super::{Keys, PAD, Pairing, Positions, Query, Reduce, Rope, RopeConfig, RopeScaling, Rule, SHARED};

/// A small generator, so that a failing case is its seed and its sizes.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Between −1 and 1.
    pub fn value(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 10_000.0 - 1.0
    }

    pub fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }
}

/// Sizes of a case; its content follows from the seed.
#[derive(Debug, Clone)]
pub struct Sizes {
    pub seed: u64,
    pub queries: usize,
    pub keys: Vec<usize>,
    pub kv_heads: usize,
    pub group: usize,
    pub head_dim: usize,
    pub segments: usize,
    /// Orders are drawn below this: few orders make many duplicates.
    pub orders: usize,
    pub rotary: Option<(Pairing, usize)>,
    pub dtype: DType,
    /// Orders ascend as in a causal prefill, instead of being drawn.
    pub ascending: bool,
}

/// Any small case.
pub fn sizes() -> impl Strategy<Value = Sizes> {
    let keys = prop::collection::vec(prop_oneof![Just(0usize), 1..4usize, 30..200usize, 200..700usize], 0..4);
    let head_dim = prop_oneof![Just(8usize), Just(32), Just(48), Just(64), Just(80), Just(96), Just(128), Just(256)];
    let rotary = prop_oneof![Just(0usize), Just(1), Just(2), Just(3)];
    let dtype = prop_oneof![Just(DType::F32), Just(DType::BF16), Just(DType::F16)];
    let head = (1..3usize, 1..6usize, head_dim, rotary, dtype);
    let rows = (prop_oneof![0..3usize, 3..90usize], keys, 1..4usize, 1..900usize);
    (any::<u64>(), rows, head, any::<bool>()).prop_map(|(seed, rows, head, ascending)| {
        let (queries, keys, segments, orders) = rows;
        let (kv_heads, group, head_dim, rotary, dtype) = head;
        let rotary = match rotary {
            0 => None,
            1 => Some((Pairing::Half, head_dim)),
            2 => Some((Pairing::Half, head_dim / 2)),
            _ => Some((Pairing::Interleaved, head_dim / 2)),
        };
        Sizes { seed, queries, keys, kv_heads, group, head_dim, segments, orders, rotary, dtype, ascending }
    })
}

/// A row that is decoded: one query, many blocks, some of a few keys.
pub fn decode_sizes() -> impl Strategy<Value = Sizes> {
    let keys = prop::collection::vec(prop_oneof![0..4usize, 1..70usize, 200..1500usize], 1..12);
    let head_dim = prop_oneof![Just(8usize), Just(16), Just(64), Just(80), Just(112), Just(128)];
    let dtype = prop_oneof![Just(DType::F32), Just(DType::BF16), Just(DType::F16)];
    let head = (1..4usize, 1..10usize, head_dim, dtype);
    let rows = (keys, 1..4usize, prop_oneof![1..900usize, Just(1)]);
    (any::<u64>(), rows, head).prop_map(|(seed, (keys, segments, orders), (kv_heads, group, head_dim, dtype))| {
        let (queries, rotary, ascending) = (1, None, false);
        Sizes { seed, queries, keys, kv_heads, group, head_dim, segments, orders, rotary, dtype, ascending }
    })
}

/// Inputs of a call.
pub struct Case {
    pub q: Tensor,
    pub at_q: Positions,
    pub keys: Vec<Keys>,
    pub rope: Option<Rope>,
    pub scale: f32,
}

const POSITIONS: usize = 1000;
const THETA: f64 = 10_000.0;

impl Case {
    pub fn query(&self) -> Query<'_> {
        Query {
            q: &self.q,
            at: &self.at_q,
            keys: &self.keys,
            rope: self.rope.as_ref(),
            scale: self.scale,
            dtype: DType::F32,
        }
    }

    pub fn new(sizes: &Sizes) -> Self {
        let mut random = Random::new(sizes.seed);
        let heads = sizes.kv_heads * sizes.group;
        let q = random.values(sizes.queries * heads * sizes.head_dim);
        let q = Tensor::from_vec(q, (sizes.queries, heads, sizes.head_dim), &Device::Cpu).unwrap();
        let rule = if sizes.seed.is_multiple_of(4) { Rule::Others } else { Rule::Causal };
        // Positions that do not rise take a launch each on a GPU: where queries are few.
        let has_window = sizes.seed.is_multiple_of(3) && (sizes.ascending || sizes.queries < 20);
        let window = has_window.then_some(if sizes.ascending { 20 } else { 300 });
        let at_q = positions(sizes, &mut random, sizes.queries, false).seeing(rule).within(window);
        let mut keys = Vec::new();
        for &count in &sizes.keys {
            let mut tensor = || {
                let values = random.values(count * sizes.kv_heads * sizes.head_dim);
                let shape = (count, sizes.kv_heads, sizes.head_dim);
                Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(sizes.dtype).unwrap()
            };
            let (k, v) = (tensor(), tensor());
            keys.push(Keys { k, v, at: positions(sizes, &mut random, count, true) });
        }
        let rope = sizes.rotary.map(|(pairing, dims)| {
            Rope::new(
                &RopeConfig {
                    head_dim: sizes.head_dim,
                    rotary_dims: dims,
                    theta: THETA,
                    scaling: &RopeScaling::None,
                    pairing,
                },
                POSITIONS,
            )
            .unwrap()
        });
        Self { q, at_q, keys, rope, scale: 1.7 / (sizes.head_dim as f32).sqrt() }
    }
}

fn positions(sizes: &Sizes, random: &mut Random, count: usize, keys: bool) -> Positions {
    let mut rope: Vec<u32> = (0..count).map(|_| random.below(POSITIONS) as u32).collect();
    let mut order: Vec<u32> = (0..count).map(|_| random.below(sizes.orders) as u32).collect();
    let mut segment: Vec<u32> = (0..count).map(|_| random.below(sizes.segments) as u32).collect();
    if sizes.ascending {
        order = (0..count as u32).collect();
        rope = order.iter().map(|&order| order.min(POSITIONS as u32 - 1)).collect();
        segment = (0..count).map(|i| (i * sizes.segments / count) as u32).collect();
    }
    for i in 0..count {
        match random.below(12) {
            0 => order[i] = PAD,
            1 if keys => segment[i] = SHARED,
            _ => {}
        }
    }
    Positions::new(rope, order, segment)
}

/// Rows of a tensor as f64, `[rows][heads][head_dim]`, rotated if asked.
fn rows(x: &Tensor, at: &Positions, rotary: Option<(Pairing, usize)>) -> Vec<Vec<Vec<f64>>> {
    let mut list = x.to_dtype(DType::F64).unwrap().to_vec3::<f64>().unwrap();
    for (row, &position) in list.iter_mut().zip(at.rope()) {
        for head in row {
            if let Some((pairing, dims)) = rotary {
                let old = head.clone();
                for i in 0..dims / 2 {
                    let (a, b) = if pairing == Pairing::Half { (i, i + dims / 2) } else { (2 * i, 2 * i + 1) };
                    let angle = f64::from(position) * THETA.powf(-2.0 * i as f64 / dims as f64);
                    head[a] = old[a] * angle.cos() - old[b] * angle.sin();
                    head[b] = old[b] * angle.cos() + old[a] * angle.sin();
                }
            }
        }
    }
    list
}

/// Scores, −∞ where not seen: `[queries][heads][keys]`, and the values
/// `[keys][kv_heads][head_dim]`.
#[allow(clippy::type_complexity)]
pub fn scores(case: &Case, rotary: Option<(Pairing, usize)>) -> (Vec<Vec<Vec<f64>>>, Vec<Vec<Vec<f64>>>) {
    let q = rows(&case.q, &case.at_q, rotary);
    let k: Vec<_> = case.keys.iter().flat_map(|block| rows(&block.k, &block.at, rotary)).collect();
    let v: Vec<_> = case.keys.iter().flat_map(|block| rows(&block.v, &block.at, None)).collect();
    let parts: Vec<&Positions> = case.keys.iter().map(|block| &block.at).collect();
    let at_k = Positions::concat(&parts);
    let score = |i: usize, head: &[f64], kv_head: usize, j: usize| {
        let (order_q, order_k) = (case.at_q.order()[i], at_k.order()[j]);
        let (segment_q, segment_k) = (case.at_q.segment()[i], at_k.segment()[j]);
        let sees = match case.at_q.rule() {
            Rule::Causal => order_k <= order_q && (segment_k == SHARED || segment_k == segment_q),
            Rule::Others => segment_k == SHARED || segment_k != segment_q,
        };
        let (rope_q, rope_k) = (i64::from(case.at_q.rope()[i]), i64::from(at_k.rope()[j]));
        let is_outside = case.at_q.window().is_some_and(|window| rope_q - rope_k >= i64::from(window));
        if order_q == PAD || order_k == PAD || !sees || is_outside {
            return f64::NEG_INFINITY;
        }
        f64::from(case.scale) * head.iter().zip(&k[j][kv_head]).map(|(a, b)| a * b).sum::<f64>()
    };
    let mut all = Vec::new();
    for (i, heads) in q.iter().enumerate() {
        let kv_heads = k.first().map_or(1, Vec::len);
        let group = heads.len() / kv_heads;
        let of_head = |(h, head): (usize, &Vec<f64>)| (0..k.len()).map(|j| score(i, head, h / group, j)).collect();
        all.push(heads.iter().enumerate().map(of_head).collect());
    }
    (all, v)
}

/// Output `[queries · heads · head_dim]` and lse `[queries · heads]`.
pub fn attend(case: &Case, rotary: Option<(Pairing, usize)>) -> (Vec<f64>, Vec<f64>) {
    let (scores, v) = scores(case, rotary);
    let (_, heads, head_dim) = case.q.dims3().unwrap();
    let group = heads / v.first().map_or(1, Vec::len);
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for row in &scores {
        for (h, scores) in row.iter().enumerate() {
            let sum: f64 = scores.iter().map(|s| s.exp()).sum();
            lse.push(sum.ln());
            for d in 0..head_dim {
                let seen = scores.iter().zip(&v).filter(|(s, _)| s.is_finite());
                let total: f64 = seen.map(|(s, v)| s.exp() * v[h / group][d]).sum();
                out.push(if sum > 0.0 { total / sum } else { 0.0 });
            }
        }
    }
    (out, lse)
}

/// Mean over the heads of each query's attention to each key, `[queries][keys]`, normalised by
/// `lse` `[queries · heads]`.
pub fn attention(case: &Case, rotary: Option<(Pairing, usize)>, lse: &[f64]) -> Vec<Vec<f64>> {
    let (scores, v) = scores(case, rotary);
    let mut all = Vec::new();
    for (i, row) in scores.iter().enumerate() {
        let mut mean = vec![0.0; v.len()];
        for (h, scores) in row.iter().enumerate() {
            let lse = lse[i * row.len() + h];
            for (mean, score) in mean.iter_mut().zip(scores) {
                if score.is_finite() && lse.is_finite() {
                    *mean += (score - lse).exp() / row.len() as f64;
                }
            }
        }
        all.push(mean);
    }
    all
}

/// Largest distance of two lists; infinities must be in the same places, and there must be no NaN.
pub fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    let far = |(&found, &expected): (&f32, &f64)| {
        let found = f64::from(found);
        if found == expected { 0.0 } else { (found - expected).abs() }
    };
    pairs.map(far).map(|far| if far.is_nan() { f64::INFINITY } else { far }).fold(0.0, f64::max)
}

/// One number a key out of [`attention`].
pub fn reduced(attention: &[Vec<f64>], keys: usize, reduce: Reduce<'_>) -> Vec<f64> {
    let column = |j: usize| attention.iter().map(move |row| row[j]);
    let of_key = |j: usize| match reduce {
        Reduce::Norm => column(j).map(|p| p * p).sum::<f64>().sqrt(),
        Reduce::Mass => column(j).sum(),
        Reduce::Weighted(weights) => column(j).zip(weights).map(|(p, &w)| p * f64::from(w)).sum(),
    };
    (0..keys).map(of_key).collect()
}
