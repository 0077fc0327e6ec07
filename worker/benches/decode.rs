//! Speed of decoding on one thread, through the loop of a rank, compared with a plain read of as
//! many bytes.
//!
//! A step must read every weight once and the keys and values of every sequence, so the rate of a
//! plain read is its bound. Steps of one sequence, steps of eight and both reads run in turn in
//! every round, so that all see the same machine. The difference to the plain kernels follows the
//! tables. Arguments: lengths of the context and types of numbers, or none for all; types of packed
//! weights (`Q4_0`, `Q8_0`) have all else in bf16, and no long context.

#![allow(clippy::unwrap_used)] // a measurement may panic, its helpers too

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{DType, Device};
use tributary_comm::{CoordinatorLink, link, local};
use tributary_kernels::{Kernels, Packing};
use tributary_methods::{MethodSpec, ModelFacts};
use tributary_model::{Config, LoadFormat, Model, load};
use tributary_protocol::{
    CHUNKS_ALONE, Chunk, DrawnToken, Event, Exchange, Order, OrderFor, Plan, REFERENCE, Returns, Sampling, Slices,
    TextHints,
};
use tributary_worker::{ChunkCache, serve};

const CONTEXTS: [usize; 3] = [1024, 8192, 131_072];
/// Number of positions that the model has, in place of those of its config.
const POSITIONS: usize = 262_144;
const SEQUENCES: usize = 8;
/// Number of tokens beyond which the prompt is prefilled in pieces of [`PIECE`] tokens, none of
/// which sees another: a step reads as many keys. [`LONG_SEQUENCES`] sequences then replace
/// [`SEQUENCES`].
const LONG_CONTEXT: usize = 32_768;
const PIECE: usize = 2048;
const LONG_SEQUENCES: usize = 2;
const ROUNDS: usize = 25;
/// Number of steps whose mean is a sample.
const STEPS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(600);
/// Number of tokens of the answers whose 10th and 1000th tokens are compared.
const LONG: usize = 1012;
/// Number of steps around the 10th and the 1000th token whose median counts.
const WINDOW: usize = 19;

fn plan(request: u64, context: usize, max_tokens: usize) -> Plan {
    let id = |i: usize| ((i * 2_654_435_761 + request as usize * 97) >> 7) as u32 % 4096;
    let ids = |range: std::ops::Range<usize>| -> Vec<u32> { range.map(id).collect() };
    let (method, piece) = if context > LONG_CONTEXT { (CHUNKS_ALONE, PIECE) } else { (REFERENCE, context) };
    let model = ModelFacts::new(8, 2);
    let method = MethodSpec::bare(method).planned(model).expect("a method of every model");
    let chunk = |from: usize| {
        let ids = ids(from..(from + piece).min(context - 16));
        Chunk { ids, pictures: Vec::new(), rank: 0, warm: false, around: None, compress: None }
    };
    Plan {
        request,
        prefix: Vec::new(),
        lead: Vec::new(),
        chunks: (0..context - 16).step_by(piece).map(chunk).collect(),
        query: ids(context - 16..context),
        method,
        exchange: Exchange::Replicate,
        owner: 0,
        budget: 0,
        order: Vec::new(),
        reused_rows: 0,
        continues: None,
        keep_sequence: false,
        windows_from: 0,
        hands_over: false,
        scope: None,
        keep_chunks: false,
        from_store: false,
        include_first_chunk: false,
        reorder: None,
        order_for: OrderFor::All,
        max_tokens,
        eos: Vec::new(),
        sampling: Sampling::default(),
        timeout_ms: 600_000,
        slices: Slices::default(),
        returns: Returns::default(),
        auxiliary: Vec::new(),
        text: TextHints::default(),
        draft_model: None,
        look_ahead: None,
        evict: None,
    }
}

/// The coordinator's end of a group of one rank.
struct Group<'a>(&'a CoordinatorLink);

