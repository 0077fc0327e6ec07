//! Keys and values of an answered request that stay on the ranks, for another program.

use tributary_coordinator::dispatch;
use tributary_planner::ModelShape;
use tributary_protocol::{HandOver, Plan};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::run_config::RunConfig;

impl Engine<'_> {
    /// The shape of the model.
    pub fn shape(&self) -> ModelShape {
        self.folder.shape()
    }

    /// Type of the numbers of weights, keys and values: `f32`, `bf16` or `f16`.
    pub fn dtype(&self) -> &str {
        &self.environment.dtype
    }

    /// Hash of the model's weights and config.
    ///
    /// # Errors
    /// Returns an error if a file of the model cannot be read.
    pub fn model_hash(&self) -> Result<[u8; 32]> {
        self.folder.hash().get()
    }

    /// Keys after RoPE and values of a layer of the prompt of a request that
    /// [hands them over](tributary_planner::RequestSettings::hands_over) and has been
    /// [answered](Self::answer): `[rows, 2, kv_heads, head_dim]`, little-endian, in the order of
    /// positions.
    ///
    /// # Errors
    /// Returns an error if the ranks hold no such rows, or if a rank fails.
    pub fn held_layer(&mut self, plan: &Plan, layer: usize, run_config: &RunConfig) -> Result<Vec<u8>> {
        let (rows, row_bytes) = (plan.total_rows(), self.folder.shape().read_layer_kv_bytes() as usize);
        let link = self.ranks.backend().link(run_config.group()).ok_or(Error::Bug("the ranks were not started"))?;
        let (at_once, mut bytes) = (HandOver::rows_at_once(row_bytes), Vec::with_capacity(rows * row_bytes));
        for first in (0..rows).step_by(at_once) {
            let rows = first as u32..rows.min(first + at_once) as u32;
            let wanted = HandOver { request: plan.request, layer: layer as u32, rows };
            let read = dispatch::hand_over(link, wanted)?.map_err(tributary_coordinator::Error::Refused)?;
            bytes.extend(read.ok_or(Error::Bug("an answered request has all of its layers"))?);
        }
        Ok(bytes)
    }

    /// Releases what such a request holds.
    ///
    /// # Errors
    /// Returns an error if a rank fails.
    pub fn release_held(&mut self, plan: &Plan, run_config: &RunConfig) -> Result<()> {
        let link = self.ranks.backend().link(run_config.group()).ok_or(Error::Bug("the ranks were not started"))?;
        Ok(dispatch::release(link, vec![plan.request])?)
    }
}
