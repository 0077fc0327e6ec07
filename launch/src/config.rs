//! From the command line's options to the engine's configuration.

use std::time::Duration;

use tributary_coordinator::{TEXT_CHUNK_TOKENS, Tiling};
use tributary_engine::{ChunkStoreConfig, Config, GroupConfig, IntakeConfig, ModelConfig};
use tributary_model::LoadFormat;

use crate::args::{GroupArgs, IntakeArgs, Load, ModelArgs, ReachArgs, RunArgs, StoreArgs, TileArgs};
use crate::named::usual_dtype;

/// The engine's configuration, from the options.
pub fn config(model: &ModelArgs, intake: &IntakeArgs, run: &RunArgs) -> Config {
    Config { model: model.config(run.seed), intake: intake.into(), group: (&run.group).into() }
}

impl ModelArgs {
    /// Configuration of the model; `seed` is that of dummy weights.
    pub fn config(&self, seed: u64) -> ModelConfig {
        ModelConfig {
            folder: self.model.clone(),
            load_format: self.load_format.with_seed(seed),
            device: self.device,
            device_memory_bytes: self.device_memory,
            dtype: self.dtype.unwrap_or(usual_dtype(self.device)),
            kv_dtype: self.kv_dtype,
            kernels: self.kernels,
            auxiliary: self.aux_model.clone(),
            draft_model: self.draft_model.clone(),
            adapters: self.adapters.clone(),
        }
    }
}

impl Load {
    /// With the seed of random weights.
    fn with_seed(self, seed: u64) -> LoadFormat {
        match self {
            Load::Safetensors => LoadFormat::Safetensors,
            Load::Dummy => LoadFormat::Dummy { seed },
        }
    }
}

impl From<&IntakeArgs> for IntakeConfig {
    fn from(args: &IntakeArgs) -> Self {
        let (synthetic, chunking, template) = (args.synthetic, args.chunk.clone(), args.template);
        let tiling = (&args.tiles).into();
        let (prefix, chunk_prefix) = (args.prefix.clone(), args.chunk_prefix);
        let (join, template_kwargs) = (args.join.clone(), args.chat_template_kwargs.clone().unwrap_or_default().0);
        Self {
            synthetic,
            max_image_pixels: args.max_image_pixels,
            chunking,
            tiling,
            text_chunk_tokens: TEXT_CHUNK_TOKENS,
            prefix,
            chunk_prefix,
            template,
            join,
            template_kwargs,
        }
    }
}

impl From<&TileArgs> for Tiling {
    fn from(args: &TileArgs) -> Self {
        Self { tiles: args.image_tiles, order: args.tile_order }
    }
}

impl From<&GroupArgs> for GroupConfig {
    fn from(args: &GroupArgs) -> Self {
        args.reach.group(args.world_size, args.threads)
    }
}

impl ReachArgs {
    /// Configuration of the ranks: their number, where known, and the threads of each.
    pub fn group(&self, world: Option<usize>, threads: usize) -> GroupConfig {
        GroupConfig {
            transport: self.backend,
            allow_shared_gpu: self.allow_shared_gpu,
            message_multiprocessors: self.message_multiprocessors,
            world,
            threads,
            collective_timeout: Duration::from_secs(self.collective_timeout),
            heartbeat_timeout: Duration::from_secs(self.heartbeat_timeout),
            start_timeout: Duration::from_secs(self.start_timeout),
            chunk_cache_bytes: self.chunk_cache,
            max_message_bytes: self.max_message_bytes,
            chunk_store: self.store.config(),
        }
    }
}

impl StoreArgs {
    /// Configuration of the store.
    pub fn config(&self) -> Option<ChunkStoreConfig> {
        let Self { chunk_store_size: most_bytes, chunk_store_reserve, chunk_store_shared, .. } = *self;
        self.chunk_store.clone().map(|folder| ChunkStoreConfig {
            folder,
            most_bytes,
            reserve_bytes: chunk_store_reserve,
            is_shared: chunk_store_shared,
            key_file: self.chunk_store_key_file.clone(),
            remote: self.chunk_store_remote.clone(),
        })
    }
}
