//! A request that is dropped during its prefill: in any phase, on every rank at the same control
//! point, for every method, exchange and eviction. It leaves no state: the next request's answer is
//! that of a fresh group, bit for bit. Every rank passes the plan's number of points.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::Tensor;
use tributary_comm::local::seats;
use tributary_comm::{
    Aside, Communicator, CoordinatorLink, Liveness, Pending, Points, Result, Signals, Start, Traffic, WorkerLink, link,
};
use tributary_kernels::Kernels;
use tributary_model::Model;
use tributary_protocol::{Event, KeySpace, Order, Outcome, Phase, Plan, PointShape, RankReport, TowerPoints};
use tributary_tests::side_by_side::{plans, warm};
use tributary_tests::{AUXILIARY, adapters, dummy_model, method, plan, tiny_config, with_ratio};
use tributary_worker::{ChunkCache, Models, serve};

use crate::recorded::Recorded;

const PATIENCE: Duration = Duration::from_secs(60);

/// Actions of rank 0 when it enters phases.
#[derive(Default)]
struct Script {
    /// The phases that were entered since the last order.
    entered: Vec<Phase>,
    /// The request that is cancelled, and the phase in which it is.
    cancels: Option<(u64, Phase)>,
}

/// A communicator of rank 0 that cancels a request as soon as a phase begins.
struct Cancelling<'a> {
    inner: &'a mut dyn Communicator,
    script: &'a Mutex<Script>,
    signals: &'a Signals,
}

