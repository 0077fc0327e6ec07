//! Rows that several experts compute, against sums in f64.

use candle_core::{DType, Tensor};
use tributary_kernels::{Packing, Pairs};

use crate::drawn::drawn;
use crate::kit::{Random, TYPES, assert_near, gpu, on, values};

/// For each expert its rows, rising, and their weights.
type Shares = Vec<(Vec<u32>, Vec<f32>)>;

/// Every row passes `active` of the experts from `first` on, drawn at random.
fn shares(random: &mut Random, rows: usize, experts: std::ops::Range<usize>, active: usize) -> Shares {
    let mut shares = vec![(Vec::new(), Vec::new()); experts.end + 1]; // the last has no rows
    for row in 0..rows {
        let mut left: Vec<usize> = experts.clone().collect();
        for _ in 0..active {
            let expert = left.swap_remove(random.below(left.len() as u32) as usize);
            shares[expert].0.push(row as u32);
            shares[expert].1.push(random.below(1000) as f32 / 500.0 - 1.0);
        }
    }
    shares
}

fn pairs(shares: &Shares, rows: usize, device: &candle_core::Device) -> Pairs {
    let lists: Vec<(&[u32], &[f32])> = shares.iter().map(|(rows, weights)| (&rows[..], &weights[..])).collect();
    Pairs::new(&lists, rows, device).unwrap()
}

/// Rows, experts that rows are drawn from, and how many of them each row passes: one row, all rows
/// to the same experts, some experts without rows, and more rows than a block's.
const CASES: [(usize, std::ops::Range<usize>, usize); 5] =
    [(1, 0..3, 1), (7, 2..4, 2), (5, 0..9, 3), (40, 1..12, 5), (300, 0..2, 1)];

/// Widths of which cuBLAS takes all experts' products at once, and others.
const WIDTHS: [(usize, usize); 5] = [(64, 32), (8, 16), (13, 7), (24, 1), (1, 40)];

#[test]
fn products_are_those_of_each_rows_experts() {
    let (device, mut random) = (gpu(), Random::new(51));
    for (dtype, bound) in TYPES {
        for ((rows, experts, active), (inputs, outputs)) in
            CASES.into_iter().flat_map(|case| WIDTHS.map(|w| (case.clone(), w)))
        {
            let what = format!("{dtype:?}, {rows} rows, {active} of {experts:?}, {inputs} to {outputs}");
            let shares = shares(&mut random, rows, experts, active);
            let x = random.tensor(&[rows, inputs], dtype);
            let sets: Vec<Vec<Tensor>> =
                (0..2).map(|_| shares.iter().map(|_| random.tensor(&[outputs, inputs], dtype)).collect()).collect();
            let moved: Vec<Vec<Tensor>> =
                sets.iter().map(|set| set.iter().map(|weight| on(weight, &device)).collect()).collect();
            let lists: Vec<_> = moved.iter().map(|set| set.iter().map(Into::into).collect()).collect();
            let pairs = pairs(&shares, rows, &device);
            let found = pairs.linear(&pairs.gather(&on(&x, &device)).unwrap(), &lists).unwrap();
            let x = values(&x);
            for (set, found) in sets.iter().zip(&found) {
                assert_eq!((found.dims(), found.dtype()), (&[rows * active, outputs][..], dtype), "{what}");
                let mut expected = Vec::new();
                for ((met, _), weight) in shares.iter().zip(set) {
                    let weight = values(weight);
                    for &row in met {
                        let row = &x[row as usize * inputs..][..inputs];
                        let dot = |weight: &[f64]| weight.iter().zip(row).map(|(a, b)| a * b).sum::<f64>();
                        expected.extend(weight.chunks(inputs).map(dot));
                    }
                }
                assert_near(&what, found, &expected, bound);
            }
        }
    }
}

/// Packed weights, unpacked together, or one by one where experts are packed in two ways.
#[test]
fn products_with_packed_weights_are_those_with_their_numbers() {
    let (device, mut random) = (gpu(), Random::new(55));
    let ways = [[Packing::Mxfp4; 2], [Packing::Q4K; 2], [Packing::Q8_0, Packing::Mxfp4]];
    for ((dtype, bound), ways) in TYPES.into_iter().flat_map(|each| ways.map(|ways| (each, ways))) {
        for (rows, experts, active) in CASES {
            let what = format!("{dtype:?}, {ways:?}, {rows} rows, {active} of {experts:?}");
            let (shares, x) = (shares(&mut random, rows, experts, active), random.tensor(&[rows, 256], dtype));
            let pairs = pairs(&shares, rows, &device);
            // Those without rows are never unpacked: they are on the host.
            let of = |expert: usize| drawn(ways[expert % 2], [24 + expert, 256]).narrow(expert, 24).unwrap();
            let packed: Vec<_> = (0..shares.len()).map(of).collect();
            let there: Vec<_> = packed.iter().map(|weight| weight.to_device(&device).unwrap()).collect();
            let given = there.iter().zip(&packed).zip(&shares);
            let set: Vec<_> = given.map(|((gpu, host), (met, _))| if met.is_empty() { host } else { gpu }).collect();
            let set = set.into_iter().map(Into::into).collect();
            let gathered = pairs.gather(&on(&x, &device)).unwrap();
            let found = pairs.linear(&gathered, &[set]).unwrap();
            assert_eq!((found[0].dims(), found[0].dtype()), (&[rows * active, 24][..], dtype), "{what}");
            let x = values(&x);
            let mut expected = Vec::new();
            for ((met, _), weight) in shares.iter().zip(&packed) {
                let weight = values(&weight.unpacked(DType::F64).unwrap());
                for &row in met {
                    let row = &x[row as usize * 256..][..256];
                    let dot = |weight: &[f64]| weight.iter().zip(row).map(|(a, b)| a * b).sum::<f64>();
                    expected.extend(weight.chunks(256).map(dot));
                }
            }
            assert_near(&what, &found[0], &expected, bound);
        }
    }
}

