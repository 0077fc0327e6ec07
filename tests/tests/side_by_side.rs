//! Requests side by side on one group answer as each does alone: prefills between steps of decoding, sequences of several
//! owners and exchanges in one step, with and without the chunk cache.

use tributary_coordinator::dispatch::InFlight;
use tributary_kernels::Kernels;
use tributary_protocol::{Exchange, Layout, Method, Outcome, Plan};
use tributary_tests::{
    dummy_model, group, infoflow, plan, prefilled, release, reordered, run_all, run_side_by_side, step, tiny_config,
    with_ratio,
};

/// Choices that two ways of computing the same logits may make differently.
const NEAR_TIE: f32 = 1e-4;

/// Every method and exchange, with lengths of their own and numbers from 1 on.
fn plans(world: usize, keep_chunks: bool) -> Vec<Plan> {
    let layout = Layout::Global;
    let chunked = [
        Method::None,
        Method::Random { seed: 3 },
        Method::Epic { per_chunk: None },
        infoflow(1, 3),
        Method::ProphetKv { layout },
        Method::Relay { layout },
    ];
    let exact = [Method::Full, Method::Ring, Method::AllGather { heads_per_gather: None }];
    let exchanges = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];
    let of_chunks = chunked.iter().flat_map(|method| exchanges.map(|exchange| (method.clone(), exchange)));
    let all = of_chunks.chain(exact.map(|method| (method, Exchange::Replicate)));
    let make = |(index, (method, exchange)): (usize, (Method, Exchange))| {
        let lengths = [9 + index % 4, 17, 5 + index % 3];
        let recomputes = !method.is_exact() && method != Method::None;
        let reorders = method.probes_query() && index % 2 == 0;
        let made = plan(2, &lengths, 4, world, method, exchange);
        let made = if recomputes { with_ratio(made, 0.3) } else { made };
        let made = if reorders { reordered(made) } else { made };
        Plan { request: index as u64 + 1, max_tokens: 3 + index % 7, keep_chunks, ..made }
    };
    all.enumerate().map(make).collect()
}

/// Compares tokens; the requests and tokens that differ at a near tie.
fn differing(plans: &[Plan], alone: &[Outcome], together: &[Outcome]) -> Vec<(u64, usize)> {
    assert_eq!((plans.len(), plans.len()), (alone.len(), together.len()));
    let mut ties = Vec::new();
    for ((plan, alone), together) in plans.iter().zip(alone).zip(together) {
        let Some(first) = (0..alone.tokens.len()).find(|&at| alone.tokens[at] != together.tokens[at]) else { continue };
        let margin = alone.margins[first];
        let (request, method) = (plan.request, plan.method.name());
        assert!(margin < NEAR_TIE, "request {request}, {method}: token {first} differs, margin {margin:e}");
        ties.push((request, first));
    }
    ties
}

#[test]
fn requests_side_by_side_answer_as_each_does_alone() {
    let model = dummy_model(&tiny_config(&[]), 7);
    for world in 1..=4 {
        for keep_chunks in [false, true] {
            let plans = plans(world, keep_chunks);
            let cold: Vec<Plan> = plans.iter().map(|plan| Plan { keep_chunks: false, ..plan.clone() }).collect();
            let alone: Vec<Outcome> =
                run_all(&model, Kernels::Auto, world, &cold).into_iter().map(|(outcome, _)| outcome).collect();
            let group = group(&model, world);
            let (first, rest) = plans.split_at(5);
            let (second, third) = rest.split_at(1);
            let together = run_side_by_side(&group, &[first, second, &[], third]);
            let tokens: usize = alone.iter().map(|outcome| outcome.tokens.len()).sum();
            let ties = differing(&plans, &alone, &together);
            assert!(100 * ties.len() <= tokens, "world {world}: {} of {tokens} tokens: {ties:?}", ties.len());
            if keep_chunks {
                // Once more, warm.
                let warm = |plan: &Plan| {
                    let mut warm = plan.clone();
                    warm.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
                    warm
                };
                let again: Vec<Plan> = plans.iter().map(warm).collect();
                let ties = differing(&plans, &alone, &run_side_by_side(&group, &[&again]));
                assert!(100 * ties.len() <= tokens, "world {world}, warm: {ties:?}");
            }
            group.end().expect("the group ends well");
        }
    }
}

#[test]
fn a_hundred_requests_released_at_random_moments_leave_nothing_behind() {
    let model = dummy_model(&tiny_config(&[]), 7);
    let world = 2;
    let plans: Vec<Plan> = plans(world, false).into_iter().map(|plan| Plan { max_tokens: 12, ..plan }).collect();
    let alone: Vec<Outcome> =
        run_all(&model, Kernels::Auto, world, &plans).into_iter().map(|(outcome, _)| outcome).collect();
    let group = group(&model, world);
    let mut random = 20_261_122u32;
    let mut draw = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % below
    };
    let mut running = Vec::new();
    for number in 0..100 {
        let plan = Plan { request: 1000 + number, ..plans[draw(plans.len() as u32) as usize].clone() };
        running.push(prefilled(&group, &plan));
        for _ in 0..draw(3) {
            step(&group, &mut running);
            running.retain(InFlight::goes_on);
        }
        if draw(3) > 0 && !running.is_empty() {
            let gone = running.swap_remove(draw(running.len() as u32) as usize);
            // Twice is as good as once, and an unknown one is passed over.
            release(&group, vec![gone.plan().request]);
            release(&group, vec![gone.plan().request, 7]);
        }
    }
    assert_eq!(release(&group, (1000..1100).collect()), vec![0; world], "nothing is left");
    // Later answers are as they were.
    let again: Vec<Plan> = plans.iter().map(|plan| Plan { request: plan.request + 2000, ..plan.clone() }).collect();
    let later = run_side_by_side(&group, &[&again]);
    assert_eq!(differing(&again, &alone, &later), []);
    group.end().expect("the group ends well");
}
