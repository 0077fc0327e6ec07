//! Configuration of an engine, as plain values: model, intake of requests, ranks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use candle_core::DType;
use tributary_comm::nccl;
use tributary_coordinator::{ChunkPrefix, Chunking, Join, Prefix, TemplateValues, Tiling};
use tributary_kernels::Kernels;
use tributary_model::LoadFormat;

use crate::chunk_store::ChunkStoreConfig;
use crate::synthetic::Synthetic;

/// Configuration of an engine.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which model, and how it computes.
    pub model: ModelConfig,
    /// Intake of requests.
    pub intake: IntakeConfig,
    /// Which ranks there are.
    pub group: GroupConfig,
}

/// Which model, and how it computes.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// Hugging Face folder.
    pub folder: PathBuf,
    /// Source of weights.
    pub load_format: LoadFormat,
    /// Device of the ranks.
    pub device: DeviceKind,
    /// Memory of each GPU that weights, chunk caches, requests and NCCL's buffers may take
    /// together, in bytes; absent: nine tenths of the free memory.
    pub device_memory_bytes: Option<u64>,
    /// Type of weights, and of the KV cache unless that has its own.
    pub dtype: Dtype,
    /// Type of keys and values in caches, stores and messages.
    pub kv_dtype: KvDtype,
    /// Kernels that compute.
    pub kernels: Kernels,
    /// Folder of a small auxiliary model that reads the context for methods that need one.
    pub auxiliary: Option<PathBuf>,
    /// Folder of a small draft model with the same tokenizer, for evictions that need one.
    pub draft_model: Option<PathBuf>,
    /// Folders of its adapters.
    pub adapters: Vec<PathBuf>,
}

impl ModelConfig {
    /// Configuration of the auxiliary model in `folder`: on the host, in f32, from weights of the
    /// same kind.
    pub(crate) fn beside(&self, folder: &Path) -> Self {
        let (device, dtype, kv_dtype, device_memory_bytes) = (DeviceKind::Cpu, Dtype::F32, KvDtype::Auto, None);
        let (folder, auxiliary, draft_model, adapters) = (folder.to_owned(), None, None, Vec::new());
        Self { folder, device, dtype, kv_dtype, device_memory_bytes, auxiliary, draft_model, adapters, ..self.clone() }
    }
}

/// Device of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// On the host's cores.
    Cpu,
    /// On NVIDIA GPUs.
    Cuda,
}

/// Type of keys and values in caches, stores and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvDtype {
    /// That of the weights.
    Auto,
    /// 8 bits: E4M3, with a power of two as scale for each head of a row.
    Fp8,
}

/// Type of weights and of all numbers without a type of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// 16 bits, with f32's range.
    Bf16,
    /// 16 bits, with more digits and less range.
    F16,
}

impl Dtype {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
        }
    }

    /// As tensors have it.
    pub fn tensor(self) -> DType {
        match self {
            Dtype::F32 => DType::F32,
            Dtype::Bf16 => DType::BF16,
            Dtype::F16 => DType::F16,
        }
    }
}

/// Intake of requests.
#[derive(Debug, Clone)]
pub struct IntakeConfig {
    /// The shape of requests that are random tokens, not text: they need no tokenizer.
    pub synthetic: Option<Synthetic>,
    /// Largest number of pixels of a picture's file; the usual limit where absent.
    pub max_image_pixels: Option<u64>,
    /// Places at which the context is cut.
    pub chunking: Chunking,
    /// The tiles that pictures are cut into.
    pub tiling: Tiling,
    /// Tokens of a chunk where a service is asked without documents; a shorter one is one chunk.
    pub text_chunk_tokens: usize,
    /// Prefix before the first chunk.
    pub prefix: Prefix,
    /// Part of a prompt's prefix that chunks are prefilled after.
    pub chunk_prefix: ChunkPrefix,
    /// Whether the model's chat template is used.
    pub template: TemplateUse,
    /// Separator after each document.
    pub join: Join,
    /// Values that the chat template reads where a request does not say otherwise.
    pub template_kwargs: TemplateValues,
}

/// Whether the model's chat template is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateUse {
    /// Template, if the model has one.
    Auto,
    /// Never.
    None,
}

/// Which ranks there are, and how long they wait for each other.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    /// Transport of messages between ranks.
    pub transport: Transport,
    /// Whether ranks may share a GPU.
    pub allow_shared_gpu: bool,
    /// Number of multiprocessors of each GPU that attention leaves free while messages are in
    /// flight.
    pub message_multiprocessors: usize,
    /// Number of ranks; 1, or the launcher's, where absent.
    pub world: Option<usize>,
    /// Threads of each rank.
    pub threads: usize,
    /// Longest time that a rank may compute without progress, and that all ranks may wait for each
    /// other.
    pub collective_timeout: Duration,
    /// Longest silence of a process.
    pub heartbeat_timeout: Duration,
    /// Longest time of ranks for finding each other, and then for loading the model and agreeing.
    pub start_timeout: Duration,
    /// Bytes of chunks that each rank keeps at most; absent: a share of the free memory.
    pub chunk_cache_bytes: Option<u64>,
    /// Store of the ranks' chunk caches, if there is one.
    pub chunk_store: Option<ChunkStoreConfig>,
    /// Longest message between processes; a longer one goes in pieces.
    pub max_message_bytes: u64,
}

impl GroupConfig {
    /// Settings of NCCL.
    pub fn nccl(&self) -> nccl::NcclSettings {
        nccl::NcclSettings {
            start_timeout: self.start_timeout,
            allow_shared_gpu: self.allow_shared_gpu,
            message_multiprocessors: self.message_multiprocessors,
            unequal_gathers: nccl::UnequalGathers::ByHosts,
        }
    }
}

/// Transport of messages between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// MPI under a launcher, else as with `Local`; tensors between GPUs over NCCL.
    Auto,
    /// Ranks are threads of this process.
    Local,
    /// Ranks are processes, started by a launcher; tensors between GPUs over NCCL.
    Mpi,
    /// Tensors go from GPU to GPU over NCCL, all else as with `Auto`.
    Nccl,
}
