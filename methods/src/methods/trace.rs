//! Trace (ours): relay that follows chains of rows regardless of the order of their chunks, and
//! puts chunks in the order of their dependences.
//! Exact where every row is selected and no chunk moves.
//!
//! s = ProphetKV's score, normalised over the context. Free probes measure the attention of the
//! best rows as if every other chunk stood before their own. They go on with the rows that those
//! depend on, round by round (`worker/src/strategy/trace` has the formulas).
//! score = s + a, where a is the attention of the measured rows weighted by their relevance, among
//! rows of chunks that do not stand after their own in the new order, normalised.

use super::prophetkv;
use crate::method::{Claim, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::Options;
use crate::options::{ALPHA, KEEP_ORDER, ORDER_FOR, PACKETS, RATIO, SHARPEST};
use crate::prefill::{Evidence, Prefill, Selection};
use crate::rows::normalised;
use crate::selector::{Candidates, Need, Selector};
use crate::terms::{Layout, Trace, TraceHeads};

/// The declaration.
pub static TRACE: Method = Method {
    name: "trace",
    summary: "rows that the query attends to and rows these depend on, in any order; chunks are sorted by dependence",
    source: "ours; better than the others on the demo model only",
    claim: Claim::Approximate { exact_where: "at ratio 1, where no chunk moves", exact_with: Some(":ratio=1") },
    cost: "chunks, M rows, n/3 to n/2 rows that see all T keys and are read one by one, then n + M rows",
    ratio: Some(0.15),
    options: &[&RATIO, &ALPHA, &SHARPEST, &KEEP_ORDER, &ORDER_FOR, &PACKETS],
    requires: None,
    default_of: &[],
    samples: &["trace", "trace:alpha=0.002", "trace:alpha=0.002:sharpest=0.25", "trace:keep-order"],
    prefill,
    selector: Some(|_| Box::new(Traced::default())),
};

fn prefill(options: &mut Options, _: ModelFacts) -> Result<Prefill, InvalidOption> {
    let usual = Trace::default();
    options.set_default(&ALPHA, &usual.alpha.to_string());
    let trace = Trace {
        alpha: options.usual(&ALPHA),
        keep_order: options.has(&KEEP_ORDER),
        heads: TraceHeads::from(options.get::<f32>(&SHARPEST)),
        ..usual
    };
    let evidence = Evidence { trace: Some(trace), ..prophetkv::evidence(Layout::Global) };
    Ok(Prefill::Chunks(Selection::Evidence(evidence)))
}

/// A probe, then free probes.
#[derive(Default)]
struct Traced {
    scores: Option<Vec<f32>>,
}

impl Selector for Traced {
    fn next(&mut self, _: &Candidates, evidence: &[f32]) -> Need {
        if evidence.is_empty() {
            return Need::Probe;
        }
        let Some(scores) = &self.scores else {
            let scores = normalised(evidence);
            self.scores = Some(scores.clone());
            return Need::Trace(scores);
        };
        assert_eq!(evidence.len(), scores.len(), "numbers of the free probes and of the first one");
        Need::Scores(scores.iter().zip(normalised(evidence)).map(|(s, a)| s + a).collect())
    }
}
