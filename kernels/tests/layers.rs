//! Rows, norms and linear layers against values computed by hand in f64.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

#[path = "naive/gates.rs"]
mod gates;

use candle_core::{DType, Device, Tensor, Var};
use gates::{GATES, gated_by_hand};
use tributary_kernels::{
    Distance, Gate, Gelu, Packed, Packing, Weight, add, add_rows, distance, gated, gated_linear, gather, gelu,
    layer_norm, linear, linear_f32, linear_onto, rms_norm, scale, scale_rows,
};

fn random(shape: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
}

/// Numbers that bf16 holds: a product with a weight in that type may round its input to it.
fn short(shape: &[usize]) -> Tensor {
    random(shape).to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap()
}

fn flat(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_near(what: &str, found: &Tensor, expected: &[f64], bound: f64) {
    let found = flat(found);
    assert_eq!(found.len(), expected.len(), "{what}");
    let far = found.iter().zip(expected).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f64::max);
    assert!(far < bound, "{what}: {far:e}");
}

#[test]
fn rows_are_gathered() {
    for dtype in [DType::F32, DType::BF16, DType::U32] {
        let base = Tensor::arange(0u32, 24, &Device::Cpu).unwrap().reshape((6, 2, 2)).unwrap().to_dtype(dtype).unwrap();
        let picked = gather(&base, &[5, 0, 5]).unwrap();
        assert_eq!(flat(&picked), [20., 21., 22., 23., 0., 1., 2., 3., 20., 21., 22., 23.]);
        assert_eq!(picked.dtype(), dtype);
    }
}

#[test]
fn no_rows_and_wrong_rows() {
    let base = random(&[6, 4]);
    assert_eq!(gather(&base, &[]).unwrap().dims(), &[0, 4]);
    assert!(gather(&base, &[6]).is_err());
}

fn square(x: f64) -> f64 {
    x * x
}

#[test]
fn distances_of_rows() {
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let (a, b) = (random(&[5, 3, 4]).to_dtype(dtype).unwrap(), random(&[5, 3, 4]).to_dtype(dtype).unwrap());
        for (by, each) in [(Distance::Squared, square as fn(f64) -> f64), (Distance::Absolute, f64::abs)] {
            let row = |(a, b): (&[f64], &[f64])| a.iter().zip(b).map(|(a, b)| each(a - b)).sum::<f64>();
            let expected: Vec<f64> = flat(&a).chunks(12).zip(flat(&b).chunks(12)).map(row).collect();
            let found = distance(&a, &b, by).unwrap();
            assert_eq!(found.dtype(), if dtype == DType::F64 { DType::F64 } else { DType::F32 });
            assert_near(&format!("{dtype:?} {by:?}"), &found, &expected, 1e-6);
        }
    }
    assert!(distance(&random(&[2, 3]), &random(&[3, 2]), Distance::Squared).is_err());
    let moved = Var::from_tensor(&random(&[2, 3])).unwrap();
    let to = random(&[2, 3]);
    let gradients = distance(&moved, &to, Distance::Squared).unwrap().sum_all().unwrap().backward().unwrap();
    let expected: Vec<f64> = flat(&moved).iter().zip(flat(&to)).map(|(a, b)| 2.0 * (a - b)).collect();
    assert_near("gradient", gradients.get(&moved).unwrap(), &expected, 1e-6);
}

/// Attention may answer in another type than the residual stream's, and a gradient may be wanted: a
/// product adds to it anyway.
#[test]
fn linear_onto_a_residual_of_another_type() {
    let types = [DType::F32, DType::BF16, DType::F16];
    let (rows, inputs, outputs) = (3, 16, 5);
    let bias = random(&[outputs]);
    for case in 0..27 {
        let (x_type, stored, wanted) = (types[case / 9], types[case / 3 % 3], types[case % 3]);
        let what = format!("{x_type:?} x {stored:?} onto {wanted:?}");
        let x = short(&[rows, inputs]).to_dtype(x_type).unwrap();
        let weight = random(&[outputs, inputs]).to_dtype(stored).unwrap();
        let residual = random(&[rows, outputs]).to_dtype(wanted).unwrap();
        let (a, w, r, b) = (flat(&x), flat(&weight), flat(&residual), flat(&bias));
        let dot = |i: usize| -> f64 {
            let (row, out) = (i / outputs, i % outputs);
            a[row * inputs..][..inputs].iter().zip(&w[out * inputs..][..inputs]).map(|(x, w)| x * w).sum()
        };
        let expected: Vec<f64> = (0..rows * outputs).map(|i| r[i] + dot(i) + b[i % outputs]).collect();
        let bound = if wanted == DType::F32 { 1e-5 } else { 3e-2 };
        let tracked = Var::from_tensor(&x).unwrap();
        for x in [&x, tracked.as_tensor()] {
            let found = linear_onto(&residual, x, &weight, Some(&bias)).unwrap();
            assert_eq!(found.dtype(), wanted, "{what}");
            assert_near(&what, &found, &expected, bound);
            let products: Vec<f64> = (0..rows * outputs).map(dot).collect();
            assert_near(&format!("{what}, summed in f32"), &linear_f32(x, &weight).unwrap(), &products, 1e-5);
        }
    }
}

