//! The experts of one layer. Rows are sorted by their experts, and each expert computes its rows
//! with one product a matrix; on a GPU the products of all experts are one call a matrix. Sums are
//! taken in the order of experts, so that they do not depend on threads.

use candle_core::{DType, Device, IndexOp, Tensor};
use tributary_kernels::{
    Gate, Packed, Packing, Pairs, Weight, add_rows, cast, cuda, gated, gated_linear, gather, linear, linear_f32,
};

use crate::error::{Error, Result};
use crate::experts::{Experts, Met, Router, Scores};
use crate::mxfp4;
use crate::weights::Weights;

#[cfg(test)]
mod tests;

/// An expert's matrices.
struct Expert {
    gate: Weight, // [width, hidden]
    up: Weight,   // [width, hidden]
    down: Weight, // [hidden, width]
    biases: Option<Biases>,
}

/// An expert's biases, in f32.
struct Biases {
    gate: Tensor, // [width]
    up: Tensor,   // [width]
    down: Tensor, // [hidden]
}

impl Expert {
    fn new(weights: &Weights, prefix: &str, width: usize, hidden: usize) -> Result<Self> {
        let matrix = |name: &str, shape: [usize; 2]| weights.matrix(&format!("{prefix}.{name}.weight"), shape);
        Ok(Self {
            gate: matrix("gate_proj", [width, hidden])?,
            up: matrix("up_proj", [width, hidden])?,
            down: matrix("down_proj", [hidden, width])?,
            biases: None,
        })
    }

    /// The same with biases.
    fn biased(weights: &Weights, prefix: &str, width: usize, hidden: usize) -> Result<Self> {
        let bias = |name: &str, outputs: usize| weights.get_f32(&format!("{prefix}.{name}.bias"), &[outputs]);
        let biases =
            Biases { gate: bias("gate_proj", width)?, up: bias("up_proj", width)?, down: bias("down_proj", hidden)? };
        Ok(Self { biases: Some(biases), ..Self::new(weights, prefix, width, hidden)? })
    }

    /// The output `[rows, hidden]` for rows `x`, in f32 (f64 for f64).
    fn apply(&self, x: &Tensor, by: Gate) -> Result<Tensor> {
        let of = |pick: fn(&Biases) -> &Tensor| self.biases.as_ref().map(pick);
        let biases = [of(|biases| &biases.gate), of(|biases| &biases.up)];
        let gated = gated_linear(x, [(&self.gate).into(), (&self.up).into()], biases, by)?;
        let down = linear_f32(&gated, &self.down)?;
        match of(|biases| &biases.down) {
            None => Ok(down),
            Some(bias) => Ok(down.broadcast_add(&cast(bias, down.dtype())?)?),
        }
    }
}

/// The experts of a layer that are stored in one tensor for each matrix, their gate and up
/// projections in alternate columns (gpt-oss). They are cut one expert after the other.
struct Stacked {
    /// Matrices of each expert with inputs as columns: of gate and up in alternate rows, of down.
    wide: Matrices,
    down: Matrices,
    gate_up_bias: Tensor, // [experts, 2 · width], f32
    down_bias: Tensor,    // [experts, hidden], f32
}

/// A matrix of each expert, as it is stored.
enum Matrices {
    /// `[experts, inputs, outputs]`; on a GPU with ones in the diagonal of `[outputs, outputs]`.
    Plain { all: Tensor, ones: Option<Tensor> },
    /// `[experts · outputs, inputs]`, in MXFP4 or as it is drawn; on the host.
    Packed { packed: Packed, outputs: usize },
}

