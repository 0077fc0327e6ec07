//! The merge of partial attentions.

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Partial, merge, merge_all};

use crate::kit::{Random, TYPES, assert_near, gpu, on, values};

/// A part of random numbers; every third row of part `which` saw no key, and holds NaN to prove
/// that it is not read.
fn part(random: &mut Random, which: usize, shape: [usize; 3], dtype: DType) -> Partial {
    let [rows, heads, head_dim] = shape;
    let (mut out, mut lse) =
        (values(&random.tensor(&[rows, heads, head_dim], dtype)), values(&random.tensor(&[rows, heads], DType::F32)));
    for row in (0..rows * heads).filter(|row| row % 3 == which % 3) {
        lse[row] = f64::NEG_INFINITY;
        out[row * head_dim..][..head_dim].fill(f64::NAN);
    }
    let tensor = |list: Vec<f64>, shape: &[usize], dtype: DType| {
        Tensor::from_vec(list, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    };
    Partial { out: tensor(out, &[rows, heads, head_dim], dtype), lse: tensor(lse, &[rows, heads], DType::F32) }
}

/// Output and lse of all parts together, in f64.
fn expected(parts: &[Partial], head_dim: usize) -> (Vec<f64>, Vec<f64>) {
    let lists: Vec<(Vec<f64>, Vec<f64>)> = parts.iter().map(|part| (values(&part.out), values(&part.lse))).collect();
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for row in 0..lists[0].1.len() {
        let seen: Vec<_> = lists.iter().filter(|(_, lse)| lse[row] > f64::NEG_INFINITY).collect();
        let total: f64 = seen.iter().map(|(_, lse)| lse[row].exp()).sum();
        lse.push(total.ln());
        for dim in row * head_dim..(row + 1) * head_dim {
            let sum: f64 = seen.iter().map(|(out, lse)| lse[row].exp() * out[dim]).sum();
            out.push(if seen.is_empty() { 0.0 } else { sum / total });
        }
    }
    (out, lse)
}

#[test]
fn parts_of_every_number_and_type() {
    let (device, mut random) = (gpu(), Random::new(20));
    for (dtype, bound) in TYPES {
        for (count, rows, heads, head_dim) in
            [(2, 5, 3, 64), (1, 2, 1, 8), (3, 1, 7, 96), (17, 2, 2, 128), (2, 3, 2, 13)]
        {
            let what = format!("{count} parts {dtype:?} {rows} x {heads} x {head_dim}");
            let parts: Vec<Partial> =
                (0..count).map(|which| part(&mut random, which, [rows, heads, head_dim], dtype)).collect();
            let (out, lse) = expected(&parts, head_dim);
            let on_gpu: Vec<Partial> =
                parts.iter().map(|part| Partial { out: on(&part.out, &device), lse: on(&part.lse, &device) }).collect();
            let merged = merge_all(&on_gpu.iter().collect::<Vec<_>>()).unwrap().unwrap();
            assert_eq!(merged.out.dtype(), dtype);
            assert_near(&what, &merged.out, &out, bound);
            for (found, expected) in values(&merged.lse).iter().zip(&lse) {
                let near = (found - expected).abs() <= 1e-5 * expected.abs().max(1.0);
                assert!(near || found == expected, "{what}: lse {found} for {expected}");
            }
        }
    }
}

#[test]
fn two_and_none() {
    let (device, mut random) = (gpu(), Random::new(21));
    let parts = [part(&mut random, 0, [4, 2, 32], DType::F32), part(&mut random, 0, [4, 2, 32], DType::F32)];
    let (out, lse) = expected(&parts, 32);
    assert!(lse.contains(&f64::NEG_INFINITY), "a row that no part saw");
    let [a, b] = parts.map(|part| Partial { out: on(&part.out, &device), lse: on(&part.lse, &device) });
    let merged = merge(&a, &b).unwrap();
    assert_near("two", &merged.out, &out, 1e-5);
    assert!(merge_all(&[]).unwrap().is_none());
    let empty =
        |part: &Partial| Partial { out: part.out.narrow(0, 0, 0).unwrap(), lse: part.lse.narrow(0, 0, 0).unwrap() };
    assert_eq!(merge(&empty(&a), &empty(&b)).unwrap().out.dims(), &[0, 2, 32]);
    assert!(merge(&a, &empty(&b)).is_err());
}

/// At any place among the parts, also beside parts that saw nothing.
#[test]
fn a_nan_comes_through() {
    let device = gpu();
    for lse in
        [[f64::NAN, 1.0, f64::NEG_INFINITY], [1.0, f64::NEG_INFINITY, f64::NAN], [f64::NEG_INFINITY, f64::NAN, 1.0]]
    {
        let parts = lse.map(|lse| Partial {
            out: on(&Tensor::ones((1, 1, 8), DType::BF16, &Device::Cpu).unwrap(), &device),
            lse: on(&Tensor::new(&[[lse as f32]], &Device::Cpu).unwrap(), &device),
        });
        let merged = merge_all(&parts.iter().collect::<Vec<_>>()).unwrap().unwrap();
        assert!(values(&merged.lse)[0].is_nan(), "{lse:?}: {:?}", values(&merged.lse));
        assert!(values(&merged.out).iter().all(|x| x.is_nan()), "{lse:?}: {:?}", values(&merged.out));
    }
}