#[test]
fn rows_are_added_with_their_weights() {
    for (rows, width, places) in [(9, 5, vec![0, 3, 8]), (400, 64, (0..400).step_by(3).collect()), (2, 3, vec![])] {
        let (into, added) = (random(&[rows, width]), random(&[places.len(), width]));
        let weights: Vec<f32> = (0..places.len()).map(|i| 0.5 + i as f32 / 7.0).collect();
        let mut expected = flat(&into);
        let added_values = flat(&added);
        for ((&place, &weight), row) in places.iter().zip(&weights).zip(added_values.chunks(width)) {
            for (sum, x) in expected[place as usize * width..].iter_mut().zip(row) {
                *sum += f64::from(weight) * x;
            }
        }
        for dtype in [DType::F32, DType::F64] {
            let (into, added) = (into.copy().unwrap().to_dtype(dtype).unwrap(), added.to_dtype(dtype).unwrap());
            add_rows(&into, &added, &places, &weights).unwrap();
            assert_near(&format!("{rows} rows, {dtype:?}"), &into, &expected, 1e-5);
        }
    }
    let (into, added) = (random(&[4, 2]), random(&[2, 2]));
    for (places, said) in [(&[1, 1][..], "rising"), (&[2, 1], "rising"), (&[1, 4], "add_rows"), (&[1], "places")] {
        let error = add_rows(&into, &added, places, &[1.0; 2]).unwrap_err().to_string();
        assert!(error.contains(said), "{places:?}: {error}");
    }
    let error = add_rows(&into, &added.to_dtype(DType::F64).unwrap(), &[0, 1], &[1.0; 2]).unwrap_err().to_string();
    assert!(error.contains("F64"), "{error}");
}

#[test]
fn linear_of_every_stored_type() {
    for (rows, inputs, outputs) in [(1, 8, 3), (5, 64, 300), (130, 24, 513)] {
        let (x, bias) = (short(&[rows, inputs]), random(&[outputs]));
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let weight = random(&[outputs, inputs]).to_dtype(dtype).unwrap();
            let (a, w, b) = (flat(&x), flat(&weight), flat(&bias));
            let mut expected = Vec::new();
            for row in a.chunks(inputs) {
                for (out, weight) in w.chunks(inputs).enumerate() {
                    expected.push(row.iter().zip(weight).map(|(x, w)| x * w).sum::<f64>() + b[out]);
                }
            }
            let found = linear(&x, &weight, Some(&bias)).unwrap();
            assert_eq!(found.dims(), &[rows, outputs]);
            assert_near(&format!("{dtype:?}"), &found, &expected, 1e-5);
            // Rows in the middle of a tensor, columns of another: not everything comes contiguous.
            let within = Tensor::cat(&[random(&[2, inputs]), x.clone()], 0).unwrap().narrow(0, 2, rows).unwrap();
            assert_near("rows of a larger tensor", &linear(&within, &weight, Some(&bias)).unwrap(), &expected, 1e-5);
            let across = x.t().unwrap().contiguous().unwrap().t().unwrap();
            assert_near("column by column", &linear(&across, &weight, Some(&bias)).unwrap(), &expected, 1e-5);
            let residual = random(&[rows, outputs]);
            let with: Vec<f64> = flat(&residual).iter().zip(&expected).map(|(a, b)| a + b).collect();
            let found = linear_onto(&residual, &x, &weight, Some(&bias)).unwrap();
            assert_near("onto a residual", &found, &with, 1e-5);
            let found = linear_onto(&residual, &across, &weight, Some(&bias)).unwrap();
            assert_near("onto a residual, column by column", &found, &with, 1e-5);
        }
    }
}

