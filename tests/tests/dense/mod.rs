//! A second implementation of compressed chunks, from their definition: every row of every head in
//! one dense matrix, attention in f64 by plain loops.

use candle_core::Tensor;
use std::sync::Arc;
use tributary_kernels::{Partial, Positions};
use tributary_model::{Attention, LayerAttention, Model, Progress, Qkv, Result, Rows};
use tributary_protocol::{Evict, EvictionEvidence, KeptRows, Plan, Source, SplitMix64};
use tributary_tests::adapters;

/// Keys that have their positions and values of every row of prefix, context and query:
/// `[layer][row][kv_head][dim]`.
type Numbers = Vec<Vec<Vec<Vec<f64>>>>;

/// The cache of a request whose chunks were prefilled and compressed.
pub struct Dense<'a> {
    model: &'a dyn Model,
    plan: &'a Plan,
    keys: Vec<Vec<Tensor>>,
    values: Numbers,
    /// The rows that are kept of the context.
    pub kept: KeptRows,
}

/// A pass of some rows.
struct Pass<'a, 'b> {
    dense: &'b mut Dense<'a>,
    rows: Vec<u32>,
    /// Position of every row.
    at: Vec<u32>,
    /// Which rows a row sees in a head of a layer.
    sees: &'b dyn Fn(usize, usize, u32, u32) -> bool,
    /// Attention that each row receives from each row: `[layer][kv_head][asking][row]`, the mean
    /// over the heads of a group.
    received: Vec<Vec<Vec<Vec<f64>>>>,
    of_layers: Arc<[LayerAttention]>,
    progress: Progress,
}

impl<'a> Dense<'a> {
    /// Prefills the prefix, and every chunk after the head, whose rows it drops unless it keeps
    /// them.
    pub fn new(model: &'a dyn Model, plan: &'a Plan) -> Self {
        let (layers, kv_heads, rows) = (model.config().layers, model.config().kv_heads, plan.total_rows());
        let kept = KeptRows(vec![vec![Vec::new(); kv_heads]; layers]);
        let nothing = Tensor::zeros((1, 1, 1), candle_core::DType::F32, &candle_core::Device::Cpu).expect("a number");
        let mut this = Self {
            model,
            plan,
            keys: vec![vec![nothing; rows]; layers],
            values: vec![vec![Vec::new(); rows]; layers],
            kept,
        };
        let (head, prefix) = (plan.head_tokens() as u32, plan.prefix_tokens() as u32);
        let places: Vec<u32> = (0..rows as u32).collect();
        this.pass((0..prefix).collect(), places, &|_, _, row, of| of <= row);
        for (chunk, own) in plan.chunks.iter().zip(plan.chunk_rows()) {
            let seen: Vec<u32> = (0..head).chain(own.clone()).collect();
            let mut at: Vec<u32> = vec![0; rows];
            seen.iter().enumerate().for_each(|(place, &row)| at[row as usize] = place as u32);
            let order = at.clone();
            let sees = |_: usize, _: usize, row: u32, of: u32| {
                (of < head || own.contains(&of)) && order[of as usize] <= order[row as usize]
            };
            let received = this.pass(seen.clone(), at, &sees).1;
            for (layer, received) in received.iter().enumerate() {
                for head in 0..kv_heads {
                    let tokens =
                        own.start + chunk.head_rows() as u32..own.start + (chunk.head_rows() + chunk.ids.len()) as u32;
                    let chosen: Vec<u32> = match &chunk.compress {
                        None => tokens.clone().collect(),
                        Some(evict) => chosen(evict, received, (layer, head), (&seen, own.clone(), tokens.clone())),
                    };
                    let around = |row: &u32| !tokens.contains(row) || chosen.contains(row);
                    this.kept.0[layer][head].extend(own.clone().filter(around));
                }
            }
        }
        this
    }

