//! Hypothetical requests: a context of `tokens` tokens in chunks of a size, a share of them in the
//! chunk cache.

use std::sync::Arc;

use tributary_protocol::{Around, Exchange, Packets, Picture, Pixels, Plan};

use crate::cost::memory;
use crate::forecast::overhead::Overhead;
use crate::forecast::{Counted, Predicted, Profile, TIE};
use crate::machine::Machine;
use crate::plan::{Cached, Draft, RequestSettings, Tokens};
use crate::{Error, ModelShape, Result};

use super::auxiliary::auxiliary;

/// Default rows around a chunk: the numbers of KV Packet's own experiments.
const USUAL_PACKET: Around = Around { adapter: 0, head: 8, tail: 8 };

/// A hypothetical request, except for the length of its context.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The method with its options, as users spell it.
    pub method: String,
    /// Method and world. Where it names no exchange, the faster one of those that fit is taken, or,
    /// if none fits, the smaller one.
    pub settings: RequestSettings,
    /// Tokens of a chunk, the last one's perhaps fewer; one chunk a rank where absent.
    pub chunk_tokens: Option<usize>,
    /// Tokens before the context.
    pub prefix_tokens: usize,
    /// Number of those, the last ones, that chunks are prefilled without.
    pub lead_tokens: usize,
    /// Tokens after it.
    pub query_tokens: usize,
    /// Share of the chunks that come from the chunk cache, from 0 to 1.
    pub hit_rate: f64,
    /// Pictures after the tokens of the context, a chunk each.
    pub pictures: PictureGrids,
    /// The model that reads the context for methods that need one.
    pub auxiliary: Option<ModelShape>,
}

/// Pictures of one size: how many, and the grid of places of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PictureGrids {
    /// Number of pictures.
    pub count: usize,
    /// Lines of each grid.
    pub lines: u32,
    /// Places in a line.
    pub columns: u32,
}

impl PictureGrids {
    /// Tokens of all of them, the two marks around each included.
    pub fn tokens(&self) -> usize {
        self.count * (self.lines as usize * self.columns as usize + 2)
    }

    /// Each as the ids and the picture of a chunk.
    fn chunks(self) -> impl Iterator<Item = (Vec<u32>, Vec<Picture>)> {
        (0..self.count).map(move |number| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&(number as u64).to_le_bytes());
            let picture = Picture {
                first: 1,
                lines: self.lines,
                columns: self.columns,
                hash,
                tile: None,
                pixels: Pixels::default(),
            };
            (vec![0; picture.rows() + 2], vec![picture])
        })
    }
}

/// A scenario at one length.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// Its plan.
    pub plan: Plan,
    /// Share of the context that is recomputed.
    pub ratio: f64,
    /// Predicted bytes, FLOPs and seconds.
    pub predicted: Predicted,
    /// Memory at the worst moment of each rank, weights included.
    pub rank_memory_bytes: Vec<u64>,
    /// The part of it that belongs neither to weights nor to the request.
    pub overhead: Overhead,
    /// Whether every rank of the profile has that much memory.
    pub fits: bool,
}

impl Forecast {
    /// Bytes that the fullest rank needs.
    pub fn most_memory_bytes(&self) -> u64 {
        self.rank_memory_bytes.iter().copied().max().unwrap_or(0)
    }
}

/// A scenario at one length, counted under each exchange that it may take.
#[derive(Debug, Clone)]
pub struct Counts {
    first: Placed,
    second: Option<Placed>,
}

/// A counted plan, and the memory that it needs.
#[derive(Debug, Clone)]
struct Placed {
    plan: Plan,
    ratio: f64,
    counted: Counted,
    rank_memory_bytes: Vec<u64>,
    overhead: Overhead,
    fits: bool,
}

impl Placed {
    fn most_memory_bytes(&self) -> u64 {
        self.rank_memory_bytes.iter().copied().max().unwrap_or(0)
    }

    fn seconds(&self, profile: &Profile) -> f64 {
        self.counted.seconds(&self.plan, profile)
    }
}

impl Counts {
    /// Plans that fit come first; then the faster one, if by more than the exchanges' tie; if none
    /// fits, the smaller one.
    fn choose(&self, profile: &Profile) -> &Placed {
        let Self { first, second: Some(second) } = self else { return &self.first };
        let takes_second = match (first.fits, second.fits) {
            (true, true) => second.seconds(profile) < (1.0 - TIE) * first.seconds(profile),
            (false, false) => second.most_memory_bytes() < first.most_memory_bytes(),
            (_, second_fits) => second_fits,
        };
        if takes_second { second } else { first }
    }

    /// The time to first token on the machine of a profile.
    pub fn seconds(&self, profile: &Profile) -> f64 {
        self.choose(profile).seconds(profile)
    }

    /// The whole forecast on the machine of a profile.
    pub fn forecast(&self, profile: &Profile) -> Forecast {
        let Placed { plan, ratio, counted, rank_memory_bytes, overhead, fits } = self.choose(profile).clone();
        let predicted = counted.on(&plan, profile);
        Forecast { plan, ratio, predicted, rank_memory_bytes, overhead, fits }
    }
}