#[test]
fn bits_of_products_do_not_depend_on_the_number_of_threads() {
    for (rows, dtype) in [(8, DType::BF16), (100, DType::BF16), (100, DType::F32)] {
        let (x, weight) = (random(&[rows, 600]), random(&[700, 600]).to_dtype(dtype).unwrap());
        let runs = [1, 2, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| flat(&linear(&x, &weight, None).unwrap()))
        });
        assert_eq!(runs[0], runs[1], "{rows} rows, {dtype:?}");
        assert_eq!(runs[0], runs[2], "{rows} rows, {dtype:?}");
    }
}

#[test]
fn norms_of_rows() {
    for shape in [&[3usize, 7][..], &[5, 3, 64], &[1, 1000], &[300, 128]] {
        let x = random(shape);
        let dim = shape[shape.len() - 1];
        let weight = random(&[dim]);
        let (values, w) = (flat(&x), flat(&weight));
        let mut normed = Vec::new();
        for row in values.chunks(dim) {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / dim as f64;
            normed.extend(row.iter().zip(&w).map(|(x, w)| x / (mean + 1e-5).sqrt() * w));
        }
        assert_near("rms_norm", &rms_norm(&x, &weight, 1e-5).unwrap(), &normed, 1e-5);
        // A tensor that needs a gradient takes another path to the same values.
        let x = Var::from_tensor(&x).unwrap();
        assert_near("rms_norm", &rms_norm(&x, &weight, 1e-5).unwrap(), &normed, 1e-5);
    }
}

#[test]
fn activations_of_every_type() {
    for shape in [&[3usize, 7][..], &[5, 3, 64], &[1, 1000], &[300, 128]] {
        for (dtype, bound) in [(DType::F32, 1e-6), (DType::F64, 1e-12), (DType::BF16, 2e-2), (DType::F16, 2e-3)] {
            let random = || (random(shape) * 3.0).unwrap().to_dtype(dtype).unwrap();
            let (gate, up) = (random(), random());
            let tracked = Var::from_tensor(&gate).unwrap();
            for by in GATES {
                let what = format!("{by:?} of {dtype:?} {shape:?}");
                let expected: Vec<f64> =
                    flat(&gate).into_iter().zip(flat(&up)).map(|(gate, up)| gated_by_hand(gate, up, by)).collect();
                let found = gated(&gate, &up, by).unwrap();
                assert_eq!((found.dims(), found.dtype()), (shape, dtype), "{what}");
                assert_near(&what, &found, &expected, bound);
                // A tensor that needs a gradient takes another path to the same values.
                assert_near(&what, &gated(&tracked, &up, by).unwrap(), &expected, bound);
            }
        }
    }
}

/// In one step of vectors and beyond it, in bf16, and where a gradient is wanted.
#[test]
fn activations_of_extremes() {
    const GATE: [f32; 10] = [-3e38, -1e20, -200.0, -88.0, 0.0, 88.0, 200.0, 1e20, f32::INFINITY, f32::NAN];
    let gate = Tensor::new(&[GATE; 5], &Device::Cpu).unwrap();
    let wide = |by: Gate, up: f32| {
        let up = Tensor::full(up, gate.dims(), &Device::Cpu).unwrap();
        let bf16 = |x: &Tensor| x.to_dtype(DType::BF16).unwrap();
        let tracked = gated(Var::from_tensor(&gate).unwrap().as_tensor(), &up, by).unwrap();
        let all = [gated(&gate, &up, by).unwrap(), tracked, gated(&bf16(&gate), &bf16(&up), by).unwrap()];
        all.map(|found| found.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap()).concat()
    };
    for by in GATES {
        for row in wide(by, 1.0) {
            assert!(row[..4].iter().all(|x| x.abs() < 1e-30), "{by:?}: {row:?}");
            assert_eq!(row[4], 0.0, "{by:?}");
            assert!(row[9].is_nan(), "{by:?}: {row:?}");
        }
    }
    for row in [wide(Gate::Silu, 1.0), wide(Gate::GeluTanh, 1.0)].concat() {
        let near = |(found, expected): (&f32, &f32)| found == expected || (found / expected - 1.0).abs() < 4e-3;
        assert!(row[5..9].iter().zip(&GATE[5..9]).all(near), "{row:?}");
    }
    let by = Gate::ClampedSilu { limit: 7.0 };
    for (up, factor) in [(f32::INFINITY, 8.0), (1e30, 8.0), (7.0, 8.0), (0.0, 1.0), (-7.0, -6.0), (-1e30, -6.0)] {
        for row in wide(by, up) {
            let expected = 7.0 / (1.0 + (-1.702f32 * 7.0).exp()) * factor;
            assert!(row[5..9].iter().all(|x| (x / expected - 1.0).abs() < 4e-3), "{up}: {row:?}");
        }
    }
    assert!(wide(by, f32::NAN).iter().flatten().all(|x| x.is_nan()), "a NaN is not clamped");
}

