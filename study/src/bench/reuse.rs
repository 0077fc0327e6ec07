//! What of a request comes from the chunk caches, and how it gets there.

use crate::schema::Cache;
use tributary_coordinator::RequestSettings;
use tributary_engine::Way;
use tributary_protocol::CHUNKS_ALONE;

/// A way with so much of its context from the chunk cache.
pub fn reuse(mut way: Way, cache: Cache) -> Way {
    way.settings.reuse = match cache {
        Cache::Cold => 0.0,
        Cache::Partial(share) => share,
        Cache::Warm => 1.0,
    };
    way
}

/// The way that leaves a request's chunks in the chunk caches of the ranks that `way` runs on.
pub fn primer(way: &Way) -> Way {
    let settings = RequestSettings {
        method: CHUNKS_ALONE,
        ratio: None,
        reorder: None,
        reuse: 0.0,
        keep_chunks: true,
        ..way.settings.clone()
    };
    Way { settings, ..way.clone() }
}
