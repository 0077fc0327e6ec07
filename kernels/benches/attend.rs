//! Speed of attention on one thread, compared with candle-nn's and the machine's rate of matrix
//! products.
//!
//! Criterion runs every case first. Then all cases run in turn, several rounds, and a table gives
//! medians with their range, the error, and the rate: floating-point operations count only pairs of
//! rows that see each other.

#![allow(clippy::unwrap_used)] // a measurement may panic, its helpers too

use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use candle_nn::attention::{AttnMask, cpu_flash::flash_attn};
use criterion::{Criterion, SamplingMode};
use tributary_kernels::{Kernels, Keys, Partial, Positions, Query, Reduce, gather, linear};

const TOKENS: usize = 4096;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const SCALE: f32 = 0.125;
/// One row in this number is selected in the staircase.
const STAIR: usize = 7;
/// Keys of probe, decode and column scores.
const CONTEXT: usize = 8192;
/// Keys that a row sees in a window: Gemma 3's and gpt-oss'.
const WINDOWS: [u32; 2] = [1024, 128];
const ROUNDS: usize = 7;
const THREAD_VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];

/// Something to time.
struct Case {
    name: String,
    /// Floating-point operations that count.
    operations: f64,
    /// Largest difference from another way to the same values, where there is one.
    error: Option<f32>,
    work: Box<dyn Fn() -> Tensor>,
}

impl Case {
    fn new(name: &str, operations: f64, work: impl Fn() -> Tensor + 'static) -> Self {
        Self { name: name.to_string(), operations, error: None, work: Box::new(work) }
    }

    /// Takes the error against `expected`.
    fn against(mut self, expected: &Tensor) -> Self {
        self.error = Some(difference(&(self.work)(), expected));
        self
    }

    fn time_ms(&self) -> f64 {
        let start = Instant::now();
        black_box((self.work)());
        start.elapsed().as_secs_f64() * 1e3
    }
}

fn difference(a: &Tensor, b: &Tensor) -> f32 {
    let far = (a - b).unwrap().abs().unwrap().flatten_all().unwrap();
    far.max(0).unwrap().to_scalar().unwrap()
}

fn random(shape: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
}

fn keys(count: usize) -> Vec<Keys> {
    let shape = [count, KV_HEADS, HEAD_DIM];
    vec![Keys { k: random(&shape), v: random(&shape), at: Positions::run(0, count) }]
}

fn in_bf16(keys: &[Keys]) -> Vec<Keys> {
    let narrow = |x: &Tensor| x.to_dtype(DType::BF16).unwrap();
    keys.iter().map(|block| Keys { k: narrow(&block.k), v: narrow(&block.v), at: block.at.clone() }).collect()
}

/// Multiplications and additions of scores and outputs.
fn operations(pairs: usize) -> f64 {
    (4 * HEAD_DIM * HEADS * pairs) as f64
}

fn attend(kernels: Kernels, q: &Tensor, at: &Positions, keys: &[Keys]) -> Partial {
    kernels.attend(&Query { q, at, keys, rope: None, scale: SCALE, dtype: DType::F32 }).unwrap()
}

fn products() -> Vec<Case> {
    let square = [random(&[1024, 1024]), random(&[1024, 1024])];
    let (x, weight) = (random(&[TOKENS, 512]), random(&[1408, 512]));
    let narrow = weight.to_dtype(DType::BF16).unwrap();
    let cost = (2 * TOKENS * 512 * 1408) as f64;
    let widened = linear(&x, &narrow.to_dtype(DType::F32).unwrap(), None).unwrap();
    let work = {
        let (x, weight) = (x.clone(), weight.clone());
        move || x.matmul(&weight.t().unwrap()).unwrap()
    };
    let mut cases = vec![
        Case::new("candle matmul 1024 x 1024 x 1024", 2.0 * 1024f64.powi(3), move || {
            square[0].matmul(&square[1]).unwrap()
        }),
        Case::new("candle matmul 4096 x 512 x 1408", cost, work),
    ];
    for rows in [TOKENS, 600, 64, 8] {
        let few = x.narrow(0, 0, rows).unwrap();
        let cost = (2 * rows * 512 * 1408) as f64;
        for (of, weight) in [("", &weight), (", bf16 weight", &narrow)] {
            let (few, weight, expected) = (few.clone(), weight.clone(), widened.narrow(0, 0, rows).unwrap());
            let case = Case::new(&format!("linear {rows} x 512 x 1408{of}"), cost, move || {
                linear(&few, &weight, None).unwrap()
            });
            cases.push(if of.is_empty() { case } else { case.against(&expected) });
        }
    }
    cases
}

