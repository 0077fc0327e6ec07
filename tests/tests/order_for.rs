//! Another order of chunks for the selection alone: rows are recomputed in it, and the query reads in the request's own. Every exchange and
//! world agrees with a plain computation of that, and where nothing is recomputed nothing has changed.

use std::sync::Arc;

use tributary_kernels::Kernels;
use tributary_protocol::{Exchange, Layout, Method, OrderFor, Plan};
use tributary_tests::equal::{Concatenation, Largest};
use tributary_tests::{
    dummy_model, eager_trace, logits, plan, relative_error, reordered, run, run_all, tiny_config, with_ratio,
};
use tributary_worker::Model;

/// Prefix, chunk lengths, query length.
const SHAPES: [(usize, &[usize], usize); 3] =
    [(1, &[16, 16, 16, 16], 5), (3, &[7, 31, 2, 18, 1], 4), (2, &[40, 1, 25, 33], 9)];

/// Methods that move chunks, by importance or by what refers to what.
fn moving(shape: (usize, &[usize], usize), world: usize, exchange: Exchange, ratio: f64) -> [Plan; 2] {
    let of = |method| with_ratio(plan(shape.0, shape.1, shape.2, world, method, exchange), ratio);
    [reordered(of(Method::ProphetKv { layout: Layout::Global })), of(eager_trace())]
}

fn for_selection(plan: Plan) -> Plan {
    Plan { order_for: OrderFor::Selection, ..plan }
}

#[test]
fn rows_are_recomputed_in_one_order_and_read_in_the_other() {
    let model: Arc<dyn Model> = dummy_model(&tiny_config(&[]), 1);
    let mut largest = Largest::new("2: an order for selection alone = plain computation");
    let (mut moved, mut differ) = (0, 0);
    for shape in SHAPES {
        for (index, alone) in moving(shape, 1, Exchange::Replicate, 0.3).into_iter().enumerate() {
            let as_it_is = run(&model, 1, &alone).0;
            let found = run(&model, 1, &for_selection(alone.clone())).0;
            assert_eq!((&found.order, &found.selected), (&as_it_is.order, &as_it_is.selected), "{shape:?}");
            let expected = Concatenation::read_in_own_order(&*model, &alone, &found.order, &found.selected);
            moved += usize::from(found.order.iter().zip(0..).any(|(&chunk, place)| chunk != place));
            differ += usize::from(relative_error(logits(&as_it_is), &expected) > 1e-3);
            for world in 1..=4 {
                for exchange in [Exchange::Replicate, Exchange::PassQ] {
                    let mut given = for_selection(moving(shape, world, exchange, 0.3)[index].clone());
                    for owner in 0..world {
                        given.owner = owner;
                        let found = run(&model, world, &given).0;
                        let what = format!("{:?}, {exchange:?}, world {world}, owner {owner}, {shape:?}", given.method);
                        largest.check(relative_error(logits(&found), &expected), &what);
                    }
                }
            }
        }
    }
    assert!(moved >= 5 && differ >= 5, "{moved} orders and {differ} answers are others");
}

#[test]
fn where_nothing_is_recomputed_the_order_changes_nothing() {
    let model: Arc<dyn Model> = dummy_model(&tiny_config(&[]), 1);
    let mut largest = Largest::new("2: an order for selection alone, nothing selected = none");
    for shape in SHAPES {
        let none = plan(shape.0, shape.1, shape.2, 1, Method::None, Exchange::Replicate);
        let expected = run(&model, 1, &none).0;
        for world in 1..=3 {
            for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
                let plans: Vec<Plan> = moving(shape, world, exchange, 0.0).into_iter().map(for_selection).collect();
                for found in run_all(&model, Kernels::Auto, world, &plans) {
                    largest
                        .check(relative_error(logits(&found.0), logits(&expected)), &format!("{world}, {exchange:?}"));
                    assert_eq!(found.0.tokens, expected.tokens, "world {world}, {exchange:?}, {shape:?}");
                }
            }
        }
    }
}
