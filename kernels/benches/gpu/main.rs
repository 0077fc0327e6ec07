//! Speed of the CUDA kernels on this machine's first GPU, beside what its matrix products and its memory reach in the same run,
//! and beside PyTorch where `gpu/pytorch.py` has left its numbers.
//!
//! Heads are 32 over 8 of 128, bf16. Every case runs in turn, several rounds; the table gives medians with their range, the error
//! (attention's against f64 on some rows, the others' against the CPU's in f32), and the share of the bound. Operations count only pairs of rows that see each other; beside them
//! stands which share those are of the pairs that are worked out. Nothing is asserted about time; a wrong result ends the run.
//!
//! Copies run in front of every timed case, so that the host is ahead of the device and launches do not count. What a launch
//! costs the host is measured by itself.
//!
//! Environment: `GPU_BENCH_KEYS` (default 32768), `GPU_BENCH_ROUNDS` (7), `GPU_BENCH_PEAK` (8192: the side of the measured matrix
//! product), `GPU_BENCH_COPY` (bytes), `GPU_BENCH_JSON` (a file for the numbers), `PYTORCH_JSON` (PyTorch's numbers).

#![allow(clippy::unwrap_used)] // a measurement may panic, its helpers too

mod report;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::cuda::{DeviceEvent, device, download, identity, launch_cost, pool, uniform, visible_share};
use tributary_kernels::{
    Kernels, Keys, Pairing, Partial, Positions, Reduce, Rope, RopeScaling, add, linear, merge, rms_norm, scale,
    silu_mul,
};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const DIM: usize = 128;
const SCALE: f32 = 0.088_388_35;
/// Rows of the query that a probe looks with.
const PROBE: usize = 64;
const CHUNK: usize = 2048;
/// Rows that are checked against f64.
const CHECKED: usize = 5;
const TOLERANCE: f64 = 1e-2;
/// Copies in front of a case: about 2 ms at the default size, longer than the host needs for any case.
const COPIES: usize = 4;

/// What limits a case.
#[derive(Clone, Copy, PartialEq)]
enum Bound {
    Products,
    Memory,
    Nothing,
}

struct Case {
    name: &'static str,
    /// PyTorch's name for the same work, if it has one.
    pytorch: Option<&'static str>,
    operations: f64,
    bytes: f64,
    bound: Bound,
    error: Option<f64>,
    /// Share of the pairs worked out that see each other.
    visible: Option<f64>,
    work: Box<dyn Fn() -> Tensor>,
    times_ms: Vec<f64>,
    /// Runs in which the device had come to the case before the host had given it all.
    late: usize,
}

impl Case {
    fn new(name: &'static str, bound: Bound, operations: f64, bytes: f64, work: impl Fn() -> Tensor + 'static) -> Self {
        let (work, times_ms) = (Box::new(work), Vec::new());
        Self { name, pytorch: None, operations, bytes, bound, error: None, visible: None, work, times_ms, late: 0 }
    }

    fn beside(mut self, pytorch: &'static str) -> Self {
        self.pytorch = Some(pytorch);
        self
    }

    /// Behind copies of `before`.
    fn run(&mut self, device: &Device, before: &Tensor) {
        let device = device.as_cuda_device().unwrap();
        for _ in 0..COPIES {
            drop(before.copy().unwrap());
        }
        let begin = DeviceEvent::record(device).unwrap();
        let result = (self.work)();
        let end = DeviceEvent::record(device).unwrap();
        self.late += usize::from(begin.has_passed());
        self.times_ms.push(end.seconds_since(&begin).unwrap() * 1e3);
        drop(result);
    }

    fn median_ms(&self) -> f64 {
        let mut times = self.times_ms.clone();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

fn random(key: u8, dims: &[usize], device: &Device) -> Tensor {
    uniform([key; 32], 1.7, dims, DType::BF16, device).unwrap()
}

/// Attention of one kind: queries, where they stand, keys and where they stand.
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
        let rope = Rope::new(DIM, DIM, 5e5, &RopeScaling::None, Pairing::Half, positions).unwrap();
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
        Kernels::Auto.attend(&self.q, &self.at, &self.keys, Some(&self.rope), SCALE).unwrap()
    }

