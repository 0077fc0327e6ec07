//! Memory of activations: numbers that are alive for all rows of a pass, and everything else of one
//! slice of them.

use tributary_protocol::{Activations, ExpertSizes};

use crate::ModelShape;
use crate::machine::MemoryOf;

/// Rows of a slice of a layer, on a CPU and on a device.
const SLICE_ROWS: usize = 2048;
const DEVICE_SLICE_ROWS: usize = 8192;

/// Parts of a call's queries of which a thread of a host works on one, and the numbers that it
/// takes at most, as the kernels have it; and the threads that are counted.
const TASKS_A_THREAD: usize = 8;
const TASK_NUMBERS: usize = 2048 * 64;
const THREADS: usize = 16;

/// Factor of activations: freed pieces of other sizes stay with the process. 1.0 to 1.15 was
/// measured where the allocator returns them at once.
const SLACK: f64 = 1.2;

/// Freed memory that a rank keeps on a host, where the command returns it after 30 s, as a share of
/// activations and in bytes at most. Keys and values that stay take up parts of a freed piece,
/// which then has no room for the next layer's. Up to 0.84 and 423 MB were measured; of the large
/// pieces of 512K tokens nothing was kept.
const KEPT: f64 = 0.9;

/// The same of a pass in slices, whose pieces are of few sizes and taken again: 0.46 was measured
/// above all that is alive, slack included.
const KEPT_OF_SLICES: f64 = 0.65;
const MOST_KEPT_BYTES: u64 = 512 << 20;

/// What is counted beside the bytes that are alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allowance {
    /// Nothing: the bytes that an allocator hands out.
    Alive,
    /// Freed memory that stays with the process.
    Resident,
}

impl Allowance {
    /// Bytes with the memory that the allocator does not return.
    pub(super) fn slack(self, bytes: u64) -> u64 {
        match self {
            Allowance::Alive => bytes,
            Allowance::Resident => (SLACK * bytes as f64) as u64,
        }
    }

    /// Freed activations that stay with a rank for a while, as this share of them.
    fn kept(self, bytes: u64, memory: MemoryOf, share: f64) -> u64 {
        match (self, memory) {
            (Allowance::Resident, MemoryOf::Host) => ((share * bytes as f64) as u64).min(MOST_KEPT_BYTES),
            (Allowance::Alive, _) | (_, MemoryOf::Device) => 0,
        }
    }
}

/// A pass of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    rows: usize,
    /// Numbers that are alive for all rows; absent if a layer is not cut.
    alive: Option<Activations>,
    /// Results of attention that are there at once: one, or partial ones and their sum.
    results: usize,
}

impl Pass {
    /// A pass of `rows` rows whose attention has one result.
    pub(super) fn of(rows: usize, alive: Activations) -> Self {
        Self { rows, alive: Some(alive), results: 1 }
    }

    /// A pass of `rows` rows that computes each layer as a whole, and merges results.
    pub(super) fn in_whole_layers(rows: usize) -> Self {
        Self { rows, alive: None, results: 3 }
    }

    /// The same with this number of results at once: partial ones and their sum.
    pub(super) fn merging(self, results: usize) -> Self {
        Self { results, ..self }
    }

    /// Numbers between layers.
    fn numbers(self, shape: &ModelShape, memory: MemoryOf) -> usize {
        let slice_rows = slice_rows(memory);
        let tasks = tasks(self.rows, shape, memory);
        let Some(alive) = self.alive.filter(|_| self.rows > slice_rows) else {
            return self.of_whole_layer(self.rows, shape, memory) + tasks;
        };
        let (query, result) = (shape.query_width(), shape.query_width() + shape.heads);
        let slice = self.of_whole_layer(slice_rows, shape, memory);
        let (stream, asking) = (self.rows * shape.hidden, self.rows * (shape.hidden + query + grown(shape)));
        let numbers = match alive {
            Activations::Stream => stream + slice,
            Activations::Queries => (asking + self.rows * result + 2 * slice_rows * result).max(asking + slice),
            Activations::Results => (asking + self.rows * self.results * result).max(asking + slice),
        };
        numbers + tasks
    }

