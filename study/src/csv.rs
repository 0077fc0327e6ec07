//! A study as tables for other programs: one row a point, one row a sample. RFC 4180, times in milliseconds.

use super::scaling::{full, is_full, strong_of};
use super::schema::{Point, RankSample, Study};

/// One row a point. Cells without a value are empty.
pub fn points(study: &Study) -> String {
    let mut text = String::from(
        "id,method,exact,context_tokens,world,ratio,exchange,cache,shares_cores,samples,failures,median_ttft_ms,\
         ci95_low_ttft_ms,ci95_high_ttft_ms,mean_ttft_ms,min_ttft_ms,max_ttft_ms,p95_ttft_ms,p99_ttft_ms,\
         predicted_ttft_ms,speed_up_to_full,speed_up,efficiency,karp_flatt,received_bytes,formula_bytes,\
         predicted_received_bytes,predicted_memory_bytes,predicted_total_flops,predicted_critical_flops,\
         max_logit_difference,kl_nats,top1_agrees\n",
    );
    for point in &study.points {
        text += &line(&point_cells(study, point));
    }
    text
}

fn point_cells(study: &Study, point: &Point) -> Vec<String> {
    let summary = point.summary.as_ref();
    let of = |value: fn(&super::schema::Summary) -> f64| optional(summary.map(value));
    // Full prefill computes on one rank, however many there are.
    let strong = strong_of(study, point).filter(|_| !is_full(point));
    let to_full = full(study, point.context_tokens).zip(summary).map(|((_, full), own)| full / own.median_ttft_ms);
    let predicted = &point.predicted;
    let accuracy = point.accuracy.as_ref();
    let mut cells = vec![
        point.id.clone(),
        point.method.clone(),
        point.exact.to_string(),
        point.context_tokens.to_string(),
        point.world.to_string(),
        optional(point.ratio),
        point.exchange.clone().unwrap_or_default(),
        point.cache.to_string(),
        point.shares_cores.to_string(),
        point.samples.len().to_string(),
        point.failures.len().to_string(),
        of(|summary| summary.median_ttft_ms),
        of(|summary| summary.ci95_ttft_ms.0),
        of(|summary| summary.ci95_ttft_ms.1),
        of(|summary| summary.mean_ttft_ms),
        of(|summary| summary.min_ttft_ms),
        of(|summary| summary.max_ttft_ms),
        optional(summary.and_then(|summary| summary.p95_ttft_ms)),
        optional(summary.and_then(|summary| summary.p99_ttft_ms)),
    ];
    cells.extend([
        known(predicted.ttft_ms),
        optional(to_full),
        optional(strong.as_ref().map(|strong| strong.speed_up)),
        optional(strong.as_ref().map(|strong| strong.efficiency)),
        optional(strong.as_ref().and_then(|strong| strong.karp_flatt)),
        optional(received_bytes(point)),
        optional(formula_bytes(point)),
        predicted.received_bytes.to_string(),
        known(predicted.memory_bytes as f64),
        known(predicted.total_flops),
        known(predicted.critical_flops),
        optional(accuracy.map(|accuracy| accuracy.max_logit_difference)),
        optional(accuracy.map(|accuracy| accuracy.kl_nats)),
        optional(accuracy.map(|accuracy| accuracy.top1_agrees)),
    ]);
    cells
}