/// Dense causal attention, candle's and ours, and the staircase.
fn prefill() -> Vec<Case> {
    let (q, keys) = (random(&[TOKENS, HEADS, HEAD_DIM]), keys(TOKENS));
    let at = keys[0].at.clone();
    let candle = {
        let [q, k, v] = [&q, &keys[0].k, &keys[0].v].map(|x| x.unsqueeze(0).unwrap());
        move || flash_attn::<f32>(&q, &k, &v, SCALE, AttnMask::causal(), None, None).unwrap()
    };
    let dense = attend(Kernels::Auto, &q, &at, &keys).out;
    let cost = operations(TOKENS * (TOKENS + 1) / 2);
    let expected = candle().squeeze(0).unwrap();
    let expected = if expected.dims() == dense.dims() { expected } else { expected.transpose(0, 1).unwrap() };

    let selected: Vec<u32> = (0..TOKENS as u32).step_by(STAIR).collect();
    let pairs = selected.iter().map(|&row| row as usize + 1).sum();
    let (stairs_q, stairs_at) = (gather(&q, &selected).unwrap(), at.select(&selected));
    let expected_stairs = gather(&dense, &selected).unwrap();
    let mut cases = vec![Case::new("candle flash_attn, causal 4096", cost, candle)];
    for (of, keys) in [("", keys.clone()), (", bf16", in_bf16(&keys))] {
        let (stairs_keys, q, at) = (keys.clone(), q.clone(), at.clone());
        let (stairs_q, stairs_at) = (stairs_q.clone(), stairs_at.clone());
        let dense = move || attend(Kernels::Auto, &q, &at, &keys).out;
        let stairs = move || attend(Kernels::Auto, &stairs_q, &stairs_at, &stairs_keys).out;
        cases.push(Case::new(&format!("attend, causal 4096{of}"), cost, dense).against(&expected));
        let name = format!("attend, staircase 1 in 7 of 4096{of}");
        cases.push(Case::new(&name, operations(pairs), stairs).against(&expected_stairs));
    }
    cases
}

/// Dense causal attention of many rows, and the same in sliding windows.
fn windows() -> Vec<Case> {
    let (q, keys) = (random(&[CONTEXT, HEADS, HEAD_DIM]), keys(CONTEXT));
    let mut cases = Vec::new();
    for (of, keys) in [("", keys.clone()), (", bf16", in_bf16(&keys))] {
        for window in [None].into_iter().chain(WINDOWS.map(Some)) {
            let (q, keys, at) = (q.clone(), keys.clone(), keys[0].at.within(window));
            let pairs = (1..=CONTEXT).map(|row| window.map_or(row, |window| row.min(window as usize))).sum();
            let name = match window {
                None => format!("attend, all of 8192{of}"),
                Some(window) => format!("attend, window of {window} in 8192{of}"),
            };
            cases.push(Case::new(&name, operations(pairs), move || attend(Kernels::Auto, &q, &at, &keys).out));
        }
    }
    cases
}

/// A few rows over many keys.
fn few_rows() -> Vec<Case> {
    let keys = keys(CONTEXT);
    let mut cases = Vec::new();
    for rows in [1, 16, 600] {
        let (q, at) = (random(&[rows, HEADS, HEAD_DIM]), Positions::run(CONTEXT as u32, rows));
        let expected = attend(Kernels::Plain, &q, &at, &keys);
        let scores = |kernels: Kernels, q: &Tensor, at: &Positions, keys: &[Keys], lse: &Tensor| {
            kernels
                .column_scores(&Query { q, at, keys, rope: None, scale: SCALE, dtype: DType::F32 }, lse, Reduce::Norm)
                .unwrap()
        };
        let expected_scores = scores(Kernels::Plain, &q, &at, &keys, &expected.lse);
        let cost = operations(rows * CONTEXT);
        for (of, keys) in [("", keys.clone()), (", bf16", in_bf16(&keys))] {
            let (work_q, work_at, work_keys) = (q.clone(), at.clone(), keys.clone());
            let work = move || attend(Kernels::Auto, &work_q, &work_at, &work_keys).out;
            cases.push(Case::new(&format!("attend, {rows} over 8192{of}"), cost, work).against(&expected.out));
            if rows > 1 {
                let (q, at, lse) = (q.clone(), at.clone(), expected.lse.clone());
                let work = move || scores(Kernels::Auto, &q, &at, &keys, &lse);
                let case = Case::new(&format!("column scores, {rows} over 8192{of}"), cost / 2.0, work);
                cases.push(case.against(&expected_scores));
            }
        }
    }
    cases
}