impl Matrices {
    /// The matrices `name` of `experts` experts.
    fn new(weights: &Weights, name: &str, [experts, outputs, inputs]: [usize; 3]) -> Result<Self> {
        let blocks_name = format!("{name}_blocks");
        let packed = if weights.has(&blocks_name) {
            if !inputs.is_multiple_of(mxfp4::BLOCK) {
                let what = format!("{blocks_name}: rows of {inputs} numbers are not whole blocks of MXFP4");
                return Err(Error::Input(what));
            }
            let blocks = inputs / mxfp4::BLOCK;
            let numbers = weights.bytes(&blocks_name, &[experts, outputs, blocks, mxfp4::BLOCK / 2])?;
            let scales = weights.bytes(&format!("{name}_scales"), &[experts, outputs, blocks])?;
            Packed::new(Packing::Mxfp4, [experts * outputs, inputs], mxfp4::blocks(&numbers, &scales))?
        } else if let Some(drawn) = weights.drawn_packed(name, [experts * outputs, inputs])? {
            drawn
        } else {
            let all = weights.get(name, &[experts, inputs, outputs])?;
            let ones = weights.device.is_cuda().then(|| diagonal(outputs, weights)).transpose()?;
            return Ok(Self::Plain { all, ones });
        };
        Ok(Self::Packed { packed: packed.multiplied_in_bf16(weights.dtype == DType::BF16), outputs })
    }

    /// Rows of the matrix of one expert, `[rows, inputs]`: every `step`-th from `first` on.
    fn of(&self, expert: usize, (first, step): (usize, usize), weights: &Weights) -> Result<Weight> {
        match self {
            Self::Plain { all, ones } => {
                let stored = all.i(expert)?;
                let rows: Vec<u32> = (first..stored.dim(1)?).step_by(step).map(|row| row as u32).collect();
                match ones {
                    // A product with rows of ones turns and picks in one pass, and rounds nothing.
                    Some(ones) => Ok(linear(&gather(ones, &rows)?, &stored, None)?.into()),
                    None => Ok(gather(&stored.t()?.contiguous()?, &rows)?.into()),
                }
            }
            Self::Packed { packed, outputs } => {
                let packed = packed.select((expert * outputs + first..(expert + 1) * outputs).step_by(step))?;
                Ok(Weight::Packed(packed.to_device(&weights.device)?))
            }
        }
    }
}

/// Ones in the diagonal of `[size, size]`, else 0, in the model's dtype on its device.
fn diagonal(size: usize, weights: &Weights) -> Result<Tensor> {
    let mut ones = vec![0f32; size * size];
    ones.iter_mut().step_by(size + 1).for_each(|one| *one = 1.0);
    let ones = Tensor::from_vec(ones, (size, size), &Device::Cpu)?.to_dtype(weights.dtype)?;
    Ok(ones.to_device(&weights.device)?)
}

impl Stacked {
    fn new(weights: &Weights, prefix: &str, (experts, width): (usize, usize), hidden: usize) -> Result<Self> {
        let name = |matrix: &str| format!("{prefix}.experts.{matrix}");
        let bias = |matrix: &str, outputs: usize| -> Result<Tensor> {
            let bias = weights.get_f32(&name(matrix), &[experts, outputs])?;
            Ok(cuda::download(&bias)?)
        };
        Ok(Self {
            wide: Matrices::new(weights, &name("gate_up_proj"), [experts, 2 * width, hidden])?,
            down: Matrices::new(weights, &name("down_proj"), [experts, hidden, width])?,
            gate_up_bias: bias("gate_up_proj_bias", 2 * width)?,
            down_bias: bias("down_proj_bias", hidden)?,
        })
    }

    fn expert(&self, index: usize, weights: &Weights) -> Result<Expert> {
        let bias = self.gate_up_bias.i(index)?;
        let every_other = |first: u32| -> Result<Tensor> {
            let places: Vec<u32> = (first..bias.dim(0)? as u32).step_by(2).collect();
            Ok(gather(&bias, &places)?.to_device(&weights.device)?)
        };
        Ok(Expert {
            gate: self.wide.of(index, (0, 2), weights)?,
            up: self.wide.of(index, (1, 2), weights)?,
            down: self.down.of(index, (0, 1), weights)?,
            biases: Some(Biases {
                gate: every_other(0)?,
                up: every_other(1)?,
                down: self.down_bias.i(index)?.contiguous()?.to_device(&weights.device)?,
            }),
        })
    }
}

/// The biases of gate, up and down of all experts, one expert below the other, if they have any.
fn stacked_biases(experts: &[Expert], device: &Device) -> Result<Option<[Tensor; 3]>> {
    let all: Option<Vec<&Biases>> = experts.iter().map(|expert| expert.biases.as_ref()).collect();
    let Some(all) = all else { return Ok(None) };
    let stacked = |pick: fn(&Biases) -> &Tensor| -> Result<Tensor> {
        let host = all.iter().map(|biases| Ok(cuda::download(pick(biases))?)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::stack(&host, 0)?.to_device(device)?)
    };
    Ok(Some([stacked(|biases| &biases.gate)?, stacked(|biases| &biases.up)?, stacked(|biases| &biases.down)?]))
}

