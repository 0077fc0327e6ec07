//! Norms, activations, sums, casts, linear layers and RoPE.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{
    Distance, Gate, Pairing, Positions, Rope, RopeConfig, RopeScaling, add, add_linear, cast, cuda, distance,
    from_eight_bits, gated, linear, linear_f32, linear_onto, rms_norm, scale, scale_rows, to_eight_bits,
};

use crate::gates::{GATES, gated_by_hand};
use crate::kit::{Random, TYPES, assert_near, gpu, on, values};

fn normed(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let row = |row: &[f64]| {
        let factor = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + eps).sqrt();
        row.iter().zip(weight).map(|(x, w)| x * factor * w).collect::<Vec<_>>()
    };
    x.chunks(weight.len()).flat_map(row).collect()
}

#[test]
fn norms_of_rows_and_heads() {
    let (device, mut random) = (gpu(), Random::new(2));
    for (dtype, bound) in TYPES {
        for shape in [
            &[3, 8][..],
            &[1, 4096],
            &[5, 72],
            &[2, 3, 128],
            &[7, 5, 64],
            &[2, 300],
            &[4, 16384],
            &[3, 61],
            &[2, 257],
            &[2, 4104],
            &[3, 8190],
            &[1, 8200],
        ] {
            let dim = shape[shape.len() - 1];
            let (x, weight) = (random.tensor(shape, dtype), random.tensor(&[dim], DType::F32));
            let expected = normed(&values(&x), &values(&weight), 1e-5);
            let (x, on_gpu) = (on(&x, &device), on(&weight, &device));
            let found = rms_norm(&x, &on_gpu, 1e-5).unwrap();
            assert_eq!((found.dims(), found.dtype()), (shape, dtype));
            assert_near(&format!("{dtype:?} {shape:?}"), &found, &expected, bound);
        }
    }
}

#[test]
fn distances_of_rows() {
    let (device, mut random) = (gpu(), Random::new(11));
    for (dtype, bound) in TYPES {
        for shape in [&[1, 2, 4][..], &[3, 2, 44], &[9, 8, 128], &[5, 13], &[1000, 1]] {
            let (a, b) = (random.tensor(shape, dtype), random.tensor(shape, dtype));
            let (a64, b64) = (values(&a), values(&b));
            let dim = a64.len() / shape[0];
            for (by, each) in [(Distance::Squared, (|x| x * x) as fn(f64) -> f64), (Distance::Absolute, f64::abs)] {
                let row = |(a, b): (&[f64], &[f64])| a.iter().zip(b).map(|(a, b)| each(a - b)).sum::<f64>();
                let expected: Vec<f64> = a64.chunks(dim).zip(b64.chunks(dim)).map(row).collect();
                let found = distance(&on(&a, &device), &on(&b, &device), by).unwrap();
                assert_eq!((found.dims(), found.dtype()), (&shape[..1], DType::F32));
                assert_near(&format!("{dtype:?} {shape:?} {by:?}"), &found, &expected, bound);
            }
        }
    }
}

#[test]
fn eight_bits_are_those_of_the_host() {
    let (device, mut random) = (gpu(), Random::new(14));
    for (dtype, _) in TYPES {
        for shape in [[1, 2, 4], [3, 2, 44], [9, 8, 128], [300, 1, 64]] {
            let x = random.tensor(&shape, dtype);
            let tiny = (&x * 1e-3).unwrap();
            for x in [x, tiny] {
                let packed = to_eight_bits(&x).unwrap();
                let found = to_eight_bits(&on(&x, &device)).unwrap();
                assert_eq!((found.dims(), found.dtype()), (packed.dims(), DType::U8));
                let bytes = |x: &Tensor| cuda::download(x).unwrap().flatten_all().unwrap().to_vec1::<u8>().unwrap();
                assert_eq!(bytes(&found), bytes(&packed), "{dtype:?} {shape:?}");
                let back = from_eight_bits(&found, dtype).unwrap();
                assert_eq!(back.dtype(), dtype);
                assert_eq!(values(&back), values(&from_eight_bits(&packed, dtype).unwrap()), "{dtype:?} {shape:?}");
            }
        }
    }
}

