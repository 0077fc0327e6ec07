//! Kinds of measured work: the steps of prefill, with its kernels, model and communicator, prepared
//! for repeated runs.

use std::hint::black_box;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use tributary_comm::Communicator;
use tributary_kernels::{Kernels, Keys, Partial, Positions, cuda, gated, merge, rms_norm};
use tributary_model::{Attention, LayerAttention, Model, Progress, Qkv, Rows};

use crate::error::Result;

/// Rows of norms, activations and merges.
const ELEMENTWISE_ROWS: usize = 1024;

/// Layers of a pass: enough that their weights come from memory, not from a cache.
const LAYERS: usize = 8;

/// Numbers of an array beyond the caches, 8 bytes each.
const ARRAY: usize = 16 << 20;

/// Tokens of a plan.
const PLAN_TOKENS: usize = 8192;

/// Rows of a run in a pass: so few that their attention is little, and as many as a short passage
/// has.
pub const RUN_ROWS: usize = 64;

/// Something to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A pass of this number of rows through [`layers`] layers, in runs of [`RUN_ROWS`].
    Pass(usize),
    /// Attention of rows of one batch, each to those before it in its run.
    Runs {
        /// All of them.
        rows: usize,
        /// Those of a run.
        run: usize,
    },
    /// Attention of the last `queries` of `keys` rows.
    Attention {
        /// Rows that ask.
        queries: usize,
        /// All of them.
        keys: usize,
    },
    /// Two norms and an activation of 1024 rows.
    Elementwise,
    /// Merging partial results of 1024 rows.
    Merge,
    /// Reading memory, or on a device copying it.
    Memory,
    /// Gathering parts of this number of numbers.
    Gather(usize),
    /// Handing a plan out.
    Request,
}

impl What {
    /// The query's rows and the keys that they ask.
    pub const PROBE: What = What::Attention { queries: Self::PROBE_ROWS, keys: 8192 };
    const PROBE_ROWS: usize = 32;

    /// Its size, if its time grows with it: rows, or rows times the keys that each of them sees.
    pub fn size(self) -> Option<(Product, f64)> {
        match self {
            What::Pass(rows) => Some((Product::Weights, rows as f64)),
            What::Runs { rows, run } => Some((Product::Keys, rows as f64 * in_run(run))),
            What::Attention { queries, keys } if queries > 1 => {
                Some((Product::Keys, queries as f64 * before(queries, keys)))
            }
            _ => None,
        }
    }

    /// Whether its time cannot be derived from a smaller size: the weights are read for few rows as
    /// for many.
    pub fn is_small(self) -> bool {
        match self {
            What::Pass(rows) => rows <= RUN_ROWS,
            What::Runs { run, .. } => run <= RUN_ROWS,
            What::Attention { queries, .. } => queries <= What::PROBE_ROWS,
            _ => true,
        }
    }

    /// Whether ranks that do not work take part: theirs is the other end.
    pub fn is_of_all(self) -> bool {
        matches!(self, What::Gather(_) | What::Request)
    }
}

/// Kind of work whose time grows with its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Product {
    /// Of rows and weights.
    Weights,
    /// Of rows and keys.
    Keys,
}

/// Work that is repeated.
pub type Work<'a> = dyn FnMut(&mut dyn Communicator) -> Result<()> + 'a;

pub struct Bench<'a> {
    /// The model.
    pub model: &'a dyn Model,
    /// Its kernels.
    pub kernels: Kernels,
}

