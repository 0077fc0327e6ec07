//! Predictions compared with known rates.

use tributary_protocol::{Exchange, Method, Phase, Plan};

use super::{Curve, LongStep, Predicted, Profile, Spread, ttft};
use crate::cost::bytes::{Cargo, flows};
use crate::cost::{Selected, groups, work};
use crate::kit::{QWEN, planned, warm, with_settings};
use crate::plan::RequestSettings;

fn seconds(predicted: &Predicted, phase: Phase) -> f64 {
    predicted.phases.iter().find(|found| found.phase == phase).map_or(0.0, |found| found.seconds)
}

fn profile() -> Profile {
    Profile::by_name("h100x4").unwrap()
}

#[test]
fn time_is_work_over_rates_and_what_is_waited_for() {
    let mut profile = profile();
    profile.rank.layer_s = 0.0;
    let plan = planned("full", 32_768, 2048, 1, &QWEN);
    let predicted = ttft(&plan, 1, &QWEN, &profile);
    let all = work(&plan, 1, &QWEN);
    let rank = &all.phase(Phase::ChunkPrefill).unwrap().ranks[0];
    let weight_bytes: f64 = rank.products.iter().map(|products| products.weight_bytes).sum();
    // Two bytes a number, and weights before products.
    let moved_s = (weight_bytes + 2.0 * rank.elementwise) / profile.rank.memory_bytes_per_s;
    let (gemm_flops_per_s, attention_flops_per_s) = (profile.rank.gemm_flops_per_s, profile.rank.attention_flops_per_s);
    let wanted = rank.linear() / gemm_flops_per_s + rank.attention / attention_flops_per_s + moved_s;
    assert!((seconds(&predicted, Phase::ChunkPrefill) / wanted - 1.0).abs() < 1e-12);
    assert_eq!((predicted.exposed_s, predicted.received_bytes.as_slice()), (0.0, [0].as_slice()));
    let sum: f64 = predicted.phases.iter().map(|phase| phase.seconds).sum();
    assert!((predicted.ttft_s - sum).abs() < 1e-12);
    // One row of logits cannot come faster than the weights are read.
    let logits = QWEN.logits_flops() / profile.rank.memory_bytes_per_s + QWEN.logits_flops() / gemm_flops_per_s;
    assert!((seconds(&predicted, Phase::FirstToken) / logits - 1.0).abs() < 1e-12);
}

#[test]
fn transfers_hide_where_they_can() {
    let fast = profile();
    let mut slow = fast.clone();
    slow.inside.bytes_per_s = 1e9;
    let rigid = Profile { transfers_overlap: false, ..fast.clone() };
    let exposed = |method: &str, warm_chunks: bool, profile: &Profile| {
        let plan = planned(method, 32_768, 2048, 4, &QWEN);
        ttft(&if warm_chunks { warm(plan) } else { plan }, 4, &QWEN, profile).exposed_s
    };
    for method in ["ring", "infoflow"] {
        assert!(exposed(method, false, &fast) < exposed(method, false, &rigid), "{method}");
        assert!(exposed(method, false, &fast) < exposed(method, false, &slow), "{method}");
    }
    // 40 layers of 101 MB at 360 GB/s are 11 ms. Cold they hide, all but the last layer's; warm the
    // probe hides a part.
    let (cold, from_cache) = (exposed("infoflow", false, &fast), exposed("infoflow", true, &fast));
    let stale_s = 40.0 * 100.7e6 / 360e9;
    assert!(cold < from_cache, "{cold}, {from_cache}");
    let unhidden = exposed("infoflow", true, &rigid) - exposed("infoflow", false, &rigid);
    assert!(unhidden.abs() < 1e-9, "the same bytes, cold or warm: {unhidden}");
    assert!(exposed("infoflow", false, &rigid) > stale_s);
    assert!(from_cache < exposed("infoflow", true, &rigid));
}

/// Stale rows of warm chunks hide under the layers of a probe. If a chunk is cold they are sent
/// with that layer by layer, and without a later probe they hide under nothing.
#[test]
fn stale_rows_hide_under_a_probe_where_all_chunks_are_warm() {
    // 40 layers, a gather of 100.7 MB each.
    let stale_s = |profile: &Profile| 40.0 * (100.7e6 / profile.inside.bytes_per_s + profile.inside.latency_s);
    let in_recompute = |method: &str, profile: &Profile| {
        let predicted = ttft(&warm(planned(method, 32_768, 2048, 4, &QWEN)), 4, &QWEN, profile);
        predicted.phases.iter().find(|found| found.phase == Phase::Recompute).map_or(0.0, |found| found.exposed_s)
    };
    let (fast, mut slow) = (profile(), profile());
    slow.inside.bytes_per_s = 1e9;
    for profile in [&fast, &slow] {
        assert!(in_recompute("epic", profile) > 0.99 * stale_s(profile), "no probe");
        let hidden = in_recompute("epic", profile) - in_recompute("infoflow", profile);
        let probe = ttft(&warm(planned("infoflow", 32_768, 2048, 4, &QWEN)), 4, &QWEN, profile);
        let probe = probe.phases.iter().find(|found| found.phase == Phase::Probe).unwrap();
        // A slice after each of 26 layers but the last.
        let cover = (probe.seconds - probe.exposed_s) * 25.0 / 26.0;
        // Other differences between the two methods' recompute are small beside that.
        let (least, most) = (0.85 * cover.min(stale_s(profile)), 1.15 * cover.min(stale_s(profile)));
        assert!((least..most).contains(&hidden), "{hidden} hidden, the probe covers {cover}");
    }
    let mut mixed = warm(planned("infoflow", 32_768, 2048, 4, &QWEN));
    mixed.chunks[0].warm = false;
    let cargoes = flows(&mixed, 4, &QWEN, &Selected::expected(&mixed, &QWEN)).into_iter().map(|flow| flow.cargo);
    assert_eq!(
        cargoes.filter(|cargo| [Cargo::Stale, Cargo::WarmStale].contains(cargo)).collect::<Vec<_>>(),
        [Cargo::Stale]
    );
}

