//! The values that the launches of one call of attention share: packing, the kernel itself, the
//! merge of its parts.

use std::rc::Rc;
use std::sync::Arc;

use candle_core::{CudaDevice, Tensor};
use cudarc::driver::CudaStream;

use super::call::suffix;
use super::prepared::Prepared;
use super::shape::Shape;
use crate::Rope;

/// Everything of one call.
pub struct AttentionLaunch<'a> {
    pub device: &'a CudaDevice,
    pub stream: Arc<CudaStream>,
    pub shape: Shape,
    /// The queries, `[queries, heads, head_dim]`.
    pub q: Tensor,
    /// Keys and values in turn.
    pub keys: Vec<Tensor>,
    pub ready: Rc<Prepared>,
    /// The rotation of the queries.
    pub rope: Option<&'a Rope>,
    /// The rotation of the keys; none where they are turned already.
    pub key_rope: Option<&'a Rope>,
    /// Rows of a query tile.
    pub rows: usize,
    /// The factor of dot products.
    pub scale: f32,
    /// Blocks that the device runs at a time.
    pub resident: usize,
}

impl AttentionLaunch<'_> {
    /// The name of a kernel for the call's type and size of head.
    pub fn name(&self, kernel: &str) -> String {
        let suffix = suffix(self.q.dtype()).expect("checked by shape: bf16 or f16");
        format!("{kernel}_{suffix}_{}", self.shape.head_dim)
    }
}
