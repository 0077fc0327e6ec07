//! Packed matrices on the GPU against the same on the host, and their products against sums in f64.

use candle_core::{DType, Tensor};
use tributary_kernels::{Packed, Packing, Weight, add_linear, linear, linear_f32, linear_onto};

use crate::drawn::drawn;
use crate::kit::{Random, TYPES, assert_near, gpu, on, values};

/// Asserts that numbers on the GPU are those of the host, rounded to their type.
fn assert_same(what: &str, found: &Tensor, expected: &Tensor) {
    assert!(found.device().is_cuda(), "{what}: stays on the GPU");
    assert_eq!(found.dims(), expected.dims(), "{what}");
    // A scale times a code less another product is rounded once or twice, then to the type.
    let bound = match found.dtype() {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 2e-6,
    };
    for (place, (found, expected)) in values(found).into_iter().zip(values(expected)).enumerate() {
        let near = (found - expected).abs() <= bound * expected.abs().max(1e-3);
        let same = near || found == expected || (found.is_nan() && expected.is_nan());
        assert!(same, "{what}, {place}: {found} for {expected}");
    }
}

#[test]
fn unpacked_numbers_are_those_of_the_host() {
    let device = gpu();
    for packing in Packing::ALL {
        let packed = drawn(packing, [37, 512]);
        let there = packed.to_device(&device).unwrap();
        let expected = packed.unpacked(DType::F32).unwrap();
        for (dtype, _) in TYPES {
            assert_same(&format!("{packing:?} in {dtype:?}"), &there.unpacked(dtype).unwrap(), &expected);
        }
        assert!(there.unpacked(DType::F64).is_err(), "no kernel writes f64");
        let back = there.to_device(expected.device()).unwrap().unpacked(DType::F32).unwrap();
        assert_eq!(values(&back), values(&expected), "{packing:?}: to the GPU and back");
    }
}

/// The least and greatest scales of MXFP4 and that which is no number, with all codes.
#[test]
fn special_scales_are_those_of_the_host() {
    let codes: Vec<u8> = (0..16).map(|code| code << 4 | (15 - code)).collect();
    let bytes = [0u8, 1, 127, 254, 255].into_iter().flat_map(|scale| [&[scale][..], &codes].concat());
    let packed = Packed::new(Packing::Mxfp4, [5, 32], bytes.collect::<Vec<u8>>()).unwrap();
    let there = packed.to_device(&gpu()).unwrap();
    let expected = values(&packed.unpacked(DType::F32).unwrap());
    for (found, expected) in values(&there.unpacked(DType::F32).unwrap()).into_iter().zip(expected) {
        assert!(found == expected || (found.is_nan() && expected.is_nan()), "{found} for {expected}");
    }
}

#[test]
fn rows_are_picked_where_the_blocks_are() {
    let device = gpu();
    for packing in Packing::ALL {
        let packed = drawn(packing, [40, 256]);
        let there = packed.to_device(&device).unwrap();
        let same = |what: &str, found: &Packed, expected: &Packed| {
            let what = format!("{packing:?}: {what}");
            assert_same(&what, &found.unpacked(DType::F32).unwrap(), &expected.unpacked(DType::F32).unwrap());
        };
        let order = [39, 0, 7, 7, 12];
        same("some rows", &there.select(order).unwrap(), &packed.select(order).unwrap());
        same("a range", &there.narrow(5, 17).unwrap(), &packed.narrow(5, 17).unwrap());
        let odd = there.narrow(3, 30).unwrap().select([1, 28]).unwrap();
        same("rows of a range", &odd, &packed.select([4, 31]).unwrap());
        assert!(there.select([40]).is_err() && there.narrow(30, 11).is_err(), "beyond the rows");
        assert_eq!(there.select([]).unwrap().dims(), [0, 256]);
        let rows = Weight::Packed(there).rows(&[3, 38], DType::BF16).unwrap();
        assert_same("an embedding", &rows, &packed.select([3, 38]).unwrap().unpacked(DType::F32).unwrap());
    }
}

/// Rows that are multiplied with blocks as they are, one and several, and rows for which the matrix
/// is unpacked.
const ROWS: [usize; 6] = [1, 2, 4, 7, 8, 21];

