//! Cost of an eviction after the first token: the rows that attend to the filled cache, their
//! traffic and the scores', and the kept rows' transfer to the owner.
//!
//! W ranks; N rows of prompt, N_r of them on rank r; a attending rows, of which rank r runs a_r; C
//! rows that each KV head keeps in the mean. q, e and κ as in [`bytes`](super::bytes), H KV heads,
//! L layers. If the owner holds everything there is no traffic. Otherwise
//!
//! | data | rank r receives |
//! | --- | --- |
//! | queries, and their denominators | L · (a − a_r) · (q + e) |
//! | partial results | L · (W − 1) · a_r · (q + e) |
//! | scores, on the owner | 4 · L · H · (N − N_r) |
//! | kept rows, on the owner, if they are gathered | C · (1 − N_r / N) · κ, their share if they are spread evenly |
//!
//! If the model generates tokens to measure their attention (LAQ), they and the window's rows
//! attend. Scores and gathered rows are then sent twice, and those tokens cost the same as any
//! generated one. If the whole cache generates them (the ideal eviction), only they attend, and all
//! rows are sent before. If a draft model writes them (SpecKV), only they attend, after that
//! model's own work on rank 0's host.
//!
//! Kept rows are gathered if that sends no more than all tokens that may follow would send between
//! the ranks: see [`gathers`].

use tributary_protocol::Collective;
use tributary_protocol::{AuxiliaryCost, Evict, EvictionEvidence, Phase, Plan};

use super::bytes::{Cargo, Flow, of_token};
use super::work::{Products, RankWork};
use crate::ModelShape;

/// Counted work of an eviction.
#[derive(Debug, Clone, PartialEq)]
pub struct Evicting {
    /// One entry a rank.
    pub ranks: Vec<RankWork>,
    /// Transfers; empty if the owner holds everything.
    pub flows: Vec<Flow>,
    /// Earlier work of a draft model on rank 0's host, if one writes.
    pub drafting: Option<RankWork>,
}

/// Rows of the prompt that each rank holds in the filled cache.
pub fn held_rows(plan: &Plan, world: usize) -> Vec<usize> {
    let mut rows = vec![0; world];
    plan.holders(world).into_iter().for_each(|rank| rows[rank] += 1);
    if plan.drops() {
        let (kept, all) = (plan.kept_at_most(world), plan.kept_counts(world));
        match plan.decodes_alone(world) {
            true => rows[plan.owner] = plan.rows_there_at_most(),
            false => rows.iter_mut().enumerate().for_each(|(rank, rows)| *rows = *rows + kept[rank] - all[rank]),
        }
    }
    rows
}

/// Rows that each rank runs to measure their attention.
pub fn asking_rows(plan: &Plan, world: usize) -> Vec<usize> {
    let mut rows = vec![0; world];
    let Some(evict) = plan.evicts() else { return rows };
    match evict.descriptor().evidence {
        EvictionEvidence::Places | EvictionEvidence::Draw => {}
        EvictionEvidence::Window => rows[plan.owner] = evict.window_rows().min(plan.total_rows()),
        EvictionEvidence::PseudoTokens => {
            rows[plan.owner] = evict.window_rows().min(plan.total_rows()) + evict.pseudo_tokens();
        }
        EvictionEvidence::DraftTokens | EvictionEvidence::OwnTokens => rows[plan.owner] = evict.pseudo_tokens(),
        EvictionEvidence::LastRow => rows[plan.owner] = 1,
        EvictionEvidence::LookAhead => rows[plan.owner] = plan.look_ahead_count(),
        EvictionEvidence::AllRows => return held_rows(plan, world),
    }
    rows
}

/// Whether kept rows should go to the owner, which then decodes alone. They should if they are no
/// more bytes, spread evenly, than the rounds of all tokens that may follow the first.
pub fn gathers(plan: &Plan, world: usize, shape: &ModelShape) -> bool {
    if plan.decodes_alone(world) || plan.evicts().is_none() {
        return false;
    }
    let rounds: u64 = of_token(plan, world, shape).iter().flat_map(|flow| &flow.received).sum();
    kept_elsewhere_bytes(plan, world, shape) <= rounds * (plan.max_tokens as u64 - 1)
}

/// Bytes of kept rows that the owner does not hold, if they are spread evenly.
fn kept_elsewhere_bytes(plan: &Plan, world: usize, shape: &ModelShape) -> u64 {
    plan.evicts().map_or(0, |evict| elsewhere_bytes(evict.keep, plan, world, shape))
}

/// The same for the rows of a draft of the kept rows.
fn draft_elsewhere_bytes(plan: &Plan, world: usize, shape: &ModelShape) -> u64 {
    plan.evicts().map_or(0, |evict| elsewhere_bytes(evict.draft_rows(plan.total_rows()), plan, world, shape))
}

