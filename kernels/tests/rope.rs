//! Rotary embedding: frequencies of every scaling against numbers computed apart, pairings, partial
//! rotation, bounds.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::{DType, Device, Tensor, Var};
use tributary_kernels::{Pairing, Positions, Rope, RopeConfig, RopeScaling};

/// The angle by which pair `i` turns from position 0 to 1, read off a rotated unit vector.
fn angle(rope: &Rope, head_dim: usize, i: usize) -> f64 {
    let mut unit = vec![0f32; head_dim];
    unit[i] = 1.0;
    let x = Tensor::from_vec(unit, (1, 1, head_dim), &Device::Cpu).unwrap();
    let turned = rope.apply(&x, &Positions::run(1, 1)).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    f64::from(turned[i + head_dim / 2]).atan2(f64::from(turned[i]))
}

fn check(head_dim: usize, theta: f64, scaling: &RopeScaling, expected: &[(usize, f64)]) {
    let rope =
        Rope::new(&RopeConfig { head_dim, rotary_dims: head_dim, theta, scaling, pairing: Pairing::Half }, 2).unwrap();
    for &(i, expected) in expected {
        let found = angle(&rope, head_dim, i);
        let error = (found - expected).abs() / expected;
        assert!(error < 1e-6, "{scaling:?}, pair {i}: {found:e} instead of {expected:e}");
    }
}

// The expected frequencies below were computed by a script that transcribes the formulas of Hugging
// Face's modeling_rope_utils pair by pair, in f64, with the numbers of the models named.

#[test]
fn unscaled_and_linear() {
    check(64, 10_000.0, &RopeScaling::None, &[(0, 1.0), (7, 0.133_352_143_2), (31, 1.333_521_432e-4)]);
    let linear = RopeScaling::Linear { factor: 4.0 };
    check(64, 10_000.0, &linear, &[(0, 0.25), (7, 0.033_338_035_8), (31, 3.333_803_58e-5)]);
}

#[test]
fn llama3_of_llama_3_1_8b() {
    let scaling =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position: 8192 };
    let expected = [
        (0, 1.0),
        (20, 0.016_560_440_08),
        (28, 0.003_211_445_995),
        (29, 0.002_166_570_764),
        (30, 0.001_371_893_568),
        (32, 5.248_461_61e-4),
        (35, 9.556_212_354e-5),
        (40, 3.428_102_196e-5),
        (63, 3.068_925_989e-7),
    ];
    check(128, 500_000.0, &scaling, &expected);
}

#[test]
fn llama3_of_llama_3_2_1b() {
    let scaling =
        RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position: 8192 };
    let expected = [
        (13, 0.004_839_421_346),
        (14, 0.003_211_445_995),
        (15, 0.001_290_547_928),
        (16, 4.295_567_966e-4),
        (17, 9.708_287_803e-5),
        (18, 1.946_163_818e-5),
        (31, 9.418_306_725e-8),
    ];
    check(64, 500_000.0, &scaling, &expected);
}

fn yarn(factor: f64, original_max_position: usize, beta_fast: f64, beta_slow: f64, truncate: bool) -> RopeScaling {
    RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, attention_factor: None, truncate }
}

#[test]
fn yarn_of_qwen() {
    let both = [(0, 1.0), (22, 0.008_659_643_234), (23, 0.006_978_305_849), (41, 3.582_531_426e-5)];
    let whole = [(24, 0.005_375_321_491), (30, 0.001_064_360_981), (35, 2.462_584_069e-4), (39, 6.490_394_321e-5)];
    let exact = [(24, 0.005_517_270_475), (30, 0.001_079_237_742), (35, 2.445_188_88e-4), (39, 6.187_806_812e-5)];
    for (truncate, between) in [(true, whole), (false, exact)] {
        let scaling = yarn(4.0, 32_768, 32.0, 1.0, truncate);
        check(128, 1_000_000.0, &scaling, &both);
        check(128, 1_000_000.0, &scaling, &between);
    }
    let rope = Rope::new(
        &RopeConfig {
            head_dim: 128,
            rotary_dims: 128,
            theta: 1e6,
            scaling: &yarn(4.0, 32_768, 32.0, 1.0, true),
            pairing: Pairing::Half,
        },
        1,
    )
    .unwrap();
    assert!((rope.attention_factor() - 1.138_629_4).abs() < 1e-6, "{}", rope.attention_factor());
}

