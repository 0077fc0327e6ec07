//! Every method by its samples: specs that the parser of users reads and the planner of users
//! plans. Tests of properties of all methods run these and name no method. A combination that the
//! program refuses is left out.

use std::sync::Arc;

use candle_core::DType;
use tributary_engine::RunConfig;
use tributary_model::Model;
use tributary_planner::Error;
use tributary_planner::{Cached, Machine, MemoryOf, MethodInputs, PlanInput, RequestSettings};
use tributary_protocol::{Claim, Exchange, METHODS, Method, OrderFor, Packets, Plan, Returns, Sampling};
use tributary_study::method_spec::MethodSpec;

use crate::{AROUND, method, plan, read_by_itself, shape, written_by_itself};

/// Options that many methods combine with, each appended to a spec: none; an adapter's rows around
/// chunks; chunks that keep 8 of their tokens; a prompt that keeps a part of its rows.
pub const COMBINATIONS: [&str; 4] = ["", ":packets", ":keep-per-chunk=8", ":evict=snapkv:keep=60%"];

/// Tokens of the pieces of a lead.
pub const LEAD: &[u32] = &[5, 8];

/// An empty lead, and a full one in a prefix of this length, if it has a token.
pub fn leads(prefix: usize) -> Vec<&'static [u32]> {
    let full: &[u32] = match prefix {
        0 => &[],
        1 | 2 => &[1],
        3 => &[1, 1],
        _ => &[1, 2],
    };
    if prefix == 0 { vec![full] } else { vec![&[], full] }
}

/// A machine that never says no.
pub const MACHINE: Machine = Machine {
    flops_per_s: 1e10,
    link_bytes_per_s: 4e9,
    memory: MemoryOf::Host,
    available_bytes: None,
    ranks_here: usize::MAX,
    weight_copies: 1,
    of_rank: None,
};

/// A request that every method can answer.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// Tokens before the context.
    pub prefix: usize,
    /// Those of them that are a lead, which chunks are prefilled without: the tokens of its pieces.
    pub lead: &'a [u32],
    /// Tokens of each chunk; chunk i is on rank i mod `world`.
    pub chunks: &'a [usize],
    /// Tokens after the context.
    pub query: usize,
    /// Number of ranks.
    pub world: usize,
    /// The exchange of methods that have one.
    pub exchange: Exchange,
    /// The share that is recomputed where the spec says none.
    pub ratio: f64,
}

/// A plan, and the spec that asked for it.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The spec, with the options of its combination.
    pub spec: String,
    /// Its plan.
    pub plan: Plan,
}

impl Sample {
    /// The spec, with further facts of the plan.
    pub fn what(&self) -> String {
        let lengths: Vec<usize> = self.plan.chunks.iter().map(|chunk| chunk.ids.len()).collect();
        let (head, lead) = (self.plan.head_tokens(), &self.plan.lead);
        format!("{} {:?}, {lengths:?} after {head} and {lead:?}", self.spec, self.plan.exchange)
    }

    /// The same with a prefix and chunks that no sample of another number has.
    fn numbered(mut self, number: usize) -> Self {
        assert!(number < 96, "there are 96 tokens by which prefixes differ");
        self.plan.prefix.iter_mut().take(1).for_each(|id| *id = number as u32);
        self.plan.scope = Some(number as u64);
        self
    }
}

/// The samples of all methods, in the order of the registry.
pub fn specs() -> impl Iterator<Item = (&'static Method, &'static str)> {
    METHODS.into_iter().flat_map(|method| method.samples.iter().map(move |&spec| (method, spec)))
}

/// Every sample that works in chunks, unchanged in every exchange, and with each combination in
/// one; shapes (prefix and chunks) and exchanges take turns. Each list is for a separate group of
/// ranks, in which no two samples share a prefix or a chunk: a chunk that another request computed
/// may differ in its last bits.
pub fn apart(shapes: &[(usize, &[usize])], world: usize, model: &dyn Model) -> Vec<Vec<Sample>> {
    let exchanges = [Exchange::Replicate, Exchange::PassQ, Exchange::Selected];
    let mut lists = Vec::new();
    for (number, options) in COMBINATIONS.into_iter().enumerate() {
        for (turn, exchange) in exchanges.into_iter().enumerate() {
            let (prefix, chunks) = shapes[(turn + world + number) % shapes.len()];
            if options.is_empty() || (number + world) % exchanges.len() == turn {
                for lead in [&[][..], LEAD] {
                    let prefix = prefix + lead.iter().sum::<u32>() as usize;
                    let case = Case { prefix, lead, chunks, query: 6, world, exchange, ratio: 0.3 };
                    let samples = case.in_chunks(options, model).into_iter().enumerate();
                    lists.push(samples.map(|(number, sample)| sample.numbered(number)).collect());
                }
            }
        }
    }
    lists
}