    /// Logits of the first token where these rows are recomputed.
    pub fn logits(mut self, selected: &[u32]) -> Vec<f32> {
        let plan = self.plan;
        let kept = self.kept.0.clone();
        let context = plan.context_row_numbers();
        let rows: Vec<u32> = selected.iter().copied().chain(plan.query_rows()).collect();
        let sees = |layer: usize, head: usize, row: u32, of: u32| {
            let there = !context.contains(&of) || selected.contains(&of) || kept[layer][head].contains(&of);
            there && of <= row
        };
        let hidden = self.pass(rows, (0..plan.total_rows() as u32).collect(), &sees).0;
        let last = hidden.narrow(0, hidden.dim(0).expect("rows") - 1, 1).expect("the last row");
        let logits = self.model.logits(&Rows::new(last)).expect("logits");
        logits.squeeze(0).and_then(|row| row.to_vec1()).expect("one row")
    }

    fn pass(
        &mut self,
        rows: Vec<u32>,
        at: Vec<u32>,
        sees: &dyn Fn(usize, usize, u32, u32) -> bool,
    ) -> (Tensor, Vec<Vec<Vec<Vec<f64>>>>) {
        let (model, sources) = (self.model, self.plan.sources());
        let adapters = adapters(model);
        let row = |&row: &u32| match sources[row as usize] {
            Source::Token(id) | Source::Picture { id, .. } => model.embed(&[id]).expect("an id").hidden,
            Source::Adapter { adapter, row } => {
                adapters.get(adapter).expect("an adapter").embeddings.narrow(0, row as usize, 1).expect("a row")
            }
        };
        let embedded = Tensor::cat(&rows.iter().map(row).collect::<Vec<_>>(), 0).expect("rows");
        let embedded = Rows::new(embedded);
        let of_layers = model.layer_attention(self.plan.total_rows()).expect("tables");
        let mut pass =
            Pass { dense: self, rows, at, sees, received: Vec::new(), of_layers, progress: Progress::default() };
        let hidden = model.layers(0..model.config().layers, embedded, &mut pass).expect("layers").hidden;
        (hidden, pass.received)
    }
}

/// A tensor `[rows, heads, dim]` as numbers.
fn numbers(x: &Tensor) -> Vec<Vec<Vec<f64>>> {
    x.to_dtype(candle_core::DType::F64).and_then(|x| x.to_vec3()).expect("numbers")
}

impl Attention for Pass<'_, '_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        let Self { dense, rows, at, .. } = self;
        for (index, row) in rows.iter().enumerate() {
            dense.keys[layer][*row as usize] = k.narrow(0, index, 1)?;
            dense.values[layer][*row as usize] = numbers(&v.narrow(0, index, 1)?).swap_remove(0);
        }
        let place = |row: u32| Positions::run(at[row as usize], 1);
        let turned = |x: &Tensor, row: u32| -> Result<Vec<Vec<f64>>> {
            Ok(numbers(&self.of_layers[layer].rope.apply(x, &place(row))?).swap_remove(0))
        };
        let there: Vec<u32> =
            (0..at.len() as u32).filter(|&row| !dense.values[layer][row as usize].is_empty()).collect();
        let keys =
            there.iter().map(|&row| turned(&dense.keys[layer][row as usize], row)).collect::<Result<Vec<_>>>()?;
        let (heads, head_dim, kv_heads) = (q.dim(1)?, q.dim(2)?, k.dim(1)?);
        let group = heads / kv_heads;
        let (mut out, mut received) = (Vec::new(), vec![vec![vec![0.0; at.len()]; rows.len()]; kv_heads]);
        for (index, &row) in rows.iter().enumerate() {
            let q = turned(&q.narrow(0, index, 1)?, row)?;
            for (head, q) in q.iter().enumerate() {
                let kv_head = head / group;
                let visible: Vec<usize> =
                    (0..there.len()).filter(|&key| (self.sees)(layer, kv_head, row, there[key])).collect();
                let score = |&key: &usize| -> f64 {
                    let dot: f64 = q.iter().zip(&keys[key][kv_head]).map(|(a, b)| a * b).sum();
                    (dot * f64::from(self.of_layers[layer].scale)).exp()
                };
                let weights: Vec<f64> = visible.iter().map(score).collect();
                let sum: f64 = weights.iter().sum();
                let mut mean = vec![0.0; head_dim];
                for (&key, weight) in visible.iter().zip(&weights) {
                    let of = there[key] as usize;
                    received[kv_head][index][of] += weight / sum / group as f64;
                    mean.iter_mut().zip(&dense.values[layer][of][kv_head]).for_each(|(m, v)| *m += weight / sum * v);
                }
                out.extend(mean.into_iter().map(|number| number as f32));
            }
        }
        self.received.push(received);
        Ok(Partial::of_output(Tensor::from_vec(out, (rows.len(), heads, head_dim), q.device())?)?)
    }
}

