//! The command line's options, in groups that commands share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use tributary_comm::process::PIECE_BYTES;
pub use tributary_coordinator::exchange_named as exchange;
use tributary_coordinator::layer_range as layers;
use tributary_coordinator::{
    Chunking, EvictionWish, Join, Keep, KeepPerChunk, Prefix, RequestSettings, eviction_named,
};
use tributary_engine::Synthetic;
use tributary_protocol::{
    Ape, Descriptor, Drift, DriftOf, Eviction, Exchange, Importance, Layout, OrderFor, Packets, Passing, Returns,
    SamKv, SamKvVariant, Sampling, Score, TraceHeads,
};

use crate::help;
use crate::template_kwargs::TemplateKwargs;
use crate::values::chunk_cache;
pub use crate::values::{seconds, size};

/// Which model, and how it computes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Hugging Face folder: config.json, safetensors weights, tokenizer.json
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Where weights come from; `dummy` draws them from --seed and needs a config.json only
    #[arg(long, value_enum, default_value_t = Load::Safetensors)]
    pub load_format: Load,
    /// Where ranks compute; cuda: one NVIDIA GPU a rank
    #[arg(long, value_enum, default_value_t = DeviceChoice::Cpu)]
    pub device: DeviceChoice,
    /// Memory of each GPU that weights, chunk caches, requests and NCCL's buffers may take together, such as 64GiB [default:
    /// nine tenths of what is free]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub device_memory: Option<u64>,
    /// Type of weights and KV cache; products are f32 on a CPU [default: f32, on a GPU bf16]
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// Kernels that compute: the fastest for the device, or the plain reference
    #[arg(long, value_enum, default_value_t = KernelChoice::Auto)]
    pub kernels: KernelChoice,
    #[arg(long, value_name = "DIR", help = help::aux_model())]
    pub aux_model: Option<PathBuf>,
    #[arg(long, value_name = "DIR", help = help::draft_model())]
    pub draft_model: Option<PathBuf>,
    #[arg(long = "adapter", value_name = "DIR", help = help::adapter())]
    pub adapters: Vec<PathBuf>,
}

/// Where ranks compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// On the host's cores
    Cpu,
    /// On NVIDIA GPUs
    Cuda,
}

impl DeviceChoice {
    /// The type of weights and KV cache where none is asked for.
    pub fn dtype(self) -> Dtype {
        match self {
            DeviceChoice::Cpu => Dtype::F32,
            DeviceChoice::Cuda => Dtype::Bf16,
        }
    }
}

/// Where weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// The folder's safetensors files
    Safetensors,
    /// Random numbers from the seed
    Dummy,
}

/// Type of weights and KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dtype {
    /// 32 bits
    F32,
    /// 16 bits, with f32's range
    Bf16,
    /// 16 bits, with more digits and less range
    F16,
}

/// Which kernels compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelChoice {
    /// The fastest for the device
    Auto,
    /// Candle operations: any device, the reference
    Plain,
}

/// How a request is read.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Request")]
pub struct IntakeArgs {
    /// Random tokens instead of text: CHUNKSxTOKENS[+QUERY], such as 16x512+32; needs no tokenizer
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["chunk", "prefix", "template"])]
    pub synthetic: Option<Synthetic>,
    /// Where the context is cut: documents, N tokens (with OVERLAP), or at a separator
    #[arg(long, value_name = "documents|N[:OVERLAP]|separator:TEXT", default_value = "documents")]
    pub chunk: Chunking,
    /// What stands before the first chunk, and is seen by all: a TEXT, the BOS token, or nothing
    #[arg(long, value_name = "TEXT|bos|none", default_value = "bos")]
    pub prefix: Prefix,
    /// The model's chat template, where it has one: its head is the prefix, its tail belongs to the query
    #[arg(long, value_enum, default_value_t = TemplateChoice::Auto)]
    pub template: TemplateChoice,
    /// Put this behind each document that does not end with it; '' joins them as they are
    #[arg(long, value_name = "TEXT", default_value = r"\n")]
    pub join: Join,
    /// Values that the chat template reads, as a JSON object such as '{"enable_thinking": false}'; a request's own come first
    #[arg(long, value_name = "JSON")]
    pub chat_template_kwargs: Option<TemplateKwargs>,
}

/// Whether the model's chat template is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TemplateChoice {
    /// Where the model has one
    Auto,
    /// Never
    None,
}

