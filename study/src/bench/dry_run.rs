//! Dry run of a study: its runs, and their predicted times.

use crate::notes::profile_notes;
use crate::schema::{Cache, Design, Point, Prediction};
use tributary_charts::table::{Layout, table};
use tributary_planner::forecast::Profile;
use tributary_system::size::MIB;

use super::rounds::duration;

/// A time and half of its interval.
fn with_interval(predicted: &Prediction) -> String {
    format!("{:.1} \u{b1} {:.1}", predicted.ttft_ms, (predicted.ttft_high_ms - predicted.ttft_low_ms) / 2.0)
}

/// The points in a table. Ends with a line break.
pub fn render(design: &Design, points: &[Point], profile: Option<&Profile>) -> String {
    let names = ["tokens", "method", "ranks", "ratio", "cache", "exchange", "memory", "bytes", "TTFT", "runs"];
    let units = ["", "", "", "", "", "", "[MiB]", "[bytes]", "[ms]", ""];
    let runs = design.warmups + design.repeats;
    let mut rows = vec![names.map(str::to_owned).to_vec(), units.map(str::to_owned).to_vec()];
    for point in points {
        let predicted = &point.predicted;
        let is_known = predicted.ttft_ms > 0.0;
        rows.push(vec![
            point.context_tokens.to_string(),
            point.method.clone(),
            point.world.to_string(),
            point.ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string()),
            if point.exact && point.cache == Cache::Cold { "-".to_owned() } else { point.cache.to_string() },
            point.exchange.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{:.1}", predicted.memory_bytes as f64 / MIB as f64),
            predicted.received_bytes.to_string(),
            if is_known { with_interval(predicted) } else { "-".to_owned() },
            runs.to_string(),
        ]);
    }
    let all = runs * points.len();
    let mut text = format!("# dry run of {}: predicted, nothing was measured\n", design.model);
    if !design.images.is_empty() {
        text += &format!("# pictures after each context: {}\n", design.images);
    }
    text += &table(&rows, Layout { left: &[1, 4, 5], commented_rows: Some(2) });
    text += &format!(
        "# {} points, {} warm-ups and {} counted runs each: {all} runs",
        points.len(),
        design.warmups,
        design.repeats
    );
    if points.iter().all(|point| point.predicted.ttft_ms > 0.0) {
        let a_round_s: f64 = points.iter().map(|point| point.predicted.ttft_ms / 1000.0).sum();
        text += &format!(", about {}", duration(runs as f64 * a_round_s));
    } else if profile.is_none() {
        text += "; no times: --profile names a machine that predicts them";
    }
    text.push('\n');
    if let Some(profile) = profile {
        for note in profile_notes(&profile.label(), profile.ranks, &design.worlds) {
            text += &format!("# note: {note}\n");
        }
    }
    text
}
