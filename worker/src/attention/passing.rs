//! Blocks of a sequence at their places in it; each sees itself, the anchor, and the rows that the
//! blocks before it pass on (APB, Huang et al. 2025, section 3). Each block has its own copy of the
//! query's rows. In every layer the block passes on the rows that these attend to most, the same
//! for all KV heads. The query's rows see the rows that every other block passes on.

use std::ops::Range;

use candle_core::Tensor;
use tributary_comm::{Communicator, Start};
use tributary_kernels::{DeviceList, Keys, Partial, Positions, Reduce, SHARED, cuda, gather_list, merge};
use tributary_methods::top_rows;
use tributary_model::{Attention, Progress, Qkv, SlicedAttention};

use super::anchored::KeptRows;
use super::rounds::start_all;
use super::slices::Slices;
use crate::context::Math;
use crate::error::{Error, Result};

/// A block, by the places of its rows in the pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassingBlock {
    /// Places of its rows, then of the query's.
    pub rows: Range<u32>,
    /// Places of the rows that it may pass on.
    pub candidates: Range<u32>,
    /// Places of the query's rows.
    pub query: Range<u32>,
    /// Number of rows that it passes on.
    pub passed: usize,
}

/// Rows: the anchor's, if this rank computes them for its blocks only; then each block's, followed
/// by the query's.
pub struct Passing<'a> {
    math: Math,
    comm: &'a mut dyn Communicator,
    at: Positions,
    blocks: Vec<PassingBlock>,
    /// Number of rows that each rank passes on.
    counts: Vec<usize>,
    kept: KeptRows,
    /// Whether this is the last layer, in which no row asks and none is passed on.
    last: bool,
    /// The current layer.
    now: Option<Now>,
    slices: Slices,
}

/// A layer whose queries come.
struct Now {
    keys: Keys,
    /// Places of the rows that this rank's blocks pass on, and number of blocks that have chosen.
    places: Vec<u32>,
    chosen: usize,
    /// The rows that all ranks pass on, after all blocks have chosen.
    passed: Vec<Passed>,
}

/// The rows that a rank passes on in a layer.
struct Passed {
    k: Tensor,
    v: Tensor,
    /// Numbers of the rows in the sequence.
    rows: Vec<u32>,
}

/// The rows of a rank's pass.
pub struct PassingRows {
    /// Their positions.
    pub at: Positions,
    /// Its blocks.
    pub blocks: Vec<PassingBlock>,
    /// Places of the kept rows.
    pub kept: Vec<u32>,
}

impl<'a> Passing<'a> {
    /// A pass over `rows`; in each layer rank r passes on `counts[r]` rows.
    pub fn new(math: Math, comm: &'a mut dyn Communicator, rows: PassingRows, counts: Vec<usize>) -> Self {
        let PassingRows { at, blocks, kept } = rows;
        assert_eq!(counts.len(), comm.size(), "ranks that pass rows on");
        let own: usize = blocks.iter().map(|block| block.passed).sum();
        assert_eq!(own, counts[comm.rank()], "rows that this rank passes on");
        let (kept, slices) = (KeptRows::new(kept), Slices::default());
        Self { math, comm, at, blocks, counts, kept, last: false, now: None, slices }
    }

    /// Keys and values of the kept rows, of every layer.
    pub fn into_layers(self) -> Vec<(Tensor, Tensor)> {
        self.kept.layers
    }

    /// Places of the rows that a block passes on: those that its query rows attend to most, given
    /// their queries and log-sum-exp so far.
    fn best(&self, layer: usize, block: &PassingBlock, (q, lse): (&Tensor, &Tensor), keys: &Keys) -> Result<Vec<u32>> {
        let candidates: Vec<u32> = block.candidates.clone().collect();
        if block.passed == candidates.len() {
            return Ok(candidates);
        }
        let at = at(&self.at, &block.query);
        let scores =
            self.math.layer(layer).scores(q, &at, &[part_of_keys(keys, &block.candidates)?], lse, Reduce::Mass)?;
        let scores = cuda::download(&scores)?.to_vec1::<f32>()?;
        Ok(top_rows(&candidates, |place| scores[(place - block.candidates.start) as usize], block.passed))
    }

