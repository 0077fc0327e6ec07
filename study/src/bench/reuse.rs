//! The part of a request that comes from the chunk caches, and the way in which it gets there.

use crate::schema::Cache;
use tributary_engine::RunConfig;
use tributary_planner::RequestSettings;
use tributary_protocol::{CHUNKS_ALONE, OrderFor};

/// The run with so much of its context from the chunk cache.
pub fn reuse(mut run_config: RunConfig, cache: Cache) -> RunConfig {
    run_config.settings.reuse = match cache {
        Cache::Cold => 0.0,
        Cache::Partial(share) => share,
        Cache::Warm | Cache::Disk | Cache::DiskDropped => 1.0,
    };
    run_config.settings.from_store = cache.is_stored();
    run_config
}

/// The run that leaves a request's chunks, or its prefix, in the chunk caches of the ranks that
/// `run_config` runs on.
pub fn primer(run_config: &RunConfig) -> RunConfig {
    let method = if run_config.settings.method.reuses_prefix() { run_config.settings.method } else { CHUNKS_ALONE };
    let settings = RequestSettings {
        method,
        packets: run_config.settings.chunk_packets(),
        ratio: None,
        reorder: None,
        order_for: OrderFor::All,
        reuse: 0.0,
        keep_chunks: true,
        from_store: false,
        ..run_config.settings.clone()
    };
    RunConfig { settings, ..run_config.clone() }
}
