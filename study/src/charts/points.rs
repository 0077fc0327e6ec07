//! The points of a study as all charts show them: which were measured, and their labels.

use std::collections::BTreeSet;

use crate::scaling::{Series, all_series};
use crate::schema::{Point, Sample, Study};

/// The worlds that were measured.
pub(super) fn worlds(study: &Study) -> BTreeSet<usize> {
    measured(study).map(|point| point.world).collect()
}

/// The context lengths that were measured.
pub(super) fn lengths_of(study: &Study) -> BTreeSet<usize> {
    measured(study).map(|point| point.context_tokens).collect()
}

/// Points with samples.
pub(super) fn measured(study: &Study) -> impl Iterator<Item = &Point> {
    study.points.iter().filter(|point| point.summary.is_some())
}

/// The number of a point's series, which gives it colour and mark in every chart, and all labels.
pub(super) fn series_of(study: &Study, point: &Point) -> usize {
    let own = Series::of(point);
    all_series(study).iter().position(|series| *series == own).expect("every point is of a series")
}

/// The labels of all series.
pub(super) fn labels(study: &Study) -> Vec<String> {
    all_series(study).iter().map(Series::label).collect()
}

/// The legend of a chart that shows these points.
pub(super) fn legend<'a>(study: &Study, points: impl Iterator<Item = &'a Point>) -> Vec<(usize, String)> {
    let shown: BTreeSet<usize> = points.map(|point| series_of(study, point)).collect();
    labels(study).into_iter().enumerate().filter(|(series, _)| shown.contains(series)).collect()
}

/// The sample nearest to the median.
pub(super) fn typical(point: &Point) -> Option<&Sample> {
    let median_ms = point.summary.as_ref()?.median_ttft_ms;
    let distance = |sample: &&Sample| (sample.ttft_ms - median_ms).abs();
    point.samples.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

/// The lines below a title: the chart's subject, and a warning that its times have no meaning where
/// ranks share cores.
pub(super) fn marked(below: &str, shares_cores: bool) -> String {
    if shares_cores { format!("{below}\nfunctional only: ranks share cores") } else { below.to_owned() }
}

/// `1 rank`, `2 ranks`.
pub(crate) fn ranks(world: usize) -> String {
    if world == 1 { "1 rank".to_owned() } else { format!("{world} ranks") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        assert_eq!([ranks(1), ranks(2)], ["1 rank", "2 ranks"]);
    }
}