#[test]
fn an_auxiliary_model_shares_a_host_with_the_prefill_and_hides_under_that_of_a_device() {
    let device = profile();
    let mut host = device.clone();
    host.rank.memory_of = crate::MemoryOf::Host;
    let seconds = |plan: &Plan, profile: &Profile, phase| {
        let predicted = ttft(plan, 1, &QWEN, profile);
        predicted.phases.iter().find(|found| found.phase == phase).map_or(0.0, |found| found.seconds)
    };
    let plan = planned("cacheclip", 8192, 2048, 1, &QWEN);
    let alone = Plan { auxiliary: Vec::new(), ..plan.clone() };
    let of_both = |profile: &Profile, plan: &Plan| {
        seconds(plan, profile, Phase::ChunkPrefill) + seconds(plan, profile, Phase::Auxiliary)
    };
    let read_s = of_both(&host, &warm(plan.clone())) - of_both(&host, &warm(alone.clone()));
    assert!(read_s > 0.0, "{read_s}");
    let beside_s = of_both(&host, &plan) - of_both(&host, &alone);
    assert!((beside_s / read_s - 1.0).abs() < 1e-9, "cores are shared: {beside_s} beside the prefill, {read_s} alone");
    assert_eq!(seconds(&plan, &host, Phase::Auxiliary), 0.0, "it ends before the prefill of a large model");
    let exposed_s = seconds(&warm(plan.clone()), &device, Phase::Auxiliary);
    let prefill_s = of_both(&device, &alone);
    assert!(exposed_s > prefill_s, "nothing to hide under: {exposed_s}");
    assert!((of_both(&device, &plan) - exposed_s).abs() < 1e-9, "the longer of the two counts");
    let mut light = plan.clone();
    light.auxiliary[0].cost.row_flops /= 100;
    light.auxiliary[0].cost.pair_flops /= 100;
    assert_eq!(of_both(&device, &light), prefill_s, "hidden");
}

#[test]
fn two_hosts_are_slower_between_than_inside() {
    let two = Profile::by_name("h100x8x2").unwrap();
    let one = Profile { ranks_per_host: 16, ..two.clone() };
    for method in ["ring", "all-gather", "infoflow"] {
        let settings = RequestSettings {
            method: Method::named(method).unwrap(),
            world: 16,
            exchange: Some(Exchange::PassQ),
            ..RequestSettings::default()
        };
        let plan = with_settings(&settings, 32_768, 2048, &QWEN);
        let (apart, together) = (ttft(&plan, 16, &QWEN, &two), ttft(&plan, 16, &QWEN, &one));
        assert!(apart.exposed_s > together.exposed_s, "{method}: {} and {}", apart.exposed_s, together.exposed_s);
        assert_eq!(apart.received_bytes, together.received_bytes);
    }
}

#[test]
fn a_latency_is_charged_for_every_group() {
    let mut profile = profile();
    profile.transfers_overlap = false;
    (profile.inside.latency_s, profile.inside.bytes_per_s) = (1.0, 1e30);
    for method in ["ring", "all-gather", "none", "epic", "infoflow", "prophetkv", "relay", "trace"] {
        for exchange in [Exchange::Replicate, Exchange::PassQ, Exchange::Selected] {
            let plan = Plan { exchange, ..planned(method, 8192, 2048, 4, &QWEN) };
            for plan in [plan.clone(), warm(plan)] {
                let charged = ttft(&plan, 4, &QWEN, &profile).exposed_s;
                let counted = groups(&plan, 4, &QWEN, &Selected::expected(&plan, &QWEN));
                assert!((charged - counted as f64).abs() < 1e-6, "{method}, {exchange:?}: {charged}, not {counted}");
            }
        }
    }
}

/// InfoFlow's own times for Qwen3-14B on one H100 and on four with a chunk each, ratio 0.15, cold,
/// without query pass and first token [s].
const PAPER: [(usize, f64, f64); 3] = [(8192, 0.567, 0.232), (16_384, 1.286, 0.4276), (32_768, 3.190, 0.914)];