/// In one pass or in three, few rows and many, in whole runs of columns and beyond: the same bits,
/// of which a gradient takes another path to values near them.
#[test]
fn activations_of_two_products_are_those_of_the_products() {
    for (rows, inputs, outputs) in [(1, 64, 70), (33, 96, 64), (200, 130, 40), (130, 512, 700), (97, 1024, 300)] {
        let (x, biases) = (random(&[rows, inputs]), [random(&[outputs]), random(&[outputs])]);
        let drawn = || (random(&[outputs, inputs]) * 0.1).unwrap();
        let plain = |dtype| Weight::Plain(drawn().to_dtype(dtype).unwrap());
        let packed = |in_bf16: bool| {
            let bytes =
                (0..outputs * inputs / 32 * 18).map(|at| (at * 37 % 251) as u8 % if at % 18 == 1 { 60 } else { 255 });
            let packed = Packed::new(Packing::Q4_0, [outputs, inputs], bytes.collect::<Vec<u8>>()).unwrap();
            Weight::Packed(packed.multiplied_in_bf16(in_bf16))
        };
        let mut weights: Vec<[Weight; 2]> =
            [DType::F32, DType::BF16, DType::F16].map(|dtype| [plain(dtype), plain(dtype)]).into();
        weights.push([plain(DType::F32), plain(DType::BF16)]);
        if inputs % 32 == 0 {
            weights.extend([false, true].map(|in_bf16| [packed(in_bf16), packed(in_bf16)]));
            weights.push([packed(true), packed(false)]);
        }
        for (case, [gate, up]) in weights.iter().enumerate() {
            for biases in [[None, None], [Some(&biases[0]), Some(&biases[1])], [None, Some(&biases[1])]] {
                for by in GATES {
                    let products = [linear(&x, gate, biases[0]).unwrap(), linear(&x, up, biases[1]).unwrap()];
                    let expected = gated(&products[0], &products[1], by).unwrap();
                    let found = gated_linear(&x, [gate.into(), up.into()], biases, by).unwrap();
                    let bits = |x: &Tensor| -> Vec<u32> {
                        x.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
                    };
                    assert_eq!(found.dims(), &[rows, outputs]);
                    assert!(bits(&found) == bits(&expected), "{rows} x {inputs} x {outputs}, case {case}, {by:?}");
                }
            }
        }
        let tracked = Var::from_tensor(&drawn()).unwrap();
        let (Weight::Plain(up), by) = (plain(DType::F32), Gate::Silu) else { unreachable!("it is plain") };
        let found = gated_linear(&x, [tracked.as_tensor().into(), (&up).into()], [None, None], by).unwrap();
        let products = [linear(&x, tracked.as_tensor(), None).unwrap(), linear(&x, &up, None).unwrap()];
        assert!(found.track_op());
        assert_near("tracked", &found, &flat(&gated(&products[0], &products[1], by).unwrap()), 1e-6);
    }
    let wrong = |x: &[usize], gate: &[usize], up: &[usize]| {
        let (x, gate, up) = (random(x), random(gate), random(up));
        gated_linear(&x, [(&gate).into(), (&up).into()], [None, Some(&random(&[6]))], Gate::Silu).is_err()
    };
    assert!(
        wrong(&[40, 7], &[5, 8], &[5, 8]) && wrong(&[40, 8], &[5, 8], &[5, 8]) && wrong(&[40, 8], &[6, 8], &[5, 8])
    );
}

#[test]
fn nothing_in_nothing_out() {
    let x = random(&[0, 8]);
    assert_eq!(linear(&x, &random(&[5, 8]), Some(&random(&[5]))).unwrap().dims(), &[0, 5]);
    assert_eq!(rms_norm(&x, &random(&[8]), 1e-5).unwrap().dims(), &[0, 8]);
    assert_eq!(gated(&x, &x, Gate::Silu).unwrap().dims(), &[0, 8]);
    assert!(linear(&random(&[2, 7]), &random(&[5, 8]), None).is_err());
    assert!(rms_norm(&random(&[2, 7]), &random(&[8]), 1e-5).is_err());
    assert!(gated(&random(&[2, 7]), &random(&[2, 8]), Gate::GeluTanh).is_err());
}