fn elsewhere_bytes(rows: usize, plan: &Plan, world: usize, shape: &ModelShape) -> u64 {
    let there = if plan.drops() { plan.rows_there_at_most() } else { plan.total_rows() };
    let elsewhere = there - held_rows(plan, world)[plan.owner].min(there);
    (rows * elsewhere) as u64 * shape.kv_bytes() / there.max(1) as u64
}

impl Evicting {
    /// Counts the eviction of a plan for `world` ranks; `None` if none takes place.
    pub fn new(plan: &Plan, world: usize, shape: &ModelShape) -> Option<Self> {
        let evict = plan.evicts()?;
        let (held, asking) = (held_rows(plan, world), asking_rows(plan, world));
        // If all rows attend, each sees half of the keys in the mean.
        let all = evict.descriptor().evidence == EvictionEvidence::AllRows;
        let pairs = asking.iter().sum::<usize>() as f64 * if all { 0.5 } else { 1.0 };
        let rank = |rank: usize| {
            let mut work = rows(asking[rank], shape);
            if rank == plan.owner {
                work.products.extend(generated(evict.generated_tokens(), shape));
            }
            // Attention, and the products of queries and keys once more for the scores.
            work.probe = shape.layers as f64 * pairs * held[rank] as f64 * 6.0 * shape.query_width() as f64;
            let reads = if asking.iter().any(|&rows| rows > 0) { 2.0 } else { 0.0 } * held[rank] as f64;
            let copies = 2.0 * evict.keep as f64 * held[rank] as f64 / plan.total_rows().max(1) as f64;
            work.kv_bytes = (reads + copies) * shape.kv_bytes() as f64;
            // Generated tokens read a draft of the kept rows, which was copied too.
            let draft =
                evict.draft_rows(plan.total_rows()) as f64 * held[rank] as f64 / plan.total_rows().max(1) as f64;
            let steps = evict.generated_tokens().saturating_sub(1) as f64;
            work.probe += steps * draft * 4.0 * (shape.query_width() * shape.layers) as f64;
            work.kv_bytes += (2.0 + steps) * draft * shape.kv_bytes() as f64;
            work
        };
        let alone = plan.decodes_alone(world);
        let flows = if alone { Vec::new() } else { flows(plan, world, shape, (&held, &asking)) };
        let drafting = plan.draft_model.as_ref().filter(|_| evict.asks_draft_model());
        let drafting = drafting.map(|draft| drafted(plan, &draft.cost, evict.pseudo_tokens()));
        Some(Self { ranks: (0..world).map(rank).collect(), flows, drafting })
    }

    /// Bytes that each rank receives.
    pub fn received(&self) -> Vec<u64> {
        let mut sums = vec![0; self.ranks.len()];
        for flow in &self.flows {
            sums.iter_mut().zip(&flow.received).for_each(|(sum, bytes)| *sum += bytes);
        }
        sums
    }
}

/// `count` rows up to the last layer's attention, without it.
fn rows(count: usize, shape: &ModelShape) -> RankWork {
    if count == 0 {
        return RankWork::default();
    }
    let (layers, rows) = (shape.layers as f64, count as f64);
    let last = shape.layer_finish_flops();
    let of_layer = shape.layer_kv_flops() + shape.layer_query_flops() + shape.layer_finish_flops();
    let weight_bytes = layers * shape.read_bytes(shape.layer_numbers_read(count));
    RankWork {
        products: vec![Products { rows: count, flops: rows * (layers * of_layer - last), weight_bytes }],
        elementwise: rows * layers * shape.layer_elementwise(),
        layers: shape.layers,
        ..RankWork::default()
    }
}

/// Work of a draft model that reads the prompt and writes `tokens` tokens, the first of which is
/// known.
fn drafted(plan: &Plan, cost: &AuxiliaryCost, tokens: usize) -> RankWork {
    let (rows, steps) =
        (plan.prefix_tokens() + plan.context_tokens() + plan.query_tokens() + 1, tokens.saturating_sub(2) as f64);
    let (flops, weight_bytes) = (cost.row_flops as f64, cost.matrix_bytes as f64);
    let (all, layers) = (rows as f64, f64::from(cost.layers));
    RankWork {
        products: vec![
            Products { rows, flops: all * flops, weight_bytes },
            Products { rows: 1, flops: steps * flops, weight_bytes: steps * weight_bytes },
        ],
        attention: layers * cost.pair_flops as f64 * (all * (all + 1.0) / 2.0),
        attending_rows: layers * all,
        probe: layers * cost.pair_flops as f64 * steps * all,
        elementwise: (all + steps) * cost.row_elementwise as f64,
        layers: cost.layers as usize * (1 + steps as usize),
        ..RankWork::default()
    }
}

