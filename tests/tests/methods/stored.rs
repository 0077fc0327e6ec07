//! Invariant 6 beyond the process: chunks that come from a store after a restart equal cold ones,
//! bit for bit for the same request, and no damage to a store changes an answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tributary_model::{Model, in_eight_bits};
use tributary_protocol::{Exchange, Outcome, Plan, RankReport, StoreError};
use tributary_tests::equal::assert_same_bits;
use tributary_tests::samples::{Sample, apart};
use tributary_tests::{
    dummy_model, infoflow, kept, logits, open_store, plan, relative_error, run_one, stored_group, tiny_config, warm,
    with_ratio,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 11)
}

/// Runs plans one after the other in a separate group on this folder, as a process would.
fn run_all(model: &Arc<dyn Model>, folder: &Path, world: usize, plans: &[Plan]) -> Vec<(Outcome, Vec<RankReport>)> {
    let store = open_store(folder);
    let group = stored_group(model, world, &store);
    let found = plans.iter().map(|plan| run_one(&group, plan)).collect();
    group.end().expect("the group ends well");
    assert!(store.flush(PATIENCE), "everything is written");
    found
}

fn loaded(reports: &[RankReport]) -> usize {
    reports.iter().map(|report| report.chunk_cache.from_store.loaded).sum()
}

fn spoilt(reports: &[RankReport]) -> usize {
    reports.iter().map(|report| report.chunk_cache.from_store.spoilt).sum()
}

#[test]
fn after_a_restart_stored_chunks_answer_as_cold_ones_bit_for_bit() {
    let models = [model(), model(), in_eight_bits(model())];
    let model = |world: usize| &models[world - 1];
    let shapes: [(usize, &[usize]); 3] = [(3, &[17, 5, 23, 9, 12]), (0, &[14, 6, 11]), (2, &[29])];
    let lists =
        (1..=3).flat_map(|world| apart(&shapes, world, &**model(world)).into_iter().map(move |list| (world, list)));
    for (world, samples) in lists {
        let folder = tempfile::tempdir().expect("a folder");
        let cold: Vec<Plan> = samples.iter().map(|sample| kept(sample.plan.clone())).collect();
        let first = run_all(model(world), folder.path(), world, &cold);
        let again = |sample: &Sample| {
            let warm = warm(sample.plan.clone());
            [warm.clone(), warm.clone(), kept(warm.clone()), kept(warm)]
        };
        let again = run_all(model(world), folder.path(), world, &samples.iter().flat_map(again).collect::<Vec<_>>());
        for ((sample, (cold, _)), again) in samples.iter().zip(&first).zip(again.chunks(4)) {
            let what = format!("{}, world {world}", sample.what());
            for (outcome, _) in again {
                assert_same_bits(outcome, cold, &what);
            }
            let found: Vec<usize> = again.iter().map(|(_, reports)| loaded(reports)).collect();
            let all = sample.plan.chunks.len();
            assert_eq!(found, [all, all, all, 0], "what is loaded is kept in memory if it may: {what}");
            let computed: usize = again[0].1.iter().map(|report| report.prefilled_rows).sum();
            assert_eq!(computed, 0, "nothing is prefilled: {what}");
        }
    }
}

#[test]
fn chunks_in_memory_are_passed_over_where_a_plan_says_so() {
    let (model, folder) = (model(), tempfile::tempdir().expect("a folder"));
    let cold = with_ratio(plan(2, &[17, 5, 23], 6, 2, infoflow(1, 3), Exchange::Replicate), 0.3);
    let store = open_store(folder.path());
    let group = stored_group(&model, 2, &store);
    let first = run_one(&group, &kept(cold.clone()));
    assert!(store.flush(PATIENCE));
    let from_store = Plan { from_store: true, ..warm(cold.clone()) };
    for (plan, wanted) in [(&warm(cold), 0), (&from_store, 3)] {
        let (outcome, reports) = run_one(&group, plan);
        assert_same_bits(&outcome, &first.0, "warm");
        assert_eq!(loaded(&reports), wanted);
    }
    group.end().expect("the group ends well");
}