/// How the cache is filled.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Method")]
pub struct MethodArgs {
    #[arg(long, help = help::ratio())]
    pub ratio: Option<f64>,
    /// How attention becomes a score: Euclidean norm or sum over the query's rows
    #[arg(long, value_name = "norm|mass", default_value = "norm")]
    pub score: Score,
    /// Layers whose attention counts, such as 22..26 (without 26) [default: depth 0.55 to 0.65]
    #[arg(long, value_name = "FIRST..END", value_parser = layers)]
    pub score_layers: Option<(usize, usize)>,
    /// RoPE positions while scoring
    #[arg(long, value_name = "global|hl-hp|hl-tp|tl-tp", default_value = "global")]
    pub layout: Layout,
    /// Put chunks in ascending importance first, the best next to the query
    #[arg(long)]
    pub reorder: bool,
    /// A chunk's importance: the sum of its rows' scores, or its share of the best rows
    #[arg(long, value_name = "mass|selected", default_value = "mass")]
    pub importance: Importance,
    #[arg(long, value_name = "all|selection", default_value = "all", help = help::order_for())]
    pub order_for: OrderFor,
    /// Let rows of the layout's first chunk be selected, although they are exact as they are
    #[arg(long)]
    pub include_first_chunk: bool,
    /// What ranks send each other during recompute
    #[arg(long, value_name = "auto|replicate|pass-q|selected", value_parser = exchange, default_value = "auto")]
    pub exchange: ExchangeChoice,
    #[arg(long, value_name = "N", help = help::heads_per_gather())]
    pub heads_per_gather: Option<usize>,
    #[arg(long, value_name = "N", help = help::per_chunk())]
    pub per_chunk: Option<usize>,
    #[arg(long, value_name = "values|keys", default_value = "values", help = help::drift_of())]
    pub drift_of: DriftOf,
    #[arg(long, value_name = "N", default_value_t = 1, help = help::drift_layers())]
    pub drift_layers: usize,
    #[arg(long, value_name = "X", help = help::trace_alpha())]
    pub trace_alpha: Option<f32>,
    #[arg(long, value_name = "mean|sharpest:SHARE", help = help::trace_heads())]
    pub trace_heads: Option<TraceHeads>,
    #[arg(long, help = help::keep_order())]
    pub keep_order: bool,
    #[arg(long, value_name = "N", help = help::block_tokens())]
    pub block_tokens: Option<usize>,
    #[arg(long, value_name = "N", help = help::anchor_tokens())]
    pub anchor_tokens: Option<usize>,
    #[arg(long, value_name = "N", help = help::passing_tokens())]
    pub passing_tokens: Option<usize>,
    #[arg(long, value_name = "T", default_value_t = Ape::default().temperature, help = help::ape_temperature())]
    pub ape_temperature: f32,
    #[arg(long, value_name = "S", default_value_t = Ape::default().scale, help = help::ape_scale())]
    pub ape_scale: f32,
    #[arg(long, value_name = "small|large", default_value = "large", help = help::samkv_variant())]
    pub samkv_variant: SamKvVariant,
    #[arg(long, value_name = "N", default_value_t = SamKv::default().blocks, help = help::samkv_blocks())]
    pub samkv_blocks: usize,
    #[arg(long, value_name = "SHARE", default_value_t = SamKv::default().theta, help = help::samkv_theta())]
    pub samkv_theta: f32,
    #[arg(long, value_name = "N|N%[:METHOD]", help = help::keep_per_chunk())]
    pub keep_per_chunk: Option<KeepPerChunk>,
    #[arg(long, value_name = "METHOD", value_parser = eviction_named, help = help::evict())]
    pub evict: Option<Eviction>,
    /// With --evict: what each KV head keeps of the prompt in a layer, in rows or percent
    #[arg(long, value_name = "N|N%")]
    pub keep: Option<Keep>,
    /// With --evict: the last rows of the prompt whose attention is asked [default: 32, at most half of what is kept]
    #[arg(long, value_name = "N")]
    pub evict_window: Option<usize>,
}

/// An exchange, or the planner's choice.
pub type ExchangeChoice = Option<Exchange>;

/// Which ranks there are, and how long they wait for each other.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ranks")]
pub struct GroupArgs {
    /// Number of ranks; under a launcher it must be the launcher's [default: 1, or the launcher's]
    #[arg(long, visible_alias = "world", value_name = "N")]
    pub world_size: Option<usize>,
    /// Threads of each rank
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    #[command(flatten)]
    pub reach: ReachArgs,
}

/// What carries messages, how long ranks wait, and what each keeps.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ranks")]
pub struct ReachArgs {
    /// What carries messages between ranks; auto: mpi under a launcher such as mpirun, else local, and between GPUs nccl
    /// beside it
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,
    /// Let ranks share a GPU, for tests of function: no time measured so counts; with nccl two at most, and NCCL 2.30
    #[arg(long)]
    pub allow_shared_gpu: bool,
    /// Multiprocessors of each GPU (Hopper) that attention over many rows leaves alone while messages between ranks are under way;
    /// NCCL takes no more than these, unless it is 0
    #[arg(long, value_name = "N", default_value_t = MESSAGE_MULTIPROCESSORS)]
    pub message_multiprocessors: usize,
    /// Seconds that a rank may compute without progress (or ten times its longest step of that kind), and that all ranks may
    /// wait for each other, before the job ends
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 60)]
    pub collective_timeout: u64,
    /// mpi: seconds that a process may be silent before the job ends
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 10)]
    pub heartbeat_timeout: u64,
    /// Seconds that ranks may take to find each other, and then to load the model and to agree
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 120)]
    pub start_timeout: u64,
    /// Keys and values of chunks that each rank keeps for later requests, such as 4GiB; off: none [default: a quarter of the
    /// free memory, divided among the ranks of a host]
    #[arg(long, value_name = "SIZE|off", value_parser = chunk_cache)]
    pub chunk_cache: Option<u64>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// mpi: longest message in bytes; what is longer goes in pieces
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=i32::MAX as u64), default_value_t = PIECE_BYTES as u64)]
    pub max_message_bytes: u64,
}