/// The tokens of a chunk that a KV head keeps; `received` is `[kv_head][asking][row]`, asking rows
/// are those of `seen`.
fn chosen(
    evict: &Evict,
    received: &[Vec<Vec<f64>>],
    (layer, head): (usize, usize),
    (seen, own, tokens): (&[u32], std::ops::Range<u32>, std::ops::Range<u32>),
) -> Vec<u32> {
    let of_rows = |asking: std::ops::Range<u32>, head: usize, token: u32| -> f64 {
        let asks = seen.iter().enumerate().filter(|(_, row)| asking.contains(row));
        asks.map(|(index, _)| received[head][index][token as usize]).sum()
    };
    let (count, trailer) = (tokens.len(), tokens.end < own.end);
    let window = if trailer { 0 } else { evict.window.min((evict.keep / 2).max(1)) };
    let window_rows = if trailer { tokens.end..own.end } else { tokens.end - window as u32..tokens.end };
    let score = |token: u32| -> f64 {
        match evict.descriptor().evidence {
            EvictionEvidence::Window => of_rows(window_rows.clone(), head, token),
            EvictionEvidence::LastRow => {
                (0..received.len()).map(|head| of_rows(own.end - 1..own.end, head, token)).sum()
            }
            EvictionEvidence::AllRows => of_rows(own.clone(), head, token),
            EvictionEvidence::Draw => drawn(evict.seed, [layer as u64, head as u64, u64::from(token - own.start)]),
            _ => 0.0,
        }
    };
    let (first, last) = match evict.descriptor().evidence {
        EvictionEvidence::Window => (0, window),
        EvictionEvidence::LastRow => (0, 1),
        EvictionEvidence::AllRows => (0, evict.keep - evict.keep / 2),
        EvictionEvidence::Places => (evict.sinks, evict.keep - evict.sinks),
        _ => (0, 0),
    };
    let competing = tokens.start + first as u32..tokens.end - last as u32;
    let scores: Vec<f64> = competing.clone().map(score).collect();
    let reach = if evict.descriptor().pools { evict.pooled / 2 } else { 0 };
    let pooled = |index: usize| {
        let around = &scores[index.saturating_sub(reach)..scores.len().min(index + reach + 1)];
        around.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    };
    let mut ranked: Vec<usize> = (0..scores.len()).collect();
    ranked.sort_by(|&a, &b| pooled(b).total_cmp(&pooled(a)).then(a.cmp(&b)));
    let best = ranked.into_iter().take(evict.keep - first - last).map(|index| competing.start + index as u32);
    let kept: Vec<u32> = (tokens.start..competing.start).chain(best).chain(competing.end..tokens.end).collect();
    assert!(kept.len() == evict.keep && kept.len() <= count, "{} of {count}", kept.len());
    kept
}

/// 24 bits of splitmix64 of a seed and some numbers.
fn drawn(seed: u64, numbers: [u64; 3]) -> f64 {
    let step = SplitMix64::mixed;
    let state = numbers.iter().fold(step(seed), |state, number| step(state.wrapping_add(*number)));
    (state >> 40) as f64
}
