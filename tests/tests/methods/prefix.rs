//! Methods that reuse the longest cached prefix of a prompt: the answer is a full prefill's, and
//! exactly the rows after the common prefix are computed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_protocol::{Exchange, METHODS, Outcome, PIECE_ROWS, Plan, RankReport};
use tributary_tests::samples::Case;
use tributary_tests::{
    dummy_model, kept, key_space, logits, method, open_store, plan, relative_error, run_all, run_one, stored_group,
    tiny_config,
};

/// Tokens of the prompt's parts: a chunk of more than two pieces between shorter ones.
const PREFIX: usize = 3;
const CHUNKS: [usize; 3] = [17, 150, 23];
const QUERY: usize = 6;
const TOTAL: usize = PREFIX + 17 + 150 + 23 + QUERY;

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 11)
}

/// Every method that reuses a prefix.
fn names() -> impl Iterator<Item = &'static str> {
    METHODS.into_iter().filter(|method| method.reuses_prefix()).map(|method| method.name)
}

/// The plan of the prompt, which may reuse and keep everything.
fn first(name: &str, world: usize) -> Plan {
    kept(Plan { reused_rows: TOTAL - 1, ..plan(PREFIX, &CHUNKS, QUERY, world, method(name), Exchange::Replicate) })
}

fn other(id: &mut u32) {
    *id = (*id + 31) % 96;
}

/// Prompts after the first one, each with the rows that it shares with it in whole pieces.
fn later(plan: &Plan) -> Vec<(&'static str, Plan, usize)> {
    let changed = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        let (ids, other) = (first_ids(), plan.all_ids());
        let common = ids.iter().zip(&other).take_while(|(a, b)| a == b).count();
        (plan, common / PIECE_ROWS * PIECE_ROWS)
    };
    let with = |what, (plan, reused)| (what, plan, reused);
    let plans = vec![
        ("the same again", plan.clone(), TOTAL - 1),
        with("another query", changed(&|plan| other(&mut plan.query[0]))),
        with("a longer query", changed(&|plan| plan.query.extend([7; 70]))),
        with("another last document", changed(&|plan| other(&mut plan.chunks[2].ids[0]))),
        with("a change within a document", changed(&|plan| other(&mut plan.chunks[1].ids[100]))),
        with("documents in another order", changed(&|plan| plan.chunks.swap(0, 1))),
        with("another prefix", changed(&|plan| other(&mut plan.prefix[0]))),
        ("another scope", Plan { scope: Some(5), ..plan.clone() }, 0),
        ("a plan that reuses nothing", Plan { reused_rows: 0, ..plan.clone() }, 0),
        ("a plan that reuses half a piece", Plan { reused_rows: 97, ..plan.clone() }, 97),
    ];
    let shared: Vec<usize> = plans.iter().map(|(_, _, reused)| *reused).collect();
    assert_eq!(shared, [TOTAL - 1, 192, 192, 128, 64, 0, 0, 0, 0, 97]);
    plans
}

/// The tokens of the first prompt.
fn first_ids() -> Vec<u32> {
    first("full", 1).all_ids()
}

/// Checks a result against a full prefill of the same prompt, and the rows that it computed.
fn check(model: &Arc<dyn Model>, plan: &Plan, reused: usize, found: &(Outcome, Vec<RankReport>), what: &str) {
    let world = found.1.len();
    let whole = Plan { method: method("full"), reused_rows: 0, keep_chunks: false, ..plan.clone() };
    let whole = run_all(model, Kernels::Auto, world, &[whole]).swap_remove(0).0;
    let error = relative_error(logits(&whole), logits(&found.0));
    assert!(error < 1e-4, "{what}: {error:e}");
    assert_eq!(whole.tokens, found.0.tokens, "{what}");
    let sum = |of: fn(&RankReport) -> usize| found.1.iter().map(of).sum::<usize>();
    assert_eq!(sum(|report| report.prefilled_rows), plan.total_rows() - reused, "rows computed: {what}");
    assert_eq!(sum(|report| report.chunk_cache.hit_tokens), reused, "rows from the cache: {what}");
}

#[test]
fn rows_after_the_longest_cached_prefix_are_computed_and_the_answer_is_a_full_prefills() {
    let model = model();
    for name in names() {
        for world in 1..=3 {
            let first = first(name, world);
            for (what, next, reused) in later(&first) {
                let what = format!("{name}, world {world}, {what}");
                let found = run_all(&model, Kernels::Auto, world, &[first.clone(), next.clone()]);
                check(&model, &first, 0, &found[0], &what);
                check(&model, &next, reused, &found[1], &what);
            }
            // Pieces are on their owner: another rank has none.
            if world > 1 {
                let elsewhere = Plan { owner: (first.owner + 1) % world, ..first.clone() };
                let found = run_all(&model, Kernels::Auto, world, &[first.clone(), elsewhere.clone()]);
                check(&model, &elsewhere, 0, &found[1], "another owner");
                assert!(
                    found[1].1.iter().any(|report| report.chunk_cache.misses > 0),
                    "what was called cached is missed"
                );
            }
        }
    }
}

