//! What descriptors say must fit together.

use super::*;

const WISHES: Wishes = Wishes {
    layers: 40,
    kv_heads: 8,
    score: Score::Mass,
    score_layers: Some((3, 5)),
    layout: Layout::HlHp,
    per_chunk: Some(7),
    heads_per_gather: Some(2),
    drift: Drift { of: DriftOf::Keys, layers: 3, score: DriftScore::Squared },
    trace_alpha: Some(0.25),
    trace_heads: TraceHeads::Sharpest(0.5),
    keep_order: true,
    block_tokens: Some(7),
    passing: Passing { anchor_tokens: Some(3), passing_tokens: Some(2) },
    ape: Ape { temperature: 0.5, scale: 0.7 },
    samkv: SamKv { variant: SamKvVariant::Small, blocks: 3, theta: 0.5 },
    seed: 11,
};

fn made(descriptor: &Descriptor) -> Method {
    (descriptor.make)(&WISHES).expect("possible wishes")
}

#[test]
fn every_method_is_found_by_its_name_and_makes_itself() {
    for descriptor in METHODS {
        assert_eq!(Descriptor::find(descriptor.name), Some(descriptor));
        assert_eq!(made(descriptor).descriptor(), descriptor);
        assert!(!descriptor.summary.is_empty() && !descriptor.source.is_empty(), "{}", descriptor.name);
    }
    let mut names = Descriptor::names();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), METHODS.len(), "no name twice");
    assert_eq!(Descriptor::find("fastest"), None);
    assert_eq!(Descriptor::defaults_of(Command::Prefill).len(), 1, "one request has one method");
    assert_eq!(made(REFERENCE).prefill(), Prefill::Whole);
    assert_eq!(made(CHUNKS_ALONE).selection(), Some(Selection::Nothing));
}

/// The user's choices reach the method exactly where its descriptor says that it takes them.
#[test]
fn a_method_takes_what_it_says() {
    for descriptor in METHODS {
        let (method, name) = (made(descriptor), descriptor.name);
        let differs = |wishes: Wishes| (descriptor.make)(&wishes).expect("possible wishes") != method;
        let cases = [
            (Choice::Score, Wishes { score: Score::Norm, ..WISHES }),
            (Choice::ScoreLayers, Wishes { score_layers: None, ..WISHES }),
            (Choice::Layout, Wishes { layout: Layout::Global, ..WISHES }),
            (Choice::PerChunk, Wishes { per_chunk: None, ..WISHES }),
            (Choice::HeadsPerGather, Wishes { heads_per_gather: None, ..WISHES }),
            (Choice::DriftOf, Wishes { drift: Drift { of: DriftOf::Values, ..WISHES.drift }, ..WISHES }),
            (Choice::TraceAlpha, Wishes { trace_alpha: None, ..WISHES }),
            (Choice::TraceHeads, Wishes { trace_heads: TraceHeads::Mean, ..WISHES }),
            (Choice::BlockTokens, Wishes { block_tokens: None, ..WISHES }),
            (Choice::AnchorTokens, Wishes { passing: Passing { anchor_tokens: None, ..WISHES.passing }, ..WISHES }),
            (Choice::PassingTokens, Wishes { passing: Passing { passing_tokens: None, ..WISHES.passing }, ..WISHES }),
            (Choice::KeepOrder, Wishes { keep_order: false, ..WISHES }),
            (Choice::ApeTemperature, Wishes { ape: Ape { temperature: 1.0, ..WISHES.ape }, ..WISHES }),
            (Choice::SamKvVariant, Wishes { samkv: SamKv { variant: SamKvVariant::Large, ..WISHES.samkv }, ..WISHES }),
            (Choice::SamKvBlocks, Wishes { samkv: SamKv { blocks: 1, ..WISHES.samkv }, ..WISHES }),
            (Choice::SamKvTheta, Wishes { samkv: SamKv { theta: 1.0, ..WISHES.samkv }, ..WISHES }),
            (Choice::ApeScale, Wishes { ape: Ape { scale: 1.0, ..WISHES.ape }, ..WISHES }),
            (Choice::DriftLayers, Wishes { drift: Drift { layers: 1, ..WISHES.drift }, ..WISHES }),
        ];
        for (choice, wishes) in cases {
            assert_eq!(differs(wishes), descriptor.takes(choice), "{name}: {choice:?}");
        }
        // Free probes find an order by themselves; what is dropped has no importance.
        let in_order = method.evidence().is_some_and(|evidence| evidence.trace.is_some() || evidence.sparse.is_some());
        assert_eq!(method.probes_query() && !in_order, descriptor.takes(Choice::Reorder), "{name}");
        let moves = descriptor.takes(Choice::Reorder) || descriptor.takes(Choice::KeepOrder);
        assert_eq!(moves, descriptor.takes(Choice::OrderFor), "{name}");
        assert_eq!(descriptor.ratio.is_some(), descriptor.takes(Choice::Ratio), "{name}");
        assert_eq!(descriptor.in_chunks, method.selection().is_some(), "{name}");
        assert!(!descriptor.is_exact() || !descriptor.in_chunks, "{name}");
    }
}

