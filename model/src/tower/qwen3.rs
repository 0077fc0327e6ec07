//! Qwen3-VL's tower: LayerNorms, a table of positions, GELU between two products, and levels after
//! some blocks. Every patch sees its whole picture. (Qwen Team 2025, "Qwen3-VL Technical Report",
//! section 2.)

use candle_core::Tensor;
use tributary_kernels::{Gelu, add, cast, gather, gelu, scale_rows};

use super::blocks::Blocks;
use super::layout::Layout;
use super::parts::{Merger, Norm, Product, Seen, SelfAttention, in_slices};
use crate::error::Result;
use crate::vision_config::VisionConfig;
use crate::weights::Weights;

/// The tower after its patches' product.
pub(super) struct Qwen3 {
    positions: Tensor, // [side², hidden], in the type of the rows
    side: usize,
    blocks: Vec<Block>,
    merger: Merger,
    /// Blocks with a level, and its merger.
    levels: Vec<(usize, Merger)>,
}

struct Block {
    attention_norm: Norm,
    attention: SelfAttention,
    mlp_norm: Norm,
    first: Product,
    second: Product,
}

impl Qwen3 {
    /// With a table of `side` x `side` positions and levels after the blocks `levels`.
    pub fn new(weights: &Weights, config: &VisionConfig, side: usize, levels: &[usize]) -> Result<Self> {
        let table = weights.get("visual.pos_embed.weight", &[side * side, config.hidden])?;
        let merger = |name: &str, by_patch: bool| -> Result<Merger> {
            let width = if by_patch { config.hidden } else { config.hidden * config.token_patches() };
            let norm = Norm::layer(weights, &format!("{name}.norm"), width)?;
            let products = ["linear_fc1", "linear_fc2"].map(|product| format!("{name}.{product}"));
            Ok(Merger { by_patch, ..Merger::new(weights, config, norm, [&products[0], &products[1]])? })
        };
        let level = |(index, &block): (usize, &usize)| {
            Ok((block, merger(&format!("visual.deepstack_merger_list.{index}"), false)?))
        };
        Ok(Self {
            positions: cast(&table, weights.activations())?,
            side,
            blocks: (0..config.layers).map(|index| Block::new(weights, config, index)).collect::<Result<_>>()?,
            merger: merger("visual.merger", true)?,
            levels: levels.iter().enumerate().map(level).collect::<Result<_>>()?,
        })
    }
}

impl Blocks for Qwen3 {
    fn placed(&self, x: Tensor, layout: &Layout) -> Result<Tensor> {
        let mut x = x;
        for (places, weights) in layout.corners(self.side) {
            let weights = Tensor::from_vec(weights, x.dim(0)?, x.device())?;
            x = add(&x, &scale_rows(&gather(&self.positions, &places)?, &weights)?)?;
        }
        Ok(x)
    }

    fn block(&self, index: usize, x: &Tensor, seen: &Seen<'_>, slice_rows: usize) -> Result<Tensor> {
        let block = &self.blocks[index];
        let x = block.attention.onto(x, &block.attention_norm.of(x)?, seen)?;
        in_slices(&x, slice_rows, |x| {
            block.second.onto(x, &gelu(&block.first.of(&block.mlp_norm.of(x)?)?, Gelu::Tanh)?)
        })
    }

    fn sees_whole(&self, _index: usize) -> bool {
        true
    }

    fn level(&self, index: usize) -> Option<&Merger> {
        self.levels.iter().find(|(block, _)| *block == index).map(|(_, merger)| merger)
    }

    fn merger(&self) -> &Merger {
        &self.merger
    }

    #[cfg(test)]
    fn mergers_mut(&mut self) -> Vec<&mut Merger> {
        std::iter::once(&mut self.merger).chain(self.levels.iter_mut().map(|(_, merger)| merger)).collect()
    }
}

impl Block {
    fn new(weights: &Weights, config: &VisionConfig, index: usize) -> Result<Self> {
        let VisionConfig { hidden, intermediate, .. } = *config;
        let name = format!("visual.blocks.{index}");
        Ok(Self {
            attention_norm: Norm::layer(weights, &format!("{name}.norm1"), hidden)?,
            attention: SelfAttention::new(weights, config, &format!("{name}.attn"))?,
            mlp_norm: Norm::layer(weights, &format!("{name}.norm2"), hidden)?,
            first: Product::new(weights, &format!("{name}.mlp.linear_fc1"), [intermediate, hidden])?,
            second: Product::new(weights, &format!("{name}.mlp.linear_fc2"), [hidden, intermediate])?,
        })
    }
}