impl Case<'_> {
    /// The plan of a spec, or the program's refusal of it.
    ///
    /// # Panics
    /// If the request itself is refused.
    pub fn planned(&self, spec: &str, model: &dyn Model) -> Result<Plan, String> {
        let settings = self.settings(spec)?;
        let bare = plan(self.prefix, self.chunks, self.query, self.world, method("none"), self.exchange);
        let chunks: Vec<Vec<u32>> = bare.chunks.iter().map(|chunk| chunk.ids.clone()).collect();
        let reading = settings.auxiliary_reading().map_err(|refusal| refusal.to_string())?;
        let auxiliary: Vec<_> = reading.map(|reading| read_by_itself(&bare, reading)).into_iter().collect();
        let draft_model = settings.eviction.asks_draft_model().then(written_by_itself);
        let method_inputs = MethodInputs {
            around: (settings.chunk_packets() == Packets::On).then_some(AROUND),
            auxiliary: &auxiliary,
            draft_model: draft_model.as_ref(),
            look_ahead: None,
        };
        let input = PlanInput {
            request: 1,
            prefix: &bare.prefix,
            lead: self.lead,
            chunks: &chunks,
            cached: Cached::default(),
            query: &bare.query,
            eos: &[],
            method_inputs,
        };
        match tributary_planner::plan(&input, &settings, &shape(model, DType::F32), &MACHINE, None) {
            Ok(planned) => {
                let mut plan = Arc::unwrap_or_clone(planned.plan);
                plan.chunks.iter_mut().zip(bare.chunks).for_each(|(chunk, bare)| chunk.rank = bare.rank);
                Ok(plan)
            }
            Err(refusal @ Error::Setting { .. }) => Err(refusal.to_string()),
            Err(error) => panic!("{spec}, {self:?}: {error}"),
        }
    }

    /// All samples with these options appended. A sample is left out if the program refuses it, or
    /// if the options do not change its plan.
    ///
    /// # Panics
    /// Panics if the program refuses a plain sample, or if it refuses all with the options.
    pub fn samples(&self, options: &str, model: &dyn Model) -> Vec<Sample> {
        let (mut found, mut accepted) = (Vec::new(), 0);
        for (_, spec) in specs() {
            let bare = self.planned(spec, model).unwrap_or_else(|why| panic!("{spec}: {why}"));
            if options.is_empty() {
                found.push(Sample { spec: spec.to_owned(), plan: bare });
                accepted += 1;
            } else if let Ok(plan) = self.planned(&format!("{spec}{options}"), model) {
                accepted += 1;
                found.extend((plan != bare).then(|| Sample { spec: format!("{spec}{options}"), plan }));
            }
        }
        assert!(accepted > 0, "the program refuses {options} with every sample, {self:?}");
        found
    }

    /// The same of methods that work in chunks.
    ///
    /// # Panics
    /// As [`samples`](Self::samples), and if nothing is left.
    pub fn in_chunks(&self, options: &str, model: &dyn Model) -> Vec<Sample> {
        let mut found = self.selecting(options, model);
        found.retain(|sample| sample.plan.method.in_chunks());
        assert!(!found.is_empty(), "no method that works in chunks combines with {options}, {self:?}");
        found
    }

    /// The same of methods that select rows of the context, in chunks or not.
    ///
    /// # Panics
    /// As [`samples`](Self::samples).
    pub fn selecting(&self, options: &str, model: &dyn Model) -> Vec<Sample> {
        let mut found = self.samples(options, model);
        found.retain(|sample| sample.plan.method.selects());
        found
    }

    /// All samples that claim a full prefill's answer, in the resulting order of chunks: exact
    /// methods, and the others with the options that make them exact.
    ///
    /// # Panics
    /// If the program refuses one.
    pub fn exact(&self, model: &dyn Model) -> Vec<Sample> {
        let claimed = |(method, spec): (&'static Method, &str)| match method.claim {
            Claim::Exact => Some(spec.to_owned()),
            Claim::Approximate { exact_with, .. } => Some(format!("{spec}{}", exact_with?)),
        };
        let planned = |spec: String| {
            let plan = self.planned(&spec, model).unwrap_or_else(|why| panic!("{spec}: {why}"));
            Sample { spec, plan }
        };
        // A sample that has the option already keeps its value.
        let can_be = |spec: &String| read(spec).is_ok();
        // The query does not read chunks in the order in which such rows were recomputed.
        let is_meant = |sample: &Sample| sample.plan.order_for == OrderFor::All;
        specs().filter_map(claimed).filter(can_be).map(planned).filter(is_meant).collect()
    }

    fn settings(&self, spec: &str) -> Result<RequestSettings, String> {
        let settings = RequestSettings {
            ratio: Some(self.ratio),
            exchange: Some(self.exchange),
            world: self.world,
            max_tokens: 4,
            sampling: Sampling { seed: 3, ..Sampling::default() },
            returns: Returns { logits: true, scores: true, ..Returns::default() },
            ..RequestSettings::default()
        };
        Ok(read(spec)?.apply(RunConfig { settings, threads: 1 }).settings)
    }
}

/// A spec as users write it, or the refusal of an option that the method does not take or that is
/// given already.
///
/// # Panics
/// If the spec cannot be read for another reason.
fn read(spec: &str) -> Result<MethodSpec, String> {
    let read = spec.parse::<MethodSpec>();
    let is_meant =
        |why: &String| ["makes no difference to this method", "is given twice"].iter().any(|known| why.contains(known));
    assert!(read.as_ref().err().is_none_or(is_meant), "{spec}: {read:?}");
    read
}
