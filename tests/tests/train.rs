//! Training computes the same as serving: a packet's logits are those of the method `none` over the
//! same rows, lookahead rows rank the prompt's rows in serving's order, and a small model's
//! readings are those that serving selects by.

use candle_core::{DType, Device, Tensor};
use tributary_model::{Adapters, LoadFormat, Progress, load};
use tributary_protocol::{Evict, Eviction, Exchange, LookAhead, POOLED_ROWS, PYRAMID_BETA, SINK_ROWS, WINDOW_ROWS};
use tributary_tests::{
    dummy_model, group_beside, logits, method, plan, relative_error, run, run_one, tiny_config, with_ratio,
};
use tributary_train::{Auxiliary, Lookahead, Made, Objective, Packet, Pupil, Reader, Sample, Sizes};

#[test]
fn the_student_reads_what_the_engine_reads() {
    let model = dummy_model(&tiny_config(&[]), 4);
    for prefix in [0, 2] {
        // An adapter whose vectors are tokens' own embeddings: then its rows are tokens, and any
        // rank knows them.
        let mut plan = plan(prefix, &[9, 8, 14], 4, 1, method("none"), Exchange::Replicate);
        for chunk in &mut plan.chunks {
            let last = chunk.ids.len() - 1;
            (chunk.ids[0], chunk.ids[1], chunk.ids[last]) = (50, 51, 52);
        }
        let packet = Packet::new(2, 1, &*model, 0).expect("a packet");
        packet.parameters()[0].set(&model.embed(&[50, 51, 52]).expect("ids").hidden).expect("set");
        let sample = Sample {
            prefix: plan.prefix.clone(),
            chunks: plan.chunks.iter().map(|chunk| chunk.ids[2..chunk.ids.len() - 1].to_vec()).collect(),
            query: plan.query.clone(),
            answer_tokens: 1,
            taught_behind: None,
        };
        let student = packet.logits(&*model, &sample, &[0], &Progress::default()).expect("logits");
        let student = student.to_vec2::<f32>().expect("f32").remove(0);
        let outcome = run(&model, 1, &plan).0;
        let apart = relative_error(&student, logits(&outcome));
        println!("prefix {prefix}: {apart:e}");
        assert!(apart < 1e-5, "prefix {prefix}: {apart:e}");
    }
}

#[test]
fn rows_ahead_are_learned_by_the_scores_that_serving_keeps_rows_by() {
    let model = dummy_model(&tiny_config(&[]), 4);
    let ahead = Lookahead::new((5, 2, 8.0), &*model, 3).expect("rows");
    for (place, var) in ahead.parameters().iter().enumerate() {
        let numbers: Vec<f32> =
            (0..var.elem_count()).map(|i| ((i * 37 + place * 11) % 101) as f32 / 250.0 - 0.2).collect();
        var.set(&Tensor::from_vec(numbers, var.dims(), &Device::Cpu).expect("numbers")).expect("set");
    }
    let mut plan = plan(2, &[9, 8, 14], 4, 1, method("full"), Exchange::Replicate);
    (plan.look_ahead, plan.max_tokens) = (Some(LookAhead { adapter: 7, rows: 5 }), 2);
    let sample = Sample {
        prefix: plan.prefix.clone(),
        chunks: plan.chunks.iter().map(|chunk| chunk.ids.clone()).collect(),
        query: plan.query.clone(),
        ..Sample::default()
    };
    let shares = ahead.shares(&*model, &sample, &Progress::default()).expect("shares");
    let shares: Vec<Vec<Vec<f32>>> = shares.iter().map(|layer| layer.to_vec2().expect("f32")).collect();
    let adapters = Adapters::new([(7, ahead.adapter().expect("an adapter"))]);
    let group = group_beside(&model, adapters);
    let rows = plan.total_rows();
    let mut differing = 0;
    for keep in 1..rows {
        // All budgets together give the order of all rows.
        plan.evict = Some(Evict { keep, ..evict() });
        let outcome = run_one(&group, &plan).0;
        let kept = outcome.kept.expect("the kept rows").0;
        for (layer, heads) in shares.iter().enumerate() {
            for (head, shares) in heads.iter().enumerate() {
                let mut ranked: Vec<u32> = (0..rows as u32).collect();
                ranked.sort_by(|&a, &b| shares[b as usize].total_cmp(&shares[a as usize]).then(a.cmp(&b)));
                let (last, next) = (shares[ranked[keep - 1] as usize], shares[ranked[keep] as usize]);
                let mut expected = ranked[..keep].to_vec();
                expected.sort_unstable();
                if kept[layer][head] != expected {
                    assert!(last - next < 1e-5, "{keep} rows of head {head} of layer {layer}: {last} before {next}");
                    differing += 1;
                }
            }
        }
    }
    group.end().expect("the group ends well");
    println!("{differing} of the choices are ties");
    assert!(differing < 3, "{differing} choices");
}

#[test]
fn a_small_model_is_learned_by_the_readings_that_serving_selects_by() {
    let (main, folder) = (dummy_model(&tiny_config(&[]), 4), tempfile::tempdir().expect("a folder"));
    let sizes = Sizes { layers: 2, hidden: 16, heads: 2, intermediate: 24 };
    let reader = Reader { objective: Objective::Select, sizes, start: None, beside: folder.path().to_owned() };
    let own = Auxiliary::new(&reader, &*main, 6).expect("a small model");
    let made = Made { base_model: [7; 32], model: main.config(), training: &serde_json::Value::Null };
    own.write(folder.path(), &made).expect("written");
    let served = load(folder.path(), LoadFormat::Safetensors, DType::F32, &Device::Cpu).expect("a model");
    let mut plan = with_ratio(plan(2, &[9, 8, 14], 4, 1, method("cacheclip"), Exchange::Replicate), 0.5);
    for prompt in &mut plan.auxiliary[0].prompts {
        // As the coordinator does it.
        let bos: Vec<u32> = served.config().bos.into_iter().collect();
        prompt.ids = [bos.as_slice(), &prompt.ids].concat();
        let of_bos = bos.iter().map(|_| 0..0);
        prompt.stands_for = of_bos.chain(std::mem::take(&mut prompt.stands_for)).collect();
    }
    let sample = Sample {
        prefix: plan.prefix.clone(),
        chunks: plan.chunks.iter().map(|chunk| chunk.ids.clone()).collect(),
        query: plan.query.clone(),
        ..Sample::default()
    };
    let read = own.readings(&sample, &Progress::default()).and_then(|read| Ok(read.exp()?.to_vec1::<f32>()?));
    let read = read.expect("readings");
    // The model that was written reads for itself.
    let scores = run(&served, 1, &plan).0.scores.expect("scores");
    assert_eq!((scores.len(), read.len()), (31, 22), "the first chunk is not learned from");
    let apart = relative_error(&read, &scores[9..]);
    println!("{apart:e}");
    assert!(apart < 1e-5, "{apart:e}");
}

/// Rows that look ahead choose; how many is said elsewhere.
fn evict() -> Evict {
    let method = Eviction::LookaheadKv;
    let (window, pooled, sinks, beta) = (WINDOW_ROWS, POOLED_ROWS, SINK_ROWS, PYRAMID_BETA);
    Evict { method, keep: 1, window, pooled, sinks, beta, pseudo: 6, seed: 3, gather: false }
}
