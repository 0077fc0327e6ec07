//! The command line's options, in groups that commands share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tributary_comm::process::PIECE_BYTES;
use tributary_coordinator::{ChunkPrefix, Chunking, ImageTiles, Join, Prefix};
use tributary_engine::{DeviceKind, Dtype, KvDtype, Synthetic, TemplateUse, Transport};
use tributary_kernels::Kernels;
use tributary_methods::{EvictChoice, Keep};
use tributary_planner::{EvictionWish, RequestSettings};
use tributary_protocol::tile::TileOrder;
use tributary_protocol::{Importance, Packets, REFERENCE, Returns, Sampling};

use crate::help;
use crate::named::{DEVICES, DTYPES, KERNELS, KV_DTYPES, TEMPLATES, TILE_ORDERS, TRANSPORTS, one_of};
use crate::template_kwargs::TemplateKwargs;
use crate::values::chunk_cache;
pub use crate::values::{seconds, size};

/// The model and its device, types and kernels.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Hugging Face folder: config.json, safetensors, tokenizer.json; or a .gguf file
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Source of the weights; `dummy` draws them from --seed and needs only config.json
    #[arg(long, value_enum, default_value_t = Load::Safetensors)]
    pub load_format: Load,
    /// Device that ranks compute on; cuda: one NVIDIA GPU a rank
    #[arg(long, value_parser = one_of(&DEVICES), default_value = "cpu")]
    pub device: DeviceKind,
    /// Memory limit of each GPU for weights, chunk caches, requests and NCCL's buffers together,
    /// such as 64GiB [default: nine tenths of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub device_memory: Option<u64>,
    /// Type of weights, and of keys and values unless --kv-dtype is given; a CPU without
    /// AVX512-BF16 multiplies in f32 [default: f32, on a GPU bf16]
    #[arg(long, value_parser = one_of(&DTYPES))]
    pub dtype: Option<Dtype>,
    /// Type of the KV cache, of stored chunks and of messages between ranks. fp8 (E4M3 with a scale
    /// per token and KV head) takes about half the bytes of bf16, and makes exact methods
    /// approximate
    #[arg(long, value_parser = one_of(&KV_DTYPES), default_value = "auto")]
    pub kv_dtype: KvDtype,
    /// Compute kernels: the fastest for the device, or the plain reference
    #[arg(long, value_parser = one_of(&KERNELS), default_value = "auto")]
    pub kernels: Kernels,
    #[arg(long, value_name = "DIR", help = help::aux_model())]
    pub aux_model: Option<PathBuf>,
    #[arg(long, value_name = "DIR", help = help::draft_model())]
    pub draft_model: Option<PathBuf>,
    #[arg(long = "adapter", value_name = "DIR", help = help::adapter())]
    pub adapters: Vec<PathBuf>,
}

/// Source of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// The safetensors files in the model's folder
    Safetensors,
    /// Random weights from the seed
    Dummy,
}

/// The most pixels that a picture's file may be allowed to have: 64 Mi.
const MAX_IMAGE_PIXELS: u64 = 64 << 20;

