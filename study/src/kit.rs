//! Studies for tests.

use super::schema::summary;
use super::schema::{Accuracy, Cache, Design, Point, Prediction, Provenance, SCHEMA, Sample, Study};

/// A point with five samples around a median.
pub(crate) fn measured(method: &str, tokens: usize, world: usize, ratio: Option<f64>, ms: f64) -> Point {
    let sample = |(run, ttft_ms)| Sample { run, ttft_ms, ..Sample::default() };
    let times = [ms - 2.0, ms + 1.0, ms, ms - 1.0, ms + 3.0];
    Point {
        id: format!("{method} tokens={tokens} world={world}"),
        method: method.to_owned(),
        exact: ratio.is_none(),
        context_tokens: tokens,
        world,
        ratio,
        exchange: ratio.filter(|_| world > 1).map(|_| "replicate".to_owned()),
        cache: Cache::Cold,
        shares_cores: false,
        samples: times.into_iter().enumerate().map(sample).collect(),
        failures: Vec::new(),
        summary: summary(&times),
        predicted: Prediction::default(),
        accuracy: Some(Accuracy { max_logit_difference: 1e-6, kl_nats: 0.0, top1_agrees: true }),
    }
}

/// A study of these points.
pub(crate) fn study(points: Vec<Point>) -> Study {
    let provenance = Provenance {
        began: "2026-01-01T00:00:00Z".to_owned(),
        command: vec!["tributary".to_owned(), "bench".to_owned()],
        backend: "local".to_owned(),
        ..Provenance::default()
    };
    Study { schema: SCHEMA.to_owned(), provenance, design: Design::default(), points, busy: Vec::new() }
}
