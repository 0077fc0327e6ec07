//! The experts of one layer. Rows are sorted by their experts, and each expert computes its rows
//! with one product a matrix. Sums are taken in the order of experts, so that they do not depend on
//! threads.

use candle_core::{DType, Tensor};
use tributary_kernels::{add_rows, cuda, gather, linear, linear_f32, silu_mul};

use crate::error::{Error, Result};
use crate::experts::{Experts, Met, Router, Scores};
use crate::weights::Weights;

#[cfg(test)]
mod tests;

/// An expert's matrices.
struct Expert {
    gate: Tensor, // [width, hidden]
    up: Tensor,   // [width, hidden]
    down: Tensor, // [hidden, width]
}

impl Expert {
    fn new(weights: &Weights, prefix: &str, width: usize, hidden: usize) -> Result<Self> {
        let get = |name: &str, shape: &[usize]| weights.get(&format!("{prefix}.{name}.weight"), shape);
        Ok(Self {
            gate: get("gate_proj", &[width, hidden])?,
            up: get("up_proj", &[width, hidden])?,
            down: get("down_proj", &[hidden, width])?,
        })
    }

    /// The output `[rows, hidden]` for rows `x`, in f32 (f64 for f64).
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let gated = silu_mul(&linear(x, &self.gate, None)?, &linear(x, &self.up, None)?)?;
        Ok(linear_f32(&gated, &self.down)?)
    }
}

/// The experts of one layer.
pub(super) struct ExpertLayer {
    router: Router,
    router_weight: Tensor, // [experts, hidden]
    /// What is added to the scores for the choice of experts; empty without it.
    bias: Vec<f32>,
    experts: Vec<Expert>,
    shared: Option<Expert>,
}

impl ExpertLayer {
    /// The experts below `prefix`.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing or has another shape.
    pub fn new(experts: &Experts, weights: &Weights, prefix: &str, hidden: usize) -> Result<Self> {
        let Experts { sizes, router, .. } = experts;
        let one = |index: usize| Expert::new(weights, &format!("{prefix}.experts.{index}"), sizes.width, hidden);
        let bias = match router.scores {
            Scores::Softmax => Vec::new(),
            Scores::Sigmoid => {
                let name = format!("{prefix}.gate.e_score_correction_bias");
                cuda::download(&weights.get_f32(&name, &[sizes.count])?)?.to_dtype(DType::F32)?.to_vec1()?
            }
        };
        let shared = match sizes.shared_width {
            0 => None,
            width => Some(Expert::new(weights, &format!("{prefix}.shared_experts"), width, hidden)?),
        };
        Ok(Self {
            router: *router,
            router_weight: weights.get(&format!("{prefix}.gate.weight"), &[sizes.count, hidden])?,
            bias,
            experts: (0..sizes.count).map(one).collect::<Result<_>>()?,
            shared,
        })
    }

    /// The output `[rows, hidden]` for normalised rows `x`, in f32 (f64 for f64).
    ///
    /// # Errors
    /// Returns [`Error::Input`] if gradients are wanted. Returns an error if a candle operation
    /// fails.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        if x.track_op() {
            return Err(Error::Input("no gradient flows through experts".to_owned()));
        }
        let logits = linear_f32(x, &self.router_weight)?; // [rows, experts]
        let (count, wide) = (x.dim(0)?, logits.dtype());
        let sum = match &self.shared {
            Some(shared) => shared.apply(x)?,
            None => Tensor::zeros(x.dims2()?, wide, x.device())?,
        };
        let logits = cuda::download(&logits)?.to_dtype(DType::F64)?;
        for (expert, Met { rows, weights }) in self.experts.iter().zip(self.router.route(&logits, &self.bias)?) {
            if rows.is_empty() {
                continue;
            }
            let own = if rows.len() == count { x.clone() } else { gather(x, &rows)? };
            add_rows(&sum, &expert.apply(&own)?, &rows, &weights)?;
        }
        Ok(sum)
    }
}