    /// The share of its activations that stays with a rank for a while.
    fn kept(self, slice_rows: usize) -> f64 {
        match self.alive {
            Some(_) if self.rows > slice_rows => KEPT_OF_SLICES,
            _ => KEPT,
        }
    }

    /// Numbers of a layer of `rows` rows: the largest of the products before attention, attention,
    /// and the part after it.
    /// Attention has residual, query, and its results. The part after it has the residual before
    /// and after, attention's output, and the result in tiles and in one piece; in place of the
    /// piece, the wide rows of a tile.
    fn of_whole_layer(self, rows: usize, shape: &ModelShape, memory: MemoryOf) -> usize {
        let (hidden, query, kv) = (shape.hidden, shape.query_width(), shape.kv_width());
        let before = 2 * hidden + 2 * query + 4 * kv;
        let attention = hidden + query + grown(shape) + self.results * (query + shape.heads);
        let finish = 3 * hidden + query;
        let tile = rows.min(slice_rows(memory)) * (2 * hidden + wide_numbers(shape, memory));
        let after = rows * finish + tile.max(rows * hidden);
        (rows * before.max(attention)).max(after)
    }
}

/// Numbers of the packed queries and the results that threads of a host work on.
fn tasks(rows: usize, shape: &ModelShape, memory: MemoryOf) -> usize {
    match memory {
        MemoryOf::Host => 2 * (rows * shape.query_width() / TASKS_A_THREAD).min(THREADS * TASK_NUMBERS),
        MemoryOf::Device => 0,
    }
}

/// Numbers of a row's queries with their growth, if they grow.
fn grown(shape: &ModelShape) -> usize {
    if shape.queries_grow { shape.query_width() } else { 0 }
}

/// Numbers of a row within the MLP: two products and their gated product. (A host that multiplies
/// them in one pass keeps small parts of the two, and so takes less.) With experts, at most:
/// the sum, the router's logits (in the product's type and in f64, twice a number of f32), and in
/// an expert, which all rows of a slice may pass, a copy of the row, those of its MLP, and its
/// output; on a device also those of all experts that it passes.
fn wide_numbers(shape: &ModelShape, memory: MemoryOf) -> usize {
    let dense = 3 * shape.intermediate;
    shape.experts.map_or(dense, |experts| {
        let width = experts.width.max(experts.shared_width);
        let in_turn = 3 * shape.hidden + 5 * experts.count + 3 * width;
        match memory {
            MemoryOf::Host => dense.max(in_turn),
            MemoryOf::Device => dense.max(in_turn).max(at_once(shape.hidden, experts)),
        }
    })
}

/// Numbers of a row, which may have 16 bits, with all experts that it passes at once: the sum and
/// the router's logits in f32, in each expert three numbers of 32 bits in lists, and a copy of the
/// row with two products, or these two and their gated product, or that and the output.
fn at_once(hidden: usize, experts: ExpertSizes) -> usize {
    let within = (hidden + 2 * experts.width).max(3 * experts.width);
    2 * hidden + 2 * experts.count + experts.active * (6 + within)
}

/// Bytes of a pass in addition to keys and values.
pub(super) fn bytes(shape: &ModelShape, memory: MemoryOf, allowance: Allowance, pass: Pass) -> u64 {
    let bytes = number_bytes(shape, memory) * pass.numbers(shape, memory) as u64;
    allowance.slack(bytes) + allowance.kept(bytes, memory, pass.kept(slice_rows(memory)))
}

/// Bytes of a number between layers.
pub(super) fn number_bytes(shape: &ModelShape, memory: MemoryOf) -> u64 {
    match memory {
        MemoryOf::Host => 4,
        MemoryOf::Device => shape.dtype_bytes as u64,
    }
}

/// Maximum number of rows in a slice of a layer.
pub(super) fn slice_rows(memory: MemoryOf) -> usize {
    match memory {
        MemoryOf::Host => SLICE_ROWS,
        MemoryOf::Device => DEVICE_SLICE_ROWS,
    }
}
