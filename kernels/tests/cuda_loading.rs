//! Loading of kernels by the driver: before a device is used, and never again. One test in a
//! separate process: loads are counted for the whole process.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Gate, Kernels, Keys, Positions, Query, Reduce, add, cuda, gated, merge};

fn flat(x: &Tensor) -> Vec<f32> {
    let host = cuda::download(x).unwrap().to_dtype(DType::F32).unwrap();
    host.flatten_all().unwrap().to_vec1().unwrap()
}

/// A launch must load nothing: the driver may wait for running kernels before it does, and those of
/// NCCL wait for other ranks.
#[test]
fn a_device_that_is_open_loads_nothing_more() {
    let device = cuda::device(0).unwrap();
    let opened = cuda::loads();
    assert!(opened > 0, "the kernels are loaded when a device opens");
    for dtype in [DType::BF16, DType::F16] {
        for (queries, head_dim) in [(2, 32), (300, 96)] {
            let rows = |count| Tensor::ones((count, 2, head_dim), dtype, &Device::Cpu).unwrap().to_device(&device);
            let (q, k, v) = (rows(queries).unwrap(), rows(150).unwrap(), rows(150).unwrap());
            let (at, keys) = (Positions::run(200, queries), [Keys { k, v, at: Positions::run(0, 150) }]);
            let found = Kernels::Auto
                .attend(&Query { q: &q, at: &at, keys: &keys, rope: None, scale: 0.1, dtype: DType::F32 })
                .unwrap();
            let scores = Kernels::Auto.column_scores(
                &Query { q: &q, at: &at, keys: &keys, rope: None, scale: 0.1, dtype: DType::F32 },
                &found.lse,
                Reduce::Mass,
            );
            assert!(flat(&scores.unwrap()).iter().all(|x| x.is_finite()));
            let merged = merge(&found, &found).unwrap();
            gated(&add(&merged.out, &q).unwrap(), &q, Gate::Silu).unwrap();
        }
    }
    // Another thread, and the same device opened once more.
    let again = std::thread::spawn(|| flat(&cuda::upload(&[1, 2], &cuda::device(0).unwrap()).unwrap())).join().unwrap();
    assert_eq!((again.as_slice(), cuda::loads()), (&[1.0, 2.0][..], opened));
}
