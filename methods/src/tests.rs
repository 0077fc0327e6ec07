//! Declarations of methods must be consistent.

use crate::*;

const MODEL: ModelFacts = ModelFacts::new(40, 8);

/// A spec for a model, without the options that a request keeps in its settings.
fn resolved(text: &str) -> Result<(PlannedMethod, Options), InvalidOption> {
    let spec: MethodSpec = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
    PlannedMethod::new(spec.method, spec.options, MODEL)
}

fn made(text: &str) -> PlannedMethod {
    resolved(text).unwrap_or_else(|wrong| panic!("{text}: {wrong:?}")).0
}

#[test]
fn every_method_is_found_by_its_name_and_makes_itself() {
    for method in METHODS {
        assert_eq!(Method::find(method.name), Some(method));
        assert_eq!(made(method.name).method, method);
        assert!(!method.summary.is_empty() && !method.source.is_empty(), "{}", method.name);
    }
    let mut names = Method::names();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), METHODS.len(), "no name twice");
    assert_eq!(Method::find("fastest"), None);
    assert_eq!(Method::defaults_of(Command::Prefill).len(), 1, "one request has one method");
    assert_eq!(made(REFERENCE.name).prefill, Prefill::Whole { reuses_prefix: false, orders_chunks: false });
    assert_eq!(made(CHUNKS_ALONE.name).selection(), Some(Selection::Nothing));
}

/// Two options with one key are the same row, and a row's help and default can be read.
#[test]
fn a_key_has_one_row() {
    for option in METHODS.into_iter().flat_map(Method::all_options) {
        let all = METHODS.into_iter().flat_map(Method::all_options).filter(|other| other.key == option.key);
        assert!(all.into_iter().all(|other| std::ptr::eq(other, option)), "{} has two rows", option.key);
        assert_eq!(option.value.is_empty(), matches!(option.kind, Kind::Flag), "{}", option.key);
        assert!(!option.help.is_empty() && !option.described().contains('\n'), "{}", option.key);
        if let Usual::Value(value) = option.usual {
            assert_eq!(option.read(value).as_deref(), Ok(value), "the default of {}", option.key);
        }
    }
}

/// Every option of a method changes the data that the method resolves to, or is kept in a request's
/// settings.
#[test]
fn a_method_takes_what_it_says() {
    for method in METHODS {
        let (bare, name) = (made(method.name), method.name);
        for option in method.options.iter().filter(|option| !REQUEST.contains(option)) {
            let value = match (&option.kind, &option.usual) {
                (Kind::Flag, _) => String::new(),
                (Kind::Count(range), _) => format!("={}", 3.min(*range.end())),
                (Kind::Number(..), _) => "=0.25".to_owned(),
                (Kind::Word(words), Usual::Value(usual) | Usual::Computed(usual)) => {
                    format!("={}", words.iter().find(|word| *word != usual).expect("another word"))
                }
                (Kind::Layers, _) => "=3..5".to_owned(),
                (kind, _) => panic!("{}: {kind:?}", option.key),
            };
            assert_ne!(made(&format!("{name}:{}{value}", option.key)), bare, "{name}: {}", option.key);
        }
        // Free probes find an order by themselves; dropped rows have no importance.
        let in_order = bare.evidence().is_some_and(|evidence| {
            evidence.trace.is_some() || evidence.sparse.is_some() || evidence.excerpt.is_some()
        });
        assert_eq!(bare.probes_query() && !in_order, method.takes(&REORDER), "{name}");
        assert_eq!(method.takes(&IMPORTANCE), method.takes(&REORDER), "{name}");
        let moves = method.takes(&REORDER) || method.takes(&KEEP_ORDER);
        assert_eq!(moves, method.takes(&ORDER_FOR), "{name}");
        assert_eq!(method.ratio.is_some(), method.takes(&RATIO), "{name}");
        assert_eq!((method.in_chunks(), method.selects()), (bare.in_chunks(), bare.selects()), "{name}");
        assert!(!method.in_chunks() || method.selects(), "{name}");
        assert!(!method.is_exact() || !method.selects(), "{name}");
        assert_eq!(method.needs(Requirement::AuxiliaryModel), bare.auxiliary_reading().is_some(), "{name}");
    }
}

#[test]
fn resolved_options_tell_every_default_of_the_method_itself() {
    let told = |text: &str| resolved(text).expect("a method").1.to_string();
    assert_eq!(told("infoflow"), ":score=norm:layers=22..26:layout=global");
    assert_eq!(told("infoflow:layers=1..3:ratio=0.5"), ":ratio=0.5:score=norm:layers=1..3:layout=global");
    assert_eq!(told("samkv:blocks=3"), ":variant=large:blocks=3:theta=0.9");
    assert_eq!(told("trace"), ":alpha=0.18");
    assert_eq!(told("qcfuse-like:anchors=2"), ":score=norm:layer=24:anchors=2:chunks=0.5:layout=global");
    assert_eq!(told("full"), "");
}

