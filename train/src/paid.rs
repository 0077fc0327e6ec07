//! The attention that rows pay keys, as logarithms, by KV head: gradients flow through it, which no
//! kernel of serving lets them.

use candle_core::Tensor;
use tributary_kernels::cast;
use tributary_model::LayerAttention;

use crate::error::{Error, Result};

/// Refuses a model whose layers have sliding windows or sinks: attention is read without them here.
///
/// # Errors
/// Returns [`Error::Usage`] for such a model.
pub fn check(layers: &[LayerAttention]) -> Result<()> {
    match layers.iter().any(|layer| layer.window.is_some() || layer.sinks.is_some()) {
        true => Err(Error::Usage("models with sliding windows or sinks are not trained".to_owned())),
        false => Ok(()),
    }
}

/// From queries `[rows, heads, head_dim]` and keys `[places, kv_heads, head_dim]`, both turned to
/// their positions, and the log-sum-exp of all that the queries see `[rows, heads]`: the logarithm
/// of each query's attention to each key, `[kv_heads, rows · heads / kv_heads, places]`.
///
/// # Errors
/// Returns an error if a kernel or a candle operation fails.
pub fn paid(q: &Tensor, k: &Tensor, lse: &Tensor, scale: f32) -> tributary_model::Result<Tensor> {
    let ((rows, heads, head_dim), kv_heads, dtype) = (q.dims3()?, k.dim(1)?, q.dtype());
    let group = heads / kv_heads;
    let by_kv_head = |x: &Tensor, width: usize| -> candle_core::Result<Tensor> {
        let apart = x.reshape((rows, kv_heads, group * width))?.transpose(0, 1)?.contiguous()?;
        apart.reshape((kv_heads, rows * group, width))
    };
    let k = cast(k, dtype)?.transpose(0, 1)?.transpose(1, 2)?.contiguous()?; // [kv_heads, head_dim, places]
    let logits = (by_kv_head(q, head_dim)?.matmul(&k)? * f64::from(scale))?;
    Ok(logits.broadcast_sub(&by_kv_head(&cast(lse, dtype)?, 1)?)?)
}

/// The logarithm of the sum of exponentials along a dimension, which is kept with size 1.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn log_sum_exp(logarithms: &Tensor, dim: usize) -> candle_core::Result<Tensor> {
    let most = logarithms.detach().max_keepdim(dim)?;
    let sum = logarithms.broadcast_sub(&most)?.exp()?.sum_keepdim(dim)?.log()?;
    sum + most
}
