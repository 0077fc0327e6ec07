//! Gradients, ranks, checkpoints and failures, on a model of two layers with random weights.

mod kit;

use candle_core::{DType, Device, Tensor};
use tributary_model::{AdapterFolder, Progress};

use kit::{AHEAD, PACKET, error_of_gradient, learned, learned_with, model, numbers, samples, settings};
use tributary_train::{Job, Lookahead, Packet, Pupil, Settings, Wish};

/// The name of a checkpoint.
const CHECKPOINT: &str = "checkpoint.safetensors";

#[test]
fn the_loss_has_the_gradient_of_finite_differences() {
    let (model, progress) = (model(DType::F64), Progress::default());
    for (number, sample) in samples(2).iter().enumerate() {
        let packet = Packet::new(2, 1, &*model, 1).expect("a packet");
        let loss = || packet.loss(&*model, (number, sample), &progress).expect("a loss");
        let (apart, largest) = error_of_gradient(&packet.parameters()[0], &loss);
        println!("sample {number}: largest error of a gradient {apart:e}");
        assert!(largest > 1e-3, "the vectors matter: {largest:e}");
        assert!(apart < 1e-7, "sample {number}: {apart:e}");
    }
}

#[test]
fn rows_ahead_have_the_gradient_of_finite_differences_in_every_matrix() {
    let (model, progress) = (model(DType::F64), Progress::default());
    let sample = &samples(2)[1];
    let ahead = Lookahead::new((3, 2, 8.0), &*model, 1).expect("rows");
    let parameters = ahead.parameters();
    assert_eq!(parameters.len(), 1 + 2 * 7 * 2, "embeddings, and A and B of seven linear layers in two layers");
    // B begins as 0, where A would have no gradient.
    for (place, var) in parameters.iter().enumerate().filter(|(place, _)| *place != 0 && place % 2 == 0) {
        let values: Vec<f64> =
            (0..var.elem_count()).map(|i| ((i * 37 + place * 11) % 101) as f64 / 500.0 - 0.1).collect();
        var.set(&Tensor::from_vec(values, var.dims(), &Device::Cpu).expect("numbers")).expect("set");
    }
    let loss = || ahead.loss(&*model, (1, sample), &progress).expect("a loss");
    let behind_last_keys = 1 + 2 * (7 + 2);
    let mut most = 0.0f64;
    for (place, var) in parameters.iter().enumerate() {
        if place >= behind_last_keys {
            // Only the attention of the last layer is read: its values and later parts have no
            // gradient.
            let gradients = loss().backward().expect("gradients");
            let found = gradients.get(var).map_or(0.0, |found| numbers(found).iter().map(|x| x.abs()).sum());
            assert_eq!(found, 0.0, "parameter {place}");
            continue;
        }
        let (apart, largest) = error_of_gradient(var, &loss);
        assert!(largest > 1e-6, "parameter {place} matters: {largest:e}");
        assert!(apart < 1e-6, "parameter {place}: {apart:e}");
        most = most.max(apart);
    }
    println!("largest error of a gradient {most:e}");
}

#[test]
fn rows_ahead_are_learned_alike_in_every_world_and_in_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = |name: &str| folder.path().join(name);
    let settings = Settings { epochs: 6, learning_rate: 0.02, ..settings() };
    let learned = |world: usize, name: &str, change: &(dyn Fn(&mut Job<'_>) + Sync)| {
        learned_with((&AHEAD, &settings), world, &out(name), change).expect("learned")
    };
    let one = learned(1, "1", &|_| ());
    for world in [2, 3] {
        let found = learned(world, &world.to_string(), &|_| ());
        let apart = found.iter().zip(&one).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
        println!("world {world}: {apart:e}");
        assert!(apart < 1e-5, "world {world}: {apart:e}");
    }
    let half = learned(1, "parts", &|job| job.stop_after = Some(5));
    assert_ne!(half, one);
    assert_eq!(learned(1, "parts", &|job| job.resume = true), one, "bit for bit");
    let summary = std::fs::read_to_string(out("1").join("training.json")).expect("a summary");
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
    let losses: Vec<f64> = serde_json::from_value(summary["epoch_losses"].clone()).expect("losses");
    assert!(losses[5] < 0.8 * losses[0], "{losses:?}");
    let read = AdapterFolder::read(&out("1"), model(DType::F32).config(), [7; 32]).expect("an adapter");
    let low_rank = read.adapter.low_rank.expect("matrices");
    let written: Vec<f64> = numbers(&read.adapter.embeddings);
    assert_eq!((written.as_slice(), low_rank.pairs().count()), (&one[..written.len()], 14));
    assert_eq!(Wish::Adapter(read.config.kind), AHEAD);
}

