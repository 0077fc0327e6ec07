//! Random tensors on the CPU and their copies on the GPU, and how far two tensors are apart.

use std::sync::OnceLock;

use candle_core::{DType, Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tributary_kernels::cuda;

/// The types that kernels know, with the relative error they may show.
pub const TYPES: [(DType, f64); 3] = [(DType::BF16, 1e-2), (DType::F16, 2e-3), (DType::F32, 1e-5)];

/// The first GPU, opened once for all tests of a process: a real one takes its time. Without a GPU
/// the tests fail: they are built only on request.
pub fn gpu() -> Device {
    static GPU: OnceLock<Device> = OnceLock::new();
    GPU.get_or_init(|| cuda::device(0).unwrap()).clone()
}

/// Leaves multiprocessors to others until it is dropped: tests may share a thread.
pub struct Leaving(usize);

impl Leaving {
    pub fn these(count: usize) -> Self {
        Self(cuda::leave_multiprocessors(count))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        cuda::leave_multiprocessors(self.0);
    }
}

/// Random numbers, the same for the same seed, about normal.
pub struct Random(ChaCha8Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn tensor(&mut self, shape: &[usize], dtype: DType) -> Tensor {
        let mut draw = || (0..4).map(|_| f64::from(self.0.next_u32()) / f64::from(u32::MAX) - 0.5).sum::<f64>() * 1.7;
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| draw()).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        self.0.next_u32() % bound
    }
}

pub fn on(x: &Tensor, device: &Device) -> Tensor {
    x.to_device(device).unwrap()
}

/// The numbers of a tensor of any device, once everything that makes it is done.
pub fn values(x: &Tensor) -> Vec<f64> {
    cuda::download(x).unwrap().to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Asserts ‖found − expected‖ / ‖expected‖ ≤ bound.
pub fn assert_near(what: &str, found: &Tensor, expected: &[f64], bound: f64) {
    assert!(found.device().is_cuda(), "{what}: stays on the GPU");
    let found = values(found);
    assert_eq!(found.len(), expected.len(), "{what}: count");
    let far: f64 = found.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).sum();
    let all: f64 = expected.iter().map(|b| b * b).sum();
    let error = if all > 0.0 { (far / all).sqrt() } else { far.sqrt() };
    assert!(error <= bound, "{what}: relative error {error:e} over {bound:e}");
}
