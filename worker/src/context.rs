//! The tools of a strategy: the model, the communicator, the kernels and the clock of this rank.

use std::time::Duration;

use candle_core::Tensor;
use tributary_comm::{Communicator, KeptFree};
use tributary_kernels::{Kernels, Keys, Partial, Positions, Query, Readings, Reduce, Rope, RowSums, cuda, join};
use tributary_model::{Model, Progress, Rows, embed, in_parts};
use tributary_protocol::{Phase, Plan, Source};

use crate::chunk_cache::ChunkCache;
use crate::error::Result;
use crate::models::Models;
use crate::sight::in_sight;
use crate::timeline::Timeline;

/// Number of pairs of a query and a key that a device gets at a time: about a second of work with
/// 32 heads.
const DEVICE_PAIRS: usize = 1 << 34;

/// Kernels and constants shared by every attention of a request.
#[derive(Debug, Clone)]
pub struct Math {
    /// Implementation of the kernels.
    pub kernels: Kernels,
    /// The model's rotary embedding, covering every position of the request.
    pub rope: Rope,
    /// Softmax scale.
    pub scale: f32,
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
        let (rope, scale, slice_rows) = (model.rope(positions)?, model.scale(), model.slice_rows());
        let (config, progress) = (model.config(), progress.clone());
        let q = config.heads * config.head_dim;
        let row_keys = config.hidden * (2 * q + 3 * config.mlp_width()) / (2 * q);
        Ok(Self { kernels, rope, scale, progress, kept_free, slice_rows, row_keys })
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

    /// As [`attend`](Self::attend), in slices of the queries with a control point after each, if
    /// the pass has slices. Every rank calls it at the same places.
    ///
    /// # Errors
    /// As [`attend`](Self::attend), and as a control point.
    pub fn attend_in_slices(&self, q: &Tensor, at: &Positions, keys: &[Keys]) -> Result<Partial> {
        self.in_slices(q, at, keys, |q, at, keys| self.attend(q, at, keys))
    }

    /// The same with keys that are already rotated, as in
    /// [`attend_rotated`](Self::attend_rotated).
    ///
    /// # Errors
    /// As [`attend_in_slices`](Self::attend_in_slices).
    pub fn attend_rotated_in_slices(&self, q: &Tensor, at: &Positions, keys: &[Keys]) -> Result<Partial> {
        self.in_slices(q, at, keys, |q, at, keys| self.attend_rotated(q, at, keys))
    }

    fn in_slices(
        &self,
        q: &Tensor,
        at: &Positions,
        keys: &[Keys],
        attend: impl Fn(&Tensor, &Positions, &[Keys]) -> Result<Partial>,
    ) -> Result<Partial> {
        if self.progress.slices() == 1 {
            return attend(q, at, keys);
        }
        let parts = in_parts(q.dim(0)?, &self.progress, |range| {
            let places: Vec<u32> = (range.start as u32..range.end as u32).collect();
            let at = at.select(&places);
            attend(&q.narrow(0, range.start, range.len())?, &at, &in_sight(&at, keys)?)
        })?;
        let of = |pick: fn(&Partial) -> &Tensor| join(&parts.iter().map(pick).collect::<Vec<_>>(), 0);
        Ok(Partial { out: of(|part| &part.out)?, lse: of(|part| &part.lse)? })
    }

    /// Attention of queries before RoPE to keys before RoPE.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit, or if a position is beyond the tables.
    pub fn attend(&self, q: &Tensor, at: &Positions, keys: &[Keys]) -> Result<Partial> {
        self.attend_to(&self.query(&self.rope.grown(q, at)?, at, keys))
    }

