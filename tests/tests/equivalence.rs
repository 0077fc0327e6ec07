//! Invariants 2 to 5 of the design: what must equal what, at several shapes, chunkings and worlds, with random weights.

use tributary_comm::wire::{Exchange, Layout, Method, Plan};
use tributary_kernels::Kernels;
use tributary_tests::{
    dummy_model, infoflow, logits, plan, relative_error, reordered, run, run_all, tiny_config,
    with_ratio,
};

const TOLERANCE: f64 = 1e-4;
const EXCHANGES: [Exchange; 2] = [Exchange::Replicate, Exchange::PassQ];

/// Prefix, chunk lengths, query length.
const SHAPES: [(usize, &[usize], usize); 4] = [
    (1, &[16, 16, 16, 16], 5),
    (3, &[7, 31, 2, 18, 1], 4),
    (0, &[12, 9], 1),
    (2, &[40], 6),
];

#[test]
fn exact_methods_equal_full_prefill() {
    let model = dummy_model(&tiny_config(&[]), 1);
    for (prefix, chunks, query) in SHAPES {
        let full = run(
            &model,
            1,
            &plan(prefix, chunks, query, 1, Method::Full, Exchange::PassQ),
        )
        .0;
        for world in 1..=4 {
            let methods = [
                Method::Full,
                Method::Ring,
                Method::AllGather {
                    heads_per_gather: None,
                },
                Method::AllGather {
                    heads_per_gather: Some(1),
                },
            ];
            for method in methods {
                let plan = plan(
                    prefix,
                    chunks,
                    query,
                    world,
                    method.clone(),
                    Exchange::PassQ,
                );
                let found = run(&model, world, &plan).0;
                let error = relative_error(logits(&found), logits(&full));
                assert!(
                    error < TOLERANCE,
                    "{} at world {world}, {chunks:?}: {error:e}",
                    method.name()
                );
                assert_eq!(
                    found.tokens,
                    full.tokens,
                    "{} at world {world}, {chunks:?}",
                    method.name()
                );
            }
        }
    }
}

#[test]
fn recomputing_everything_equals_full_prefill() {
    let model = dummy_model(&tiny_config(&[]), 2);
    for (prefix, chunks, query) in SHAPES {
        let full = run(
            &model,
            1,
            &plan(prefix, chunks, query, 1, Method::Full, Exchange::PassQ),
        )
        .0;
        for world in 1..=4 {
            for exchange in EXCHANGES {
                for method in [
                    infoflow(1, 3),
                    Method::Random { seed: 3 },
                    Method::ProphetKv {
                        layout: Layout::Global,
                    },
                    Method::Relay {
                        layout: Layout::Global,
                    },
                ] {
                    let plan = with_ratio(
                        plan(prefix, chunks, query, world, method.clone(), exchange),
                        1.0,
                    );
                    let found = run(&model, world, &plan).0;
                    let error = relative_error(logits(&found), logits(&full));
                    assert!(
                        error < TOLERANCE,
                        "{} {exchange:?} at world {world}, {chunks:?}: {error:e}",
                        method.name()
                    );
                    assert_eq!(
                        found.tokens,
                        full.tokens,
                        "{} {exchange:?} at world {world}, {chunks:?}",
                        method.name()
                    );
                }
            }
        }
    }
}
