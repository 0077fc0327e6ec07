//! Scaling of the time to first token with ranks: strong (the same request on more ranks) and weak
//! (more ranks for more tokens, or for more FLOPs).

use tributary_protocol::REFERENCE;

use super::schema::{Cache, Point, Study};

/// Relative difference up to which FLOPs a rank count as constant.
const FLOPS_TOLERANCE: f64 = 0.1;

/// T(base) / T(p).
pub fn speed_up(base_ms: f64, ms: f64) -> f64 {
    base_ms / ms
}

/// Speed-up over the factor of ranks.
pub fn efficiency(speed_up: f64, times: f64) -> f64 {
    speed_up / times
}

/// The serial share that would explain a speed-up, by Karp and Flatt: (1/S − 1/p) / (1 − 1/p). None
/// for one rank.
pub fn karp_flatt(speed_up: f64, times: f64) -> Option<f64> {
    (times > 1.0).then(|| (1.0 / speed_up - 1.0 / times) / (1.0 - 1.0 / times))
}

/// Common fields of points that differ only in length and ranks: method, ratio, state of the cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The method with its options.
    pub method: String,
    /// Share of the context that is recomputed.
    pub ratio: Option<f64>,
    /// State of the chunk cache.
    pub cache: Cache,
    /// Whether it equals full prefill but for rounding.
    pub exact: bool,
}

impl Series {
    /// The series of a point.
    pub fn of(point: &Point) -> Self {
        Self { method: point.method.clone(), ratio: point.ratio, cache: point.cache, exact: point.exact }
    }

    /// Whether it is full prefill, which computes on one rank.
    pub fn is_full(&self) -> bool {
        is_full_method(&self.method)
    }

    /// A short name for legends: `ring`, `infoflow 0.15 warm`.
    pub fn label(&self) -> String {
        if self.exact && self.cache == Cache::Cold {
            return self.method.clone();
        }
        let ratio = self.ratio.map(|ratio| format!(" {ratio}")).unwrap_or_default();
        format!("{}{ratio} {}", self.method, self.cache)
    }
}

/// The series of a study, in the order of its points.
pub fn all_series(study: &Study) -> Vec<Series> {
    let mut found: Vec<Series> = Vec::new();
    for series in study.points.iter().map(Series::of) {
        if !found.contains(&series) {
            found.push(series);
        }
    }
    found
}

/// A point of a strong or weak scaling with its base, the fewest measured ranks of the same series.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaled {
    /// Method, ratio, cache.
    pub series: Series,
    /// Ranks of the base.
    pub base_world: usize,
    /// Context tokens of the base.
    pub base_tokens: usize,
    /// Median of the base.
    pub base_ms: f64,
    /// Ranks.
    pub world: usize,
    /// Context tokens.
    pub tokens: usize,
    /// Median.
    pub ms: f64,
    /// Time of the base over time.
    pub speed_up: f64,
    /// Strong: speed-up over the growth of ranks. Weak: the speed-up itself, ideally 1.
    pub efficiency: f64,
    /// Strong only: the serial share by Karp and Flatt, none where there is but the base.
    pub karp_flatt: Option<f64>,
    /// Whether more threads computed than there are cores.
    pub shares_cores: bool,
}

/// The median of a point that was measured.
pub fn median_ms(point: &Point) -> Option<f64> {
    point.summary.as_ref().map(|summary| summary.median_ttft_ms)
}

/// Full prefill of `tokens` tokens on the fewest measured ranks: its ranks and its median. It
/// computes on one rank, for any number of ranks.
pub fn full(study: &Study, tokens: usize) -> Option<(usize, f64)> {
    let measured = study.points.iter().filter(|point| is_full(point) && point.context_tokens == tokens);
    let fewest = measured.filter_map(|point| Some((point.world, median_ms(point)?)));
    fewest.min_by_key(|(world, _)| *world)
}

/// Whether a point is full prefill.
pub fn is_full(point: &Point) -> bool {
    is_full_method(&point.method)
}

fn is_full_method(method: &str) -> bool {
    method.split(':').next() == Some(REFERENCE.name)
}

/// Strong scaling: every measured point against the one of its series and length on the fewest
/// ranks.
pub fn strong(study: &Study) -> Vec<Scaled> {
    study.points.iter().filter_map(|point| strong_of(study, point)).collect()
}

/// Strong scaling of one point; none if it was not measured.
pub fn strong_of(study: &Study, point: &Point) -> Option<Scaled> {
    let same = |other: &&Point| Series::of(other) == Series::of(point) && other.context_tokens == point.context_tokens;
    let measured = study.points.iter().filter(same).filter(|other| other.summary.is_some());
    let base = measured.min_by_key(|other| other.world)?;
    let scaled = scaled(base, point)?;
    let times = point.world as f64 / base.world as f64;
    Some(Scaled {
        efficiency: efficiency(scaled.speed_up, times),
        karp_flatt: karp_flatt(scaled.speed_up, times),
        ..scaled
    })
}

/// Weak scaling at constant context tokens a rank.
pub fn weak_tokens(study: &Study) -> Vec<Scaled> {
    weak(study, |base, point| base.context_tokens * point.world == point.context_tokens * base.world)
}

