//! Random weights: the bits that the host's generator gives, on every device.

use candle_core::{DType, Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tributary_kernels::cuda;

use crate::kit::{TYPES, gpu, values};

/// The same numbers, one after the other, on the host.
fn on_the_host(key: [u8; 32], spread: f32, count: usize, dtype: DType) -> Vec<f64> {
    let mut random = ChaCha8Rng::from_seed(key);
    let mut draw = || spread * (random.next_u32() as f32 * (2.0 / 4_294_967_296.0) - 1.0);
    let drawn: Vec<f32> = (0..count).map(|_| draw()).collect();
    values(&Tensor::from_vec(drawn, count, &Device::Cpu).unwrap().to_dtype(dtype).unwrap())
}

#[test]
fn devices_draw_what_the_host_draws() {
    let gpu = gpu();
    let key: [u8; 32] = std::array::from_fn(|i| (i * 37 + 11) as u8);
    // Less than a block, whole blocks, a rest; more than a grid's block of threads.
    for shape in [vec![1], vec![15], vec![16], vec![17, 3], vec![64, 65], vec![3, 7001]] {
        let count = shape.iter().product();
        for (dtype, _) in TYPES {
            let found = cuda::uniform(key, 0.37, &shape, dtype, &gpu).unwrap();
            assert_eq!((found.dims(), found.dtype()), (shape.as_slice(), dtype));
            assert!(values(&found) == on_the_host(key, 0.37, count, dtype), "{shape:?} {dtype:?}");
        }
    }
    let other = cuda::uniform([0; 32], 0.37, &[40], DType::F32, &gpu).unwrap();
    assert_ne!(values(&other), on_the_host(key, 0.37, 40, DType::F32), "the key counts");
}

#[test]
fn nothing_and_other_types_are_told() {
    let gpu = gpu();
    assert_eq!(cuda::uniform([1; 32], 1.0, &[0, 5], DType::BF16, &gpu).unwrap().dims(), [0, 5]);
    let error = cuda::uniform([1; 32], 1.0, &[5], DType::U32, &gpu).unwrap_err();
    assert!(error.to_string().contains("f32, bf16 or f16"), "{error}");
}