impl<'a> Bench<'a> {
    /// Prepares the measurements.
    ///
    /// # Errors
    /// Returns an error if the model or the device fails.
    pub fn prepare(&self, what: What) -> Result<Box<Work<'a>>> {
        match what {
            What::Pass(rows) => self.pass(rows),
            What::Runs { rows, run } => self.runs(rows, run),
            What::Attention { queries, keys } => self.attention(queries, keys),
            What::Elementwise => self.elementwise(),
            What::Merge => self.merge(),
            What::Memory => self.memory(),
            What::Gather(values) => self.gather(values),
            What::Request => Ok(self.request()),
        }
    }

    /// A pass of `rows` rows through a few layers, in runs so short that their attention is little.
    fn pass(&self, rows: usize) -> Result<Box<Work<'a>>> {
        let (model, kernels) = (self.model, self.kernels);
        let config = model.config();
        let ids: Vec<u32> = (0..rows).map(|row| (row % config.vocab) as u32).collect();
        let of_layers = model.layer_attention(RUN_ROWS)?;
        let runs = Runs { at: in_runs(rows, RUN_ROWS), kernels, of_layers, progress: Progress::default() };
        let layers = layers(model);
        Ok(Box::new(move |_| {
            black_box::<Rows>(model.layers(0..layers, model.embed(&ids)?, &mut runs.clone())?);
            Ok(())
        }))
    }

    /// Attention of rows in runs of `run` rows in one batch, each to those before it in its run.
    fn runs(&self, rows: usize, run: usize) -> Result<Box<Work<'a>>> {
        let (config, kernels) = (self.model.config(), self.kernels);
        let q = self.noise(rows, config.heads, 1)?;
        let (k, v) = (self.noise(rows, config.kv_heads, 2)?, self.noise(rows, config.kv_heads, 3)?);
        let of_layer = self.unwindowed(run)?;
        let at = in_runs(rows, run);
        let blocks = [Keys { k, v, at: at.clone() }];
        Ok(Box::new(move |_| {
            black_box(of_layer.attend(kernels, &q, &at, &blocks)?);
            Ok(())
        }))
    }

    /// The attention of a layer whose rows see all before them.
    fn unwindowed(&self, positions: usize) -> Result<LayerAttention> {
        Ok(LayerAttention { window: None, ..self.model.layer_attention(positions)?[0].clone() })
    }

    /// Numbers around 0, `[rows, heads, head_dim]`.
    fn noise(&self, rows: usize, heads: usize, key: u8) -> Result<Tensor> {
        self.random(&[rows, heads, self.model.config().head_dim], key, self.dtype()?)
    }

    /// The type of the rows.
    fn dtype(&self) -> Result<DType> {
        Ok(self.model.embed(&[0])?.hidden.dtype())
    }

    /// Numbers around 0.
    fn random(&self, shape: &[usize], key: u8, dtype: DType) -> Result<Tensor> {
        let device = self.model.device();
        match device {
            Device::Cpu => Ok(Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(dtype)?),
            _ => Ok(cuda::uniform([key; 32], 1.7, shape, dtype, device)?),
        }
    }

    fn attention(&self, queries: usize, keys: usize) -> Result<Box<Work<'a>>> {
        let (config, kernels) = (self.model.config(), self.kernels);
        let q = self.noise(queries, config.heads, 1)?;
        let (k, v) = (self.noise(keys, config.kv_heads, 2)?, self.noise(keys, config.kv_heads, 3)?);
        let of_layer = self.unwindowed(keys)?;
        let at_q = Positions::run((keys - queries) as u32, queries);
        let blocks = [Keys { k, v, at: Positions::run(0, keys) }];
        Ok(Box::new(move |_| {
            black_box(of_layer.attend(kernels, &q, &at_q, &blocks)?);
            Ok(())
        }))
    }

    fn elementwise(&self) -> Result<Box<Work<'a>>> {
        let config = self.model.config();
        let wide = |width: usize, key: u8| self.random(&[ELEMENTWISE_ROWS, width], key, self.dtype()?);
        let (x, gate, up) = (wide(config.hidden, 6)?, wide(config.mlp_width(), 7)?, wide(config.mlp_width(), 8)?);
        let (weight, eps, by) = (self.random(&[config.hidden], 9, DType::F32)?, config.norm_eps, config.gate);
        Ok(Box::new(move |_| {
            black_box(rms_norm(&rms_norm(&x, &weight, eps)?, &weight, eps)?);
            black_box(gated(&gate, &up, by)?);
            Ok(())
        }))
    }

    fn merge(&self) -> Result<Box<Work<'a>>> {
        let heads = self.model.config().heads;
        let partial = |key: u8| -> Result<Partial> {
            let out = self.noise(ELEMENTWISE_ROWS, heads, key)?;
            let lse = self.random(&[ELEMENTWISE_ROWS, heads], key, DType::F32)?;
            Ok(Partial { out, lse })
        };
        let (a, b) = (partial(4)?, partial(5)?);
        Ok(Box::new(move |_| {
            black_box(merge(&a, &b)?);
            Ok(())
        }))
    }

    fn memory(&self) -> Result<Box<Work<'a>>> {
        if !self.model.device().is_cpu() {
            let array = Tensor::zeros(2 * ARRAY, DType::F32, self.model.device())?;
            return Ok(Box::new(move |_| {
                black_box(array.copy()?);
                Ok(())
            }));
        }
        let array: Vec<u64> = (0..ARRAY as u64).collect();
        Ok(Box::new(move |_| {
            black_box(array.par_iter().copied().reduce(|| 0, u64::wrapping_add));
            Ok(())
        }))
    }

    fn gather(&self, values: usize) -> Result<Box<Work<'a>>> {
        let part = Tensor::zeros(values, DType::F32, self.model.device())?; // [values of this rank]
        Ok(Box::new(move |comm| {
            let rows = vec![values; comm.size()];
            black_box(comm.all_gather_v(&part, &rows)?);
            Ok(())
        }))
    }

    fn request(&self) -> Box<Work<'a>> {
        let model = self.model;
        Box::new(move |comm| {
            let plan = (comm.rank() == 0).then(|| vec![0; 4 * PLAN_TOKENS]);
            black_box(comm.broadcast_bytes(0, plan)?);
            black_box(model.layer_attention(PLAN_TOKENS.min(model.config().max_positions))?);
            Ok(())
        })
    }
}

