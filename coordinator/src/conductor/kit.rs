//! Clients, a conductor, and ranks that answer orders by rule, for tests: a request's tokens are
//! its number times 10, counting up.
//! Ranks answer at once: tests act before the end of an order while the ranks are held.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tributary_comm::{CoordinatorLink, WorkerLink, link};
use tributary_planner::{GroupSurvey, Machine, MemoryOf, Planner, RequestSettings, Started};
use tributary_protocol::{Collective, DrawnToken, Exchange, KeySpace, Outcome, RankReport, StepReport, Traffic};

use super::*;
use crate::demo::DEMO;
use crate::dispatch::Clock;
use crate::intake::Prepared;
use crate::scheduler::Limits;
use crate::tokenize::Piece;

pub const WORLD: usize = 2;
pub const GROUP: GroupShape = GroupShape { world: WORLD, threads: 1 };
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The token that ends an answer.
pub const END: u32 = 2;

pub fn planner(available_bytes: Option<u64>) -> Planner {
    let mut planner = Planner::new(DEMO, vec![END], Some(0), false);
    let machine = Machine {
        flops_per_s: 1e12,
        link_bytes_per_s: 1e9,
        memory: MemoryOf::Host,
        available_bytes,
        ranks_here: WORLD,
        weight_copies: 1,
        of_rank: None,
    };
    planner.survey(GROUP, GroupSurvey { machine, memories: 1 });
    let space = KeySpace::new([0; 32], "f32");
    planner.started(
        GROUP,
        Started { space, chunk_cache_bytes: 0, message_bytes: 0, inventory: Vec::new(), narrowest: None },
    );
    planner
}

/// Orders that ranks have received, and rules of their answers.
#[derive(Default)]
pub struct ScriptedRanks {
    pub orders: Mutex<Vec<Order>>,
    /// Requests that are refused, and the step of decoding in which the group fails; or the first
    /// read.
    pub refuses: Option<u64>,
    pub fails_at_step: Option<usize>,
    pub fails_at_read: bool,
    /// Holds the first step of decoding, or the first order if `holds_first`. The held order
    /// signals its beginning, and ends after the other side is dropped.
    pub held: Mutex<Option<(SyncSender<()>, Receiver<()>)>>,
    pub holds_first: bool,
    /// Whether a prefill ends in the middle if it is cancelled.
    pub lets_go: bool,
    /// Number of halts that the prefill of this request waits for.
    pub halts: Option<(u64, usize)>,
    /// Time that each prefill takes, if it counts the halts that are wanted meanwhile.
    pub counts_halts: Option<Duration>,
    /// Halts that were wanted.
    pub wanted_halts: Mutex<usize>,
}

/// Holds ranks in their first step of decoding, or in their first order, until it is dropped.
/// Actions of a test before that precede the end of the step.
pub struct Hold {
    begun: Receiver<()>,
    _held: SyncSender<()>,
}

impl Hold {
    /// Waits until the step has begun: later actions of the test follow everything before that
    /// step.
    pub fn begun(&self) {
        self.begun.recv_timeout(PATIENCE).expect("the order in time");
    }
}

impl ScriptedRanks {
    /// Ranks that are held, and the hold on them.
    pub fn held(self) -> (Self, Hold) {
        let (begins, begun) = sync_channel(1);
        let (holds, held) = sync_channel(0);
        (Self { held: Mutex::new(Some((begins, held))), ..self }, Hold { begun, _held: holds })
    }