/// Every family has a method, and what controls are for is not mixed with what they are beside.
#[test]
fn families_follow_from_what_methods_do() {
    let of = |name: &str| made(Descriptor::find(name).expect("a method")).family();
    for descriptor in METHODS {
        let family = made(descriptor).family();
        assert_eq!(family == Family::Exact, descriptor.is_exact(), "{}", descriptor.name);
        assert_eq!(matches!(family, Family::Exact | Family::Blocks), !descriptor.in_chunks, "{}", descriptor.name);
        assert_eq!(Family::find(family.name()), Some(family));
    }
    let wanted = [
        ("ring", Family::Exact),
        ("star", Family::Blocks),
        ("none", Family::Reuse),
        ("ape", Family::Reuse),
        ("epic", Family::Position),
        ("trace", Family::Query),
        ("random", Family::Control),
        ("ideal", Family::Control),
        ("kvshare", Family::Drift),
        ("cacheclip", Family::Auxiliary),
    ];
    for (name, family) in wanted {
        assert_eq!(of(name), family, "{name}");
    }
    for family in Family::ALL {
        assert!(METHODS.into_iter().any(|descriptor| made(descriptor).family() == family), "{family:?}");
    }
}

#[test]
fn evidence_is_what_the_papers_say() {
    let of = |name: &str| made(Descriptor::find(name).expect("a method")).evidence().expect("it asks the query");
    let infoflow = of("infoflow");
    assert_eq!((infoflow.layers.of(40), infoflow.over_context, infoflow.score), (3..5, false, Score::Mass));
    let prophetkv = of("prophetkv");
    assert_eq!((prophetkv.layers.of(40), prophetkv.over_context, prophetkv.score), (0..40, true, Score::Mass));
    let a3 = of("a3");
    assert_eq!((a3.layers.of(40), a3.over_context, a3.score, a3.heads), (0..1, true, Score::Mass, Heads::Sum));
    assert_eq!(of("relay"), Evidence { pass_divisor: Some(3), ..prophetkv });
    let trace =
        Trace { alpha: 0.25, share: 0.4, decay: 0.9, rounds: 4, keep_order: true, heads: TraceHeads::Sharpest(0.5) };
    assert_eq!(of("ideal"), Evidence { over_context: false, oracle: true, layout: Layout::Global, ..prophetkv });
    assert_eq!(of("trace"), Evidence { trace: Some(trace), layout: Layout::Global, ..prophetkv });
}

#[test]
fn ever_fewer_rows_go_on_until_the_budget_is_left() {
    let left = |layers, budget| Drift { layers, ..Drift::default() }.left(budget);
    assert_eq!(left(1, 30), [30]);
    assert_eq!(left(3, 30), [50, 40, 30]);
    assert_eq!(left(4, 2), [3, 3, 2, 2], "few rows leave a few at a time");
    assert_eq!(left(2, 0), [0, 0]);
    let lists = [vec![1, 4, 6, 8, 9], vec![4, 6, 9, 1], vec![6, 9, 1]].map(|mut list| {
        list.sort_unstable();
        list
    });
    let one = Drift::longest_first(&lists[..2]);
    assert_eq!(one, [1, 4, 6, 9, 8], "two lists of a drift in three layers");
    let found = Drift { layers: 3, ..Drift::default() }.went_on(3, &one);
    assert_eq!(found, [&[1, 4, 6, 9, 8][..], &[1, 4, 6, 9]]);
    assert!(Drift::default().went_on(3, &[]).is_empty());
}