/// Weak scaling at constant FLOPs a rank, as far as predicted FLOPs are known and lengths allow:
/// within 10 %.
pub fn weak_flops(study: &Study) -> Vec<Scaled> {
    let a_rank = |point: &Point| point.predicted.total_flops / point.world as f64;
    weak(study, |base, point| {
        let (base, flops) = (a_rank(base), a_rank(point));
        base > 0.0 && (flops / base - 1.0).abs() <= FLOPS_TOLERANCE
    })
}

/// Every measured point on more than the fewest ranks, against each base on the fewest that belongs
/// to it. Full prefill computes on one rank and is left out.
fn weak(study: &Study, belongs: impl Fn(&Point, &Point) -> bool) -> Vec<Scaled> {
    let mut found = Vec::new();
    for series in all_series(study) {
        let of_series = |point: &&Point| Series::of(point) == series && point.summary.is_some() && !is_full(point);
        let points: Vec<&Point> = study.points.iter().filter(of_series).collect();
        let Some(fewest) = points.iter().map(|point| point.world).min() else { continue };
        for base in points.iter().filter(|point| point.world == fewest) {
            let grown = points.iter().filter(|point| point.world > fewest && belongs(base, point));
            found.extend(grown.filter_map(|point| scaled(base, point)));
        }
    }
    found
}

/// A point with its base, and the efficiency of weak scaling.
fn scaled(base: &Point, point: &Point) -> Option<Scaled> {
    let (base_ms, ms) = (median_ms(base)?, median_ms(point)?);
    let speed_up = speed_up(base_ms, ms);
    Some(Scaled {
        series: Series::of(point),
        base_world: base.world,
        base_tokens: base.context_tokens,
        base_ms,
        world: point.world,
        tokens: point.context_tokens,
        ms,
        speed_up,
        efficiency: speed_up,
        karp_flatt: None,
        shares_cores: base.shares_cores || point.shares_cores,
    })
}

#[cfg(test)]
mod tests {
    use super::super::kit::{measured, study};
    use super::*;

    fn near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-9, "{found} is not {wanted}");
    }

    #[test]
    fn karp_and_flatts_serial_share() {
        // Amdahl's law with a serial share of 0.1 gives it back, for any number of ranks.
        for ranks in [2.0, 3.0, 4.0, 64.0] {
            let speed_up = 1.0 / (0.1 + 0.9 / ranks);
            near(karp_flatt(speed_up, ranks).expect("more than one rank"), 0.1);
        }
        near(karp_flatt(1.8, 2.0).expect("two ranks"), 1.0 / 9.0);
        assert_eq!(karp_flatt(1.0, 1.0), None);
        near(efficiency(speed_up(100.0, 40.0), 4.0), 0.625);
    }

    #[test]
    fn strong_scaling_goes_by_series_and_length() {
        let study = study(vec![
            measured("full", 1024, 1, None, 120.0),
            measured("ring", 1024, 1, None, 100.0),
            measured("ring", 1024, 2, None, 60.0),
            measured("ring", 2048, 2, None, 150.0),
            measured("infoflow", 1024, 2, Some(0.15), 70.0),
        ]);
        let rows = strong(&study);
        assert_eq!(rows.len(), 5);
        let two = &rows[2];
        assert_eq!((two.base_world, two.base_ms, two.world, two.ms), (1, 100.0, 2, 60.0));
        near(two.speed_up, 100.0 / 60.0);
        near(two.efficiency, 100.0 / 120.0);
        near(two.karp_flatt.expect("two ranks"), (0.6 - 0.5) / 0.5);
        assert_eq!((rows[3].base_world, rows[3].karp_flatt), (2, None), "no other of that length");
        assert_eq!(full(&study, 1024), Some((1, 120.0)));
        assert_eq!(full(&study, 2048), None);
    }

    #[test]
    fn weak_scaling_keeps_tokens_or_flops_a_rank() {
        let mut points = vec![
            measured("ring", 1024, 1, None, 100.0),
            measured("ring", 2048, 2, None, 125.0),
            measured("ring", 1024, 2, None, 60.0),
            measured("full", 1024, 1, None, 100.0),
            measured("full", 2048, 2, None, 300.0),
        ];
        let flops = [1e9, 2.6e9, 1.9e9, 0.0, 0.0];
        for (point, flops) in points.iter_mut().zip(flops) {
            point.predicted.total_flops = flops;
        }
        let study = study(points);
        let tokens = weak_tokens(&study);
        assert_eq!(tokens.len(), 1, "full is left out: {tokens:?}");
        assert_eq!((tokens[0].base_tokens, tokens[0].tokens, tokens[0].world), (1024, 2048, 2));
        near(tokens[0].efficiency, 0.8);
        let flops = weak_flops(&study);
        assert_eq!(flops.len(), 1);
        assert_eq!((flops[0].tokens, flops[0].world), (1024, 2), "1.9 / 2 is near 1, 2.6 / 2 is not");
    }

    #[test]
    fn series_have_short_names() {
        let label = |point: &Point| Series::of(point).label();
        assert_eq!(label(&measured("ring", 1, 1, None, 1.0)), "ring");
        let mut point = measured("infoflow:reorder", 1, 1, Some(0.05), 1.0);
        point.cache = Cache::Partial(0.5);
        assert_eq!(label(&point), "infoflow:reorder 0.05 0.5 warm");
    }
}