#[test]
fn factors_of_everything_and_of_each_row() {
    let (device, mut random) = (gpu(), Random::new(12));
    for (dtype, bound) in TYPES {
        for shape in [&[1, 8][..], &[3, 2, 44], &[5, 13], &[1000, 1], &[7, 3]] {
            let (x, factors) = (random.tensor(shape, dtype), random.tensor(&shape[..1], DType::F32));
            let (numbers, of_rows) = (values(&x), values(&factors));
            let all: Vec<f64> = numbers.iter().map(|x| x * -0.625).collect();
            let dim = numbers.len() / shape[0];
            let each: Vec<f64> = numbers.iter().enumerate().map(|(i, x)| x * of_rows[i / dim]).collect();
            let (x, factors) = (on(&x, &device), on(&factors, &device));
            let (found, by_row) = (scale(&x, -0.625).unwrap(), scale_rows(&x, &factors).unwrap());
            assert_eq!((found.dims(), found.dtype()), (shape, dtype));
            assert_eq!((by_row.dims(), by_row.dtype()), (shape, dtype));
            assert_near(&format!("scale {dtype:?} {shape:?}"), &found, &all, bound);
            assert_near(&format!("scale_rows {dtype:?} {shape:?}"), &by_row, &each, bound);
        }
    }
}

#[test]
fn activations_and_sums() {
    let (device, mut random) = (gpu(), Random::new(4));
    for (dtype, bound) in TYPES {
        for (rows, dim) in [(1, 8), (3, 88), (5, 13), (2, 1000), (1, 1)] {
            let both = random.tensor(&[rows, 2 * dim], dtype);
            let (gate, up) = (both.narrow(1, 0, dim).unwrap(), both.narrow(1, dim, dim).unwrap());
            let pairs: Vec<(f64, f64)> = values(&gate).into_iter().zip(values(&up)).collect();
            let halves = on(&both, &device);
            let apart = (halves.narrow(1, 0, dim).unwrap(), halves.narrow(1, dim, dim).unwrap());
            let together = (on(&gate.contiguous().unwrap(), &device), on(&up.contiguous().unwrap(), &device));
            for (gate, up) in [apart, together] {
                for by in GATES {
                    let what = format!("{by:?} {dtype:?} {rows} x {dim}");
                    let expected: Vec<f64> = pairs.iter().map(|&(gate, up)| gated_by_hand(gate, up, by)).collect();
                    assert_near(&what, &gated(&gate, &up, by).unwrap(), &expected, bound);
                }
                let sum: Vec<f64> = pairs.iter().map(|(a, b)| a + b).collect();
                assert_near(&format!("add {dtype:?} {rows} x {dim}"), &add(&gate, &up).unwrap(), &sum, bound);
            }
        }
    }
}