    fn pairs(&self) -> f64 {
        // Keys stand in order, one after the other, segment by segment.
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

    /// Relative error of some rows against f64 on the CPU. (Keys and queries are turned there in f32.)
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

/// The rows that are checked.
fn picked(count: usize) -> Vec<u32> {
    (0..CHECKED).map(|i| ((count - 1) * i / (CHECKED - 1)) as u32).collect()
}

/// Rows of a tensor, in f32 on the host.
fn host_rows(x: &Tensor, rows: &[u32]) -> Tensor {
    let x = download(x).unwrap().to_dtype(DType::F32).unwrap();
    x.index_select(&Tensor::new(rows, &Device::Cpu).unwrap(), 0).unwrap()
}

fn flat(x: &Tensor) -> Vec<f64> {
    x.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap()
}

fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let square = |list: &mut dyn Iterator<Item = f64>| list.map(|x| x * x).sum::<f64>();
    let far = square(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    (far / square(&mut expected.iter().copied())).sqrt()
}

/// An operation on rows, each for itself: checked on some of them against the CPU's in f32.
fn by_rows(
    name: &'static str,
    numbers: usize,
    inputs: Vec<Tensor>,
    work: impl Fn(&[Tensor], &Positions) -> Tensor + 'static,
) -> Case {
    let count = inputs[0].dims()[0];
    let (rows, at) = (picked(count), Positions::run(0, count));
    let few: Vec<Tensor> = inputs.iter().map(|input| host_rows(input, &rows)).collect();
    let expected = flat(&work(&few, &at.select(&rows)));
    let error = distance(&flat(&host_rows(&work(&inputs, &at), &rows)), &expected);
    assert!(error < TOLERANCE, "{name}: error {error:e}");
    let bytes = (2 * count * numbers) as f64;
    let mut case = Case::new(name, Bound::Memory, 0.0, bytes, move || work(&inputs, &at));
    case.error = Some(error);
    case
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

fn attention_cases(keys: usize, device: &Device) -> Vec<Case> {
    let all = Positions::run(0, keys);
    let case = |name: &'static str, bound: Bound, attention: Attention| {
        let (operations, bytes) = (attention.operations(), 2.0 * attention.key_bytes());
        let visible = visible_share(&attention.q, &attention.at, &attention.keys).unwrap();
        let error = attention.error();
        assert!(error < TOLERANCE, "{name}: error {error:e}");
        let mut case = Case::new(name, bound, operations, bytes, move || attention.run().out);
        (case.error, case.visible) = (Some(error), visible);
        case
    };
    let chunks: Vec<u32> = (0..keys).map(|row| (row / CHUNK) as u32).collect();
    let within: Vec<u32> = (0..keys).map(|row| (row % CHUNK) as u32).collect();
    let chunked = Positions::new(within.clone(), within, chunks);
    let probe = Attention::new(Positions::run(keys as u32, PROBE), all.clone(), device);
    let scored = probe.clone();
    let (operations, bytes) = (scored.operations() / 2.0, scored.key_bytes());
    let lse = scored.run().lse;
    let column_scores = |of: &Attention, lse: &Tensor| {
        let Attention { q, at, keys, rope } = of;
        Kernels::Auto.column_scores(q, at, keys, Some(rope), SCALE, lse, Reduce::Norm).unwrap()
    };
    let on_host = scored.on_host();
    let expected = flat(&column_scores(&on_host, &on_host.run().lse));
    let error = distance(&flat(&download(&column_scores(&scored, &lse)).unwrap()), &expected);
    assert!(error < TOLERANCE, "scores: error {error:e}");
    let mut scores =
        Case::new("scores, 64 rows", Bound::Memory, operations, bytes, move || column_scores(&scored, &lse));
    scores.error = Some(error);
    let stairs = all.select(&stairs(keys));
    vec![
        case("dense, causal", Bound::Products, Attention::new(all.clone(), all.clone(), device)).beside("dense_causal"),
        case("staircase, 15 %", Bound::Products, Attention::new(stairs, all.clone(), device)).beside("staircase"),
        case("chunks of 2048", Bound::Products, Attention::new(chunked.clone(), chunked, device)),
        case("probe, 64 rows", Bound::Memory, probe).beside("probe_64"),
        scores,
        case("decode, 1 row", Bound::Memory, Attention::new(Positions::run(keys as u32, 1), all, device))
            .beside("decode_1"),
    ]
}

/// The operations between products, by the bytes that they must move.
fn small_cases(keys: usize, device: &Device) -> Vec<Case> {
    let (hidden, wide) = (HEADS * DIM, 14336);
    let rows = |key: u8, width: usize| random(key, &[keys, width], device);
    let lse = |key: u8| uniform([key; 32], 1.0, &[keys, HEADS], DType::F32, device).unwrap();
    let of_heads = |key: u8, heads: usize| random(key, &[keys, heads, DIM], device);
    let weight = uniform([18; 32], 1.0, &[hidden], DType::F32, device).unwrap();
    let rope = Rope::new(DIM, DIM, 5e5, &RopeScaling::None, Pairing::Half, keys).unwrap();
    let partial = |out: &Tensor, lse: &Tensor| Partial { out: out.clone(), lse: lse.clone() };
    let two = vec![of_heads(9, HEADS), lse(10), of_heads(11, HEADS), lse(12)];
    let (small, other) = (random(13, &[1, hidden], device), random(14, &[1, hidden], device));
    let x = rows(4, hidden);
    vec![
        by_rows("rms_norm", 2 * hidden, vec![x.clone()], move |of, _| {
            let weight = if of[0].device().is_cpu() { download(&weight).unwrap() } else { weight.clone() };
            rms_norm(&of[0], &weight, 1e-5).unwrap()
        }),
        by_rows("scale", 2 * hidden, vec![x.clone()], |of, _| scale(&of[0], 0.9).unwrap()),
        by_rows("add", 3 * hidden, vec![x, rows(5, hidden)], |of, _| add(&of[0], &of[1]).unwrap()),
        by_rows("silu_mul", 3 * wide, vec![rows(6, wide), rows(7, wide)], |of, _| silu_mul(&of[0], &of[1]).unwrap()),
        by_rows("rope of keys", 2 * KV_HEADS * DIM, vec![of_heads(8, KV_HEADS)], move |of, at| {
            rope.apply(&of[0], at).unwrap()
        }),
        by_rows("merge of two", 3 * hidden + 6 * HEADS, two, move |of, _| {
            merge(&partial(&of[0], &of[1]), &partial(&of[2], &of[3])).unwrap().out
        }),
        Case::new("100 small launches", Bound::Nothing, 0.0, 0.0, move || {
            (0..100).fold(small.clone(), |sum, _| add(&sum, &other).unwrap())
        }),
    ]
}

fn main() {
    if tributary_kernels::cuda::count().unwrap_or(0) == 0 {
        println!("no GPU here: nothing measured");
        return;
    }
    let device = device(0).unwrap();
    let who = identity(0).unwrap();
    let keys = setting("GPU_BENCH_KEYS", 32768);
    let side = setting("GPU_BENCH_PEAK", 8192);
    let copy = setting("GPU_BENCH_COPY", 1 << 30);
    println!(
        "# {}, driver for CUDA {}.{}; {keys} keys, {HEADS} over {KV_HEADS} heads of {DIM}, bf16",
        who.name, who.driver.0, who.driver.1
    );
    let (a, b) = (random(15, &[side, side], &device), random(16, &[side, side], &device));
    let cube = 2.0 * (side as f64).powi(3);
    let piece = random(17, &[copy / 2], &device);
    let before = piece.clone();
    let mut cases = vec![
        Case::new("matrix product", Bound::Nothing, cube, 0.0, move || linear(&a, &b, None).unwrap())
            .beside("matmul_8192"),
        Case::new("copy", Bound::Nothing, 0.0, 2.0 * copy as f64, move || piece.copy().unwrap()).beside("copy_1gib"),
    ];
    cases.extend(attention_cases(keys, &device));
    cases.extend(small_cases(keys, &device));
    for case in &mut cases {
        case.run(&device, &before); // loads the kernel, fills the pool
    }
    let reserved = pool(&device).unwrap().reserved_bytes;
    cases.iter_mut().for_each(|case| (case.times_ms, case.late) = (Vec::new(), 0));
    let rounds = setting("GPU_BENCH_ROUNDS", 7);
    for _ in 0..rounds {
        cases.iter_mut().for_each(|case| case.run(&device, &before));
    }
    let grown = pool(&device).unwrap().reserved_bytes - reserved;
    println!("# memory pool after the first round: {reserved} bytes; grown since: {grown}");
    let late: Vec<_> = cases.iter().filter(|case| case.late > 0).map(|case| case.name).collect();
    println!("# cases for which the device had to wait for the host, so that launches count: {late:?}");
    let cost = launch_cost(0, copy).unwrap();
    // What PyTorch measures has one size.
    let comparable = (keys, side, copy) == (32768, 8192, 1 << 30);
    report::report(&cases, keys, comparable, &cost);
}
