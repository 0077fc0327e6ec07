//! The calls of attention, and the choice of the implementation that answers them.

use candle_core::{DType, Tensor};

use crate::error::{Error, Result, expect};
use crate::rows::join;
use crate::{Keys, Partial, Positions, Readings, Reduce, Rope, cpu, cuda, gradient, per_head, plain};

/// Which implementation of the kernels runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernels {
    /// The fastest one for the tensors' device; where a gradient is wanted, one with its own
    /// backward pass (attention on the host, in f32 and f64), else the plain one.
    #[default]
    Auto,
    /// The plain one, in candle operations: any device, differentiable, the reference.
    Plain,
}

impl Kernels {
    /// Attention of `q` `[queries, heads, head_dim]` to all blocks of `keys` together. Heads
    /// `h·G .. (h+1)·G` share KV head `h`, G = heads / kv_heads. With `rope`, queries and keys are
    /// before RoPE, and the kernel rotates them to their positions; without it, they are rotated
    /// already. `scale` multiplies the dot products; YaRN's attention factor, squared, is part of
    /// it ([`Rope::attention_factor`]). Work runs on the current rayon pool. Where keys have
    /// positions per KV head, each head is a separate call.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    pub fn attend(
        self,
        q: &Tensor,
        at_q: &Positions,
        keys: &[Keys],
        rope: Option<&Rope>,
        scale: f32,
    ) -> Result<Partial> {
        check("attend", q, at_q, keys)?;
        if let Some(heads) = per_head::split(q, keys)? {
            let parts = heads.iter().map(|head| self.attend(&head.q, at_q, &head.keys, rope, scale));
            return per_head::joined(&parts.collect::<Result<Vec<_>>>()?);
        }
        if self == Kernels::Auto && on_cpu(q) && !tracks(q, keys) {
            return cpu::attend(q, at_q, keys, rope, scale);
        }
        if self == Kernels::Auto
            && !tracks(q, keys)
            && let Some(partial) = cuda::attend(q, at_q, keys, rope, scale)?
        {
            return Ok(partial);
        }
        if self == Kernels::Auto
            && let Some(partial) = gradient::attend(q, at_q, keys, rope, scale)?
        {
            return Ok(partial);
        }
        plain::attend(q, at_q, keys, rope, scale)
    }

    /// One number a key, `keys` in their order, `[keys]` f32 on the queries' device: `reduce` over
    /// the query rows of the attention that the key receives, averaged over the heads.
    /// Probabilities are recomputed from `lse` `[queries, heads]`, which decides what they are
    /// normalised over: A\[i,t\] = exp(scale·q_i·k_t − lse_i), 0 where `i` does not see `t` or lse
    /// is −∞. Gradients flow to `q`, `keys` and `lse`; that of [`Reduce::Norm`] is taken as 0 where
    /// the score is 0. Where keys have positions per KV head, the mean over the heads is that of
    /// the keys in the same place, computed by [`readings`](Self::readings).
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    #[allow(clippy::too_many_arguments)]
    pub fn column_scores(
        self,
        q: &Tensor,
        at_q: &Positions,
        keys: &[Keys],
        rope: Option<&Rope>,
        scale: f32,
        lse: &Tensor,
        reduce: Reduce<'_>,
    ) -> Result<Tensor> {
        check("column_scores", q, at_q, keys)?;
        let (queries, heads, _) = q.dims3()?;
        expect("column_scores", "rows of lse", queries, lse.dim(0)?)?;
        expect("column_scores", "heads of lse", heads, lse.dim(1)?)?;
        if let Reduce::Weighted(weights) = reduce {
            expect("column_scores", "weights", queries, weights.len())?;
        }
        if keys.iter().any(|block| block.at.heads().is_some()) {
            return plain::reduced(&self.readings(q, at_q, keys, rope, scale, lse, Readings::PerRow)?, reduce);
        }
        let tracked = tracks(q, keys) || lse.track_op();
        if self == Kernels::Auto && on_cpu(q) && !tracked {
            return cpu::column_scores(q, at_q, keys, rope, scale, lse, reduce);
        }
        if self == Kernels::Auto
            && !tracked
            && let Some(scores) = cuda::column_scores(q, at_q, keys, rope, scale, lse, reduce)?
        {
            return Ok(scores);
        }
        plain::column_scores(q, at_q, keys, rope, scale, lse, reduce)
    }

    /// Attention that every key receives, by KV head or by query row; otherwise as
    /// [`column_scores`](Self::column_scores). In f32, in f64 where the queries are. By KV head
    /// there is the plain implementation only, which holds `[heads, queries, keys]`: for windows of
    /// few rows.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    #[allow(clippy::too_many_arguments)]
    pub fn readings(
        self,
        q: &Tensor,
        at_q: &Positions,
        keys: &[Keys],
        rope: Option<&Rope>,
        scale: f32,
        lse: &Tensor,
        by: Readings,
    ) -> Result<Tensor> {
        check("readings", q, at_q, keys)?;
        let (queries, heads, _) = q.dims3()?;
        expect("readings", "rows of lse", queries, lse.dim(0)?)?;
        expect("readings", "heads of lse", heads, lse.dim(1)?)?;
        if let Some(heads) = per_head::split(q, keys)? {
            let of_head = |head: &per_head::HeadCall| {
                self.readings(&head.q, at_q, &head.keys, rope, scale, &head.part_of(lse)?, by)
            };
            let parts = heads.iter().map(of_head).collect::<Result<Vec<_>>>()?;
            return match by {
                Readings::PerKvHead => join(&parts.iter().collect::<Vec<_>>(), 0),
                Readings::PerRow => per_head::mean(&parts),
            };
        }
        if by == Readings::PerRow && reads_on_host(self, q, at_q, keys, lse)? {
            let total: usize = keys.iter().map(|block| block.at.len()).sum();
            let mut sums = vec![0.0; queries * total];
            cpu::add_row_readings(q, at_q, keys, rope, scale, lse, &mut sums)?;
            return Ok(Tensor::from_vec(sums, (queries, total), q.device())?);
        }
        if self == Kernels::Auto
            && by == Readings::PerRow
            && !tracks(q, keys)
            && !lse.track_op()
            && let Some(readings) = cuda::row_readings(q, at_q, keys, rope, scale, lse)?
        {
            return Ok(readings);
        }
        plain::readings(q, at_q, keys, rope, scale, lse, by)
    }
}

