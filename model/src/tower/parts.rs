//! The parts that vision towers are made of: products, norms, mergers, and attention between the
//! patches of a picture.

use candle_core::Tensor;
use tributary_kernels::{
    Gate, Gelu, Kernels, Keys, Positions, Query, Rope, cast, contiguous, gated_linear, gelu, join, layer_norm, linear,
    linear_onto, rms_norm,
};

use crate::error::Result;
use crate::vision_config::VisionConfig;
use crate::weights::Weights;

/// Epsilon of every norm of a tower.
const EPS: f64 = 1e-6;

/// Widths of a head for which GPUs have kernels; a narrower head is filled up with zeros.
const DEVICE_WIDTHS: [usize; 4] = [32, 64, 96, 128];

/// A product with a bias, if it has one.
pub(super) struct Product {
    weight: Tensor, // [out, in]
    bias: Option<Tensor>,
}

impl Product {
    pub fn new(weights: &Weights, name: &str, [out, input]: [usize; 2]) -> Result<Self> {
        let weight = weights.get(&format!("{name}.weight"), &[out, input])?;
        Ok(Self { weight, bias: Some(weights.get_f32(&format!("{name}.bias"), &[out])?) })
    }

    /// That of the numbers of a patch, whose kernel is stored as `[hidden, 3, frames, rows,
    /// columns]`.
    pub fn of_patches(weights: &Weights, config: &VisionConfig, biased: bool) -> Result<Self> {
        let name = "visual.patch_embed.proj";
        let VisionConfig { hidden, patch, frames, .. } = *config;
        let kernel = weights.get(&format!("{name}.weight"), &[hidden, 3, frames, patch, patch])?;
        let bias = if biased { Some(weights.get_f32(&format!("{name}.bias"), &[hidden])?) } else { None };
        Ok(Self { weight: kernel.reshape((hidden, config.patch_numbers()))?, bias })
    }

    /// Of rows `x` `[rows, in]`.
    pub fn of(&self, x: &Tensor) -> Result<Tensor> {
        Ok(linear(x, &self.weight, self.bias.as_ref())?)
    }

    /// The gated activation of this product and another of rows `x` `[rows, in]`.
    pub fn gating(&self, up: &Self, x: &Tensor, by: Gate) -> Result<Tensor> {
        let weights = [(&self.weight).into(), (&up.weight).into()];
        Ok(gated_linear(x, weights, [self.bias.as_ref(), up.bias.as_ref()], by)?)
    }

    /// The residual stream with the product of `x` added.
    pub fn onto(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        Ok(linear_onto(residual, x, &self.weight, self.bias.as_ref())?)
    }
}

/// A norm over the last dimension.
pub(super) enum Norm {
    Layer { weight: Tensor, bias: Tensor },
    Rms { weight: Tensor },
}

impl Norm {
    pub fn layer(weights: &Weights, name: &str, dim: usize) -> Result<Self> {
        let of = |part: &str| weights.get_f32(&format!("{name}.{part}"), &[dim]);
        Ok(Self::Layer { weight: of("weight")?, bias: of("bias")? })
    }

    pub fn rms(weights: &Weights, name: &str, dim: usize) -> Result<Self> {
        Ok(Self::Rms { weight: weights.get_f32(&format!("{name}.weight"), &[dim])? })
    }

    pub fn of(&self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Layer { weight, bias } => layer_norm(x, weight, bias, EPS)?,
            Self::Rms { weight } => rms_norm(x, weight, EPS)?,
        })
    }
}

/// Makes a row of the decoder's width of the patches of a token.
pub(super) struct Merger {
    pub norm: Norm,
    /// Whether the norm is over each patch; else over the patches of a token together.
    pub by_patch: bool,
    pub first: Product,
    /// The form of the activation between the products: the exact one in all published models.
    pub gelu: Gelu,
    pub second: Product,
    /// Width of a token's patches together.
    pub width: usize,
}

impl Merger {
    /// With the names of its norm and of its two products.
    pub fn new(weights: &Weights, config: &VisionConfig, norm: Norm, products: [&str; 2]) -> Result<Self> {
        let width = config.hidden * config.token_patches();
        let first = Product::new(weights, products[0], [width, width])?;
        let second = Product::new(weights, products[1], [config.out, width])?;
        Ok(Self { norm, by_patch: true, first, gelu: Gelu::Exact, second, width })
    }

