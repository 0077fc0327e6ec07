//! The last layer of a prompt computes only the rows that are asked for; a failure at a halt ends a
//! pass.

use std::sync::Arc;
use tributary_kernels::Partial;

use candle_core::{DType, Device};

use super::{Attention, Model, Qkv, Rows};
use crate::error::{Error, Result};
use crate::kit;
use crate::progress::{Interlude, Progress, interleaved};

/// Returns the values of the queries' own rows, and records the shapes of its inputs.
#[derive(Default)]
pub(super) struct Own {
    asked: Option<usize>,
    seen: Vec<(usize, usize, usize)>,
    progress: Progress,
}

impl Attention for Own {
    type Error = Error;

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let ((queries, heads, dim), (rows, kv_heads, _)) = (qkv.q.dims3()?, qkv.k.dims3()?);
        self.seen.push((layer, queries, rows));
        let own = qkv.v.narrow(0, rows - queries, queries)?.unsqueeze(2)?;
        let out = own.broadcast_as((queries, kv_heads, heads / kv_heads, dim))?.reshape((queries, heads, dim))?;
        Ok(Partial::of_output(out)?)
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn last_layer(&mut self, rows: usize) -> usize {
        self.asked.unwrap_or(rows)
    }
}

/// The output of the last `asked` rows of a prompt, or of all, and the shapes in each layer. Each
/// row sees only itself.
pub(super) fn prompt(model: &Arc<dyn Model>, rows: Rows, asked: Option<usize>) -> (Rows, Vec<(usize, usize, usize)>) {
    let mut attention = Own { asked, ..Own::default() };
    let rows = model.prompt(rows, &mut attention).expect("a prompt");
    (rows, attention.seen)
}

#[test]
fn the_last_layer_computes_only_the_rows_that_are_asked_for() {
    let model = kit::model(&kit::config());
    let rows = || model.embed(&[3, 1, 4, 1, 5]).expect("ids");
    let (all, seen) = prompt(&model, rows(), None);
    assert_eq!(seen, [(0, 5, 5), (1, 5, 5), (2, 5, 5)]);
    for asked in [0, 1, 3, 5] {
        let (some, seen) = prompt(&model, rows(), Some(asked));
        assert_eq!(seen, [(0, 5, 5), (1, 5, 5), (2, asked, 5)], "keys of all rows, queries of those that ask");
        assert_eq!(some.hidden.dims(), [asked, 32]);
        if asked == 0 {
            continue;
        }
        let expected = all.hidden.narrow(0, 5 - asked, asked).expect("the last rows");
        let difference =
            (some.hidden - expected).and_then(|x| x.abs()?.max_all()?.to_scalar::<f32>()).expect("a number");
        assert!(difference < 1e-5, "{asked} rows: {difference:e}");
    }
}

#[test]
fn tables_of_positions_are_kept_for_the_next_request() {
    let model = kit::model(&kit::config());
    assert!(model.layer_attention(5000).expect("tables")[0].rope.positions() >= 5000);
    assert!(model.layer_attention(10).expect("tables")[0].rope.positions() >= 5000, "made once");
}

/// YaRN on a head that rotates in part: the factor belongs on the rotating dims of the query alone.
#[test]
fn yarn_on_part_of_a_head_scales_that_part_of_the_query() {
    let mut config = kit::config();
    config["architectures"] = serde_json::json!(["GlmForCausalLM"]);
    config["head_dim"] = 8.into();
    config["rope_scaling"] = serde_json::json!({ "rope_type": "default" });
    let plain = kit::model(&config);
    config["rope_scaling"] = serde_json::json!({ "rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5 });
    let yarn = kit::model(&config);
    let q = |model: &Arc<dyn Model>| -> Vec<f32> {
        let qkv = model.qkv(0, &model.embed(&[7]).expect("an id")).expect("a query");
        qkv.q.to_device(&Device::Cpu).and_then(|q| q.to_dtype(DType::F32)?.flatten_all()?.to_vec1()).expect("f32")
    };
    let scale = |model: &Arc<dyn Model>| model.layer_attention(1).expect("tables")[0].scale;
    assert_eq!(scale(&plain), scale(&yarn));
    for (dim, (plain, yarn)) in q(&plain).into_iter().zip(q(&yarn)).enumerate() {
        let factor = if dim % 8 < 4 { 2.25 } else { 1.0 }; // heads of 8, half of each turns
        assert!((yarn - factor * plain).abs() < 1e-6, "dim {dim}: {yarn} for {factor} x {plain}");
    }
}

/// Cancels the pass that halts, and fails.
struct Fails(tributary_comm::Signals);

impl Interlude for Fails {
    fn run(&self) -> Result<()> {
        self.0.cancel(0);
        Err(Error::Interlude { exit_code: 71, cause: "no memory".to_owned() })
    }
}

#[test]
fn a_failure_at_a_halt_is_told_and_no_point_follows_it_even_if_the_pass_is_cancelled() {
    use tributary_comm::Communicator;

    let (mut seats, (coordinator, worker)) = (tributary_comm::local::seats(1), tributary_comm::link(1));
    let comm = seats.remove(0).take();
    comm.points().listen(worker.signals());
    let progress = Progress::on(&Device::Cpu, comm.liveness()).expect("no thread").passing(comm.points()).sliced(2);
    progress.begin(0);
    coordinator.signals().halt(0);
    let fails = Fails(coordinator.signals().clone());
    let ended: Result<()> = interleaved(&fails, || progress.layer(0, || progress.between_slices()));
    assert!(matches!(ended, Err(Error::Interlude { exit_code: 71, .. })), "{ended:?}");
    assert_eq!(progress.point_count(), 1);
}