impl Kernels {
    /// The largest attention that each query row pays to any of the keys, in each head, given the rows' log-sum-exp over all that they see:
    /// `[queries, heads]` f32, 0 for a row that sees none of them. Plain on every device.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    pub fn peaks(
        self,
        q: &Tensor,
        at_q: &Positions,
        keys: &[Keys],
        rope: Option<&Rope>,
        scale: f32,
        lse: &Tensor,
    ) -> Result<Tensor> {
        check("peaks", q, at_q, keys)?;
        let (queries, heads, _) = q.dims3()?;
        expect("peaks", "rows of lse", queries, lse.dim(0)?)?;
        expect("peaks", "heads of lse", heads, lse.dim(1)?)?;
        if let Some(heads) = per_head::split(q, keys)? {
            let of_head =
                |head: &per_head::HeadCall| self.peaks(&head.q, at_q, &head.keys, rope, scale, &head.part_of(lse)?);
            let parts = heads.iter().map(of_head).collect::<Result<Vec<_>>>()?;
            return join(&parts.iter().collect::<Vec<_>>(), 1);
        }
        plain::peaks(q, at_q, keys, rope, scale, lse)
    }
}

/// Whether each row's readings are those of the CPU's own kernel, which adds to existing values.
///
/// # Errors
/// Returns an error if shapes do not fit.
pub(crate) fn reads_on_host(
    kernels: Kernels,
    q: &Tensor,
    at_q: &Positions,
    keys: &[Keys],
    lse: &Tensor,
) -> Result<bool> {
    check("readings", q, at_q, keys)?;
    let (queries, heads, _) = q.dims3()?;
    expect("readings", "rows of lse", queries, lse.dim(0)?)?;
    expect("readings", "heads of lse", heads, lse.dim(1)?)?;
    let is_apart = keys.iter().any(|block| block.at.heads().is_some());
    Ok(kernels == Kernels::Auto && on_cpu(q) && !is_apart && !tracks(q, keys) && !lse.track_op())
}

fn on_cpu(q: &Tensor) -> bool {
    q.device().is_cpu() && matches!(q.dtype(), DType::F32 | DType::BF16 | DType::F16)
}

/// Whether candle records operations on these tensors, so that gradients can flow back.
fn tracks(q: &Tensor, keys: &[Keys]) -> bool {
    q.track_op() || keys.iter().any(|block| block.k.track_op() || block.v.track_op())
}

fn check(op: &'static str, q: &Tensor, at_q: &Positions, keys: &[Keys]) -> Result<()> {
    let (queries, heads, head_dim) = q.dims3()?;
    expect(op, "positions of the queries", queries, at_q.len())?;
    expect(op, "KV heads with positions of queries", 0, at_q.heads().unwrap_or(0))?;
    for block in keys {
        let (count, kv_heads, dim) = block.k.dims3()?;
        expect(op, "head_dim of the keys", head_dim, dim)?;
        expect(op, "positions of the keys", count, block.at.len())?;
        if block.v.dims() != block.k.dims() {
            let (expected, found) = (format!("{:?}", block.k.dims()), format!("{:?}", block.v.dims()));
            return Err(Error::Shape { op, what: "values", expected, found });
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of {heads} query heads");
            let found = kv_heads.to_string();
            return Err(Error::Shape { op, what: "KV heads", expected, found });
        }
        expect(op, "KV heads of every block", keys[0].k.dim(1)?, kv_heads)?;
        expect(op, "KV heads with positions of keys", kv_heads, block.at.heads().unwrap_or(kv_heads))?;
    }
    Ok(())
}
