//! The planner's table of inputs and outputs.

use tributary_methods::ModelFacts;
use tributary_protocol::tile::{Tile, TileOrder};
use tributary_protocol::{Exchange, Importance, Method, OrderFor, Packets, Picture, Pixels, Sampling, Score};

use super::settings::budget;
use super::{Cached, Draft, Held, MethodInputs, PlanInput, Planned, RequestSettings, Tokens, check_weights, plan};
use crate::machine::{Machine, MemoryOf};
use crate::shape::tests::{DEMO, QWEN3_14B};
use crate::vision::VisionShape;
use crate::{Error, ModelShape, Result};

const MACHINE: Machine = Machine {
    flops_per_s: 1e10,
    link_bytes_per_s: 4e9,
    memory: MemoryOf::Host,
    available_bytes: None,
    ranks_here: usize::MAX,
    weight_copies: 1,
    of_rank: None,
};

/// A plan for chunks of these lengths, one prefix token, and three query tokens, on the demo model.
fn input(chunks: &[Vec<u32>]) -> PlanInput<'_> {
    let (cached, method_inputs) = (Cached::default(), MethodInputs::default());
    PlanInput { request: 1, prefix: &[1], lead: &[], chunks, cached, query: &[3], eos: &[2], method_inputs }
}

fn planned(lengths: &[usize], settings: &RequestSettings, machine: &Machine) -> Result<Planned> {
    let chunks: Vec<Vec<u32>> = lengths.iter().map(|&length| vec![7; length]).collect();
    let input = PlanInput { query: &[3, 4, 5], ..input(&chunks) };
    plan(&input, settings, &DEMO, machine, None)
}

fn world(world: usize) -> RequestSettings {
    RequestSettings { world, exchange: Some(Exchange::Replicate), ..RequestSettings::default() }
}

fn method(name: &str) -> RequestSettings {
    RequestSettings::default().set(&name.parse().unwrap())
}

#[test]
fn chunks_go_to_ranks_by_cost() {
    let pass_q = |world| RequestSettings { world, exchange: Some(Exchange::PassQ), ..RequestSettings::default() };
    let cases: [(&str, &[usize], RequestSettings, &[usize]); 10] = [
        ("one chunk, one rank", &[9], world(1), &[0]),
        ("one chunk, four ranks", &[9], world(4), &[0]),
        ("even", &[64; 4], world(2), &[0, 1, 0, 1]),
        ("odd number", &[64; 3], world(2), &[0, 1, 0]),
        ("more ranks than chunks", &[64, 64, 64], world(8), &[0, 1, 2]),
        ("one long chunk", &[300, 100, 100, 80], world(2), &[0, 1, 1, 1]),
        ("longest first", &[10, 20, 30, 40], world(2), &[0, 1, 1, 0]),
        ("squares count", &[1000, 500, 500], world(2), &[0, 1, 1]),
        // More rows attend to early chunks: the first weighs as much as the others together.
        ("pass-q", &[64; 4], pass_q(2), &[0, 1, 1, 0]),
        ("pass-q, one rank", &[64; 3], pass_q(1), &[0, 0, 0]),
    ];
    for (name, lengths, settings, wanted) in cases {
        let plan = planned(lengths, &settings, &MACHINE).unwrap().plan;
        let ranks: Vec<usize> = plan.chunks.iter().map(|chunk| chunk.rank).collect();
        assert_eq!(ranks, wanted, "{name}");
        let found: Vec<usize> = plan.chunks.iter().map(|chunk| chunk.ids.len()).collect();
        assert_eq!(found, lengths, "{name}: chunks keep their order");
    }
}

#[test]
fn loads_are_within_one_chunk_of_each_other() {
    let lengths: Vec<usize> = (0..40).map(|index| 10 + 37 * index % 90).collect();
    for ranks in 2..=5 {
        let plan = planned(&lengths, &world(ranks), &MACHINE).unwrap().plan;
        let mut loads = vec![0.0; ranks];
        for chunk in &plan.chunks {
            loads[chunk.rank] += DEMO.prefill_flops(chunk.ids.len(), 1);
        }
        let spread =
            loads.iter().fold(0.0, |a, &b| f64::max(a, b)) - loads.iter().fold(f64::INFINITY, |a, &b| f64::min(a, b));
        assert!(spread <= DEMO.prefill_flops(99, 1), "{ranks} ranks: {loads:?}");
    }
}