/// Tokens that are generated one by one, the first of which is known.
fn generated(tokens: usize, shape: &ModelShape) -> Option<Products> {
    let steps = tokens.checked_sub(1)? as f64;
    let of_layer = shape.layer_kv_flops() + shape.layer_query_flops() + shape.layer_finish_flops();
    let logits = shape.logits_flops();
    let weights = shape.layers * shape.layer_matrix_parameters() as usize + shape.vocab * shape.hidden;
    let flops = steps * (shape.layers as f64 * of_layer + logits);
    Some(Products { rows: 1, flops, weight_bytes: steps * shape.read_bytes(weights as f64) })
}

fn flows(plan: &Plan, world: usize, shape: &ModelShape, (held, asking): (&[usize], &[usize])) -> Vec<Flow> {
    let asked: usize = asking.iter().sum();
    let (query, lse) = ((shape.query_width() * shape.dtype_bytes) as u64, 4 * shape.heads as u64);
    let flow = |cargo, collective, groups, received: Vec<u64>| Flow {
        phase: Phase::Evict,
        cargo,
        collective,
        groups,
        received,
    };
    let mut flows = Vec::new();
    let pseudo = plan.evicts().map_or(0, Evict::generated_tokens);
    // A draft of the kept rows is chosen and sent like the finally kept rows; a draft of all rows
    // needs no choice.
    let drafts = plan.evicts().is_some_and(|evict| evict.descriptor().evidence == EvictionEvidence::PseudoTokens);
    let times = if drafts { 2 } else { 1 };
    let on_owner = |bytes: u64| (0..world).map(|rank| if rank == plan.owner { bytes } else { 0 }).collect();
    if asked > 0 {
        let layers = shape.layers as u64;
        let there = |bytes: u64| asking.iter().map(|rows| layers * (asked - rows) as u64 * bytes).collect();
        let back = asking.iter().map(|&rows| layers * ((world - 1) * rows) as u64 * (query + lse)).collect();
        flows.push(flow(Cargo::Queries, Collective::AllGather, shape.layers, there(query)));
        flows.push(flow(Cargo::Homeward, Collective::AllToAll, shape.layers, back));
        flows.push(flow(Cargo::Queries, Collective::AllGather, shape.layers, there(lse)));
        let elsewhere = (plan.total_rows() - held[plan.owner]) as u64;
        let scores = times * 4 * (shape.layers * shape.kv_heads) as u64 * elsewhere;
        flows.push(flow(Cargo::Scores, Collective::AllToAll, 1, on_owner(scores)));
    }
    if plan.evicts().is_some_and(|evict| evict.gather) {
        let bytes = kept_elsewhere_bytes(plan, world, shape) + draft_elsewhere_bytes(plan, world, shape);
        flows.push(flow(Cargo::Kept, Collective::AllToAll, shape.layers, on_owner(bytes)));
    }
    if pseudo > 0 && !plan.generates_alone(world) {
        for flow in of_token(plan, world, shape) {
            let received = flow.received.iter().map(|bytes| bytes * (pseudo as u64 - 1)).collect();
            flows.push(Flow { phase: Phase::Evict, groups: flow.groups * (pseudo - 1), received, ..flow });
        }
    }
    flows
}

#[cfg(test)]
mod tests {
    use tributary_protocol::{
        DraftModel, Evict, EvictionDescriptor, POOLED_ROWS, PYRAMID_BETA, SINK_ROWS, WINDOW_ROWS,
    };

    use super::*;
    use crate::cost::{Decoding, running_bytes};
    use crate::kit::planned;
    use crate::machine::MemoryOf;
    use crate::shape::tests::QWEN3_14B;

    fn evicted(method: &str, name: &str, keep: usize, max_tokens: usize) -> Plan {
        let eviction = EvictionDescriptor::find(name).expect("a method").method;
        let (window, pooled, sinks, beta) = (WINDOW_ROWS, POOLED_ROWS, SINK_ROWS, PYRAMID_BETA);
        let evict = Evict { method: eviction, keep, window, pooled, sinks, beta, pseudo: 6, seed: 0, gather: false };
        let mut plan = Plan { max_tokens, evict: Some(evict), ..planned(method, 8192, 2048, 4, &QWEN3_14B) };
        let gather = gathers(&plan, 4, &QWEN3_14B);
        plan.evict.as_mut().expect("it evicts").gather = gather;
        plan
    }

