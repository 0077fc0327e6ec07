//! The kit of the unit tests: a plan from sizes, a tiny model from a seed, a group of ranks.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tributary_comm::{Communicator, KeptFree, local};
use tributary_kernels::{Kernels, Partial};
use tributary_methods::{MethodSpec, ModelFacts};
use tributary_model::{Config, LayerAttention, LoadFormat, Model, Progress, Qkv, Result, Rows, load};
use tributary_protocol::tile::{Tile, TileOrder, areas};
use tributary_protocol::{
    Auxiliary, AuxiliaryCost, AuxiliaryPrompt, Chunk, Drift, Exchange, OrderFor, Picture, Pixels, Plan, PlannedMethod,
    Prefill, Returns, Sampling, Selection, Slices, TextHints,
};

use crate::context::Math;

/// A config.json of a tiny Llama.
pub fn config() -> serde_json::Value {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
    })
}

/// The model of a config.json, with random weights.
pub fn model(config: &serde_json::Value) -> Arc<dyn Model> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    load(folder.path(), LoadFormat::Dummy { seed: 5 }, DType::F32, &Device::Cpu).expect("a dummy model")
}

/// A plan's entry for an auxiliary model named `small`; the ids after those that stand for rows are
/// its query's.
pub fn auxiliary(ids: Vec<u32>, stands_for: Vec<Range<u32>>) -> Auxiliary {
    let query = ids.len() - stands_for.len();
    let prompts = vec![AuxiliaryPrompt { ids, query, stands_for }];
    Auxiliary { model: "small".to_owned(), prompts, written: 0, cost: AuxiliaryCost::default() }
}

/// Kernels and constants of a model, for positions up to a bound.
pub fn math(model: &dyn Model, positions: usize) -> Math {
    Math::of(model, positions, (Kernels::Auto, &Progress::default(), KeptFree::default())).expect("tables")
}

/// A method by its spec, for the tiny Llama.
pub fn method(spec: &str) -> PlannedMethod {
    let spec: MethodSpec = spec.parse().unwrap_or_else(|why| panic!("{why}"));
    spec.planned(ModelFacts::new(3, 2)).unwrap_or_else(|wrong| panic!("{wrong:?}"))
}

/// CacheBlend or KVShare with these parameters.
pub fn drifting(drift: Drift) -> PlannedMethod {
    PlannedMethod { prefill: Prefill::Chunks(Selection::Drift(drift)), ..method("cacheblend") }
}

/// A plan with chunks of the given lengths, chunk i on rank i mod `world`, and no budget.
pub fn plan(prefix: usize, chunks: &[usize], query: usize, world: usize) -> Plan {
    let mut next = 0;
    let mut ids = |count: usize| -> Vec<u32> {
        let draw = |_| {
            next = (next * 29 + 17) % 59;
            next
        };
        (0..count).map(draw).collect()
    };
    Plan {
        request: 0,
        prefix: ids(prefix),
        lead: Vec::new(),
        chunks: chunks
            .iter()
            .enumerate()
            .map(|(i, &length)| Chunk {
                ids: ids(length),
                pictures: Vec::new(),
                rank: i % world,
                warm: false,
                around: None,
                compress: None,
            })
            .collect(),
        query: ids(query),
        method: method("none"),
        owner: world - 1,
        exchange: Exchange::PassQ,
        budget: 0,
        order: Vec::new(),
        reused_rows: 0,
        continues: None,
        keep_sequence: false,
        windows_from: 0,
        hands_over: false,
        scope: None,
        keep_chunks: false,
        from_store: false,
        include_first_chunk: false,
        reorder: None,
        order_for: OrderFor::All,
        max_tokens: 1,
        eos: Vec::new(),
        sampling: Sampling::default(),
        timeout_ms: 30_000,
        slices: Slices::default(),
        returns: Returns::default(),
        auxiliary: Vec::new(),
        text: TextHints::default(),
        draft_model: None,
        look_ahead: None,
        evict: None,
    }
}