impl Group<'_> {
    fn event(&self) -> Event {
        self.0.next(PATIENCE).unwrap().unwrap()
    }

    fn prefill(&self, plan: Plan) {
        self.0.send(Order::Prefill(Arc::new(plan))).unwrap();
        assert!(matches!(self.event(), Event::FirstToken { .. }), "a first token");
        assert!(matches!(self.event(), Event::Prefilled { .. }), "a filled cache");
    }

    /// One step of these sequences; returns the drawn tokens.
    fn step(&self, requests: &[u64]) -> Vec<DrawnToken> {
        self.0.send(Order::Decode(requests.to_vec())).unwrap();
        match self.event() {
            Event::Stepped { tokens, .. } => tokens.into_iter().map(|(_, drawn)| drawn.unwrap()).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Mean time of a step, in milliseconds.
    fn time_ms(&self, requests: &[u64], steps: usize) -> f64 {
        let start = Instant::now();
        (0..steps).for_each(|_| drop(black_box(self.step(requests))));
        start.elapsed().as_secs_f64() * 1e3 / steps as f64
    }
}

/// Runs `work` against a rank with one thread.
fn with_rank<T>(model: &dyn Model, kernels: Kernels, work: impl FnOnce(Group<'_>) -> T) -> T {
    let (coordinator, worker) = link(4);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let seat = local::seats(1).remove(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pool.install(move || {
                let mut cache = ChunkCache::none();
                serve(model, kernels, &mut seat.take(), Some(&worker), PATIENCE, &mut cache).unwrap();
            });
        });
        let done = work(Group(&coordinator));
        drop(coordinator);
        done
    })
}

/// The numbers of a model: their type, and the packing of its weights if they are packed.
#[derive(Clone, Copy)]
struct Numbers {
    name: &'static str,
    dtype: DType,
    packing: Option<Packing>,
}

const NUMBERS: [Numbers; 4] = [
    Numbers { name: "f32", dtype: DType::F32, packing: None },
    Numbers { name: "bf16", dtype: DType::BF16, packing: None },
    Numbers { name: "Q4_0", dtype: DType::BF16, packing: Some(Packing::Q4_0) },
    Numbers { name: "Q8_0", dtype: DType::BF16, packing: Some(Packing::Q8_0) },
];

/// Minimum number of bytes that a step reads.
fn step_bytes(config: &Config, Numbers { dtype, packing, .. }: Numbers, context: usize, sequences: usize) -> usize {
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let layer = config.hidden * (2 * q + 2 * kv + 3 * config.mlp_width());
    let weights = config.layers * layer + config.vocab * config.hidden;
    let weight_bytes = match packing {
        Some(packing) => weights / packing.numbers() * packing.bytes(),
        None => weights * dtype.size_in_bytes(),
    };
    weight_bytes + sequences * context * config.layers * 2 * kv * dtype.size_in_bytes()
}

/// Time in which a thread reads `bytes` bytes, in milliseconds. It compares the two halves of a
/// buffer, which the C library does in vectors: no other safe read is as fast.
fn read_ms(halves: &[Vec<u32>; 2], bytes: usize) -> f64 {
    let [left, right] = halves.each_ref().map(|half| &half[..bytes / 2 / size_of::<u32>()]);
    let start = Instant::now();
    assert!(black_box(left == right), "halves alike, read to their ends");
    start.elapsed().as_secs_f64() * 1e3
}

/// Median, least and most.
fn summary(mut samples: Vec<f64>) -> [f64; 3] {
    samples.sort_by(f64::total_cmp);
    [samples[samples.len() / 2], samples[0], samples[samples.len() - 1]]
}

/// One and eight sequences of a context.
fn side_by_side(model: &dyn Model, numbers: Numbers, context: usize) {
    let name = numbers.name;
    let sequences = if context > LONG_CONTEXT { LONG_SEQUENCES } else { SEQUENCES };
    let all: Vec<u64> = (1..=sequences as u64).collect();
    let cases = [&all[..1], &all[..]];
    let taken = 2 * ROUNDS * STEPS + 8;
    let bytes = cases.map(|list| step_bytes(model.config(), numbers, context + taken / 2, list.len()));
    let half = || (0..bytes[1] / 2 / size_of::<u32>()).map(|i| i as u32).collect();
    let halves: [Vec<u32>; 2] = [half(), half()];
    let mut samples = [const { Vec::new() }; 4];
    with_rank(model, Kernels::Auto, |group| {
        all.iter().for_each(|&request| group.prefill(plan(request, context, taken + 2)));
        let _warm_up = cases.map(|list| group.time_ms(list, 3));
        for _ in 0..ROUNDS {
            for (case, list) in cases.iter().enumerate() {
                samples[2 * case].push(group.time_ms(list, STEPS));
                samples[2 * case + 1].push(read_ms(&halves, bytes[case]));
            }
        }
    });
    let rounds = |at: usize| samples[at].iter().zip(&samples[at + 1]).map(|(step, read)| step / read).collect();
    let ratios = [0, 2].map(|at| summary(rounds(at))[0]);
    let times = samples.map(summary);
    for (case, list) in cases.iter().enumerate() {
        let ([step, least, most], [read, least_read, _]) = (times[2 * case], times[2 * case + 1]);
        let (ratio, best) = (ratios[case], least / least_read);
        let megabytes = bytes[case] as f64 / 1e6;
        let (count, rate, bound) = (list.len(), megabytes / step, megabytes / read);
        let per_second = count as f64 * 1e3 / step;
        println!(
            "{name:5} {context:6} {count:4} {step:8.2} {least:8.2} {most:8.2} {per_second:9.1} {megabytes:8.1} {rate:7.1} {bound:7.1} {ratio:6.2} {best:6.2}"
        );
    }
    let ratio = sequences as f64 * times[0][0] / times[2][0];
    println!("{name:5} {context:6}: {sequences} sequences draw {ratio:.2} times one's tokens a second");
}