    #[test]
    fn kept_rows_are_gathered_where_many_tokens_follow() {
        let gather = |method, keep, tokens| evicted(method, "snapkv", keep, tokens).evict.expect("it evicts").gather;
        assert!(gather("ring", 128, 256));
        assert!(!gather("ring", 4096, 2));
        assert!(!gather("full", 128, 256), "they are there");
        // Three quarters of 128 rows go once, against three queries there and three results back a
        // token.
        let kept = 128 * 3 / 4 * QWEN3_14B.kv_bytes();
        let plan = evicted("ring", "snapkv", 128, 2);
        let token: u64 = of_token(&plan, 4, &QWEN3_14B).iter().flat_map(|flow| &flow.received).sum();
        let tipping = kept.div_ceil(token) as usize + 1;
        assert!(gather("ring", 128, tipping + 2) && !gather("ring", 128, tipping - 2), "{tipping} tokens");
    }

    #[test]
    fn what_is_kept_is_all_that_is_admitted_and_decoded() {
        let (kv, entries) = (QWEN3_14B.kv_bytes(), (QWEN3_14B.layers * QWEN3_14B.kv_heads) as u64);
        for name in ["snapkv", "pyramidkv", "streamingllm"] {
            for method in ["full", "ring"] {
                let plan = evicted(method, name, 128, 256);
                let mut expected = vec![0; 4];
                let apart = if name == "streamingllm" { 0 } else { 12 * 128 * entries };
                expected[plan.owner] = (128 + 256) * kv + apart;
                assert_eq!(running_bytes(&plan, 4, &QWEN3_14B), expected, "{method}, {name}");
                let token = Decoding::new(&plan, 4, &QWEN3_14B);
                let pairs: f64 = token.ranks.iter().map(|rank| rank.probe).sum();
                let per_key = 4.0 * (QWEN3_14B.query_width() * QWEN3_14B.layers) as f64;
                assert_eq!((pairs / per_key).round() as usize, 128 + 128, "{method}, {name}: half of what may follow");
                assert!(token.flows.is_empty());
            }
        }
    }

    #[test]
    fn a_draft_model_reads_the_prompt_once_and_writes_one_by_one() {
        let cost = AuxiliaryCost {
            memory_bytes: 1 << 20,
            row_flops: 1000,
            pair_flops: 10,
            row_elementwise: 7,
            matrix_bytes: 500,
            layers: 2,
        };
        let draft_model = Some(DraftModel { model: "small".into(), cost });
        let plan = Plan { draft_model, ..evicted("ring", "speckv", 128, 256) };
        let laq = Evicting::new(&evicted("ring", "laq", 128, 256), 4, &QWEN3_14B).expect("it evicts");
        let spec = Evicting::new(&plan, 4, &QWEN3_14B).expect("it evicts");
        let (rows, written) = (plan.total_rows() as f64 + 1.0, 6.0 - 2.0);
        let drafting = spec.drafting.as_ref().expect("a model writes");
        assert_eq!(
            drafting.linear(),
            1000.0 * (rows + written),
            "the first token is known, and the last one is not run"
        );
        assert_eq!(drafting.attention, 20.0 * rows * (rows + 1.0) / 2.0);
        let read: f64 = drafting.products.iter().map(|products| products.weight_bytes).sum();
        assert_eq!(read, 500.0 * (1.0 + written));
        // The model itself writes nothing and attends once.
        let linear = |work: &Evicting| work.ranks.iter().map(RankWork::linear).sum::<f64>();
        assert!(
            linear(&spec) < linear(&laq) / 2.0 && spec.received().iter().sum::<u64>() < laq.received().iter().sum()
        );
        assert_eq!(laq.drafting, None);
        let memory = |plan: &Plan| crate::cost::memory::rank_bytes(plan, 4, &QWEN3_14B, MemoryOf::Host, &[]);
        let (with, without) = (memory(&plan), memory(&Plan { draft_model: None, ..plan.clone() }));
        assert_eq!((with[0] - without[0], &with[1..]), (1 << 20, &without[1..]), "rank 0's host runs it");
    }

    #[test]
    fn all_rows_ask_as_often_as_there_are_keys_before_them() {
        let plan = evicted("ring", "h2o", 128, 256);
        let (rows, work) = (plan.total_rows() as f64, Evicting::new(&plan, 4, &QWEN3_14B).expect("it evicts"));
        let probe: f64 = work.ranks.iter().map(|rank| rank.probe).sum();
        let expected = rows * rows / 2.0 * 6.0 * (QWEN3_14B.query_width() * QWEN3_14B.layers) as f64;
        assert!((probe / expected - 1.0).abs() < 1e-9, "{probe:e}, not {expected:e}");
        let window = Evicting::new(&evicted("ring", "snapkv", 128, 256), 4, &QWEN3_14B).expect("it evicts");
        let linear = |work: &Evicting| work.ranks.iter().map(RankWork::linear).sum::<f64>();
        assert!((linear(&work) / linear(&window) - rows / 32.0).abs() < 1e-6);
        assert_eq!(Evicting::new(&Plan { max_tokens: 1, ..plan }, 4, &QWEN3_14B), None);
    }
}