/// One row a sample, in the order of the runs; one column a phase.
pub fn samples(study: &Study) -> String {
    let phases = phases(study);
    let mut text = String::from(
        "run,id,method,context_tokens,world,ratio,exchange,cache,shares_cores,ttft_ms,paper_clock_ms,unaccounted_ms,\
         longest_wait_ms,received_bytes,formula_bytes,cache_hits,peak_memory_bytes",
    );
    for phase in &phases {
        text += &format!(",{phase}_ms");
    }
    text.push('\n');
    let all = study.points.iter().flat_map(|point| point.samples.iter().map(move |sample| (point, sample)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(_, sample)| sample.run);
    for (point, sample) in all {
        let bytes = |of: fn(&RankSample) -> u64| sample.ranks.iter().map(of).sum::<u64>();
        let mut cells = vec![
            sample.run.to_string(),
            point.id.clone(),
            point.method.clone(),
            point.context_tokens.to_string(),
            point.world.to_string(),
            optional(point.ratio),
            point.exchange.clone().unwrap_or_default(),
            point.cache.to_string(),
            point.shares_cores.to_string(),
            sample.ttft_ms.to_string(),
            sample.paper_clock_ms.to_string(),
            sample.unaccounted_ms.to_string(),
            sample.ranks.iter().map(|rank| rank.waited_ms).fold(0.0, f64::max).to_string(),
            bytes(|rank| rank.received_bytes).to_string(),
            bytes(|rank| rank.formula_bytes).to_string(),
            sample.cache_hits.to_string(),
            sample.peak_memory_bytes.to_string(),
        ];
        for phase in &phases {
            cells.push(optional(sample.phases.iter().find(|time| time.phase == *phase).map(|time| time.ms)));
        }
        text += &line(&cells);
    }
    text
}

/// Bytes that all ranks received together, median of the samples (of two in the middle the lower); none without samples.
pub fn received_bytes(point: &Point) -> Option<u64> {
    median_bytes(point, |rank| rank.received_bytes)
}

/// What the formula gives for all ranks together, median of the samples as above.
pub fn formula_bytes(point: &Point) -> Option<u64> {
    median_bytes(point, |rank| rank.formula_bytes)
}

fn median_bytes(point: &Point, of: fn(&RankSample) -> u64) -> Option<u64> {
    let mut sums: Vec<u64> = point.samples.iter().map(|sample| sample.ranks.iter().map(of).sum()).collect();
    sums.sort_unstable();
    sums.get(sums.len().saturating_sub(1) / 2).copied()
}

/// Whether any rank of any sample received other than the formula gives.
pub fn bytes_differ(point: &Point) -> bool {
    let mut ranks = point.samples.iter().flat_map(|sample| &sample.ranks);
    ranks.any(|rank| rank.received_bytes != rank.formula_bytes)
}

/// The phases that occur, in the order of the first sample that has them.
pub(super) fn phases(study: &Study) -> Vec<String> {
    // In every request phases come in one order; a sample that has more of them tells where those stand.
    let mut longest: Vec<String> = Vec::new();
    for sample in study.points.iter().flat_map(|point| &point.samples) {
        let mut place = 0;
        for time in &sample.phases {
            match longest.iter().position(|name| *name == time.phase) {
                Some(found) => place = found + 1,
                None => {
                    longest.insert(place, time.phase.clone());
                    place += 1;
                }
            }
        }
    }
    longest
}

fn known(value: f64) -> String {
    if value > 0.0 { value.to_string() } else { String::new() }
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    let mut text = cells.iter().map(quoted).collect::<Vec<_>>().join(",");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::super::kit::{measured, study};
    use super::super::schema::PhaseTime;
    use super::*;

    #[test]
    fn rows_have_as_many_cells_as_the_header() {
        let mut point = measured("ring", 512, 2, None, 10.0);
        point.samples[0].phases = vec![PhaseTime { phase: "probe".into(), ms: 1.5, waited_ms: 0.5 }];
        for (sample, bytes) in point.samples.iter_mut().zip([9, 7, 5, 7, 8]) {
            sample.ranks = vec![RankSample { received_bytes: bytes, formula_bytes: 7, ..RankSample::default() }; 2];
        }
        point.id = "a, \"b\"".to_owned();
        let mut on_two = measured("full:logits", 512, 2, None, 33.0);
        on_two.shares_cores = true;
        let study = study(vec![measured("full", 512, 1, None, 30.0), point, on_two]);
        let (points, samples) = (points(&study), samples(&study));
        for table in [points.replace("\"a, \"\"b\"\"\"", "id"), samples.replace("\"a, \"\"b\"\"\"", "id")] {
            let counts: Vec<usize> = table.lines().map(|line| line.split(',').count()).collect();
            assert!(counts.iter().all(|&count| count == counts[0]), "{counts:?}\n{table}");
        }
        assert_eq!((points.lines().count(), samples.lines().count()), (1 + 3, 1 + 15));
        let header: Vec<&str> = points.lines().next().unwrap_or_default().split(',').collect();
        let row = |number: usize| points.lines().nth(number).unwrap_or_default().replace("\"a, \"\"b\"\"\"", "id");
        let (ring, full) = (row(2), row(3));
        let of = |row: &str, name: &str| {
            let column = header.iter().position(|column| *column == name);
            column.and_then(|column| row.split(',').nth(column).map(str::to_owned))
        };
        for name in ["speed_up", "efficiency", "karp_flatt"] {
            assert_eq!(of(&full, name).as_deref(), Some(""), "{name} of a method that computes on one rank");
        }
        assert_eq!(of(&ring, "efficiency").as_deref(), Some("1"));
        let row: Vec<&str> = ring.split(',').collect();
        let cell = |name: &str| header.iter().position(|column| *column == name).map(|column| row[column]);
        assert_eq!((cell("median_ttft_ms"), cell("p99_ttft_ms")), (Some("10"), Some("")));
        assert_eq!((cell("speed_up_to_full"), cell("received_bytes")), (Some("3"), Some("14")));
        assert_eq!((cell("formula_bytes"), cell("karp_flatt")), (Some("14"), Some("")));
        assert!(samples.lines().next().unwrap_or_default().ends_with(",peak_memory_bytes,probe_ms"));
        assert!(samples.lines().any(|line| line.contains("full:logits,512,2,,,cold,true,")), "{samples}");
    }

    #[test]
    fn phases_stand_in_their_order() {
        let (mut ring, mut infoflow) = (measured("ring", 1, 1, None, 9.0), measured("infoflow", 1, 1, Some(0.1), 9.0));
        let times =
            |names: [&str; 3]| names.map(|phase| PhaseTime { phase: phase.into(), ms: 1.0, waited_ms: 0.0 }).to_vec();
        ring.samples[0].phases = times(["tokenize", "chunk_prefill", "first_token"]);
        infoflow.samples[0].phases = times(["chunk_prefill", "probe", "first_token"]);
        assert_eq!(phases(&study(vec![ring, infoflow])), ["tokenize", "chunk_prefill", "probe", "first_token"]);
    }
}
