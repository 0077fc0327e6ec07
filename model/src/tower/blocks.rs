//! The part in which towers of different families differ.

use candle_core::Tensor;

use super::layout::Layout;
use super::parts::{Merger, Seen};
use crate::error::Result;

/// The blocks of a family's tower and its mergers.
pub(super) trait Blocks: Send + Sync {
    /// Embedded patches `[patches, hidden]` with what a family adds for their places.
    fn placed(&self, x: Tensor, layout: &Layout) -> Result<Tensor>;

    /// One block of patches `[patches, hidden]`, whose MLP takes at most `slice_rows` at a time.
    fn block(&self, index: usize, x: &Tensor, seen: &Seen<'_>, slice_rows: usize) -> Result<Tensor>;

    /// Whether patches see their whole picture in a block; else their window.
    fn sees_whole(&self, index: usize) -> bool;

    /// The merger of the level after a block, if it has one.
    fn level(&self, index: usize) -> Option<&Merger>;

    /// The merger after the last block.
    fn merger(&self) -> &Merger;

    /// All mergers, for tests that spoil them.
    #[cfg(test)]
    fn mergers_mut(&mut self) -> Vec<&mut Merger>;
}