#[test]
fn budgets_are_rounded_down_but_not_to_nothing() {
    let cases = [
        (0.0, 100, 0),
        (0.15, 20, 3),
        (0.15, 19, 2),
        (0.15, 512, 76),
        (0.29, 100, 29),
        (0.001, 10, 1),
        (1.0, 33, 33),
        (0.05, 640, 32),
    ];
    for (ratio, context_tokens, wanted) in cases {
        assert_eq!(budget(ratio, context_tokens), wanted, "{ratio} of {context_tokens}");
        let settings = RequestSettings { ratio: Some(ratio), ..RequestSettings::default() };
        let planned = planned(&[context_tokens], &settings, &MACHINE).unwrap();
        assert_eq!((planned.plan.budget, planned.ratio), (wanted, ratio));
    }
}

#[test]
fn rows_a_chunk_are_taken_of_the_first_tile_too_unless_it_is_exact() {
    let vision = VisionShape {
        layers: 1,
        whole_layers: 1,
        window_patches: 0,
        hidden: 8,
        intermediate: 16,
        mlp_matrices: 2,
        patch: 16,
        merge: 2,
        frames: 2,
        levels: 0,
        out: 8,
        least_pixels: 1,
        most_pixels: 1 << 20,
    };
    let shape = ModelShape { vision: Some(vision), ..DEMO };
    let budget = |order: TileOrder| {
        let picture = |number: u8| {
            let tile = Some(Tile { grid: 2, number, before: 0, order });
            vec![Picture { first: 0, lines: 2, columns: 10, hash: [7; 32], tile, pixels: Pixels::default() }]
        };
        let (chunks, pictures) = (vec![vec![7; 5]; 4], (0..4).map(picture).collect());
        let tokens = Tokens { prefix: vec![1], chunks, pictures, query: vec![3], ..Tokens::default() };
        Draft::new(tokens, &method("epic:rows=3"), &shape).unwrap().plan().budget
    };
    assert_eq!([budget(TileOrder::Raster), budget(TileOrder::Tile)], [4 * 3, 3 * 3]);
}

/// A budget that is divided evenly is not spent where chunks are short: rows of long ones stay.
#[test]
fn first_rows_of_chunks_are_exact_where_they_are_all() {
    let is_exact = |lengths: &[usize], spec: &str| planned(lengths, &method(spec), &MACHINE).unwrap().plan.is_exact();
    assert!(is_exact(&[100, 95, 5], "epic:ratio=1"), "100 rows of each");
    assert!(!is_exact(&[10, 150, 40], "epic:ratio=1"), "100 rows of 150");
    assert!(is_exact(&[10, 150, 40], "random:ratio=1"));
}

#[test]
fn methods_have_their_own_defaults() {
    let epic = method("epic:rows=8:ratio=0.5");
    let epic_first = RequestSettings { include_first_chunk: true, ..epic.clone() };
    let cases: [(RequestSettings, usize); 11] = [
        (method("full"), 0),
        (method("ring"), 0),
        (method("all-gather"), 0),
        (method("none"), 0),
        (method("random"), 30),
        (method("infoflow"), 30),
        (method("prophetkv"), 40),
        (method("relay"), 30),
        (method("epic"), 30),
        (epic, 8 + 5),
        (epic_first, 8 + 8 + 5),
    ];
    for (settings, wanted) in cases {
        let Planned { plan, ratio, .. } = planned(&[100, 95, 5], &settings, &MACHINE).unwrap();
        assert_eq!(plan.budget, wanted, "{}", settings.spec());
        assert_eq!(plan.method.method, settings.method);
        assert!(
            (ratio * 200.0 - wanted as f64).abs() < 1e-9,
            "{}: ratio {ratio} for {wanted} of 200",
            plan.method.name()
        );
    }
}