#[test]
fn products_without_inputs_or_outputs() {
    for dtype in [DType::F32, DType::BF16] {
        let (bias, residual) = (random(&[5]), random(&[3, 5]));
        let (x, weight) = (
            Tensor::zeros((3, 0), DType::F32, &Device::Cpu).unwrap(),
            Tensor::zeros((5, 0), dtype, &Device::Cpu).unwrap(),
        );
        let expected: Vec<f64> = (0..15).map(|i| flat(&residual)[i] + flat(&bias)[i % 5]).collect();
        assert_near("no inputs", &linear_onto(&residual, &x, &weight, Some(&bias)).unwrap(), &expected, 1e-6);
        assert_eq!(flat(&linear(&x, &weight, None).unwrap()), [0.0; 15]);
        let (weight, bias) = (Tensor::zeros((0, 4), dtype, &Device::Cpu).unwrap(), random(&[0]));
        assert_eq!(linear(&random(&[3, 4]), &weight, Some(&bias)).unwrap().dims(), &[3, 0]);
    }
}

#[test]
fn products_of_views() {
    // Offsets into a larger tensor, as fused weights and tiles of rows have; a strided view goes
    // another way.
    let (all_x, all_weights, residuals) = (short(&[9, 24]), random(&[600, 24]), random(&[9, 300]));
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let weight = all_weights.to_dtype(dtype).unwrap().narrow(0, 300, 300).unwrap();
        let x = all_x.narrow(0, 2, 5).unwrap();
        let residual = residuals.narrow(0, 3, 5).unwrap();
        let (a, w, r) = (flat(&x), flat(&weight), flat(&residual));
        let dot = |i: usize| -> f64 { (0..24).map(|d| a[i / 300 * 24 + d] * w[i % 300 * 24 + d]).sum() };
        let expected: Vec<f64> = (0..1500).map(|i| r[i] + dot(i)).collect();
        assert_near("offset", &linear_onto(&residual, &x, &weight, None).unwrap(), &expected, 1e-5);
        let strided = x.t().unwrap().contiguous().unwrap().t().unwrap();
        assert_near("strided", &linear_onto(&residual, &strided, &weight, None).unwrap(), &expected, 1e-5);
    }
}

#[test]
fn sums_of_every_type_and_of_views() {
    let (all_a, all_b) = (random(&[7, 5000]), random(&[7, 5000]));
    for dtype in [DType::F32, DType::BF16] {
        let view = |x: &Tensor| x.to_dtype(dtype).unwrap().narrow(0, 2, 4).unwrap();
        let (a, b) = (view(&all_a), view(&all_b));
        let expected: Vec<f64> = flat(&a).iter().zip(flat(&b)).map(|(a, b)| a + b).collect();
        let bound = if dtype == DType::F32 { 1e-6 } else { 1e-2 };
        assert_near("sum", &add(&a, &b).unwrap(), &expected, bound);
        assert_eq!(add(&a, &b).unwrap().dtype(), dtype);
    }
    assert!(add(&all_a, &all_b.narrow(0, 0, 6).unwrap()).is_err());
    let nothing = random(&[0, 3]);
    assert_eq!(add(&nothing, &nothing).unwrap().dims(), &[0, 3]);
}

#[test]
fn factors_of_everything_and_of_each_row() {
    let x = random(&[3, 2, 5]);
    let times = |factors: [f64; 3]| -> Vec<f64> {
        flat(&x).chunks(10).zip(factors).flat_map(|(row, factor)| row.iter().map(move |x| x * factor)).collect()
    };
    assert_near("scale", &scale(&x, -0.75).unwrap(), &times([-0.75; 3]), 1e-6);
    let factors = Tensor::from_slice(&[2.0f32, 0.0, -1.5], 3, &Device::Cpu).unwrap();
    assert_near("scale_rows", &scale_rows(&x, &factors).unwrap(), &times([2.0, 0.0, -1.5]), 1e-6);
    let wide = x.to_dtype(DType::BF16).unwrap();
    assert_eq!(scale_rows(&wide, &factors).unwrap().dtype(), DType::BF16);
    let nowhere = Tensor::full(f32::NEG_INFINITY, (2, 2), &Device::Cpu).unwrap();
    assert!(flat(&scale(&nowhere, 0.81).unwrap()).iter().all(|&x| x == f64::NEG_INFINITY), "no key, no weight");
    assert!(scale_rows(&x, &factors.narrow(0, 0, 2).unwrap()).is_err(), "two factors for three rows");
    let none = x.narrow(0, 0, 0).unwrap();
    assert_eq!(scale_rows(&none, &factors.narrow(0, 0, 0).unwrap()).unwrap().dims(), &[0, 2, 5]);
    assert_eq!(scale(&none, 2.0).unwrap().dims(), &[0, 2, 5]);
}

