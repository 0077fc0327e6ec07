//! The tools of a strategy: the model, the communicator, the kernels and the clock of this rank.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use candle_core::DType;
use tributary_comm::{Communicator, KeptFree};
use tributary_kernels::Kernels;
use tributary_model::{LayerAttention, Model, Progress, Rows};
use tributary_protocol::place::PlaceNumbers;
use tributary_protocol::{Chunk, Layout, Phase, Plan, Source};

use crate::chunk_cache::ChunkCache;
use crate::error::Result;
use crate::models::Models;
use crate::placement::{Placement, standing};
use crate::timeline::Timeline;

/// Kernels and constants shared by every attention of a request.
#[derive(Debug, Clone)]
pub struct Math {
    /// Implementation of the kernels.
    pub kernels: Kernels,
    /// The dtype of queries and outputs that travel.
    pub dtype: DType,
    /// The attention of each of the model's layers, covering every position of the request.
    pub layers: Arc<[LayerAttention]>,
    /// The record of the rank's steps.
    pub progress: Progress,
    /// Number of the GPU's multiprocessors that messages in flight need.
    pub kept_free: KeptFree,
    /// Maximum number of rows in a slice of a layer.
    pub slice_rows: usize,
    /// Number of keys whose attention takes a row as many FLOPs as a layer's products, its own key
    /// and value left out.
    pub row_keys: usize,
}

impl Math {
    /// Kernels and constants of a model, for positions up to a bound.
    ///
    /// # Errors
    /// Returns an error if the rotary tables cannot be made.
    pub fn of(
        model: &dyn Model,
        positions: usize,
        (kernels, progress, kept_free): (Kernels, &Progress, KeptFree),
    ) -> Result<Self> {
        let (layers, slice_rows) = (model.layer_attention(positions)?, model.slice_rows());
        let (config, progress) = (model.config(), progress.clone());
        let q = config.heads * config.head_dim;
        let row_keys = config.hidden * (2 * q + 3 * config.mlp_width()) / (2 * q);
        Ok(Self { kernels, dtype: model.dtype(), layers, progress, kept_free, slice_rows, row_keys })
    }

    /// The same for work that other ranks do not know of: it passes no control point.
    #[must_use]
    pub fn alone(&self) -> Self {
        Self { progress: self.progress.alone(), ..self.clone() }
    }

    /// The same for a pass whose layers are computed in this number of slices of their rows.
    #[must_use]
    pub fn sliced(&self, slices: usize) -> Self {
        Self { progress: self.progress.sliced(slices), ..self.clone() }
    }

    /// The layers of a range in which a query's attention is a score: those without a sliding
    /// window, or all if each has one. The query sees little of the context in a window.
    pub fn scored(&self, range: &Range<usize>) -> Vec<usize> {
        let sees_all = |layer: &usize| self.layers[*layer].window.is_none();
        match range.clone().any(|layer| sees_all(&layer)) {
            true => range.clone().filter(sees_all).collect(),
            false => range.clone().collect(),
        }
    }
}

/// A rank's tools for one request.
pub struct Context<'a> {
    /// The decoder and the auxiliary models.
    pub models: Models<'a>,
    /// The way to the other ranks.
    pub comm: &'a mut dyn Communicator,
    /// The kernels with the model's constants.
    pub math: Math,
    /// The timeline of the rank's phases.
    pub timeline: Timeline,
    /// Numbers of the places of pictures' rows, in the tables of `math`.
    numbers: PlaceNumbers,
    /// Number of the places that the tables have.
    composed: usize,
    /// Number of context, prefix and query rows computed by chunk prefill or exact prefill.
    pub prefilled_rows: usize,
    /// Run time of auxiliary models on this rank in seconds, even if it overlaps other work.
    pub auxiliary_s: f64,
    /// Number of rows computed by the recompute pass.
    pub recomputed_rows: usize,
    /// Chunks of earlier requests.
    pub chunk_cache: &'a mut ChunkCache,
}

