//! A model for tests.

use tributary_planner::ModelShape;

/// The model of most tests, with weights of f32.
pub(crate) const DEMO: ModelShape = ModelShape {
    layers: 5,
    hidden: 128,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    intermediate: 256,
    experts: None,
    queries_grow: false,
    windows: None,
    vocab: 378,
    tied_embeddings: false,
    max_positions: 4096,
    weight_bytes: 3_341_824,
    dtype_bytes: 4,
    kv_in_eight_bits: false,
    vision: None,
};
