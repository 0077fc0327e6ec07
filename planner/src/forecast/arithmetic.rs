//! Seconds of a rank's arithmetic at its rates, and of the order of a step.

use super::profile::{Profile, RankRates};
use crate::ModelShape;
use crate::cost::{Products, RankWork};
use crate::machine::MemoryOf;

/// Seconds of a rank's own arithmetic.
pub(super) fn work_s(work: &RankWork, rank: &RankRates, shape: &ModelShape) -> f64 {
    let products: f64 = work.products.iter().map(|products| products_s(products, rank)).sum();
    let probe = (work.probe / rank.probe_flops_per_s).max(work.kv_bytes / rank.memory_bytes_per_s);
    // Ranks on a host compute in f32, those on a device in the type of the weights.
    let (number_bytes, on_device) = match rank.memory_of {
        MemoryOf::Host => (4.0, false),
        MemoryOf::Device => (shape.dtype_bytes as f64, true),
    };
    let elementwise_s =
        number_bytes * work.elementwise / rank.elementwise_bytes_per_s.unwrap_or(rank.memory_bytes_per_s);
    let merged_s = number_bytes * work.merged / rank.merge_bytes_per_s.unwrap_or(rank.memory_bytes_per_s);
    let (seconds, host_s) = (
        products + attention_s(work, rank, shape) + probe + elementwise_s + merged_s,
        work.layers as f64 * rank.layer_s,
    );
    // A device works while its host starts the next step.
    if on_device { seconds.max(host_s) } else { seconds + host_s }
}

/// Seconds of attention of many rows.
pub(super) fn attention_s(work: &RankWork, rank: &RankRates, shape: &ModelShape) -> f64 {
    let pair_flops = 4.0 * shape.query_width() as f64;
    let rate = rank.attention_by_keys.at(work.mean_keys(pair_flops));
    work.attention / rate.unwrap_or(rank.attention_flops_per_s)
}

fn products_s(products: &Products, rank: &RankRates) -> f64 {
    let Products { rows, flops, weight_bytes } = *products;
    match rank.gemm_by_rows.at(rows as f64) {
        Some(flops_per_s) => flops / flops_per_s,
        None => flops / rank.gemm_flops_per_s + weight_bytes / rank.memory_bytes_per_s,
    }
}

/// Seconds of the order of a step, and of its answer.
pub(super) fn order_s(profile: &Profile, world: usize) -> f64 {
    let link = profile.between.as_ref().filter(|_| profile.hosts(world) > 1);
    if world > 1 { 2.0 * link.unwrap_or(&profile.inside).latency_s } else { 0.0 }
}
