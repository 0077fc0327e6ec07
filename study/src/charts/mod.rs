//! The charts of a study. Missing measurements or predictions have no chart.

mod clouds;
mod growth;
mod lengths;
mod phases;
mod points;
mod timeline;

pub(crate) use self::points::ranks;
use super::schema::Study;
use tributary_charts::svg::Chart;

/// All charts, in the order of a report.
pub fn charts(study: &Study) -> Vec<Chart> {
    let mut charts = lengths::charts(study);
    charts.extend(growth::charts(study));
    charts.extend(phases::charts(study));
    charts.extend(clouds::predicted(study));
    charts.extend(clouds::bytes(study));
    charts.extend(timeline::charts(study));
    charts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::kit::{measured, study};
    use super::super::schema::{PhaseTime, Prediction, RankSample, SpanTime};
    use super::*;

    fn sweep() -> Study {
        let mut points = Vec::new();
        for tokens in [1024, 2048] {
            for world in [1, 2] {
                points.push(measured("ring", tokens, world, None, 100.0 * tokens as f64 / 1024.0 / world as f64));
                points.push(measured("infoflow", tokens, world, Some(0.15), 80.0 * tokens as f64 / 1024.0));
            }
        }
        for point in &mut points {
            let span = |phase: &str| SpanTime { phase: phase.into(), start_ms: 0.0, ms: 10.0, waited_ms: 4.0 };
            let rank =
                |rank| RankSample { rank, spans: vec![span("dispatch"), span("probe")], ..RankSample::default() };
            for sample in &mut point.samples {
                sample.phases = vec![PhaseTime { phase: "probe".into(), ms: 10.0, waited_ms: 4.0 }];
                sample.ranks = (0..point.world).map(rank).collect();
            }
        }
        study(points)
    }

    fn names(study: &Study) -> Vec<String> {
        charts(study).into_iter().map(|chart| chart.name).collect()
    }

    #[test]
    fn what_was_measured_has_a_chart() {
        let mut study = sweep();
        let plain = names(&study);
        let wanted = ["ttft-1-ranks", "ttft-2-ranks", "speed-up-1024", "efficiency-2048", "phases-2048-2-ranks"];
        for name in wanted.into_iter().chain(["timeline-1", "weak-tokens"]) {
            assert!(plain.iter().any(|other| other == name), "{name} is not in {plain:?}");
        }
        assert!(!plain.iter().any(|name| name.starts_with("predicted") || name == "bytes"), "{plain:?}");
        for point in &mut study.points {
            point.predicted = Prediction { ttft_ms: 90.0, ..Prediction::default() };
            for sample in &mut point.samples {
                sample.ranks[0].received_bytes = 70;
                sample.ranks[0].formula_bytes = 70;
            }
        }
        let more = names(&study);
        assert!(more.contains(&"predicted-ttft".to_owned()) && more.contains(&"bytes".to_owned()), "{more:?}");
        assert_eq!(more.iter().collect::<BTreeSet<_>>().len(), more.len(), "names are unique: {more:?}");
    }

    #[test]
    fn charts_are_whole_and_hold_their_numbers() {
        for chart in charts(&sweep()) {
            let text = chart.alone();
            assert!(!text.contains("NaN") && !text.contains("inf\""), "{}: {text}", chart.name);
            for element in ["g", "text", "title", "svg", "style"] {
                let (open, close) = (format!("<{element}"), format!("</{element}>"));
                let opened = text.matches(&format!("{open} ")).count() + text.matches(&format!("{open}>")).count();
                assert_eq!(opened, text.matches(&close).count(), "{}: {element}", chart.name);
            }
        }
        let all: String = charts(&sweep()).iter().map(Chart::inline).collect();
        assert!(all.contains("infoflow 0.15 cold, 2k tokens, 2 ranks: 160.00 ms"), "a tooltip has its numbers");
    }

    #[test]
    fn one_rank_of_one_run_makes_a_difference() {
        let mut study = sweep();
        for sample in study.points.iter_mut().flat_map(|point| &mut point.samples) {
            sample.ranks.iter_mut().for_each(|rank| (rank.received_bytes, rank.formula_bytes) = (70, 70));
        }
        let bytes = |study: &Study| charts(study).into_iter().find(|chart| chart.name == "bytes").map(|it| it.inline());
        assert!(bytes(&study).is_some_and(|text| text.contains("every rank of every run equal to the byte")));
        study.points[0].samples[4].ranks[0].formula_bytes = 0;
        assert!(bytes(&study).is_some_and(|text| text.contains("1 of 8 points differ")));
    }

    #[test]
    fn shared_cores_are_named_on_every_chart_that_shows_them() {
        const WORDS: &str = "functional only: ranks share cores";
        let mut study = sweep();
        assert!(charts(&study).iter().all(|chart| !chart.inline().contains(WORDS)));
        study.points.iter_mut().filter(|point| point.world == 2).for_each(|point| point.shares_cores = true);
        for chart in charts(&study) {
            let shows_two = !chart.name.contains("1-ranks");
            assert_eq!(chart.inline().contains(WORDS), shows_two, "{}", chart.name);
        }
    }

    #[test]
    fn nothing_measured_nothing_drawn() {
        let mut study = sweep();
        for point in &mut study.points {
            point.samples.clear();
            point.summary = None;
        }
        assert_eq!(charts(&study), []);
    }
}