/// Compares the time of an answer's 10th token with its 1000th. Two answers to prompts of the same
/// length, one of them further on, take their steps in turn.
fn tenth_and_thousandth(model: &dyn Model, name: &str, context: usize) {
    let times = with_rank(model, Kernels::Auto, |group| {
        let mut times = [Vec::new(), Vec::new()];
        group.prefill(plan(1, context, LONG + 1));
        (0..1000 - WINDOW / 2).for_each(|_| drop(group.step(&[1])));
        group.prefill(plan(2, context, LONG + 1));
        let _warm_up = group.time_ms(&[2], 10 - WINDOW / 2);
        for _ in 0..WINDOW {
            for (request, times) in [2, 1].into_iter().zip(&mut times) {
                times.push(group.time_ms(&[request], 1));
            }
        }
        times
    });
    let [tenth, last] = times.map(|times| summary(times)[0]);
    println!(
        "{name:5} {context:6}: the 10th token takes {tenth:.2} ms, the 1000th {last:.2} ms: {:.2} times",
        last / tenth
    );
}

/// Prints the difference of answers to those of the plain kernels.
fn difference(model: &dyn Model, name: &str) {
    let [ours, plain] = [Kernels::Auto, Kernels::Plain].map(|kernels| {
        with_rank(model, kernels, |group| -> Vec<DrawnToken> {
            (1..=3).for_each(|request| group.prefill(plan(request, 200, 34)));
            (0..32).flat_map(|_| group.step(&[1, 2, 3])).collect()
        })
    });
    let same = ours.iter().zip(&plain).take_while(|(ours, plain)| ours.token == plain.token).count();
    let far = |(ours, plain): (&DrawnToken, &DrawnToken)| (ours.margin - plain.margin).abs();
    let margin = ours.iter().zip(&plain).take(same).map(far).fold(0.0, f32::max);
    println!(
        "{name:5} beside the plain kernels: the first {same} of {} tokens are the same, max |margin − margin| {margin:.1e}",
        ours.len()
    );
}

/// A folder with the config of the 25 M shape and [`POSITIONS`] positions, its weights packed if
/// they are.
fn model_folder(Numbers { name, packing, .. }: Numbers) -> PathBuf {
    let shape = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/dummy-25m/config.json");
    let config = std::fs::read_to_string(shape).unwrap();
    let longer = config.replace("131072", &POSITIONS.to_string());
    assert_ne!(config, longer, "the config's own number of positions");
    let mut config: serde_json::Value = serde_json::from_str(&longer).unwrap();
    if packing.is_some() {
        config["quantization_config"] = serde_json::json!({"quant_method": "gguf", "type": name});
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("decode-25m-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    folder
}

fn main() {
    let asked: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let contexts = if asked.is_empty() { CONTEXTS.to_vec() } else { asked };
    println!("decoding, one thread, {ROUNDS} rounds in turn, median of the means of {STEPS} steps");
    println!("ms: a step; GB/s: of the bytes that a step must read; read: of a plain read of as many bytes");
    println!("ratio: time of a step to that of the read after it, median; best: the shortest of both times");
    println!("dtype  tokens  seq       ms      min      max  tokens/s       MB    GB/s    read  ratio   best");
    let is_named = |numbers: &Numbers| std::env::args().any(|argument| argument == numbers.name);
    let all_types = !NUMBERS.iter().any(is_named);
    for numbers in NUMBERS.into_iter().filter(|numbers| all_types || is_named(numbers)) {
        let Numbers { name, dtype, packing } = numbers;
        let model = load(&model_folder(numbers), LoadFormat::Dummy { seed: 1 }, dtype, &Device::Cpu).unwrap();
        let is_meant = |context: &&usize| packing.is_none() || **context <= LONG_CONTEXT;
        contexts.iter().filter(is_meant).for_each(|&context| side_by_side(&*model, numbers, context));
        tenth_and_thousandth(&*model, name, CONTEXTS[0]);
        difference(&*model, name);
    }
}