    /// Gathers the passed rows of every rank on every rank, given the places of this rank's.
    fn pass_on(&mut self, keys: &Keys, places: &[u32]) -> Result<Vec<Passed>> {
        let list: DeviceList = places.to_vec().into();
        let (k, v) = (gather_list(&keys.k, &list)?, gather_list(&keys.v, &list)?);
        // Numbers of rows are below 2²⁴, so that f32 has them all.
        let numbers: Vec<f32> = places.iter().map(|&place| self.at.order()[place as usize] as f32).collect();
        let numbers = Tensor::from_vec(numbers, (places.len(), 1), keys.k.device())?;
        let starts = [&k, &v, &numbers].map(|send| Start::AllGather { send, rows: &self.counts });
        let [k, v, numbers] = start_all(self.comm, starts)?;
        let (k, v, numbers) = (self.comm.wait(k)?, self.comm.wait(v)?, self.comm.wait(numbers)?);
        let passed = |((k, v), numbers): ((Tensor, Tensor), Tensor)| {
            let numbers = cuda::download(&numbers)?.flatten_all()?.to_vec1::<f32>()?;
            Ok(Passed { k, v, rows: numbers.into_iter().map(|number| number as u32).collect() })
        };
        k.into_iter().zip(v).zip(numbers).map(passed).collect()
    }

    /// The rows that others pass on, as keys for one of this rank's blocks. The runs of this rank's
    /// other blocks are included.
    fn keys_for(&self, block: usize, passed: &[Passed]) -> Result<Vec<Keys>> {
        let mut keys = Vec::new();
        for (rank, passed) in passed.iter().enumerate() {
            let own = if rank == self.comm.rank() { &self.blocks[..] } else { &[] };
            let before: usize = own.iter().take(block).map(|block| block.passed).sum();
            let skipped = own.get(block).map_or(0, |block| block.passed);
            for run in [0..before, before + skipped..passed.rows.len()] {
                if run.is_empty() {
                    continue;
                }
                let rows = passed.rows[run.clone()].to_vec();
                let segments = vec![SHARED; rows.len()];
                let run = run.start as u32..run.end as u32;
                let (k, v) = (part(&passed.k, &run)?, part(&passed.v, &run)?);
                keys.push(Keys { k, v, at: Positions::new(rows.clone(), rows, segments) });
            }
        }
        Ok(keys)
    }
}

/// A caller's mistake.
const NOT_TAKEN: Error = Error::Bug("queries come after the keys of their layer");

impl Passing<'_> {
    /// The next block chooses the rows that it passes on, by its query rows' queries and their
    /// log-sum-exp. After the last one, all ranks pass rows on.
    fn choose(&mut self, layer: usize, q: &Tensor, lse: &Tensor) -> Result<()> {
        let mut now = self.now.take().ok_or(NOT_TAKEN)?;
        now.places.extend(self.best(layer, &self.blocks[now.chosen], (q, lse), &now.keys)?);
        now.chosen += 1;
        if now.chosen == self.blocks.len() {
            now.passed = self.pass_on(&now.keys, &now.places)?;
        }
        self.now = Some(now);
        Ok(())
    }

    /// The attention `own` of the queries `q` of the rows `rows` to this rank's rows, merged with
    /// that to the rows that other blocks pass on.
    fn with_passed(&self, layer: usize, (q, rows): (&Tensor, Range<usize>), own: &Partial) -> Result<Partial> {
        let passed = &self.now.as_ref().ok_or(NOT_TAKEN)?.passed;
        let rows = rows.start as u32..rows.end as u32;
        let first = self.blocks.first().map_or(0, |block| block.rows.start);
        let within = |run: &Range<u32>| run.start.clamp(rows.start, rows.end)..run.end.clamp(rows.start, rows.end);
        let of = |x: &Tensor, run: &Range<u32>| part(x, &(run.start - rows.start..run.end - rows.start));
        let own_of = |run: &Range<u32>| own.rows((run.start - rows.start) as usize, run.len());
        let mut parts = vec![own_of(&within(&(0..first)))?];
        for (index, block) in self.blocks.iter().enumerate() {
            let run = within(&block.rows);
            if run.is_empty() && !block.rows.is_empty() {
                continue;
            }
            let found = own_of(&run)?;
            let keys = self.keys_for(index, passed)?;
            parts.push(match keys.is_empty() {
                true => found,
                false => merge(&found, &self.math.layer(layer).attend(&of(q, &run)?, &at(&self.at, &run), &keys)?)?,
            });
        }
        Ok(Partial::below_each_other(&parts)?)
    }
}

