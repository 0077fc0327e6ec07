//! The attention that context rows receive from asking rows, compressed chunks included. In these
//! each KV head holds rows of its own; a row receives nothing in a head that does not hold it.

use candle_core::Tensor;
use tributary_kernels::{Positions, Readings, Reduce, contiguous, cuda};

use crate::error::Result;
use crate::kv::View;
use crate::layer_math::LayerMath;

/// Rows that attend to context rows.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub math: LayerMath<'a>,
    /// Their queries; `at` has their positions.
    pub q: &'a Tensor,
    pub at: &'a Positions,
    /// Their log-sum-exp over all visible rows.
    pub lse: &'a Tensor,
}

/// The attention that each of a view's rows receives in a layer from a reader: `[rows]` f32, in the
/// order of [`View::rows`].
///
/// # Errors
/// Returns an error if shapes do not fit.
pub(super) fn received(
    reader: Reader<'_>,
    view: &View,
    layer: usize,
    kv_heads: usize,
    by: Reduce<'_>,
) -> Result<Tensor> {
    let Reader { math, q, at, lse } = reader;
    if !view.is_compressed() {
        return math.scores(q, at, &view.keys(layer), lse, by);
    }
    let rows = view.rows().count();
    let sums = match by {
        Reduce::Norm => norms(&by_query(reader, view, layer, kv_heads)?, rows),
        by => {
            let mut sums = vec![0.0; rows];
            for head in 0..kv_heads {
                let (keys, places) = view.keys_of_head(layer, head)?;
                let (q, lse) = of_head(q, lse, head, kv_heads)?;
                let math = math.of_kv_head(head, kv_heads);
                let scores = cuda::download(&math.scores(&q, at, &keys, &lse, by)?)?.to_vec1::<f32>()?;
                assert_eq!(scores.len(), places.len(), "rows of KV head {head} in layer {layer}");
                places.iter().zip(scores).for_each(|(&place, score)| sums[place] += score / kv_heads as f32);
            }
            sums
        }
    };
    Ok(Tensor::from_vec(sums, rows, q.device())?)
}

/// The attention that each row receives from each query, the mean over all heads: query by query.
fn by_query(reader: Reader<'_>, view: &View, layer: usize, kv_heads: usize) -> Result<Vec<f32>> {
    let Reader { math, q, at, lse } = reader;
    let (rows, queries) = (view.rows().count(), q.dim(0)?);
    let mut readings = vec![0.0; queries * rows];
    for head in 0..kv_heads {
        let (keys, places) = view.keys_of_head(layer, head)?;
        let (q, lse) = of_head(q, lse, head, kv_heads)?;
        let math = math.of_kv_head(head, kv_heads);
        let found = cuda::download(&math.readings(&q, at, &keys, &lse, Readings::PerRow)?)?.to_vec2::<f32>()?;
        for (sums, found) in readings.chunks_mut(rows.max(1)).zip(found) {
            assert_eq!(found.len(), places.len(), "rows of KV head {head} in layer {layer}");
            places.iter().zip(found).for_each(|(&place, reading)| sums[place] += reading / kv_heads as f32);
        }
    }
    Ok(readings)
}

/// The Euclidean norm over the queries of the attention that each of `rows` rows receives.
fn norms(readings: &[f32], rows: usize) -> Vec<f32> {
    let mut squares = vec![0.0; rows];
    for of_query in readings.chunks(rows.max(1)) {
        squares.iter_mut().zip(of_query).for_each(|(square, reading)| *square += reading * reading);
    }
    squares.into_iter().map(f32::sqrt).collect()
}

/// The query heads of a KV head, and their log-sum-exp.
fn of_head(q: &Tensor, lse: &Tensor, head: usize, kv_heads: usize) -> Result<(Tensor, Tensor)> {
    let group = q.dim(1)? / kv_heads;
    Ok((contiguous(&q.narrow(1, head * group, group)?)?, contiguous(&lse.narrow(1, head * group, group)?)?))
}