#[test]
fn every_world_learns_the_same_and_the_loss_falls() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = |world: usize| folder.path().join(world.to_string());
    let one = learned(1, &out(1), |_| ()).expect("learned");
    for world in [2, 3] {
        let found = learned(world, &out(world), |_| ()).expect("learned");
        let apart = found.iter().zip(&one).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart < 1e-5, "world {world}: {apart:e}");
    }
    let rows = std::fs::read_to_string(out(1).join("loss.csv")).expect("a table");
    let losses: Vec<f64> =
        rows.lines().skip(1).map(|row| row.split(',').nth(2).and_then(|x| x.parse().ok()).expect("a loss")).collect();
    assert_eq!(losses.len(), 4, "{rows}");
    assert!(losses[3] < losses[0], "{losses:?}");
    let config = model(DType::F32);
    let read = AdapterFolder::read(&out(1), config.config(), [7; 32]).expect("an adapter");
    let written = numbers(&read.adapter.embeddings);
    assert!(written.iter().zip(&one).all(|(a, b)| a == b), "the adapter has the learned vectors");
    assert!(out(1).join("loss.svg").exists() && !out(1).join(CHECKPOINT).exists());
}

#[test]
fn four_steps_are_two_and_two_more_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let straight = learned(2, &folder.path().join("a"), |_| ()).expect("learned");
    let parts = folder.path().join("b");
    let half = learned(2, &parts, |job| job.stop_after = Some(3)).expect("learned");
    assert_ne!(half, straight);
    assert!(parts.join(CHECKPOINT).exists(), "there is something to go on from");
    assert_eq!(learned(1, &parts, |job| job.resume = true).expect("resumed").len(), straight.len());
    let _ = learned(2, &parts, |job| job.stop_after = Some(3)).expect("learned");
    assert_eq!(learned(2, &parts, |job| job.resume = true).expect("resumed"), straight);
}

#[test]
fn what_cannot_be_gone_on_from_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path();
    let said = |change: &(dyn Fn(&mut Job<'_>) + Sync)| {
        let error = learned(1, out, change).expect_err("refused");
        (error.exit_code(), error.to_string())
    };
    let resume = |job: &mut Job<'_>| job.resume = true;
    assert_eq!(said(&resume).0, 64, "no checkpoint");
    learned(1, out, |job| job.stop_after = Some(1)).expect("learned");
    let (code, line) = said(&|job: &mut Job<'_>| (job.resume, job.base_model) = (true, [8; 32]));
    assert!(code == 64 && line.contains("another training"), "{line}");
    let path = out.join(CHECKPOINT);
    let whole = std::fs::read(&path).expect("a checkpoint");
    std::fs::write(&path, &whole[..whole.len() / 2]).expect("cut");
    assert_eq!(said(&resume).0, 65, "damaged");
    std::fs::write(&path, whole).expect("as it was");
    learned(1, out, resume).expect("resumed");
}

#[test]
fn a_loss_that_is_no_number_ends_it_on_every_rank_and_the_checkpoint_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    // After so long a step no number is finite, and the next loss shows it.
    let wild = Settings { learning_rate: 1e300, ..settings() };
    learned_with((&PACKET, &wild), 2, folder.path(), |job| job.stop_after = Some(1)).expect("one step");
    let path = folder.path().join(CHECKPOINT);
    let kept = std::fs::read(&path).expect("a checkpoint");
    let error = learned_with((&PACKET, &wild), 2, folder.path(), |job| job.resume = true).expect_err("not a number");
    assert_eq!(error.exit_code(), 70, "{error}");
    assert!(error.to_string().contains("the last good checkpoint is kept"), "{error}");
    assert_eq!(std::fs::read(&path).expect("a checkpoint"), kept, "it was not overwritten");
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_it_with_74() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a file");
    std::fs::write(&file, "no folder").expect("written");
    assert_eq!(learned(2, &file.join("out"), |_| ()).expect_err("no folder").exit_code(), 74);
}

#[test]
fn samples_come_once_an_epoch_and_the_rate_rises_and_falls() {
    let settings = Settings { epochs: 3, ..settings() };
    let epoch = |epoch: u64| {
        let mut seen: Vec<usize> = (0..3).flat_map(|step| settings.samples_of(epoch * 3 + step, 10)).collect();
        let order = seen.clone();
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
        order
    };
    assert_ne!(epoch(0), epoch(1));
    let rates: Vec<f64> = (0..9).map(|step| settings.rate(step, 9) / settings.learning_rate).collect();
    let expected = [1.0 / 3.0, 2.0 / 3.0, 1.0, 1.0, 5.0 / 6.0, 4.0 / 6.0, 0.5, 2.0 / 6.0, 1.0 / 6.0];
    assert!(rates.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{rates:?}");
}
