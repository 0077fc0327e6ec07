//! The attention kernels with the constants of one layer: its rotary embedding, scale, window and
//! sinks.

use std::borrow::Cow;

use candle_core::Tensor;
use tributary_kernels::{
    Keys, Partial, Positions, Query, Readings, Reduce, RowSums, cuda, is_in_eight_bits, lse_with_sinks,
};
use tributary_model::{LayerAttention, in_parts};

use crate::context::Math;
use crate::error::Result;
use crate::sight::in_sight;

/// Number of pairs of a query and a key that a device gets at a time: about a second of work with
/// 32 heads.
const DEVICE_PAIRS: usize = 1 << 34;

/// Kernels and constants of one layer. Sinks are added where attention is read; to its output the
/// model adds them, after all keys.
#[derive(Debug, Clone, Copy)]
pub struct LayerMath<'a> {
    /// Kernels, and the constants of all layers.
    pub math: &'a Math,
    /// The layer's own.
    pub of: &'a LayerAttention,
    /// The sinks of the query heads that are read, if there are any.
    sinks: Option<&'a [f32]>,
}

impl Math {
    /// The kernels with the constants of a layer.
    pub fn layer(&self, layer: usize) -> LayerMath<'_> {
        let of = &self.layers[layer];
        LayerMath { math: self, of, sinks: of.sinks.as_deref() }
    }
}

impl<'a> LayerMath<'a> {
    /// The same kernels with other constants of the layer.
    #[must_use]
    pub fn with(self, of: &'a LayerAttention) -> Self {
        Self { of, ..self }
    }

    /// The same for the query heads of one KV head alone, if there are `kv_heads`.
    #[must_use]
    pub fn of_kv_head(self, head: usize, kv_heads: usize) -> Self {
        let own = |sinks: &'a [f32]| &sinks[head * sinks.len() / kv_heads..(head + 1) * sinks.len() / kv_heads];
        Self { sinks: self.sinks.map(own), ..self }
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
        if self.math.progress.slices() == 1 {
            return attend(q, at, keys);
        }
        let parts = in_parts(q.dim(0)?, &self.math.progress, |range| {
            let places: Vec<u32> = (range.start as u32..range.end as u32).collect();
            let at = self.of.seen_from(at).select(&places);
            attend(&q.narrow(0, range.start, range.len())?, &at, &in_sight(&at, keys)?)
        })?;
        Ok(Partial::below_each_other(&parts)?)
    }

    /// Attention of queries before RoPE to keys before RoPE.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit, or if a position is beyond the tables.
    pub fn attend(&self, q: &Tensor, at: &Positions, keys: &[Keys]) -> Result<Partial> {
        let at = self.of.seen_from(at);
        self.attend_to(&self.of.query(&self.of.rope.grown(q, &at)?, &at, keys))
    }

    /// Queries and keys as decoding keeps and reads them: rotated, the queries with their growth.
    /// Rounding keys in 8 bits twice would add to their error: those stay before RoPE, and with
    /// them the queries.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit, or if a position is beyond the tables.
    pub fn turned(
        &self,
        (q, asking): (&Tensor, &Positions),
        (k, at): (&Tensor, &Positions),
    ) -> Result<(Tensor, Tensor)> {
        let (rope, q) = (&self.of.rope, self.of.rope.grown(q, asking)?);
        match is_in_eight_bits(k) {
            true => Ok((q, k.clone())),
            false => Ok((rope.apply(&q, asking)?, rope.apply(k, at)?)),
        }
    }

    /// Attention of queries to keys, both as [`turned`](Self::turned) gives them.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit, or if a position is beyond the tables.
    pub fn attend_rotated(&self, q: &Tensor, at: &Positions, keys: &[Keys]) -> Result<Partial> {
        let at = self.of.seen_from(at);
        self.attend_to(&self.rotated(q, &at, keys))
    }