    /// Attention of queries to keys, both already rotated, the queries with their growth.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    pub fn attend_rotated(&self, q: &Tensor, at: &Positions, keys: &[Keys]) -> Result<Partial> {
        self.attend_to(&Query { rope: None, ..self.query(q, at, keys) })
    }

    /// A call of queries, with their growth, and keys before RoPE.
    fn query<'a>(&'a self, q: &'a Tensor, at: &'a Positions, keys: &'a [Keys]) -> Query<'a> {
        Query { q, at, keys, rope: Some(&self.rope), scale: self.scale }
    }

    fn attend_to(&self, query: &Query<'_>) -> Result<Partial> {
        self.progress.attention();
        let key_rows = query.keys.iter().map(|block| block.at.len()).sum::<usize>().max(1);
        let rows = if self.progress.on_device() { (DEVICE_PAIRS / key_rows).max(1) } else { usize::MAX };
        let partial = self.attend_in_pieces(query, rows)?;
        self.progress.attended();
        Ok(partial)
    }

    /// Attention of `rows` queries at a time; each piece is recorded as progress.
    fn attend_in_pieces(&self, query: &Query<'_>, rows: usize) -> Result<Partial> {
        let attend = |query: &Query<'_>| {
            cuda::leave_multiprocessors(self.kept_free.multiprocessors());
            self.kernels.attend(query)
        };
        let count = query.q.dim(0)?;
        if count <= rows {
            return Ok(attend(query)?);
        }
        let mut parts = Vec::new();
        for from in (0..count).step_by(rows) {
            let places: Vec<u32> = (from as u32..count.min(from + rows) as u32).collect();
            let (q, at) = (query.q.narrow(0, from, places.len())?, query.at.select(&places));
            parts.push(attend(&Query { q: &q, at: &at, ..*query })?);
            self.progress.piece()?;
        }
        let of = |pick: fn(&Partial) -> &Tensor| join(&parts.iter().map(pick).collect::<Vec<_>>(), 0);
        Ok(Partial { out: of(|part| &part.out)?, lse: of(|part| &part.lse)? })
    }

    /// Adds each query's attention to each key to `sums`, given the queries' log-sum-exp.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn add_readings(
        &self,
        q: &Tensor,
        at: &Positions,
        keys: &[Keys],
        lse: &Tensor,
        sums: &mut RowSums,
    ) -> Result<()> {
        self.progress.attention();
        sums.add(self.kernels, &self.query(&self.rope.grown(q, at)?, at, keys), lse)?;
        self.progress.attended();
        Ok(())
    }

    /// The largest attention of each query to any of the keys in each head, given the queries'
    /// log-sum-exp: `[queries, heads]` f32.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn peaks(&self, q: &Tensor, at: &Positions, keys: &[Keys], lse: &Tensor) -> Result<Tensor> {
        self.progress.attention();
        let peaks = self.kernels.peaks(&self.query(&self.rope.grown(q, at)?, at, keys), lse)?;
        self.progress.attended();
        Ok(peaks)
    }

    /// The attention that each key receives from the queries, in the form `by`, given the queries'
    /// log-sum-exp.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn readings(&self, q: &Tensor, at: &Positions, keys: &[Keys], lse: &Tensor, by: Readings) -> Result<Tensor> {
        self.progress.attention();
        let readings = self.kernels.readings(&self.query(&self.rope.grown(q, at)?, at, keys), lse, by)?;
        self.progress.attended();
        Ok(readings)
    }

    /// The attention that each key receives from the queries, given the queries' log-sum-exp:
    /// `[keys]` f32 on the queries' device.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn scores(&self, q: &Tensor, at: &Positions, keys: &[Keys], lse: &Tensor, by: Reduce<'_>) -> Result<Tensor> {
        self.progress.attention();
        let scores = self.kernels.column_scores(&self.query(&self.rope.grown(q, at)?, at, keys), lse, by)?;
        self.progress.attended();
        Ok(scores)
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
        Ok(Self {
            math: Math::of(models.main, positions, (kernels, progress, comm.kept_free()))?,
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
        Ok(embed(self.models.main, sources, &self.models.adapters)?)
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

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::kit;

    #[test]
    fn attention_in_pieces_is_attention() {
        let model = kit::model(&kit::config());
        let math = kit::math(&*model, 64);
        let values = |rows: usize, heads: usize| {
            let numbers: Vec<f32> = (0..rows * heads * 8).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
            Tensor::from_vec(numbers, (rows, heads, 8), &Device::Cpu).expect("numbers")
        };
        let (q, at) = (values(21, 4), Positions::run(0, 21));
        let keys = [Keys { k: values(21, 2), v: values(21, 2), at: at.clone() }];
        let whole = math.attend(&q, &at, &keys).expect("attention");
        for rows in [1, 4, 20, 21] {
            let pieces = math.attend_in_pieces(&math.query(&q, &at, &keys), rows).expect("attention");
            for (found, wanted) in [(&pieces.out, &whole.out), (&pieces.lse, &whole.lse)] {
                assert_eq!(found.dims(), wanted.dims());
                let far = (found - wanted).and_then(|far| far.abs()?.flatten_all()?.max(0)?.to_dtype(DType::F32));
                let far = far.and_then(|far| far.to_scalar::<f32>()).expect("a number");
                assert!(far < 1e-5, "{rows} rows at a time: {far:e}");
            }
        }
    }
}