/// The CPU's answers are tested against values by hand in tests/layers.rs.
#[test]
fn activations_of_extremes() {
    const GATE: [f32; 12] = [-3e38, -1e20, -6e4, -200.0, -88.0, -4.0, 0.0, 4.0, 88.0, 6e4, f32::INFINITY, f32::NAN];
    const UP: [f32; 7] = [1.0, f32::INFINITY, 6e4, 7.5, -7.5, -6e4, f32::NAN];
    let device = gpu();
    for (dtype, bound) in TYPES {
        for (by, up) in GATES.into_iter().flat_map(|by| UP.map(|up| (by, up))) {
            // What is next to nothing on the CPU is 0 on a GPU, and not with an infinite factor.
            if up.is_infinite() && !matches!(by, Gate::ClampedSilu { .. }) {
                continue;
            }
            let first = if dtype == DType::F16 { 2 } else { 0 }; // f16 ends at 65504
            let gate = Tensor::new(&GATE[first..], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let up = Tensor::full(up, gate.dims(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let wide = |x: &Tensor| x.to_dtype(DType::F32).unwrap();
            let expected = gated(&wide(&gate), &wide(&up), by).unwrap().to_dtype(dtype).unwrap();
            let found = gated(&on(&gate, &device), &on(&up, &device), by).unwrap();
            for (found, expected) in values(&found).into_iter().zip(values(&expected)) {
                let same = found == expected || (found.is_nan() && expected.is_nan());
                let near = (found - expected).abs() <= bound * expected.abs() + 1e-30;
                assert!(same || near, "{by:?} of {gate:?} and {up:?}: {found} instead of {expected}");
            }
        }
    }
}

#[test]
fn casts_round_to_nearest() {
    let (device, mut random) = (gpu(), Random::new(5));
    for count in [1, 7, 8, 4097] {
        for (from, _) in TYPES {
            let x = random.tensor(&[count], from);
            for (to, _) in TYPES {
                let found = cast(&on(&x, &device), to).unwrap();
                assert_eq!(found.dtype(), to);
                assert_eq!(values(&found), values(&x.to_dtype(to).unwrap()), "{from:?} to {to:?}");
            }
        }
    }
}

#[test]
fn linear_layers() {
    let (device, mut random) = (gpu(), Random::new(6));
    for (dtype, bound) in TYPES {
        for (rows, inputs, outputs) in [(1, 8, 3), (5, 64, 300), (33, 24, 129)] {
            let what = format!("{dtype:?} {rows} x {inputs} x {outputs}");
            let (x, weight) = (random.tensor(&[rows, inputs], dtype), random.tensor(&[outputs, inputs], dtype));
            let (bias, residual) = (random.tensor(&[outputs], DType::F32), random.tensor(&[rows, outputs], dtype));
            let (a, w, b, r) = (values(&x), values(&weight), values(&bias), values(&residual));
            let dot = |row: usize, out: usize| -> f64 {
                a[row * inputs..][..inputs].iter().zip(&w[out * inputs..][..inputs]).map(|(a, w)| a * w).sum()
            };
            let each = |more: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
                (0..rows * outputs).map(|i| dot(i / outputs, i % outputs) + more(i / outputs, i % outputs)).collect()
            };
            let [x, weight, bias, residual] = [&x, &weight, &bias, &residual].map(|x| on(x, &device));
            assert_near(&what, &linear(&x, &weight, None).unwrap(), &each(&|_, _| 0.0), bound);
            assert_near(&what, &linear(&x, &weight, Some(&bias)).unwrap(), &each(&|_, out| b[out]), bound);
            let onto = linear_onto(&residual, &x, &weight, None).unwrap();
            assert_near(&what, &onto, &each(&|row, out| r[row * outputs + out]), bound);
            let onto = linear_onto(&residual, &x, &weight, Some(&bias)).unwrap();
            assert_near(&what, &onto, &each(&|row, out| r[row * outputs + out] + b[out]), bound);
            assert_eq!(values(&residual), r, "the residual is left alone");
            let all = random.tensor(&[rows + 2, outputs], dtype);
            let before = values(&all);
            let (all, middle) = (on(&all, &device), outputs..(rows + 1) * outputs);
            assert!(add_linear(&all.narrow(0, 1, rows).unwrap(), &x, &weight).unwrap(), "{what}: in place");
            let sum = each(&|row, out| before[(row + 1) * outputs + out]);
            let expected = [&before[..middle.start], &sum, &before[middle.end..]].concat();
            assert_near(&what, &all, &expected, bound);
            assert_eq!(values(&all)[..middle.start], before[..middle.start], "rows before are left alone");
            assert_eq!(values(&all)[middle.end..], before[middle.end..], "later rows are left alone");
            let wide = linear_f32(&x, &weight).unwrap();
            assert_eq!(wide.dtype(), DType::F32);
            assert_near(&what, &wide, &each(&|_, _| 0.0), 1e-5);
            let columns = linear(&x.narrow(1, 0, inputs / 2).unwrap(), &weight.narrow(1, 0, inputs / 2).unwrap(), None);
            assert_eq!(columns.unwrap().dims(), &[rows, outputs]);
        }
    }
}

/// Attention may answer in another type than the residual stream's: a product adds to it anyway.
#[test]
fn linear_layers_onto_a_residual_of_another_type() {
    let (device, mut random) = (gpu(), Random::new(10));
    for (wanted, bound) in [(DType::BF16, 3e-2), (DType::F16, 5e-3)] {
        let (x, weight) = (random.tensor(&[3, 16], DType::F32), random.tensor(&[5, 16], wanted));
        let residual = random.tensor(&[3, 5], wanted);
        let (a, w, r) = (values(&x), values(&weight), values(&residual));
        let dot = |i: usize| (0..16).map(|k| a[i / 5 * 16 + k] * w[i % 5 * 16 + k]).sum::<f64>();
        let expected: Vec<f64> = (0..15).map(|i| r[i] + dot(i)).collect();
        let found = linear_onto(&on(&residual, &device), &on(&x, &device), &on(&weight, &device), None).unwrap();
        assert_eq!(found.dtype(), wanted);
        assert_near(&format!("f32 onto {wanted:?}"), &found, &expected, bound);
    }
}

#[test]
fn rotations_of_every_kind() {
    let (device, mut random) = (gpu(), Random::new(7));
    let shapes = [(128, 128), (64, 64), (96, 96), (80, 40), (64, 16), (20, 12), (128, 64)];
    for (dtype, bound) in TYPES {
        for (head_dim, rotary_dims) in shapes {
            for pairing in [Pairing::Half, Pairing::Interleaved] {
                let rope = Rope::new(
                    &RopeConfig { head_dim, rotary_dims, theta: 1e4, scaling: &RopeScaling::None, pairing },
                    500,
                )
                .unwrap();
                let at: Vec<u32> = (0..9).map(|_| random.below(500)).collect();
                let at = Positions::in_sequence(at.clone(), at);
                let x = random.tensor(&[9, 3, head_dim], dtype);
                // The CPU's rotation is tested against values by hand in tests/rope.rs.
                let expected = values(&rope.apply(&x.to_dtype(DType::F32).unwrap(), &at).unwrap());
                let what = format!("{dtype:?} {rotary_dims} of {head_dim} {pairing:?}");
                assert_near(&what, &rope.apply(&on(&x, &device), &at).unwrap(), &expected, bound);
                let row = on(&x, &device).narrow(0, 4, 1).unwrap();
                let found = rope.apply(&row, &at.select(&[4])).unwrap();
                assert_near(&what, &found, &expected[4 * 3 * head_dim..][..3 * head_dim], bound);
            }
        }
    }
}

#[test]
fn no_rows_at_all() {
    let device = gpu();
    for (dtype, _) in TYPES {
        let nothing = |shape: &[usize]| tributary_kernels::cuda::nothing(shape, dtype, &device).unwrap();
        let weight = on(&Random::new(8).tensor(&[6, 16], dtype), &device);
        let norm = on(&Random::new(9).tensor(&[16], DType::F32), &device);
        assert_eq!(rms_norm(&nothing(&[0, 16]), &norm, 1e-5).unwrap().dims(), &[0, 16]);
        let none = nothing(&[0, 2, 8]);
        assert_eq!(distance(&none, &none, Distance::Squared).unwrap().dims(), &[0]);
        assert_eq!(gated(&nothing(&[0, 16]), &nothing(&[0, 16]), Gate::Silu).unwrap().dims(), &[0, 16]);
        assert_eq!(linear(&nothing(&[0, 16]), &weight, None).unwrap().dims(), &[0, 6]);
        assert_eq!(linear_onto(&nothing(&[0, 6]), &nothing(&[0, 16]), &weight, None).unwrap().dims(), &[0, 6]);
        let rope = Rope::new(
            &RopeConfig {
                head_dim: 16,
                rotary_dims: 16,
                theta: 1e4,
                scaling: &RopeScaling::None,
                pairing: Pairing::Half,
            },
            4,
        )
        .unwrap();
        assert_eq!(rope.apply(&nothing(&[0, 2, 16]), &Positions::run(0, 0)).unwrap().dims(), &[0, 2, 16]);
        let cast_to: Tensor = cast(&nothing(&[0, 16]), DType::F32).unwrap();
        assert_eq!((cast_to.dims(), cast_to.dtype()), (&[0, 16][..], DType::F32));
    }
}