#[test]
fn outputs_are_summed_by_their_weights() {
    let (device, mut random) = (gpu(), Random::new(52));
    for (dtype, bound) in TYPES {
        for ((rows, experts, active), width) in
            CASES.into_iter().flat_map(|case| [1, 8, 13, 264].map(|width| (case.clone(), width)))
        {
            let what = format!("{dtype:?}, {rows} rows of {width}, {active} of {experts:?}");
            let shares = shares(&mut random, rows, experts, active);
            // A view, so that neither begins where its memory does.
            let base = random.tensor(&[rows + 1, width], DType::F32);
            let into = on(&base, &device).narrow(0, 1, rows).unwrap();
            let outputs = random.tensor(&[rows * active + 1, width], dtype).narrow(0, 1, rows * active).unwrap();
            let mut expected = values(&base)[width..].to_vec();
            let mut rest = &values(&outputs)[..];
            for (row, weight) in shares.iter().flat_map(|(rows, weights)| rows.iter().zip(weights)) {
                let sums = &mut expected[*row as usize * width..][..width];
                sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += f64::from(*weight) * x);
                rest = &rest[width..];
            }
            let on_gpu = on(&outputs, &device);
            pairs(&shares, rows, &device).add(&into, &on_gpu).unwrap();
            assert_near(&what, &into, &expected, bound);
            let on_cpu = base.narrow(0, 1, rows).unwrap().copy().unwrap();
            pairs(&shares, rows, on_cpu.device()).add(&on_cpu, &outputs.contiguous().unwrap()).unwrap();
            assert_near(&what, &on(&on_cpu, &device), &expected, 1e-5);
        }
    }
}

#[test]
fn biases_are_those_of_each_rows_expert() {
    let (device, mut random) = (gpu(), Random::new(54));
    for ((dtype, bound), stored) in TYPES.into_iter().flat_map(|each| [DType::F32, DType::BF16].map(|s| (each, s))) {
        for ((rows, experts, active), width) in
            CASES.into_iter().flat_map(|case| [1, 8, 13, 264].map(|width| (case.clone(), width)))
        {
            let what = format!("{stored:?} onto {dtype:?}, {rows} rows of {width}, {active} of {experts:?}");
            let shares = shares(&mut random, rows, experts, active);
            let biases = random.tensor(&[shares.len(), width], stored);
            // A view, which does not begin where its memory does.
            let outputs = random.tensor(&[rows * active + 1, width], dtype).narrow(0, 1, rows * active).unwrap();
            let before = values(&outputs);
            let of_pairs = shares.iter().enumerate().flat_map(|(expert, (rows, _))| rows.iter().map(move |_| expert));
            let biases64 = values(&biases);
            let added = of_pairs.flat_map(|expert| &biases64[expert * width..][..width]);
            let expected: Vec<f64> = before.iter().zip(added).map(|(x, bias)| x + bias).collect();
            let on_gpu = on(&outputs, &device);
            let found = pairs(&shares, rows, &device).add_biases(&on_gpu, &on(&biases, &device)).unwrap();
            assert_eq!((found.dims(), found.dtype()), (&[rows * active, width][..], dtype), "{what}");
            assert_near(&what, &found, &expected, bound);
            assert_eq!(values(&on_gpu), before, "{what}: the outputs are left alone");
            let on_cpu = pairs(&shares, rows, outputs.device()).add_biases(&outputs, &biases).unwrap();
            assert_near(&what, &on(&on_cpu, &device), &expected, bound);
        }
    }
}

/// The same numbers every time, whatever else the device does: no sum depends on an order of
/// threads.
#[test]
fn sums_are_the_same_every_time() {
    let (device, mut random) = (gpu(), Random::new(53));
    let shares = shares(&mut random, 64, 0..16, 8);
    let outputs = on(&random.tensor(&[64 * 8, 72], DType::BF16), &device);
    let pairs = pairs(&shares, 64, &device);
    let sum = || {
        let into = on(&Tensor::zeros((64, 72), DType::F32, &candle_core::Device::Cpu).unwrap(), &device);
        pairs.add(&into, &outputs).unwrap();
        values(&into)
    };
    assert_eq!(sum(), sum());
}