#[test]
fn what_cannot_be_is_refused_with_what_would_be_right() {
    let refused = |name: &str, wishes: Wishes| {
        let wrong = (Descriptor::find(name).expect("a method").make)(&wishes).expect_err("an impossible wish");
        format!("{} {}: {}", wrong.option, wrong.found, wrong.wanted)
    };
    for heads in [0, 9] {
        let found = refused("all-gather", Wishes { heads_per_gather: Some(heads), ..WISHES });
        assert_eq!(found, format!("--heads-per-gather {heads}: must be from 1 to the model's 8 KV heads"));
    }
    for rows in [0, 65] {
        let found = refused("epic", Wishes { per_chunk: Some(rows), ..WISHES });
        assert_eq!(found, format!("--per-chunk {rows}: must be from 1 to 64"));
    }
    for layers in [0, 40] {
        let found = refused("cacheblend", Wishes { drift: Drift { layers, ..WISHES.drift }, ..WISHES });
        let wanted = "must be from 1 to 39: the model has 40 layers, and in the first nothing drifts";
        assert_eq!(found, format!("--drift-layers {layers}: {wanted}"));
    }
    for (first, end) in [(5, 5), (39, 41)] {
        let found = refused("infoflow", Wishes { score_layers: Some((first, end)), ..WISHES });
        let wanted = "must be FIRST..END with FIRST < END, and the model has 40 layers";
        assert_eq!(found, format!("--score-layers {first}..{end}: {wanted}"));
    }
}

#[test]
fn a_temperature_or_scale_that_cannot_be_is_refused() {
    let made = |ape| (Descriptor::find("ape").expect("a method").make)(&Wishes { ape, ..WISHES });
    let wrong = |temperature, scale| made(Ape { temperature, scale }).expect_err("refused").option;
    assert_eq!(wrong(0.0, 1.0), "--ape-temperature");
    assert_eq!(wrong(f32::NAN, 1.0), "--ape-temperature");
    assert_eq!(wrong(1.0, -0.5), "--ape-scale");
    assert_eq!(wrong(1.0, f32::INFINITY), "--ape-scale");
    assert_eq!(made(Ape::default()).expect("the paper's").parallel(), Some(Ape { temperature: 0.9, scale: 0.9 }));
    assert_eq!(Ape { temperature: 0.5, scale: 0.5 }.weight(), 0.25);
}

#[test]
fn a_document_keeps_its_ends_and_some_blocks() {
    let small = SamKv { variant: SamKvVariant::Small, blocks: 2, theta: 0.9 };
    assert_eq!((small.always_of(45), small.blocks_of(45)), ([0..8, 29..45], vec![8..16, 16..24, 24..29]));
    assert_eq!((small.always_of(20), small.blocks_of(20)), ([0..8, 8..20], vec![]), "the tail begins behind the head");
    assert_eq!(small.always_of(5), [0..5, 5..5]);
    assert_eq!([5, 24, 27, 45, 400].map(|length| small.kept_of(length)), [5, 24, 27, 40, 40]);
    let large = SamKv { variant: SamKvVariant::Large, ..small };
    assert_eq!([192, 200, 2048].map(|length| large.kept_of(length)), [192, 200, 320]);
    let wide = SamKv { blocks: usize::MAX, ..small };
    assert_eq!(wide.kept_of(4000), 4000);
}

#[test]
fn blocks_and_shares_that_cannot_be_are_refused() {
    let made = |samkv| (Descriptor::find("samkv").expect("a method").make)(&Wishes { samkv, ..WISHES });
    let wrong = |blocks, theta| made(SamKv { blocks, theta, ..WISHES.samkv }).expect_err("refused").option;
    assert_eq!(wrong(0, 0.9), "--samkv-blocks");
    assert_eq!(wrong(1, 1.5), "--samkv-theta");
    assert_eq!(wrong(1, f32::NAN), "--samkv-theta");
    let method = made(SamKv::default()).expect("the defaults");
    assert_eq!(method.evidence().map(|evidence| evidence.layers.of(40)), Some(35..40));
    assert_eq!(method.sparse(), Some(SamKv { variant: SamKvVariant::Large, blocks: 2, theta: 0.9 }));
}