/// Reading of a request: chunks, prefix, template.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Request")]
pub struct IntakeArgs {
    /// Random tokens instead of text: CHUNKSxTOKENS[+QUERY], such as 16x512+32; needs no tokenizer
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["chunk", "image_tiles", "prefix", "chunk_prefix", "template"])]
    pub synthetic: Option<Synthetic>,
    /// Maximum pixels of a picture's file, width times height [default: 64 Mi]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_IMAGE_PIXELS))]
    pub max_image_pixels: Option<u64>,
    /// Chunk boundaries: at documents, every N tokens (with OVERLAP), or at a separator
    #[arg(long, value_name = "documents|N[:OVERLAP]|separator:TEXT", default_value = "documents")]
    pub chunk: Chunking,
    #[command(flatten)]
    pub tiles: TileArgs,
    /// Prefix before the first chunk, visible to all after it: a TEXT, the BOS token, or nothing
    #[arg(long, value_name = "TEXT|bos|none", default_value = "bos")]
    pub prefix: Prefix,
    /// Part of the prefix that a chunk sees while it is prefilled. system: all of it, with the
    /// system text. head: the tokens with which every prompt of the template begins, so that cached
    /// chunks serve any system text. N: the head and the first N tokens after it
    #[arg(long, value_name = "head|system|N", default_value = "system")]
    pub chunk_prefix: ChunkPrefix,
    /// Use of the model's chat template, if it has one: its head becomes the prefix, its tail part
    /// of the query
    #[arg(long, value_parser = one_of(&TEMPLATES), default_value = "auto")]
    pub template: TemplateUse,
    /// Text appended to each document that does not end with it; '' joins documents unchanged
    #[arg(long, value_name = "TEXT", default_value = r"\n")]
    pub join: Join,
    /// Variables of the chat template, as a JSON object such as '{"enable_thinking": false}'; a
    /// request's own values take precedence
    #[arg(long, value_name = "JSON")]
    pub chat_template_kwargs: Option<TemplateKwargs>,
}

/// Tiles of pictures.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Request")]
pub struct TileArgs {
    /// Cut every picture into K x K tiles, each a chunk of its own, K at most 8; 1: whole pictures
    #[arg(long, value_name = "K", default_value_t)]
    pub image_tiles: ImageTiles,
    /// Causal order of the tokens of a picture that --image-tiles cuts: that of the uncut picture,
    /// in which ratio 1 is exact, or tile after tile
    #[arg(long, value_parser = one_of(&TILE_ORDERS), default_value = "raster")]
    pub tile_order: TileOrder,
}

/// Options that stand in for those of a method's spec.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Method")]
pub struct MethodArgs {
    #[arg(long, help = help::ratio())]
    pub ratio: Option<f64>,
    /// Sort chunks by ascending importance, the most important one next to the query
    #[arg(long)]
    pub reorder: bool,
    #[arg(long, value_name = "METHOD[:window=N]", help = help::evict(), long_help = help::evict_in_full())]
    pub evict: Option<EvictChoice>,
    /// With --evict: prompt tokens that each KV head of a layer keeps, a number or a percentage
    #[arg(long, value_name = "N|N%")]
    pub keep: Option<Keep>,
}

/// The ranks and their timeouts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ranks")]
pub struct GroupArgs {
    /// Number of ranks; under a launcher it must equal the launcher's number [default: 1, or the
    /// launcher's]
    #[arg(long, visible_alias = "world", value_name = "N")]
    pub world_size: Option<usize>,
    /// Compute threads of each rank
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    #[command(flatten)]
    pub reach: ReachArgs,
}

/// Transport, timeouts and caches of the ranks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ranks")]
pub struct ReachArgs {
    /// Transport of messages between ranks. auto: mpi under a launcher such as mpirun, else local;
    /// between GPUs also nccl
    #[arg(long, value_parser = one_of(&TRANSPORTS), default_value = "auto")]
    pub backend: Transport,
    /// Let ranks share a GPU, for functional tests only: measured times are invalid. nccl: at most
    /// 2 ranks a GPU, from NCCL 2.30 on
    #[arg(long)]
    pub allow_shared_gpu: bool,
    /// Streaming multiprocessors of each Hopper GPU that attention over many tokens leaves free for
    /// messages between ranks. NCCL uses at most these; 0: NCCL chooses
    #[arg(long, value_name = "N", default_value_t = MESSAGE_MULTIPROCESSORS)]
    pub message_multiprocessors: usize,
    /// Seconds after which the job ends if a rank computes without progress, or if all ranks wait
    /// for each other. A step of computation may always take ten times as long as the rank's
    /// longest earlier step of its kind
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 60)]
    pub collective_timeout: u64,
    /// mpi: seconds that a process may be silent before the job ends
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 10)]
    pub heartbeat_timeout: u64,
    /// Seconds for all ranks to connect, and as many again to load the model and compare settings
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 120)]
    pub start_timeout: u64,
    /// Memory of each rank for keys and values of chunks that later requests may reuse, such as
    /// 4GiB; off: none [default: a quarter of the free memory, divided among the ranks of a host]
    #[arg(long, value_name = "SIZE|off", value_parser = chunk_cache)]
    pub chunk_cache: Option<u64>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// mpi: maximum message size in bytes; longer messages are split
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=i32::MAX as u64), default_value_t = PIECE_BYTES as u64)]
    pub max_message_bytes: u64,
}

