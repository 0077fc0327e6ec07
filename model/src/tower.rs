//! The vision tower: patches of pictures become rows of the decoder. Several pictures run packed in
//! one pass, in which every patch sees patches of its own picture only.

mod blocks;
mod layout;
mod parts;
mod pictures;
mod qwen25;
mod qwen3;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{cast, cuda, gather};

use self::blocks::Blocks;
use self::layout::Layout;
use self::parts::{Product, Seen};
pub use self::pictures::{Features, Grid, Pictures};
use self::qwen3::Qwen3;
use self::qwen25::Qwen25;
use crate::error::Result;
use crate::progress::Progress;
use crate::vision_config::{TowerConfig, VisionConfig};
use crate::weights::Weights;

/// A vision tower. Like the decoder it owns weights alone.
pub struct Tower {
    config: VisionConfig,
    patches: Product,
    blocks: Box<dyn Blocks>,
    device: Device,
    /// The dtype of its rows.
    activations: DType,
    slice_rows: usize,
}

impl Tower {
    /// With weights under the names `visual.*`; an MLP takes at most `slice_rows` rows at a time.
    pub(super) fn new(config: &VisionConfig, weights: &Weights, slice_rows: usize) -> Result<Self> {
        let blocks: Box<dyn Blocks> = match &config.tower {
            TowerConfig::Qwen3 { side, levels } => Box::new(Qwen3::new(weights, config, *side, levels)?),
            TowerConfig::Qwen25 { sees_whole, .. } => Box::new(Qwen25::new(weights, config, sees_whole)?),
        };
        let biased = matches!(config.tower, TowerConfig::Qwen3 { .. });
        Ok(Self {
            patches: Product::of_patches(weights, config, biased)?,
            blocks,
            device: weights.device.clone(),
            activations: weights.activations(),
            slice_rows,
            config: config.clone(),
        })
    }

    /// The features of pictures, a row a token. Memory grows with the number of patches, not with
    /// its square: a caller bounds it by the number of patches that it packs. Each block is a step
    /// of `progress`, and a control point follows it; without pictures there is none.
    ///
    /// # Errors
    /// Returns an error if patches do not make up the grids, if a grid does not make up tokens, or
    /// if a candle operation fails.
    pub fn features(&self, pictures: &Pictures, progress: &Progress) -> Result<Features> {
        self.pass(pictures, progress, &mut |_, _| ())
    }

    /// The same; `watch` sees the patches after their product, as number 0, and after each block.
    fn pass(
        &self,
        pictures: &Pictures,
        progress: &Progress,
        watch: &mut dyn FnMut(usize, &Tensor),
    ) -> Result<Features> {
        pictures.check(&self.config)?;
        if pictures.grids.is_empty() {
            let nothing = || cuda::nothing((0, self.config.out), self.activations, &self.device);
            let levels = (0..self.config.levels()).map(|_| nothing()).collect::<Result<_, _>>()?;
            return Ok(Features { features: nothing()?, levels });
        }
        let window = match self.config.tower {
            TowerConfig::Qwen25 { window, .. } => Some(window),
            TowerConfig::Qwen3 { .. } => None,
        };
        let layout = Layout::new(&pictures.grids, self.config.merge, window);
        let mut x = self.embedded(&pictures.patches, &layout)?;
        watch(0, &x);
        x = self.blocks.placed(x, &layout)?;
        let (rope, [whole, windows]) = layout.turned(self.config.head_dim())?;
        let mut levels = Vec::new();
        for index in 0..self.config.layers {
            let at = if self.blocks.sees_whole(index) { &whole } else { &windows };
            let seen = Seen { rope: &rope, at };
            x = progress.layer(index, || self.blocks.block(index, &x, &seen, self.slice_rows))?;
            watch(index + 1, &x);
            if let Some(merger) = self.blocks.level(index) {
                levels.push(in_lines(merger.of(&x)?, &layout)?);
            }
        }
        Ok(Features { features: in_lines(self.blocks.merger().of(&x)?, &layout)?, levels })
    }

    /// Patches in the tower's order after their product, `[patches, hidden]`.
    fn embedded(&self, patches: &Tensor, layout: &Layout) -> Result<Tensor> {
        let patches = cast(&patches.to_device(&self.device)?, self.activations)?;
        match layout.is_by_lines() {
            true => self.patches.of(&patches),
            false => self.patches.of(&gather(&patches, &layout.patch_numbers())?),
        }
    }
}

/// Tokens `[tokens, out]` in the order of lines.
fn in_lines(tokens: Tensor, layout: &Layout) -> Result<Tensor> {
    match layout.is_by_lines() {
        true => Ok(tokens),
        false => Ok(gather(&tokens, &layout.token_places())?),
    }
}