    /// Waits until a test drops its hold, the first time.
    fn wait(&self) {
        if let Some((begins, held)) = self.held.lock().expect("no thread has panicked").take() {
            // A test that does not wait for it may have ended.
            let _ = begins.send(());
            assert_eq!(held.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected), "let go in time");
        }
    }

    fn serve(&self, worker: &WorkerLink) {
        let mut scripted = Scripted::default();
        while let Ok(order) = worker.next(Duration::from_millis(5)) {
            let Some(order) = order else { continue };
            self.orders.lock().expect("no thread has panicked").push(order.clone());
            if self.holds_first || matches!(order, Order::Decode(_)) {
                self.wait();
            }
            let event = match order {
                Order::Prefill(plan) | Order::Chunks(plan)
                    if self.lets_go && worker.signals().is_cancelled(plan.request) =>
                {
                    Event::Cancelled { request: plan.request, reports: moved(7) }
                }
                Order::Prefill(plan) if self.refuses == Some(plan.request) => {
                    let refusal = Refusal { exit_code: 65, cause: "the logits hold NaN".into() };
                    Event::Refused { request: plan.request, refusal, traffic: vec![sent(1000), sent(2000)] }
                }
                Order::Prefill(plan) => {
                    if let Some(time) = self.counts_halts {
                        std::thread::sleep(time);
                        *self.wanted_halts.lock().unwrap() += usize::from(worker.signals().take_halt(plan.request));
                    }
                    let halts = self.halts.filter(|(request, _)| *request == plan.request);
                    (0..halts.map_or(0, |(_, halts)| halts))
                        .for_each(|_| self.halt(plan.request, worker, &mut scripted));
                    let first = 10 * plan.request as u32;
                    scripted.newest.insert(plan.request, first);
                    let event = Event::FirstToken { request: plan.request, drawn: drawn(first) };
                    worker.send(event).expect("the coordinator reads");
                    let mut reports = moved(10);
                    reports.iter_mut().for_each(|report| report.decode_traffic = sent(5));
                    reports[plan.owner].drew_first_token = true;
                    let outcome = Outcome { tokens: vec![first], margins: vec![0.5], ..Outcome::default() };
                    Event::Prefilled { request: plan.request, outcome: Box::new(outcome), reports }
                }
                Order::Chunks(plan) => {
                    assert!(plan.query.is_empty() && plan.keep_chunks && plan.budget == 0, "{plan:?}");
                    Event::Kept { request: plan.request, reports: moved(10) }
                }
                Order::HandOver(_) if self.fails_at_read => {
                    let _ = worker.send(Event::Failed { request: 0, rank: 1, exit_code: 69, cause: "gone".into() });
                    return;
                }
                Order::Decode(_) if self.fails_at_step == Some(scripted.steps + 1) => {
                    let _ = worker.send(Event::Failed { request: 0, rank: 1, exit_code: 69, cause: "gone".into() });
                    return;
                }
                order => scripted.carry_out(order),
            };
            worker.send(event).expect("the coordinator reads");
        }
    }

    /// Halts a prefill as soon as the coordinator wants it, until it is to go on.
    fn halt(&self, request: u64, worker: &WorkerLink, scripted: &mut Scripted) {
        while !worker.signals().take_halt(request) {
            std::thread::yield_now();
        }
        worker.send(Event::Halted { request }).expect("the coordinator reads");
        loop {
            let order = worker.next(PATIENCE).expect("the coordinator is there").expect("an order in time");
            self.orders.lock().expect("no thread has panicked").push(order.clone());
            if order == Order::Resume {
                return;
            }
            worker.send(scripted.carry_out(order)).expect("the coordinator reads");
        }
    }

    pub fn orders(&self) -> Vec<String> {
        let name = |order: &Order| match order {
            Order::Prefill(plan) => format!("P{}", plan.request),
            Order::Chunks(plan) => format!("C{}", plan.request),
            Order::Decode(requests) => format!("D{requests:?}"),
            Order::HandOver(wanted) => format!("H{} {:?}", wanted.request, wanted.rows),
            Order::Release(requests) => format!("R{requests:?}"),
            Order::Resume => "resume".to_owned(),
            other => panic!("{other:?}"),
        };
        self.orders.lock().expect("no thread has panicked").iter().map(name).collect()
    }
}

