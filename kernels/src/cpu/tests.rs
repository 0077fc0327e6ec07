//! Every level that this machine has, against attention in f64.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::Tensor;
use half::{bf16, f16};
use proptest::prelude::*;

use super::few_rows;
use super::lanes::Lanes;
use super::level::{Kernel, Level, dispatch};
use crate::{Keys, PAD, Pairing, Positions, Query, Reduce, Rope, RopeConfig, RopeScaling, Rule, SHARED};

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
            let found = super::attend::attend(level, &case.query());
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
    fn every_level_attends_one_row_as_f64_does(sizes in naive::decode_sizes()) {
        let case = Case::new(&sizes);
        let (out, lse) = naive::attend(&case, None);
        for level in Level::available() {
            let found = super::single::attend(level, &case.query()).unwrap();
            let keys: usize = sizes.keys.iter().sum();
            let is_causal = case.at_q.rule() == Rule::Causal;
            let is_one = keys > 0 && sizes.head_dim % 16 == 0 && is_causal && case.at_q.order()[0] != PAD;
            prop_assert_eq!(found.is_some(), is_one);
            let Some(found) = found else { continue };
            let (out_error, lse_error) = (naive::distance(&flat(&found.out), &out), naive::distance(&flat(&found.lse), &lse));
            prop_assert!(out_error < 3e-6, "{level:?}: out {out_error:e}");
            prop_assert!(lse_error < 3e-6, "{level:?}: lse {lse_error:e}");
        }
    }

    #[test]
    fn every_level_multiplies_few_rows_as_f64_does(
        seed in any::<u64>(), rows in 1..20usize, inputs in prop_oneof![1..200usize, 1000..1300usize], outputs in 1..70usize,
    ) {
        let mut random = naive::Random::new(seed);
        let (x, weight) = (random.values(rows * inputs), random.values(outputs * inputs));
        let floats_b16: Vec<bf16> = weight.iter().map(|&value| bf16::from_f32(value)).collect();
        let floats16: Vec<f16> = weight.iter().map(|&value| f16::from_f32(value)).collect();
        let expected = |weight: &[f64]| -> Vec<f64> {
            let rows = x.chunks(inputs).flat_map(|x| weight.chunks(inputs).map(move |weight| (x, weight)));
            rows.map(|(x, weight)| x.iter().zip(weight).map(|(&x, weight)| f64::from(x) * weight).sum()).collect()
        };
        let wide: Vec<f64> = weight.iter().map(|&value| f64::from(value)).collect();
        let wide_b16: Vec<f64> = floats_b16.iter().map(|value| value.to_f64()).collect();
        let wide_16: Vec<f64> = floats16.iter().map(|value| value.to_f64()).collect();
        for level in Level::available() {
            let errors = [
                naive::distance(&few_rows::product(level, &x, &weight, inputs), &expected(&wide)),
                naive::distance(&few_rows::product(level, &x, &floats_b16, inputs), &expected(&wide_b16)),
                naive::distance(&few_rows::product(level, &x, &floats16, inputs), &expected(&wide_16)),
            ];
            // Without vectors a sum of `inputs` numbers is made one after the other, and rounds at
            // each.
            let tolerance = 1e-5f64.max(inputs as f64 * f64::from(f32::EPSILON) / 4.0);
            prop_assert!(errors.iter().all(|&error| error < tolerance), "{level:?}: {errors:?}");
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
        let asked = super::scores::Asked { query: &case.query(), lse: &lse };
        for reduce in [Reduce::Norm, Reduce::Mass, Reduce::Weighted(&weights)] {
            let expected = naive::reduced(&attention, sizes.keys.iter().sum(), reduce);
            // A sum of hundreds of weights rounds by its size.
            let bound = 1e-5 * expected.iter().fold(1.0, |a: f64, b| a.max(b.abs()));
            for level in Level::available() {
                let found = super::scores::column_scores(level, asked, reduce);
                let error = naive::distance(&found.unwrap(), &expected);
                prop_assert!(error < bound, "{level:?}, {reduce:?}: {error:e}");
            }
        }
        // Row readings are added to existing values.
        let expected: Vec<f64> = attention.concat().iter().map(|amount| 0.25 + amount).collect();
        for level in Level::available() {
            let mut found = vec![0.25; expected.len()];
            super::readings::add_row_readings(level, asked, &mut found).unwrap();
            let error = naive::distance(&found, &expected);
            prop_assert!(error < 1e-5, "{level:?}, each row: {error:e}");
        }
    }
}

/// 2 to the power of each value.
struct Powers<'a> {
    from: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for Powers<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for (from, to) in self.from.chunks_exact(V::N).zip(self.to.chunks_exact_mut(V::N)) {
            // SAFETY: the caller promises the instructions; both chunks have N values.
            unsafe { V::load(from.as_ptr()).exp2().store(to.as_mut_ptr()) }
        }
    }
}

#[test]
fn powers_of_two_are_close_and_end_exactly() {
    const COUNT: usize = 1 << 18;
    let mut from: Vec<f32> = (0..COUNT).map(|i| i as f32 / COUNT as f32 * 250.0 - 126.0).collect();
    let ends = [f32::NEG_INFINITY, f32::MIN, -1000.0, -127.5, 0.0, -1.0, 10.0, f32::NAN];
    from.extend(ends);
    from.extend(ends);
    let mut to = vec![f32::NAN; from.len()];
    for level in Level::available() {
        dispatch(level, Powers { from: &from, to: &mut to });
        for (&from, &to) in from.iter().zip(&to).take(COUNT) {
            let expected = f64::from(from).exp2();
            let error = (f64::from(to) - expected).abs() / expected;
            assert!(error < 2e-7, "{level:?}: 2^{from} is off by {error:e}");
        }
        for ends in to[COUNT..].chunks(ends.len()) {
            assert_eq!(ends[..7], [0.0, 0.0, 0.0, 0.0, 1.0, 0.5, 1024.0], "{level:?}");
            assert!(ends[7].is_nan(), "{level:?}");
        }
    }
}