/// A model whose embeddings are altered.
pub struct Altered<F> {
    /// The underlying model.
    pub model: Arc<dyn Model>,
    /// From ids and their rows to the rows that the first layer reads.
    pub alter: F,
}

/// A model that cannot read one token: its rows are no numbers.
pub fn spoilt(model: Arc<dyn Model>, token: u32) -> Altered<impl Fn(&[u32], Rows) -> Result<Rows> + Send + Sync> {
    let alter = move |ids: &[u32], rows: Rows| {
        let spoil = |id: &u32| if *id == token { f32::NAN } else { 0.0 };
        let noise = Tensor::from_vec(ids.iter().map(spoil).collect::<Vec<_>>(), (ids.len(), 1), &Device::Cpu)?;
        let hidden = rows.hidden.broadcast_add(&noise)?;
        Ok(rows.with(hidden))
    };
    Altered { model, alter }
}

impl<F: Fn(&[u32], Rows) -> Result<Rows> + Send + Sync> Model for Altered<F> {
    fn config(&self) -> &Config {
        self.model.config()
    }

    fn device(&self) -> &Device {
        self.model.device()
    }

    fn dtype(&self) -> DType {
        self.model.dtype()
    }

    fn layer_attention(&self, positions: usize) -> Result<Arc<[LayerAttention]>> {
        self.model.layer_attention(positions)
    }

    fn embed(&self, ids: &[u32]) -> Result<Rows> {
        (self.alter)(ids, self.model.embed(ids)?)
    }

    fn qkv_of_last(&self, layer: usize, rows: &Rows, queries: usize) -> Result<Qkv> {
        self.model.qkv_of_last(layer, rows, queries)
    }

    fn queries(&self, layer: usize, rows: &Rows) -> Result<Tensor> {
        self.model.queries(layer, rows)
    }

    fn slice_rows(&self) -> usize {
        self.model.slice_rows()
    }

    fn finish(&self, layer: usize, rows: Rows, attended: Partial) -> Result<Rows> {
        self.model.finish(layer, rows, attended)
    }

    fn logits(&self, rows: &Rows) -> Result<Tensor> {
        self.model.logits(rows)
    }
}

/// A plan with a picture of `lines` x `columns` rows in one of its chunks, behind `first` of its
/// tokens.
pub fn with_picture(mut plan: Plan, chunk: usize, (first, lines, columns): (u32, u32, u32)) -> Plan {
    let picture = Picture { first, lines, columns, hash: [7; 32], tile: None, pixels: Pixels::default() };
    plan.chunks[chunk].pictures.push(picture);
    plan
}

/// A plan with the picture of one of its chunks in `grid` x `grid` tiles, each a chunk on a rank of
/// its own.
pub fn in_tiles(plan: &Plan, chunk: usize, grid: u8, order: TileOrder) -> Plan {
    let (page, mut tiles) = (&plan.chunks[chunk], plan.clone());
    let picture = &page.pictures[0];
    let count = areas(picture.lines, picture.columns, grid).len();
    let of = |number: usize| {
        let tile = Some(Tile { grid, number: number as u8, before: picture.first, order });
        let placed = Picture { first: if number == 0 { picture.first } else { 0 }, tile, ..picture.clone() };
        let after = if number + 1 == count { page.ids.len() - picture.range().end } else { 0 };
        Chunk { ids: vec![7; placed.range().end + after], pictures: vec![placed], rank: number, ..page.clone() }
    };
    tiles.chunks.splice(chunk..chunk + 1, (0..count).map(of));
    tiles
}

/// Runs `work` on every rank of a group of threads; its results in rank order.
pub fn on_ranks<T: Send>(world: usize, work: impl Fn(&mut dyn Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |seat: local::Seat| scope.spawn(|| work(&mut seat.take()));
        let threads: Vec<_> = local::seats(world).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("the rank does not panic")).collect()
    })
}