#[test]
fn products_are_those_with_the_numbers() {
    let (device, mut random) = (gpu(), Random::new(61));
    for (packing, (dtype, bound)) in Packing::ALL.into_iter().flat_map(|packing| TYPES.map(|each| (packing, each))) {
        let shapes = [(3, 512), (70, 256), (9, 32 + 256)];
        for (outputs, inputs) in shapes.into_iter().filter(|(_, inputs)| inputs % packing.numbers() == 0) {
            let packed = drawn(packing, [outputs, inputs]);
            let (there, w) = (packed.to_device(&device).unwrap(), values(&packed.unpacked(DType::F64).unwrap()));
            for rows in ROWS {
                let what = format!("{packing:?} {dtype:?} {rows} x {inputs} x {outputs}");
                let (x, residual) = (random.tensor(&[rows, inputs], dtype), random.tensor(&[rows, outputs], dtype));
                let bias = random.tensor(&[outputs], DType::F32);
                let (a, b, r) = (values(&x), values(&bias), values(&residual));
                let dot = |row: usize, out: usize| -> f64 {
                    a[row * inputs..][..inputs].iter().zip(&w[out * inputs..][..inputs]).map(|(a, w)| a * w).sum()
                };
                let each = |more: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
                    (0..rows * outputs)
                        .map(|i| dot(i / outputs, i % outputs) + more(i / outputs, i % outputs))
                        .collect()
                };
                let [x, bias, residual] = [&x, &bias, &residual].map(|x| on(x, &device));
                let found = linear(&x, &there, None).unwrap();
                assert_eq!(found.dtype(), dtype, "{what}");
                assert_near(&what, &found, &each(&|_, _| 0.0), bound);
                assert_near(&what, &linear(&x, &there, Some(&bias)).unwrap(), &each(&|_, out| b[out]), bound);
                let onto = linear_onto(&residual, &x, &there, Some(&bias)).unwrap();
                assert_near(&what, &onto, &each(&|row, out| r[row * outputs + out] + b[out]), bound);
                assert_eq!(values(&residual), r, "{what}: the residual is left alone");
                assert!(add_linear(&residual, &x, &there).unwrap(), "{what}: in place");
                assert_near(&what, &residual, &each(&|row, out| r[row * outputs + out]), bound);
                let below = on(&random.tensor(&[rows, outputs], DType::F32), &device);
                let r = values(&below);
                let onto = linear_onto(&below, &x, &there, None).unwrap();
                assert_eq!(onto.dtype(), DType::F32, "{what}");
                assert_near(&what, &onto, &each(&|row, out| r[row * outputs + out]), bound);
                let wide = linear_f32(&x, &there).unwrap();
                assert_eq!(wide.dtype(), DType::F32, "{what}");
                // Numbers are rounded to 16 bits, but for few rows.
                assert_near(&what, &wide, &each(&|_, _| 0.0), if rows > 8 { bound } else { 1e-5 });
            }
        }
    }
}

/// Rows that do not begin at a multiple of 16 bytes, and rows apart.
#[test]
fn products_of_rows_at_odd_places() {
    let (device, mut random) = (gpu(), Random::new(62));
    let packed = drawn(Packing::Q8_0, [33, 64]);
    let (there, w) = (packed.to_device(&device).unwrap(), values(&packed.unpacked(DType::F64).unwrap()));
    for (dtype, bound) in TYPES {
        for (rows, first) in [(1, 0), (1, 3), (3, 0), (3, 8), (3, 5)] {
            let all = random.tensor(&[rows, 72], dtype);
            let a = values(&all.narrow(1, first, 64).unwrap());
            let dot = |i: usize| (0..64).map(|k| a[i / 33 * 64 + k] * w[i % 33 * 64 + k]).sum::<f64>();
            let expected: Vec<f64> = (0..rows * 33).map(dot).collect();
            let found = linear(&on(&all, &device).narrow(1, first, 64).unwrap(), &there, None).unwrap();
            assert_near(&format!("{dtype:?}, {rows} rows from {first} on"), &found, &expected, bound);
        }
    }
}

/// A matrix that is unpacked in several pieces, of which the last one is shorter. Most of its rows
/// are the same, since that many would take long to draw.
#[test]
fn products_with_a_matrix_in_pieces() {
    let (device, mut random, rows, inputs) = (gpu(), Random::new(63), 9, 64 * 1024);
    let at_once = Packed::unpacked_rows([usize::MAX, inputs]);
    let outputs = 2 * at_once + 5;
    let others = [0, 1, at_once - 1, at_once, 2 * at_once, outputs - 1];
    let given = drawn(Packing::Q4_0, [1 + others.len(), inputs]);
    let of = |output: usize| others.iter().position(|&other| other == output).map_or(0, |place| 1 + place);
    let packed = given.select((0..outputs).map(of)).unwrap().to_device(&device).unwrap();
    let x = random.tensor(&[rows, inputs], DType::BF16);
    let (a, w) = (values(&x), values(&given.unpacked(DType::F64).unwrap()));
    let dot = |row: usize, of: usize| -> f64 {
        a[row * inputs..][..inputs].iter().zip(&w[of * inputs..][..inputs]).map(|(a, w)| a * w).sum()
    };
    let dots: Vec<Vec<f64>> = (0..rows).map(|row| (0..=others.len()).map(|of| dot(row, of)).collect()).collect();
    let expected: Vec<f64> = (0..rows * outputs).map(|i| dots[i / outputs][of(i % outputs)]).collect();
    assert_near("in pieces", &linear(&on(&x, &device), &packed, None).unwrap(), &expected, 1e-2);
}
