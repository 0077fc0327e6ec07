//! Methods that drop context rows, in the case with a closed form: an excerpt, the spans of a small
//! model, and SAM-KV with θ = 1, answer as a prefill of the kept rows alone, at their places, in
//! every world and exchange, and decoding sees no other row.

use tributary_kernels::{Kernels, Keys, Partial, Positions};
use tributary_model::{Attention, Model, Progress, Qkv, Result};
use tributary_protocol::{Exchange, Outcome, Plan, SamKv, SamKvVariant, TextHints};
use tributary_tests::equal::Largest;
use tributary_tests::{dummy_model, logits, method, plan, relative_error, run, samkv, tiny_config, with_ratio};

const EXCHANGES: [Exchange; 3] = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];

/// Prefix, chunk lengths, query length.
type Shape = (usize, &'static [usize], usize);
const SHAPES: [Shape; 3] = [(4, &[70, 1, 150, 33, 64, 5, 90], 9), (0, &[60, 41], 1), (2, &[130], 6)];

/// A method's plan of a shape, for a number of ranks.
type Asked<'a> = &'a dyn Fn(Shape, usize, Exchange) -> Plan;

/// Rows of one pass that see each other and no other row, at any positions.
struct Alone<'a> {
    model: &'a dyn Model,
    at: Positions,
    progress: Progress,
}

impl Attention for Alone<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let keys = [Keys { k: qkv.k, v: qkv.v, at: self.at.clone() }];
        self.model.layer_attention(1024)?[layer].attend(Kernels::Plain, &qkv.q, &self.at, &keys)
    }
}

/// Logits after prefix, the given context rows, query and `tokens`, each at its own place.
fn alone(model: &dyn Model, plan: &Plan, kept: &[u32], tokens: &[u32]) -> Vec<f32> {
    let all: Vec<u32> = plan.all_ids().into_iter().chain(tokens.iter().copied()).collect();
    let rows: Vec<u32> = (0..plan.prefix_tokens() as u32)
        .chain(kept.iter().copied())
        .chain(plan.query_rows().start..all.len() as u32)
        .collect();
    let ids: Vec<u32> = rows.iter().map(|&row| all[row as usize]).collect();
    let at = Positions::in_sequence(rows.clone(), rows);
    let mut attention = Alone { model, at, progress: Progress::default() };
    let found =
        model.layers(0..model.config().layers, model.embed(&ids).expect("ids"), &mut attention).expect("layers");
    let logits = model.logits(&found.last(1).expect("a row")).expect("logits");
    logits.flatten_all().and_then(|logits| logits.to_vec1()).expect("f32")
}

/// A plan of an excerpt of two fifths, whose sentences end with every seventh row. Every fifth row
/// shares a word with the query, which names the last two chunks.
fn excerpt(shape: Shape, world: usize, exchange: Exchange) -> Plan {
    let plan = plan(shape.0, shape.1, shape.2, world, method("excerpt"), exchange);
    let rows = || plan.token_rows().into_iter();
    let sentence_ends = rows().filter(|row| row % 7 == 0).collect();
    let shared_words = rows().filter(|row| row % 5 == 0).map(|row| (row, 1.0 / row as f32)).collect();
    let named = plan.chunk_rows().iter().rev().take(2).map(|rows| rows.start).collect();
    with_ratio(Plan { max_tokens: 4, text: TextHints { sentence_ends, shared_words, named }, ..plan }, 0.4)
}

/// A plan of two fifths in spans of seven rows, without any chunk prefilled.
fn spans(shape: Shape, world: usize, exchange: Exchange) -> Plan {
    let plan = plan(shape.0, shape.1, shape.2, world, method("spec-prefill-like:span=7"), exchange);
    with_ratio(Plan { max_tokens: 4, ..plan }, 0.4)
}

fn likeliest(logits: &[f32]) -> u32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit == best).expect("logits") as u32
}

fn asked(shape: Shape, world: usize, theta: f32, exchange: Exchange) -> Plan {
    let method = samkv(SamKvVariant::Small, theta);
    with_ratio(Plan { max_tokens: 4, ..plan(shape.0, shape.1, shape.2, world, method, exchange) }, 1.0)
}

#[test]
fn what_is_kept_is_a_prefill_of_its_own_and_nothing_else_is_seen() {
    let parts = |shape, world, exchange| asked(shape, world, 1.0, exchange);
    let methods: [(&'static str, Asked<'_>); 3] = [
        ("samkv at theta 1 = a prefill of the kept rows", &parts),
        ("excerpt = the same", &excerpt),
        ("spec-prefill-like = the same", &spans),
    ];
    for (name, asked) in methods {
        is_a_prefill_of_its_own(name, asked);
    }
}

/// A single chunk is exact as it is.
#[test]
fn there_is_no_excerpt_of_a_single_chunk() {
    let model = dummy_model(&tiny_config(&[]), 1);
    let plan = excerpt(SHAPES[2], 1, Exchange::PassQ);
    let found = run(&model, 1, &plan).0;
    let full = run(&model, 1, &Plan { method: method("full"), ..plan.clone() }).0;
    assert!(plan.is_exact() && !plan.drops() && found.selected.is_empty());
    assert!(relative_error(logits(&found), logits(&full)) < 1e-4);
    assert_eq!(found.tokens, full.tokens);
}