impl Attention for Passing<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        self.take(layer, k, v)?;
        let Some(now) = &self.now else { return Ok(Partial::of_output(q)?) };
        let own = self.math.layer(layer).attend(&q, &self.at, std::slice::from_ref(&now.keys))?;
        for index in 0..self.blocks.len() {
            let query = self.blocks[index].query.clone();
            self.choose(layer, &part(&q, &query)?, &part(&own.lse, &query)?)?;
        }
        let out = self.with_passed(layer, (&q, 0..q.dim(0)?), &own)?;
        self.end(layer)?;
        Ok(out)
    }

    fn in_slices(&mut self) -> Option<&mut dyn SlicedAttention<Error = Error>> {
        Some(self)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        self.last = true;
        0
    }
}

impl SlicedAttention for Passing<'_> {
    type Error = Error;

    fn take(&mut self, _layer: usize, k: Tensor, v: Tensor) -> Result<()> {
        self.kept.keep(&k, &v)?;
        if self.last {
            return Ok(());
        }
        let keys = Keys { k, v, at: self.at.clone() };
        // Without a block this rank passes nothing on, but the others do.
        let passed = if self.blocks.is_empty() { self.pass_on(&keys, &[])? } else { Vec::new() };
        self.now = Some(Now { keys, places: Vec::new(), chosen: 0, passed });
        Ok(())
    }

    /// The query's rows of each block decide on the rows that it passes on.
    fn ahead(&mut self) -> Vec<Range<usize>> {
        if self.last {
            return Vec::new();
        }
        self.blocks.iter().map(|block| block.query.start as usize..block.query.end as usize).collect()
    }

    fn take_ahead(&mut self, layer: usize, q: Tensor) -> Result<()> {
        let now = self.now.as_ref().ok_or(NOT_TAKEN)?;
        let at = at(&self.at, &self.blocks[now.chosen].query);
        let lse = self.math.layer(layer).attend(&q, &at, std::slice::from_ref(&now.keys))?.lse;
        self.choose(layer, &q, &lse)
    }

    fn slice(&mut self, layer: usize, q: Tensor, rows: Range<usize>) -> Result<Partial> {
        let keys = self.now.as_ref().ok_or(NOT_TAKEN)?.keys.clone();
        let own = self.slices.attend(self.math.layer(layer), (&q, rows.clone()), &self.at, &[keys])?;
        self.with_passed(layer, (&q, rows), &own)
    }

    fn end(&mut self, _layer: usize) -> Result<()> {
        self.now = None;
        Ok(())
    }
}

/// Some rows of a tensor.
fn part(tensor: &Tensor, rows: &Range<u32>) -> Result<Tensor> {
    Ok(tensor.narrow(0, rows.start as usize, rows.len())?)
}

fn at(all: &Positions, rows: &Range<u32>) -> Positions {
    all.select(&rows.clone().collect::<Vec<_>>())
}

fn part_of_keys(keys: &Keys, rows: &Range<u32>) -> Result<Keys> {
    Ok(Keys { k: part(&keys.k, rows)?, v: part(&keys.v, rows)?, at: at(&keys.at, rows) })
}
