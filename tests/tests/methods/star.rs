//! Star attention: exact with one block and two, as blocks computed one by one say with more, and
//! alike in every world.

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_protocol::{Exchange, Outcome, Plan};
use tributary_tests::equal::{Concatenation, Largest};
use tributary_tests::samples::leads;
use tributary_tests::{anchored, logits, method, plan, relative_error, run, run_all, tiny_models};

/// Prefix, chunk lengths, query length.
const SHAPES: [(usize, &[usize], usize); 5] = [
    (1, &[16, 16, 16, 16], 5),
    (3, &[7, 31, 2, 18, 1], 4),
    (0, &[12, 9], 1),
    (2, &[1], 3),
    (4, &[70, 1, 150, 33, 64, 5, 90], 9),
];

fn star(shape: (usize, &[usize], usize), lead: &[u32], world: usize, block_tokens: Option<usize>) -> Plan {
    let plan = plan(shape.0, shape.1, shape.2, world, anchored("star", block_tokens, None), Exchange::PassQ);
    Plan { lead: lead.to_vec(), ..plan }
}

/// All shapes, without a lead and with one.
fn led_shapes() -> impl Iterator<Item = ((usize, &'static [usize], usize), &'static [u32])> {
    SHAPES.into_iter().flat_map(|shape| leads(shape.0).into_iter().map(move |lead| (shape, lead)))
}

fn full(model: &Arc<dyn Model>, shape: (usize, &[usize], usize)) -> Outcome {
    run(model, 1, &plan(shape.0, shape.1, shape.2, 1, method("full"), Exchange::PassQ)).0
}

#[test]
fn one_block_or_two_equal_full_prefill() {
    let mut largest = Largest::new("2: star with two blocks = full");
    for (index, model) in tiny_models().iter().enumerate() {
        for (shape, lead) in led_shapes() {
            let (full, rows) = (full(model, shape), shape.0 + shape.1.iter().sum::<usize>());
            for world in 1..=4 {
                let blocks = [Some(rows.div_ceil(2)), Some(rows), if world <= 2 { None } else { Some(rows) }];
                let plans = blocks.map(|block_tokens| star(shape, lead, world, block_tokens));
                for (found, plan) in run_all(model, Kernels::Auto, world, &plans).into_iter().zip(plans) {
                    let what = format!("{:?} model {index}, world {world}, {shape:?}, {lead:?}", plan.method);
                    largest.check(relative_error(logits(&found.0), logits(&full)), &what);
                    assert_eq!(found.0.tokens, full.tokens, "{what}");
                }
            }
        }
    }
}

#[test]
fn more_blocks_are_what_blocks_computed_one_by_one_say_in_every_world() {
    let mut largest = Largest::new("2: star = blocks one by one");
    let mut differ = 0;
    for (index, model) in tiny_models().iter().enumerate() {
        for (shape, lead) in led_shapes() {
            let rows = shape.0 + shape.1.iter().sum::<usize>() - lead.iter().sum::<u32>() as usize;
            let full = full(model, shape);
            for world in 1..=4 {
                // An equal part for every rank is a block of that length.
                for (block_tokens, block_rows) in [(Some(5), 5), (Some(13), 13), (None, rows.div_ceil(world))] {
                    let mut given = star(shape, lead, world, block_tokens);
                    for owner in 0..world {
                        given.owner = owner;
                        let found = run(model, world, &given).0;
                        let expected = Concatenation::of_blocks(&**model, &given, block_rows);
                        let what = format!(
                            "model {index}, world {world}, owner {owner}, {shape:?}, {lead:?}, {block_tokens:?}"
                        );
                        largest.check(relative_error(logits(&found), &expected), &what);
                        differ += usize::from(relative_error(&expected, logits(&full)) > 1e-3);
                    }
                }
            }
        }
    }
    assert!(differ > 50, "{differ} cases are not exact");
}