fn is_a_prefill_of_its_own(name: &'static str, asked: Asked<'_>) {
    let mut largest = Largest::new(name);
    let model = dummy_model(&tiny_config(&[]), 1);
    for shape in SHAPES {
        let one = asked(shape, 1, Exchange::PassQ);
        if !one.drops() {
            continue; // an excerpt of a single chunk
        }
        let kept = run(&model, 1, &one).0.selected;
        assert!(!kept.is_empty() && kept.len() < one.context_rows(), "{name}, {shape:?}: something is dropped");
        let expected = alone(&*model, &one, &kept, &[]);
        let mut tokens = Vec::new();
        for _ in 0..one.max_tokens {
            tokens.push(likeliest(&alone(&*model, &one, &kept, &tokens)));
        }
        for world in 1..=4 {
            for exchange in EXCHANGES {
                let found: Outcome = run(&model, world, &asked(shape, world, exchange)).0;
                let what = format!("{name}, {shape:?}, world {world}, {exchange:?}");
                assert_eq!(found.selected, kept, "{what}");
                largest.check(relative_error(logits(&found), &expected), &what);
                assert_eq!(found.tokens, tokens, "{what}");
            }
        }
    }
}

#[test]
fn what_is_cached_comes_into_it_and_every_world_answers_alike() {
    let mut largest = Largest::new("samkv in world W = world 1");
    let model = dummy_model(&tiny_config(&[]), 1);
    for shape in SHAPES {
        let of = |theta| run(&model, 1, &asked(shape, 1, theta, Exchange::PassQ)).0;
        let (one, fresh) = (of(0.5), of(1.0));
        let error = relative_error(logits(&one), logits(&fresh));
        // One chunk is cached unchanged, apart from the dropped rows.
        assert!(error > 1e-4, "{shape:?}: half of it is what was cached: {error:e}");
        for world in 2..=4 {
            for exchange in EXCHANGES {
                let found = run(&model, world, &asked(shape, world, 0.5, exchange)).0;
                let what = format!("{shape:?}, world {world}, {exchange:?}");
                assert_eq!(found.selected, one.selected, "{what}");
                largest.check(relative_error(logits(&found), logits(&one)), &what);
                assert_eq!(found.tokens, one.tokens, "{what}");
            }
        }
    }
}

/// Of the sentences by their means, each that fits is kept whole, and of the best other one a run
/// that fills the budget.
#[test]
fn an_excerpt_has_the_best_sentences_that_fit() {
    let model = dummy_model(&tiny_config(&[]), 1);
    let mut plan = excerpt(SHAPES[0], 3, Exchange::Selected);
    let opened = run(&model, 3, &plan).0;
    let half = plan.budget / 2;
    for &first in &plan.text.named {
        let from = opened.selected.partition_point(|&row| row < first);
        assert!((first..).take(half / 2).eq(opened.selected[from..].iter().copied().take(half / 2)));
    }
    plan.text.named.clear();
    let found = run(&model, 3, &plan).0;
    assert_ne!(opened.selected, found.selected);
    let scores = found.scores.expect("scores of the context's rows");
    let mut sentences: Vec<Vec<u32>> = Vec::new();
    for rows in plan.chunk_rows() {
        sentences.push(Vec::new());
        for row in rows.clone() {
            sentences.last_mut().expect("one").push(row);
            if plan.text.sentence_ends.contains(&row) && row + 1 < rows.end {
                sentences.push(Vec::new());
            }
        }
    }
    let mean = |rows: &[u32]| {
        rows.iter().map(|row| scores[*row as usize - plan.prefix_tokens()]).sum::<f32>() / rows.len() as f32
    };
    sentences.sort_by(|one, other| mean(other).total_cmp(&mean(one)));
    let (mut left, mut others) = (plan.budget, Vec::new());
    for sentence in &sentences {
        let kept = sentence.iter().filter(|row| found.selected.binary_search(row).is_ok()).count();
        if sentence.len() <= left {
            assert_eq!(kept, sentence.len(), "{sentence:?}");
            left -= kept;
        } else {
            others.push(kept);
        }
    }
    assert!(others.iter().skip(1).all(|&kept| kept == 0), "one other sentence fills the budget: {others:?}");
    assert_eq!((others.first().copied().unwrap_or(0), found.selected.len()), (left, plan.budget));
}

/// The kept rows are the ends of every document and its best blocks by the reported scores.
#[test]
fn the_best_blocks_of_every_document_are_kept() {
    let model = dummy_model(&tiny_config(&[]), 1);
    let shape = SHAPES[0];
    let found = run(&model, 3, &asked(shape, 3, 0.9, Exchange::PassQ)).0;
    let plan = asked(shape, 3, 0.9, Exchange::PassQ);
    let scores = found.scores.expect("scores of the context's rows");
    let parameters = plan.method.sparse().expect("the method that was asked for");
    let sum: f32 = scores.iter().sum();
    let documents = plan.chunks.len() as f32 * plan.query_tokens() as f32;
    assert!((sum / documents - 1.0).abs() < 1e-4, "a 1 for each document and query row: {sum} of {documents}");
    for rows in plan.chunk_rows() {
        let SamKv { blocks: most, .. } = parameters;
        let [head, tail] = parameters.always_of(rows.len());
        let is_kept = |row: usize| found.selected.binary_search(&(rows.start + row as u32)).is_ok();
        assert!(head.chain(tail).all(is_kept), "the ends of {rows:?}");
        let from = (rows.start as usize) - plan.prefix_tokens();
        let blocks = parameters.blocks_of(rows.len());
        let score = |block: &std::ops::Range<usize>| scores[from..][block.clone()].iter().sum::<f32>();
        let (kept, dropped): (Vec<_>, Vec<_>) = blocks.iter().partition(|block| is_kept(block.start));
        assert_eq!(kept.len(), blocks.len().min(most), "blocks of {rows:?}");
        let least = kept.iter().map(|block| score(block)).fold(f32::INFINITY, f32::min);
        assert!(dropped.iter().all(|block| score(block) <= least), "the best blocks of {rows:?}");
        assert!(dropped.iter().all(|block| !(*block).clone().any(is_kept)), "a block is dropped whole, in {rows:?}");
    }
}
