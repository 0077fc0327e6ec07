//! Qwen2.5-VL's tower: RMS norms, a gated MLP, no table of positions and no levels. In most blocks
//! a patch sees its window alone. (Bai et al. 2025, "Qwen2.5-VL Technical Report", section 2.1.)

use candle_core::Tensor;
use tributary_kernels::Gate;

use super::blocks::Blocks;
use super::layout::Layout;
use super::parts::{Merger, Norm, Product, Seen, SelfAttention, in_slices};
use crate::error::Result;
use crate::vision_config::VisionConfig;
use crate::weights::Weights;

/// The tower after its patches' product.
pub(super) struct Qwen25 {
    blocks: Vec<Block>,
    merger: Merger,
    sees_whole: Vec<bool>,
}

struct Block {
    attention_norm: Norm,
    attention: SelfAttention,
    mlp_norm: Norm,
    gate: Product,
    up: Product,
    down: Product,
}

impl Qwen25 {
    /// With blocks in which a patch sees its whole picture where `sees_whole` says so.
    pub fn new(weights: &Weights, config: &VisionConfig, sees_whole: &[bool]) -> Result<Self> {
        let norm = Norm::rms(weights, "visual.merger.ln_q", config.hidden)?;
        Ok(Self {
            blocks: (0..config.layers).map(|index| Block::new(weights, config, index)).collect::<Result<_>>()?,
            merger: Merger::new(weights, config, norm, ["visual.merger.mlp.0", "visual.merger.mlp.2"])?,
            sees_whole: sees_whole.to_vec(),
        })
    }
}

impl Blocks for Qwen25 {
    fn placed(&self, x: Tensor, _layout: &Layout) -> Result<Tensor> {
        Ok(x)
    }

    fn block(&self, index: usize, x: &Tensor, seen: &Seen<'_>, slice_rows: usize) -> Result<Tensor> {
        let block = &self.blocks[index];
        let x = block.attention.onto(x, &block.attention_norm.of(x)?, seen)?;
        in_slices(&x, slice_rows, |x| {
            let normed = block.mlp_norm.of(x)?;
            block.down.onto(x, &block.gate.gating(&block.up, &normed, Gate::Silu)?)
        })
    }

    fn sees_whole(&self, index: usize) -> bool {
        self.sees_whole[index]
    }

    fn level(&self, _index: usize) -> Option<&Merger> {
        None
    }

    fn merger(&self) -> &Merger {
        &self.merger
    }

    #[cfg(test)]
    fn mergers_mut(&mut self) -> Vec<&mut Merger> {
        vec![&mut self.merger]
    }
}

impl Block {
    fn new(weights: &Weights, config: &VisionConfig, index: usize) -> Result<Self> {
        let VisionConfig { hidden, intermediate, .. } = *config;
        let name = format!("visual.blocks.{index}");
        let wide = |part: &str| Product::new(weights, &format!("{name}.mlp.{part}"), [intermediate, hidden]);
        Ok(Self {
            attention_norm: Norm::rms(weights, &format!("{name}.norm1"), hidden)?,
            attention: SelfAttention::new(weights, config, &format!("{name}.attn"))?,
            mlp_norm: Norm::rms(weights, &format!("{name}.norm2"), hidden)?,
            gate: wide("gate_proj")?,
            up: wide("up_proj")?,
            down: Product::new(weights, &format!("{name}.mlp.down_proj"), [hidden, intermediate])?,
        })
    }
}