impl Scenario {
    /// The prediction for a context of `tokens` tokens. The model's number of positions is no limit
    /// here.
    ///
    /// # Errors
    /// Returns an error for invalid settings, as [`crate::plan()`], and [`Error::Setting`] for a
    /// world that the profile lacks, an invalid hit rate, or no tokens.
    pub fn forecast(&self, tokens: usize, shape: &ModelShape, profile: &Profile) -> Result<Forecast> {
        Ok(self.counts(tokens, shape, profile)?.forecast(profile))
    }

    /// The same, counted and not yet combined with the rates of a machine.
    ///
    /// # Errors
    /// As [`forecast`](Self::forecast).
    pub fn counts(&self, tokens: usize, shape: &ModelShape, profile: &Profile) -> Result<Counts> {
        self.check(tokens, profile)?;
        let settled = self.settings.exchange.is_some() || self.settings.world == 1;
        let exchange = self.settings.exchange.unwrap_or(Exchange::Replicate);
        let first = self.with_exchange(tokens, exchange, shape, profile)?;
        let second = match settled || !first.plan.method.selects() {
            true => None,
            false => Some(self.with_exchange(tokens, Exchange::PassQ, shape, profile)?),
        };
        Ok(Counts { first, second })
    }

    fn check(&self, tokens: usize, profile: &Profile) -> Result<()> {
        let wrong = |name, found: String, wanted: String| Err(Error::Setting { name, found, wanted });
        let world = self.settings.world;
        if world > profile.ranks {
            let wanted = format!("profile {} has {} ranks", profile.name, profile.ranks);
            return wrong("--world", world.to_string(), wanted);
        }
        if !(0.0..=1.0).contains(&self.hit_rate) {
            return wrong("--hit-rate", self.hit_rate.to_string(), "must be from 0 to 1".into());
        }
        for (name, count) in [("--tokens", tokens), ("--query-tokens", self.query_tokens)] {
            if count == 0 {
                return wrong(name, "0".into(), "must be at least 1".into());
            }
        }
        if self.lead_tokens > self.prefix_tokens || self.lead_tokens > u32::MAX as usize {
            let wanted = format!("they belong to the {} of --prefix-tokens", self.prefix_tokens);
            return wrong("--lead-tokens", self.lead_tokens.to_string(), wanted);
        }
        match self.chunk_tokens {
            Some(0) => wrong("--chunk-tokens", "0".into(), "must be at least 1".into()),
            _ => Ok(()),
        }
    }

    fn with_exchange(
        &self,
        tokens: usize,
        exchange: Exchange,
        shape: &ModelShape,
        profile: &Profile,
    ) -> Result<Placed> {
        let settings = RequestSettings { exchange: Some(exchange), ..self.settings.clone() };
        let world = settings.world;
        let chunk_tokens = self.chunk_tokens.unwrap_or(tokens.div_ceil(world.max(1)));
        let lengths = (0..tokens).step_by(chunk_tokens).map(|from| chunk_tokens.min(tokens - from));
        let texts = lengths.map(|length| (vec![0; length], Vec::new()));
        let (chunks, pictures): (Vec<Vec<u32>>, Vec<Vec<Picture>>) = texts.chain(self.pictures.chunks()).unzip();
        let lead: Vec<u32> = (self.lead_tokens > 0).then_some(self.lead_tokens as u32).into_iter().collect();
        // The paper's sizes, if a method requires an adapter: none has to be present.
        let around = (settings.chunk_packets() == Packets::On).then_some(USUAL_PACKET);
        let read = settings.auxiliary_reading()?.zip(self.auxiliary.as_ref()).map(|(reading, shape)| {
            let lengths: Vec<usize> = chunks.iter().map(Vec::len).collect();
            let skipped = usize::from(!settings.include_first_chunk && (lead.is_empty() || lengths.len() == 1));
            auxiliary(reading, shape, [self.prefix_tokens, self.query_tokens], &lengths, skipped)
        });
        let tokens = Tokens {
            prefix: vec![0; self.prefix_tokens],
            lead,
            chunks,
            pictures,
            query: vec![0; self.query_tokens],
            around,
            auxiliary: read.into_iter().collect(),
            ..Tokens::default()
        };
        let boundless = ModelShape { max_positions: usize::MAX, ..*shape };
        let mut draft = Draft::new(tokens, &settings, &boundless)?;
        draft.place(0, settings.owner, Cached::default(), &boundless, (&machine(profile), Some(profile)))?;
        let planned = draft.planned();
        let mut plan = Arc::unwrap_or_clone(planned.plan);
        self.warm(&mut plan);
        let overhead = Overhead::of(profile, world);
        let mut rank_memory_bytes = memory::rank_bytes(&plan, world, shape, profile.rank.memory_of, &[]);
        rank_memory_bytes.iter_mut().for_each(|bytes| *bytes += overhead.bytes());
        let fits = rank_memory_bytes.iter().all(|&bytes| bytes <= profile.rank.memory_bytes);
        let counted = Counted::new(&plan, world, shape);
        Ok(Placed { ratio: planned.ratio, plan, counted, rank_memory_bytes, overhead, fits })
    }

