//! The experts of one layer. Rows are sorted by their experts, and each expert computes its rows
//! with one product a matrix; on a GPU the products of all experts are one call a matrix. Sums are
//! taken in the order of experts, so that they do not depend on threads.

use candle_core::{DType, Tensor};
use tributary_kernels::{Pairs, add_rows, cuda, gather, linear, linear_f32, silu_mul};

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
        let wide = logits.dtype();
        let sum = match &self.shared {
            Some(shared) => shared.apply(x)?,
            None => Tensor::zeros(x.dims2()?, wide, x.device())?,
        };
        let logits = cuda::download(&logits)?.to_dtype(DType::F64)?;
        let met = self.router.route(&logits, &self.bias)?;
        if x.device().is_cuda() {
            self.add_at_once(&sum, x, &met)?
        } else {
            self.add_in_turn(&sum, x, &met)?
        }
        Ok(sum)
    }

    /// Adds the experts' outputs to the sum, one expert after the other.
    fn add_in_turn(&self, sum: &Tensor, x: &Tensor, met: &[Met]) -> Result<()> {
        let count = x.dim(0)?;
        for (expert, Met { rows, weights }) in self.experts.iter().zip(met) {
            if rows.is_empty() {
                continue;
            }
            let own = if rows.len() == count { x.clone() } else { gather(x, rows)? };
            add_rows(sum, &expert.apply(&own)?, rows, weights)?;
        }
        Ok(())
    }

    /// The same of all experts at once, whose rows are all there together. Their outputs are in the
    /// type of `x`, summed in the sum's.
    fn add_at_once(&self, sum: &Tensor, x: &Tensor, met: &[Met]) -> Result<()> {
        let shares: Vec<_> = met.iter().map(|met| (met.rows.as_slice(), met.weights.as_slice())).collect();
        let pairs = Pairs::new(&shares, x.dim(0)?, x.device())?;
        if pairs.is_empty() {
            return Ok(());
        }
        let all = |matrix: fn(&Expert) -> &Tensor| self.experts.iter().map(matrix).collect::<Vec<_>>();
        let wide = pairs.linear(&pairs.gather(x)?, &[all(|expert| &expert.gate), all(|expert| &expert.up)])?;
        let gated = silu_mul(&wide[0], &wide[1])?;
        drop(wide); // its memory is the outputs'
        let outputs = pairs.linear(&gated, &[all(|expert| &expert.down)])?;
        Ok(pairs.add(sum, &outputs[0])?)
    }
}
