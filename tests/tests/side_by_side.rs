//! Requests side by side on one group answer as each does alone: prefills between steps of
//! decoding, sequences of several owners and exchanges in one step, with and without the chunk
//! cache. Ranks are threads; `side_by_side_mpi.rs` has processes.

use tributary_coordinator::dispatch::InFlight;
use tributary_protocol::Plan;
use tributary_tests::side_by_side::{
    differing, plans, prefilled, release, run_alone, run_side_by_side, side_by_side_equals_alone, step,
};
use tributary_tests::{dummy_model, gemma, gpt_oss, group, model_with_experts, packed, tiny_config};

#[test]
fn requests_side_by_side_answer_as_each_does_alone() {
    let models =
        [dummy_model(&packed(), 7), model_with_experts(), dummy_model(&gpt_oss(), 9), dummy_model(&gemma(), 9)];
    for world in 1..=4 {
        let model = &models[world % 4];
        let group = group(model, world);
        let (tokens, ties) = side_by_side_equals_alone(group.link(), &**model, world);
        println!("world {world}: {tokens} tokens, near ties that fell otherwise: {ties:?}");
        group.end().expect("the group ends well");
    }
}

#[test]
fn a_hundred_requests_released_at_random_moments_leave_nothing_behind() {
    let model = dummy_model(&tiny_config(&[]), 7);
    let world = 2;
    let plans: Vec<Plan> =
        plans(&*model, world, false).into_iter().map(|plan| Plan { max_tokens: 12, ..plan }).collect();
    let group = group(&model, world);
    let alone = run_alone(group.link(), &plans);
    let mut random = 20_261_122u32;
    let mut draw = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % below
    };
    let mut running = Vec::new();
    for number in 0..100 {
        let plan = Plan { request: 1000 + number, ..plans[draw(plans.len() as u32) as usize].clone() };
        running.push(prefilled(group.link(), &plan));
        for _ in 0..draw(3) {
            step(group.link(), &mut running);
            running.retain(InFlight::goes_on);
        }
        if draw(3) > 0 && !running.is_empty() {
            let gone = running.swap_remove(draw(running.len() as u32) as usize);
            // Twice is as good as once, and an unknown one is passed over.
            release(group.link(), vec![gone.plan().request]);
            release(group.link(), vec![gone.plan().request, 7]);
        }
    }
    assert_eq!(release(group.link(), (1000..1100).collect()), vec![0; world], "nothing is left");
    // Later answers are as they were.
    let again: Vec<Plan> = plans.iter().map(|plan| Plan { request: plan.request + 2000, ..plan.clone() }).collect();
    let later = run_side_by_side(group.link(), &[&again]);
    assert_eq!(differing(&again, &alone, &later), []);
    group.end().expect("the group ends well");
}
