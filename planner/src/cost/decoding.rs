//! Cost of a token after the first: its row on the owner, its attention on every rank that keeps a
//! part of its keys.

use tributary_protocol::Plan;
use tributary_protocol::deal::shards;

use super::bytes::{Flow, of_token};
use super::evicting::held_rows;
use super::work::{Products, RankWork};
use crate::ModelShape;

/// A token after the first, in the middle of those that the plan allows.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoding {
    /// One entry a rank.
    pub ranks: Vec<RankWork>,
    /// Transfers; empty if the owner holds all that it attends to.
    pub flows: Vec<Flow>,
}

impl Decoding {
    /// Counts a token of a plan for `world` ranks.
    pub fn new(plan: &Plan, world: usize, shape: &ModelShape) -> Self {
        let kept = kept(plan, world);
        let all: usize = kept.iter().sum();
        let rank = |(rank, keys): (usize, &usize)| {
            let owns = rank == plan.owner;
            let mut work = if owns { row(plan, world, shape) } else { RankWork::default() };
            // Which rank holds the keys in a window does not matter: each is counted a share.
            let keys = (shape.layers * keys) as f64 * shape.share_of_row(all as f64);
            work.probe = keys * 4.0 * shape.query_width() as f64;
            work.kv_bytes = keys * shape.layer_kv_bytes() as f64;
            work
        };
        let alone = plan.generates_alone(world);
        let flows = if alone { Vec::new() } else { of_token(plan, world, shape).to_vec() };
        Self { ranks: kept.iter().enumerate().map(rank).collect(), flows }
    }
}

/// All work of a row but its attention, on the rank that computes it.
fn row(plan: &Plan, world: usize, shape: &ModelShape) -> RankWork {
    let layers = shape.layers as f64;
    let layer_flops = shape.layer_kv_flops() + shape.layer_query_flops() + shape.layer_finish_flops();
    let layer_bytes = shape.read_bytes(shape.layer_matrix_parameters() as f64);
    let logits_bytes = shape.read_bytes((shape.vocab * shape.hidden) as f64);
    let products = |flops: f64, weight_bytes: f64| Products { rows: 1, flops, weight_bytes };
    let others = if plan.generates_alone(world) { 0 } else { world - 1 };
    RankWork {
        products: vec![
            products(layers * layer_flops, layers * layer_bytes),
            products(shape.logits_flops(), logits_bytes),
        ],
        elementwise: layers * shape.layer_elementwise(),
        merged: layers * others as f64 * 3.0 * shape.query_width() as f64,
        layers: shape.layers,
        ..RankWork::default()
    }
}

/// Keys that each rank keeps of the sequence, half of the tokens that may follow included.
fn kept(plan: &Plan, world: usize) -> Vec<usize> {
    let generated = plan.max_tokens / 2;
    let of_owner = |rank: usize, keys: usize| if rank == plan.owner { keys } else { 0 };
    if let Some(evict) = plan.evicts() {
        let alone = plan.generates_alone(world);
        let share = |(rank, held): (usize, usize)| match alone {
            true => of_owner(rank, evict.keep + generated),
            false => evict.keep * held / plan.total_rows().max(1) + of_owner(rank, generated),
        };
        return held_rows(plan, world).into_iter().enumerate().map(share).collect();
    }
    if plan.decodes_alone(world) {
        let context = plan.kept_at_most(world).iter().sum::<usize>();
        let all = plan.prefix_tokens() + context + plan.query_tokens() + generated;
        let all = if plan.method.is_exact() { plan.total_rows() + generated } else { all };
        return (0..world).map(|rank| of_owner(rank, all)).collect();
    }
    if let (true, Some(shards)) = (!plan.method.prefill.is_whole(), shards(plan, world)) {
        return shards.iter().enumerate().map(|(rank, rows)| rows.len() + of_owner(rank, generated)).collect();
    }
    let around = plan.prefix_tokens() + plan.query_tokens() + generated;
    plan.kept_at_most(world).into_iter().enumerate().map(|(rank, kept)| kept + of_owner(rank, around)).collect()
}

#[cfg(test)]
mod tests {
    use tributary_protocol::Exchange;

    use super::*;
    use crate::kit::planned;
    use crate::shape::tests::QWEN3_14B;

    #[test]
    fn a_token_sees_every_key_once_wherever_it_is_kept() {
        let of = |method: &str, exchange: Exchange| {
            let plan = Plan { max_tokens: 1, exchange, ..planned(method, 8192, 2048, 4, &QWEN3_14B) };
            (Decoding::new(&plan, 4, &QWEN3_14B), plan)
        };
        let pair_flops = 4.0 * QWEN3_14B.query_width() as f64 * QWEN3_14B.layers as f64;
        for (method, exchange, groups) in [
            ("full", Exchange::PassQ, 0),
            ("infoflow", Exchange::Replicate, 0),
            ("infoflow", Exchange::PassQ, 2 * QWEN3_14B.layers),
            ("ring", Exchange::PassQ, 2 * QWEN3_14B.layers),
        ] {
            let (token, plan) = of(method, exchange);
            let keys: f64 = token.ranks.iter().map(|rank| rank.probe).sum::<f64>() / pair_flops;
            assert_eq!(keys as usize, plan.total_rows(), "{method}");
            assert_eq!(token.flows.iter().map(|flow| flow.groups).sum::<usize>(), groups, "{method}");
            let computing = token.ranks.iter().filter(|rank| rank.probe > 0.0).count();
            assert_eq!(computing, if groups == 0 { 1 } else { 4 }, "{method}");
            // The weights of a row: all matrices of the layers, and the output's.
            let weights: f64 = token.ranks[plan.owner].products.iter().map(|products| products.weight_bytes).sum();
            assert!((0.9..=1.0).contains(&(weights / QWEN3_14B.weight_bytes as f64)), "{weights}");
        }
    }
}
