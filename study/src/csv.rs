//! A study as tables for other programs: one row a point, one row a sample. Cells without a value
//! are empty.

use csv::{Writer, WriterBuilder};
use serde::Serialize;

use crate::error::Result;
use crate::rows::{PointRow, SampleRow, phases, point_rows};
use crate::schema::Study;

/// One row a point.
///
/// # Errors
/// Returns an error if a row cannot be written, which only a bug can cause.
pub fn points(study: &Study) -> Result<String> {
    let mut writer = headed(columns(&PointRow::default())?)?;
    for row in point_rows(study) {
        writer.serialize(row)?;
    }
    text(writer)
}

/// One row a sample, in the order of the runs; after the row's own columns comes one column a
/// phase, in milliseconds.
///
/// # Errors
/// Returns an error if a row cannot be written, which only a bug can cause.
pub fn samples(study: &Study) -> Result<String> {
    let phases = phases(study);
    let mut header = columns(&SampleRow::default())?;
    header.extend(phases.iter().map(|phase| format!("{phase}_ms")));
    let mut writer = headed(header)?;
    let all = study.points.iter().flat_map(|point| point.samples.iter().map(move |sample| (point, sample)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(_, sample)| sample.run);
    for (point, sample) in all {
        let phase_ms = |phase: &String| sample.phases.iter().find(|time| time.phase == *phase).map(|time| time.ms);
        let phases_ms: Vec<Option<f64>> = phases.iter().map(phase_ms).collect();
        writer.serialize((SampleRow::of(point, sample), phases_ms))?;
    }
    text(writer)
}

/// A table that has its header, and no rows yet.
fn headed(header: Vec<String>) -> Result<Writer<Vec<u8>>> {
    let mut writer = WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(header)?;
    Ok(writer)
}

/// The names of a row's columns.
fn columns(row: &impl Serialize) -> Result<Vec<String>> {
    let mut writer = Writer::from_writer(Vec::new());
    writer.serialize(row)?;
    let text = text(writer)?;
    // They are names of fields, so none is quoted.
    Ok(text.lines().next().unwrap_or_default().split(',').map(str::to_owned).collect())
}

fn text(writer: Writer<Vec<u8>>) -> Result<String> {
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8(bytes).expect("rows are made of texts"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{measured, study};
    use crate::schema::{PhaseTime, RankSample};

    /// Rows by the names of their columns.
    fn read(table: &str) -> (Vec<String>, Vec<Vec<String>>) {
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        let texts = |record: &csv::StringRecord| record.iter().map(str::to_owned).collect::<Vec<_>>();
        let header = texts(reader.headers().unwrap());
        // A record that is longer or shorter than the header is an error.
        (header, reader.records().map(|record| texts(&record.unwrap())).collect())
    }

    fn example() -> Study {
        let mut point = measured("ring", 512, 2, None, 10.0);
        point.samples[0].phases = vec![PhaseTime { phase: "probe".into(), ms: 1.5, waited_ms: 0.5 }];
        for (sample, bytes) in point.samples.iter_mut().zip([9, 7, 5, 7, 8]) {
            sample.ranks = vec![RankSample { received_bytes: bytes, formula_bytes: 7, ..RankSample::default() }; 2];
        }
        point.id = "a, \"b\"\nc".to_owned();
        let mut on_two = measured("full:logits", 512, 2, None, 33.0);
        on_two.shares_cores = true;
        study(vec![measured("full", 512, 1, None, 30.0), point, on_two])
    }

    #[test]
    fn columns_are_those_that_scripts_know() {
        let (points, samples) = (points(&example()).unwrap(), samples(&example()).unwrap());
        assert_eq!(
            points.lines().next(),
            Some(
                "id,method,exact,context_tokens,world,ratio,exchange,cache,shares_cores,samples,failures,median_ttft_ms,\
                 ci95_low_ttft_ms,ci95_high_ttft_ms,mean_ttft_ms,min_ttft_ms,max_ttft_ms,p95_ttft_ms,p99_ttft_ms,\
                 predicted_ttft_ms,predicted_low_ttft_ms,predicted_high_ttft_ms,speed_up_to_full,speed_up,efficiency,karp_flatt,received_bytes,formula_bytes,\
                 predicted_received_bytes,predicted_memory_bytes,predicted_total_flops,predicted_critical_flops,\
                 max_logit_difference,kl_nats,top1_agrees,interval"
            )
        );
        assert_eq!(
            samples.lines().next(),
            Some(
                "run,id,method,context_tokens,world,ratio,exchange,cache,shares_cores,ttft_ms,paper_clock_ms,\
                 unaccounted_ms,longest_wait_ms,received_bytes,formula_bytes,cache_hits,peak_memory_bytes,wall_ms,cpu_ms,\
                 others_share,probe_ms"
            )
        );
    }

    #[test]
    fn cells_stand_under_their_names() {
        let (header, rows) = read(&points(&example()).unwrap());
        let column = |name: &str| header.iter().position(|column| column == name).unwrap();
        let ring = |name: &str| rows[1][column(name)].as_str();
        assert_eq!((rows.len(), ring("id")), (3, "a, \"b\"\nc"));
        assert_eq!((ring("median_ttft_ms"), ring("p99_ttft_ms"), ring("speed_up_to_full")), ("10.0", "", "3.0"));
        assert_eq!((ring("received_bytes"), ring("formula_bytes"), ring("efficiency")), ("14", "14", "1.0"));
        assert_eq!(ring("interval"), "range", "five samples");
        assert_eq!((ring("top1_agrees"), ring("predicted_memory_bytes"), ring("karp_flatt")), ("true", "", ""));
    }

    #[test]
    fn every_sample_has_a_row_and_every_phase_a_column() {
        let (header, rows) = read(&samples(&example()).unwrap());
        assert_eq!((rows.len(), header.last().map(String::as_str)), (15, Some("probe_ms")));
        let probes: Vec<&str> = rows.iter().map(|row| row[20].as_str()).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(probes, ["1.5"]);
        assert!(rows.iter().any(|row| row[2..9] == ["full:logits", "512", "2", "", "", "cold", "true"]), "{rows:?}");
        let empty = study(Vec::new());
        let lengths =
            [points(&empty), samples(&empty)].map(|table| read(&table.unwrap())).map(|(a, b)| (a.len(), b.len()));
        assert_eq!(lengths, [(36, 0), (20, 0)], "a header, and no rows");
    }
}
