//! Every level that this machine has, against attention in f64.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::Tensor;
use proptest::prelude::*;

use super::level::Level;
use crate::{Keys, PAD, Pairing, Positions, Reduce, Rope, RopeScaling, SHARED};

#[path = "../../tests/naive/mod.rs"]
mod naive;
use naive::Case;

fn flat(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_attends_as_f64_does(sizes in naive::sizes()) {
        let case = Case::new(&sizes);
        let (out, lse) = naive::attend(&case, sizes.rotary);
        for level in Level::available() {
            let found = super::attend::attend(level, &case.q, &case.at_q, &case.keys, case.rope.as_ref(), case.scale);
            let found = found.unwrap();
            let (out_error, lse_error) = (naive::distance(&flat(&found.out), &out), naive::distance(&flat(&found.lse), &lse));
            prop_assert!(out_error < 3e-6, "{level:?}: out {out_error:e}");
            prop_assert!(lse_error < 3e-6, "{level:?}: lse {lse_error:e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_scores_as_f64_does(sizes in naive::sizes()) {
        let case = Case::new(&sizes);
        let (_, lse) = naive::attend(&case, sizes.rotary);
        let attention = naive::attention(&case, sizes.rotary, &lse);
        let (queries, heads, _) = case.q.dims3().unwrap();
        let lse: Vec<f32> = lse.iter().map(|&lse| lse as f32).collect();
        let lse = Tensor::from_vec(lse, (queries, heads), case.q.device()).unwrap();
        let weights = naive::Random::new(sizes.seed).values(queries);
        for reduce in [Reduce::Norm, Reduce::Mass, Reduce::Weighted(&weights)] {
            let expected = naive::reduced(&attention, sizes.keys.iter().sum(), reduce);
            for level in Level::available() {
                let found = super::scores::column_scores(
                    level, &case.q, &case.at_q, &case.keys, case.rope.as_ref(), case.scale, &lse, reduce,
                );
                let error = naive::distance(&found.unwrap(), &expected);
                prop_assert!(error < 1e-5, "{level:?}, {reduce:?}: {error:e}");
            }
        }
    }
}
