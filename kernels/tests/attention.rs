//! Attention and column scores, through the crate's front door, against f64; and their promises
//! beyond numbers.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;
use tributary_kernels::{
    Kernels, Keys, PAD, Pairing, Partial, Positions, Query, Reduce, Rope, RopeConfig, RopeScaling, Rule, SHARED,
    gather, merge,
};

mod naive;
use naive::{Case, Random, Sizes};

const BOTH: [Kernels; 2] = [Kernels::Auto, Kernels::Plain];

fn flat(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

fn attend(kernels: Kernels, case: &Case, keys: &[Keys]) -> Partial {
    kernels.attend(&Query { keys, ..case.query() }).unwrap()
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// The bound of an error. Where the machine multiplies pairs of bf16, queries and probabilities are
/// rounded to the type of such keys; the kernels' own tests have the bound without that.
fn bound(kernels: Kernels, keys: DType, exact: f64) -> f64 {
    if kernels == Kernels::Auto && keys == DType::BF16 { 2e-2 } else { exact }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn attention_is_that_of_f64(sizes in naive::sizes()) {
        let case = Case::new(&sizes);
        let (out, lse) = naive::attend(&case, sizes.rotary);
        for kernels in BOTH {
            let found = attend(kernels, &case, &case.keys);
            let out_error = naive::distance(&flat(&found.out), &out);
            let lse_error = naive::distance(&flat(&found.lse), &lse);
            let bound = bound(kernels, sizes.dtype, 3e-6);
            prop_assert!(out_error < bound, "{kernels:?}: out {out_error:e}");
            prop_assert!(lse_error < bound, "{kernels:?}: lse {lse_error:e}");
        }
    }

    #[test]
    fn attention_of_a_decoded_row_is_that_of_f64(sizes in naive::decode_sizes()) {
        let case = Case::new(&sizes);
        let (out, lse) = naive::attend(&case, None);
        for kernels in BOTH {
            let found = attend(kernels, &case, &case.keys);
            let out_error = naive::distance(&flat(&found.out), &out);
            let lse_error = naive::distance(&flat(&found.lse), &lse);
            let bound = bound(kernels, sizes.dtype, 3e-6);
            prop_assert!(out_error < bound, "{kernels:?}: out {out_error:e}");
            prop_assert!(lse_error < bound, "{kernels:?}: lse {lse_error:e}");
        }
    }

    #[test]
    fn what_a_decoded_row_does_not_see_cannot_touch_it(sizes in naive::decode_sizes()) {
        let case = Case::new(&sizes);
        let keys: Vec<Keys> = case.keys.iter().map(|block| poisoned(block, &case.at_q, 0, f32::NAN)).collect();
        let (clean, dirty) = (attend(Kernels::Auto, &case, &case.keys), attend(Kernels::Auto, &case, &keys));
        prop_assert_eq!(flat(&clean.out), flat(&dirty.out));
        prop_assert_eq!(flat(&clean.lse), flat(&dirty.lse));
    }

    #[test]
    fn column_scores_are_those_of_f64(sizes in naive::sizes(), shift in -2.0..2.0f32) {
        let case = Case::new(&sizes);
        let (queries, heads, _) = case.q.dims3().unwrap();
        // The lse need not be that of these keys: it may come from all ranks together.
        let (_, lse) = naive::attend(&case, sizes.rotary);
        let lse: Vec<f32> = lse.iter().map(|&lse| lse as f32 + shift).collect();
        let wide: Vec<f64> = lse.iter().map(|&lse| f64::from(lse)).collect();
        let attention = naive::attention(&case, sizes.rotary, &wide);
        let lse = Tensor::from_vec(lse, (queries, heads), &Device::Cpu).unwrap();
        let weights = Random::new(sizes.seed).values(queries);
        for reduce in [Reduce::Norm, Reduce::Mass, Reduce::Weighted(&weights)] {
            let expected = naive::reduced(&attention, sizes.keys.iter().sum(), reduce);
            let size = expected.iter().fold(1.0, |a: f64, b| a.max(b.abs()));
            for kernels in BOTH {
                let bound = size * bound(kernels, sizes.dtype, 1e-5);
                let found = kernels.column_scores(&case.query(), &lse, reduce);
                let error = naive::distance(&flat(&found.unwrap()), &expected);
                prop_assert!(error < bound, "{kernels:?}, {reduce:?}: {error:e}");
            }
        }
    }

    #[test]
    fn parts_of_the_keys_merge_to_the_whole(sizes in naive::sizes()) {
        let case = Case::new(&sizes);
        let whole = attend(Kernels::Auto, &case, &case.keys);
        let mut random = Random::new(!sizes.seed);
        let mut merged: Option<Partial> = None;
        for part in 0..3 {
            let mut draw = Random::new(sizes.seed);
            let keys: Vec<Keys> = case.keys.iter().map(|block| {
                let third: Vec<usize> = (0..block.at.len()).map(|_| draw.below(3)).collect();
                let rows: Vec<u32> = (0..block.at.len() as u32).filter(|&row| third[row as usize] == part).collect();
                Keys { k: gather(&block.k, &rows).unwrap(), v: gather(&block.v, &rows).unwrap(), at: block.at.select(&rows) }
            }).collect();
            let next = attend(BOTH[random.below(2)], &case, &keys);
            merged = Some(merged.map_or(next.clone(), |merged| merge(&merged, &next).unwrap()));
        }
        let merged = merged.unwrap();
        let wide = |x: &Tensor| flat(x).into_iter().map(f64::from).collect::<Vec<f64>>();
        let out_error = naive::distance(&flat(&merged.out), &wide(&whole.out));
        let lse_error = naive::distance(&flat(&merged.lse), &wide(&whole.lse));
        let bound = bound(Kernels::Auto, sizes.dtype, 5e-6);
        prop_assert!(out_error < bound, "out {out_error:e}");
        prop_assert!(lse_error < bound, "lse {lse_error:e}");
    }

    #[test]
    fn what_a_row_does_not_see_cannot_touch_it(sizes in naive::sizes(), poison in 0..3usize) {
        let case = Case::new(&sizes);
        let poison = [f32::NAN, f32::INFINITY, 1e30][poison];
        for row in 0..sizes.queries.min(5) {
            let row = row * sizes.queries / sizes.queries.min(5);
            let keys: Vec<Keys> = case.keys.iter().map(|block| poisoned(block, &case.at_q, row, poison)).collect();
            let (clean, dirty) = (attend(Kernels::Auto, &case, &case.keys), attend(Kernels::Auto, &case, &keys));
            let of_row = |x: &Tensor| flat(&x.narrow(0, row, 1).unwrap()).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(of_row(&clean.out), of_row(&dirty.out));
            prop_assert_eq!(of_row(&clean.lse), of_row(&dirty.lse));
            // The plain version leaves out unseen keys and masks the rest, which is enough for one
            // row alone.
            let (q, at_q) = (gather(&case.q, &[row as u32]).unwrap(), case.at_q.select(&[row as u32]));
            let alone = Case { q, at_q, keys: Vec::new(), rope: case.rope.clone(), scale: case.scale };
            let (clean, dirty) = (attend(Kernels::Plain, &alone, &case.keys), attend(Kernels::Plain, &alone, &keys));
            prop_assert_eq!(flat(&clean.out), flat(&dirty.out));
        }
    }
}

/// The block with `poison` in every key and value that query `row` does not see.
fn poisoned(block: &Keys, at_q: &Positions, row: usize, poison: f32) -> Keys {
    let (count, kv_heads, head_dim) = block.k.dims3().unwrap();
    let hidden: Vec<u8> = (0..count).map(|j| u8::from(!at_q.sees(row, &block.at, j))).collect();
    let hidden = Tensor::from_vec(hidden, (count, 1, 1), &Device::Cpu).unwrap();
    let hidden = hidden.broadcast_as((count, kv_heads, head_dim)).unwrap();
    let poison = Tensor::full(poison, block.k.dims(), &Device::Cpu).unwrap().to_dtype(block.k.dtype()).unwrap();
    let spoil = |x: &Tensor| hidden.where_cond(&poison, x).unwrap();
    Keys { k: spoil(&block.k), v: spoil(&block.v), at: block.at.clone() }
}

/// A causal case, long enough for many tiles and tasks.
fn long(queries: usize, keys: usize, head_dim: usize) -> Case {
    let sizes = Sizes {
        seed: 11,
        queries,
        keys: vec![keys / 3, keys - keys / 3],
        kv_heads: 2,
        group: 3,
        head_dim,
        segments: 1,
        orders: keys,
        rotary: Some((Pairing::Half, head_dim)),
        dtype: DType::F32,
        ascending: false,
    };
    Case::new(&sizes)
}

#[test]
fn many_tiles_and_split_keys() {
    // Few queries against many keys split the keys; many queries make many tiles.
    for (queries, keys, head_dim) in [(1, 3000, 64), (17, 2500, 16), (400, 700, 40), (3, 1100, 256), (2, 600, 200)] {
        let case = long(queries, keys, head_dim);
        let (out, lse) = naive::attend(&case, Some((Pairing::Half, head_dim)));
        for kernels in BOTH {
            let found = attend(kernels, &case, &case.keys);
            let (out, lse) = (naive::distance(&flat(&found.out), &out), naive::distance(&flat(&found.lse), &lse));
            assert!(out < 3e-6, "{kernels:?}, {queries} × {keys} × {head_dim}: out {out:e}");
            assert!(lse < 3e-6, "{kernels:?}, {queries} × {keys} × {head_dim}: lse {lse:e}");
        }
    }
}

/// The same keys and values in another type.
fn stored(block: &Keys, dtype: DType) -> Keys {
    let of = |x: &Tensor| x.to_dtype(dtype).unwrap();
    Keys { k: of(&block.k), v: of(&block.v), at: block.at.clone() }
}

/// One block in bf16, one in f32: the whole is computed in f32.
#[test]
fn blocks_of_two_types_are_attended_to_together() {
    for queries in [1, 40] {
        let case = long(queries, 300, 64);
        let case = Case { keys: vec![stored(&case.keys[0], DType::BF16), case.keys[1].clone()], ..case };
        let (out, lse) = naive::attend(&case, Some((Pairing::Half, 64)));
        let found = attend(Kernels::Auto, &case, &case.keys);
        assert!(naive::distance(&flat(&found.out), &out) < 3e-6);
        assert!(naive::distance(&flat(&found.lse), &lse) < 3e-6);
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let sizes = [(1, 3000), (500, 900), (3000, 2900)]; // the last has other tasks for each number of threads
    for ((queries, keys), dtype) in sizes.into_iter().flat_map(|sizes| [(sizes, DType::F32), (sizes, DType::BF16)]) {
        let case = long(queries, keys, 64);
        let case = Case { keys: case.keys.iter().map(|block| stored(block, dtype)).collect(), ..case };
        let runs = [1, 2, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let part = attend(Kernels::Auto, &case, &case.keys);
                let scores = Kernels::Auto.column_scores(&case.query(), &part.lse, Reduce::Norm).unwrap();
                (flat(&part.out), flat(&part.lse), flat(&scores))
            })
        });
        assert_eq!(runs[0], runs[1]);
        assert_eq!(runs[0], runs[2]);
    }
}