impl<'a> Context<'a> {
    /// Tools for a plan of `positions` positions; `progress` records the rank's steps.
    ///
    /// # Errors
    /// Returns an error if the rotary tables cannot be made, or if the device fails.
    pub fn new(
        models: impl Into<Models<'a>>,
        comm: &'a mut dyn Communicator,
        kernels: Kernels,
        (plan, positions): (&Plan, usize),
        progress: &Progress,
        chunk_cache: &'a mut ChunkCache,
    ) -> Result<Self> {
        progress.begin(plan.request);
        comm.set_deadline(Phase::Dispatch, timeout(plan));
        let models = models.into();
        let mut timeline = Timeline::start(models.main.device())?;
        timeline.enter(Phase::Dispatch, comm)?;
        checkpoint(comm.rank(), Phase::Dispatch)?;
        let math = Math::of(models.main, positions, (kernels, progress, comm.kept_free()))?;
        let plain = math.layers.first().map_or(0, |layer| layer.rope.plain_positions());
        Ok(Self {
            math,
            numbers: PlaceNumbers::after(plain as u32),
            composed: 0,
            models,
            comm,
            timeline,
            prefilled_rows: 0,
            auxiliary_s: 0.0,
            recomputed_rows: 0,
            chunk_cache,
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Kernels and constants of a model beside the main one, for positions up to a bound: rank 0
    /// runs it while the others wait.
    ///
    /// # Errors
    /// Returns an error if the rotary tables cannot be made.
    pub fn math_of(&self, model: &dyn Model, positions: usize) -> Result<Math> {
        let Math { kernels, progress, kept_free, .. } = &self.math;
        Math::of(model, positions, (*kernels, &progress.looking(), kept_free.clone()))
    }

    /// Rows from their sources.
    ///
    /// # Errors
    /// Returns an error if a source is missing, or if a candle operation fails.
    pub fn embed(&self, sources: &[Source]) -> Result<Rows> {
        self.models.embed(sources)
    }

    /// The placement of a plan's rows ([`Placement::numbered`]). Attentions that are made after it
    /// have the rotations of all its places.
    ///
    /// # Errors
    /// Returns an error if the model's rows stand on one axis and a chunk has pictures.
    pub fn placement(&mut self, plan: &Plan, order: &[u32], layout: Layout) -> Result<Placement> {
        let placement = Placement::numbered(plan, order, layout, &mut self.numbers);
        self.compose()?;
        Ok(placement)
    }

    /// The placement of groups of chunks that are apart ([`Placement::apart`]).
    ///
    /// # Errors
    /// As [`placement`](Self::placement).
    pub fn apart(&mut self, plan: &Plan) -> Result<Placement> {
        let placement = Placement::apart(plan, &mut self.numbers);
        self.compose()?;
        Ok(placement)
    }

    /// The rotary positions of chunks, if the group of each begins at this one.
    ///
    /// # Errors
    /// As [`placement`](Self::placement).
    pub fn standing<'p>(&mut self, chunks: impl Iterator<Item = &'p Chunk>, first: usize) -> Result<Vec<Vec<u32>>> {
        let all = chunks.map(|chunk| standing(chunk, first as u32, &mut self.numbers)).collect();
        self.compose()?;
        Ok(all)
    }

    /// Adds the rotations of places that have got a number.
    fn compose(&mut self) -> Result<()> {
        let new = &self.numbers.composed()[self.composed..];
        if !new.is_empty() {
            self.math.layers = LayerAttention::composed(&self.math.layers, new)?;
            self.composed += new.len();
        }
        Ok(())
    }

    /// Opens a phase.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn enter(&mut self, phase: Phase, plan: &Plan) -> Result<()> {
        self.comm.set_deadline(phase, timeout(plan));
        self.timeline.enter(phase, self.comm)?;
        checkpoint(self.rank(), phase)
    }
}

/// Logs the phase that a rank enters. With failpoints built in, a test can stop, delay or fail the
/// rank here.
///
/// # Errors
/// Returns an error if a failpoint does.
pub fn checkpoint(rank: usize, phase: Phase) -> Result<()> {
    tracing::debug!(rank, pid = std::process::id(), phase = phase.name(), "enters");
    fail::fail_point!(&format!("worker::{phase}"));
    fail::fail_point!(
        &format!("worker::{phase}::error"),
        |_| Err(candle_core::Error::Msg("a failpoint".into()).into())
    );
    Ok(())
}

/// Maximum time that a rank may compute without progress, and that ranks wait for each other.
fn timeout(plan: &Plan) -> Duration {
    Duration::from_millis(plan.timeout_ms)
}