#[test]
fn a_method_travels_by_its_name() {
    let config = bincode::config::standard();
    for method in METHODS {
        for sample in method.samples {
            let bytes = bincode::serde::encode_to_vec(made(sample), config).expect("bytes");
            let (read, _) = bincode::serde::decode_from_slice::<PlannedMethod, _>(&bytes, config).expect("a method");
            assert_eq!(read, made(sample));
        }
    }
    let mut bytes = bincode::serde::encode_to_vec(made("full"), config).expect("bytes");
    bytes[1] = b'F';
    assert!(bincode::serde::decode_from_slice::<PlannedMethod, _>(&bytes, config).is_err(), "no method Full");
}

/// Every family has a method, and controls are not mixed with other methods.
#[test]
fn families_follow_from_what_methods_do() {
    let of = |name: &str| made(name).family();
    for method in METHODS {
        let family = made(method.name).family();
        let is_whole = made(method.name).prefill.is_whole();
        assert_eq!(family == Family::Exact, method.is_exact() || is_whole, "{}", method.name);
        assert_eq!(matches!(family, Family::Exact | Family::Blocks), !method.selects(), "{}", method.name);
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
        ("spec-prefill-like", Family::Auxiliary),
    ];
    for (name, family) in wanted {
        assert_eq!(of(name), family, "{name}");
    }
    for family in Family::ALL {
        assert!(METHODS.into_iter().any(|method| made(method.name).family() == family), "{family:?}");
    }
}

#[test]
fn evidence_is_what_the_papers_say() {
    let of = |text: &str| made(text).evidence().expect("it asks the query");
    let infoflow = of("infoflow:score=mass:layers=3..5");
    assert_eq!((infoflow.layers.of(40), infoflow.over_context, infoflow.score), (3..5, false, Score::Mass));
    for (layers, wanted) in [(40, 22..26), (5, 2..4), (1, 0..1)] {
        let infoflow = Method::find("infoflow").expect("a method");
        let model = ModelFacts::new(layers, 2);
        let (made, _) = PlannedMethod::new(infoflow, Options::default(), model).expect("usual layers");
        assert_eq!(made.evidence().expect("it asks the query").layers.of(layers), wanted);
    }
    let prophetkv = of("prophetkv:layout=hl-hp");
    assert_eq!((prophetkv.layers.of(40), prophetkv.over_context, prophetkv.score), (0..40, true, Score::Mass));
    let a3 = of("a3");
    assert_eq!((a3.layers.of(40), a3.over_context, a3.score, a3.heads), (0..1, true, Score::Mass, Heads::Sum));
    let attn_drift = of("attn-drift:score=mass");
    assert_eq!((attn_drift.layers, attn_drift.half, attn_drift.score), (Layers::Some(16, 38), Some(32), Score::Mass));
    assert_eq!(
        of("attn-drift:layers=3..6:half=7"),
        Evidence { half: Some(7), recency: Some(2.0), ..of("infoflow:layers=3..6") }
    );
    assert_eq!((of("infoflow").recency, of("attn-drift:recency=0.5").recency), (None, Some(0.5)));
    assert_eq!(of("relay:layout=hl-hp"), Evidence { pass_divisor: Some(3), ..prophetkv });
    let trace =
        Trace { alpha: 0.25, share: 0.4, decay: 0.9, rounds: 4, keep_order: true, heads: TraceHeads::Sharpest(0.5) };
    assert_eq!(of("ideal"), Evidence { over_context: false, oracle: true, layout: Layout::Global, ..prophetkv });
    let found = of("trace:alpha=0.25:sharpest=0.5:keep-order");
    assert_eq!(found, Evidence { trace: Some(trace), layout: Layout::Global, ..prophetkv });
    assert_eq!(of("samkv").layers.of(40), 35..40);
    assert_eq!(made("samkv").sparse(), Some(SamKv { variant: SamKvVariant::Large, blocks: 2, theta: 0.9 }));
    assert_eq!(made("ape").parallel(), Some(Ape { temperature: 0.9, scale: 0.9 }));
    assert_eq!(Ape { temperature: 0.5, scale: 0.5 }.weight(), 0.25);
}

