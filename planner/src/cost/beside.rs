//! Costs of the models beside the main one: one reads contexts, one continues prompts.

use tributary_protocol::AuxiliaryCost;

use super::memory;
use crate::ModelShape;

/// Cost of a model that reads prompts of at most `longest_prompt` tokens, one by one. Its last
/// layer computes queries and keys alone.
pub fn reading(shape: &ModelShape, longest_prompt: usize) -> AuxiliaryCost {
    let layers = shape.layers as f64;
    let (before, after) = (shape.layer_kv_flops() + shape.layer_query_flops(), shape.layer_finish_flops());
    AuxiliaryCost {
        memory_bytes: memory::beside_bytes(shape, longest_prompt),
        row_flops: (layers * before + (layers - 1.0) * after) as u64,
        pair_flops: 4 * shape.query_width() as u64,
        row_elementwise: (layers * shape.layer_elementwise()) as u64,
        matrix_bytes: shape.read_bytes((layers * shape.layer_numbers_read(longest_prompt)).floor()) as u64,
        layers: shape.layers as u32,
    }
}

/// Cost of a model that reads a prompt and continues it, `rows` tokens together.
pub fn writing(shape: &ModelShape, rows: usize) -> AuxiliaryCost {
    let layers = shape.layers as u64;
    let of_layer = shape.layer_kv_flops() + shape.layer_query_flops() + shape.layer_finish_flops();
    let head = (shape.vocab * shape.hidden) as u64;
    AuxiliaryCost {
        memory_bytes: memory::beside_bytes(shape, rows) + rows as u64 * shape.kv_bytes(),
        row_flops: (layers as f64 * of_layer) as u64,
        pair_flops: 4 * shape.query_width() as u64,
        row_elementwise: (layers as f64 * shape.layer_elementwise()) as u64,
        matrix_bytes: shape.read_bytes((layers * shape.layer_matrix_parameters() + head) as f64) as u64,
        layers: shape.layers as u32,
    }
}