/// A piece is found only after the piece that it was computed after, although another prompt has
/// left it in the cache.
#[test]
fn a_piece_after_other_tokens_is_another_piece() {
    let model = model();
    for name in names() {
        let first = first(name, 1);
        // Other tokens in the first piece and in the second.
        let mut second = first.clone();
        other(&mut second.prefix[0]);
        other(&mut second.chunks[1].ids[60]);
        // The first piece of the one, and the others of the other.
        let mixed = Plan { prefix: first.prefix.clone(), ..second.clone() };
        let found = run_all(&model, Kernels::Auto, 1, &[first, second, mixed.clone()]);
        check(&model, &mixed, PIECE_ROWS, &found[2], name);
    }
}

/// A prompt whose documents were put into the order of a cached one is computed as that one, rows
/// keep their numbers, and the order is told.
#[test]
fn documents_in_the_order_of_a_cached_prompt_are_that_prompt() {
    let model = model();
    for method in METHODS.into_iter().filter(|method| tributary_tests::method(method.name).orders_chunks()) {
        let first = Plan { max_tokens: 6, ..first("prefix-cache", 2) };
        let mut moved = Plan { method: tributary_tests::method(method.name), order: vec![1, 2, 0], ..first.clone() };
        moved.chunks.rotate_right(1);
        for evict in [None, evicted(&first)] {
            let [first, moved] = [&first, &moved].map(|plan| Plan { evict: evict.clone(), ..plan.clone() });
            let cold = Plan { reused_rows: 0, keep_chunks: false, ..moved.clone() };
            let found = run_all(&model, Kernels::Auto, 2, &[first, moved.clone(), cold]);
            for (outcome, reports) in &found[1..] {
                let error = relative_error(logits(&found[0].0), logits(outcome));
                assert!(error < 1e-4, "{}: {error:e}", method.name);
                assert_eq!((&outcome.tokens, &outcome.order), (&found[0].0.tokens, &moved.order));
                let reused = reports.iter().map(|report| report.chunk_cache.hit_tokens).sum::<usize>();
                let computed = reports.iter().map(|report| report.prefilled_rows).sum::<usize>();
                assert_eq!(reused + computed, TOTAL);
            }
            assert_eq!(found[1].1.iter().map(|report| report.prefilled_rows).sum::<usize>(), 1, "the last row alone");
        }
    }
}

/// An eviction of the prompt, as a user asks for it.
fn evicted(plan: &Plan) -> Option<tributary_protocol::Evict> {
    let lengths: Vec<usize> = plan.chunks.iter().map(|chunk| chunk.ids.len()).collect();
    let case = Case {
        prefix: PREFIX,
        lead: &[],
        chunks: &lengths,
        query: QUERY,
        world: 2,
        exchange: Exchange::Replicate,
        ratio: 0.3,
    };
    case.planned("full:evict=snapkv:keep=60%", &*model()).expect("a plan").evict
}

/// Runs plans in a separate group on this folder, as a process would.
fn stored(model: &Arc<dyn Model>, folder: &Path, plans: &[Plan]) -> Vec<(Outcome, Vec<RankReport>)> {
    let store = open_store(folder);
    let group = stored_group(model, 2, &store);
    let found = plans.iter().map(|plan| run_one(&group, plan)).collect();
    group.end().expect("the group ends well");
    assert!(store.flush(Duration::from_secs(60)), "everything is written");
    found
}

#[test]
fn after_a_restart_the_prefix_comes_from_the_store_up_to_a_damaged_piece() {
    let model = model();
    for name in names() {
        let (first, folder) = (first(name, 2), tempfile::tempdir().expect("a folder"));
        stored(&model, folder.path(), std::slice::from_ref(&first));
        for (what, next, reused) in later(&first) {
            // Nothing is kept, so that each prompt finds the first one alone.
            let next = Plan { keep_chunks: false, ..next };
            let found = stored(&model, folder.path(), std::slice::from_ref(&next)).swap_remove(0);
            check(&model, &next, reused, &found, &format!("{name} from the store, {what}"));
            let loaded: usize = found.1.iter().map(|report| report.chunk_cache.from_store.loaded_tokens).sum();
            assert_eq!(loaded, reused, "{name}, {what}");
        }
        let damaged = &first.prompt_pieces(&key_space())[2];
        let digits = damaged.key.to_string();
        let file = folder.path().join(&digits[..2]).join(format!("{digits}.safetensors"));
        assert!(file.exists(), "{}", file.display());
        std::fs::write(&file, b"no chunk").expect("damaged");
        let found = stored(&model, folder.path(), &[Plan { keep_chunks: false, ..first.clone() }]).swap_remove(0);
        check(&model, &first, damaged.rows.start, &found, &format!("{name}, a damaged piece"));
        let misses: usize = found.1.iter().map(|report| report.chunk_cache.misses).sum();
        assert_eq!(misses, 2, "the damaged piece, and the one after it");
    }
}