#[test]
fn yarn_with_other_bounds() {
    let scaling = yarn(16.0, 4096, 64.0, 2.0, true);
    let expected = [
        (5, 0.237_137_370_6),
        (10, 0.048_123_440_33),
        (15, 0.006_603_495_554),
        (20, 4.256_912_235e-4),
        (25, 4.686_838_808e-5),
        (31, 8.334_508_951e-6),
    ];
    check(64, 10_000.0, &scaling, &expected);
    let RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, truncate, .. } = scaling else {
        unreachable!("built above")
    };
    let attention_factor = Some(0.7);
    let given = RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, attention_factor, truncate };
    let rope = Rope::new(
        &RopeConfig { head_dim: 64, rotary_dims: 64, theta: 1e4, scaling: &given, pairing: Pairing::Half },
        1,
    )
    .unwrap();
    assert!((rope.attention_factor() - 0.7).abs() < 1e-6, "{}", rope.attention_factor());
    assert!((angle(&rope.covering(2).unwrap(), 64, 5) - 0.237_137_370_6).abs() < 1e-6, "the factor never turns a key");
}

#[test]
fn pairings_and_the_part_that_does_not_turn() {
    let values: Vec<f32> = (0..16).map(|i| i as f32 * 0.25 - 1.0).collect();
    let x = Tensor::from_vec(values.clone(), (1, 2, 8), &Device::Cpu).unwrap();
    let at = Positions::run(5, 1);
    for pairing in [Pairing::Half, Pairing::Interleaved] {
        let rope = Rope::new(
            &RopeConfig { head_dim: 8, rotary_dims: 4, theta: 100.0, scaling: &RopeScaling::None, pairing },
            6,
        )
        .unwrap();
        let found = rope.apply(&x, &at).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let mut expected = values.clone();
        for head in expected.chunks_mut(8) {
            for i in 0..2 {
                let (a, b) = if pairing == Pairing::Half { (i, i + 2) } else { (2 * i, 2 * i + 1) };
                let (sin, cos) = (5.0 * 100f32.powf(-(i as f32) / 2.0)).sin_cos();
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
            }
        }
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-6, "{pairing:?}: {found} instead of {expected}");
        }
    }
}

#[test]
fn a_score_depends_on_the_distance_alone() {
    let rope = Rope::new(
        &RopeConfig { head_dim: 64, rotary_dims: 64, theta: 1e4, scaling: &RopeScaling::None, pairing: Pairing::Half },
        4000,
    )
    .unwrap();
    let x = Tensor::randn(0f32, 1.0, (2, 1, 64), &Device::Cpu).unwrap();
    let dot = |a: u32, b: u32| {
        let x = rope.apply(&x, &Positions::in_sequence([a, b], [0, 0])).unwrap();
        let rows = x.squeeze(1).unwrap().to_vec2::<f32>().unwrap();
        rows[0].iter().zip(&rows[1]).map(|(a, b)| a * b).sum::<f32>()
    };
    let (near, far) = (dot(3, 40), dot(3903, 3940));
    assert!((near - far).abs() < 2e-3, "{near} and {far}");
    assert!((near - dot(3, 41)).abs() > 1e-4, "another distance is another score");
}

