//! Another order of chunks for the selection alone: rows are recomputed in it, and the query reads
//! in the request's own. Every exchange and world agrees with a plain computation of that, and
//! where nothing is recomputed nothing has changed.

use std::sync::Arc;

use tributary_model::Model;
use tributary_protocol::{Exchange, OrderFor, Plan};
use tributary_tests::equal::{Concatenation, Largest};
use tributary_tests::samples::{Case, Sample, leads};
use tributary_tests::{dummy_model, group, logits, relative_error, run_one, tiny_config};

/// Prefix, chunk lengths, query length.
const SHAPES: [(usize, &[usize], usize); 3] =
    [(1, &[16, 16, 16, 16], 5), (3, &[7, 31, 2, 18, 1], 4), (2, &[40, 1, 25, 33], 9)];

fn case(shape: (usize, &'static [usize], usize), world: usize, exchange: Exchange, ratio: f64) -> Case<'static> {
    // A prefix of one token is the head; others have a lead.
    let lead = leads(shape.0)[usize::from(shape.0 > 1)];
    Case { prefix: shape.0, lead, chunks: shape.1, query: shape.2, world, exchange, ratio }
}

/// All samples that may move chunks, for the selection alone: the others refuse that.
fn moving(case: Case<'_>, model: &dyn Model) -> Vec<Sample> {
    case.in_chunks(":order-for=selection", model)
}

#[test]
fn rows_are_recomputed_in_one_order_and_read_in_the_other() {
    let model: Arc<dyn Model> = dummy_model(&tiny_config(&[]), 1);
    let mut largest = Largest::new("2: an order for selection alone = plain computation");
    let (mut moved, mut differ) = (0, 0);
    let ranks = [1, 2, 3, 4].map(|world| group(&model, world));
    for shape in SHAPES {
        for (index, Sample { spec, plan: alone }) in
            moving(case(shape, 1, Exchange::Replicate, 0.3), &*model).into_iter().enumerate()
        {
            let as_it_is = run_one(&ranks[0], &Plan { order_for: OrderFor::All, ..alone.clone() }).0;
            let found = run_one(&ranks[0], &alone).0;
            assert_eq!((&found.order, &found.selected), (&as_it_is.order, &as_it_is.selected), "{spec}, {shape:?}");
            let expected = Concatenation::read_in_own_order(&*model, &alone, &found.order, &found.selected);
            moved += usize::from(found.order.iter().zip(0..).any(|(&chunk, place)| chunk != place));
            differ += usize::from(relative_error(logits(&as_it_is), &expected) > 1e-3);
            for (world, ranks) in (1..).zip(&ranks) {
                for exchange in [Exchange::Replicate, Exchange::PassQ] {
                    let mut given = moving(case(shape, world, exchange, 0.3), &*model)[index].plan.clone();
                    for owner in 0..world {
                        given.owner = owner;
                        let found = run_one(ranks, &given).0;
                        let what = format!("{spec}, {exchange:?}, world {world}, owner {owner}, {shape:?}");
                        largest.check(relative_error(logits(&found), &expected), &what);
                    }
                }
            }
        }
    }
    for ranks in ranks {
        ranks.end().expect("the group ends well");
    }
    assert!(moved >= 15 && differ >= 15, "{moved} orders and {differ} answers are others");
}

#[test]
fn where_nothing_is_recomputed_the_order_changes_nothing() {
    let model: Arc<dyn Model> = dummy_model(&tiny_config(&[]), 1);
    let mut largest = Largest::new("2: an order for selection alone, nothing selected = none");
    for world in 1..=3 {
        let ranks = group(&model, world);
        for shape in SHAPES {
            let none = case(shape, world, Exchange::Replicate, 0.0).planned("none", &*model).expect("a plan");
            let expected = run_one(&ranks, &none).0;
            for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
                for Sample { spec, plan } in moving(case(shape, world, exchange, 0.0), &*model) {
                    let (found, what) = (run_one(&ranks, &plan).0, format!("{spec}, {exchange:?}, {world}, {shape:?}"));
                    largest.check(relative_error(logits(&found), logits(&expected)), &what);
                    assert_eq!(found.tokens, expected.tokens, "{what}");
                }
            }
        }
        ranks.end().expect("the group ends well");
    }
}
