//! Order in which ranks start their calls if all chunks are warm: stale rows never precede messages
//! that a probe waits for.

use std::time::Duration;

use candle_core::Tensor;
use tributary_comm::{Aside, Communicator, Liveness, Pending, Points, Result, Start, Traffic};
use tributary_kernels::Kernels;
use tributary_model::{Model, Progress};
use tributary_protocol::{Exchange, Importance, KeySpace, Phase, Plan, PlannedMethod};

use super::selective::Selective;
use super::{Strategy, chunks};
use crate::chunk_cache::ChunkCache;
use crate::context::Context;
use crate::kit;

const WORLD: usize = 2;

/// Notes calls that are started together, a letter each: `p` a probe's partials, `s` stale rows,
/// `c` scores, `f` fresh rows.
struct Noted<'a> {
    inner: &'a mut dyn Communicator,
    /// Query rows of every rank's probe; context rows of each rank.
    query: Vec<usize>,
    context: Vec<usize>,
    notes: String,
}

impl Communicator for Noted<'_> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn liveness(&self) -> Liveness {
        self.inner.liveness()
    }

    fn points(&self) -> Points {
        self.inner.points()
    }

    fn finish_started(&mut self) -> Result<()> {
        self.inner.finish_started()
    }

    fn set_deadline(&mut self, phase: Phase, deadline: Duration) {
        self.inner.set_deadline(phase, deadline);
    }

    fn start_together(&mut self, starts: &[Start<'_>]) -> Result<Vec<Pending>> {
        let note = match starts {
            [Start::AllGather { rows, .. }, Start::AllGather { .. }] if **rows == *self.query => 'p',
            [Start::AllGather { rows, .. }, Start::AllGather { .. }] if **rows == *self.context => 's',
            [Start::AllGather { rows, .. }] if **rows == *self.context => 'c',
            _ => 'f',
        };
        self.notes.push(note);
        self.inner.start_together(starts)
    }

    fn wait(&mut self, pending: Pending) -> Result<Vec<Tensor>> {
        self.inner.wait(pending)
    }

    fn broadcast_bytes(&mut self, root: usize, bytes: Option<Vec<u8>>) -> Result<Vec<u8>> {
        self.inner.broadcast_bytes(root, bytes)
    }

    fn gather_bytes(&mut self, root: usize, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.inner.gather_bytes(root, bytes)
    }

    fn barrier(&mut self) -> Result<()> {
        self.inner.barrier()
    }

    fn abort(&mut self, cause: &str, exit_code: u8) {
        self.inner.abort(cause, exit_code);
    }

    fn start_lap(&mut self) -> usize {
        self.inner.start_lap()
    }

    fn laps(&mut self) -> Vec<Traffic> {
        self.inner.laps()
    }

    fn set_aside(&mut self) -> Aside {
        self.inner.set_aside()
    }

    fn take_up(&mut self, aside: Aside) {
        self.inner.take_up(aside);
    }

    fn reset_traffic(&mut self) {
        self.inner.reset_traffic();
    }
}

/// The final state of a rank, as bits: other ranks' keys and values, and the prompt's last row if
/// present.
type Bits = Vec<Vec<u32>>;

/// Runs a plan; returns its result and the order of its calls.
fn run(model: &dyn Model, comm: &mut dyn Communicator, plan: &Plan, cache: &mut ChunkCache) -> (Bits, String) {
    let context = plan.kept_counts(WORLD);
    let query = vec![plan.query_tokens(); WORLD];
    let mut noted = Noted { inner: comm, query, context, notes: String::new() };
    cache.begin();
    let progress = Progress::default();
    let mut cx = Context::new(model, &mut noted, Kernels::Auto, (plan, 128), &progress, cache).expect("a context");
    let selector = plan.method.selector().expect("a selector");
    let found = Selective { selector }.prefill(&mut cx, plan).expect("prefilled");
    chunks::keep(&mut cx, plan, &found.cache).expect("kept");
    let others = found.cache.others.iter().flat_map(|block| &block.layers).flat_map(|(k, v)| [k.clone(), v.clone()]);
    let last = found.output.last.iter().map(|rows| model.logits(rows).expect("logits"));
    let bits = |tensor: Tensor| -> Vec<u32> {
        let values = tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("f32");
        values.into_iter().map(f32::to_bits).collect()
    };
    (others.chain(last).map(bits).collect(), noted.notes)
}

fn plan(method: PlannedMethod, reorder: Option<Importance>) -> Plan {
    let mut plan = kit::plan(2, &[9, 14, 5, 11], 4, WORLD);
    (plan.method, plan.exchange, plan.reorder) = (method, Exchange::Replicate, reorder);
    (plan.budget, plan.keep_chunks) = (12, true);
    plan
}

fn infoflow(until: usize) -> PlannedMethod {
    kit::method(&format!("infoflow:layers=0..{until}"))
}

/// Three layers: two slices after a probe of three, none after the last layer, before the scores.
#[test]
fn warm_rows_set_out_behind_the_probes_messages() {
    let model = kit::model(&kit::config());
    let mass = Some(Importance::Mass);
    let cases = [
        (infoflow(3), None, "ssspppcfff", "pspsspcfff"),
        (infoflow(2), None, "sssppcfff", "pssspcfff"),
        (infoflow(1), None, "ssspcfff", "pcsssfff"),
        (infoflow(3), mass, "ssspppcpppcfff", "ppspcpspspcfff"),
        (kit::method("epic"), None, "sssfff", "sssfff"),
        // The cached state of two layers comes first, the scores last: `s`, `c`, `f`.
        (kit::method("cacheblend"), None, "sssscffff", "scsssffff"),
        // One free probe: there, back and log-sum-exp in each layer, then one number a row.
        (kit::method("trace"), None, "ssspppcfffffffffcfff", "pspsspcfffffffffcfff"),
    ];
    for (method, reorder, cold_order, warm_order) in cases {
        let cold = plan(method, reorder);
        let mut warm = cold.clone();
        warm.chunks.iter_mut().for_each(|chunk| chunk.warm = true);
        // One rank in turn has lost the chunks that the plan calls warm.
        for forgetful in [None, Some(0), Some(1)] {
            let what = format!("{:?}, reorder {reorder:?}, rank {forgetful:?} has lost its chunks", cold.method);
            let notes = kit::on_ranks(WORLD, |comm| {
                let new = || ChunkCache::new(KeySpace::new([0; 32], "f32"), 1 << 20);
                let mut cache = new();
                let (expected, first) = run(&*model, comm, &cold, &mut cache);
                if forgetful == Some(comm.rank()) {
                    cache = new();
                }
                let (found, second) = run(&*model, comm, &warm, &mut cache);
                assert!(found == expected, "{what}: other bits on rank {}", comm.rank());
                (first, second)
            });
            for (first, second) in notes {
                assert_eq!(first, cold_order, "{what}, cold");
                assert_eq!(second, warm_order, "{what}");
            }
        }
    }
}
