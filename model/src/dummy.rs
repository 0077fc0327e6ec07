//! Random weights from a seed, for speed studies at true shapes and for tests. A tensor depends
//! only on the seed and its own name: it is the same on every device.

use candle_core::{DType, Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tributary_kernels::cuda;

use crate::error::Result;

/// Uniform numbers. A matrix has variance 1/columns, so that activations keep their size and
/// attention is neither flat nor one-hot; norms are near 1; biases are small.
///
/// ChaCha counts its blocks, so a device draws every block of a matrix on its own; short tensors
/// are drawn on the host.
pub(super) fn tensor(seed: u64, name: &str, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let is_norm = name.contains("norm") || name.contains("ln_q"); // Qwen2.5-VL's before its merger
    let (centre, spread) = match shape {
        _ if is_norm && !name.ends_with(".bias") => (1.0, 0.1),
        // Of experts in one tensor, the rows of each are its inputs.
        [_, columns] | [_, columns, _] => (0.0, (3.0 / *columns as f32).sqrt()),
        // A patch's kernel: channels, frames, rows and columns are its inputs.
        [_, inputs @ ..] if inputs.len() == 4 => (0.0, (3.0 / inputs.iter().product::<usize>() as f32).sqrt()),
        _ => (0.0, 0.05),
    };
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ fingerprint(name));
    if device.is_cuda() && centre == 0.0 {
        return Ok(cuda::uniform(random.get_seed(), spread, shape, dtype, device)?);
    }
    let mut draw = || centre + spread * (random.next_u32() as f32 * (2.0 / 4_294_967_296.0) - 1.0);
    let count: usize = shape.iter().product();
    // Straight into the model's dtype: a 14B model must not pass through f32 first.
    let tensor = match dtype {
        DType::BF16 => {
            let values: Vec<half::bf16> = (0..count).map(|_| half::bf16::from_f32(draw())).collect();
            Tensor::from_vec(values, shape, device)?
        }
        DType::F16 => {
            let values: Vec<half::f16> = (0..count).map(|_| half::f16::from_f32(draw())).collect();
            Tensor::from_vec(values, shape, device)?
        }
        other => {
            let values: Vec<f32> = (0..count).map(|_| draw()).collect();
            Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(other)?.to_device(device)?
        }
    };
    Ok(tensor)
}

/// FNV-1a hash of the name, so that tensors have different seeds.
pub(super) fn fingerprint(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