/// The experts of one layer.
pub(super) struct ExpertLayer {
    router: Router,
    router_weight: Tensor, // [experts, hidden]
    /// What is added to the router's logits, or, of a sigmoid, to the scores for the choice of
    /// experts; empty without it.
    bias: Vec<f32>,
    gate: Gate,
    experts: Vec<Expert>,
    /// The biases of all experts on a GPU, where their rows are computed at once: `[experts, ..]`
    /// of gate, up and down.
    biases: Option<[Tensor; 3]>,
    shared: Option<Expert>,
}

impl ExpertLayer {
    /// The experts below `prefix`.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing or has another shape.
    pub fn new(experts: &Experts, weights: &Weights, prefix: &str, (hidden, gate): (usize, Gate)) -> Result<Self> {
        let Experts { sizes, router, .. } = experts;
        let (router_name, bias_name) = match router.scores {
            Scores::Softmax => ("gate", None),
            Scores::Sigmoid => ("gate", Some("gate.e_score_correction_bias")),
            Scores::Biased => ("router", Some("router.bias")),
        };
        let bias = match bias_name {
            None => Vec::new(),
            Some(name) => {
                let bias = weights.get_f32(&format!("{prefix}.{name}"), &[sizes.count])?;
                cuda::download(&bias)?.to_dtype(DType::F32)?.to_vec1()?
            }
        };
        let mut all: Vec<Expert> = match router.scores {
            Scores::Biased if weights.has(&format!("{prefix}.experts.0.gate_proj.weight")) => {
                let one =
                    |index: usize| Expert::biased(weights, &format!("{prefix}.experts.{index}"), sizes.width, hidden);
                (0..sizes.count).map(one).collect::<Result<_>>()?
            }
            Scores::Biased => {
                let stacked = Stacked::new(weights, prefix, (sizes.count, sizes.width), hidden)?;
                (0..sizes.count).map(|index| stacked.expert(index, weights)).collect::<Result<_>>()?
            }
            Scores::Softmax | Scores::Sigmoid => {
                let one =
                    |index: usize| Expert::new(weights, &format!("{prefix}.experts.{index}"), sizes.width, hidden);
                (0..sizes.count).map(one).collect::<Result<_>>()?
            }
        };
        let shared = match sizes.shared_width {
            0 => None,
            width => Some(Expert::new(weights, &format!("{prefix}.shared_experts"), width, hidden)?),
        };
        let biases = if weights.device.is_cuda() { stacked_biases(&all, &weights.device)? } else { None };
        if biases.is_some() {
            all.iter_mut().for_each(|expert| expert.biases = None); // these are read on a CPU
        }
        Ok(Self {
            router: *router,
            router_weight: weights.get(&format!("{prefix}.{router_name}.weight"), &[sizes.count, hidden])?,
            bias,
            gate,
            biases,
            experts: all,
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
            Some(shared) => shared.apply(x, self.gate)?,
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
            add_rows(sum, &expert.apply(&own, self.gate)?, rows, weights)?;
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
        let biased = |x: &Tensor, of: usize| match &self.biases {
            Some(biases) => pairs.add_biases(x, &biases[of]),
            None => Ok(x.clone()),
        };
        let all = |matrix: fn(&Expert) -> &Weight| self.experts.iter().map(|expert| matrix(expert).into()).collect();
        let mut wide = pairs.linear(&pairs.gather(x)?, &[all(|expert| &expert.gate), all(|expert| &expert.up)])?;
        for (of, product) in wide.iter_mut().enumerate() {
            *product = biased(product, of)?; // in its place, so that three of them are there at most
        }
        let gated = gated(&wide[0], &wide[1], self.gate)?;
        drop(wide); // its memory is the outputs'
        let outputs = pairs.linear(&gated, &[all(|expert| &expert.down)])?;
        Ok(pairs.add(sum, &biased(&outputs[0], 2)?)?)
    }
}