#[test]
fn tables_grow_and_refuse() {
    let rope = Rope::new(
        &RopeConfig { head_dim: 8, rotary_dims: 8, theta: 1e4, scaling: &RopeScaling::None, pairing: Pairing::Half },
        4,
    )
    .unwrap();
    let x = Tensor::ones((1, 1, 8), DType::BF16, &Device::Cpu).unwrap();
    let refusal = rope.apply(&x, &Positions::run(9, 1)).unwrap_err().to_string();
    assert!(refusal.contains('4') && refusal.contains('9'), "{refusal}");
    let longer = rope.covering(10).unwrap();
    assert_eq!(longer.apply(&x, &Positions::run(9, 1)).unwrap().dtype(), DType::BF16);
    assert_eq!(longer.covering(3).unwrap().positions(), 10);
    assert!(
        Rope::new(
            &RopeConfig {
                head_dim: 8,
                rotary_dims: 3,
                theta: 1e4,
                scaling: &RopeScaling::None,
                pairing: Pairing::Half
            },
            4
        )
        .is_err()
    );
    assert!(
        Rope::new(
            &RopeConfig {
                head_dim: 8,
                rotary_dims: 10,
                theta: 1e4,
                scaling: &RopeScaling::None,
                pairing: Pairing::Half
            },
            4
        )
        .is_err()
    );
    for factor in [0.0, -1.0, f64::NAN] {
        assert!(
            Rope::new(
                &RopeConfig {
                    head_dim: 8,
                    rotary_dims: 8,
                    theta: 1e4,
                    scaling: &RopeScaling::Linear { factor },
                    pairing: Pairing::Half
                },
                4
            )
            .is_err()
        );
    }
    let nothing = Tensor::zeros((0, 1, 8), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(rope.apply(&nothing, &Positions::run(0, 0)).unwrap().dims(), &[0, 1, 8]);
}

#[test]
fn one_pass_equals_candles_operations() {
    let places: Vec<u32> = (0..150).map(|row| row * 37 % 200).collect();
    let at = Positions::in_sequence(places.clone(), places);
    for (pairing, rotary) in
        [(Pairing::Half, 8), (Pairing::Half, 4), (Pairing::Interleaved, 8), (Pairing::Interleaved, 6)]
    {
        let rope = Rope::new(
            &RopeConfig { head_dim: 8, rotary_dims: rotary, theta: 100.0, scaling: &RopeScaling::None, pairing },
            200,
        )
        .unwrap();
        let wide = Tensor::randn(0f32, 1.0, (160, 5, 8), &Device::Cpu).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            // Some rows and heads of a larger tensor, as blocks of a cache are.
            let x = wide.to_dtype(dtype).unwrap().narrow(0, 7, 150).unwrap().narrow(1, 1, 3).unwrap();
            let tracked = Var::from_tensor(&x).unwrap();
            let found = [&x, tracked.as_tensor()].map(|x| {
                let turned = rope.apply(x, &at).unwrap();
                assert_eq!(turned.dtype(), dtype);
                turned.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
            });
            let far = found[0].iter().zip(&found[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let bound = if dtype == DType::F32 { 1e-6 } else { 4e-2 };
            assert!(far < bound, "{pairing:?}, {rotary} of 8, {dtype:?}: {far:e}");
        }
    }
}

/// Turns 12 random rows by the rows `numbers` of the tables.
fn turned(rope: &Rope, x: &Tensor, numbers: &[u32]) -> Vec<f32> {
    let at = Positions::in_sequence(numbers.to_vec(), vec![0; numbers.len()]);
    rope.apply(x, &at).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
}

/// A rope of 8 pairs with 20 plain positions.
fn of_three_axes(axes: [u8; 8]) -> Rope {
    let scaling = &RopeScaling::None;
    let config = RopeConfig { head_dim: 16, rotary_dims: 16, theta: 100.0, scaling, pairing: Pairing::Half };
    Rope::new(&config, 20).unwrap().with_axes(axes.into()).unwrap()
}

#[test]
fn a_place_with_one_number_on_all_axes_is_that_position() {
    let rope = of_three_axes([0, 1, 2, 0, 1, 2, 0, 0]);
    let longer = rope.composed(&[[7; 3], [0; 3], [19; 3]]).unwrap();
    assert_eq!((longer.positions(), longer.plain_positions()), (23, 20));
    let x = Tensor::randn(0f32, 1.0, (3, 2, 16), &Device::Cpu).unwrap();
    assert_eq!(turned(&longer, &x, &[20, 21, 22]), turned(&rope, &x, &[7, 0, 19]), "bit for bit");
}

#[test]
fn each_pair_turns_by_the_position_on_its_axis() {
    let place = [3, 11, 6];
    // In turns (Qwen3-VL), and in runs (Qwen2.5-VL).
    for axes in [[0, 1, 2, 0, 1, 2, 0, 0], [0, 0, 1, 1, 1, 2, 2, 2]] {
        let rope = of_three_axes(axes).composed(&[[1, 2, 3], place]).unwrap();
        let x = Tensor::randn(0f32, 1.0, (1, 2, 16), &Device::Cpu).unwrap();
        let found = turned(&rope, &x, &[21]);
        let of_axis = place.map(|position| turned(&rope, &x, &[position]));
        for (dim, found) in found.iter().enumerate() {
            let axis = axes[dim % 8];
            assert_eq!(*found, of_axis[usize::from(axis)][dim], "dim {dim} turns by axis {axis}");
        }
    }
}

#[test]
fn composing_keeps_the_rows_that_are_there() {
    let rope = of_three_axes([0, 0, 1, 1, 1, 2, 2, 2]);
    let first = rope.composed(&[[1, 2, 3], [4, 5, 6]]).unwrap();
    let second = first.composed(&[[9, 8, 7]]).unwrap();
    let x = Tensor::randn(0f32, 1.0, (4, 2, 16), &Device::Cpu).unwrap();
    let early = [0, 19, 20, 21];
    assert_eq!(turned(&first, &x, &early), turned(&second, &x, &early));
    let one = x.narrow(0, 0, 1).unwrap();
    assert_eq!(turned(&second, &one, &[22]), turned(&rope.composed(&[[9, 8, 7]]).unwrap(), &one, &[20]));
    assert!(rope.apply(&one, &Positions::run(20, 1)).is_err(), "the tables of others are as they were");
    assert_eq!(first.covering(20).unwrap().positions(), 22);
    let refused = first.covering(21).unwrap_err().to_string();
    assert!(refused.contains("20") && refused.contains("21"), "{refused}");
}

#[test]
fn tables_of_given_angles() {
    let angles = vec![vec![0.5, -1.0], vec![2.0, 3.0]];
    let rope = Rope::of_angles(6, &angles).unwrap();
    assert_eq!((rope.rotary_dims(), rope.positions(), rope.plain_positions()), (4, 2, 0));
    let x = Tensor::new(&[[[1f32, 2., 3., 4., 5., 6.]]], &Device::Cpu).unwrap();
    for (row, angles) in angles.iter().enumerate() {
        let found = turned(&rope, &x, &[row as u32]);
        let pair = |a: f64, b: f64, angle: f64| [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()];
        let ([a, c], [b, d]) = (pair(1., 3., angles[0]), pair(2., 4., angles[1]));
        let far = found.iter().zip([a, b, c, d, 5., 6.]).map(|(x, y)| (f64::from(*x) - y).abs()).fold(0.0, f64::max);
        assert!(far < 1e-6, "{far:e}");
    }
    assert!(rope.covering(1).is_err(), "there are no plain positions");
    for wrong in [vec![], vec![vec![]], vec![vec![0.0; 4]], vec![vec![0.0; 2], vec![0.0; 3]]] {
        assert!(Rope::of_angles(6, &wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn axes_that_do_not_fit_are_refused() {
    let scaling = &RopeScaling::None;
    let config = RopeConfig { head_dim: 4, rotary_dims: 4, theta: 100.0, scaling, pairing: Pairing::Half };
    let rope = Rope::new(&config, 2).unwrap();
    assert!(rope.composed(&[[0; 3]]).is_err(), "pairs without axes");
    assert!(rope.clone().with_axes([0].as_slice().into()).is_err(), "an axis for each of two pairs");
    assert!(rope.clone().with_axes([0, 3].as_slice().into()).is_err(), "there are three");
    let growing = rope.growing(Some(tributary_kernels::QueryGrowth { beta: 0.1, original: 4 }));
    assert!(growing.with_axes([0, 1].as_slice().into()).is_err(), "a growth is of one position");
}
