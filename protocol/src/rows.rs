//! Facts that follow from a plan and from the order of its chunks. Planner and ranks share them.
//! They are the places of rows, the ranks that keep them, the rows that may be selected, and the
//! time at which stale rows are sent.

use std::ops::Range;

use tributary_methods::{PictureRows, Prefill, REORDER, Selection, leading_counts};

use crate::{Chunk, Drift, Exchange, Plan, SamKv, Trace};

impl Plan {
    /// Chunk numbers in the request's own order.
    pub fn request_order(&self) -> Vec<u32> {
        (0..self.chunks.len() as u32).collect()
    }

    /// Chunk numbers in the order that was decided before the prompt is computed.
    pub fn prompt_order(&self) -> Vec<u32> {
        if self.order.is_empty() { self.request_order() } else { self.order.clone() }
    }

    /// The query's rows.
    pub fn query_rows(&self) -> Range<u32> {
        (self.prefix_tokens() + self.context_rows()) as u32..self.total_rows() as u32
    }

    /// Rows of the look-ahead, after every row that generation may take.
    pub fn look_ahead_rows(&self) -> Range<u32> {
        let first = (self.total_rows() + self.max_tokens) as u32;
        first..first + self.look_ahead_count() as u32
    }

    /// The numbers of all context rows.
    pub fn context_row_numbers(&self) -> Vec<u32> {
        (self.prefix_tokens() as u32..self.query_rows().start).collect()
    }

    /// The rows of each chunk, in the request's own order.
    pub fn chunk_rows(&self) -> Vec<Range<u32>> {
        let first = self.prefix_tokens() as u32;
        let rows = |(start, chunk): (usize, &Chunk)| first + start as u32..first + (start + chunk.rows()) as u32;
        self.chunk_starts().into_iter().zip(&self.chunks).map(rows).collect()
    }

    /// Context rows that a rank keeps, those of its chunks, in the order of its blocks.
    pub fn kept_by(&self, rank: usize) -> Vec<u32> {
        let kept = self.chunk_rows().into_iter().zip(&self.chunks).filter(|(_, chunk)| chunk.rank == rank);
        kept.flat_map(|(rows, _)| rows).collect()
    }

    /// Number of context rows that each rank keeps.
    pub fn kept_counts(&self, world: usize) -> Vec<usize> {
        self.counts(world, |_| true, Chunk::rows)
    }

    /// Number of context rows whose keys and values each rank holds in each layer and KV head
    /// before rows are selected: fewer than it keeps if chunks are compressed, none if they are
    /// not prefilled.
    pub fn held_counts(&self, world: usize) -> Vec<usize> {
        self.counts(world, |_| self.prefills_chunks(), Chunk::held_rows)
    }

    /// As [`held_counts`](Self::held_counts), of chunks from the chunk cache.
    pub fn held_warm_counts(&self, world: usize) -> Vec<usize> {
        self.counts(world, |chunk| self.prefills_chunks() && chunk.warm, Chunk::held_rows)
    }

    /// Whether ranks hold keys and values of chunks before rows are selected; if not, chunks only
    /// say which rank keeps a row.
    pub fn prefills_chunks(&self) -> bool {
        !matches!(self.method.prefill, Prefill::Selected(_))
    }

    /// Number of rows that stand for the chunks of each rank while the query ranks chunks; none if
    /// it does not.
    pub fn anchor_counts(&self, world: usize) -> Vec<usize> {
        let anchors = self.method.anchors();
        self.counts(world, |_| true, |chunk| anchors.map_or(0, |anchors| anchors.of_chunk(chunk.rows())))
    }