impl Communicator for Cancelling<'_> {
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

    fn set_deadline(&mut self, phase: Phase, deadline: Duration) {
        let mut script = self.script.lock().expect("no thread panics with it");
        script.entered.push(phase);
        if let Some((request, _)) = script.cancels.take_if(|(_, cancelled)| *cancelled == phase) {
            self.signals.cancel(request);
        }
        drop(script);
        self.inner.set_deadline(phase, deadline);
    }

    fn start_together(&mut self, starts: &[Start<'_>]) -> Result<Vec<Pending>> {
        self.inner.start_together(starts)
    }

    fn wait(&mut self, pending: Pending) -> Result<Vec<Tensor>> {
        self.inner.wait(pending)
    }

    fn finish_started(&mut self) -> Result<()> {
        self.inner.finish_started()
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

/// Ranks that are threads, and a coordinator's way to them.
struct Ranks<'a> {
    link: CoordinatorLink,
    script: &'a Mutex<Script>,
    next: u64,
}

/// The end of an order.
enum End {
    Filled(Box<Outcome>, Vec<RankReport>),
    Cancelled(Vec<RankReport>),
}

fn with_ranks(model: &Arc<dyn Model>, world: usize, work: impl FnOnce(Ranks<'_>)) {
    let script = Mutex::new(Script::default());
    let (coordinator, worker) = link(4);
    let mut worker = Some(worker);
    std::thread::scope(|scope| {
        for seat in seats(world) {
            let (worker, script) = (worker.take(), &script);
            scope.spawn(move || {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool");
                pool.install(move || rank(&**model, &mut seat.take(), worker.as_ref(), script));
            });
        }
        work(Ranks { link: coordinator, script: &script, next: 0 });
    });
}

fn rank(model: &dyn Model, comm: &mut dyn Communicator, link: Option<&WorkerLink>, script: &Mutex<Script>) {
    let models = Models::from(model).with_adapters(adapters(model)).with(AUXILIARY, model);
    let mut cache = ChunkCache::new(KeySpace::new([0; 32], "f32"), 1 << 30);
    let run = |comm: &mut dyn Communicator, cache: &mut ChunkCache| {
        serve(models.clone(), Kernels::Auto, comm, link, PATIENCE, cache).expect("the group ends well");
    };
    match link {
        Some(link) => run(&mut Cancelling { inner: comm, script, signals: link.signals() }, &mut cache),
        None => run(comm, &mut cache),
    }
}

impl Ranks<'_> {
    /// Has a plan prefilled, as a separate request that is cancelled when it enters a phase; gives
    /// the phases that it entered.
    fn prefill(&mut self, plan: &Plan, cancelled_in: Option<Phase>) -> (End, BTreeSet<Phase>) {
        self.next += 1;
        let request = self.next;
        {
            let mut script = self.script.lock().expect("no thread panics with it");
            script.entered.clear();
            script.cancels = cancelled_in.map(|phase| (request, phase));
        }
        self.link.send(Order::Prefill(Arc::new(Plan { request, ..plan.clone() }))).expect("rank 0 takes it");
        let end = loop {
            match self.event() {
                Event::FirstToken { .. } => {}
                Event::Prefilled { outcome, reports, .. } => break End::Filled(outcome, reports),
                Event::Cancelled { request: number, reports } if number == request => break End::Cancelled(reports),
                other => panic!("{other:?}"),
            }
        };
        let entered = self.script.lock().expect("no thread panics with it").entered.iter().copied().collect();
        self.link.send(Order::Release(vec![request])).expect("rank 0 takes it");
        let Event::Released { running } = self.event() else { panic!("a release was due") };
        assert!(running.iter().all(|&left| left == 0), "{running:?} sequences are left");
        (end, entered)
    }

    /// Has a plan prefilled completely.
    fn answer(&mut self, plan: &Plan) -> (Outcome, Vec<RankReport>, BTreeSet<Phase>) {
        match self.prefill(plan, None) {
            (End::Filled(outcome, reports), entered) => (*outcome, reports, entered),
            (End::Cancelled(_), _) => panic!("{} was not cancelled by the test", plan.method.name()),
        }
    }

    fn event(&self) -> Event {
        self.link.next(PATIENCE).expect("rank 0 is there").expect("an event in time")
    }
}

fn model() -> Arc<dyn Model> {
    dummy_model(&tiny_config(&[]), 7)
}

/// The number of points of a plan, given its outcome.
fn points(plan: &Plan, model: &dyn Model, world: usize, outcome: &Outcome) -> u64 {
    let (layers, heads) = (model.config().layers, model.config().heads);
    let after = match plan.goes_on(&outcome.tokens) {
        true => plan.points_after_first_token(layers, world, &outcome.selected),
        false => 0,
    };
    let vision = model.config().vision.as_ref();
    let tower = vision.map(|vision| TowerPoints { blocks: vision.layers, row_patches: vision.merge * vision.merge });
    (plan.points(PointShape { layers, heads, tower }, outcome.rounds.len()) + after) as u64
}

#[test]
fn every_rank_passes_the_points_that_the_plan_says() {
    let model = model();
    for world in 1..=4 {
        with_ranks(&model, world, |mut ranks| {
            for cold in plans(&*model, world, true) {
                for plan in [cold.clone(), warm(&[cold]).swap_remove(0)] {
                    let (outcome, reports, _) = ranks.answer(&plan);
                    let wanted = points(&plan, &*model, world, &outcome);
                    let what = format!("{}, {:?}, world {world}", plan.method.name(), plan.exchange);
                    assert!(wanted > 0, "{what}");
                    assert!(reports.iter().all(|report| report.points == wanted), "{what}: {wanted}, not {reports:?}");
                }
            }
        });
    }
}

/// The tower's blocks are points too: on ranks without a picture, and with cached features.
#[test]
fn ranks_pass_the_points_of_their_towers_in_step_and_are_let_go_of_there() {
    let recorded = Recorded::new("qwen3vl-tiny");
    let model = &recorded.model;
    let blocks = model.config().vision.as_ref().expect("a tower").layers;
    for world in 1..=4 {
        with_ranks(model, world, |mut ranks| {
            for spec in ["full", "ring", "infoflow", "none"] {
                let plan = recorded.plan(spec, world, tributary_protocol::Exchange::PassQ);
                let plan = Plan { keep_chunks: spec == "none", ..plan };
                let what = format!("{spec}, world {world}");
                let (cancelled, entered) = ranks.prefill(&plan, Some(Phase::Vision));
                let End::Cancelled(reports) = cancelled else { panic!("{what}: it went on to its end") };
                assert!(reports.iter().all(|report| report.points == 1), "{what}: {reports:?}");
                assert!(!entered.contains(&Phase::ChunkPrefill), "{what}: {entered:?}");
                let answers = [(); 2].map(|()| ranks.answer(&plan));
                assert_eq!(answers[0].0, answers[1].0, "{what}: features that are cached are the same");
                for (turn, (outcome, reports, _)) in answers.into_iter().enumerate() {
                    let wanted = points(&plan, &**model, world, &outcome);
                    assert!(wanted > blocks as u64, "{what}");
                    assert!(reports.iter().all(|report| report.points == wanted), "{what}: {wanted}, not {reports:?}");
                    let hits: usize = reports.iter().map(|report| report.chunk_cache.picture_hits).sum();
                    let cached = if plan.keep_chunks && turn == 1 { plan.pictures().len() } else { 0 };
                    assert_eq!(hits, cached, "{what}, turn {turn}");
                }
            }
        });
    }
}

#[test]
fn whatever_is_let_go_of_in_whatever_phase_leaves_nothing_behind() {
    let model = model();
    let mut phases = BTreeSet::new();
    for world in 1..=4 {
        with_ranks(&model, world, |mut ranks| {
            for cold in plans(&*model, world, true) {
                for plan in [cold.clone(), warm(&[cold]).swap_remove(0)] {
                    let (fresh, _, entered) = ranks.answer(&plan);
                    for phase in entered.into_iter().filter(|&phase| phase != Phase::Idle) {
                        let what = format!("{}, {:?}, in {phase}, world {world}", plan.method.name(), plan.exchange);
                        match ranks.prefill(&plan, Some(phase)).0 {
                            End::Cancelled(reports) => {
                                phases.insert(phase);
                                assert_eq!(reports.len(), world, "{what}");
                                let points = points(&plan, &*model, world, &fresh);
                                assert!(reports.iter().all(|report| report.points <= points), "{what}");
                            }
                            // After these there may be no further point.
                            End::Filled(..) => {
                                assert!(phase >= Phase::FirstToken, "{what}: it went on to its end");
                            }
                        }
                        let (again, ..) = ranks.answer(&plan);
                        assert_eq!(again, fresh, "{what}");
                    }
                }
            }
        });
    }
    let wanted = [Phase::Dispatch, Phase::ChunkPrefill, Phase::Auxiliary, Phase::Reorder, Phase::Probe];
    let wanted = wanted.into_iter().chain([Phase::Select, Phase::Recompute, Phase::FirstToken, Phase::Evict]);
    assert!(wanted.clone().all(|phase| phases.contains(&phase)), "{phases:?}");
}

#[test]
fn chunks_ahead_of_use_that_are_let_go_of_are_not_half_kept() {
    let model = model();
    for world in 1..=3 {
        let made = plan(2, &[21, 14, 30], 5, world, method("none"), tributary_protocol::Exchange::PassQ);
        let cold = Plan { keep_chunks: true, ..with_ratio(made, 0.0) };
        let mut expected = None;
        with_ranks(&model, world, |mut ranks| expected = Some(ranks.answer(&cold).0));
        with_ranks(&model, world, |ranks| {
            ranks.script.lock().expect("no thread panics with it").cancels = Some((9, Phase::ChunkPrefill));
            let ahead = Plan { request: 9, query: Vec::new(), ..cold.clone() };
            ranks.link.send(Order::Chunks(Arc::new(ahead))).expect("rank 0 takes it");
            let Event::Cancelled { request: 9, reports } = ranks.event() else { panic!("it is cancelled") };
            let kept = |report: &RankReport| report.chunk_cache.used_bytes;
            assert!(reports.iter().all(|report| kept(report) == 0 && report.points == 1), "{reports:?}");
            let mut ranks = ranks;
            // Called warm, it finds nothing there, and computes it.
            let found = ranks.answer(&warm(std::slice::from_ref(&cold)).swap_remove(0));
            assert_eq!(Some(found.0), expected, "world {world}");
        });
    }
}
