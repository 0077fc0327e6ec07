//! Speed of the CUDA kernels on this machine's first GPU, beside what its matrix products and its memory reach in the same run,
//! and beside PyTorch where `gpu/pytorch.py` has left its numbers.
//!
//! Heads are 32 over 8 of 128, bf16. Every case runs in turn, several rounds; the table gives medians with their range, the error
//! against f64 on some rows, and the share of the bound. Operations count only pairs of rows that see each other; beside them
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
use tributary_kernels::cuda::{Event, device, identity, launch_cost, pool, uniform, visible_share};
use tributary_kernels::{
    Kernels, Keys, Pairing, Partial, Positions, Reduce, Rope, RopeScaling, add, linear, merge, rms_norm, silu_mul,
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
        let begin = Event::record(device).unwrap();
        let result = (self.work)();
        let end = Event::record(device).unwrap();
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

    /// Relative error of some rows against f64 on the CPU.
    fn error(&self) -> f64 {
        let count = self.at.len();
        let rows: Vec<u32> = (0..CHECKED).map(|i| ((count - 1) * i / (CHECKED - 1).max(1)) as u32).collect();
        let host = |x: &Tensor| x.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
        let pick = Tensor::new(rows.as_slice(), &Device::Cpu).unwrap();
        let q = host(&self.q).index_select(&pick, 0).unwrap();
        let block = &self.keys[0];
        let keys = vec![Keys { k: host(&block.k), v: host(&block.v), at: block.at.clone() }];
        let at = self.at.select(&rows);
        let expected = Kernels::Auto.attend(&q, &at, &keys, Some(&self.rope), SCALE).unwrap().out;
        let found = host(&self.run().out).index_select(&pick, 0).unwrap();
        distance(&found, &expected)
    }
}

fn distance(found: &Tensor, expected: &Tensor) -> f64 {
    let flat = |x: &Tensor| x.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap();
    let (found, expected) = (flat(found), flat(expected));
    let square = |list: &mut dyn Iterator<Item = f64>| list.map(|x| x * x).sum::<f64>();
    let far = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    (far / square(&mut expected.iter().copied())).sqrt()
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
    let scores = Case::new("scores, 64 rows", Bound::Memory, operations, bytes, move || {
        let Attention { q, at, keys, rope } = &scored;
        Kernels::Auto.column_scores(q, at, keys, Some(rope), SCALE, &lse, Reduce::Norm).unwrap()
    });
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
    let bytes = |numbers: usize| (2 * keys * numbers) as f64;
    let (x, y) = (rows(4, hidden), rows(5, hidden));
    let (gate, up) = (rows(6, wide), rows(7, wide));
    let weight = uniform([18; 32], 1.0, &[hidden], DType::F32, device).unwrap();
    let rope = Rope::new(DIM, DIM, 5e5, &RopeScaling::None, Pairing::Half, keys).unwrap();
    let (heads, at) = (random(8, &[keys, KV_HEADS, DIM], device), Positions::run(0, keys));
    let partial = |key: u8| Partial {
        out: random(key, &[keys, HEADS, DIM], device),
        lse: uniform([key + 1; 32], 1.0, &[keys, HEADS], DType::F32, device).unwrap(),
    };
    let (a, b) = (partial(9), partial(11));
    let (small, other) = (random(13, &[1, hidden], device), random(14, &[1, hidden], device));
    let normed = x.clone();
    vec![
        Case::new("rms_norm", Bound::Memory, 0.0, bytes(2 * hidden), move || rms_norm(&normed, &weight, 1e-5).unwrap()),
        Case::new("add", Bound::Memory, 0.0, bytes(3 * hidden), move || add(&x, &y).unwrap()),
        Case::new("silu_mul", Bound::Memory, 0.0, bytes(3 * wide), move || silu_mul(&gate, &up).unwrap()),
        Case::new("rope of keys", Bound::Memory, 0.0, bytes(2 * KV_HEADS * DIM), move || {
            rope.apply(&heads, &at).unwrap()
        }),
        Case::new("merge of two", Bound::Memory, 0.0, bytes(3 * hidden + 6 * HEADS), move || {
            merge(&a, &b).unwrap().out
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
    report::report(&cases, keys, &cost);
}