/// The store of chunks that outlive the process.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chunk store")]
pub struct StoreArgs {
    /// Folder for chunks that outlive the process, for later requests and later runs; ranks, hosts
    /// and jobs may share it
    #[arg(long, value_name = "DIR")]
    pub chunk_store: Option<PathBuf>,
    /// Maximum size of the chunk store, such as 200GiB; the least recently used chunks are removed
    /// [default: limited only by --chunk-store-reserve]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "chunk_store")]
    pub chunk_store_size: Option<u64>,
    /// Disk space that the chunk store leaves free
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "2GiB")]
    pub chunk_store_reserve: u64,
    /// Accept a folder that users other than its owner may write to
    #[arg(long, requires = "chunk_store")]
    pub chunk_store_shared: bool,
    /// File with a secret that names and seals chunks; chunks written without it are not used
    #[arg(long, value_name = "FILE", requires = "chunk_store")]
    pub chunk_store_key_file: Option<PathBuf>,
    /// Object store behind the folder: s3://BUCKET/PREFIX, with credentials and endpoint from the
    /// environment (AWS_..), or file:///DIR
    #[arg(long, value_name = "URL", requires = "chunk_store")]
    pub chunk_store_remote: Option<String>,
}

/// Ranks and sampling.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    #[command(flatten)]
    pub group: GroupArgs,
    /// Maximum number of generated tokens, the first included [default: 32; `serve`, if a request
    /// sets none: 2048 for a chat, 16 for a text]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub max_tokens: Option<usize>,
    /// Sampling temperature; 0 takes the most likely token [default: 0]
    #[arg(long, help_heading = "Run")]
    pub temperature: Option<f32>,
    /// Sample from the smallest set of tokens with at least this total probability [default: 1]
    #[arg(long, help_heading = "Run")]
    pub top_p: Option<f32>,
    /// Seed of dummy weights, synthetic tokens, random selection and sampling
    #[arg(long, default_value_t = 0, help_heading = "Run")]
    pub seed: u64,
}

/// NCCL's kernels for messages take a few multiprocessors (channels); with as many left to them
/// they need not wait for a kernel of attention that keeps all others until it ends. 4 of 132 are 3
/// % of attention's rate while messages are under way.
const MESSAGE_MULTIPROCESSORS: usize = 4;

/// Settings of a request, from the options of the command. The method is the reference.
pub fn settings(options: &MethodArgs, run: &RunArgs, world: usize, returns: Returns) -> RequestSettings {
    RequestSettings {
        method: REFERENCE,
        ratio: options.ratio,
        reorder: options.reorder.then_some(Importance::Mass),
        packets: Packets::IfAny,
        world,
        eviction: EvictionWish {
            method: options.evict.map(|evict| evict.method),
            keep: options.keep,
            window: options.evict.and_then(|evict| evict.window),
            at_most: false,
        },
        max_tokens: run.max_tokens.unwrap_or(MAX_TOKENS),
        sampling: sampling(run),
        timeout_ms: run.group.reach.collective_timeout.saturating_mul(1000),
        returns,
        // One request after the other without anything kept, unless the command says otherwise.
        reuse: 0.0,
        ..RequestSettings::default()
    }
}

/// Default number of tokens of an answer.
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
