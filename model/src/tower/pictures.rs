//! Input and output of a vision tower.

use candle_core::Tensor;
use tributary_kernels::join;

use crate::error::{Error, Result};
use crate::vision_config::VisionConfig;

/// The grid of a picture, in patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Patches from top to bottom.
    pub rows: u32,
    /// Patches from left to right.
    pub columns: u32,
}

impl Grid {
    /// Number of patches.
    pub fn patches(self) -> usize {
        self.rows as usize * self.columns as usize
    }
}

/// Pictures whose patches run through a tower together.
#[derive(Debug, Clone)]
pub struct Pictures {
    /// `[patches, 3 · frames · patch²]` of any float dtype, the pictures one after the other. The
    /// patches of a token follow each other, line by line, and so do the tokens. The numbers of a
    /// patch are channel, frame, row, column, normalised
    /// ([`Preprocessing`](crate::Preprocessing)).
    pub patches: Tensor,
    /// The grid of each picture; its sides are multiples of the side of a token.
    pub grids: Vec<Grid>,
}

impl Pictures {
    /// Rejects patches that do not make up the grids, and grids that do not make up tokens.
    pub(super) fn check(&self, config: &VisionConfig) -> Result<()> {
        let (rows, numbers) = self.patches.dims2()?;
        let merge = config.merge as u32;
        let is_odd = |grid: &&Grid| {
            let sides = [grid.rows, grid.columns];
            sides.iter().any(|&side| side == 0 || !side.is_multiple_of(merge))
        };
        if let Some(Grid { rows, columns }) = self.grids.iter().find(is_odd) {
            return Err(Error::Input(format!("a picture of {rows} x {columns} patches: must be multiples of {merge}")));
        }
        let patches: usize = self.grids.iter().map(|grid| grid.patches()).sum();
        if rows != patches || numbers != config.patch_numbers() {
            let expected = config.patch_numbers();
            return Err(Error::Input(format!(
                "patches [{rows}, {numbers}] of pictures: expected [{patches}, {expected}]"
            )));
        }
        Ok(())
    }
}

/// Features of pictures: a row a token, line by line, the pictures one after the other.
#[derive(Debug, Clone)]
pub struct Features {
    /// `[tokens, hidden]`: the rows of the decoder's residual stream.
    pub features: Tensor,
    /// `[tokens, hidden]` each, added to the rows after each of the first layers.
    pub levels: Vec<Tensor>,
}

impl Features {
    /// The rows of all parts, one part below the other.
    ///
    /// # Errors
    /// Returns an error if there is no part, or if their shapes or numbers of levels differ.
    pub fn joined(parts: &[&Self]) -> Result<Self> {
        let levels = parts.first().map_or(0, |part| part.levels.len());
        if let Some(other) = parts.iter().find(|part| part.levels.len() != levels) {
            return Err(Error::Input(format!("features with {levels} and with {} levels", other.levels.len())));
        }
        let of = |pick: &dyn Fn(&Self) -> Tensor| -> Result<Tensor> {
            let tensors: Vec<Tensor> = parts.iter().map(|part| pick(part)).collect();
            Ok(join(&tensors.iter().collect::<Vec<_>>(), 0)?)
        };
        let features = of(&|part| part.features.clone())?;
        let levels = (0..levels).map(|level| of(&|part| part.levels[level].clone())).collect::<Result<_>>()?;
        Ok(Self { features, levels })
    }

    /// `count` of its rows from `from` on.
    ///
    /// # Errors
    /// Returns an error if there are fewer rows.
    pub fn rows(&self, from: usize, count: usize) -> Result<Self> {
        let run = |x: &Tensor| -> Result<Tensor> { Ok(x.narrow(0, from, count)?) };
        Ok(Self { features: run(&self.features)?, levels: self.levels.iter().map(run).collect::<Result<_>>()? })
    }
}
