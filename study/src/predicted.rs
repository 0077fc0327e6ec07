//! Quality of a study's predictions: the number of medians in their intervals, and the mean error.

use crate::schema::{Point, Study};

/// Predictions compared with measurements, all points together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Points that were predicted and measured.
    pub points: usize,
    /// Points whose median lies in the interval.
    pub inside: usize,
    /// The mean of predicted over measured, less one.
    pub mean_signed_error: f64,
    /// Half the widest interval, as a share of its prediction.
    pub widest_half: f64,
}

/// The verdict on a study; nothing where nothing was predicted and measured.
pub fn verdict(study: &Study) -> Option<Verdict> {
    let of = |point: &Point| -> Option<(bool, f64, f64)> {
        let median_ms = point.summary.as_ref()?.median_ttft_ms;
        let predicted = &point.predicted;
        let is_known = predicted.ttft_ms > 0.0 && predicted.ttft_high_ms > 0.0;
        let is_inside = (predicted.ttft_low_ms..=predicted.ttft_high_ms).contains(&median_ms);
        let half = (predicted.ttft_high_ms - predicted.ttft_low_ms) / (2.0 * predicted.ttft_ms);
        is_known.then(|| (is_inside, predicted.ttft_ms / median_ms - 1.0, half))
    };
    let found: Vec<(bool, f64, f64)> = study.points.iter().filter(|point| !point.shares_cores).filter_map(of).collect();
    let points = found.len();
    (points > 0).then(|| Verdict {
        points,
        inside: found.iter().filter(|(is_inside, ..)| *is_inside).count(),
        mean_signed_error: found.iter().map(|(_, error, _)| error).sum::<f64>() / points as f64,
        widest_half: found.iter().map(|(.., half)| *half).fold(0.0, f64::max),
    })
}

impl Verdict {
    /// In words.
    pub fn note(&self) -> String {
        let Self { points, inside, mean_signed_error, widest_half } = self;
        format!(
            "predictions: {inside} of {points} medians lie in their intervals; the mean signed error is {:+.1} %, the widest interval \
             \u{b1} {:.0} %",
            100.0 * mean_signed_error,
            100.0 * widest_half
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{measured, study};
    use crate::schema::Prediction;

    #[test]
    fn medians_are_counted_in_their_intervals() {
        let point = |name: &str, median_ms: f64, ttft_ms: f64, ttft_low_ms: f64, ttft_high_ms: f64| {
            let mut point = measured(name, 512, 1, None, median_ms);
            point.predicted = Prediction { ttft_ms, ttft_low_ms, ttft_high_ms, ..Prediction::default() };
            point
        };
        let mut shared = point("epic", 500.0, 50.0, 45.0, 55.0);
        shared.shares_cores = true;
        let found = verdict(&study(vec![
            point("full", 100.0, 110.0, 99.0, 121.0),
            point("ring", 100.0, 80.0, 60.0, 99.0),
            measured("none", 512, 1, None, 3.0),
            shared,
        ]));
        let found = found.expect("two points");
        assert_eq!((found.points, found.inside), (2, 1));
        assert!((found.mean_signed_error + 0.05).abs() < 1e-9, "{found:?}");
        assert!((found.widest_half - 19.5 / 80.0).abs() < 1e-9, "{found:?}");
        assert!(found.note().contains("1 of 2 medians") && found.note().contains("-5.0 %"), "{}", found.note());
        assert_eq!(verdict(&study(vec![measured("none", 512, 1, None, 3.0)])), None);
    }
}
