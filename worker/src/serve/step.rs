//! A step of decoding: the next token of every sequence that the order lists.

use std::collections::{BTreeMap, BTreeSet};

use tributary_comm::{Communicator, Traffic};
use tributary_kernels::Positions;
use tributary_model::{LayerAttention, Model, Rows};
use tributary_protocol::{DrawnToken, Event, Phase, Refusal, StepReport};

use super::decoding::Decoding;
use super::messages::gather;
use crate::attention::{Decode, DecodeRun, SharedCaches};
use crate::context::{Math, checkpoint};
use crate::error::{Error, Result};
use crate::first_token::{draw, logits};
use crate::sequence::{Sequence, Turned};
use crate::timeline::Timeline;

/// The result of a step for one sequence: the number of its request, and its next token or a
/// refusal.
type NextToken = (u64, std::result::Result<DrawnToken, Refusal>);

impl Decoding<'_, '_> {
    /// Draws the next token of each of these sequences on its owner.
    pub(super) fn step(&mut self, requests: &[u64]) -> Result<()> {
        let rank = self.comm.rank();
        self.comm.set_deadline(Phase::Decode, self.timeout);
        let mut timeline = Timeline::start(self.models.main.device())?;
        timeline.enter(Phase::Decode, &mut self.comm)?;
        if !self.decodes {
            checkpoint(rank, Phase::Decode)?;
        }
        let own = self.drawn(requests)?;
        timeline.close(&mut self.comm)?;
        let spans = timeline.into_spans(&mut self.comm, &[])?;
        let (seconds, waited_s) = spans.iter().fold((0.0, 0.0), |(s, w), span| (s + span.seconds, w + span.waited_s));
        let traffic = Traffic::sum(&self.comm.laps());
        let report = StepReport { rank, seconds, waited_s, traffic, sequences: own.len() };
        let gathered: Vec<(StepReport, Vec<NextToken>)> = gather(&mut self.comm, &(report, own))?;
        let Some(link) = self.link else { return Ok(()) };
        let (reports, tokens): (Vec<_>, Vec<_>) = gathered.into_iter().unzip();
        let drawn: usize = tokens.iter().map(Vec::len).sum();
        assert_eq!(drawn, requests.len(), "tokens of a step, one a sequence");
        let mut found: BTreeMap<u64, _> = tokens.into_iter().flatten().collect();
        let mut next = |request: &u64| {
            let token = found.remove(request).ok_or(Error::Bug("no rank has stepped a sequence"))?;
            Ok((*request, token))
        };
        let tokens = requests.iter().map(&mut next).collect::<Result<Vec<_>>>()?;
        Ok(link.send(Event::Stepped { tokens, reports })?)
    }

    /// Computes the newest rows of this rank's sequences, and its part of the shared ones; returns
    /// the tokens drawn here.
    fn drawn(&mut self, requests: &[u64]) -> Result<Vec<NextToken>> {
        let listed: BTreeSet<u64> = requests.iter().copied().collect();
        if listed.len() != requests.len() || !listed.iter().all(|request| self.sequences.contains_key(request)) {
            return Err(Error::Bug("a step lists a sequence twice, or one that does not run"));
        }
        // In the order of their requests' numbers, which is the same on every rank.
        let in_step = |(request, sequence): (&u64, _)| listed.contains(request).then_some((*request, sequence));
        let sequences: Vec<(u64, &mut Sequence)> = self.sequences.iter_mut().filter_map(in_step).collect();
        let positions = sequences.iter().map(|(_, sequence)| sequence.positions).max().unwrap_or(0);
        let math = Math::of(self.models.main, positions, (self.kernels, &self.progress, self.comm.kept_free()))?;
        let step = Step::of(sequences, self.comm.size(), &math.layers)?;
        let own = step.requests.clone();
        let Some(rows) = step.run(self.models.main, math, &mut self.comm)? else { return Ok(Vec::new()) };
        let logits = logits(self.models.main, &rows)?;
        assert_eq!(logits.len(), own.len(), "rows of logits and sequences");
        own.into_iter().zip(logits).map(|(request, logits)| self.draw(request, &logits)).collect()
    }

    /// Draws a sequence's next token from its logits.
    fn draw(&mut self, request: u64, logits: &[f32]) -> Result<NextToken> {
        let rank = self.comm.rank();
        let drawing = self.sequences.get_mut(&request).and_then(Sequence::drawing);
        let drawing = drawing.ok_or(Error::Bug("a sequence is drawn where it has no sampler"))?;
        let drawn = draw(&mut drawing.sampler, logits, rank);
        if let Ok(drawn) = &drawn {
            drawing.newest = drawn.token;
        }
        Ok((request, drawn))
    }
}

/// This rank's part of a step.
struct Step<'a> {
    caches: Vec<&'a mut Turned>,
    /// The newest rows of the sequences that this rank owns, and their tokens.
    runs: Vec<DecodeRun>,
    ids: Vec<u32>,
    requests: Vec<u64>,
    /// The shared sequences by owner: this rank's part and the position of the newest row.
    shared: Vec<Vec<(usize, Positions)>>,
}

impl<'a> Step<'a> {
    /// The step of these sequences.
    fn of(sequences: Vec<(u64, &'a mut Sequence)>, world: usize, layers: &[LayerAttention]) -> Result<Self> {
        let (caches, runs, ids, requests) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut this = Self { caches, runs, ids, requests, shared: vec![Vec::new(); world] };
        for (request, sequence) in sequences {
            sequence.turn(layers)?;
            let (owner, alone, drops) = (sequence.owner, sequence.alone, sequence.drops);
            let newest = sequence.drawing().map(|drawing| drawing.newest);
            let Some(turned) = sequence.turned() else { continue };
            let (at, cache) = (turned.begin_row(newest.is_some()), this.caches.len());
            if drops.answer {
                turned.generated.drop_unseen(at.rope()[0], layers);
            }
            if !alone {
                this.shared[owner].push((cache, at.clone()));
            }
            if let Some(token) = newest {
                this.runs.push(DecodeRun { cache, at, alone });
                this.ids.push(token);
                this.requests.push(request);
            }
            this.caches.push(turned);
        }
        Ok(this)
    }

    /// Runs the rows through the model; `None` if this rank owns none. Such ranks take part in the
    /// rounds of shared sequences.
    fn run(self, model: &dyn Model, math: Math, comm: &mut dyn Communicator) -> Result<Option<Rows>> {
        let counts: Vec<usize> = self.shared.iter().map(Vec::len).collect();
        let any_shared = counts.iter().any(|&count| count > 0);
        let owns = !self.runs.is_empty();
        if !owns && !any_shared {
            return Ok(None);
        }
        let at = Positions::concat(&self.runs.iter().map(|run| &run.at).collect::<Vec<_>>());
        let parts = self.shared.into_iter().flatten().collect();
        let shared = any_shared.then_some(SharedCaches { comm, counts, parts });
        let mut attention = Decode { math, caches: self.caches, runs: self.runs, at, shared };
        let rows = model.layers(0..model.config().layers, model.embed(&self.ids)?, &mut attention)?;
        Ok(owns.then_some(rows))
    }
}
