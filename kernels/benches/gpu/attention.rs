//! Attention of every kind that requests have: dense, over selected rows, within chunks, of few
//! rows, and scores.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::cuda::{download, visible_share};
use tributary_kernels::{Kernels, Keys, Pairing, Partial, Positions, Query, Reduce, Rope, RopeConfig, RopeScaling};

use crate::case::{Bound, Case, Planned};
use crate::{DIM, HEADS, KV_HEADS, SCALE, distance, flat, host_rows, picked, random};

/// Rows of the query that a probe looks with.
const PROBE: usize = 64;
const CHUNK: usize = 2048;

/// Attention of one kind: queries and keys with their positions.
#[derive(Clone)]
struct Attention {
    q: Tensor,
    at: Positions,
    keys: Vec<Keys>,
    rope: Rope,
}

impl Attention {
    fn new(at: Positions, keys_at: Positions, device: &Device) -> Self {
        let positions = 1 + at.rope().iter().chain(keys_at.rope()).max().copied().unwrap_or(0) as usize;
        let rope = Rope::new(
            &RopeConfig {
                head_dim: DIM,
                rotary_dims: DIM,
                theta: 5e5,
                scaling: &RopeScaling::None,
                pairing: Pairing::Half,
            },
            positions,
        )
        .unwrap();
        let q = random(1, &[at.len(), HEADS, DIM], device);
        let (k, v) =
            (random(2, &[keys_at.len(), KV_HEADS, DIM], device), random(3, &[keys_at.len(), KV_HEADS, DIM], device));
        Self { q, at, keys: vec![Keys { k, v, at: keys_at }], rope }
    }

    /// The same on the CPU in f32.
    fn on_host(&self) -> Self {
        let host = |x: &Tensor| download(x).unwrap().to_dtype(DType::F32).unwrap();
        let keys = |block: &Keys| Keys { k: host(&block.k), v: host(&block.v), at: block.at.clone() };
        Self { q: host(&self.q), keys: self.keys.iter().map(keys).collect(), ..self.clone() }
    }

    fn run(&self) -> Partial {
        Kernels::Auto
            .attend(&Query {
                q: &self.q,
                at: &self.at,
                keys: &self.keys,
                rope: Some(&self.rope),
                scale: SCALE,
                dtype: DType::F32,
            })
            .unwrap()
    }

    fn pairs(&self) -> f64 {
        // Keys are in order, one after the other, segment by segment.
        let keys = &self.keys[0].at;
        let seen = |i: usize| -> usize {
            let (order, segment) = (self.at.order()[i], self.at.segment()[i]);
            let first = keys.segment().partition_point(|&other| other < segment);
            let end = keys.segment().partition_point(|&other| other <= segment);
            keys.order()[first..end].partition_point(|&key| key <= order)
        };
        (0..self.at.len()).map(|i| seen(i) as f64).sum()
    }

    fn operations(&self) -> f64 {
        4.0 * self.pairs() * (HEADS * DIM) as f64
    }

    fn key_bytes(&self) -> f64 {
        (self.keys[0].at.len() * KV_HEADS * DIM * 2) as f64
    }

    /// Relative error of some rows against f64 on the CPU. (Keys and queries are turned there in
    /// f32.)
    fn error(&self) -> f64 {
        let rows = picked(self.at.len());
        let (at, block) = (self.at.select(&rows), &self.keys[0]);
        let q = flat(&self.rope.apply(&host_rows(&self.q, &rows), &at).unwrap());
        let every: Vec<u32> = (0..block.at.len() as u32).collect();
        let k = flat(&self.rope.apply(&host_rows(&block.k, &every), &block.at).unwrap());
        let v = flat(&host_rows(&block.v, &every));
        let expected: Vec<f64> = (0..rows.len() * HEADS)
            .flat_map(|i| {
                let (row, kv_head) = (i / HEADS, i % HEADS / (HEADS / KV_HEADS));
                let place = |key: usize| (key * KV_HEADS + kv_head) * DIM..(key * KV_HEADS + kv_head + 1) * DIM;
                let seen = (0..block.at.len()).filter(|&key| at.sees(row, &block.at, key));
                exact(&q[i * DIM..(i + 1) * DIM], seen.map(|key| (&k[place(key)], &v[place(key)])))
            })
            .collect();
        distance(&flat(&host_rows(&self.run().out, &rows)), &expected)
    }
}