    /// Marks the hit rate's share of the chunks as warm, evenly over the ranks; the first ones if a
    /// prefix is reused.
    fn warm(&self, plan: &mut Plan) {
        if plan.method.reuses_prefix() {
            plan.reused_rows = plan.leading_rows(self.hit_rate);
        }
        if !plan.method.in_chunks() {
            return;
        }
        let mut by_rank: Vec<usize> = (0..plan.chunks.len()).collect();
        by_rank.sort_by_key(|&chunk| plan.chunks[chunk].rank);
        let until = |index: usize| (self.hit_rate * index as f64 + 1e-9).floor();
        for (index, chunk) in by_rank.into_iter().enumerate() {
            plan.chunks[chunk].warm = until(index + 1) > until(index);
        }
    }
}

/// A machine that refuses nothing: the forecast reports whether a point fits, without enforcing it.
fn machine(profile: &Profile) -> Machine {
    Machine {
        flops_per_s: profile.rank.gemm_flops_per_s,
        link_bytes_per_s: profile.inside.bytes_per_s,
        memory: profile.rank.memory_of,
        available_bytes: None,
        ranks_here: profile.ranks_per_host,
        weight_copies: profile.ranks_per_host,
        of_rank: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::MemoryOf;
    use crate::shape::tests::QWEN3_14B;
    use tributary_protocol::{Method, Phase};

    #[test]
    fn memory_is_counted_as_the_profile_says_whose_it_is() {
        let settings =
            RequestSettings { method: Method::named("full").unwrap(), world: 1, ..RequestSettings::default() };
        let scenario = Scenario {
            method: "full".to_owned(),
            settings,
            chunk_tokens: Some(2048),
            prefix_tokens: 0,
            lead_tokens: 0,
            query_tokens: 32,
            hit_rate: 0.0,
            pictures: PictureGrids::default(),
            auxiliary: None,
        };
        let of = |memory_of| {
            let mut profile = Profile::by_name("h100x4").unwrap();
            profile.rank.memory_of = memory_of;
            scenario.forecast(131_072, &QWEN3_14B, &profile).unwrap().most_memory_bytes()
        };
        let (device, host) = (of(MemoryOf::Device), of(MemoryOf::Host));
        // 29.5 GB of weights, 21.5 GB of keys and values. Activations are bf16 on a device and f32
        // on a host; a device has larger slices, and a layer's keys turned.
        assert!((55_000_000_000..75_000_000_000).contains(&device), "{device}");
        assert!((55_000_000_000..75_000_000_000).contains(&host), "{host}");
        assert_ne!(device, host);
        for name in Profile::names() {
            assert_eq!(Profile::by_name(name).unwrap().rank.memory_of, MemoryOf::Device, "{name}");
        }
    }

    /// 20 pictures of 1024 x 1024 pixels on four ranks.
    #[test]
    fn towers_are_a_phase_of_requests_with_pictures() {
        let shape = ModelShape::named("qwen3-vl-8b").unwrap();
        let profile = Profile::by_name("h100x4").unwrap();
        let of = |method: &str, hit_rate, count| {
            let method = Method::named(method).unwrap();
            let scenario = Scenario {
                method: method.name.to_owned(),
                settings: RequestSettings { method, world: 4, ..RequestSettings::default() },
                chunk_tokens: Some(2048),
                prefix_tokens: 1,
                lead_tokens: 0,
                query_tokens: 32,
                hit_rate,
                pictures: PictureGrids { count, lines: 32, columns: 32 },
                auxiliary: None,
            };
            let tokens = scenario.pictures.tokens();
            let forecast = scenario.forecast(8192, &shape, &profile).unwrap();
            assert_eq!(forecast.plan.context_tokens(), 8192 + tokens);
            forecast
        };
        let vision = |forecast: &Forecast| {
            let found = forecast.predicted.phases.iter().find(|found| found.phase == Phase::Vision);
            found.map_or(0.0, |found| found.seconds)
        };
        assert_eq!(PictureGrids { count: 20, lines: 32, columns: 32 }.tokens(), 20 * 1026);
        let [cold, warm, none] = [(0.0, 20), (1.0, 20), (0.0, 0)].map(|(rate, count)| of("infoflow", rate, count));
        // 5 pictures of 5.8 TFLOP on each rank, below the 989 TFLOP/s of the machine's peak.
        assert!((0.029..0.3).contains(&vision(&cold)), "{} s", vision(&cold));
        let (cold_flops, warm_flops) = (cold.predicted.total_flops, warm.predicted.total_flops);
        assert!(cold_flops - warm_flops > 20.0 * 5.6e12, "{cold_flops:e} and {warm_flops:e}");
        assert!(vision(&warm) < 0.2 * vision(&cold), "features of warm chunks are there: {} s", vision(&warm));
        assert_eq!(vision(&none), 0.0);
        assert!(vision(&of("ring", 0.0, 20)) > 0.02);
    }
}