/// Where chunks are kept that outlive the process.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chunk store")]
pub struct StoreArgs {
    /// Folder in which chunks are kept beyond the process, for later requests and later runs; ranks, hosts and jobs may share it
    #[arg(long, value_name = "DIR")]
    pub chunk_store: Option<PathBuf>,
    /// The most that it may hold, such as 200GiB; the least recently used chunks make room [default: no limit but the reserve]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "chunk_store")]
    pub chunk_store_size: Option<u64>,
    /// Room on its disk that stays free
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "2GiB")]
    pub chunk_store_reserve: u64,
    /// It is meant that others than its owner may write to the folder
    #[arg(long, requires = "chunk_store")]
    pub chunk_store_shared: bool,
    /// File with a secret, with which chunks are named and sealed: what somebody without it has written is of no use
    #[arg(long, value_name = "FILE", requires = "chunk_store")]
    pub chunk_store_key_file: Option<PathBuf>,
    /// Object store behind the folder: s3://BUCKET/PREFIX, with credentials and endpoint from the environment (AWS_..), or file:///DIR
    #[arg(long, value_name = "URL", requires = "chunk_store")]
    pub chunk_store_remote: Option<String>,
}

/// Where it runs and what it generates.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// Tokens to generate at most, the first included [default: 32; `serve`, where a request says nothing: 2048 of a chat, 16 of a
    /// text]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub max_tokens: Option<usize>,
    /// 0 takes the likeliest token [default: 0]
    #[arg(long, help_heading = "Run")]
    pub temperature: Option<f32>,
    /// Draw from the smallest set of tokens with at least this probability [default: 1]
    #[arg(long, help_heading = "Run")]
    pub top_p: Option<f32>,
    /// Seed of every draw: dummy weights, synthetic tokens, random selection, sampling
    #[arg(long, default_value_t = 0, help_heading = "Run")]
    pub seed: u64,
}

/// NCCL's kernels for messages take a few multiprocessors (channels); with as many left to them they need not wait for a kernel of
/// attention that keeps all others until it ends. 4 of 132 are 3 % of attention's rate while messages are under way.
const MESSAGE_MULTIPROCESSORS: usize = 4;

/// What carries messages between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// mpi under a launcher, else local; tensors between GPUs over nccl
    Auto,
    /// Ranks are threads of this process
    Local,
    /// Ranks are processes, started by a launcher; tensors between GPUs over nccl
    Mpi,
    /// Tensors go from GPU to GPU over NCCL, all else as with auto
    Nccl,
}

/// The settings of one method, from the options.
pub fn settings(
    method: &'static Descriptor,
    options: &MethodArgs,
    run: &RunArgs,
    world: usize,
    returns: Returns,
) -> RequestSettings {
    RequestSettings {
        method,
        ratio: options.ratio,
        score: options.score,
        score_layers: options.score_layers,
        layout: options.layout,
        reorder: options.reorder.then_some(options.importance),
        order_for: options.order_for,
        packets: Packets::IfAny,
        include_first_chunk: options.include_first_chunk,
        per_chunk: options.per_chunk,
        drift: Drift { of: options.drift_of, layers: options.drift_layers, ..Drift::default() },
        trace_alpha: options.trace_alpha,
        trace_heads: options.trace_heads,
        keep_order: options.keep_order,
        block_tokens: options.block_tokens,
        passing: Passing { anchor_tokens: options.anchor_tokens, passing_tokens: options.passing_tokens },
        samkv: SamKv { variant: options.samkv_variant, blocks: options.samkv_blocks, theta: options.samkv_theta },
        ape: Ape { temperature: options.ape_temperature, scale: options.ape_scale },
        heads_per_gather: options.heads_per_gather,
        exchange: options.exchange,
        world,
        owner: None,
        keep_per_chunk: options.keep_per_chunk,
        eviction: EvictionWish {
            method: options.evict,
            keep: options.keep,
            window: options.evict_window,
            at_most: false,
        },
        max_tokens: run.max_tokens.unwrap_or(MAX_TOKENS),
        sampling: sampling(run),
        timeout_ms: run.group.reach.collective_timeout.saturating_mul(1000),
        returns,
        // One request after the other without anything kept, unless the command says otherwise.
        reuse: 0.0,
        keep_chunks: false,
        cache_scope: None,
        from_store: false,
    }
}

/// Tokens of an answer where nobody says how many.
const MAX_TOKENS: usize = 32;

/// How tokens are drawn.
fn sampling(run: &RunArgs) -> Sampling {
    let usual = Sampling::default();
    Sampling {
        temperature: run.temperature.unwrap_or(usual.temperature),
        top_p: run.top_p.unwrap_or(usual.top_p),
        seed: run.seed,
        ..usual
    }
}