    /// Whether any chunk is compressed before it is cached.
    pub fn compresses(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.compress.is_some())
    }

    /// Number of context rows that each rank keeps, of chunks from the chunk cache.
    pub fn warm_counts(&self, world: usize) -> Vec<usize> {
        self.counts(world, |chunk| chunk.warm, Chunk::rows)
    }

    fn counts(&self, world: usize, counts: impl Fn(&Chunk) -> bool, of: impl Fn(&Chunk) -> usize) -> Vec<usize> {
        let mut rows = vec![0; world];
        for chunk in self.chunks.iter().filter(|chunk| counts(chunk)) {
            assert!(chunk.rank < world, "a chunk is on rank {} of {world}", chunk.rank);
            rows[chunk.rank] += of(chunk);
        }
        rows
    }

    /// The rank that keeps each row of prefix and context. Every rank has the prefix; here rank 0
    /// stands for them.
    pub fn keepers(&self) -> Vec<usize> {
        let prefix = std::iter::repeat_n(0, self.prefix_tokens());
        let context = self.chunks.iter().flat_map(|chunk| std::iter::repeat_n(chunk.rank, chunk.rows()));
        prefix.chain(context).collect()
    }

    /// Place of every row of prefix, context and query in the causal order, with chunks in `order`.
    ///
    /// # Panics
    /// As [`runs`](Self::runs).
    pub fn places(&self, order: &[u32]) -> Vec<u32> {
        let mut places: Vec<u32> = (0..self.total_rows() as u32).collect();
        let mut next = self.prefix_tokens() as u32;
        for row in self.runs(order).into_iter().flat_map(|(_, rows)| rows) {
            places[row as usize] = next;
            next += 1;
        }
        assert_eq!(next, self.query_rows().start, "rows of prefix and chunks in the order {order:?}");
        places
    }

    /// First row and number of tokens of each chunk whose tokens may be selected, chunks in
    /// `order`.
    /// Those are all but the first, whose rows are exact already, unless the plan includes it, a
    /// lead stands before it, rows of other tiles do, or rows of every chunk are dropped.
    pub fn candidates(&self, order: &[u32]) -> Vec<(u32, usize)> {
        let is_exact = self.lead.is_empty() && !self.begins_in_raster(order);
        let all = self.include_first_chunk || !is_exact || self.hides();
        self.token_runs(order, usize::from(!all))
    }

    /// First row and number of tokens of each chunk, chunks in `order` without the first `skipped`.
    fn token_runs(&self, order: &[u32], skipped: usize) -> Vec<(u32, usize)> {
        let rows = self.chunk_rows();
        let run = |&chunk: &u32| {
            let (rows, chunk) = (&rows[chunk as usize], &self.chunks[chunk as usize]);
            (rows.start + chunk.head_rows() as u32, chunk.ids.len())
        };
        order.iter().skip(skipped).map(run).collect()
    }

    /// The rows of all tokens of the context, ascending.
    pub fn token_rows(&self) -> Vec<u32> {
        let runs = self.token_runs(&self.request_order(), 0);
        runs.into_iter().flat_map(|(first, count)| first..first + count as u32).collect()
    }

    /// Parameters of the free probes before the selection; `None` if no row can be measured, or if
    /// there is only one group of chunks.
    pub fn traces(&self) -> Option<Trace> {
        let trace = self.method.evidence().and_then(|evidence| evidence.trace);
        trace.filter(|_| Trace::rows_of_round(self.budget) > 0 && self.groups().len() > 1)
    }

    /// Number of positions up to which rotations are made, of a model with `most`: a free probe's
    /// may be beyond those of the rows.
    pub fn positions(&self, most: usize) -> usize {
        let of_rows = self.total_rows() + 1 + self.max_tokens.max(self.passing_rows());
        let traced = self.traces().map_or(0, |_| self.traced_positions());
        of_rows.max(traced.min(most))
    }

    /// Number of positions that a free probe takes. After the prefix the longest group counts
    /// twice, since each group is placed as if another one preceded it.
    pub fn traced_positions(&self) -> usize {
        self.prefix_tokens() + 2 * self.longest_group_rows()
    }

    /// Maximum number of rows to measure in a pass before the selection.
    pub fn measured_rows(&self) -> usize {
        let divisor = self.method.evidence().and_then(|evidence| evidence.pass_divisor);
        divisor.map_or(0, |divisor| self.budget / divisor)
    }

    /// Whether chunks are reordered before the selection.
    pub fn reorders(&self) -> bool {
        self.reorder.is_some() && self.groups().len() > 1 && self.method.takes(&REORDER)
    }

    /// Whether the answer equals a full prefill's up to rounding.
    /// Exact methods always do, and those that compute a whole prompt whose chunks did not move.
    /// Others do if their chunks are whole and bare, and there is at most
    /// one chunk or every row is recomputed in place and sees all others, pictures line by line.
    /// Where chunks are not prefilled, rows see all others in every exchange.
    pub fn is_exact(&self) -> bool {
        let is_as_it_is = |chunk: &Chunk| chunk.around.is_none() && chunk.compress.is_none();
        let keeps_all = !self.drops() && self.chunks.iter().all(is_as_it_is);
        let selects = self.method.selects() && self.method.parallel().is_none() && keeps_all;
        let recomputes_all = self.selects_all()
            && (self.exchange != Exchange::Selected || !self.prefills_chunks())
            && !self.reorders()
            && !self.is_tile_after_tile()
            && self.traces().is_none();
        let is_alone = self.chunks.len() <= 1 && self.lead.is_empty();
        let is_in_order = self.method.prefill.is_whole() && self.prompt_order() == self.request_order();
        self.method.is_exact() || is_in_order || (selects && (is_alone || recomputes_all))
    }

    /// Whether every row that may be selected is, and recomputed as a full prefill computes it.
    fn selects_all(&self) -> bool {
        let lengths: Vec<usize> = self.candidates(&self.request_order()).into_iter().map(|(_, count)| count).collect();
        let takes_all = match self.method.selection() {
            // Budget that short chunks leave is not spent on long ones.
            Some(Selection::Leading { per_chunk }) => leading_counts(&lengths, self.budget, per_chunk) == lengths,
            _ => true,
        };
        let takes_pictures = self.method.picture_rows() == PictureRows::All || !self.has_pictures();
        self.budget >= self.context_tokens() && takes_all && takes_pictures
    }

    /// Whether the method drops context rows of this request. There is no excerpt of a single
    /// chunk, which is exact already.
    fn hides(&self) -> bool {
        !self.prefills_chunks() || self.method.sparse().is_some() || (self.method.excerpts() && self.chunks.len() > 1)
    }

    /// Whether context rows are dropped that are not selected. If every row is selected, none is,
    /// unless the method keeps parts of documents by their places.
    pub fn drops(&self) -> bool {
        let leaves_some = self.budget < self.context_tokens() || self.method.sparse().is_some();
        self.hides() && leaves_some && (self.budget > 0 || !self.prefills_chunks())
    }

    /// Whether stale rows go to every rank before some are recomputed: not if no row sees them.
    pub fn replicates_stale(&self) -> bool {
        let are_seen = self.prefills_chunks() && (!self.drops() || self.parts().is_some());
        self.exchange == Exchange::Replicate && are_seen
    }

    /// Parts kept of every document, if they are kept by their places and the rest is dropped.
    pub fn parts(&self) -> Option<SamKv> {
        self.method.sparse().filter(|_| self.budget > 0)
    }

    /// Maximum number of context rows that each rank keeps of its chunks where others are dropped;
    /// the number that it holds where none is.
    pub fn kept_at_most(&self, world: usize) -> Vec<usize> {
        if !self.drops() && self.prefills_chunks() {
            return self.held_counts(world);
        }
        let Some(parts) = self.parts() else {
            return self.kept_counts(world).into_iter().map(|rows| rows.min(self.budget)).collect();
        };
        let mut rows = vec![0; world];
        self.chunks.iter().for_each(|chunk| rows[chunk.rank] += parts.kept_of(chunk.ids.len()));
        rows
    }

    /// Rows whose prefilled state no pass after the selection sees: the `recomputed` ones, or all
    /// if the others are dropped.
    pub fn out_of_sight(&self, recomputed: &[u32]) -> Vec<u32> {
        if self.drops() { self.context_row_numbers() } else { recomputed.to_vec() }
    }

    /// Whether a full prefill is computed before the selection, as an oracle.
    pub fn asks_oracle(&self) -> bool {
        self.budget > 0 && self.method.evidence().is_some_and(|evidence| evidence.oracle)
    }

    /// Whether the query's attention decides which rows to select.
    pub fn probes(&self) -> bool {
        self.budget > 0 && self.method.probes_query()
    }

    /// Layers that a probe measures, of a model with `layers` layers; empty if the method does not
    /// probe the query.
    pub fn probed_layers(&self, layers: usize) -> Range<usize> {
        self.method.evidence().map_or(0..0, |evidence| evidence.layers.of(layers))
    }

    /// The rows that may be selected, with chunks in `order`, ascending.
    pub fn candidate_rows(&self, order: &[u32]) -> Vec<u32> {
        let runs = self.candidates(order);
        let mut rows: Vec<u32> = runs.into_iter().flat_map(|(first, count)| first..first + count as u32).collect();
        rows.sort_unstable();
        rows
    }

    /// Measurement of rows' drift before the selection, with chunks in `order`; `None` if no drift
    /// is measured.
    pub fn drifts(&self, order: &[u32]) -> Option<Drift> {
        let asks = || self.budget > 0 && self.candidates(order).iter().any(|&(_, count)| count > 0);
        self.method.drift().filter(|_| asks())
    }

    /// Number of slices in which stale rows are sent after the messages of probes.
    /// One follows each layer of each probe but the last, after which the scores come; one follows
    /// the cached rows that drift is measured by.
    /// `None` if rows are sent as they are computed, or at once because no probe follows.
    pub fn slices_behind_probes(&self, layers: usize) -> Option<usize> {
        if self.drifts(&self.request_order()).is_some() {
            return self.chunks.iter().all(|chunk| chunk.warm).then_some(1);
        }
        let probes = usize::from(self.reorders()) + usize::from(self.probes());
        let held_back = probes > 0 && self.chunks.iter().all(|chunk| chunk.warm);
        held_back.then(|| probes * self.probed_layers(layers).end.saturating_sub(1))
    }
}