/// Tasks of other rows begin at other keys, where rows have windows.
#[test]
fn bits_in_windows_do_not_depend_on_the_number_of_threads() {
    const ROWS: usize = 2500;
    let drawn = |heads: usize| Tensor::randn(0f32, 1.0, (ROWS, heads, 64), &Device::Cpu).unwrap();
    let (q, k, v) = (drawn(6), drawn(2), drawn(2));
    for (window, dtype) in [(700, DType::F32), (700, DType::BF16), (90, DType::F32), (90, DType::BF16)] {
        let narrow = |x: &Tensor| x.to_dtype(dtype).unwrap();
        let keys = [Keys { k: narrow(&k), v: narrow(&v), at: Positions::run(0, ROWS) }];
        let at = Positions::run(0, ROWS).within(Some(window));
        let runs = [1, 2, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let query = Query { q: &q, at: &at, keys: &keys, rope: None, scale: 0.125, dtype: DType::F32 };
            let part = pool.install(|| Kernels::Auto.attend(&query)).unwrap();
            (flat(&part.out), flat(&part.lse))
        });
        assert!(runs[0] == runs[1] && runs[0] == runs[2], "window {window}, {dtype:?}");
    }
}

#[test]
fn views_and_narrow_queries_are_read_in_place() {
    let case = long(40, 300, 64);
    let block = &case.keys[1];
    // A view of one KV head, of later rows, and a transposed tensor hold the same values as their
    // copies.
    let wide = Tensor::cat(&[&block.k, &block.v], 1).unwrap();
    let turned = block.v.permute((2, 0, 1)).unwrap().contiguous().unwrap().permute((1, 2, 0)).unwrap();
    let views = [
        Keys { k: wide.narrow(1, 0, 2).unwrap(), v: wide.narrow(1, 2, 2).unwrap(), at: block.at.clone() },
        Keys { k: block.k.clone(), v: turned, at: block.at.clone() },
    ];
    let expected = attend(Kernels::Auto, &case, std::slice::from_ref(block));
    for view in views {
        assert_eq!(flat(&attend(Kernels::Auto, &case, &[view]).out), flat(&expected.out));
    }
    let half = Case { q: case.q.to_dtype(DType::BF16).unwrap(), ..long(40, 300, 64) };
    let plain = attend(Kernels::Plain, &half, &half.keys);
    let found = attend(Kernels::Auto, &half, &half.keys);
    assert_eq!(found.out.dtype(), DType::F32);
    let expected: Vec<f64> = flat(&plain.out).into_iter().map(f64::from).collect();
    assert!(naive::distance(&flat(&found.out), &expected) < 3e-6);
}