#[test]
fn infoflow_scores_in_the_middle_layers() {
    let cases = [(40, 22..26), (5, 2..4), (1, 0..1), (2, 1..2), (28, 15..19), (8, 4..6)];
    for (layers, wanted) in cases {
        let found = RequestSettings::default().method(ModelFacts::new(layers, 2)).unwrap();
        let evidence = found.0.evidence().unwrap();
        assert_eq!(found.1.iter().nth(1).unwrap().1, format!("{}..{}", wanted.start, wanted.end));
        assert_eq!((evidence.layers.of(layers), evidence.score), (wanted, Score::Norm), "{layers} layers");
    }
}

#[test]
fn the_exchange_follows_from_bytes_and_memory() {
    let lengths = [512; 4];
    let auto = |world| RequestSettings { world, exchange: None, ..RequestSettings::default() };
    let of = |settings: &RequestSettings, machine: &Machine| {
        planned(&lengths, settings, machine).map(|planned| planned.plan.exchange)
    };
    assert_eq!(of(&auto(4), &MACHINE).unwrap(), Exchange::Replicate, "hidden under the prefill");
    let slow = Machine { link_bytes_per_s: 1e5, ..MACHINE };
    assert_eq!(of(&auto(4), &slow).unwrap(), Exchange::PassQ, "nothing hides a slow gather");
    assert_eq!(of(&auto(1), &slow).unwrap(), Exchange::Replicate, "one rank sends nothing");
    let exact = RequestSettings { world: 4, ..method("ring") };
    assert_eq!(of(&exact, &slow).unwrap(), Exchange::Replicate, "exact methods do not use it");

    // Threads share gathered data; processes hold a copy each.
    let processes = Machine { ranks_here: 4, weight_copies: 4, ..MACHINE };
    let bytes = |exchange| {
        let settings = RequestSettings { exchange: Some(exchange), ..auto(4) };
        planned(&lengths, &settings, &processes).unwrap().memory_bytes
    };
    let (replicate, pass_q) = (bytes(Exchange::Replicate), bytes(Exchange::PassQ));
    assert!(pass_q < replicate, "{pass_q} {replicate}");
    let with = |available_bytes| Machine { available_bytes: Some(available_bytes), ..processes };
    assert_eq!(of(&auto(4), &with(replicate)).unwrap(), Exchange::Replicate);
    assert_eq!(of(&auto(4), &with(replicate - 1)).unwrap(), Exchange::PassQ, "replicate does not fit");
    let forced = RequestSettings { exchange: Some(Exchange::Replicate), ..auto(4) };
    for (settings, available, needed) in [(auto(4), pass_q - 1, pass_q), (forced, replicate - 1, replicate)] {
        let error = of(&settings, &with(available)).unwrap_err();
        assert!(
            matches!(error, Error::Memory { needed_bytes, available_bytes, .. }
                if needed_bytes == needed && available_bytes == available),
            "{error}"
        );
        assert_eq!(error.exit_code(), 71);
    }
}

#[test]
fn memory_is_predicted_in_the_right_size() {
    // Qwen3-14B, bf16, 32K tokens on one rank: 29.5 GB of weights, 5.4 GB of keys and values, 4 GB
    // of activations.
    let chunks = vec![vec![7; 2048]; 16];
    let input = input(&chunks);
    let settings = RequestSettings { world: 1, ..RequestSettings::default() };
    let bytes = plan(&input, &settings, &QWEN3_14B, &MACHINE, None).unwrap().memory_bytes;
    assert!((37_000_000_000..42_000_000_000).contains(&bytes), "{bytes}");
}

