//! Random weights, drawn where they are used.

use candle_core::{DType, Device, Tensor};

use super::call::{Call, Output, blocks, suffix};
use super::memory::nothing;
use crate::error::{Error, Result};

/// Threads of a block.
const THREADS: u32 = 256;

/// Words of a ChaCha block, which one thread draws.
const BLOCK_WORDS: usize = 16;

/// Uniform numbers from −`spread` to `spread`: `spread · (word · 2⁻³¹ − 1)` in f32, from the words
/// of ChaCha8 with this key, block counter and stream 0, in their order
/// (`rand_chacha::ChaCha8Rng::from_seed(key)` gives the same). Then rounded to `dtype`.
///
/// # Errors
/// Returns an error if the device is no GPU, if the dtype is not f32, bf16 or f16, or if memory is
/// short.
pub fn uniform(key: [u8; 32], spread: f32, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let Some(suffix) = suffix(dtype) else {
        let (expected, found) = ("f32, bf16 or f16".to_owned(), format!("{dtype:?}"));
        return Err(Error::Shape { op: "uniform", what: "dtype", expected, found });
    };
    let count: usize = shape.iter().product();
    if count == 0 {
        return nothing(shape, dtype, device);
    }
    let device = device.as_cuda_device()?;
    let (stream, mut out) = (device.cuda_stream(), Output::new(device, dtype, shape)?);
    let mut call = Call::new(device, &stream, &format!("fill_{suffix}"))?;
    call.output(&mut out).count(count).real(spread).block(words(key));
    // SAFETY: the arguments of fill; a thread writes BLOCK_WORDS numbers of the `count` that `out`
    // has.
    unsafe { call.launch(blocks(count.div_ceil(BLOCK_WORDS), THREADS)?, THREADS, 0) }?;
    Ok(out.tensor())
}

/// The key as the kernel's struct has it.
fn words(key: [u8; 32]) -> Vec<u64> {
    let (words, _) = key.as_chunks::<8>();
    words.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}