/// Attention of a pass's rows to those before them in their run.
#[derive(Clone)]
struct Runs {
    at: Positions,
    kernels: Kernels,
    of_layers: Arc<[LayerAttention]>,
    progress: Progress,
}

impl Attention for Runs {
    type Error = tributary_model::Error;

    fn attend(&mut self, layer: usize, qkv: Qkv) -> tributary_model::Result<Partial> {
        let keys = [Keys { k: qkv.k, v: qkv.v, at: self.at.clone() }];
        self.of_layers[layer].attend(self.kernels, &qkv.q, &self.at, &keys)
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }
}

/// Positions of rows in runs of `run`, the last one perhaps shorter; runs do not see each other, as
/// chunks.
fn in_runs(rows: usize, run: usize) -> Positions {
    let at = |index: usize| ((index % run) as u32, (index / run) as u32);
    let (places, segments): (Vec<u32>, Vec<u32>) = (0..rows).map(at).unzip();
    Positions::new(places.clone(), places, segments)
}

/// Mean number of keys that a row sees in a run of `run` rows.
pub fn in_run(run: usize) -> f64 {
    (run as f64 + 1.0) / 2.0
}

/// Keys that the last `queries` of `keys` rows see in the mean: the first of them sees all before
/// them and itself.
pub fn before(queries: usize, keys: usize) -> f64 {
    (keys - queries) as f64 + in_run(queries)
}

/// Layers of a pass.
pub fn layers(model: &dyn Model) -> usize {
    LAYERS.min(model.config().layers)
}

/// Bytes that a run of [`What::Memory`] moves: read on a host, read and written on a device.
pub fn memory_bytes(on_host: bool) -> f64 {
    if on_host { (8 * ARRAY) as f64 } else { (2 * 8 * ARRAY) as f64 }
}

/// Numbers that a run of [`What::Elementwise`] and of [`What::Merge`] reads and writes.
pub fn elementwise_numbers(model: &dyn Model) -> (f64, f64) {
    let config = model.config();
    let merged = 3 * config.heads * config.head_dim;
    let each = |numbers: usize| (ELEMENTWISE_ROWS * numbers) as f64;
    (each(4 * config.hidden + 3 * config.mlp_width()), each(merged))
}