#[test]
fn a_rank_of_the_paper_takes_as_long_as_the_paper_says() {
    let profile = Profile::by_name("h100x4-paper").unwrap();
    for (tokens, one_s, four_s) in PAPER {
        let full_s = ttft(&planned("full", tokens, 2048, 1, &QWEN), 1, &QWEN, &profile).ttft_s;
        assert!((full_s / one_s - 1.0).abs() < 0.05, "{tokens} tokens on one: {full_s} s, published {one_s}");
        let predicted = ttft(&planned("infoflow", tokens, tokens / 4, 4, &QWEN), 4, &QWEN, &profile);
        let own_s = predicted.ttft_s - seconds(&predicted, Phase::FirstToken);
        assert!((own_s / four_s - 1.0).abs() < 0.25, "{tokens} tokens on four: {own_s} s, published {four_s}");
    }
}

#[test]
fn a_prediction_has_an_interval_and_a_measured_profile_its_own() {
    let plan = planned("infoflow", 32_768, 2048, 4, &QWEN);
    let shipped = profile();
    let of = |profile: &Profile| ttft(&plan, 4, &QWEN, profile);
    let half =
        |predicted: &Predicted| (predicted.interval.high_s - predicted.interval.low_s) / (2.0 * predicted.ttft_s);
    assert!((half(&of(&shipped)) - 0.2).abs() < 1e-9, "a fifth");
    let spread = Spread { pace: 0.03, gemm: 0.0, attention: 0.0, memory: 0.0, link: 0.0, store: 0.0, left_out: 0.0 };
    let sure = Profile { spread: Some(spread), ..shipped.clone() };
    assert!((half(&of(&sure)) - 0.03).abs() < 1e-9, "{:?}", of(&sure).interval);
    let gemm = Profile { spread: Some(Spread { gemm: 0.1, ..spread }), ..shipped };
    let (wider, share) = (half(&of(&gemm)), 0.5);
    assert!(wider > 0.03 + 0.1 * share * 0.5 && wider < 0.13, "products are a good part of it: {wider}");
}

#[test]
fn rates_by_rows_and_of_a_rank_alone_count_where_they_are_known() {
    let (plain, plan) = (profile(), planned("full", 8192, 2048, 1, &QWEN));
    let full_s = |profile: &Profile| ttft(&plan, 1, &QWEN, profile).ttft_s;
    let mut slow = plain.clone();
    slow.rank.gemm_by_rows = Curve(vec![(1.0, 1e12), (8192.0, 320e12)]);
    assert!(full_s(&slow) > 1.6 * full_s(&plain), "half the rate at that many rows");
    let alone = Profile { alone: Some(slow.rank.clone()), ..plain.clone() };
    assert!((full_s(&alone) / full_s(&slow) - 1.0).abs() < 1e-12);
    let ring = planned("ring", 8192, 2048, 4, &QWEN);
    let [with, without] = [&alone, &plain].map(|profile| ttft(&ring, 4, &QWEN, profile));
    let share = |phase: Phase| seconds(&with, phase) / seconds(&without, phase);
    assert!((share(Phase::ChunkPrefill) - 1.0).abs() < 0.01, "four work, the owner a little longer: {with:?}");
    assert!(share(Phase::FirstToken) > 2.0, "one works: {with:?}");
    // One rank has two chunks, the other one: for half of its time the first has the host to
    // itself.
    let uneven = planned("none", 3 * 2048, 2048, 2, &QWEN);
    let mut twice = plain.rank.clone();
    twice.gemm_flops_per_s *= 2.0;
    twice.attention_flops_per_s *= 2.0;
    twice.memory_bytes_per_s *= 2.0;
    let twice = Profile { alone: Some(twice), ..plain.clone() };
    let [with, without] =
        [&twice, &plain].map(|profile| seconds(&ttft(&uneven, 2, &QWEN, profile), Phase::ChunkPrefill));
    assert!((with / without - 0.75).abs() < 0.02, "{with} s, {without} s");
}

#[test]
fn a_layer_beyond_the_timeout_is_foretold() {
    let profile = profile();
    let plan = planned("full", 131_072, 2048, 1, &QWEN);
    let layer_s = seconds(&ttft(&plan, 1, &QWEN, &profile), Phase::ChunkPrefill) / QWEN.layers as f64;
    let with = |timeout_ms| {
        let plan = Plan { timeout_ms, ..plan.clone() };
        LongStep::beyond_timeout(&plan, 1, &QWEN, &profile)
    };
    assert_eq!(with((layer_s * 1e3) as u64 + 1), None);
    let long = with((layer_s * 1e3 / 2.0) as u64).expect("twice as long as the timeout");
    assert_eq!(long.phase, Phase::ChunkPrefill);
    assert!((long.seconds / layer_s - 1.0).abs() < 1e-9, "{long:?}");
    assert!(long.note().starts_with("a layer of chunk_prefill is predicted to take "), "{}", long.note());
}
