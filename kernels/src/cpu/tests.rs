//! Every level that this machine has, against attention in f64.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::{DType, Tensor};
use half::{bf16, f16};
use proptest::prelude::*;

use super::lanes::{CausalPosition, Lanes, PANEL, PART};
use super::level::{Kernel, Level, dispatch};
use super::many_rows::{self, Weight};
use super::multiply::Added;
use super::sight::{KeyList, Rows, Span};
use super::{amx, few_rows};
use crate::{Keys, PAD, Pairing, Positions, Query, Reduce, Rope, RopeConfig, RopeScaling, Rule, SHARED};

#[path = "../../tests/naive/mod.rs"]
mod naive;
use naive::Case;

fn flat(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

/// Every level of this machine, and the reference of those that multiply pairs.
fn every_level() -> impl Iterator<Item = Level> {
    Level::available().into_iter().chain([Level::with_slow_pairs()])
}

/// The bound of an error: `rounded` where queries, keys and probabilities are rounded to bf16.
fn bound(level: Level, keys: DType, exact: f64, rounded: f64) -> f64 {
    if level.has_pairs() && keys == DType::BF16 { rounded } else { exact }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_attends_as_f64_does(sizes in naive::sizes()) {
        let case = Case::new(&sizes);
        let (out, lse) = naive::attend(&case, sizes.rotary);
        let mut paired: Vec<Vec<f32>> = Vec::new();
        for level in every_level() {
            let bound = bound(level, sizes.dtype, 3e-6, 2e-2);
            let found = super::attend::attend(level, &case.query());
            let found = found.unwrap();
            let (out_error, lse_error) = (naive::distance(&flat(&found.out), &out), naive::distance(&flat(&found.lse), &lse));
            prop_assert!(out_error < bound, "{level:?}: out {out_error:e}");
            prop_assert!(lse_error < bound, "{level:?}: lse {lse_error:e}");
            if level.has_pairs() {
                paired.push(flat(&found.out));
            }
        }
        // Numbers that are rounded to different sides are few.
        for other in &paired[1..] {
            let expected: Vec<f64> = other.iter().map(|&value| f64::from(value)).collect();
            let error = naive::distance(&paired[0], &expected);
            prop_assert!(error < 4e-3, "pairs and their reference: {error:e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_attends_one_row_as_f64_does(sizes in naive::decode_sizes()) {
        let case = Case::new(&sizes);
        let (out, lse) = naive::attend(&case, None);
        for level in every_level() {
            let found = super::single::attend(level, &case.query()).unwrap();
            let keys: usize = sizes.keys.iter().sum();
            let is_causal = case.at_q.rule() == Rule::Causal;
            let is_one = keys > 0 && sizes.head_dim % 16 == 0 && is_causal && case.at_q.order()[0] != PAD;
            prop_assert_eq!(found.is_some(), is_one);
            let Some(found) = found else { continue };
            let (out_error, lse_error) = (naive::distance(&flat(&found.out), &out), naive::distance(&flat(&found.lse), &lse));
            let bound = bound(level, sizes.dtype, 3e-6, 2e-2);
            prop_assert!(out_error < bound, "{level:?}: out {out_error:e}");
            prop_assert!(lse_error < bound, "{level:?}: lse {lse_error:e}");
        }
    }

    #[test]
    fn every_level_multiplies_as_f64_does(
        seed in any::<u64>(), rows in prop_oneof![1..20usize, 90..110usize], inputs in prop_oneof![1..200usize, 1000..1300usize], outputs in 1..70usize,
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
            let many = [
                Weight::of(level, &weight, inputs).product(&x, Added::default()),
                Weight::of(level, &floats_b16, inputs).product(&x, Added::default()),
                Weight::of(level, &floats16, inputs).product(&x, Added::default()),
            ];
            let errors = [
                naive::distance(&few_rows::product(level, &x, &weight, inputs), &expected(&wide)),
                naive::distance(&few_rows::product(level, &x, &floats_b16, inputs), &expected(&wide_b16)),
                naive::distance(&few_rows::product(level, &x, &floats16, inputs), &expected(&wide_16)),
                naive::distance(&many[0], &expected(&wide)),
                naive::distance(&many[1], &expected(&wide_b16)),
                naive::distance(&many[2], &expected(&wide_16)),
            ];
            // Sums are made one after the other, and round at each.
            let tolerance = 2e-5f64.max(inputs as f64 * f64::from(f32::EPSILON));
            prop_assert!(errors.iter().all(|&error| error < tolerance), "{level:?}: {errors:?}");
        }
    }
}

/// Rows in sequence, of which strips see parts of panels, and later panels of a tile of keys
/// without its first ones.
#[test]
fn windows_are_those_of_f64() {
    let mut random = naive::Random::new(7);
    let (rows, heads, head_dim) = (300, 3, 64);
    let mut drawn = |heads: usize| {
        let values = random.values(rows * heads * head_dim);
        Tensor::from_vec(values, (rows, heads, head_dim), &candle_core::Device::Cpu).unwrap()
    };
    let (q, k, v) = (drawn(heads), drawn(1), drawn(1));
    for dtype in [DType::F32, DType::BF16] {
        let narrow = |x: &Tensor| x.to_dtype(dtype).unwrap();
        let keys = vec![Keys { k: narrow(&k), v: narrow(&v), at: Positions::run(0, rows) }];
        for window in [1, 15, 16, 17, 40, 64, 130] {
            let at_q = Positions::run(0, rows).within(Some(window));
            let case = Case { q: q.clone(), at_q, keys: keys.clone(), rope: None, scale: 0.125 };
            let (out, lse) = naive::attend(&case, None);
            for level in every_level() {
                let bound = bound(level, dtype, 3e-6, 2e-2);
                let found = super::attend::attend(level, &case.query()).unwrap();
                let errors = [naive::distance(&flat(&found.out), &out), naive::distance(&flat(&found.lse), &lse)];
                assert!(errors.iter().all(|&error| error < bound), "{level:?}, {dtype:?}, {window}: {errors:?}");
            }
        }
    }
}

#[test]
fn what_a_strip_has_to_look_at_holds_all_that_its_rows_see() {
    for window in [1, 15, 16, 17, 40, 64, 130] {
        let at = Positions::run(0, 300).within(Some(window));
        let rows = Rows::new(&at);
        let k = Tensor::zeros((300, 1, 8), DType::F32, &candle_core::Device::Cpu).unwrap();
        let keys = [Keys { k: k.clone(), v: k, at: Positions::run(0, 300) }];
        let list = KeyList::new(&rows, &keys);
        let mut looked_at = 0;
        for strip in rows.place.chunks(2) {
            for panel in 0..list.panels.len() {
                let seen = list.seen(&Span::of_rows(strip), panel);
                let [order, segment, rope] = list.of_panel(panel);
                for key in 0..PANEL {
                    let sees = |row: &CausalPosition| row.sees(order[key], segment[key], rope[key]);
                    let (some, all) = (strip.iter().any(sees), strip.iter().all(sees));
                    assert!(!some || seen.keys.contains(&key), "{window}, {panel}, {key}: {seen:?}");
                    let is_masked = seen.masked >> (key / PART) & 1 == 1;
                    assert!(all || is_masked || !seen.keys.contains(&key), "{window}, {panel}, {key}: {seen:?}");
                }
                looked_at += seen.keys.len();
            }
        }
        // Whole parts at both ends, and no more.
        assert!(looked_at <= 150 * (window as usize + 1 + 2 * PART), "{window}: {looked_at} keys");
    }
}

/// The levels that multiply pairs, their reference the last.
fn with_pairs() -> impl Iterator<Item = Level> {
    every_level().filter(|level| level.has_pairs())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pairs_are_multiplied_as_in_f64(
        seed in any::<u64>(), rows in 1..60usize,
        pairs in prop_oneof![1..100usize, 250..600usize, (1..40usize).prop_map(|tiles| amx::SIDE * tiles)],
        outputs in prop_oneof![1..140usize, 500..700usize],
    ) {
        let (mut random, inputs) = (naive::Random::new(seed), 2 * pairs);
        let (x, onto) = (random.values(rows * inputs), random.values(rows * outputs));
        let weight: Vec<bf16> = random.values(outputs * inputs).into_iter().map(bf16::from_f32).collect();
        let rounded: Vec<f64> = x.iter().map(|&x| bf16::from_f32(x).to_f64()).collect();
        let wide: Vec<f64> = weight.iter().map(|value| value.to_f64()).collect();
        let dot = |(x, weight): (&[f64], &[f64])| -> f64 { x.iter().zip(weight).map(|(x, weight)| x * weight).sum() };
        let dots = rounded.chunks(inputs).flat_map(|x| wide.chunks(inputs).map(move |weight| (x, weight))).map(dot);
        let expected: Vec<f64> = dots.collect();
        let added: Vec<f64> = expected.iter().zip(&onto).map(|(dot, &onto)| dot + f64::from(onto)).collect();
        let bias = random.values(outputs);
        let with_bias: Vec<f64> =
            added.iter().zip(bias.iter().cycle()).map(|(sum, &bias)| sum + f64::from(bias)).collect();
        let (weight, _) = weight.as_chunks::<2>();
        // Sums are made one after the other.
        let tolerance = 2e-5f64.max(inputs as f64 * f64::from(f32::EPSILON));
        for level in with_pairs() {
            let product = |x: &[f32], added: Added<'_>| Weight::of_pairs(level, weight, pairs).product(x, added);
            let written = product(&x, Added::default());
            prop_assert!(naive::distance(&written, &expected) < tolerance, "{level:?}");
            let sum = product(&x, Added { onto: Some(&onto), bias: None });
            prop_assert!(naive::distance(&sum, &added) < tolerance, "{level:?}, added");
            let sum = product(&x, Added { onto: Some(&onto), bias: Some(&bias) });
            prop_assert!(naive::distance(&sum, &with_bias) < tolerance, "{level:?}, added with a bias");
            let few = few_rows::product_of_pairs(level, many_rows::paired(level, &x).get(), weight, pairs);
            prop_assert!(naive::distance(&few, &expected) < tolerance, "{level:?}, few rows");
            // A row's bits do not depend on the rows beside it.
            let last = product(&x[(rows - 1) * inputs..], Added::default());
            prop_assert_eq!(&written[(rows - 1) * outputs..], &last[..]);
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tile_registers_are_used_where_linux_tells_of_them_and_permits_them() {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
    let is_told = ["amx_tile", "amx_bf16", "avx512_bf16"].into_iter().all(has);
    // SAFETY: the call only asks for a permission.
    let is_permitted = unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1023, 18) } == 0;
    assert_eq!(Level::best().has_amx(), is_told && is_permitted, "{:?}", Level::best());
}

#[test]
fn pairs_of_numbers_that_are_not_finite_stay_so() {
    for level in with_pairs() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38] {
            let mut x = vec![1.0; 40 * 64];
            x[5 * 64 + 7] = odd;
            let weight = vec![bf16::from_f32(4.0); 3 * 64];
            let weight = weight.as_chunks::<2>().0;
            let out = Weight::of_pairs(level, weight, 32).product(&x, Added::default());
            let few = few_rows::product_of_pairs(level, many_rows::paired(level, &x).get(), weight, 32);
            for out in [out, few] {
                let (row, rest) = (&out[15..18], [&out[..15], &out[18..]].concat());
                let is_so = |value: f32| if odd.is_nan() { value.is_nan() } else { value == odd * 4.0 };
                assert!(row.iter().all(|&value| is_so(value)), "{level:?}, {odd}: {row:?}");
                assert!(rest.iter().all(|&value| value == 256.0), "{level:?}, {odd}");
            }
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
            let size = expected.iter().fold(1.0, |a: f64, b| a.max(b.abs()));
            for level in every_level() {
                let found = super::scores::column_scores(level, asked, reduce);
                let error = naive::distance(&found.unwrap(), &expected);
                prop_assert!(error < size * bound(level, sizes.dtype, 1e-5, 2e-2), "{level:?}, {reduce:?}: {error:e}");
            }
        }
        // Row readings are added to existing values.
        let expected: Vec<f64> = attention.concat().iter().map(|amount| 0.25 + amount).collect();
        for level in every_level() {
            let mut found = vec![0.25; expected.len()];
            super::readings::add_row_readings(level, asked, &mut found).unwrap();
            let error = naive::distance(&found, &expected);
            prop_assert!(error < bound(level, sizes.dtype, 1e-5, 2e-2), "{level:?}, each row: {error:e}");
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