/// Median, least and most, in ms.
fn summary(mut samples: Vec<f64>) -> [f64; 3] {
    samples.sort_by(f64::total_cmp);
    [samples[samples.len() / 2], samples[0], samples[samples.len() - 1]]
}

fn table(cases: &[Case]) {
    let mut samples = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for (case, samples) in cases.iter().zip(&mut samples) {
            samples.push(case.time_ms());
        }
    }
    let times: Vec<[f64; 3]> = samples.into_iter().map(summary).collect();
    let rate = |i: usize| cases[i].operations / times[i][0] / 1e6;
    let gemm = rate(0).max(rate(1));
    println!(
        "\none thread, f32 where no type is named, {HEADS} query and {KV_HEADS} KV heads of {HEAD_DIM}, {ROUNDS} rounds in turn"
    );
    println!("{:40} {:>9} {:>9} {:>9} {:>8} {:>7}  max |diff|", "", "median ms", "min", "max", "GFLOP/s", "of GEMM");
    for (i, case) in cases.iter().enumerate() {
        let ([median, least, most], share) = (times[i], 100.0 * rate(i) / gemm);
        let error = case.error.map_or("-".to_string(), |error| format!("{error:.1e}"));
        println!("{:40} {median:9.2} {least:9.2} {most:9.2} {:8.1} {share:6.0}%  {error}", case.name, rate(i));
    }
    let place = |name: &str| cases.iter().position(|case| case.name.starts_with(name)).unwrap();
    let (candle, dense, stairs) = (place("candle flash"), place("attend, causal"), place("attend, staircase"));
    println!("\nattend is {:.1} times candle's flash_attn", times[candle][0] / times[dense][0]);
    println!("attend reaches {:.0} % of the GEMM rate ({gemm:.1} GFLOP/s)", 100.0 * rate(dense) / gemm);
    println!("the staircase costs {:.2} times its share of the dense case", rate(dense) / rate(stairs));
    for of in ["", ", bf16"] {
        let named = |name: String| cases.iter().position(|case| case.name == name).unwrap();
        let all = named(format!("attend, all of 8192{of}"));
        for window in WINDOWS {
            let share = rate(all) / rate(named(format!("attend, window of {window} in 8192{of}")));
            println!("a window of {window}{of} costs {share:.2} times its share of the dense case");
        }
    }
}

/// Runs this program again with one thread everywhere: candle reads its number of threads from the
/// environment.
fn run_again_with_one_thread() -> ! {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = std::process::Command::new(program);
    command.args(std::env::args().skip(1)).envs(THREAD_VARIABLES.map(|name| (name, "1")));
    let status = command.status().expect("this program can be started, for it is running");
    std::process::exit(status.code().unwrap_or(1));
}

fn main() {
    if THREAD_VARIABLES.iter().any(|name| std::env::var(name).as_deref() != Ok("1")) {
        run_again_with_one_thread();
    }
    let cases: Vec<Case> = [products(), prefill(), windows(), few_rows()].into_iter().flatten().collect();
    let criterion = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(100));
    let mut criterion = criterion.measurement_time(Duration::from_millis(500)).configure_from_args();
    let mut group = criterion.benchmark_group("one thread");
    group.sampling_mode(SamplingMode::Flat);
    for case in &cases {
        group.bench_function(&case.name, |bencher| bencher.iter(|| black_box((case.work)())));
    }
    group.finish();
    if std::env::args().skip(1).eq(["--bench"]) {
        table(&cases); // of all cases: not where some were asked for
    }
}
