//! Scores of keys on CUDA: `kernels/cu/scores.cu`.

use candle_core::{CudaDevice, DType, Device, Tensor};
use cudarc::driver::{LaunchConfig, PushKernelArg};
use half::{bf16, f16};

use super::arguments::{Blocks, ScoreArguments, Turn};
use super::attend::{Half, Shape, blocks, shape};
use super::prepared::prepared;
use super::reading::{Reading, of_mut};
use super::sight::Tiling;
use super::{module, rope, tensor};
use crate::error::Result;
use crate::{Keys, Positions, Reduce, Rope};

/// Rows and keys of a tile.
const TILE: usize = 64;

/// See [`crate::Kernels::column_scores`]; `None` for what the kernel is not made for.
///
/// # Errors
/// A position beyond the tables, the driver's.
#[allow(clippy::too_many_arguments)]
pub fn column_scores(
    q: &Tensor,
    at: &Positions,
    keys: &[Keys],
    rope: Option<&Rope>,
    scale: f32,
    lse: &Tensor,
    reduce: Reduce<'_>,
) -> Result<Option<Tensor>> {
    let Some(shape) = shape(q, keys, rope)? else { return Ok(None) };
    let Device::Cuda(device) = q.device() else { return Ok(None) };
    let count: usize = keys.iter().map(|block| block.at.len()).sum();
    if count == 0 || shape.queries == 0 {
        return Ok(Some(Tensor::zeros(count, DType::F32, q.device())?));
    }
    let q = match rope {
        Some(rope) => rope.apply(q, at)?.contiguous()?,
        None => q.contiguous()?,
    };
    if let Some(rope) = rope {
        rope.check(shape.head_dim, keys.iter().flat_map(|block| block.at.rope()).copied())?;
    }
    let call = Call { device, shape, q, lse: lse.contiguous()?, at, rope, scale, reduce };
    match call.q.dtype() {
        DType::BF16 => call.run::<bf16>(keys, count).map(Some),
        _ => call.run::<f16>(keys, count).map(Some),
    }
}

struct Call<'a> {
    device: &'a CudaDevice,
    shape: Shape,
    q: Tensor,
    lse: Tensor,
    at: &'a Positions,
    rope: Option<&'a Rope>,
    scale: f32,
    reduce: Reduce<'a>,
}

impl Call<'_> {
    fn run<T: Half>(&self, keys: &[Keys], count: usize) -> Result<Tensor> {
        let Shape { queries, kv_heads, head_dim, .. } = self.shape;
        // Rows are counted without their heads here, and there is no list of work: one block of threads for each key tile.
        let tiling = Tiling { rows: TILE, keys: TILE, group: 1, kv_heads, resident: 1 };
        let ready = prepared(self.device, self.at, keys, tiling)?;
        let stream = self.device.cuda_stream();
        let mut scores = self.device.alloc_zeros::<f32>(count)?;
        if ready.keys > 0 {
            let weights = match self.reduce {
                Reduce::Weighted(weights) => weights,
                Reduce::Norm | Reduce::Mass => &[0.0],
            };
            let weights = Tensor::new(weights, self.q.device())?;
            let reading = Reading::new([&self.q, &self.lse, &weights]);
            let (q, _q) = reading.address::<T>(0, &stream)?;
            let (lse, _lse) = reading.address::<f32>(1, &stream)?;
            let (weights, _weights) = reading.address::<f32>(2, &stream)?;
            let (out, _out) = of_mut(&mut scores, &stream);
            let lists = ready.addresses(&stream);
            let key_turn = match self.rope {
                Some(rope) => Turn::new(rope, &*rope::tables(rope, self.device)?, &stream),
                None => Turn::none(),
            };
            let arguments = ScoreArguments {
                q,
                lse,
                weights,
                rows: lists.rows,
                sight: lists.sight,
                tile_sight: lists.tile_sight,
                key_source: lists.key_source,
                key_rope: lists.key_rope,
                key_number: lists.key_number,
                out,
                key_turn,
                queries: queries as u32,
                keys: ready.keys as u32,
                kv_heads: kv_heads as u32,
                group: self.shape.group() as u32,
                reduce: match self.reduce {
                    Reduce::Norm => 0,
                    Reduce::Mass => 1,
                    Reduce::Weighted(_) => 2,
                },
                scale_log2: self.scale * std::f32::consts::LOG2_E,
            };
            let joined = blocks(keys)?;
            let held = Reading::of_pairs(&joined);
            let addresses = held.pairs::<T>(&stream)?;
            let table = Blocks::new(&addresses);
            let function = module::function(self.device, "scores", &format!("scores_{}_{head_dim}", T::NAME))?;
            let row_bytes = if head_dim <= 64 { 128 } else { 256 };
            let shared_mem_bytes = (3 * TILE * row_bytes + 4 * TILE * size_of::<f32>()) as u32;
            module::allow_shared(&function, shared_mem_bytes)?;
            let grid_dim = (ready.keys.div_ceil(TILE) as u32, 1, 1);
            let config = LaunchConfig { grid_dim, block_dim: (128, 1, 1), shared_mem_bytes };
            let mut launch = stream.launch_builder(&function);
            launch.arg(&arguments).arg(&table);
            // SAFETY: the arguments are laid out as the kernel's; every address is of memory that lives until the launch is
            // in the stream, and is freed in the stream's order.
            unsafe { launch.launch(config) }.map_err(super::driver("scores"))?;
        }
        tensor(scores, count, self.device)
    }
}