#[test]
fn a_plan_carries_what_was_asked_for() {
    let settings = RequestSettings {
        reorder: Some(Importance::Selected),
        include_first_chunk: true,
        max_tokens: 5,
        sampling: Sampling { temperature: 0.5, top_p: 0.9, top_k: 7, seed: 3, ..Sampling::default() },
        ..RequestSettings::default()
    };
    let plan = planned(&[4], &settings, &MACHINE).unwrap().plan;
    assert_eq!((plan.prefix.as_slice(), plan.query.as_slice()), ([1].as_slice(), [3, 4, 5].as_slice()));
    assert_eq!(plan.eos, [2]);
    assert_eq!(plan.reorder, Some(Importance::Selected));
    assert!(plan.include_first_chunk);
    assert_eq!((plan.max_tokens, &plan.sampling), (5, &settings.sampling));
    assert_eq!(plan.timeout_ms, 60_000);
    let random = RequestSettings { sampling: settings.sampling.clone(), ..method("random") };
    let plan = planned(&[4], &random, &MACHINE).unwrap().plan;
    assert_eq!((plan.method.name(), plan.sampling.seed), ("random", 3), "one seed for all draws");
}

#[test]
fn the_owner_is_the_one_wished_for_or_the_usual_one() {
    for (name, usual) in [("full", 2), ("ring", 0), ("all-gather", 2), ("none", 2), ("epic", 2), ("relay", 2)] {
        let owner = |owner| {
            let settings = RequestSettings { world: 3, owner, ..method(name) };
            planned(&[9, 8], &settings, &MACHINE).unwrap().plan.owner
        };
        assert_eq!(owner(None), usual, "{name}");
        for wished in 0..3 {
            assert_eq!(owner(Some(wished)), wished, "{name}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_numbers() {
    let base = RequestSettings::default;
    let sampling = |temperature, top_p| Sampling { temperature, top_p, ..Sampling::default() };
    let (order_for, packets) = (OrderFor::Selection, Packets::On);
    let cases: [(&[usize], RequestSettings, &[&str]); 26] = [
        (&[4], RequestSettings { owner: Some(1), ..base() }, &["owner 1", "one of 1 ranks"]),
        (&[4], RequestSettings { world: 0, ..base() }, &["--world-size 0", "at least 1"]),
        (&[4], RequestSettings { world: usize::MAX, ..base() }, &["--world-size 18446744073709551615", "at most 4096"]),
        (
            &[4],
            RequestSettings { max_tokens: usize::MAX, ..base() },
            &["8 prompt tokens", "18446744073709551615 to generate", "4096"],
        ),
        (&[4], RequestSettings { ratio: Some(1.5), ..base() }, &["--ratio 1.5", "from 0 to 1"]),
        (&[4], RequestSettings { ratio: Some(-0.1), ..base() }, &["--ratio -0.1"]),
        (&[4], RequestSettings { ratio: Some(f64::NAN), ..base() }, &["--ratio NaN"]),
        (&[4], RequestSettings { ratio: Some(2.0), ..method("full") }, &["--ratio 2"]),
        (&[4], method("infoflow:layers=3..6"), &["--method infoflow:layers=3..6", "5 layers"]),
        (&[4], method("infoflow:layers=2..2"), &["2..2", "5 layers"]),
        (&[4], RequestSettings { reorder: Some(Importance::Mass), ..method("epic") }, &["--reorder", "epic"]),
        (&[4], RequestSettings { reorder: Some(Importance::Mass), ..method("full") }, &["--reorder", "full"]),
        (
            &[4],
            RequestSettings { order_for, ..method("infoflow") },
            &["--method infoflow:order-for=selection", "needs reorder"],
        ),
        (
            &[4],
            RequestSettings { order_for, ..method("trace:keep-order") },
            &["--method trace:order-for=selection", "keep-order"],
        ),
        (&[4], RequestSettings { max_tokens: 0, ..base() }, &["--max-tokens 0"]),
        (&[4000, 80], base(), &["4084 prompt tokens", "32 to generate", "4116", "4096"]),
        (&[4], method("all-gather:heads=3"), &["--method all-gather:heads=3", "2 KV heads"]),
        (&[4], RequestSettings { sampling: sampling(-1.0, 1.0), ..base() }, &["--temperature -1"]),
        (&[4], RequestSettings { sampling: sampling(0.0, -0.1), ..base() }, &["--top-p -0.1"]),
        (&[], base(), &["no documents"]),
        (&[3, 0, 2], base(), &["document 2 of 3"]),
        (&[4], method("kv-packet"), &["--method kv-packet", "needs --adapter DIR"]),
        (&[4], RequestSettings { packets, ..base() }, &["--method infoflow:packets", "needs --adapter DIR"]),
        (&[4], RequestSettings { packets, ..method("full") }, &["--method full:packets", "are for none, random"]),
        (&[4], method("cacheclip"), &["--method cacheclip", "needs --aux-model DIR"]),
        (&[4], method("spec-prefill-like"), &["--method spec-prefill-like", "needs --aux-model DIR"]),
    ];
    for (lengths, settings, wanted) in cases {
        let error = planned(lengths, &settings, &MACHINE).unwrap_err();
        let message = error.to_string();
        for part in wanted {
            assert!(message.contains(part), "`{message}` does not say `{part}`");
        }
        assert!(!message.contains('\n'), "{message}");
        assert_eq!(error.exit_code(), 64, "{message}");
    }
}

#[test]
fn the_longest_prompt_that_fits_is_accepted() {
    let settings = RequestSettings { max_tokens: 32, ..RequestSettings::default() };
    assert!(planned(&[4096 - 32 - 4], &settings, &MACHINE).is_ok());
    assert!(planned(&[4096 - 32 - 3], &settings, &MACHINE).is_err());
}

#[test]
fn foreign_ids_and_empty_queries_are_refused() {
    let chunks = [vec![5]];
    let input = PlanInput { prefix: &[], lead: &[], query: &[378], ..input(&chunks) };
    let error = plan(&input, &RequestSettings::default(), &DEMO, &MACHINE, None).unwrap_err().to_string();
    assert!(error.contains("378"), "{error}");
    let input = PlanInput { query: &[], ..input };
    let error = plan(&input, &RequestSettings::default(), &DEMO, &MACHINE, None);
    assert!(matches!(error, Err(Error::EmptyQuery)));
}

/// Chunks in the memories of these ranks; `None` for an uncached one.
fn in_memory(ranks: &[Option<usize>]) -> Vec<Held> {
    ranks.iter().map(|rank| rank.map_or(Held::Nowhere, Held::Memory)).collect()
}

/// The ranks of the chunks and the warm ones among them, with cached chunks on the ranks in
/// `cached`.
fn placed(cached: &[Option<usize>], settings: &RequestSettings) -> (Vec<usize>, Vec<bool>) {
    let chunks = vec![vec![7; 64]; cached.len()];
    let held = in_memory(cached);
    let input = PlanInput { cached: Cached { chunks: &held, ..Cached::default() }, ..input(&chunks) };
    let plan = plan(&input, settings, &DEMO, &MACHINE, None).unwrap().plan;
    plan.chunks.iter().map(|chunk| (chunk.rank, chunk.warm)).unzip()
}

#[test]
fn warm_chunks_stay_where_they_lie_and_the_others_even_out() {
    let there = [Some(1), Some(1), None, Some(1), None, None];
    let warm = [true, true, false, true, false, false];
    assert_eq!(placed(&there, &world(2)), (vec![1, 1, 0, 1, 1, 0], warm.to_vec()), "warm chunks are no load");
    let pass_q = RequestSettings { exchange: Some(Exchange::PassQ), ..world(2) };
    assert_eq!(placed(&there, &pass_q).0, [1, 1, 0, 1, 0, 0], "under pass-q they are");
    assert_eq!(placed(&there, &world(1)), (vec![0; 6], vec![false; 6]), "there is no rank 1");
    let exact = RequestSettings { method: Method::named("ring").unwrap(), ..world(2) };
    assert_eq!(placed(&there, &exact).1, [false; 6]);
}

#[test]
fn a_share_of_the_cached_chunks_is_spread_over_the_request() {
    let warm = |reuse, count| placed(&vec![Some(0); count], &RequestSettings { reuse, ..world(1) }).1;
    let numbers = |reuse, count| -> Vec<usize> { (0..count).filter(|&chunk| warm(reuse, count)[chunk]).collect() };
    assert_eq!(numbers(0.0, 8), Vec::<usize>::new());
    assert_eq!(numbers(0.5, 8), [1, 3, 5, 7]);
    assert_eq!(numbers(0.25, 8), [3, 7]);
    assert_eq!(numbers(1.0, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(numbers(0.3, 10).len(), 3);
    let error = planned(&[4], &RequestSettings { reuse: 1.5, ..RequestSettings::default() }, &MACHINE).unwrap_err();
    assert_eq!(error.exit_code(), 64);
}

#[test]
fn only_methods_with_chunks_keep_them() {
    let keeps = |name: &str| {
        planned(&[4], &RequestSettings { keep_chunks: true, ..method(name) }, &MACHINE).unwrap().plan.keep_chunks
    };
    assert!(keeps("infoflow") && keeps("none"));
    assert!(!keeps("full") && !keeps("ring"));
}

#[test]
fn what_the_chunk_caches_hold_counts_as_memory() {
    let chunks = vec![vec![7; 64]; 4];
    let of = |bytes: &[u64], available_bytes: Option<u64>| {
        let cached = Cached { bytes, ..Cached::default() };
        let input = PlanInput { cached, ..input(&chunks) };
        plan(&input, &world(1), &DEMO, &Machine { available_bytes, ..MACHINE }, None)
    };
    let alone = of(&[], None).unwrap().memory_bytes;
    assert_eq!(of(&[1000], None).unwrap().memory_bytes, alone + 1000);
    assert!(of(&[1000], Some(alone + 1000)).is_ok());
    let error = of(&[1000], Some(alone + 999)).unwrap_err();
    assert_eq!(error.exit_code(), 71);
}

#[test]
fn work_to_hide_a_gather_under_is_that_of_cold_chunks() {
    // Everything is warm: the probe alone hides too little of the gather, and queries are fewer
    // bytes.
    let slow = Machine { link_bytes_per_s: 1e5, flops_per_s: 1e7, ..MACHINE };
    let chunks = vec![vec![7; 512]; 4];
    let exchange = |ranks: &[Option<usize>]| {
        let held = in_memory(ranks);
        let cached = Cached { chunks: &held, ..Cached::default() };
        let input = PlanInput { cached, ..input(&chunks) };
        let settings = RequestSettings { world: 2, ratio: Some(0.05), ..RequestSettings::default() };
        plan(&input, &settings, &DEMO, &slow, None).unwrap().plan.exchange
    };
    assert_eq!(exchange(&[]), Exchange::Replicate);
    assert_eq!(exchange(&[Some(0), Some(1), Some(0), Some(1)]), Exchange::PassQ);
}

#[test]
fn too_little_memory_is_said_with_both_numbers_and_whose_it_is() {
    let there = Machine { available_bytes: Some(3 << 29), of_rank: Some(3), memory: MemoryOf::Device, ..MACHINE };
    let chunks = vec![vec![7; 2048]; 16];
    let input = input(&chunks);
    let error = plan(&input, &world(1), &QWEN3_14B, &there, None).unwrap_err();
    let (said, end) = (error.to_string(), "are available to rank 3 (--device-memory); use fewer tokens");
    assert!(said.starts_with("the request needs about ") && said.contains(" GiB of device memory, 1.5 GiB "), "{said}");
    assert!(said.contains(end), "{said}");
    let error = check_weights(&QWEN3_14B, &there).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the weights need about 27.6 GiB of device memory, 1.5 GiB are available to rank 3 (--device-memory); use bf16 or a \
         smaller model"
    );
    assert_eq!(error.exit_code(), 71);
    let here = Machine { available_bytes: Some(40 << 20), ..MACHINE };
    let error = plan(&input, &world(1), &QWEN3_14B, &here, None).unwrap_err().to_string();
    assert!(error.contains(" GiB of memory, 40.0 MiB are available; use"), "{error}");
    assert!(check_weights(&QWEN3_14B, &MACHINE).is_ok(), "free memory is unknown");
    assert!(check_weights(&QWEN3_14B, &Machine { available_bytes: Some(28 << 30), ..there }).is_ok());
}
