//! What training computes is what serving computes: the student's logits are those of the method `none` over the same rows.

use tributary_protocol::{Exchange, Method};
use tributary_tests::{dummy_model, logits, plan, relative_error, run, tiny_config};
use tributary_train::{Packet, Pupil, Sample};
use tributary_worker::Progress;

#[test]
fn the_student_reads_what_the_engine_reads() {
    let model = dummy_model(&tiny_config(&[]), 4);
    for prefix in [0, 2] {
        // An adapter whose vectors are tokens' own embeddings: then its rows are tokens, and any rank knows them.
        let mut plan = plan(prefix, &[9, 8, 14], 4, 1, Method::None, Exchange::Replicate);
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