#[test]
fn ever_fewer_rows_go_on_until_the_budget_is_left() {
    let left = |layers, budget| Drift { layers, ..Drift::default() }.left(budget);
    assert_eq!(left(1, 30), [30]);
    assert_eq!(left(3, 30), [50, 40, 30]);
    assert_eq!(left(4, 2), [3, 3, 2, 2], "few rows leave a few at a time");
    assert_eq!(left(2, 0), [0, 0]);
    let blind = Drift { layers: 4, blind: 2, ..Drift::default() }.left(30);
    assert_eq!(blind, [usize::MAX, usize::MAX, 45, 30], "windows tell nothing");
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
fn what_the_model_does_not_allow_is_refused_with_what_would_be_right() {
    let refused = |text: &str| {
        let wrong = resolved(text).expect_err("impossible for this model");
        format!("{}: {}", wrong.found, wrong.wanted)
    };
    assert_eq!(refused("all-gather:heads=9"), "all-gather:heads=9: must be from 1 to the model's 8 KV heads");
    let wanted = "must be from 1 to 39: the model has 40 layers, and in the first nothing drifts";
    assert_eq!(refused("cacheblend:drift-layers=40"), format!("cacheblend:drift-layers=40: {wanted}"));
    for layers in ["5..5", "39..41"] {
        let wanted = "must be FIRST..END with FIRST < END, and the model has 40 layers";
        assert_eq!(refused(&format!("infoflow:layers={layers}")), format!("infoflow:layers={layers}: {wanted}"));
    }
    assert_eq!(refused("qcfuse-like:layer=40"), "qcfuse-like:layer=40: must be from 0 to 39: the model has 40 layers");
    let kvshare = Method::find("kvshare").expect("a method");
    let one = PlannedMethod::new(kvshare, Options::default(), ModelFacts { layers: 1, ..MODEL });
    let one = one.expect_err("one layer");
    assert!(one.found == "kvshare" && one.wanted.contains("1 layer,"), "{one:?}");
}

#[test]
fn a_document_keeps_its_ends_and_some_blocks() {
    let small = SamKv { variant: SamKvVariant::Small, blocks: 2, theta: 0.9 };
    assert_eq!((small.always_of(45), small.blocks_of(45)), ([0..8, 29..45], vec![8..16, 16..24, 24..29]));
    assert_eq!((small.always_of(20), small.blocks_of(20)), ([0..8, 8..20], vec![]), "the tail begins after the head");
    assert_eq!(small.always_of(5), [0..5, 5..5]);
    assert_eq!([5, 24, 27, 45, 400].map(|length| small.kept_of(length)), [5, 24, 27, 40, 40]);
    let large = SamKv { variant: SamKvVariant::Large, ..small };
    assert_eq!([192, 200, 2048].map(|length| large.kept_of(length)), [192, 200, 320]);
    let wide = SamKv { blocks: usize::MAX, ..small };
    assert_eq!(wide.kept_of(4000), 4000);
}

/// A query sees little of the context in a sliding window, so defaults have a layer without one.
#[test]
fn scored_layers_reach_one_without_a_window() {
    let windowed = |layers: usize, pattern: usize| ModelFacts {
        windowed: (0..layers).filter(|layer| !(layer + 1).is_multiple_of(pattern)).collect(),
        ..ModelFacts::new(layers, 2)
    };
    let layers = |spec: &str, model: ModelFacts| {
        let planned = spec.parse::<MethodSpec>().expect("a spec").planned(model).expect("a method of the model");
        planned.evidence().expect("a method that asks the query").layers.of(model.layers)
    };
    // Gemma 3 with 34 and 62 layers, gpt-oss with 24.
    let cases = [
        ("infoflow", [18..24, 34..41, 13..16]),
        ("a3", [0..6, 0..6, 0..2]),
        ("qcfuse-like", [23..24, 41..42, 15..16]),
        ("qcfuse-like:layer=2", [2..3, 2..3, 2..3]),
    ];
    for (spec, expected) in cases {
        let found = [windowed(34, 6), windowed(62, 6), windowed(24, 2)].map(|model| layers(spec, model));
        assert_eq!(found, expected, "{spec}");
    }
    assert_eq!(layers("infoflow", windowed(20, 11)), 10..13, "the layer before, where none follows");
    assert_eq!(layers("qcfuse-like", windowed(20, 11)), 10..11);
    assert_eq!(layers("infoflow", ModelFacts::new(34, 2)), 18..23);
    assert_eq!(layers("infoflow:layers=1..3", windowed(34, 6)), 1..3, "as it is asked for");
    let all = ModelFacts { windowed: (0..34).collect(), ..ModelFacts::new(34, 2) };
    assert_eq!(layers("infoflow", all), 18..23, "no layer sees all");
}