#[test]
fn large_scores_do_not_overflow() {
    let mut case = long(20, 300, 32);
    case.scale = 60.0;
    let (out, lse) = naive::attend(&case, Some((Pairing::Half, 32)));
    for kernels in BOTH {
        let found = attend(kernels, &case, &case.keys);
        // Scores of some hundreds have an error of some 1e-5 in f32, which the exponential makes
        // relative.
        assert!(naive::distance(&flat(&found.out), &out) < 2e-3, "{kernels:?}");
        assert!(naive::distance(&flat(&found.lse), &lse) < 1e-3, "{kernels:?}");
    }
}

#[test]
fn what_is_visible_and_not_a_number_is_not_hidden() {
    let case = long(20, 300, 32);
    let spoilt = Tensor::full(f32::NAN, case.keys[0].k.dims(), &Device::Cpu).unwrap();
    for (k, v, dtype) in [
        (&spoilt, &case.keys[0].v, DType::F32),
        (&case.keys[0].k, &spoilt, DType::F32),
        (&spoilt, &case.keys[0].v, DType::BF16),
        (&case.keys[0].k, &spoilt, DType::BF16),
    ] {
        let keys = [stored(&Keys { k: k.clone(), v: v.clone(), at: case.keys[0].at.clone() }, dtype)];
        let at_q = Positions::run(400, 20);
        let found = Kernels::Auto
            .attend(&Query { q: &case.q, at: &at_q, keys: &keys, rope: None, scale: 1.0, dtype: DType::F32 })
            .unwrap();
        assert!(flat(&found.out).iter().all(|x| x.is_nan()));
        let (q, at_q) = (case.q.narrow(0, 3, 1).unwrap(), Positions::run(403, 1));
        let found = Kernels::Auto
            .attend(&Query { q: &q, at: &at_q, keys: &keys, rope: None, scale: 1.0, dtype: DType::F32 })
            .unwrap();
        assert!(flat(&found.out).iter().all(|x| x.is_nan()));
    }
}

