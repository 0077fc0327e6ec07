//! Shared part of the tests of decoders: the logits of a model after a prompt.

use std::sync::Arc;
use tributary_kernels::{Kernels, Keys, Partial, Positions};

use tributary_model::{Attention, Model, Progress, Qkv, Result};
use tributary_protocol::{Chunk, Exchange, Plan};
use tributary_tests::{logits, method, plan, run};

/// A single row, which sees itself only.
struct Alone<'a> {
    model: &'a dyn Model,
    progress: Progress,
}

impl Attention for Alone<'_> {
    type Error = tributary_model::Error;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let Qkv { q, k, v } = qkv;
        let at = Positions::run(0, 1);
        let keys = [Keys { k, v, at: at.clone() }];
        self.model.layer_attention(1)?[layer].attend(Kernels::Plain, &q, &at, &keys)
    }
}

/// Logits `[vocab]` after the last of `ids`, by full prefill on one rank. A prompt of one token,
/// which no plan can hold, goes through the layers directly.
pub fn last_logits(model: &Arc<dyn Model>, ids: &[u32]) -> Vec<f32> {
    match ids {
        [] => panic!("an empty prompt has no last position"),
        [only] => alone(model, *only),
        [context @ .., last] => logits(&run(model, 1, &full(context, *last)).0).to_vec(),
    }
}

fn alone(model: &Arc<dyn Model>, id: u32) -> Vec<f32> {
    let config = model.config();
    let mut attention = Alone { model: &**model, progress: Progress::default() };
    let embedded = model.embed(&[id]).expect("the id is in the vocabulary");
    let rows = model.layers(0..config.layers, embedded, &mut attention).expect("one row passes every layer");
    let logits = model.logits(&rows).expect("one row has logits");
    logits.flatten_all().and_then(|x| x.to_vec1()).expect("f32")
}

/// Full prefill of `context` as one chunk and `last` as the query.
fn full(context: &[u32], last: u32) -> Plan {
    let ids = context.to_vec();
    Plan {
        chunks: vec![Chunk { ids, pictures: Vec::new(), rank: 0, warm: false, around: None, compress: None }],
        query: vec![last],
        max_tokens: 1,
        ..plan(0, &[], 0, 1, method("full"), Exchange::PassQ)
    }
}