/// One row of attention over keys and values.
fn exact<'a>(q: &[f64], keys: impl Iterator<Item = (&'a [f64], &'a [f64])>) -> Vec<f64> {
    let (mut largest, mut sum, mut out) = (f64::NEG_INFINITY, 0.0, vec![0.0; DIM]);
    for (k, v) in keys {
        let score = f64::from(SCALE) * q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>();
        let shrink = if score > largest { (largest - score).exp() } else { 1.0 };
        largest = largest.max(score);
        let weight = (score - largest).exp();
        sum = sum * shrink + weight;
        out.iter_mut().zip(v).for_each(|(out, v)| *out = *out * shrink + weight * v);
    }
    out.iter().map(|x| x / sum).collect()
}

/// 15 % of the rows, at places that a fixed draw picks.
fn stairs(keys: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut order: Vec<(u64, u32)> = (0..keys as u32)
        .map(|row| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 20, row)
        })
        .collect();
    order.sort_unstable();
    let mut rows: Vec<u32> = order[..(keys * 15 / 100).max(1)].iter().map(|entry| entry.1).collect();
    rows.sort_unstable();
    rows
}

/// A case of attention with its error.
fn case(bound: Bound, attention: Attention) -> Case {
    let (operations, bytes) = (attention.operations(), 2.0 * attention.key_bytes());
    let visible = visible_share(&attention.q, &attention.at, &attention.keys).unwrap();
    let error = attention.error();
    Case::new(bound, operations, bytes, move || attention.run().out).with_error(error).with_visible(visible)
}

/// The scores of all keys as few rows see them.
fn scores(probe: Attention) -> Case {
    let (operations, bytes) = (probe.operations() / 2.0, probe.key_bytes());
    let column_scores = |of: &Attention, lse: &Tensor| {
        let Attention { q, at, keys, rope } = of;
        Kernels::Auto
            .column_scores(&Query { q, at, keys, rope: Some(rope), scale: SCALE, dtype: DType::F32 }, lse, Reduce::Norm)
            .unwrap()
    };
    let lse = probe.run().lse;
    let on_host = probe.on_host();
    let expected = flat(&column_scores(&on_host, &on_host.run().lse));
    let error = distance(&flat(&download(&column_scores(&probe, &lse)).unwrap()), &expected);
    Case::new(Bound::Memory, operations, bytes, move || column_scores(&probe, &lse)).with_error(error)
}

pub fn planned(keys: usize, device: &Device) -> Vec<Planned> {
    let all = Positions::run(0, keys);
    let chunks: Vec<u32> = (0..keys).map(|row| (row / CHUNK) as u32).collect();
    let within: Vec<u32> = (0..keys).map(|row| (row % CHUNK) as u32).collect();
    let chunked = Positions::new(within.clone(), within, chunks);
    let of = |name: &'static str, bound: Bound, at: Positions, keys_at: Positions| {
        let device = device.clone();
        Planned::new(name, move || case(bound, Attention::new(at, keys_at, &device)))
    };
    let (probe, on) = (Positions::run(keys as u32, PROBE), device.clone());
    let (probing, probed) = (probe.clone(), all.clone());
    vec![
        of("dense, causal", Bound::Products, all.clone(), all.clone()).beside("dense_causal"),
        of("staircase, 15 %", Bound::Products, all.select(&stairs(keys)), all.clone()).beside("staircase"),
        of("chunks of 2048", Bound::Products, chunked.clone(), chunked),
        of("probe, 64 rows", Bound::Memory, probe, all.clone()).beside("probe_64"),
        Planned::new("scores, 64 rows", move || scores(Attention::new(probing, probed, &on))),
        of("decode, 1 row", Bound::Memory, Positions::run(keys as u32, 1), all).beside("decode_1"),
    ]
}