    /// Of patches `[patches, hidden]`, those of a token one after the other: `[tokens, out]`.
    pub fn of(&self, x: &Tensor) -> Result<Tensor> {
        let together = |x: &Tensor| contiguous(x)?.reshape(((), self.width)).map_err(crate::Error::from);
        let x = match self.by_patch {
            true => together(&self.norm.of(x)?)?,
            false => self.norm.of(&together(x)?)?,
        };
        self.second.of(&gelu(&self.first.of(&x)?, self.gelu)?)
    }
}

/// Positions of patches in a block: their rotations, and the patches that they see.
pub(super) struct Seen<'a> {
    /// Rotations by the rows and columns of patches.
    pub rope: &'a Rope,
    /// Rotary positions are rows of that table; patches of one segment see each other.
    pub at: &'a Positions,
}

/// The attention of one block.
pub(super) struct SelfAttention {
    qkv: Product, // queries of all heads, then keys, then values
    output: Product,
    heads: usize,
    head_dim: usize,
}

impl SelfAttention {
    pub fn new(weights: &Weights, config: &VisionConfig, name: &str) -> Result<Self> {
        let hidden = config.hidden;
        Ok(Self {
            qkv: Product::new(weights, &format!("{name}.qkv"), [3 * hidden, hidden])?,
            output: Product::new(weights, &format!("{name}.proj"), [hidden, hidden])?,
            heads: config.heads,
            head_dim: config.head_dim(),
        })
    }

    /// The residual stream `x` with the attention of `normed` added, both `[patches, hidden]`.
    pub fn onto(&self, x: &Tensor, normed: &Tensor, seen: &Seen<'_>) -> Result<Tensor> {
        let (patches, hidden) = (x.dim(0)?, self.heads * self.head_dim);
        let qkv = self.qkv.of(normed)?;
        let part = |index: usize| -> Result<Tensor> {
            Ok(contiguous(&qkv.narrow(1, index * hidden, hidden)?)?.reshape((patches, self.heads, self.head_dim))?)
        };
        let (q, k) = (seen.rope.apply(&part(0)?, seen.at)?, seen.rope.apply(&part(1)?, seen.at)?);
        let width = if x.device().is_cpu() { self.head_dim } else { device_width(self.head_dim) };
        let attended = attend([&q, &k, &part(2)?], seen.at, width)?;
        self.output.onto(x, &cast(&attended.reshape((patches, hidden))?, x.dtype())?)
    }
}

/// The width of a head on a GPU.
fn device_width(head_dim: usize) -> usize {
    DEVICE_WIDTHS.into_iter().find(|&width| width >= head_dim).unwrap_or(head_dim)
}

/// The attention of turned queries to turned keys, `[patches, heads, head_dim]` each, whose heads
/// are filled up with zeros to `width`: dot products and outputs are the same. A kernel takes keys
/// tile by tile, so that memory grows with the number of patches, not with its square.
pub(super) fn attend([q, k, v]: [&Tensor; 3], at: &Positions, width: usize) -> Result<Tensor> {
    let (patches, heads, head_dim) = q.dims3()?;
    let filled = |x: &Tensor| -> Result<Tensor> {
        if width == head_dim {
            return Ok(x.clone());
        }
        let zeros = Tensor::zeros((patches, heads, width - head_dim), x.dtype(), x.device())?;
        Ok(join(&[x, &zeros], 2)?)
    };
    let (q, keys) = (filled(q)?, [Keys { k: filled(k)?, v: filled(v)?, at: at.clone() }]);
    let query = Query { q: &q, at, keys: &keys, rope: None, scale: 1.0 / (head_dim as f32).sqrt(), dtype: q.dtype() };
    let out = Kernels::Auto.attend(&query)?.out;
    Ok(if width == head_dim { out } else { contiguous(&out.narrow(2, 0, head_dim)?)? })
}

/// Rows of `x` in slices of at most `most`, each passed through `run`: of what is wide inside only
/// one slice is alive.
pub(super) fn in_slices(x: &Tensor, most: usize, run: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let rows = x.dim(0)?;
    if rows <= most {
        return run(x);
    }
    let parts = (0..rows).step_by(most).map(|from| run(&x.narrow(0, from, most.min(rows - from))?));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    Ok(join(&parts.iter().collect::<Vec<_>>(), 0)?)
}
