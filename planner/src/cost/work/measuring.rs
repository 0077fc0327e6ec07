//! The work of passes that measure context rows before any is selected.

use std::ops::Range;

use tributary_protocol::{Anchors, Auxiliary, Drift, DriftScore, Exchange, SamKv};

use super::{Count, Products, RankWork, sees, triangle};
use crate::cost::homes::{Row, drifting, homes};
use crate::cost::sight::Sight;

/// Numbers that are read and written for each score while the sharpest heads are found: the score,
/// its visibility, its masked value, the value less the denominator, its exponential, and the
/// maximum.
const NUMBERS_A_PEAK: f64 = 20.0;

impl Count<'_> {
    /// The prompts of auxiliary models, one after the other, on rank 0's host. Pairs of a row and a
    /// key count with the width of that model's heads, converted to an equivalent number of the
    /// main model's.
    pub(super) fn auxiliary(&self) -> Vec<RankWork> {
        let mut ranks = vec![RankWork::default(); self.world];
        for auxiliary in &self.plan.auxiliary {
            let cost = &auxiliary.cost;
            if auxiliary.written > 0 {
                auxiliary.prompts.iter().for_each(|prompt| ranks[0].add(&self.written(auxiliary, prompt.ids.len())));
                continue;
            }
            for prompt in &auxiliary.prompts {
                let (rows, looking, layers) = (prompt.ids.len(), prompt.query as f64, f64::from(cost.layers));
                let asked = triangle(rows) - triangle(rows - prompt.query);
                // In the last layer only the query's rows attend, and then score.
                let attention = cost.pair_flops as f64 * ((layers - 1.0) * triangle(rows) + 1.5 * asked);
                let flops = rows as f64 * cost.row_flops as f64;
                let products = vec![Products { rows, flops, weight_bytes: cost.matrix_bytes as f64 }];
                let scale = cost.pair_flops as f64 / self.pair_flops();
                let attending_rows = scale * ((layers - 1.0) * rows as f64 + looking);
                let elementwise = rows as f64 * cost.row_elementwise as f64;
                let layers = cost.layers as usize;
                ranks[0].add(&RankWork {
                    products,
                    attention,
                    attending_rows,
                    elementwise,
                    layers,
                    ..RankWork::default()
                });
            }
        }
        ranks
    }

    /// A prompt of `rows` rows of an auxiliary model, the tokens that it writes after it at most,
    /// and the reading of the rows that write them: in all layers, queries and keys once more.
    fn written(&self, auxiliary: &Auxiliary, rows: usize) -> RankWork {
        let cost = &auxiliary.cost;
        let (writers, layers) = (f64::from(auxiliary.written), f64::from(cost.layers));
        let (all, steps, pair) = (rows as f64, writers - 1.0, cost.pair_flops as f64 / self.pair_flops());
        let (flops, weight_bytes) = (cost.row_flops as f64, cost.matrix_bytes as f64);
        RankWork {
            products: vec![
                Products { rows, flops: all * flops, weight_bytes },
                Products { rows: 1, flops: steps * flops, weight_bytes: steps * weight_bytes },
            ],
            attention: layers * cost.pair_flops as f64 * triangle(rows),
            attending_rows: pair * layers * all,
            probe: layers * cost.pair_flops as f64 * (steps + 0.5 * writers) * all,
            elementwise: (all + steps) * cost.row_elementwise as f64,
            layers: cost.layers as usize * auxiliary.written as usize,
            ..RankWork::default()
        }
    }

    /// Relay's first hop: the measured rows under pass-q, all layers up to the last one's
    /// attention, and a score of every row and key.
    pub(super) fn hop(&self) -> Vec<RankWork> {
        if self.selected.measured.is_empty() {
            return vec![RankWork::default(); self.world];
        }
        let homes = self.homes((&self.selected.measured, false), Exchange::PassQ);
        let seen = Sight::new(self.plan, self.world, self.selected).kept(&homes);
        self.measured(&homes, &seen)
    }

    /// Trace's free probes, one after the other: each of their rows sees all chunks but the rows
    /// after it in its own group.
    pub(super) fn free_probes(&self) -> Vec<RankWork> {
        let kept = self.plan.kept_counts(self.world);
        let mut all = vec![RankWork::default(); self.world];
        for probe in self.selected.free_probes(self.plan) {
            let rows = (&probe.measured[..], false);
            let homes = homes(self.plan, self.world, self.shape, &probe, rows, Exchange::PassQ);
            let after = self.pairs_after(&probe.measured);
            let pairs = |(&kept, after): (&usize, usize)| (kept * probe.measured.len()) as f64 - after as f64;
            let seen: Vec<f64> = kept.iter().zip(after).map(pairs).collect();
            let measured = self.measured(&homes, &seen);
            all.iter_mut().zip(&measured).for_each(|(sum, work)| sum.add(work));
            // If only some heads count, another probe finds them, by plain operations on every
            // score.
            if self.plan.traces().is_some_and(|trace| trace.heads.count(1).is_some()) {
                for ((sum, work), &kept) in all.iter_mut().zip(&measured).zip(&kept) {
                    sum.add(work);
                    let scores = self.shape.layers * self.shape.heads * probe.measured.len() * kept;
                    sum.elementwise += NUMBERS_A_PEAK * scores as f64;
                }
            }
        }
        all
    }

    /// Pairs of these rows with the rows after them in their own groups, on the rank of each such
    /// row.
    fn pairs_after(&self, rows: &[u32]) -> Vec<usize> {
        let (plan, mut pairs, mut ordered) = (self.plan, vec![0; self.world], rows.to_vec());
        ordered.sort_unstable();
        for group in plan.groups() {
            let mut after = vec![0; self.world];
            for (chunk, run) in plan.runs_of(&group).into_iter().rev() {
                let of_run =
                    ordered.partition_point(|&row| row < run.start)..ordered.partition_point(|&row| row < run.end);
                let rank = plan.chunks[chunk as usize].rank;
                pairs.iter_mut().zip(&after).for_each(|(pairs, &after)| *pairs += of_run.len() * after);
                pairs[rank] += ordered[of_run].iter().map(|&row| (run.end - 1 - row) as usize).sum::<usize>();
                after[rank] += run.len();
            }
        }
        pairs
    }

    /// Ideal's full prefill: all context rows and the query's under pass-q, of which only the
    /// latter attend in the last layer; then scores of the query's rows and differences of values
    /// in every layer.
    pub(super) fn oracle(&self) -> Vec<RankWork> {
        let (plan, shape, query) = (self.plan, self.shape, self.plan.query_tokens());
        let homes = self.homes((&plan.context_row_numbers(), true), Exchange::PassQ);
        let kept = plan.kept_counts(self.world);
        let rank = |(rank, (own, (pairs, _))): (usize, (&Vec<Row>, (f64, f64)))| {
            let asking = if rank == plan.owner { query } else { 0 };
            let of_query = (query * kept[rank] + asking * plan.prefix_tokens()) as f64 + triangle(asking);
            let mut work = self.prompt(own.len() + asking, 0, pairs, of_query);
            let (layers, rows) = (shape.layers as f64, (own.len() + asking) as f64);
            work.products.iter_mut().for_each(|products| products.flops += asking as f64 * shape.layer_query_flops());
            work.attending_rows += asking as f64;
            work.probe = self.pair_flops() * layers * (query * kept[rank]) as f64 / 2.0;
            work.merged = (layers - 1.0) * rows * (self.world - 1) as f64 * self.partial();
            // Both values are widened, weighted and compared.
            work.elementwise += layers * (kept[rank] * shape.kv_width()) as f64 * 10.0;
            work
        };
        homes.iter().zip(self.pass_q_pairs(&homes)).enumerate().map(rank).collect()
    }

    /// The probe if documents are read one by one: the query sees the first and last rows of each
    /// on the way; in the scored layers it attends to every row once more, and scores it.
    pub(super) fn sparse_probe(&self, probed: &Range<usize>, sparse: SamKv) -> Vec<RankWork> {
        let (plan, query) = (self.plan, self.plan.query_tokens() as f64);
        let mut ends = vec![0; self.world];
        for chunk in &plan.chunks {
            ends[chunk.rank] += sparse.always_of(chunk.rows()).into_iter().map(|rows| rows.len()).sum::<usize>();
        }
        let mut work = self.probe(probed);
        for ((work, ends), kept) in work.iter_mut().zip(ends).zip(plan.kept_counts(self.world)) {
            let pairs = probed.end as f64 * (kept - ends) as f64 - (probed.len() * kept) as f64;
            work.probe -= self.pair_flops() * query * pairs;
            work.kv_bytes -= pairs * self.shape.layer_kv_bytes() as f64;
        }
        work
    }

    /// The probe if anchors stand for chunks: of the context the query sees them alone. They are
    /// chosen by the keys of the scored layer. The model's mean query there is computed once in a
    /// process and is not counted.
    pub(super) fn probe_of_anchors(&self, probed: &Range<usize>) -> Vec<RankWork> {
        let (plan, shape, query) = (self.plan, self.shape, self.plan.query_tokens() as f64);
        let mut work = self.probe(probed);
        let counts = plan.anchor_counts(self.world);
        for ((work, anchors), kept) in work.iter_mut().zip(counts).zip(plan.kept_counts(self.world)) {
            let (hidden, layers) = ((kept - anchors) as f64, probed.end as f64);
            // Scores are a second product of queries and keys: half of a pair's FLOPs.
            work.probe -= self.pair_flops() * query * hidden * (layers + probed.len() as f64 / 2.0);
            work.kv_bytes -= layers * hidden * shape.layer_kv_bytes() as f64;
            // One query attends to all rows of the layer and scores them: anchors. Their keys and
            // values are copied.
            work.probe += self.pair_flops() * 1.5 * kept as f64;
            work.kv_bytes += kept as f64 * shape.layer_kv_bytes() as f64;
            work.elementwise += 4.0 * layers * (anchors * shape.kv_width()) as f64;
        }
        work
    }

    /// The same, then the best chunks: in the scored layer the query attends to all of their rows,
    /// and scores them.
    pub(super) fn anchored_probe(&self, probed: &Range<usize>, anchors: Anchors) -> Vec<RankWork> {
        let (plan, query) = (self.plan, self.plan.query_tokens() as f64);
        let lengths: Vec<usize> = plan.candidates(&self.selected.order).into_iter().map(|(_, length)| length).collect();
        let scored = anchors.scored_of(&lengths, plan.budget) as f64 / plan.chunks.len().max(1) as f64;
        let everywhere = query * (plan.prefix_tokens() as f64 + (query + 1.0) / 2.0);
        let mut work = self.probe_of_anchors(probed);
        for (work, kept) in work.iter_mut().zip(plan.kept_counts(self.world)) {
            let rows = scored * kept as f64;
            work.probe += self.pair_flops() * (1.5 * query * rows + everywhere);
            work.kv_bytes += rows * self.shape.layer_kv_bytes() as f64;
            work.merged += query * (self.world - 1) as f64 * self.partial();
        }
        work
    }

    /// Pairs of rows and keys of a layer of the recompute and of its last one, for each rank, if
    /// only recomputed rows are seen.
    pub(super) fn sparse_pairs(&self, homes: &[Vec<Row>]) -> Vec<(f64, f64)> {
        let (plan, query, prefix) = (self.plan, self.plan.query_tokens(), self.plan.prefix_tokens());
        let mut rows: Vec<(Row, usize)> =
            homes.iter().enumerate().flat_map(|(home, rows)| rows.iter().map(move |&row| (row, home))).collect();
        rows.sort_by_key(|(row, _)| row.place);
        let (mut pairs, mut kept) = (vec![(0.0, 0.0); self.world], vec![0; self.world]);
        for (number, (row, home)) in rows.iter().enumerate() {
            kept[row.keeper] += 1;
            pairs[*home].0 += prefix as f64;
            match plan.exchange {
                Exchange::PassQ => pairs.iter_mut().zip(&kept).for_each(|(pairs, &kept)| pairs.0 += f64::from(kept)),
                Exchange::Replicate | Exchange::Selected => pairs[*home].0 += (number + 1) as f64,
            }
        }
        if plan.decodes_alone(self.world) {
            kept = (0..self.world).map(|rank| if rank == plan.owner { rows.len() as u32 } else { 0 }).collect();
        }
        for (rank, (pairs, kept)) in pairs.iter_mut().zip(kept).enumerate() {
            let own = if rank == plan.owner { prefix + query } else { 0 };
            let asked = if rank == plan.owner { (query * prefix) as f64 + triangle(query) } else { 0.0 };
            *pairs = (pairs.0 + query as f64 * f64::from(kept) + asked, f64::from(kept) + own as f64);
        }
        pairs
    }

    /// A pass of rows at their homes through all layers, with `seen` pairs in total on each rank,
    /// and with scored attention.
    fn measured(&self, homes: &[Vec<Row>], seen: &[f64]) -> Vec<RankWork> {
        let layers = self.shape.layers as f64;
        let rank = |(own, &seen): (&Vec<Row>, &f64)| {
            let rows = own.len() as f64;
            let pairs = seen + rows * self.plan.prefix_tokens() as f64;
            let mut work = self.prompt(own.len(), 0, 0.0, 0.0);
            work.products.iter_mut().for_each(|products| products.flops += rows * self.shape.layer_query_flops());
            work.attention = self.pair_flops() * layers * pairs;
            work.attending_rows = layers * rows;
            // Scores are a second product of queries and keys: half of a pair's FLOPs.
            work.probe = self.pair_flops() * layers * seen / 2.0;
            work.merged = layers * rows * (self.world - 1) as f64 * self.partial();
            work
        };
        homes.iter().zip(seen).map(rank).collect()
    }

    /// The rows whose drift is measured: the first layer with the whole context in sight, and later
    /// ones for ever fewer rows. The last one has keys and values only, unless attention is
    /// measured there.
    pub(super) fn drift(&self, drift: Drift) -> Vec<RankWork> {
        let shape = self.shape;
        let in_play = drifting(self.plan, self.world, shape, self.selected, drift);
        let before_attention = shape.layer_kv_flops() + shape.layer_query_flops();
        let rank = |rank: usize| {
            let mut work = RankWork { layers: drift.layers + 1, ..RankWork::default() };
            for (layer, homes) in in_play.iter().enumerate() {
                // The rows that reach this layer are compared, unless it is the first; then some of
                // them go on.
                let (came, went_on) = (&in_play[layer.saturating_sub(1)][rank], &homes[rank]);
                let flops = came.len() as f64 * before_attention + went_on.len() as f64 * shape.layer_finish_flops();
                let weight_bytes = self.layer_bytes(came.len());
                work.products.push(Products { rows: came.len(), flops, weight_bytes });
                work.attention += self.pair_flops() * went_on.iter().map(sees).sum::<f64>();
                work.attending_rows += went_on.len() as f64;
                work.elementwise += went_on.len() as f64 * shape.layer_elementwise();
            }
            let last: &[Row] = in_play.last().map_or(&[], |homes| &homes[rank]);
            let (rows, mut row_flops) = (last.len(), shape.layer_kv_flops());
            if drift.score == DriftScore::Attended {
                row_flops = before_attention;
                // The softmax's denominators take as long as attention; scores are a second product
                // of queries and keys. Both have enough rows that they run at attention's rate.
                work.attention += 1.5 * self.pair_flops() * last.iter().map(sees).sum::<f64>();
                work.attending_rows += 1.5 * rows as f64;
            }
            let weight_bytes = self.layer_bytes(rows);
            work.products.push(Products { rows, flops: rows as f64 * row_flops, weight_bytes });
            work
        };
        (0..self.world).map(rank).collect()
    }
}