    /// A call with queries and keys as [`turned`](Self::turned) gives them.
    fn rotated<'q>(&self, q: &'q Tensor, at: &'q Positions, keys: &'q [Keys]) -> Query<'q>
    where
        'a: 'q,
    {
        let query = self.of.query(q, at, keys);
        let rope = query.rope.filter(|_| keys.iter().any(|block| is_in_eight_bits(&block.k)));
        Query { rope, ..query }
    }

    fn attend_to(&self, query: &Query<'_>) -> Result<Partial> {
        self.math.progress.attention();
        let key_rows = query.keys.iter().map(|block| block.at.len()).sum::<usize>().max(1);
        let rows = if self.math.progress.on_device() { (DEVICE_PAIRS / key_rows).max(1) } else { usize::MAX };
        let partial = self.attend_in_pieces(query, rows)?;
        self.math.progress.attended();
        Ok(partial)
    }

    /// Attention of `rows` queries at a time; each piece is recorded as progress.
    fn attend_in_pieces(&self, query: &Query<'_>, rows: usize) -> Result<Partial> {
        let attend = |query: &Query<'_>| {
            cuda::leave_multiprocessors(self.math.kept_free.multiprocessors());
            self.math.kernels.attend(query)
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
            self.math.progress.piece()?;
        }
        Ok(Partial::below_each_other(&parts)?)
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
        self.math.progress.attention();
        let (at, lse) = (self.of.seen_from(at), self.normalised(lse)?.1);
        sums.add(self.math.kernels, &self.of.query(&self.of.rope.grown(q, &at)?, &at, keys), &lse)?;
        self.math.progress.attended();
        Ok(())
    }

    /// The largest attention of each query to any of the keys in each head, given the queries'
    /// log-sum-exp: `[queries, heads]` f32.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn peaks(&self, q: &Tensor, at: &Positions, keys: &[Keys], lse: &Tensor) -> Result<Tensor> {
        self.math.progress.attention();
        let (at, lse) = (self.of.seen_from(at), self.normalised(lse)?.1);
        let query = self.of.rope.grown(q, &at)?;
        let peaks = self.math.kernels.peaks(&self.of.query(&query, &at, keys), &lse)?;
        self.math.progress.attended();
        Ok(peaks)
    }

    /// The attention that each key receives from the queries, in the form `by`, given the queries'
    /// log-sum-exp.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn readings(&self, q: &Tensor, at: &Positions, keys: &[Keys], lse: &Tensor, by: Readings) -> Result<Tensor> {
        self.math.progress.attention();
        let (at, lse) = (self.of.seen_from(at), self.normalised(lse)?.1);
        let query = self.of.rope.grown(q, &at)?;
        let readings = self.math.kernels.readings(&self.of.query(&query, &at, keys), &lse, by)?;
        self.math.progress.attended();
        Ok(readings)
    }

    /// The same of queries and keys as [`turned`](Self::turned) gives them.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn readings_rotated(
        &self,
        q: &Tensor,
        at: &Positions,
        keys: &[Keys],
        lse: &Tensor,
        by: Readings,
    ) -> Result<Tensor> {
        self.math.progress.attention();
        let (at, lse) = (self.of.seen_from(at), self.normalised(lse)?.1);
        let readings = self.math.kernels.readings(&self.rotated(q, &at, keys), &lse, by)?;
        self.math.progress.attended();
        Ok(readings)
    }

    /// The attention that each key receives from the queries, given the queries' log-sum-exp:
    /// `[keys]` f32 on the queries' device.
    ///
    /// # Errors
    /// As [`attend`](Self::attend).
    pub fn scores(&self, q: &Tensor, at: &Positions, keys: &[Keys], lse: &Tensor, by: Reduce<'_>) -> Result<Tensor> {
        self.math.progress.attention();
        let (at, lse) = (self.of.seen_from(at), self.normalised(lse)?.1);
        let query = self.of.rope.grown(q, &at)?;
        let scores = self.math.kernels.column_scores(&self.of.query(&query, &at, keys), &lse, by)?;
        self.math.progress.attended();
        Ok(scores)
    }

    /// What attention is normalised by: the log-sum-exp of rows over their keys with the sinks, and
    /// the kernels for readings by it, which add no sinks again.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn normalised(self, lse: &Tensor) -> Result<(Self, Cow<'_, Tensor>)> {
        let lse = match self.sinks {
            None => Cow::Borrowed(lse),
            Some(sinks) => Cow::Owned(lse_with_sinks(lse, sinks)?),
        };
        Ok((Self { sinks: None, ..self }, lse))
    }
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
        let math = math.layer(0);
        let values = |rows: usize, heads: usize| {
            let numbers: Vec<f32> = (0..rows * heads * 8).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
            Tensor::from_vec(numbers, (rows, heads, 8), &Device::Cpu).expect("numbers")
        };
        let (q, at) = (values(21, 4), Positions::run(0, 21));
        let keys = [Keys { k: values(21, 2), v: values(21, 2), at: at.clone() }];
        let whole = math.attend(&q, &at, &keys).expect("attention");
        for rows in [1, 4, 20, 21] {
            let pieces = math.attend_in_pieces(&math.of.query(&q, &at, &keys), rows).expect("attention");
            for (found, wanted) in [(&pieces.out, &whole.out), (&pieces.lse, &whole.lse)] {
                assert_eq!(found.dims(), wanted.dims());
                let far = (found - wanted).and_then(|far| far.abs()?.flatten_all()?.max(0)?.to_dtype(DType::F32));
                let far = far.and_then(|far| far.to_scalar::<f32>()).expect("a number");
                assert!(far < 1e-5, "{rows} rows at a time: {far:e}");
            }
        }
    }

    /// A window of 3 keys, and sinks of four heads on two KV heads.
    #[test]
    fn readings_count_windows_and_sinks_once() {
        let (model, rows) = (kit::model(&kit::config()), 6);
        let math = kit::math(&*model, 64);
        let sinks: [f32; 4] = [-0.4, 1.5, 0.2, 3.0];
        let of = LayerAttention { window: Some(3), sinks: Some(sinks.into()), ..math.layers[0].clone() };
        let layer = LayerMath { of: &of, sinks: of.sinks.as_deref(), ..math.layer(0) };
        let values = |heads: usize, seed: usize| {
            let number = |i: usize| ((i * 37 + seed) % 101) as f32 / 40.0 - 1.2;
            let numbers: Vec<f32> = (0..rows * heads * 8).map(number).collect();
            Tensor::from_vec(numbers, (rows, heads, 8), &Device::Cpu).expect("numbers")
        };
        let (q, k, at) = (values(4, 1), values(2, 2), Positions::run(0, rows));
        let keys = [Keys { k: k.clone(), v: values(2, 3), at: at.clone() }];
        let turned = |x: &Tensor| of.rope.apply(x, &at).and_then(|x| Ok(x.to_vec3::<f32>()?)).expect("turned");
        let (queries, turned) = (turned(&q), turned(&k));
        let fading = [0.9f32, 0.0, 0.4, 2.0, 0.1, 0.0];
        // What each key receives: all heads, those of the second KV head, and all with fading rows.
        let mut expected = [vec![0f64; rows], vec![0f64; rows], vec![0f64; rows]];
        for (row, head) in (0..rows).flat_map(|row| (0..4).map(move |head| (row, head))) {
            let weight = |key: usize| -> f64 {
                let pairs = queries[row][head].iter().zip(&turned[key][head / 2]);
                let dot: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                (dot * f64::from(of.scale)).exp()
            };
            let seen = (row + 1).saturating_sub(3)..row + 1;
            let all = seen.clone().map(weight).sum::<f64>() + f64::from(sinks[head]).exp();
            for key in seen {
                let share = weight(key) / all;
                expected[0][key] += share / 4.0;
                expected[1][key] += if head < 2 { 0.0 } else { share / 2.0 };
                expected[2][key] += share / 4.0 * f64::from(-fading[row]).exp();
            }
        }
        let lse = layer.attend(&q, &at, &keys).expect("attention").lse;
        let all = layer.scores(&q, &at, &keys, &lse, Reduce::Mass).expect("scores");
        let half =
            |x: &Tensor| x.narrow(1, x.dims()[1] / 2, x.dims()[1] / 2).and_then(|x| x.contiguous()).expect("half");
        let second = [Keys { k: half(&k), v: half(&keys[0].v), at: at.clone() }];
        let of_head =
            layer.of_kv_head(1, 2).scores(&half(&q), &at, &second, &half(&lse), Reduce::Mass).expect("scores");
        let (without, normalised) = layer.normalised(&lse).expect("sums");
        let fading = Tensor::from_vec(fading.to_vec(), (rows, 1), &Device::Cpu).expect("a fading");
        let faded = normalised.broadcast_add(&fading).expect("faded");
        let faded = without.scores(&q, &at, &keys, &faded, Reduce::Mass).expect("scores");
        for (found, expected) in [all, of_head, faded].iter().zip(expected) {
            let found = found.to_vec1::<f32>().expect("numbers");
            let far = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(far < 1e-5, "{found:?}, not {expected:?}");
        }
    }
}