#[test]
fn nothing_to_see() {
    let random = |rows: usize, heads: usize| Tensor::randn(0f32, 1.0, (rows, heads, 8), &Device::Cpu).unwrap();
    let empty = Keys { k: random(0, 2), v: random(0, 2), at: Positions::run(0, 0) };
    let padding = Positions::in_sequence([0, 1], [PAD, PAD]);
    let hidden = Keys { k: random(2, 2), v: random(2, 2), at: padding.clone() };
    for kernels in BOTH {
        for keys in [vec![], vec![empty.clone()], vec![empty.clone(), hidden.clone()]] {
            let at = Positions::run(0, 3);
            let part = kernels
                .attend(&Query { q: &random(3, 4), at: &at, keys: &keys, rope: None, scale: 1.0, dtype: DType::F32 })
                .unwrap();
            assert_eq!(flat(&part.out), vec![0.0; 3 * 4 * 8]);
            assert_eq!(flat(&part.lse), vec![f32::NEG_INFINITY; 12]);
            let scores = kernels
                .column_scores(
                    &Query { q: &random(3, 4), at: &at, keys: &keys, rope: None, scale: 1.0, dtype: DType::F32 },
                    &part.lse,
                    Reduce::Mass,
                )
                .unwrap();
            assert_eq!(flat(&scores), vec![0.0; keys.iter().map(|block| block.at.len()).sum()]);
            let merged = merge(&part, &part).unwrap();
            assert_eq!(flat(&merged.out), vec![0.0; 3 * 4 * 8]);
            assert_eq!(flat(&merged.lse), vec![f32::NEG_INFINITY; 12]);
        }
        let seen = Keys { at: Positions::run(0, 2), ..hidden.clone() };
        let part = kernels
            .attend(&Query {
                q: &random(2, 4),
                at: &padding,
                keys: std::slice::from_ref(&seen),
                rope: None,
                scale: 1.0,
                dtype: DType::F32,
            })
            .unwrap();
        assert_eq!(flat(&part.lse), vec![f32::NEG_INFINITY; 8]);
        let none = kernels
            .attend(&Query {
                q: &random(0, 4),
                at: &Positions::run(0, 0),
                keys: std::slice::from_ref(&seen),
                rope: None,
                scale: 1.0,
                dtype: DType::F32,
            })
            .unwrap();
        assert_eq!(none.out.dims(), &[0, 4, 8]);
        assert_eq!(none.lse.dims(), &[0, 4]);
        assert_eq!(merge(&none, &none).unwrap().out.dims(), &[0, 4, 8]);
        let no_rows = Tensor::zeros((0, 4), DType::F32, &Device::Cpu).unwrap();
        let q = random(0, 4);
        let scores = kernels.column_scores(
            &Query { q: &q, at: &Positions::run(0, 0), keys: &[seen], rope: None, scale: 1.0, dtype: DType::F32 },
            &no_rows,
            Reduce::Norm,
        );
        assert_eq!(flat(&scores.unwrap()), [0.0, 0.0]);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let random =
        |rows: usize, heads: usize, dim: usize| Tensor::randn(0f32, 1.0, (rows, heads, dim), &Device::Cpu).unwrap();
    let keys = |k: Tensor, v: Tensor, at: Positions| vec![Keys { k, v, at }];
    let run = |count: usize| Positions::run(0, count);
    let wrong = [
        ("head_dim", keys(random(5, 2, 16), random(5, 2, 16), run(5))),
        ("positions", keys(random(5, 2, 8), random(5, 2, 8), run(4))),
        ("values", keys(random(5, 2, 8), random(4, 2, 8), run(5))),
        ("KV heads", keys(random(5, 3, 8), random(5, 3, 8), run(5))),
    ];
    for (what, keys) in wrong {
        let refusal = Kernels::Auto
            .attend(&Query { q: &random(3, 4, 8), at: &run(3), keys: &keys, rope: None, scale: 1.0, dtype: DType::F32 })
            .unwrap_err()
            .to_string();
        assert!(refusal.contains(what), "{what}: {refusal}");
    }
    let two = [keys(random(5, 2, 8), random(5, 2, 8), run(5)), keys(random(5, 4, 8), random(5, 4, 8), run(5))].concat();
    assert!(
        Kernels::Auto
            .attend(&Query { q: &random(3, 4, 8), at: &run(3), keys: &two, rope: None, scale: 1.0, dtype: DType::F32 })
            .is_err()
    );
    let rope = Rope::new(
        &RopeConfig { head_dim: 8, rotary_dims: 8, theta: 1e4, scaling: &RopeScaling::None, pairing: Pairing::Half },
        4,
    )
    .unwrap();
    let far = keys(random(5, 2, 8), random(5, 2, 8), run(5));
    for kernels in BOTH {
        let at = Positions::in_sequence([0, 0, 0], [9, 9, 9]);
        let refusal = kernels
            .attend(&Query {
                q: &random(3, 4, 8),
                at: &at,
                keys: &far,
                rope: Some(&rope),
                scale: 1.0,
                dtype: DType::F32,
            })
            .unwrap_err()
            .to_string();
        assert!(refusal.contains("below 4") && refusal.contains("found 4"), "{refusal}");
    }
    let shared = Positions::new([0], [0], [SHARED]);
    assert!(shared.sees(0, &shared, 0), "a shared query sees shared keys");
}
