//! Rows of an adapter around chunks count for positions, order and memory and are cached with the
//! chunk. They are never tokens of the context and never selected.
//! The test adapter's rows are tokens' own embeddings.

use tributary_kernels::Kernels;
use tributary_model::{Adapters, Model, Progress};
use tributary_protocol::{Around, Chunk, Exchange, KeySpace, Plan, Source};

use super::chunks;
use super::selective::{Selective, clear_around};
use crate::chunk_cache::ChunkCache;
use crate::context::Context;
use crate::kit;
use crate::models::Models;
use crate::strategy::Strategy;

/// The state of the query's last row at the end, and the selection.
fn prefilled(model: &dyn Model, plan: &Plan, adapters: &Adapters, world: usize) -> (Vec<f32>, Vec<u32>, usize) {
    let found = kit::on_ranks(world, |comm| {
        let mut cache = ChunkCache::new(KeySpace::new([1; 32], "f32"), 1 << 20);
        let progress = Progress::default();
        let models = Models::from(model).with_adapters(adapters.clone());
        let mut cx = Context::new(models, comm, Kernels::Auto, (plan, 200), &progress, &mut cache).expect("a context");
        let selector = plan.method.selector().expect("a selector");
        let prefilled = Selective { selector }.prefill(&mut cx, plan).expect("prefilled");
        chunks::keep(&mut cx, plan, &prefilled.cache).expect("kept");
        let last = prefilled.output.last.map(|last| last.hidden.flatten_all().and_then(|x| x.to_vec1()).expect("f32"));
        (last, prefilled.selection.rows, prefilled.selection.candidates)
    });
    let (_, rows, candidates) = found[0].clone();
    (found.into_iter().find_map(|(last, ..)| last).expect("an owner"), rows, candidates)
}

/// The same rows twice: chunks of tokens alone, and chunks whose outer tokens are an adapter's
/// rows.
fn twins(world: usize, exchange: Exchange) -> (Plan, Plan) {
    let tokens = Plan { exchange, ..kit::plan(2, &[9, 8, 7], 4, world) };
    let mut around = tokens.clone();
    for chunk in &mut around.chunks {
        let ids = &chunk.ids[2..chunk.ids.len() - 1];
        *chunk = Chunk { ids: ids.to_vec(), around: Some(Around { adapter: 3, head: 2, tail: 1 }), ..chunk.clone() };
    }
    // An adapter has one header and one trailer for all chunks.
    let mut tokens = tokens;
    for chunk in &mut tokens.chunks {
        let last = chunk.ids.len() - 1;
        (chunk.ids[0], chunk.ids[1], chunk.ids[last]) = (50, 51, 52);
    }
    (tokens, around)
}

#[test]
fn rows_of_an_adapter_are_rows_like_others_and_no_tokens() {
    let model = kit::model(&kit::config());
    let embeddings = model.embed(&[50, 51, 52]).expect("ids").hidden;
    let adapters = Adapters::new([(3, embeddings)]);
    for (world, exchange) in [(1, Exchange::Replicate), (2, Exchange::Replicate), (2, Exchange::PassQ)] {
        let (tokens, around) = twins(world, exchange);
        assert_eq!((tokens.context_tokens(), around.context_tokens()), (24, 15), "T counts tokens");
        assert_eq!((tokens.total_rows(), around.total_rows()), (30, 30), "positions and memory count rows");
        let (expected, ..) = prefilled(&*model, &tokens, &adapters, world);
        let (found, ..) = prefilled(&*model, &around, &adapters, world);
        assert_eq!(found, expected, "world {world}, {exchange:?}: bit for bit");

        // No selection contains a row of the adapter; with the whole budget it has every token of
        // the later chunks.
        let all = Plan { method: kit::method("prophetkv"), budget: 15, ..around.clone() };
        let (_, selected, candidates) = prefilled(&*model, &all, &adapters, world);
        let sources = all.sources();
        assert!(selected.iter().all(|&row| matches!(sources[row as usize], Source::Token(_))), "{selected:?}");
        assert_eq!((selected.len(), candidates), (9, 9), "5 + 4 tokens after the first chunk");
    }
}

/// The query's attention to an adapter's rows says nothing about a token: it counts in no score,
/// nor in the order of chunks.
#[test]
fn numbers_of_an_adapters_rows_count_for_nothing() {
    let (tokens, around) = twins(1, Exchange::Replicate);
    let mut numbers: Vec<f32> = (1..=24).map(|number| number as f32).collect();
    clear_around(&around, &mut numbers);
    assert_eq!(numbers[..4], [0.0, 0.0, 3.0, 4.0], "two rows before the first chunk's tokens");
    assert_eq!(numbers[8..11], [0.0, 0.0, 0.0], "one after them, and two before the next");
    assert_eq!(numbers.iter().filter(|number| **number > 0.0).count(), around.context_tokens());
    let mut bare = vec![1.0; 24];
    clear_around(&tokens, &mut bare);
    assert_eq!(bare, vec![1.0; 24]);
}

#[test]
fn what_stands_around_a_chunk_is_part_of_its_name() {
    let (tokens, around) = twins(1, Exchange::Replicate);
    let space = KeySpace::new([1; 32], "f32");
    let name = |chunk: &Chunk| space.chunk(&[], &chunk.ids, &chunk.extra(None));
    let alone = Chunk { around: None, ..around.chunks[0].clone() };
    let longer = Chunk { around: Some(Around { adapter: 3, head: 3, tail: 1 }), ..alone.clone() };
    let names = [name(&tokens.chunks[0]), name(&around.chunks[0]), name(&alone), name(&longer)];
    assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
}