#[test]
fn another_model_finds_nothing_of_use() {
    let folder = tempfile::tempdir().expect("a folder");
    let cold = with_ratio(plan(2, &[17, 5], 6, 1, infoflow(1, 3), Exchange::Replicate), 0.3);
    run_all(&model(), folder.path(), 1, &[kept(cold.clone())]);
    // The tests' groups name all models alike: here the shape distinguishes them, elsewhere the
    // name of the model's weights.
    let other = dummy_model(&tiny_config(&[("num_hidden_layers", 5.into())]), 11);
    let found = run_all(&other, folder.path(), 1, &[cold.clone(), warm(cold)]);
    let error = relative_error(logits(&found[0].0), logits(&found[1].0));
    assert!(error < 1e-4, "{error:e}");
    assert_eq!(loaded(&found[1].1), 0);
    let errors = &found[1].1[0].chunk_cache.store.as_ref().expect("a store").errors;
    assert!(errors.iter().all(|(_, error, _)| *error == StoreError::Incompatible), "{errors:?}");
}

/// All files of chunks in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let within =
        |folder: &Path| std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = within(folder)
        .filter(|path| path.is_dir() && path.file_name().is_some_and(|name| name.len() == 2))
        .flat_map(|path| within(&path).collect::<Vec<_>>())
        .collect();
    found.sort();
    found
}

#[test]
fn damage_at_a_thousand_random_places_changes_no_answer() {
    const PLACES: usize = 1000;
    let (model, folder) = (model(), tempfile::tempdir().expect("a folder"));
    let store = open_store(folder.path());
    let group = stored_group(&model, 2, &store);
    let exchange = [Exchange::Replicate, Exchange::PassQ];
    let plans = exchange.map(|exchange| with_ratio(plan(3, &[17, 5, 23, 9], 6, 2, infoflow(1, 3), exchange), 0.3));
    let cold = plans.clone().map(|plan| run_one(&group, &kept(plan)).0);
    assert!(store.flush(PATIENCE));
    let (mut random, mut noticed, mut spoilt_chunks) = (0x9e37_79b9_7f4a_7c15_u64, 0, 0);
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let whole = files(folder.path()).len();
    for place in 0..PLACES {
        let files = files(folder.path());
        assert_eq!(files.len(), whole, "what was damaged has been written anew");
        let file = &files[draw(files.len())];
        let mut bytes = std::fs::read(file).expect("its bytes");
        let at = draw(bytes.len());
        match place % 10 {
            // Some end early, some have bytes of another place.
            0 => bytes.truncate(at),
            1 => bytes.copy_within(at / 2..at / 2 + 1, at),
            _ => bytes[at] ^= 1 << draw(8),
        }
        std::fs::write(file, bytes).expect("damaged");
        let which = place % 2;
        let again = Plan { from_store: true, keep_chunks: true, ..warm(plans[which].clone()) };
        let (outcome, reports) = run_one(&group, &again);
        let error = relative_error(logits(&cold[which]), logits(&outcome));
        assert!(error < 1e-4, "place {place}: {error:e}");
        assert_eq!(cold[which].tokens, outcome.tokens, "place {place}");
        let errors =
            reports.iter().filter_map(|report| report.chunk_cache.store.as_ref()).flat_map(|told| &told.errors);
        noticed += usize::from(errors.map(|(_, _, count)| count).sum::<u64>() > 0);
        spoilt_chunks += spoilt(&reports);
        assert!(store.flush(PATIENCE));
    }
    group.end().expect("the group ends well");
    // A space between two words of a header may become another space, and a byte may be copied onto
    // an equal one.
    assert!(noticed * 100 >= PLACES * 85, "{noticed} of {PLACES} were noticed");
    assert!(spoilt_chunks > PLACES / 2, "{spoilt_chunks} chunks were computed in the middle of a request");
    println!("{noticed} of {PLACES} damages were noticed, {spoilt_chunks} chunks computed in the middle of a request");
}