/// The sequences of scripted ranks with their newest tokens, and the steps that they have taken.
#[derive(Default)]
struct Scripted {
    newest: BTreeMap<u64, u32>,
    steps: usize,
}

impl Scripted {
    /// The event of an order that fills no cache.
    fn carry_out(&mut self, order: Order) -> Event {
        match order {
            Order::Decode(requests) => {
                self.steps += 1;
                let mut next = |request: u64| {
                    let token = self.newest.get_mut(&request).expect("it runs");
                    *token += 1;
                    (request, Ok(drawn(*token)))
                };
                let tokens = requests.into_iter().map(&mut next).collect();
                let reports = (0..WORLD)
                    .map(|rank| StepReport { rank, traffic: sent(rank as u64), ..StepReport::default() })
                    .collect();
                Event::Stepped { tokens, reports }
            }
            Order::HandOver(wanted) => {
                // One that is being prefilled has not come to its layers.
                let is_there = self.newest.contains_key(&wanted.request);
                let rows = is_there.then(|| vec![wanted.layer as u8; wanted.rows.len()]);
                Event::HandedOver { request: wanted.request, rows: Ok(rows) }
            }
            Order::Release(requests) => {
                self.newest.retain(|request, _| !requests.contains(request));
                Event::Released { running: vec![self.newest.len(); WORLD] }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A report of every rank, with this number of bytes sent.
fn moved(bytes: u64) -> Vec<RankReport> {
    (0..WORLD).map(|rank| RankReport { rank, traffic: sent(bytes), ..RankReport::default() }).collect()
}

pub fn sent(bytes: u64) -> Traffic {
    let mut traffic = Traffic::default();
    traffic.count(Collective::AllGather, bytes, 0);
    traffic
}

/// Notes of an observer: bytes sent by each rank, requests without an answer, and counts of the
/// rest.
#[derive(Default)]
pub struct Notes {
    pub sent: Mutex<[u64; WORLD]>,
    pub ended: Mutex<Vec<Ended>>,
    pub prefills: Mutex<usize>,
    pub gaps: Mutex<Vec<Duration>>,
    pub failures: Mutex<Vec<u8>>,
    pub spent: Mutex<BTreeMap<Occupation, Duration>>,
}

impl Observer for Notes {
    fn prefilled(&self, prefilled: &Prefilled<'_>) {
        assert_eq!(prefilled.reports.len(), WORLD, "a report a rank");
        *self.prefills.lock().unwrap() += 1;
    }

    fn stepped(&self, reports: &[StepReport], gaps: &[Duration]) {
        assert_eq!(reports.len(), WORLD, "a report a rank");
        self.gaps.lock().unwrap().extend(gaps);
    }

    fn moved(&self, rank: usize, traffic: &Traffic) {
        self.sent.lock().unwrap()[rank] +=
            traffic.entries.get(&Collective::AllGather).map_or(0, |entry| entry.sent_bytes);
    }

    fn ended(&self, ended: &Ended) {
        self.ended.lock().unwrap().push(ended.clone());
    }

    fn failed(&self, exit_code: u8) {
        self.failures.lock().unwrap().push(exit_code);
    }

    fn broken(&self, _: Breakage) {}

    fn spent(&self, on: Occupation, time: Duration) {
        *self.spent.lock().unwrap().entry(on).or_default() += time;
    }
}

pub fn drawn(token: u32) -> DrawnToken {
    DrawnToken { token, margin: 0.5, logprobs: None }
}

/// Runs clients against a conductor; returns its result.
pub fn with_conductor(
    ranks: &ScriptedRanks,
    planner: &mut Planner,
    limits: Limits,
    clients: impl FnOnce(Desk) + Send,
) -> Result<()> {
    let (coordinator, worker): (CoordinatorLink, WorkerLink) = link(4);
    let (desk, inbox) = desk(Observed::default());
    std::thread::scope(|scope| {
        scope.spawn(|| ranks.serve(&{ worker }));
        scope.spawn(move || clients(desk));
        let ended = Conductor::new(&coordinator, planner, GROUP, limits, inbox).run();
        drop(coordinator);
        ended
    })
}

pub fn prepared(context: usize) -> Prepared {
    let piece = Piece { ids: vec![3; context], ..Piece::default() };
    Prepared { prefix: vec![1], chunks: vec![piece.clone(), piece], query: vec![4, 5], ..Prepared::default() }
}

pub fn settings(max_tokens: usize) -> RequestSettings {
    // A cache that stays spread over the ranks.
    RequestSettings { world: WORLD, max_tokens, exchange: Some(Exchange::PassQ), ..RequestSettings::default() }
}

/// Submits a request; returns its number and its updates.
pub fn submit(desk: &Desk, context: usize, max_tokens: usize, buffered: usize) -> (u64, Receiver<Update>) {
    let (sink, updates) = sync_channel(buffered);
    let request =
        desk.submit(Work::Answer, (prepared(context), settings(max_tokens)), (Clock::start(), None), Box::new(sink));
    (request.expect("it is taken"), updates)
}

/// Submits chunks ahead of use; returns their number and their updates.
pub fn submit_chunks(desk: &Desk, context: usize) -> (u64, Receiver<Update>) {
    let (sink, updates) = sync_channel(4);
    let request = desk.submit(Work::Chunks, (prepared(context), settings(1)), (Clock::start(), None), Box::new(sink));
    (request.expect("it is taken"), updates)
}

/// Submits a prompt that another program decodes; returns its number once it is held, and its
/// updates.
pub fn held(desk: &Desk, context: usize) -> (u64, Receiver<Update>) {
    let (sink, updates) = sync_channel(4);
    let request = desk.submit(Work::HandOver, (prepared(context), settings(9)), (Clock::start(), None), Box::new(sink));
    let next = || updates.recv_timeout(PATIENCE).expect("an update in time");
    let Update::Begun(planned) = next() else { panic!("its plan comes first") };
    assert!(planned.plan.keep_sequence && planned.plan.max_tokens == 1);
    assert!(matches!(next(), Update::FirstToken(..)) && matches!(next(), Update::Done(_)));
    (request.expect("it is taken"), updates)
}

/// Reads rows of a held sequence.
pub fn read(desk: &Desk, request: u64, layer: u32, rows: std::ops::Range<u32>) -> Receiver<Rows> {
    let (sender, receiver) = sync_channel(1);
    desk.read(request, layer, rows, Box::new(Waits(sender)));
    receiver
}

struct Waits(SyncSender<Rows>);

impl Reader for Waits {
    fn waits(&self) -> bool {
        true
    }

    fn take(self: Box<Self>, rows: Rows) {
        // A test that has ended takes none.
        let _ = self.0.send(rows);
    }
}

/// Rows of a held sequence, or why there are none.
pub type Rows = std::result::Result<Vec<u8>, RequestFailure>;

/// All tokens of a request, as they came and as the answer has them, or its failure.
pub fn tokens(updates: &Receiver<Update>) -> std::result::Result<(Vec<u32>, Vec<u32>), RequestFailure> {
    let mut streamed = Vec::new();
    loop {
        match updates.recv_timeout(PATIENCE).expect("an update in time") {
            Update::FirstToken(drawn, ttft) => {
                assert!(streamed.is_empty() && ttft > Duration::ZERO);
                streamed.push(drawn.token);
            }
            Update::Token(drawn) => streamed.push(drawn.token),
            Update::Done(done) => return Ok((streamed, done.answer.outcome.tokens)),
            Update::Begun(_) => panic!("no other program was to decode"),
            Update::Kept(_) => panic!("no chunks were wanted ahead of use"),
            Update::Failed(failure) => return Err(failure),
        }
    }
}