#[test]
fn layer_norms_centre_and_scale_each_row() {
    for dim in [5, 33, 1152] {
        // Numbers of a row that are close to each other would change much by rounding.
        let apart = Tensor::from_iter((0..dim).map(|i| if i % 2 == 0 { 1f32 } else { 5.0 }), &Device::Cpu).unwrap();
        let x = random(&[40, dim]).broadcast_add(&apart).unwrap();
        let (weight, bias) = (random(&[dim]), random(&[dim]));
        let (flat_weight, flat_bias) = (flat(&weight), flat(&bias));
        let expected: Vec<f64> = flat(&x)
            .chunks(dim)
            .flat_map(|row| {
                let mean = row.iter().sum::<f64>() / dim as f64;
                let variance = row.iter().map(|value| square(value - mean)).sum::<f64>() / dim as f64;
                let factor = 1.0 / (variance + 1e-6).sqrt();
                let of = |(i, value): (usize, &f64)| (value - mean) * factor * flat_weight[i] + flat_bias[i];
                row.iter().enumerate().map(of).collect::<Vec<_>>()
            })
            .collect();
        assert_near("f32", &layer_norm(&x, &weight, &bias, 1e-6).unwrap(), &expected, 1e-5);
        let tracked = Var::from_tensor(&x).unwrap();
        assert_near("tracked", &layer_norm(tracked.as_tensor(), &weight, &bias, 1e-6).unwrap(), &expected, 1e-5);
        let wide = x.to_dtype(DType::F64).unwrap();
        assert_near("f64", &layer_norm(&wide, &weight, &bias, 1e-6).unwrap(), &expected, 1e-6);
        let short = x.to_dtype(DType::BF16).unwrap();
        assert_near("bf16", &layer_norm(&short, &weight, &bias, 1e-6).unwrap(), &expected, 5e-2);
    }
    let (weight, bias) = (random(&[4]), random(&[4]));
    assert_eq!(layer_norm(&random(&[0, 4]), &weight, &bias, 1e-6).unwrap().dims(), &[0, 4]);
    assert!(layer_norm(&random(&[2, 5]), &weight, &random(&[5]), 1e-6).is_err());
    assert!(layer_norm(&random(&[2, 4]), &weight, &random(&[5]), 1e-6).is_err());
}

#[test]
fn both_forms_of_gelu() {
    let values: Vec<f32> = (0..40_001).map(|step| (step as f32 - 20_000.0) / 2000.0).collect();
    let x = Tensor::new(&values[..], &Device::Cpu).unwrap();
    let tanh = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    let exact = |x: f64| 0.5 * x * (1.0 + candle_core::cpu::erf::erf_f64(x / std::f64::consts::SQRT_2));
    // Values of tables: Φ(1) = 0.841344746, Φ(−2) = 0.022750132.
    assert!((exact(1.0) - 0.841_344_746).abs() < 1e-8 && (exact(-2.0) + 2.0 * 0.022_750_132).abs() < 1e-8);
    let mut apart: f64 = 0.0;
    for (form, by_hand) in [(Gelu::Exact, &exact as &dyn Fn(f64) -> f64), (Gelu::Tanh, &tanh)] {
        let expected: Vec<f64> = values.iter().map(|&x| by_hand(f64::from(x))).collect();
        assert_near("f32", &gelu(&x, form).unwrap(), &expected, 1e-6);
        assert_near("f64", &gelu(&x.to_dtype(DType::F64).unwrap(), form).unwrap(), &expected, 1e-6);
        assert_near("bf16", &gelu(&x.to_dtype(DType::BF16).unwrap(), form).unwrap(), &expected, 2e-2);
        assert_near("tracked", &gelu(Var::from_tensor(&x).unwrap().as_tensor(), form).unwrap(), &expected, 1e-6);
        apart = values.iter().map(|&x| (exact(f64::from(x)) - tanh(f64::from(x))).abs()).fold(apart, f64::max);
    }
    assert!(apart > 1e-4, "the forms differ: {apart:e}");
    assert_eq!(gelu(&random(&[0, 4]), Gelu::Exact).unwrap().dims(), &[0, 4]);
}
