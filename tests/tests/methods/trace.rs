//! The method `trace` over worlds and exchanges: exact in the order that it finds, equal in every
//! world there, and without its free probes where those do not fit. Properties of all methods are
//! tested in `equivalence.rs`, `bytes.rs`, `warm.rs` and `stored.rs`.

use tributary_protocol::{Exchange, Outcome, Plan, Trace, TraceHeads};
use tributary_tests::equal::Largest;
use tributary_tests::{
    dummy_model, eager_trace, logits, method, plan, relative_error, run, sharp_trace, tiny_config, tiny_models, traced,
    with_ratio,
};

const EXACT_EXCHANGES: [Exchange; 2] = [Exchange::Replicate, Exchange::PassQ];

/// Prefix, chunk lengths, query length.
const SHAPES: [(usize, &[usize], usize); 4] =
    [(1, &[16, 16, 16, 16], 5), (3, &[7, 31, 2, 18, 1], 4), (0, &[12, 9], 1), (4, &[70, 1, 150, 33, 64, 5, 90], 9)];

/// Free probes put chunks in an order of their own: with every row recomputed the answer is that of
/// a full prefill in this order.
#[test]
fn a_traced_request_equals_full_prefill_in_the_order_that_it_finds() {
    let mut largest = Largest::new("2: trace at ratio 1 = full in its order");
    let (mut moved, mut rounds) = (0, 0);
    for (index, model) in tiny_models().iter().enumerate() {
        for shape in SHAPES {
            for world in 1..=4 {
                for (exchange, traced) in
                    EXACT_EXCHANGES.into_iter().flat_map(|e| [(e, eager_trace()), (e, sharp_trace())])
                {
                    let given = with_ratio(plan(shape.0, shape.1, shape.2, world, traced, exchange), 1.0);
                    let found = run(model, world, &given).0;
                    let mut sorted = Plan { method: method("full"), ..given.clone() };
                    sorted.chunks = found.order.iter().map(|&chunk| given.chunks[chunk as usize].clone()).collect();
                    let full = run(model, world, &sorted).0;
                    let what = format!("{exchange:?} model {index}, world {world}, {shape:?}, {:?}", found.order);
                    largest.check(relative_error(logits(&found), logits(&full)), &what);
                    assert_eq!(found.tokens, full.tokens, "{what}");
                    moved += usize::from(!found.order.is_sorted());
                    rounds += usize::from(found.rounds.len() > 1);
                }
            }
        }
    }
    assert!(moved > 20 && rounds > 20, "{moved} requests moved chunks, {rounds} had several probes");
}

/// With all heads as the sharpest none is left out, and with some of them the readings are larger;
/// every world follows them alike.
#[test]
fn the_sharpest_heads_read_more_and_all_of_them_read_the_mean() {
    let [model, _] = tiny_models();
    let of = |heads, world, exchange| {
        let trace = Trace { alpha: 0.002, share: 0.2, heads, ..Trace::default() };
        with_ratio(plan(3, &[7, 31, 2, 18, 1], 4, world, traced(trace), exchange), 0.3)
    };
    let found = |heads, world, exchange| run(&model, world, &of(heads, world, exchange)).0;
    let mean = found(TraceHeads::Mean, 1, Exchange::PassQ);
    let all = found(TraceHeads::Sharpest(1.0), 1, Exchange::PassQ);
    assert_eq!((&all.order, &all.selected, &all.measured), (&mean.order, &mean.selected, &mean.measured));
    let read = |outcome: &Outcome| outcome.sharpest.any.expect("a reading");
    assert!((read(&all) - read(&mean)).abs() < 1e-6, "{} and {}", read(&all), read(&mean));
    let few = found(TraceHeads::Sharpest(0.25), 1, Exchange::PassQ);
    assert!(read(&few) > 1.2 * read(&mean), "{} and {}", read(&few), read(&mean));
    for world in 2..=4 {
        for exchange in EXACT_EXCHANGES {
            let other = found(TraceHeads::Sharpest(0.25), world, exchange);
            let what = format!("world {world}, {exchange:?}");
            assert_eq!(
                (&other.order, &other.selected, &other.rounds),
                (&few.order, &few.selected, &few.rounds),
                "{what}"
            );
            assert!((read(&other) - read(&few)).abs() < 1e-5, "{what}");
            assert!(relative_error(logits(&other), logits(&few)) < 1e-4, "{what}");
        }
    }
}

/// A request whose free probes would be beyond the model's positions runs without them, on every
/// rank.
#[test]
fn a_free_probe_beyond_the_models_positions_is_left_out() {
    let model = dummy_model(&tiny_config(&[("max_position_embeddings", 64.into())]), 1);
    for world in 1..=3 {
        let make = |method, chunks: &[usize]| with_ratio(plan(2, chunks, 3, world, method, Exchange::PassQ), 0.3);
        let found = run(&model, world, &make(eager_trace(), &[32, 14])).0;
        assert!(found.rounds.is_empty() && found.measured.is_empty() && found.order == [0, 1], "world {world}");
        let prophet = run(&model, world, &make(method("prophetkv"), &[32, 14])).0;
        assert_eq!((&found.selected, &found.logits), (&prophet.selected, &prophet.logits), "world {world}");
        assert!(!run(&model, world, &make(eager_trace(), &[31, 14])).0.rounds.is_empty(), "world {world}: it fits");
    }
}
